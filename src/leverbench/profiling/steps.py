"""Decode steps of a rank: where they begin and end, on the time line of what runs them.

A step lasts from its start to the start of the next one: what the device waits for between them
belongs to it. So the last step of a recording, whose successor is not in it, is never whole.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from leverbench.profiling.intervals import Flags, Index, Ns

# Share of its operations that a step must have in common with the usual one, at their places:
# tiles and splits of kernels change a little with the lengths of the sequences.
_ALIKE = 0.9
# Share of the names that a step may lack; of such names, what they have in common if they belong to
# something else than steps.
_FEW_NAMES = 0.2
_MANY_CALLS = 4
_MOST_CALLS = 2 / 3
# More than any engine has in a step; so that a sequence of a million names ends, too.
_NAMES_TRIED = 2000


@dataclass(frozen=True)
class Steps:
    """Decode steps of one rank on one device.

    Attributes:
        found_by: How; None where they were not found.
        start_ns: Starts of the whole steps, in order.
        end_ns: Their ends: where the next step begins.
        seen: Decode steps in the recording, those included that its start or end cuts off or that
            have something else in them; None where they were not found.
        reason: Why there is no whole step; None where there are.
    """

    found_by: Literal["annotations", "periodicity"] | None
    start_ns: Ns
    end_ns: Ns
    seen: int | None
    reason: str | None

    @property
    def dropped(self) -> int | None:
        """Steps that were seen and left out."""
        return None if self.seen is None else self.seen - len(self.start_ns)


def not_found(reason: str) -> Steps:
    """Returns that there are no steps, and why."""
    none = np.zeros(0, np.int64)
    return Steps(None, none, none, None, reason)


def by_annotations(start_ns: Ns, decodes: Flags, seen: int) -> Steps:
    """Takes steps from the marks that an engine sets.

    Args:
        start_ns: Starts of all marks of steps on one lane, in order: decode steps and others.
        decodes: Which of them are decode steps.
        seen: Decode steps that the engine marked, on any lane.
    """
    whole = decodes[:-1]
    reason = None if whole.any() else f"no whole decode step among {len(start_ns)} marked steps"
    return Steps("annotations", start_ns[:-1][whole], start_ns[1:][whole], seen, reason)


def by_periodicity(name: Index, start_ns: Ns) -> Steps:
    """Finds the period of a sequence of kernels: one decode step after the other.

    A kernel that every step calls once (of the embedding, the sampling) comes back at the same
    distance, with the same kernels in between. So the names are tried from the rarest on: what
    lies between two calls of a name must be alike, kernel by kernel, for most of them. Kernels of
    layers fail this: what lies between the last layer of a step and the first one of the next is
    another sequence than that of a layer; and in a few steps, a layer lacks many of the names. A
    name that occurs once in several steps gives way to one that divides all its periods into equal
    ones.

    Args:
        name: Numbers of the kernels' names on one stream, from 0 on, in order of their start.
        start_ns: Their starts.
    """
    if not len(name):
        return not_found("no kernels")
    found: _Period | None = None
    order = np.argsort(name, kind="stable")
    counts = np.bincount(name)
    first = np.cumsum(counts) - counts
    # The rarest first; of equally rare ones the one that comes first in the recording.
    rare = np.flatnonzero(counts >= 2)
    firsts = order[first[rare]]
    for one in rare[np.lexsort((firsts, counts[rare]))][:_NAMES_TRIED]:
        at = order[first[one] : first[one] + counts[one]]
        if found is not None and len(at) == len(found.at):
            continue
        period = _period(name, at, every=found is not None)
        found = period or found
    if found is None:
        return not_found("no sequence of kernels comes back")
    at, alike = found.at, found.alike
    half = found.length / 2
    edges = int(at[0] >= half) + int(len(name) - at[-1] >= half)
    starts_ns = start_ns[at]
    return Steps(
        "periodicity",
        starts_ns[:-1][alike],
        starts_ns[1:][alike],
        len(alike) + edges,
        None,
    )


@dataclass(frozen=True)
class _Period:
    """A sequence that comes back.

    Attributes:
        at: Where periods begin.
        alike: Which of them are like the usual one, of those that end in the sequence.
        length: Kernels of the usual one.
    """

    at: Index
    alike: Flags
    length: int


def _period(name: Index, at: Index, every: bool) -> _Period | None:
    """Returns the periods that begin at some places, if the usual one is like the others.

    Args:
        name: The sequence.
        at: Places in it.
        every: Whether all must be alike; else more than half of them.
    """
    lengths = np.diff(at)
    usual = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    length = int(lengths[usual])
    if length < 2:
        return None
    # Lengths bound how much can be alike, and take no look at the sequence.
    possible = np.minimum(lengths, length) >= _ALIKE * np.maximum(lengths, length)
    if not _enough(possible, every):
        return None
    alike = possible & (_likeness(name, at, usual) >= _ALIKE)
    if not _enough(alike, every):
        return None
    if lengths[alike].sum() + length < len(name) / 2:
        return None
    if len(lengths) == 1 and not _goes_on(name, at):
        return None
    return _Period(at, alike, length) if _is_step(name, at, usual) else None


def _enough(alike: Flags, every: bool) -> bool:
    return bool(alike.all() if every else 2 * alike.sum() > len(alike))


def _likeness(name: Index, at: Index, usual: int) -> npt.NDArray[np.float64]:
    """Returns the share of kernels that each period has in common with the usual one.

    Places are counted from the front and from the back, so that a kernel more or less in the
    middle costs no more than itself.
    """
    lengths = np.diff(at)
    length = int(lengths[usual])
    here = np.arange(at[0], at[-1])
    period = np.repeat(np.arange(len(lengths)), lengths)
    from_front = here - at[:-1][period]
    from_back = at[1:][period] - here
    of_usual = np.append(name[at[usual] : at[usual + 1]], -1)
    front = of_usual[np.minimum(from_front, length)]
    back = of_usual[np.where(from_back <= length, length - from_back, length)]
    same = (name[here] == front) | (name[here] == back)
    return np.add.reduceat(same, at[:-1] - at[0], dtype=np.int64) / np.maximum(lengths, length)


def _goes_on(name: Index, at: Index) -> bool:
    """Tells whether what is around one period alone repeats at least half of it."""
    begin, end = int(at[0]), int(at[1])
    length = end - begin
    after = name[end : end + length]
    before = name[max(0, begin - length) : begin]
    same = (after == name[begin : begin + len(after)]).sum()
    same += (before == name[end - len(before) : end]).sum()
    around = len(after) + len(before)
    return bool(around >= length / 2 and same >= _ALIKE * around)


def _is_step(name: Index, at: Index, usual: int) -> bool:
    """Tells whether the usual period is a step, and not a layer of a few steps.

    A step has nearly all names. Other names stand for something else between steps, such as a
    prefill, if they come back too, in layers of its own; those of what is before and after a
    step's layers do not.
    """
    counts = np.bincount(name)
    counts[np.unique(name[at[usual] : at[usual + 1]])] *= -1
    others = counts[counts > 0]
    if len(others) <= _FEW_NAMES * np.count_nonzero(counts):
        return True
    return bool(others[others >= _MANY_CALLS].sum() >= _MOST_CALLS * others.sum())
