"""Self time on the CPU: of each call, without the calls inside it; and the loops it belongs to."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leverbench.profiling.categories import Loop
from leverbench.profiling.intervals import Flags, Index, Ns, sum_by


@dataclass(frozen=True)
class Calls:
    """Calls on threads of the CPU: by thread and start, outer before inner ones.

    Attributes:
        names: Their names, each once.
        name: Number of each call's name.
        annotation: Whether it is a span that the engine's code marks.
        lane: Number of its thread.
        start_ns: Start.
        end_ns: End.
        outer: The call that it is directly inside of; -1 for none.
    """

    names: Sequence[str]
    name: Index
    annotation: Flags
    lane: Index
    start_ns: Ns
    end_ns: Ns
    outer: Index


def nest(
    names: Sequence[str], name: Index, annotation: Flags, lane: Index, start_ns: Ns, end_ns: Ns
) -> Calls:
    """Finds out which call is inside which: see `Calls`, whose arrays may be in any order here."""
    order = np.lexsort((-end_ns, start_ns, lane))
    lane, start_ns, end_ns = lane[order], start_ns[order], end_ns[order]
    outer = _outer(lane, start_ns, end_ns)
    return Calls(names, name[order], annotation[order], lane, start_ns, end_ns, outer)


def _outer(lane: Index, start_ns: Ns, end_ns: Ns) -> Index:
    """Returns the call around each call, of those that have not ended when it starts."""
    if not len(lane):
        return np.zeros(0, np.int64)
    # Threads follow one another on one axis: those of the one have ended before the next.
    offset_ns = lane.astype(np.int64) * (end_ns.max() - start_ns.min() + 1)
    start_ns, end_ns = start_ns + offset_ns, end_ns + offset_ns
    outer = array("q")
    open_calls: list[int] = []
    open_ends_ns: list[int] = []
    size = 1 << 16
    for begin in range(0, len(lane), size):
        chunk = zip(
            start_ns[begin : begin + size].tolist(),
            end_ns[begin : begin + size].tolist(),
            strict=True,
        )
        for call, (start, end) in enumerate(chunk, begin):
            while open_ends_ns and open_ends_ns[-1] <= start:
                open_ends_ns.pop()
                open_calls.pop()
            outer.append(open_calls[-1] if open_calls else -1)
            open_calls.append(call)
            open_ends_ns.append(end)
    return np.array(outer, np.int64)


def self_times(calls: Calls) -> Ns:
    """Returns the time in each call, without the calls directly inside it."""
    inner = np.flatnonzero(calls.outer >= 0)
    outer = calls.outer[inner]
    # Rounding can let a call end after the one around it.
    inside_ns = np.minimum(calls.end_ns[inner], calls.end_ns[outer]) - calls.start_ns[inner]
    lasting_ns = calls.end_ns - calls.start_ns
    left_ns: Ns = np.maximum(lasting_ns - sum_by(outer, inside_ns, len(lasting_ns)), 0)
    return left_ns


@dataclass(frozen=True)
class Pause:
    """The time between the operations of one loop.

    Attributes:
        category: The loop's.
        call: Name of the operation that it is around.
        start_ns: Where its first operation starts.
        self_ns: Length.
    """

    category: str
    call: str
    start_ns: int
    self_ns: int


def mark_loops(
    calls: Calls, self_ns: Ns, loops: Sequence[Loop]
) -> tuple[Index, Ns, Sequence[Pause]]:
    """Finds loops among the operations directly inside annotations.

    Without a fence before and after it, nothing shows where a loop begins and ends.

    Args:
        calls: On all threads.
        self_ns: Self time of each.
        loops: What to look for.

    Returns:
        The number of the loop that each call is in, -1 for none; self times without the pauses of
        loops; these.
    """
    marked, self_ns, pauses = np.full(len(self_ns), -1), self_ns.copy(), []
    inside = np.flatnonzero(calls.outer >= 0)
    inside = inside[calls.annotation[calls.outer[inside]]]
    # Calls of one annotation stand together, in order.
    inside = inside[np.argsort(calls.outer[inside], kind="stable")]
    for number, loop in enumerate(loops):
        is_call = _matching(calls, [bool(loop.call.search(name)) for name in calls.names])[inside]
        is_fence = _matching(calls, [bool(loop.fence.search(name)) for name in calls.names])[inside]
        fences = np.flatnonzero(is_fence)
        around = np.searchsorted(fences, np.flatnonzero(is_call & ~is_fence))
        for after in np.unique(around).tolist():
            if after in (0, len(fences)):
                continue
            before, behind = fences[after - 1], fences[after]
            annotation = calls.outer[inside[before]]
            if annotation != calls.outer[inside[behind]]:
                continue
            between = inside[before + 1 : behind]
            starts_ns = calls.start_ns[between]
            of_call = is_call[before + 1 : behind]
            body = between[_near(starts_ns, starts_ns[of_call])]
            # What is inside the last one ends where the next operation begins.
            following = inside[np.searchsorted(inside, body[-1]) + 1]
            marked[body[0] : following] = number
            idle_ns = calls.start_ns[body[1:]] - calls.end_ns[body[:-1]]
            pause_ns = int(min(np.maximum(idle_ns, 0).sum(), self_ns[annotation]))
            self_ns[annotation] -= pause_ns
            name = calls.names[calls.name[between[of_call][0]]]
            pauses.append(Pause(loop.category, name, int(calls.start_ns[body[0]]), pause_ns))
    return marked, self_ns, pauses


def _matching(calls: Calls, of_names: Sequence[bool]) -> Flags:
    matching: Flags = np.array(of_names, np.bool_)[calls.name]
    return matching


def _near(start_ns: Ns, of_calls_ns: Ns) -> Flags:
    """Returns which operations are within a period of the loop's calls.

    The period is the usual distance of two successive calls. One call alone has none: all that is
    between the fences is taken to be there for its sake.
    """
    if len(of_calls_ns) == 1:
        return np.ones(len(start_ns), np.bool_)
    period_ns = np.median(np.diff(of_calls_ns))
    near: Flags = start_ns >= of_calls_ns[0] - period_ns
    near &= start_ns < of_calls_ns[-1] + period_ns
    return near
