"""What leverbench asks of a serving engine."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.load.endpoint import StreamingEndpoint
from leverbench.tuning.shapes import Alternative, GemmShape, LookedUp


class NoAnswer(Exception):
    """A running server did not answer, or not in a way that makes sense.

    Args:
        detail: What happened.
        status: The HTTP status, where there was one.
    """

    def __init__(self, detail: str, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Address:
    """Where a server is, and how it lets us in.

    Attributes:
        url: Without a final slash.
        key: The API key, or None; never written anywhere.
    """

    url: str
    key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        headers = {"Content-Type": "application/json"}
        return {**headers, "Authorization": f"Bearer {self.key}"} if self.key else headers


@dataclass(frozen=True)
class EngineIdentity:
    """An installed engine: its version, and a digest of the files that it was installed with."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class AppliedLever:
    """What a running server says of one setting.

    Attributes:
        key: The setting, as in a variant's delta: ``args.NAME`` or ``env.NAME``.
        asked: The value that the campaign asks for; None where it asks for absence.
        seen: The value found in the running server, None where none was found.
        applied: Whether they agree; None where the server does not tell.
        evidence: Where ``seen`` was read.
    """

    key: str
    asked: Any
    seen: Any
    applied: bool | None
    evidence: str


@dataclass(frozen=True)
class Answer:
    """What a server answers at temperature 0.

    Attributes:
        text: The answer; empty where the server gives none as text.
        token_ids: Its token ids, special ones included; None where the server does not tell.
    """

    text: str
    token_ids: tuple[int, ...] | None


