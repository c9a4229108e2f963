"""Kernels of a few lines, published as real ones are, for servers of the tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from leverbench.kernels.manifest import Kernel, Tolerance
from leverbench.kernels.publish import publish
from leverbench.records import write_record

# The function that each decode step of a scripted server calls, and each chat with 0.
ATTEND = "scripted_server.attend"
SERVES = """
    def load(folder):
        return folder

    def serve(loaded, choose, batch):
        return batch
"""


def scripted_kernel(folder: Path, name: str = "double", hook: str = ATTEND) -> Kernel:
    """Returns a kernel with one parameter, as its manifest would say."""
    return Kernel(
        name=name,
        folder=folder,
        language="cpp",
        sources=("kernel.cpp",),
        flags=(),
        parameters={"block": (16, 32, 64)},
        default={"block": 16},
        restrictions=(),
        shapes=({"heads": 4},),
        size="batch",
        sizes=(1, 8),
        tolerance=Tolerance(0.0, 0.0),
        touches=(),
        engine="sglang",
        hook=hook,
    )


def publish_scripted(
    folder: Path,
    module: str = SERVES,
    *,
    name: str = "double",
    hook: str = ATTEND,
    chosen: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Publishes a kernel into a folder, which it returns.

    Args:
        folder: Where.
        module: What stands in its ``kernel.py``.
        name: Its name.
        hook: What it stands in for.
        chosen: As in the record of a tuning.
    """
    code, tuning = folder / "code", folder / "tuning.json"
    code.mkdir(parents=True, exist_ok=True)
    (code / "kernel.py").write_text(dedent(module))
    write_record(tuning, {"kind": "tuning", "outcome": "tuned", "chosen": list(chosen)})
    publish(scripted_kernel(folder, name, hook), code, [tuning], folder)
    return folder
