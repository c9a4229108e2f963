"""Successive halving: little time for slow candidates, more for those that may be the fastest.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization
(2016), algorithm 1: in each rung all that are left get the same number of samples, and the slower
half is dropped.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leverbench.kernels.manifest import Candidate
from leverbench.tuning.invalid import Invalid, InvalidCandidate

# Samples that a candidate gets in each rung.
RUNGS = (5, 10, 20, 40)
_ENOUGH = 2


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        ranking: Places of the candidates that were left, the fastest first; empty where none is
            valid.
        medians_s: Of all samples of each candidate; None where there is none.
        invalid: How many candidates were found invalid, by reason.
    """

    ranking: tuple[int, ...]
    medians_s: tuple[float | None, ...]
    invalid: Counter[Invalid]


def halve(
    candidates: Sequence[Candidate],
    measure: Callable[[Candidate, int], Sequence[float]],
) -> Found:
    """Searches the candidate with the smallest median; of equal ones, the first.

    The course depends on nothing but what is measured, so that it can be replayed.

    Args:
        candidates: What can be tried.
        measure: Takes a candidate and the number of a rung, and returns `RUNGS` samples of it, in
            seconds; raises `InvalidCandidate`.
    """
    samples: list[list[float]] = [[] for _ in candidates]
    invalid: Counter[Invalid] = Counter()
    left = list(range(len(candidates)))
    for rung in range(len(RUNGS)):
        valid = []
        for place in left:
            try:
                samples[place] += measure(candidates[place], rung)
            except InvalidCandidate as problem:
                invalid[problem.reason] += 1
            else:
                valid.append(place)
        valid.sort(key=lambda place: (statistics.median(samples[place]), place))
        left = valid[: math.ceil(len(valid) / 2)]
        if len(left) <= _ENOUGH:
            break
    medians = tuple(statistics.median(taken) if taken else None for taken in samples)
    return Found(tuple(left), medians, invalid)
