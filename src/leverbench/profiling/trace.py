"""Reads a trace of the torch profiler (Kineto's JSON): how long each operation took by itself.

The whole file is held in memory: a few decode steps without stacks and shapes are small.
"""

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.errors import LeverbenchError

_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ANNOTATION = "user_annotation"
_ON_CPU = frozenset({"cpu_op", _ANNOTATION})
_CURE = "Delete the profile's summary.json and run again: it is taken anew."


@dataclass(frozen=True)
class Operation:
    """All calls of one operation.

    Attributes:
        device: ``cpu`` or ``gpu``.
        name: Of the kernel, the operation or the annotation.
        annotation: Whether it is a span that the engine's code marks: its own time is that of
            the code in it, outside of all operations.
        calls: How many.
        self_us: Time in it, without that in operations inside it; on a GPU the sum of durations.
    """

    device: str
    name: str
    annotation: bool
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


def read_trace(path: Path) -> Trace:
    """Reads one rank's trace, JSON or gzipped JSON (by the name's end).

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
        return _trace(document["traceEvents"])
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


def _trace(events: Iterable[Mapping[str, Any]]) -> Trace:
    calls: Counter[tuple[str, str, bool]] = Counter()
    self_us: defaultdict[tuple[str, str, bool], float] = defaultdict(float)
    threads: defaultdict[tuple[Any, Any], list[_Span]] = defaultdict(list)
    for event in events:
        kind = event.get("cat")
        if event.get("ph") != "X" or not (kind in _ON_GPU or kind in _ON_CPU):
            continue
        duration_us, name = float(event["dur"]), str(event["name"])
        if kind in _ON_GPU:
            key = ("gpu", name, False)
            self_us[key] += duration_us
        else:
            key = ("cpu", name, kind == _ANNOTATION)
            start_us = float(event["ts"])
            span = _Span(key, start_us, start_us + duration_us, duration_us)
            threads[event["pid"], event["tid"]].append(span)
        calls[key] += 1
    for spans in threads.values():
        _leave_out_inner(spans)
        for span in spans:
            self_us[span.key] += span.self_us
    return Trace(
        operations=tuple(Operation(*key, calls[key], self_us[key]) for key in calls),
        annotations={name: count for (_, name, marked), count in calls.items() if marked},
        events=calls.total(),
    )


@dataclass
class _Span:
    """One call on a thread of the CPU."""

    key: tuple[str, str, bool]
    start_us: float
    end_us: float
    self_us: float


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
        open_spans.append(span)
