"""What is not worth tuning: a kernel whose share of a profile bounds its gain below the noise."""

from dataclasses import dataclass
from pathlib import Path

from leverbench.analysis.ceilings import ceiling
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Kernel
from leverbench.records import read_record
from leverbench.serving.failures import Outcome


@dataclass(frozen=True)
class Skip:
    """What bounds a kernel's gain.

    Attributes:
        share: Of the profiled time in the categories that the kernel replaces.
        floor: The smallest gain that can be told from noise: 0.03 is 3%.
        source: Where the share is from.
    """

    share: float
    floor: float
    source: str

    @property
    def reason(self) -> str | None:
        """A sentence why tuning is not worth its time; None where it is."""
        if self.share >= 1:
            return None
        gain = ceiling(self.share) - 1
        if gain >= self.floor:
            return None
        return (
            f"it replaces {self.share:.2%} of the time in {self.source}: were that gone, the rest"
            f" would be {gain:.2%} faster, which is below the noise floor of {self.floor:.2%}"
        )


def skip_of(kernel: Kernel, summary: Path, floor: float) -> Skip | None:
    """Returns what a profile says of a kernel's share; None where it says nothing.

    Args:
        kernel: The kernel.
        summary: The profile's record.
        floor: The smallest gain that can be told from noise.

    Raises:
        LeverbenchError: The record is missing, unreadable, or not a profile's.
    """
    profile = read_record(summary)
    try:
        if not kernel.touches or profile["outcome"] != Outcome.PROFILED:
            return None
        shares = {part["category"]: float(part["share"]) for part in profile["categories"]}
        # A category that the profile does not have took no time in it.
        share = sum(shares.get(category, 0.0) for category in kernel.touches)
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share}")
    except (KeyError, TypeError, ValueError) as error:
        raise LeverbenchError(
            f"no record of a profile ({error!r})",
            where=str(summary),
            cure="Let skip_by: name the summary.json of a profile.",
        ) from None
    return Skip(share, floor, str(summary))
