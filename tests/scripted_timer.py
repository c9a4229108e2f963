"""A timer of known truth, in place of the process that calls a kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leverbench.kernels.manifest import Candidate, Dimensions
from leverbench.tuning.invalid import Invalid, InvalidCandidate


@dataclass
class ScriptedTimer:
    """Tells scripted times, and notes what it was asked.

    Attributes:
        time_s: Takes dimensions and a candidate (None: the fallback), and returns a call's time.
        invalid: Why a candidate cannot be used, by its ``work``.
        asked: ``(batch, work, samples)`` of each request, in order.
    """

    time_s: Callable[[Dimensions, Candidate | None], float]
    invalid: Mapping[int, Invalid] = field(default_factory=dict)
    asked: list[tuple[int, int | None, int]] = field(default_factory=list)

    def time(
        self,
        dimensions: Dimensions,
        candidate: Candidate | None,
        samples: int,
        *,
        check: bool = False,
    ) -> list[float]:
        """Returns one time again and again."""
        work = None if candidate is None else candidate["work"]
        self.asked.append((int(dimensions["batch"]), work, samples))
        if work in self.invalid:
            raise InvalidCandidate(self.invalid[work], "scripted")
        return [self.time_s(dimensions, candidate)] * samples
