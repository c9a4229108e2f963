"""SGLang: command line, endpoints, log lines. The tests start 0.5.23."""

import difflib
import hashlib
import importlib.metadata
import inspect
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines.base import (
    Address,
    Answer,
    AppliedLever,
    EngineIdentity,
    NoAnswer,
    TunedFiles,
    Unread,
)
from leverbench.engines.http import chat, chat_text, fetch, fetch_json
from leverbench.errors import LeverbenchError
from leverbench.load.endpoint import Request, StreamSummary

# leverbench's own: a campaign that sets them would measure something else than it says.
_OWNED = ("model-path", "model", "host", "port", "config")

# Prefixes of arguments and variables that are turned together when one lever is pulled.
_FAMILIES = (
    ("args.speculative-", "speculation"),
    ("args.cuda-graph-", "cuda-graph"),
    ("args.disaggregation-", "disaggregation"),
    ("args.fp8-gemm-", "fp8-gemm"),
    ("args.moe-", "moe"),
    ("args.ep-", "expert-parallel"),
    ("args.hicache-", "hicache"),
    ("args.lora-", "lora"),
    ("env.NCCL_", "nccl"),
    ("env.OMP_", "openmp"),
    ("env.TRITON_", "triton"),
    ("version", "engine"),
    ("python", "engine"),
    ("wrapper", "engine"),
    ("attach", "server"),
)

# The first asks for a larger share of the memory, the others for less use of it.
_POOL_TOO_SMALL = re.compile(r"(increase|[Rr]aise) --mem-fraction-static")
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|to a smaller value|not enough memory|MemoryError"
    r"|[Cc]annot allocate memory|can't allocate memory|std::bad_alloc"
)

# <profile id>-TP-0[-DP-0][-PP-0][-EP-0].trace.json.gz; the id is the time.
_TRACE_NAME = re.compile(r"(TP-\d+(?:-(?:DP|PP|EP)-\d+)*)\.trace\.json\.gz$")

# It stands for all files that the engine comes with.
_MOE_CONFIGS = "SGLANG_MOE_CONFIG_DIR"

# A name that no plugin has, for servers that are to load none.
_NO_PLUGIN = "leverbench-none"

# Of an exception and those that it was raised from: the last one's own first line.
_TRACEBACK = r"(?:(?:\n.*exception.*:\n\n)?Traceback .*\n(?:[ \t].*\n)+(?P<raised>\S.*)\n?)+"

# What of ``/model_info`` makes it another model: the rest is settings, and names.
_MODEL_FIELDS = ("model_path", "weight_version", "load_format", "model_type", "architectures")

# The first import of an engine from a cold network disk takes minutes.
_IMPORT_TIMEOUT_S = 600

# Arguments whose field no other module of that version mentions, by a search of its sources.
_UNREAD = {"num-continuous-decode-steps": "0.5.23"}

# Keys of a model's configuration that tell its context length, the first one first.
_CONTEXT_LENGTHS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)

# Flags that newer versions call otherwise.
_RENAMED = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--enable-dp-attention": "--attn-dp-size",
    "--disable-cuda-graph-padding": "--cuda-graph-bs-decode",
    "--enable-ep-moe": "--ep-size",
}


