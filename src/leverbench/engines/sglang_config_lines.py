"""What a server's log proves of the files of FP8 block GEMM configs that it was given.

Two write of them: the engine (a miss on every rank, a hit on rank 0 alone) and our plugin
(`leverbench.engines.sglang_config_plugin`: each shape and each config, on every rank). A line may
follow half a line of a progress bar, and other processes write in between.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from leverbench.engines.base import FileProof
from leverbench.tuning.shapes import LookedUp

_FILE_NAME = (
    r"N=(?P<n>\d+),K=(?P<k>\d+),device_name=(?P<device>[^,/]*),dtype=(?P<dtype>\w+)"
    r",block_shape=\[(?P<block_n>\d+), (?P<block_k>\d+)\]\.json"
)
# A logged line begins with the time and, where there are several ranks, the name of the rank.
_LOGGED = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?P<rank>(?: [A-Z_]+\d+)*)\] "
_ENGINE_LINE = re.compile(
    rf"(?:{_LOGGED})?(?:(?P<hit>Using configuration from)"
    r"|Using default W8A8 Block FP8 kernel config\..* not found at)"
    rf" (?P<path>.*?{_FILE_NAME})(?(hit) for W8A8 Block FP8 kernel)"
)
_PLUGIN_LINE = re.compile(
    r"leverbench: w8a8-block-fp8 rank \S+ process (?P<pid>\d+)"
    r" N=(?P<n>\d+) K=(?P<k>\d+) block=\[\d+, \d+\]: "
    r"(?:(?P<answer>served (?P<digest>[0-9a-f]{16})|not here|refused, (?P<detail>.*))"
    r"|first use of M=(?P<m>\d+))"
)


class Answer(StrEnum):
    """What our plugin did at the first lookup of a shape."""

    SERVED = "served"
    LEFT = "left"
    REFUSED = "refused"


@dataclass(frozen=True)
class TunedFileLine:
    """A shape's first lookup in a process with our plugin.

    Attributes:
        pid: The process.
        n: Rows of the weight: N.
        k: Its columns: K.
        answer: What was done.
        digest: First 16 hex digits of the SHA-256 of the file that was served; else None.
        detail: Why it was refused; else None.
    """

    pid: int
    n: int
    k: int
    answer: Answer
    digest: str | None
    detail: str | None


@dataclass(frozen=True)
class FirstUse:
    """A config of a served file that a process has launched the kernel with, or captured it.

    Attributes:
        pid: The process.
        n: Rows of the weight: N.
        k: Its columns: K.
        m: The config's M, which is the nearest to that of the launch.
    """

    pid: int
    n: int
    k: int
    m: int


def looked_up(log: str) -> list[LookedUp]:
    """Returns the engine's own lookups in a log, in its order."""
    return [
        LookedUp(
            n=int(match["n"]),
            k=int(match["k"]),
            block_n=int(match["block_n"]),
            block_k=int(match["block_k"]),
            device=match["device"],
            dtype=match["dtype"],
            hit=match["hit"] is not None,
            path=match["path"],
            rank=(match["rank"] or "").strip().replace(" ", "_") or None,
        )
        for match in _ENGINE_LINE.finditer(log)
    ]


def tuned_file_lines(log: str) -> list[TunedFileLine]:
    """Returns what our plugin told of each shape in each process, in the log's order."""
    return [
        TunedFileLine(
            pid=int(match["pid"]),
            n=int(match["n"]),
            k=int(match["k"]),
            answer=_answer(match),
            digest=match["digest"],
            detail=match["detail"],
        )
        for match in _PLUGIN_LINE.finditer(log)
        if match["answer"]
    ]


def first_uses(log: str) -> list[FirstUse]:
    """Returns the configs of served files that were used, in the log's order."""
    return [
        FirstUse(int(match["pid"]), int(match["n"]), int(match["k"]), int(match["m"]))
        for match in _PLUGIN_LINE.finditer(log)
        if match["m"]
    ]


def applied_files(log: str, expected: Mapping[tuple[int, int], str], ranks: int) -> list[FileProof]:
    """Returns, for each file that a server was given, whether its log shows that it is in force.

    Args:
        log: Of one launch.
        expected: The SHA-256 of each file, or its first 16 hex digits, by (N, K).
        ranks: How many processes run the model.
    """
    ours, engine, uses = tuned_file_lines(log), looked_up(log), first_uses(log)
    proofs = []
    for (n, k), whole in expected.items():
        digest = whole[:16]
        lines = [line for line in ours if (line.n, line.k) == (n, k)]
        served = tuple(dict.fromkeys(line.pid for line in lines if line.digest == digest))
        used = [{use.m for use in uses if (use.pid, use.n, use.k) == (pid, n, k)} for pid in served]
        against = next(
            _against(lines, [line for line in engine if (line.n, line.k) == (n, k)], digest), None
        )
        problem = against
        if against is None and len(served) < ranks:
            problem = (
                f"N={n}, K={k} was looked up on {len(served)} of {ranks} ranks"
                if served
                else f"N={n}, K={k} was never looked up"
            )
        proofs.append(
            FileProof(
                n=n,
                k=k,
                digest=digest,
                served=served,
                used=tuple(sorted(set.intersection(*used))) if used else (),
                applied=False if against else (None if problem else True),
                problem=problem,
            )
        )
    return proofs


def _against(ours: list[TunedFileLine], engine: list[LookedUp], digest: str) -> Iterator[str]:
    """Yields what shows that a file is not in force somewhere, from the lines of its shape."""
    for line in ours:
        where = f"N={line.n}, K={line.k} in process {line.pid}"
        if line.answer == Answer.REFUSED:
            yield f"{where}: refused, {line.detail}"
        elif line.answer == Answer.LEFT:
            yield f"{where}: the plugin has no such file"
        elif line.digest != digest:
            yield f"{where}: the file served is {line.digest}"
    for found in engine:
        on = f" on rank {found.rank}" if found.rank else ""
        took = "its own file" if found.hit else "its default"
        yield f"N={found.n}, K={found.k}: the engine took {took}{on}"


def _answer(match: re.Match[str]) -> Answer:
    if match["digest"]:
        return Answer.SERVED
    return Answer.REFUSED if match["detail"] else Answer.LEFT
