"""Reads a trace of the torch profiler (Kineto's JSON): how long each operation took by itself.

The whole file is held in memory: a few decode steps without stacks and shapes are small.
"""

import gzip
import json
import math
import re
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from leverbench.errors import LeverbenchError

_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ANNOTATION = "user_annotation"
_ON_CPU = frozenset({"cpu_op", _ANNOTATION})
# The span of the recording itself.
_RECORDING = "Trace"
_CURE = "Delete the profile's summary.json and run again: it is taken anew."


@dataclass(frozen=True)
class Loop:
    """A loop that the engine's code makes around one operation, such as one call a request.

    Attributes:
        category: That its time belongs to.
        call: Finds the name of the operation.
        fence: Finds the names of operations that are never part of the loop.
    """

    category: str
    call: re.Pattern[str]
    fence: re.Pattern[str]


@dataclass(frozen=True)
class Operation:
    """All calls of one operation, inside loops of a category or outside of loops.

    Attributes:
        device: ``cpu`` or ``gpu``.
        name: Of the kernel, the operation or the annotation; or what lies between the operations
            of loops.
        annotation: Whether it is a span that the engine's code marks: its own time is that of
            the code in it, outside of all operations.
        loop: Category of the loops that it is in; None outside of loops.
        calls: How many.
        self_us: Time in it, without that in operations inside it; on a GPU the sum of durations.
    """

    device: str
    name: str
    annotation: bool
    loop: str | None
    calls: int
    self_us: float


@dataclass(frozen=True)
class Trace:
    """What one rank did while it was recorded.

    Attributes:
        operations: All operations.
        annotations: How often each annotation occurs on the CPU.
        events: Number of events that the operations were made from.
    """

    operations: tuple[Operation, ...]
    annotations: Mapping[str, int]
    events: int


