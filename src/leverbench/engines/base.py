"""What leverbench asks of a serving engine."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.load.endpoint import StreamingEndpoint


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
