"""Whether two levers are worth together what they are worth one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leverbench.analysis.effects import compare
from leverbench.analysis.measurements import Row
from leverbench.analysis.verdicts import PRIMARY, Design, cells_of, logarithms


@dataclass(frozen=True)
class Interaction:
    """Four variants that two levers make: with neither, with each, and with both.

    Attributes:
        both: The variant with both levers.
        one: The one with the first.
        other: The one with the second.
        neither: The one with neither.
        workload: The workload of all.
        concurrency: The concurrency of all.
        ratio: Gain of both over the product of the gains of each: 1 where they are independent.
        low: Lower end of its 95% interval; None where the noise is not known.
        high: Upper end.
    """

    both: str
    one: str
    other: str
    neither: str
    workload: str
    concurrency: int
    ratio: float
    low: float | None
    high: float | None


def squares(plan: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Returns the 2x2 designs of a plan as (both, one, other, neither)."""
    variants = plan["variants"]
    found = []
    for both, variant in variants.items():
        one = variant["parent"]
        neither = variants[one]["parent"] if one else None
        if neither is None or not variant["delta"]:
            continue
        found += [
            (both, one, other, neither)
            for other, sibling in variants.items()
            if sibling["parent"] == neither and sibling["delta"] == variant["delta"]
        ]
    return found


def interactions(plan: Mapping[str, Any], rows: Sequence[Row], design: Design) -> list[Interaction]:
    """Estimates the interaction of each 2x2 design, where all four variants were measured.

    It is the contrast ``both - one - other + neither`` of the logarithms in the model of
    `leverbench.analysis.effects`.
    """
    names = list(design.parents)
    withheld = design.withheld or {}
    found = []
    for square in squares(plan):
        if withheld.keys() & set(square):
            continue
        weights = np.zeros((1, len(names)))
        weights[0, [names.index(name) for name in square]] = (1, -1, -1, 1)
        for workload, concurrency in cells_of(rows):
            y, unlike = logarithms(rows, (workload, concurrency), design, PRIMARY)
            if unlike.keys() & set(square):
                continue
            contrast = compare(y[None], weights)
            estimate, half = contrast.estimate[0, 0], contrast.half_width(0.95)[0, 0]
            if np.isnan(estimate):
                continue
            ends = [None, None] if np.isnan(half) else np.exp([estimate - half, estimate + half])
            low, high = (None if end is None else float(end) for end in ends)
            ratio = float(np.exp(estimate))
            found.append(Interaction(*square, workload, concurrency, ratio, low, high))
    return found
