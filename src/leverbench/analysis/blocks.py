"""Blocks: uninterrupted passes over the variants; and how measurements drift with time."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import special

# A pass is interrupted where the next variant starts later than this many times the usual distance
# of two starts, and by these seconds more: a run that was stopped, and went on another time. A
# server that is slow to load is no interruption.
_PAUSE_FACTOR = 3.0
_PAUSE_S = 3600.0


@dataclass(frozen=True)
class Drift:
    """How what is measured changes with time, whatever the variant.

    Attributes:
        change: From the first measurement to the last, as a share; negative is less.
        low: Lower end of its 95% interval.
        high: Upper end.
        hours: From the first measurement to the last.
    """

    change: float
    low: float
    high: float
    hours: float


def blocks(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the number of each row's block, from 0, in the order of time.

    A block ends where a variant comes again, or after a pause. Where a row does not tell when it
    was measured, all rows' blocks are their sessions.

    Args:
        rows: Measurements of one workload and concurrency, invalid ones among them: they were
            passes too.
    """
    starts = [_seconds(row["started_at"]) for row in rows]
    if any(row["valid"] and start is None for row, start in zip(rows, starts, strict=True)):
        order = sorted({row["session"] for row in rows})
        return [order.index(row["session"]) for row in rows]
    # A row that never came to be measured was no part of a pass; its number is never used.
    in_time = sorted((start, index) for index, start in enumerate(starts) if start is not None)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(in_time)]
    pause_s = _PAUSE_FACTOR * statistics.median(gaps) + _PAUSE_S if gaps else 0.0
    numbers, number, inside = [0] * len(rows), 0, set[Hashable]()
    for place, (_, index) in enumerate(in_time):
        variant = rows[index]["variant"]
        if variant in inside or (place and gaps[place - 1] > pause_s):
            number, inside = number + 1, set()
        inside.add(variant)
        numbers[index] = number
    return numbers


def drift(cells: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> Drift | None:
    """Estimates the drift of a metric by a line through its blocks.

    A block's value is the mean, over all rows measured in it, of the logarithm less that of its
    variant in its cell; its time likewise. Rows of one block share its noise, so that blocks are
    what is independent: degrees of freedom are their number minus 2.

    Args:
        cells: Valid rows of one workload and concurrency each, all variants together.
        metric: What is measured.

    Returns:
        None with fewer than three blocks, or where rows do not tell their time.
    """
    by_block: dict[int, list[tuple[float, float]]] = {}
    times: list[float] = []
    for rows in cells:
        numbers = blocks(rows)
        points: dict[Hashable, list[tuple[int, float, float]]] = {}
        for row, number in zip(rows, numbers, strict=True):
            start = _seconds(row["started_at"])
            if start is None or not row[metric]:
                return None
            times.append(start)
            points.setdefault(row["variant"], []).append(
                (number, start, float(np.log(row[metric])))
            )
        for own in points.values():
            if len(own) > 1:
                at, value = (statistics.fmean(point[k] for point in own) for k in (1, 2))
                for number, start, log in own:
                    by_block.setdefault(number, []).append((start - at, log - value))
    line = np.array([np.mean(points_of, axis=0) for points_of in by_block.values()])
    if len(line) < 3:
        return None
    seconds, logs = (line - line.mean(axis=0)).T
    spread = float(seconds @ seconds)
    if spread == 0:
        return None
    slope = float(seconds @ logs) / spread
    error = float(np.sqrt(((logs - slope * seconds) ** 2).sum() / (len(line) - 2) / spread))
    reach = float(special.stdtrit(len(line) - 2, 0.975)) * error
    length = max(times) - min(times)
    low, change, high = (float(np.expm1((slope + step) * length)) for step in (-reach, 0.0, reach))
    return Drift(change, low, high, length / 3600)


def _seconds(started_at: str | None) -> float | None:
    if not started_at:
        return None
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except ValueError:
        return None
