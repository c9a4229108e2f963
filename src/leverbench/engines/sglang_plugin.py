"""Has a tunable kernel stand in for a function of SGLang, in each process that loads plugins.

A copy of this file is the ``__init__.py`` of a published plugin. Beside it lie ``kernel.py``, what
that loads, and ``kernel.json``. Standard library and the engine only.
"""

import importlib
import json
import mmap
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
# The counters: calls that the kernel has answered, and those that it left to the engine.
_SERVED, _LEFT = 0, 1


def register() -> None:
    """Hooks the kernel in; the engine's log shows what is raised here, and the server goes on.

    Raises:
        LookupError: The engine has no such function.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    about = json.loads((_FOLDER / "kernel.json").read_text(encoding="utf-8"))
    name, path = about["kernel"], about["hook"]
    require_function(path)
    kernel = importlib.import_module(f"{__name__}.kernel")
    loaded, serve, choose = kernel.load(_FOLDER), kernel.serve, chooser(about)
    calls = _counters(name)

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What it raises fails the request, and the server with it: if the engine's function took
        # over, its figures would be taken for the kernel's.
        result = serve(loaded, choose, *args, **kwargs)
        if result is NotImplemented:
            calls[_LEFT] += 1
            return original(*args, **kwargs)
        calls[_SERVED] += 1
        return result

    HookRegistry.register(path, hook, HookType.AROUND)
    # Not logged: no logger is set up when a process loads its plugins.
    told = f"leverbench: kernel {name} {about['digest'][:16]} for {path} in process {os.getpid()}"
    print(told, file=sys.stderr, flush=True)


def require_function(path: str) -> None:
    """Returns if a dotted path leads to a function, which is imported.

    Raises:
        LookupError: It does not.
    """
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"this version of the engine has no {path} ({error})") from None
    if isinstance(target, type) or not callable(target):
        raise LookupError(f"{path} is no function")


def chooser(about: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Returns the function that gives the dimensions of a call a value of each parameter.

    Args:
        about: What ``kernel.json`` says: ``chosen``, ``default`` and ``size``.
    """

    @lru_cache(maxsize=4096)
    def cached(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
        config = nearest(about["chosen"], about["size"], dict(items))
        return about["default"] if config is None else config

    return lambda dimensions: cached(tuple(dimensions.items()))


def nearest(
    chosen: Sequence[Mapping[str, Any]], size: str | None, dimensions: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Returns what was chosen for the nearest size of this shape; None for other shapes.

    Args:
        chosen: ``{"dimensions": {...}, "config": {...}}`` of each call that was tuned.
        size: Name of the dimension that need not be equal, or None.
        dimensions: Of a call. Only names on both sides are compared: what a call does not know of
            itself (how long its longest sequence is) was chosen for the inputs of the tuning.
    """
    fitting = [
        entry
        for entry in chosen
        if all(
            dimensions[name] == value
            for name, value in entry["dimensions"].items()
            if name != size and name in dimensions
        )
    ]

    def distance(entry: Mapping[str, Any]) -> int:
        return 0 if size is None else abs(int(entry["dimensions"][size]) - int(dimensions[size]))

    return min(fitting, key=distance)["config"] if fitting else None


def _counters(kernel: str) -> Any:
    """Returns two whole numbers that leverbench reads in a file while the server runs."""
    if "LEVERBENCH_CALLS" not in os.environ:
        return [0, 0]
    folder = Path(os.environ["LEVERBENCH_CALLS"])
    folder.mkdir(parents=True, exist_ok=True)
    # Field 22, the start time: a later process may have the same pid.
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with (folder / f"{kernel}.{os.getpid()}.{start}.calls").open("w+b") as file:
        file.truncate(16)
        return memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
