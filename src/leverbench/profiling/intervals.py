"""Intervals of time as arrays: their union, what is idle between them, who is alone.

Times are integers, in nanoseconds; an interval holds its start and not its end.
"""

from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ns: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Flags: TypeAlias = npt.NDArray[np.bool_]
# Starts and ends.
Intervals: TypeAlias = tuple[Ns, Ns]


def merge(start_ns: Ns, end_ns: Ns, group: Index | None = None) -> tuple[Ns, Ns, Index]:
    """Returns the union of the intervals of each group: none touches another of its group.

    Args:
        start_ns: Starts, in any order.
        end_ns: Ends, none before its start.
        group: Group of each interval, from 0 on; None where all are of one.

    Returns:
        Starts, ends and groups, by group and start.
    """
    if not len(start_ns):
        return start_ns, end_ns, np.zeros(0, np.int64)
    of = np.zeros(len(start_ns), np.int64) if group is None else group.astype(np.int64)
    order = np.argsort(start_ns, kind="stable") if group is None else np.lexsort((start_ns, of))
    start_ns, reach_ns, of = start_ns[order], end_ns[order], of[order]
    begins = np.concatenate(([True], of[1:] != of[:-1]))
    # Group by group: on one axis, groups of far times would be beyond 64 bits.
    for first, after in pairwise([*np.flatnonzero(begins).tolist(), len(of)]):
        np.maximum.accumulate(reach_ns[first:after], out=reach_ns[first:after])
    begins[1:] |= start_ns[1:] > reach_ns[:-1]
    firsts = np.flatnonzero(begins)
    lasts = np.concatenate((firsts[1:], [len(of)])) - 1
    return start_ns[firsts], reach_ns[lasts], of[firsts]


def clip(start_ns: Ns, end_ns: Ns, windows: Intervals) -> tuple[Ns, Ns, Index]:
    """Cuts intervals to windows; one that lies across several gives a piece in each.

    Args:
        start_ns: Starts, in any order.
        end_ns: Ends.
        windows: Starts and ends of windows that do not overlap, in order.

    Returns:
        Starts and ends of the pieces, and the interval that each is of.
    """
    window_start_ns, window_end_ns = windows
    first = np.searchsorted(window_end_ns, start_ns, side="right")
    after = np.searchsorted(window_start_ns, end_ns, side="left")
    pieces = np.maximum(after - first, 0)
    of = np.repeat(np.arange(len(start_ns)), pieces)
    # The number of each piece among those of its interval.
    number = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    window = first[of] + number
    return (
        np.maximum(start_ns[of], window_start_ns[window]),
        np.minimum(end_ns[of], window_end_ns[window]),
        of,
    )


def gaps(busy: Intervals, windows: Intervals) -> Intervals:
    """Returns what is left of windows between busy intervals.

    Args:
        busy: Starts and ends of intervals inside the windows, none of which touch, in order.
        windows: Starts and ends of windows, none of which touch, in order.
    """
    start_ns = np.sort(np.concatenate((windows[0], busy[1])))
    end_ns = np.sort(np.concatenate((busy[0], windows[1])))
    empty = start_ns == end_ns
    return start_ns[~empty], end_ns[~empty]


def alone_ns(start_ns: Ns, end_ns: Ns, group: Index, groups: int) -> Ns:
    """Returns for each group how long it, and no other group, is there.

    Args:
        start_ns: Starts of intervals, none of which overlaps another of its group.
        end_ns: Ends.
        group: Group of each.
        groups: Number of groups.
    """
    at_ns = np.concatenate((start_ns, end_ns))
    ones = np.ones(len(start_ns), np.int64)
    order = np.argsort(at_ns, kind="stable")
    there = np.cumsum(np.concatenate((ones, -ones))[order])[:-1]
    # Where one group is there, the sum of those that are there is its number.
    who = np.cumsum(np.concatenate((group, -group))[order])[:-1]
    lasting_ns = np.diff(at_ns[order])
    one = there == 1
    return sum_by(who[one], lasting_ns[one], groups)


def sum_by(group: Index, value: Ns, groups: int) -> Ns:
    """Returns the sum of integers by group, exact as long as it is below 2**53."""
    return np.bincount(group, weights=value, minlength=groups).astype(np.int64)