def read_trace(path: Path, loops: Sequence[Loop] = ()) -> Trace:
    """Reads one rank's trace, JSON or gzipped JSON (by the name's end).

    Args:
        path: The file.
        loops: What to look for among the operations on the CPU.

    Raises:
        LeverbenchError: The file is missing, empty, truncated, or not such a trace.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise LeverbenchError("the trace is missing", where=str(path), cure=_CURE) from None
    except EOFError:
        raise LeverbenchError("the trace is truncated", where=str(path), cure=_CURE) from None
    except (OSError, zlib.error) as error:
        raise LeverbenchError(f"unreadable trace ({error})", where=str(path), cure=_CURE) from None
    if not content:
        raise LeverbenchError("the trace is empty", where=str(path), cure=_CURE)
    try:
        document = json.loads(content)
    except ValueError as error:
        message = f"the trace is truncated or not JSON ({error})"
        raise LeverbenchError(message, where=str(path), cure=_CURE) from None
    try:
        return _trace(document["traceEvents"], loops)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        message = f"not a trace of the torch profiler ({error!r})"
        raise LeverbenchError(message, where=str(path), cure=_CURE) from None


def is_whole(path: Path) -> bool:
    """Tells whether a gzipped file has been written to its end."""
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error):
        return False
    return path.stat().st_size > 0


# Device, name, whether it is an annotation, category of the loop.
_Key = tuple[str, str, bool, str | None]


def _trace(events: Iterable[Mapping[str, Any]], loops: Sequence[Loop]) -> Trace:
    calls: Counter[_Key] = Counter()
    self_us: defaultdict[_Key, float] = defaultdict(float)
    threads: defaultdict[tuple[Any, Any], list[_Span]] = defaultdict(list)
    recordings_end_us = []
    for event in events:
        kind = event.get("cat")
        if event.get("ph") == "X" and kind == _RECORDING:
            recordings_end_us.append(float(event["ts"]) + float(event["dur"]))
        if event.get("ph") != "X" or not (kind in _ON_GPU or kind in _ON_CPU):
            continue
        duration_us, name = float(event["dur"]), str(event["name"])
        if kind in _ON_GPU:
            key: _Key = ("gpu", name, False, None)
            calls[key] += 1
            self_us[key] += duration_us
        else:
            start_us = float(event["ts"])
            span = _Span(
                name, kind == _ANNOTATION, start_us, start_us + duration_us, self_us=duration_us
            )
            threads[event["pid"], event["tid"]].append(span)
    on_cpu = [span for spans in threads.values() for span in spans]
    _cut(on_cpu, max(recordings_end_us, default=math.inf))
    events_read = calls.total() + len(on_cpu)
    annotations = Counter(span.name for span in on_cpu if span.annotation)
    for spans in threads.values():
        _leave_out_inner(spans)
        on_cpu += [pause for loop in loops for pause in _mark_loops(spans, loop)]
    for span in on_cpu:
        key = ("cpu", span.name, span.annotation, span.loop)
        calls[key] += 1
        self_us[key] += span.self_us
    return Trace(
        operations=tuple(Operation(*key, calls[key], self_us[key]) for key in calls),
        annotations=dict(annotations),
        events=events_read,
    )


@dataclass(slots=True)
class _Span:
    """One call on a thread of the CPU."""

    name: str
    annotation: bool
    start_us: float
    end_us: float
    self_us: float
    loop: str | None = None
    inside: list["_Span"] = field(default_factory=list)


def _cut(spans: Iterable[_Span], end_us: float) -> None:
    """Ends spans with the recording: those that are open then go on while it is written."""
    for span in spans:
        if span.end_us > end_us:
            span.end_us = max(span.start_us, end_us)
            span.self_us = span.end_us - span.start_us


def _leave_out_inner(spans: list[_Span]) -> None:
    """Takes from each span of a thread the time of the spans directly inside it."""
    spans.sort(key=lambda span: (span.start_us, -span.end_us))
    open_spans: list[_Span] = []
    for span in spans:
        while open_spans and open_spans[-1].end_us <= span.start_us:
            open_spans.pop()
        if open_spans:
            outer = open_spans[-1]
            # Rounding can let a span end after the one around it.
            inside_us = min(span.end_us, outer.end_us) - span.start_us
            outer.self_us = max(0.0, outer.self_us - inside_us)
            outer.inside.append(span)
        open_spans.append(span)


def _mark_loops(spans: Iterable[_Span], loop: Loop) -> list[_Span]:
    """Marks what is in a thread's loops, and takes the time between it out of the annotations.

    Returns:
        That time, as a span for each loop.
    """
    pauses = []
    for outer in spans:
        for body in _bodies(outer.inside, loop) if outer.annotation else ():
            for span in body:
                _mark(span, loop.category)
            between_us = sum(max(0.0, b.start_us - a.end_us) for a, b in pairwise(body))
            pause_us = min(between_us, outer.self_us)
            outer.self_us -= pause_us
            call = next(span.name for span in body if loop.call.search(span.name))
            name, ends_us = (
                f"loop of {call}, between operations",
                (body[0].start_us, body[-1].end_us),
            )
            pauses.append(_Span(name, False, *ends_us, pause_us, loop.category))
    return pauses


def _bodies(spans: Iterable[_Span], loop: Loop) -> Iterator[list[_Span]]:
    """Yields the operations of each loop: calls with a fence before the first, and after the last.

    Without both fences nothing shows where a loop begins and ends.
    """
    behind_fence: list[_Span] | None = None
    for span in spans:
        if loop.fence.search(span.name):
            if body := _around_calls(behind_fence or (), loop):
                yield body
            behind_fence = []
        elif behind_fence is not None:
            behind_fence.append(span)


def _around_calls(spans: Sequence[_Span], loop: Loop) -> list[_Span]:
    """Returns the calls between two fences with what is within a period of them.

    The period is the usual distance of two successive calls. One call alone has none: all that is
    between the fences is taken to be there for its sake.
    """
    starts_us = [span.start_us for span in spans if loop.call.search(span.name)]
    if len(starts_us) < 2:
        return list(spans) if starts_us else []
    period_us = statistics.median(b - a for a, b in pairwise(starts_us))
    first_us, last_us = starts_us[0] - period_us, starts_us[-1] + period_us
    return [span for span in spans if first_us <= span.start_us < last_us]


def _mark(span: _Span, category: str) -> None:
    span.loop = category
    for inner in span.inside:
        _mark(inner, category)
