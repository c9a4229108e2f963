"""Gives SGLang's FP8 block GEMM one variant's tuned configs, in each process that runs the model.

A copy of this file is the ``__init__.py`` of a published plugin. Beside it lie ``configs.json``
(``digest``, ``device``, ``files``: SHA-256 by name) and, in ``configs/``, files in the engine's own
format. Standard library and the engine only.

The engine asks for a shape's configs at each launch of the kernel, and picks the one for the
nearest M. Where a CUDA graph is replayed nothing is asked: what the graph was captured with is in
force then. So each process tells the first lookup of a shape and the first use of each config.
"""

import hashlib
import json
import mmap
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent
_KERNEL = "w8a8-block-fp8"
_FUNCTION = "get_w8a8_block_fp8_configs"
# Where 0.5.23, 0.5.16 to 0.5.20, and 0.5.12 to 0.5.15 define it. 0.5.23 has the second one, too,
# with other functions.
_MODULES = (
    "kernels.ops.gemm.fp8_kernel",
    "kernels.ops.quantization.fp8_kernel",
    "srt.layers.quantization.fp8_kernel",
)
_NAME = re.compile(
    r"N=(\d+),K=(\d+),device_name=([^,/]+),dtype=fp8_w8a8,block_shape=\[(\d+), (\d+)\]\.json"
)
# The counters: lookups that were answered from here, and those that were left to the engine.
_SERVED, _LEFT = 0, 1

# N, K, block of N, block of K.
Shape = tuple[int, int, int, int]


class ConfigFile(NamedTuple):
    """A file of tuned configs.

    Attributes:
        digest: SHA-256 of its content.
        configs: The kernel's parameters by M.
    """

    digest: str
    configs: dict[int, dict[str, int]]


def register() -> None:
    """Hooks the lookup; the engine's log shows what is raised here, and the server goes on.

    All files are read here, so that none can change or vanish while the server runs.

    Raises:
        LookupError: The engine has no such function.
        OSError: A file is missing.
        ValueError: A file is not the one that was published.
    """
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from torch.compiler import is_compiling

    about = json.loads((_FOLDER / "configs.json").read_text(encoding="utf-8"))
    files = read_files(_FOLDER / "configs", about["device"], about["files"])
    path = find_function(map(Path, sglang.__path__))
    if not _runs_model():
        # Applying a hook imports its module, which initialises torch.cuda in 0.5.14.
        return
    calls = _counters(_KERNEL)
    answers: dict[Shape, dict[int, dict[str, int]] | None] = {}

    def hook(original: Callable[..., Any], N: int, K: int, block_n: int, block_k: int) -> Any:
        if is_compiling():
            # It is traced, not called; what the engine then does without configs is not changed.
            return original(N, K, block_n, block_k)
        shape = (N, K, block_n, block_k)
        if shape not in answers:
            # What the engine itself would put into the file's name. None without a GPU.
            name = sys.modules[original.__module__].get_device_name()
            here = str(name).replace(" ", "_")
            answers[shape] = _first_lookup(shape, files.get(shape), about["device"], here)
        configs = answers[shape]
        if configs is None:
            calls[_LEFT] += 1
            return original(N, K, block_n, block_k)
        calls[_SERVED] += 1
        return configs

    HookRegistry.register(path, hook, HookType.AROUND)
    _tell(f"kernel {_KERNEL} {about['digest'][:16]} for {path} in process {os.getpid()}")


