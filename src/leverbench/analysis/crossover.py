"""Where a lever's effect changes with concurrency."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN

GAIN, LOSS, NOTHING = "gain", "loss", "nothing"
_OF_VERDICT = {"faster": GAIN, "slower": LOSS, "equal": NOTHING}


@dataclass(frozen=True)
class Crossover:
    """Two concurrencies between which the effect changes.

    Attributes:
        below: The last concurrency with the first effect.
        above: The first one with the second.
        before: ``gain``, ``loss`` or ``nothing``.
        after: Another of these.
    """

    below: int
    above: int
    before: str
    after: str


def effect(ratio: float, verdict: str | None, margin: float = DEFAULT_EQUAL_WITHIN) -> str | None:
    """Returns what a lever does at a point.

    Args:
        ratio: Of output rates, the variant's over its parent's.
        verdict: ``faster``, ``slower``, ``equal`` or another word, for none; None where nobody
            judged, and the ratio alone speaks.
        margin: What is as good as no effect, as a share.

    Returns:
        ``gain``, ``loss``, ``nothing``, or None where the verdict leaves it open.
    """
    if verdict is not None:
        return _OF_VERDICT.get(verdict)
    # The margin itself is inside it, whatever the last bit of its logarithm.
    if abs(math.log(ratio)) <= math.log1p(margin) + 1e-12:
        return NOTHING
    return GAIN if ratio > 1 else LOSS


def crossovers(
    points: Sequence[tuple[int, float, str | None]], margin: float = DEFAULT_EQUAL_WITHIN
) -> list[Crossover]:
    """Returns where the effect changes, from the lowest concurrency up.

    Points whose effect is open are passed over: the change lies between those beside them.

    Args:
        points: ``(concurrency, ratio, verdict or None)`` in any order; see `effect`.
        margin: What is as good as no effect, as a share.
    """
    known = [
        (concurrency, what)
        for concurrency, ratio, verdict in sorted(points, key=lambda point: point[0])
        if (what := effect(ratio, verdict, margin)) is not None
    ]
    return [
        Crossover(below, above, before, after)
        for (below, before), (above, after) in itertools.pairwise(known)
        if before != after
    ]
