"""The summary of any traces: what a profile's record says of its own."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leverbench.engines import step_marks
from leverbench.errors import LeverbenchError
from leverbench.profiling.attribution import CPU, GPU, attribute_ranks
from leverbench.profiling.table import decode_steps, summarise


def summarise_traces(files: Sequence[Path], device: str | None = None) -> dict[str, Any]:
    """Returns what the decode steps of some ranks consist of.

    Args:
        files: Their traces, one a rank.
        device: ``cpu`` or ``gpu``; by default ``gpu`` where one was at work.

    Returns:
        ``device``, ``decode_steps``, ``files`` (name and events) and all of `table.summarise`.

    Raises:
        LeverbenchError: A file is no trace, or nothing ran on the device.
    """
    resolved = [path.resolve() for path in files]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise LeverbenchError(
                "the same trace is named twice",
                where=str(files[number]),
                cure="Name each rank's once: their times are summed.",
            )
    # A file's name can be too long for what is named after it, or no text.
    names = [os.fsencode(path.name).decode(errors="replace") for path in files]
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names)]
    traces = {str(number): path for number, path in enumerate(files)}
    try:
        with tempfile.TemporaryDirectory(prefix="leverbench-") as folder:
            found = attribute_ranks(traces, Path(folder), step_marks)
    except LeverbenchError as error:
        cure = "Name traces of the torch profiler, .json or .json.gz."
        raise LeverbenchError(error.what, where=error.where, cure=cure) from None
    except OSError as error:
        raise LeverbenchError(
            f"events cannot be kept while they are read ({error.strerror})",
            where=os.environ.get("TMPDIR", "/tmp"),
            cure="Make room, or set TMPDIR to another folder.",
        ) from None
    ranks = dict(zip(names, found.values(), strict=True))
    chosen = device or (GPU if any(rank.devices[GPU] for rank in ranks.values()) else CPU)
    summary = summarise(ranks, chosen)
    if not summary["total_us"]:
        raise LeverbenchError(
            f"no time on the {chosen} in it",
            where=", ".join(map(str, files)),
            cure=f"Name another device, or record the {chosen}'s activity.",
        )
    return {
        "device": chosen,
        "decode_steps": decode_steps(ranks, chosen),
        "files": [{"name": name, "events": rank.events} for name, rank in ranks.items()],
        **summary,
    }