def read_files(folder: Path, device: str, digests: dict[str, str]) -> dict[Shape, ConfigFile]:
    """Reads files of tuned configs.

    Args:
        folder: Where they are.
        device: The device that they must be for, as in their names.
        digests: The SHA-256 that each must have, by name.

    Raises:
        OSError: A file is missing.
        ValueError: A file has another content, none that is of use, or is for another device.
    """
    files = {}
    for name, digest in digests.items():
        match = _NAME.fullmatch(name)
        if match is None or match[3] != device:
            raise ValueError(f"{name} is no file of FP8 block GEMM configs for {device}")
        content = (folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{folder / name} is not the file that was published")
        configs = {int(m): config for m, config in json.loads(content).items()}
        if not configs:
            raise ValueError(f"{folder / name} has no config")
        files[int(match[1]), int(match[2]), int(match[4]), int(match[5])] = ConfigFile(
            digest, configs
        )
    return files


def find_function(roots: Iterable[Path]) -> str:
    """Returns the dotted path of the lookup in the installed version, without importing it.

    Args:
        roots: Folders of the engine's package.

    Raises:
        LookupError: None of the modules known to have had it defines it.
    """
    for root in roots:
        for module in _MODULES:
            source = root / f"{module.replace('.', '/')}.py"
            if source.is_file() and f"\ndef {_FUNCTION}(" in source.read_text(encoding="utf-8"):
                return f"sglang.{module}.{_FUNCTION}"
    raise LookupError(f"this version of the engine has no {_FUNCTION} in {' or '.join(_MODULES)}")


class _Configs(dict[int, dict[str, int]]):
    """The configs of a shape by M, which tells the first use of each."""

    def __init__(self, shape: Shape, configs: dict[int, dict[str, int]]) -> None:
        super().__init__(configs)
        self._shape = shape
        self._unused = set(configs)

    def __getitem__(self, m: int) -> dict[str, int]:
        if m in self._unused:
            self._unused.remove(m)
            _tell_of_shape(self._shape, f"first use of M={m}")
        return super().__getitem__(m)


def _first_lookup(
    shape: Shape, file: ConfigFile | None, device: str, here: str
) -> dict[int, dict[str, int]] | None:
    """Tells what becomes of a shape in this process, and returns its configs, None if none.

    Args:
        shape: What is looked up.
        file: What is there for it.
        device: The device that the files are for.
        here: The device of this process.
    """
    if file is None:
        _tell_of_shape(shape, "not here, left to the engine")
        return None
    if here != device:
        _tell_of_shape(shape, f"refused, made for {device} and this is {here}")
        return None
    _tell_of_shape(shape, f"served {file.digest[:16]}")
    return _Configs(shape, file.configs)


def _tell_of_shape(shape: Shape, what: str) -> None:
    n, k, block_n, block_k = shape
    process = f"rank {_rank()} process {os.getpid()}"
    _tell(f"{_KERNEL} {process} N={n} K={k} block=[{block_n}, {block_k}]: {what}")


def _tell(what: str) -> None:
    # Not logged: no logger is set up when a process loads its plugins, and a level could hide it.
    # In one piece, since all processes write to the same file.
    sys.stderr.write(f"leverbench: {what}\n")
    sys.stderr.flush()


def _runs_model() -> bool:
    """Returns whether this process is a rank: its plugins are loaded where it begins as one."""
    return any(frame.name == "run_scheduler_process" for frame in traceback.extract_stack())


def _rank() -> str:
    """Returns this rank's name as the engine has it in process titles and logs: TP0, DP1_TP0.

    A server of one rank has none: ``-``. The number in torch.distributed would be that of another
    rank, too, where there are data parallel replicas.
    """
    title = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    match = re.fullmatch(r"sglang::scheduler_(\S+)", title.strip())
    return match[1] if match else "-"


def _counters(kernel: str) -> Any:
    """Returns two whole numbers that leverbench reads in a file while the server runs.

    As in ``sglang_plugin.py``: no plugin can count on the other's being there.
    """
    if "LEVERBENCH_CALLS" not in os.environ:
        return [0, 0]
    folder = Path(os.environ["LEVERBENCH_CALLS"])
    folder.mkdir(parents=True, exist_ok=True)
    # Field 22, the start time: a later process may have the same pid.
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with (folder / f"{kernel}.{os.getpid()}.{start}.calls").open("w+b") as file:
        file.truncate(16)
        return memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
