"""Whether a server uses the kernels that it was given: its processes count their calls."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from leverbench.campaign.slices import Launch
from leverbench.engines import FileProof
from leverbench.kernels.publish import Published
from leverbench.serving.processes import Process

VARIABLE = "LEVERBENCH_CALLS"
"""In a server's environment: the absolute folder of its counters, one file a process and kernel."""

_COUNTERS = struct.Struct("<qq")


class Counts(NamedTuple):
    """Calls of the hooked function in one process.

    Attributes:
        served: Those that the kernel answered.
        left: Those that it left to the engine.
    """

    served: int
    left: int


# By kernel and pid.
Calls = Mapping[str, Mapping[int, Counts]]


def calls_folder(launch: Launch) -> Path:
    """Returns where the processes of a session's servers count, relative to the project."""
    return Path("state/calls") / launch.campaign / launch.variant / f"s{launch.session}"


def read_calls(launch: Launch, processes: Iterable[Process]) -> dict[str, dict[int, Counts]]:
    """Returns what a server's processes have counted; those without a kernel are left out.

    Files of processes that have ended do not count: a file bears pid and start time.
    """
    folder, found = calls_folder(launch), dict[str, dict[int, Counts]]()
    live = list(processes)
    for kernel in sorted(launch.kernels):
        found[kernel] = {}
        for pid, start in live:
            with suppress(FileNotFoundError, struct.error):
                content = (folder / f"{kernel}.{pid}.{start}.calls").read_bytes()
                found[kernel][pid] = Counts(*_COUNTERS.unpack(content))
    return found


def proof_at_ready(
    published: Mapping[str, Published],
    calls: Calls,
    ranks: int,
    problem_told: Callable[[str], str | None],
    files_told: Callable[[Published], Sequence[FileProof]],
) -> list[dict[str, Any]]:
    """Returns, for each kernel, whether each rank has used it by the time of the probe.

    Args:
        published: The kernels that the server was given.
        calls: What its processes have counted.
        ranks: How many of them run the model.
        problem_told: Gives what the server's log tells of a plugin that was not loaded.
        files_told: Gives what it tells of each tuned file of the engine's own kernel.

    Returns:
        ``{"kernel", "digest", "registered": pids, "calls": {pid: count}, "left": {pid: count},
        "applied", "problem": cause and cure, or None}``; with tuned files also ``"files"``.
    """
    proofs = []
    for name, kernel in published.items():
        counts = calls[name]
        using = [count for count in counts.values() if count.served]
        problem = None
        if len(using) < ranks:
            told = problem_told(kernel.module)
            problem = _problem(kernel, counts.values(), len(using), ranks, told)
        files = files_told(kernel) if kernel.files else ()
        against = [file.problem for file in files if file.applied is False]
        if problem is None and against:
            problem = f"{'; '.join(map(str, against))}. Look in the server's log."
        proofs.append(
            {
                "kernel": name,
                "digest": kernel.digest,
                "registered": sorted(counts),
                "calls": {str(pid): count.served for pid, count in counts.items()},
                "left": {str(pid): count.left for pid, count in counts.items()},
                "applied": problem is None,
                "problem": problem,
                **({"files": [asdict(file) for file in files]} if files else {}),
            }
        )
    return proofs


def calls_between(
    proofs: Sequence[Mapping[str, Any]], before: Calls, after: Calls
) -> list[dict[str, Any]]:
    """Returns the calls of each kernel in a window: ``{"kernel", "digest", "calls", "left"}``.

    Tuned files are left out: what a captured graph was made with is looked up no more.

    Args:
        proofs: The proof of the launch, by `proof_at_ready`.
        before: What the processes had counted at the window's start.
        after: The same at its end.
    """
    found = []
    for proof in proofs:
        if "files" in proof:
            continue
        name = proof["kernel"]
        none = Counts(0, 0)
        grown = {
            str(pid): Counts(
                *(b - a for a, b in zip(before[name].get(pid, none), now, strict=True))
            )
            for pid, now in after[name].items()
        }
        found.append(
            {
                "kernel": name,
                "digest": proof["digest"],
                "calls": {pid: count.served for pid, count in grown.items()},
                "left": {pid: count.left for pid, count in grown.items()},
            }
        )
    return found


def not_used(calls: Sequence[Mapping[str, Any]], ranks: int) -> str | None:
    """Returns why a window did not measure its kernels, with a cure; None where it did.

    Args:
        calls: By `calls_between`.
        ranks: How many processes of the server run the model.
    """
    for kernel in calls:
        using = sum(count > 0 for count in kernel["calls"].values())
        if using < ranks:
            left = sum(kernel["left"].values())
            return f"{kernel['kernel']}: {using} of {ranks} ranks used it in the window. " + (
                f"Its serve() left {left} calls to the engine: see in kernel.py which."
                if left
                else "The hooked function was not called (nothing of Python is, where a captured"
                " graph runs): name another in load: hook: of kernel.yaml."
            )
    return None


def _problem(
    kernel: Published, counts: Iterable[Counts], using: int, ranks: int, told: str | None
) -> str:
    """Returns what keeps a kernel from being used, and a cure, in one line."""
    if told is not None:
        return f"{told}. Mend kernel.py, or load: hook: in kernel.yaml."
    seen = list(counts)
    if not seen:
        return (
            "no process of the server has loaded its plugin. See that engine.wrapper passes the"
            " environment on, and that this machine's process ids are the server's."
        )
    if using:
        return f"{using} of {ranks} ranks use it. Look in the server's log for the others."
    left = sum(count.left for count in seen)
    if left and kernel.hook is None:
        return f"none of its {len(kernel.files)} files is for one of the {left} lookups."
    if left:
        return f"its serve() leaves all {left} calls to the engine. See in kernel.py which."
    if kernel.hook is None:
        return (
            "the server looks none of its files up. Another backend serves its GEMMs: choose the"
            " one that reads them."
        )
    return f"the server does not call {kernel.hook}. Name another in load: hook: of kernel.yaml."