class Api(Protocol):
    """How a running server is talked to. The methods raise `NoAnswer`."""

    name: str
    # Path of the HTTP endpoint that answers 200 once the server takes requests.
    ready_path: str

    def endpoint(self, at: Address) -> StreamingEndpoint:
        """Returns the streaming endpoint that takes token ids."""
        ...

    def ask(self, at: Address, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
        """Returns the answer to a chat of one message, at temperature 0."""
        ...

    def server_info(self, at: Address, timeout_s: float) -> dict[str, Any]:
        """Returns what the server tells of itself, the same each time while it runs.

        Returns:
            ``{"effective": arguments in force, "memory": report, "version": of the engine,
            "device": ``cpu`` or ``gpu``, "start": anything that another start of the same server
            has otherwise}``; None, or an empty mapping, for what it does not tell.
        """
        ...

    def served_model(self, at: Address, timeout_s: float) -> dict[str, Any]:
        """Returns what the server tells of its model, the same each time while it serves it."""
        ...

    def counters(self, at: Address, timeout_s: float) -> dict[str, float] | None:
        """Returns the server's own counters of tokens; None where it does not publish them."""
        ...

    def longest_request(
        self, args: Mapping[str, Any], model_config: Mapping[str, Any]
    ) -> int | None:
        """Returns the tokens of the longest request, prompt and answer, that a server takes.

        Args:
            args: The arguments that it is launched with.
            model_config: Content of the model's ``config.json``; empty where it is not known.

        Returns:
            The number; None where neither tells. Less memory may take less.
        """
        ...


@dataclass(frozen=True)
class Unread:
    """Tuned files that a server would not look at.

    Attributes:
        message: What is the matter, as a sentence without a final full stop.
        cure: What to change in the campaign.
        certain: Whether that follows from version, GPU and arguments; else it is likely, and
            depends on what is installed, on a default of the model's, or on what is not known.
    """

    message: str
    cure: str
    certain: bool


@dataclass(frozen=True)
class FileProof:
    """Whether a tuned file that a server was given is in force.

    Attributes:
        n: Rows of the weight: N.
        k: Its columns: K.
        digest: First 16 hex digits of the file's SHA-256.
        served: The processes in which it was served.
        used: The M of configs that every one of these processes has used.
        applied: True on all ranks, False if some rank uses something else; None if that is not
            known, since the shape was not looked up on every rank.
        problem: Why it is not True.
    """

    n: int
    k: int
    digest: str
    served: tuple[int, ...]
    used: tuple[int, ...]
    applied: bool | None
    problem: str | None


class TunedFiles(Protocol):
    """A kernel of the engine's own that reads its parameters from files, one a shape (N, K)."""

    # Name of the kernel, as a manifest's ``load: configs:`` has it.
    kernel: str

    def shapes(
        self, config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
    ) -> tuple[GemmShape, ...]:
        """Returns the shapes that a rank of a server looks files up for.

        Args:
            config: The model's config.json.
            args: The server's arguments.
            env: Its environment.

        Raises:
            LeverbenchError: They cannot be told, or do not fit the topology.
        """
        ...

    def alternatives(
        self, config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
    ) -> tuple[Alternative, ...]:
        """Returns the shapes that there would be if something were otherwise."""
        ...

    def looked_up(self, log: str) -> list[LookedUp]:
        """Returns what a server's log tells of lookups."""
        ...

    def captured_sizes(self, args: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Returns the batches, in requests, that graphs are captured for; None if not known."""
        ...

    def draft_tokens(self, args: Mapping[str, Any]) -> int:
        """Returns the tokens of a request in a decode step: 1 without speculation."""
        ...

    def why_not_read(
        self,
        version: str | None,
        capability: tuple[int, int] | None,
        args: Mapping[str, Any],
        shapes: Sequence[GemmShape],
        env: Mapping[str, str],
    ) -> Unread | None:
        """Tells whether a server would look for the files; None where it would for each."""
        ...

    def source(self, settings: EngineSettings) -> str | None:
        """Returns a digest of the kernel's source in an interpreter's engine; None without one."""
        ...

    def shipped(
        self, settings: EngineSettings, n: int, k: int, device: str
    ) -> dict[int, dict[str, int]]:
        """Returns what the engine brings along for a shape on a GPU, by M; empty for nothing."""
        ...

    def read(
        self,
        folder: Path,
        device: str,
        version: str | None,
        capability: tuple[int, int] | None,
    ) -> dict[tuple[int, int], dict[int, dict[str, int]]]:
        """Reads files of others: their parameters by M, by (N, K).

        Raises:
            LeverbenchError: One is for another device, block or engine, or no good; or there is
                none.
        """
        ...

    def write(self, folder: Path, device: str, chosen: Sequence[Mapping[str, Any]]) -> list[Path]:
        """Writes what was chosen in the engine's format.

        Args:
            folder: Where.
            device: The GPU, as torch names it.
            chosen: ``{"dimensions": {"N", "K", "M"}, "config": {...}}`` of each call.

        Returns:
            The files, one a shape.

        Raises:
            LeverbenchError: The engine could not use a config.
        """
        ...

    def loader(self) -> str:
        """Returns the module that gives a server its files: ``__init__.py`` of the plugin.

        Beside it lie the files in ``configs/``, and ``configs.json``: ``digest``, ``device`` as in
        their names, ``files`` (SHA-256 by name).
        """
        ...

    def device_part(self, device: str) -> str:
        """Returns a GPU's name as it stands in the files' names."""
        ...

    def proofs(
        self, log: str, expected: Mapping[tuple[int, int], str], ranks: int
    ) -> list[FileProof]:
        """Returns what a launch's log shows of each file that the server was given.

        Args:
            log: Of the launch.
            expected: The SHA-256 of each file by (N, K).
            ranks: How many processes run the model.
        """
        ...


class Engine(Api, Protocol):
    """A serving engine that leverbench can launch, and talks to by its own endpoints."""

    # What the names of the engine's own environment variables begin with.
    env_prefix: str
    # The group of entry points in which the engine looks for plugins.
    plugin_group: str
    # A line of the server's log that tells of compilation, tuning or capture.
    compile_pattern: re.Pattern[str]
    # Lines of the log, one a rank: it begins to record a profile, and has written its trace.
    profile_begun_pattern: re.Pattern[str]
    profile_done_pattern: re.Pattern[str]

    @property
    def tuned_files(self) -> TunedFiles:
        """Its own kernel that reads tuned files."""
        ...

    def stop_grace_s(self, devices: Sequence[str]) -> float:
        """Returns the time between the request to stop and the kill, with no request in flight."""
        ...

    def lever_family(self, key: str) -> str:
        """Returns the lever to which ``args.NAME`` or ``env.NAME`` belongs."""
        ...

    def identify(self, settings: EngineSettings) -> EngineIdentity:
        """Returns which engine the interpreter has; `LeverbenchError` where it has none."""
        ...

    def check_arguments(
        self, several: Sequence[EngineSettings], identity: EngineIdentity
    ) -> list[dict[str, Any] | LeverbenchError]:
        """Asks the installed engine's own parser about several command lines of one interpreter.

        Returns:
            For each, its arguments' ``[field, value]`` as parsed, or why it is refused, with the
            nearest flags as the cure.

        Raises:
            LeverbenchError: The engine does not import, or an argument is leverbench's own.
        """
        ...

    def command(self, settings: EngineSettings, model_path: Path) -> tuple[str, ...]:
        """Returns the argv of a server; the word ``{port}`` stands for its port."""
        ...

    def environment(self, settings: EngineSettings, plugins: Sequence[Path] = ()) -> dict[str, str]:
        """Returns the environment added to the server's, the campaign's own included.

        Args:
            settings: The server's.
            plugins: Absolute folders of the plugins that it is to load. No other plugin is
                loaded, unless the campaign itself names it.
        """
        ...

    def plugin_loader(self) -> str:
        """Returns the module that loads a kernel as a plugin: ``__init__.py`` of its package.

        Its ``register`` is the entry point.
        """
        ...

    def plugin_problem(self, log: str, module: str) -> str | None:
        """Returns the line of a server's log that tells why a plugin is not in force, or None."""
        ...

    def lay_out_moe_files(self, files: Sequence[Path], triton: str, root: Path) -> list[Path]:
        """Copies tuned files of a fused MoE kernel to where a server looks for them.

        Args:
            files: The files, of one GPU.
            triton: The version of Triton that they were tuned with.
            root: The folder to name in the server's settings.

        Returns:
            The copies.

        Raises:
            LeverbenchError: One of them is no good.
        """
        ...

    def check_files(
        self, settings: EngineSettings, device: str, version: str | None, triton: str | None
    ) -> None:
        """Looks at files of tuned parameters that a server's own settings name.

        Args:
            settings: The server's.
            device: The GPU's name.
            version: The engine's; None where not known.
            triton: Triton's; None where not known.

        Raises:
            LeverbenchError: The server would fail for them, or not read them.
        """
        ...

    def why_files_not_read(
        self,
        settings: EngineSettings,
        capability: tuple[int, int] | None,
        config: Mapping[str, Any],
    ) -> Unread | None:
        """Tells whether a server would look at the files that its settings name, as `check_files`.

        Args:
            settings: The server's.
            capability: The GPU's compute capability; None where not known.
            config: The model's config.json; empty where not known.

        Returns:
            None where it would, or where they name none.
        """
        ...

    def flush_cache(self, at: Address, timeout_s: float) -> None:
        """Empties the prefix cache, waiting until no request runs; raises `NoAnswer`."""
        ...

    def start_profile(
        self, at: Address, output_dir: Path, steps: int, devices: Sequence[str], timeout_s: float
    ) -> None:
        """Records the next decode steps, on each rank; returns as soon as recording has begun.

        Each rank writes its trace, in the profiler's JSON, without stacks and shapes.

        Args:
            at: The server; where it refuses, the `NoAnswer` has an HTTP status.
            output_dir: An absolute path, as the server sees it.
            steps: Scheduler steps of any kind after which the recording ends by itself.
            devices: The server's devices.
            timeout_s: Longest wait for the answer.
        """
        ...

    def stop_profile(self, at: Address, timeout_s: float) -> None:
        """Ends a recording; returns when its traces are written."""
        ...

    def profiled_ranks(self, effective: Mapping[str, Any]) -> int:
        """Returns how many traces a profile makes, by the server's effective arguments."""
        ...

    def traces(self, output_dir: Path) -> dict[str, Path]:
        """Returns the traces in a folder by the name of their rank, whole or not."""
        ...

    def step_marks(self, annotations: Iterable[str]) -> Mapping[str, bool]:
        """Tells which annotations of a trace mark a step, and which of these are decode steps.

        Args:
            annotations: Their names, each once.

        Returns:
            By name, whether it is a decode step. Without those that mark nothing or a part of a
            step: a decode step lasts until the next mark.
        """
        ...

    def reads(self, argument: str, version: str | None) -> bool:
        """Returns whether a version of the engine uses an argument that its parser accepts.

        True unless the contrary is known: a lever that is taken and ignored is not applied,
        whatever the server calls in force.
        """
        ...

    def memory_failure(self, log: str) -> str | None:
        """Tells from a server's log whether it ended for lack of memory.

        Returns:
            ``out-of-memory`` (it took more than there is), ``pool-too-small`` (its own share is
            too small for it), or None.
        """
        ...

    def applied(
        self, parsed: Mapping[str, Any], info: Mapping[str, Any], key: str, asked: Any
    ) -> AppliedLever:
        """Compares an argument asked for with the effective arguments of a running server.

        Args:
            parsed: What `check_arguments` gave for the server's settings.
            info: What `server_info` gave.
            key: ``args.NAME``.
            asked: The value asked for; None for an argument that was removed, which the server
                cannot show to be gone: ``applied`` is None then.
        """
        ...
