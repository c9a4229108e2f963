"""A race of two: interleaved rounds, and what they say beyond noise.

Rounds are paired, so that what changes slowly on a machine (clocks, neighbours) meets both alike;
within a round the order is incumbent, rival, rival, incumbent, so that a steady drift cancels.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import special

ROUNDS = 12
# Samples of each of a round's four blocks.
BLOCK = 5
CONFIDENCE = 0.99

Time = Callable[[int], Sequence[float]]


@dataclass(frozen=True)
class Rounds:
    """All samples of a race, in seconds: a list a round."""

    incumbent_s: list[list[float]]
    rival_s: list[list[float]]


@dataclass(frozen=True)
class Verdict:
    """What a race says.

    Attributes:
        speedup: The incumbent's time over the rival's: the geometric mean over rounds.
        low: Lower end of its interval.
        high: Upper end.
        incumbent_s: The incumbent's median time.
        rival_s: The rival's.
    """

    speedup: float
    low: float
    high: float
    incumbent_s: float
    rival_s: float

    @property
    def faster(self) -> bool:
        """Whether the rival is faster beyond noise."""
        return self.low > 1


def run_race(incumbent: Time, rival: Time) -> Rounds:
    """Returns the samples of `ROUNDS` rounds.

    Args:
        incumbent: Takes a number of samples, and returns that many times in seconds.
        rival: Likewise.
    """
    rounds = Rounds([], [])
    for _ in range(ROUNDS):
        first = incumbent(BLOCK)
        rival_s = [*rival(BLOCK), *rival(BLOCK)]
        rounds.incumbent_s.append([*first, *incumbent(BLOCK)])
        rounds.rival_s.append(rival_s)
    return rounds


def judge(rounds: Rounds) -> Verdict:
    """Returns the ratio of a race's times with its two-sided interval.

    With d the logarithm of the incumbent's median over the rival's in each of n rounds: mean(d) -+
    t(n - 1) * sd(d) / sqrt(n), Student's paired t interval (The Probable Error of a Mean,
    Biometrika 6, 1908), and its exponential. At 99%, of two that are equal the rival is called
    faster in one race of 200.
    """
    pairs = zip(rounds.incumbent_s, rounds.rival_s, strict=True)
    logs = [
        math.log(statistics.median(incumbent) / statistics.median(rival))
        for incumbent, rival in pairs
    ]
    mean, count = statistics.fmean(logs), len(logs)
    t = float(special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    half = t * statistics.stdev(logs) / math.sqrt(count)
    return Verdict(
        speedup=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        incumbent_s=_median(rounds.incumbent_s),
        rival_s=_median(rounds.rival_s),
    )


def _median(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(sample for samples in rounds for sample in samples)