@dataclass(frozen=True)
class _GenerateEndpoint:
    """The native streaming endpoint: token ids in, cumulative token ids out."""

    url: str
    headers: Mapping[str, str]

    def body(self, request: Request) -> bytes:
        question = {
            "input_ids": request.input_ids,
            "sampling_params": {
                "max_new_tokens": request.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
            "stream": True,
        }
        return json.dumps(question).encode()

    def parse(self, events: Sequence[bytes]) -> StreamSummary:
        cumulative: list[int] = []
        output_ids: tuple[int, ...] | None = None
        meta: dict[str, Any] = {}
        for event in events:
            data = json.loads(event)
            if "error" in data:
                message = str(data["error"].get("message", data["error"]))
                return StreamSummary((), None, None, None, None, None, message)
            meta = data["meta_info"]
            cumulative.append(meta["completion_tokens"])
            output_ids = tuple(data["output_ids"])
        reason = meta.get("finish_reason")
        return StreamSummary(
            cumulative_output_tokens=tuple(cumulative),
            prompt_tokens=meta.get("prompt_tokens"),
            cached_tokens=meta.get("cached_tokens"),
            finish_reason=reason.get("type") if isinstance(reason, dict) else reason,
            accept_length=meta.get("spec_accept_length"),
            output_ids=output_ids,
            error=None,
        )


class SGLang:
    """The SGLang server, through ``python -m sglang.launch_server``."""

    name = "sglang"
    ready_path = "/health"
    env_prefix = "SGLANG_"
    plugin_group = "sglang.srt.plugins"
    compile_pattern = re.compile(
        r"Capture .*graph (begin|end)|JIT|[Aa]utotun|torch\.compile|Compiling", re.IGNORECASE
    )
    profile_begun_pattern = re.compile(r"Profiling starts\b")
    profile_done_pattern = re.compile(r"Profiling done\b")

    def stop_grace_s(self, devices: Sequence[str]) -> float:
        """SGLang looks for its request to stop every 5 s, then ends its processes.

        A GPU may keep its memory if it is killed meanwhile; on the CPU nothing can be lost.
        """
        return 0.5 if devices[0] == "cpu" else 30.0

    def lever_family(self, key: str) -> str:
        """Returns the lever to which ``args.NAME`` or ``env.NAME`` belongs."""
        for prefix, family in _FAMILIES:
            if key.startswith(prefix):
                return family
        return key.partition(".")[2] or key

    def identify(self, settings: EngineSettings) -> EngineIdentity:
        """Returns which SGLang the interpreter has."""
        command = [*settings.wrapper, settings.python or sys.executable]
        missing = LeverbenchError(
            "this interpreter has no SGLang",
            where=" ".join(command),
            cure="Install it there, or name another with engine.python in the campaign.",
        )
        if settings.python is None and not settings.wrapper:
            # This very interpreter: no need to start it.
            try:
                return EngineIdentity(self.name, *_installed())
            except importlib.metadata.PackageNotFoundError:
                raise missing from None
        source = f"import hashlib, importlib.metadata\n{inspect.getsource(_installed)}"
        try:
            done = subprocess.run(
                [*command, "-c", f"{source}\nprint(*_installed())"],
                capture_output=True,
                text=True,
                timeout=120,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LeverbenchError(
                f"the engine's interpreter does not run ({error})",
                where=" ".join(command),
                cure="Set engine.python and engine.wrapper in the campaign.",
            ) from None
        said = done.stdout.split()
        if done.returncode != 0 or len(said) < 2:
            raise missing
        return EngineIdentity(self.name, version=said[-2], digest=said[-1])

    def check_arguments(
        self, several: Sequence[EngineSettings], identity: EngineIdentity
    ) -> list[dict[str, Any] | LeverbenchError]:
        """Asks the installed version's own parser; it imports the engine, which takes seconds."""
        questions = []
        for settings in several:
            argv = self.command(settings, Path("model"))
            words = ["0" if word == "{port}" else word for word in argv]
            flags = {name: _words(name, value) for name, value in settings.args.items()}
            start = words.index("sglang.launch_server") + 1
            questions.append({"argv": words[start:], "flags": flags})
        first = several[0]
        # As text, since a container does not see this file.
        script = Path(__file__).with_name("sglang_arguments.py").read_text(encoding="utf-8")
        try:
            done = subprocess.run(
                [*first.wrapper, first.python or sys.executable, "-c", script],
                input=json.dumps(questions),
                capture_output=True,
                text=True,
                env={**os.environ, **self.environment(first)},
                timeout=_IMPORT_TIMEOUT_S,
            )
            problem = _last_line(done.stderr) if done.returncode != 0 else None
        except subprocess.TimeoutExpired:
            problem = f"nothing within {_IMPORT_TIMEOUT_S} s"
        if problem:
            raise LeverbenchError(
                f"SGLang {identity.version} does not import: {problem}",
                where=first.python or sys.executable,
                cure="Start it by hand once: python -m sglang.launch_server --help.",
            )
        said = json.loads(done.stdout.splitlines()[-1])
        return [
            LeverbenchError(
                f"SGLang {identity.version} refuses the arguments: {answer['error']}",
                cure=_cure(answer["error"], said["options"]),
            )
            if answer["error"]
            else answer["fields"]
            for answer in said["answers"]
        ]

    def command(self, settings: EngineSettings, model_path: Path) -> tuple[str, ...]:
        """Returns the argv; ``{port}`` stands for the port."""
        for name in _OWNED:
            if name in settings.args:
                raise LeverbenchError(
                    f"args.{name} is set by leverbench itself",
                    cure="Remove it (the model's folder is model.path).",
                )
        python = settings.python or sys.executable
        argv = [*settings.wrapper, python, "-m", "sglang.launch_server"]
        argv += ["--model-path", str(model_path), "--host", "127.0.0.1", "--port", "{port}"]
        for name, value in settings.args.items():
            argv += _words(name, value)
        return tuple(argv)

    def environment(self, settings: EngineSettings, plugins: Sequence[Path] = ()) -> dict[str, str]:
        """Returns the campaign's variables, with plugins off but for these and those it names.

        Without SGLANG_PLUGINS every plugin that happens to be installed would be loaded.
        """
        added = {"SGLANG_PLUGINS": _NO_PLUGIN, "HF_HUB_OFFLINE": "1", **settings.env}
        if not plugins:
            return added
        named = settings.env.get("SGLANG_PLUGINS")
        # An empty list is none: it lets every plugin in, these too.
        if named != "":
            found = [path for folder in plugins for path in sorted(folder.glob("*.dist-info"))]
            names = [path.name.partition("-")[0] for path in found]
            added["SGLANG_PLUGINS"] = ",".join([named, *names] if named else names)
        inherited = settings.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        paths = [*map(str, plugins), inherited] if inherited else map(str, plugins)
        return {**added, "PYTHONPATH": os.pathsep.join(paths)}

    def plugin_loader(self) -> str:
        """Returns ``sglang_plugin.py``, which hooks the kernel into the engine's registry."""
        return Path(__file__).with_name("sglang_plugin.py").read_text(encoding="utf-8")

    def plugin_problem(self, log: str, module: str) -> str | None:
        """Finds what is logged, and then ignored, where a plugin or its hook fails.

        Returns:
            The line, with the last one of the traceback below it; None without such a line. One
            about hooks that cannot be applied does not name the plugin.
        """
        for pattern in (
            rf"Failed to load plugin {module}\b.*",
            rf"Failed to execute general plugin: {module}\b.*",
            r"Failed to apply hooks to .*",
        ):
            if match := re.search(rf"({pattern})\n{_TRACEBACK}", log):
                return f"{match[1]}: {match['raised']}"
        return None

    def endpoint(self, at: Address) -> _GenerateEndpoint:
        """Returns the native ``/generate`` endpoint."""
        return _GenerateEndpoint(f"{at.url}/generate", at.headers)

    def ask(self, at: Address, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
        """Returns the answer of ``/v1/chat/completions``; older versions tell no token ids."""
        choice = chat(at, "default", prompt, max_tokens, timeout_s, return_token_ids=True)
        ids = choice.get("response_token_ids")
        return Answer(chat_text(choice), None if ids is None else tuple(ids))

    # What reads tuned files is imported where it is used: most jobs have none.
    @property
    def tuned_files(self) -> TunedFiles:
        """The files of the block-scaled FP8 GEMM."""
        from leverbench.engines.sglang_tuned import BlockGemmFiles

        return BlockGemmFiles()

    def lay_out_moe_files(self, files: Sequence[Path], triton: str, root: Path) -> list[Path]:
        """Writes them below ``configs/triton_X_Y_Z/``, for SGLANG_MOE_CONFIG_DIR."""
        from leverbench.engines.sglang_configs import read_moe_file, write_moe_configs

        for path in files:
            if not path.is_file():
                cure = "Name files; a shell's * stands for all of a folder."
                raise LeverbenchError("there is no such file", where=str(path), cure=cure)
        read = dict(read_moe_file(path, device=None, version=None) for path in files)
        devices = sorted({name.device for name in read})
        if len(devices) > 1:
            raise LeverbenchError(
                f"the files are for {' and '.join(devices)}",
                cure="Lay out those of each GPU on their own.",
            )
        try:
            return write_moe_configs(root, triton, read)
        except OSError as error:
            raise LeverbenchError(
                f"the files cannot be written ({error.strerror})",
                where=str(root),
                cure="Name a folder that can be filled.",
            ) from None

    def check_files(
        self, settings: EngineSettings, device: str, version: str | None, triton: str | None
    ) -> None:
        """Looks at the fused MoE's files where SGLANG_MOE_CONFIG_DIR names a folder."""
        from leverbench.engines.sglang_configs import read_moe_configs

        folder = settings.env.get(_MOE_CONFIGS)
        if folder is not None and triton is not None:
            read_moe_configs(Path(folder), triton, device=device, version=version)

    def why_files_not_read(
        self,
        settings: EngineSettings,
        capability: tuple[int, int] | None,
        config: Mapping[str, Any],
    ) -> Unread | None:
        """Looks at what runs the experts where SGLANG_MOE_CONFIG_DIR names files for them."""
        from leverbench.engines.sglang_backends import why_moe_not_read
        from leverbench.engines.sglang_shapes import has_fp4_experts

        if _MOE_CONFIGS not in settings.env:
            return None
        fp4 = has_fp4_experts(config, settings.env)
        return why_moe_not_read(capability, settings.args, fp4_experts=fp4)

    def flush_cache(self, at: Address, timeout_s: float) -> None:
        """Empties the prefix cache; SGLang refuses with 400 while a request runs."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                fetch(at, "/flush_cache", timeout_s, b"")
                return
            except NoAnswer as error:
                if error.status != 400 or time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def server_info(self, at: Address, timeout_s: float) -> dict[str, Any]:
        """Reads ``/server_info``.

        What changes while the server runs stands in ``internal_states`` (its last throughput, the
        accept length). ``startup_time`` is how long each part of the start took.
        """
        info = _renamed(at, "server_info", timeout_s)
        states = info.pop("internal_states", None) or [{}]
        return {
            "version": info.get("version"),
            "device": ("cpu" if info["device"] == "cpu" else "gpu") if "device" in info else None,
            "start": info.get("startup_time"),
            "memory": states[0].get("memory_usage"),
            # The command that launched it stands in the evidence, with its secrets masked.
            "effective": {
                key: value
                for key, value in info.items()
                if _is_plain(value) and key != "launch_command"
            },
        }

    def served_model(self, at: Address, timeout_s: float) -> dict[str, Any]:
        """Reads ``/model_info``, which also tells of weights that were loaded later."""
        info = _renamed(at, "model_info", timeout_s)
        return {key: info.get(key) for key in _MODEL_FIELDS}

    def counters(self, at: Address, timeout_s: float) -> dict[str, float] | None:
        """Reads the token counters of ``/metrics``; None without ``enable-metrics``."""
        try:
            text = fetch(at, "/metrics", timeout_s).decode()
        except NoAnswer as error:
            if error.status != 404:
                raise
            return None
        totals: dict[str, float] = {}
        for line in text.splitlines():
            match = re.match(
                r"sglang:(prompt_tokens|generation_tokens|cached_tokens)_total(?:{.*})? (\S+)", line
            )
            if match:
                key = f"{match[1]}_total"
                totals[key] = totals.get(key, 0.0) + float(match[2])
        return totals or None

    def longest_request(
        self, args: Mapping[str, Any], model_config: Mapping[str, Any]
    ) -> int | None:
        """Reads ``context-length``, else the model's own, by 0.5.23's rules.

        Of the context the scheduler keeps two positions (``max_req_len``, and one below it). Not
        known where the model's own is overridden.
        """
        if "context-length" not in args and "json-model-override-args" in args:
            return None
        context = args.get("context-length") or _context_length(model_config)
        return int(context) - 2 if isinstance(context, (int, float)) else None

    def start_profile(
        self, at: Address, output_dir: Path, steps: int, devices: Sequence[str], timeout_s: float
    ) -> None:
        """Uses ``/start_profile``: it counts forwards of any kind, prefills among them."""
        question = {
            "output_dir": str(output_dir),
            "num_steps": steps,
            "activities": ["CPU"] if devices[0] == "cpu" else ["CPU", "GPU"],
            # Both are on unless refused, and make traces a hundred times larger.
            "with_stack": False,
            "record_shapes": False,
        }
        fetch(at, "/start_profile", timeout_s, json.dumps(question).encode())

    def stop_profile(self, at: Address, timeout_s: float) -> None:
        """Uses ``/stop_profile``, which answers 500 where nothing is recorded."""
        fetch(at, "/stop_profile", timeout_s, b"")

    def profiled_ranks(self, effective: Mapping[str, Any]) -> int:
        """Each scheduler writes one: tensor, pipeline and data parallel ones.

        Older versions have no ``attn_dp_size``: their ``dp_size`` also stands for data parallel
        attention, whose ranks are among the tensor parallel ones.
        """
        inside = "attn_dp_size" not in effective and effective.get("enable_dp_attention")
        sizes = ("tp_size", "pp_size") if inside else ("tp_size", "pp_size", "dp_size")
        return math.prod(effective.get(size) or 1 for size in sizes)

    def traces(self, output_dir: Path) -> dict[str, Path]:
        """Returns the traces by rank, such as ``TP-0``."""
        found = ((path, _TRACE_NAME.search(path.name)) for path in sorted(output_dir.iterdir()))
        return {match[1]: path for path, match in found if match}

    def step_marks(self, annotations: Iterable[str]) -> dict[str, bool]:
        """Reads ``step[MODE ...]``.

        Where it speculates, a step is a verification; the drafts around it, which decode too, are
        parts of it.
        """
        found = ((name, re.match(r"step\[(\w+)", name)) for name in annotations)
        modes = {name: match[1] for name, match in found if match}
        if "TARGET_VERIFY" not in modes.values():
            return {name: mode == "DECODE" for name, mode in modes.items()}
        return {
            name: mode == "TARGET_VERIFY"
            for name, mode in modes.items()
            if mode != "DECODE" and not mode.startswith("DRAFT_EXTEND")
        }

    def memory_failure(self, log: str) -> str | None:
        """Reads the words of torch, of the memory pool and of the graph capture."""
        if _POOL_TOO_SMALL.search(log):
            return "pool-too-small"
        return "out-of-memory" if _OUT_OF_MEMORY.search(log) else None

    def applied(
        self, parsed: Mapping[str, Any], info: Mapping[str, Any], key: str, asked: Any
    ) -> AppliedLever:
        """Looks the argument's field up in the effective arguments."""
        name = key.partition(".")[2]
        field, value = parsed.get(name, (name.replace("-", "_"), asked))
        effective = info["effective"]
        if field not in effective:
            return AppliedLever(key, asked, None, None, f"/server_info has no {field}")
        seen, version = effective[field], info["version"]
        applied = None if asked is None else seen == value
        evidence = f"/server_info: {field}"
        if applied and not self.reads(name, version):
            return AppliedLever(
                key, asked, seen, None, f"{evidence}, which {version} reads nowhere"
            )
        return AppliedLever(key, asked, seen, applied, evidence)

    def reads(self, argument: str, version: str | None) -> bool:
        """Knows of arguments that a version takes, shows in /server_info, and never looks at."""
        return _UNREAD.get(argument) != version


def _renamed(at: Address, name: str, timeout_s: float) -> dict[str, Any]:
    """Reads ``/NAME``, which was called ``/get_NAME`` before 0.5.15."""
    try:
        return fetch_json(at, f"/{name}", timeout_s)
    except NoAnswer as error:
        if error.status != 404:
            raise
        return fetch_json(at, f"/get_{name}", timeout_s)


def _context_length(model_config: Mapping[str, Any]) -> float | None:
    """Does as ``get_context_length`` of SGLang's ``hf_transformers``; None without any length."""
    text = {**model_config, **(model_config.get("text_config") or {})}
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = rope.get("factor") or 1
    if "original_max_position_embeddings" in rope or rope.get("rope_type") == "llama3":
        factor = 1
    known = (text[key] for key in _CONTEXT_LENGTHS if isinstance(text.get(key), (int, float)))
    length = next(known, None)
    return None if length is None else float(factor * length)


def _installed() -> tuple[str, str]:
    """Returns version and digest of the SGLang of this interpreter, whichever that is."""
    distribution = importlib.metadata.distribution("sglang")
    files = distribution.read_text("RECORD") or distribution.version
    return distribution.version, hashlib.sha256(files.encode()).hexdigest()


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name}"
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]


def _cure(message: str, options: Sequence[str]) -> str:
    cures = []
    for flag in dict.fromkeys(re.findall(r"--[a-z0-9-]+", message)):
        if flag in options:
            continue
        near = [_RENAMED[flag]] if _RENAMED.get(flag) in options else []
        near = near or difflib.get_close_matches(flag, options, n=3, cutoff=0.75)
        cures.append(f"{flag}: {'perhaps ' + ' or '.join(near) if near else 'no such flag'}")
    return "; ".join(cures) or "Its --help says what it takes."


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list))
