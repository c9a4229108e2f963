"""Blocks: uninterrupted passes over the variants; and how measurements drift with time."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

# A pass is interrupted where the next variant starts later than this many times the usual distance
# of two starts, and by at least these seconds: a run that was stopped, and went on another time.
_PAUSE_FACTOR = 3.0
_PAUSE_S = 600.0


@dataclass(frozen=True)
class Drift:
    """How what is measured changes with time, whatever the variant.

    Attributes:
        metric: What is measured.
        per_hour: Change as a share, by least squares of ``log(value) = cell + slope * time``, a
            cell being a variant, workload and concurrency; negative is slower.
        low: Lower end of its 95% interval.
        high: Upper end.
        hours: From the first measurement to the last.
    """

    metric: str
    per_hour: float
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
    known = [start for start in starts if start is not None]
    if len(known) < len(rows):
        order = sorted({row["session"] for row in rows})
        return [order.index(row["session"]) for row in rows]
    in_time = sorted(range(len(rows)), key=lambda index: known[index])
    gaps = [known[b] - known[a] for a, b in pairwise(in_time)]
    pause_s = _PAUSE_FACTOR * statistics.median(gaps) + _PAUSE_S if gaps else 0.0
    numbers, number, inside = [0] * len(rows), 0, set[Hashable]()
    for place, index in enumerate(in_time):
        variant = rows[index]["variant"]
        if variant in inside or (place and gaps[place - 1] > pause_s):
            number, inside = number + 1, set()
        inside.add(variant)
        numbers[index] = number
    return numbers


def drift(rows: Sequence[Mapping[str, Any]], metric: str) -> Drift | None:
    """Estimates the drift of a metric; None without two rows of one cell that tell their time."""
    told = [
        (row, start)
        for row in rows
        if row["valid"] and row[metric] and (start := _seconds(row["started_at"])) is not None
    ]
    cells: dict[Hashable, list[tuple[float, float]]] = {}
    for row, start in told:
        cell = (row["variant"], row["workload"], row["concurrency"])
        cells.setdefault(cell, []).append((start / 3600, float(np.log(row[metric]))))
    several = [np.array(points) for points in cells.values() if len(points) > 1]
    if not several:
        return None
    centred = np.concatenate([points - points.mean(axis=0) for points in several])
    hours, logs = centred[:, 0], centred[:, 1]
    df = len(centred) - len(several) - 1
    spread = float(hours @ hours)
    if df < 1 or spread == 0:
        return None
    slope = float(hours @ logs) / spread
    error = float(np.sqrt(((logs - slope * hours) ** 2).sum() / df / spread))
    reach = float(stats.t.ppf(0.975, df)) * error
    low, per_hour, high = (float(np.expm1(slope + step)) for step in (-reach, 0.0, reach))
    times = [start for _, start in told]
    return Drift(metric, per_hour, low, high, (max(times) - min(times)) / 3600)


def _seconds(started_at: str | None) -> float | None:
    if not started_at:
        return None
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except ValueError:
        return None
