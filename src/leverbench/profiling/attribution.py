"""Where the time of a rank's decode steps goes, from the events of its trace.

On a GPU what counts is the union of its streams: kernels that overlap take their time together. On
the CPU each call has its self time: what is left without the calls inside it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from leverbench.profiling import steps
from leverbench.profiling.categories import category, loops
from leverbench.profiling.events import DEVICE_KINDS, Events, load_events, load_facts
from leverbench.profiling.geometry import Capability, Geometry, geometry
from leverbench.profiling.intervals import (
    Flags,
    Index,
    Intervals,
    Ns,
    alone_ns,
    clip,
    gaps,
    merge,
    sum_by,
)
from leverbench.profiling.ranks import events_path, read_ranks
from leverbench.profiling.selftime import Calls, mark_loops, nest, self_times
from leverbench.profiling.steps import Steps

Us: TypeAlias = npt.NDArray[np.float64]

CPU, GPU = "cpu", "gpu"
COMMUNICATION = "comm"

# Tells which annotations mark a step of the engine, and of each whether it is a decode step.
StepMarks: TypeAlias = Callable[[Iterable[str]], Mapping[str, bool]]

_NS_PER_US = 1000
_PLACE = ("name", "device", "lane", "start_ns", "duration_ns")
_LAUNCH = ("grid_blocks", "block_threads", "registers", "shared_bytes")


@dataclass(frozen=True)
class Operation:
    """All calls of one operation, inside loops of a category or outside of loops.

    Attributes:
        device: ``cpu`` or ``gpu``.
        name: Of the kernel, the operation or the annotation; or what lies between the operations
            of loops.
        category: From ``categories.yaml``, or ``host-code`` or ``other``.
        in_loop: Whether the loop that it is in decided on the category, and not its name.
        calls: How many, in the whole recording.
        self_us: Time in it, without that in operations inside it, in the whole recording; on a
            GPU the sum of durations.
        union_us: Time in which it ran in the whole decode steps, once where it overlaps itself.
        launch: How it is launched for most of its time; None on the CPU, and where the trace does
            not tell.
    """

    device: str
    name: str
    category: str
    in_loop: bool
    calls: int
    self_us: float
    union_us: float
    launch: Geometry | None = None


@dataclass(frozen=True)
class CategoryTime:
    """A category in the whole decode steps of one rank.

    Attributes:
        union_us: Time in which one of its operations ran.
        alone_us: The part of it in which no other category's ran; None on the CPU.
        gap_us: Time in which nothing ran, until one of its operations did; None on the CPU.
    """

    union_us: float
    alone_us: float | None = None
    gap_us: float | None = None


@dataclass(frozen=True)
class DeviceTime:
    """The whole decode steps of one device of one rank; the whole recording where there are none.

    Attributes:
        steps: These steps.
        recording_us: Length of the whole recording, and how much of it something ran.
        span_us: Length of the steps.
        busy_us: The part of it in which something ran, on any stream or thread.
        gaps_us: What is left: each time in which nothing ran; None on the CPU.
        categories: By name.
        collectives_us: By kernel of the communication, how long each call took, in order; None on
            the CPU.
    """

    steps: Steps
    recording_us: tuple[float, float]
    span_us: float
    busy_us: float
    gaps_us: Us | None
    categories: Mapping[str, CategoryTime]
    collectives_us: Mapping[str, Us] | None


@dataclass(frozen=True)
class RankTime:
    """What one rank did while it was recorded.

    Attributes:
        operations: All operations.
        events: Number of events that they were made from.
        devices: Where the time of its steps went: by ``cpu`` and ``gpu``, one entry for each GPU.
        truncated: Why the trace ends before its end; None for a whole one.
    """

    operations: tuple[Operation, ...]
    events: int
    devices: Mapping[str, Sequence[DeviceTime]]
    truncated: str | None = None


def attribute_ranks(
    traces: Mapping[str, Path], folder: Path, marks: StepMarks
) -> dict[str, RankTime]:
    """Reads the traces of several ranks at once, and returns where their time went.

    Args:
        traces: By the rank's name.
        folder: Where their events are written to; they are of no use afterwards.
        marks: How the engine marks its steps.

    Raises:
        LeverbenchError: A trace of which nothing can be had.
    """
    read_ranks(traces, folder)
    return {rank: attribute(events_path(folder, rank), marks) for rank in traces}


def attribute(events: Path, marks: StepMarks) -> RankTime:
    """Returns where a rank's time went.

    Args:
        events: The file that `reader.read_events` wrote.
        marks: How the engine marks its steps.
    """
    facts = load_facts(events)
    recorded = _read(events)
    marked = _Marks.read(recorded, marks)
    gpu_operations, gpus = _gpu(recorded, marked, _launches(recorded, facts.devices))
    cpu_operations, cpus = _cpu(recorded, marked)
    return RankTime(
        operations=(*gpu_operations, *cpu_operations),
        events=len(recorded.on_gpu) + len(recorded.on_cpu),
        devices={GPU: gpus, CPU: cpus},
        truncated=facts.truncated,
    )


@dataclass(frozen=True)
class _Spans:
    """Events as arrays: number of the name, GPU, stream or thread, start and end."""

    name: Index
    device: Index
    lane: Index
    start_ns: Ns
    end_ns: Ns

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, chosen: Index | Flags) -> "_Spans":
        return _Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True)
class _Recorded:
    """What is used of the events of a trace.

    Attributes:
        names: Of all events, each once.
        on_gpu: What kept GPUs busy.
        is_kernel: Which of it are kernels; the rest are copies.
        launches: Of the kernels: blocks, threads of a block, registers and shared memory; below 0
            where it is not told.
        on_cpu: Operations and annotations.
        is_annotation: Which of them are annotations.
        copied_marks: Copies of annotations on GPUs: where their kernels ran.
        end_ns: Where the recording ends; None where that is not told.
    """

    names: Sequence[str]
    on_gpu: _Spans
    is_kernel: Flags
    launches: Sequence[Index]
    on_cpu: _Spans
    is_annotation: Flags
    copied_marks: _Spans
    end_ns: int | None


def _read(path: Path) -> _Recorded:
    # Names are numbered by the file, whatever is taken from it.
    gpu = load_events(path, (*_PLACE, *_LAUNCH), (*DEVICE_KINDS, "gpu-annotation"))
    on_gpu, is_kernel = gpu.of_kinds(DEVICE_KINDS), gpu.of_kinds({"kernel"})
    gpu_spans = _spans(gpu)
    cpu = load_events(path, _PLACE, ("op", "annotation", "recording"))
    cpu_spans, ends = _spans(cpu), cpu.of_kinds({"recording"})
    return _Recorded(
        names=gpu.names,
        on_gpu=gpu_spans[on_gpu],
        is_kernel=is_kernel[on_gpu],
        launches=[
            np.nan_to_num(gpu[column][is_kernel], nan=-1).astype(np.int64) for column in _LAUNCH
        ],
        on_cpu=cpu_spans[~ends],
        is_annotation=cpu.of_kinds({"annotation"})[~ends],
        copied_marks=gpu_spans[~on_gpu],
        end_ns=int(cpu_spans.end_ns[ends].max()) if ends.any() else None,
    )


def _spans(events: Events) -> _Spans:
    start_ns = events["start_ns"]
    end_ns = start_ns + events["duration_ns"]
    return _Spans(events["name"], events["device"], events["lane"], start_ns, end_ns)


@dataclass(frozen=True)
class _Marks:
    """The marks of steps: on the CPU, and their copies on GPUs; and which are decode steps."""

    cpu: _Spans
    gpu: _Spans
    cpu_decodes: Flags
    gpu_decodes: Flags

    @classmethod
    def read(cls, recorded: _Recorded, marks: StepMarks) -> "_Marks":
        """Takes the marks of steps from all annotations."""
        cpu, gpu = recorded.on_cpu[recorded.is_annotation], recorded.copied_marks
        used = np.unique(np.concatenate((cpu.name, gpu.name))).tolist()
        told = marks(sorted(recorded.names[code] for code in used))
        is_mark = np.array([name in told for name in recorded.names], np.bool_)
        is_decode = np.array([told.get(name, False) for name in recorded.names], np.bool_)
        cpu, gpu = (spans[is_mark[spans.name]] for spans in (cpu, gpu))
        return cls(cpu, gpu, is_decode[cpu.name], is_decode[gpu.name])

    def of_cpu(self) -> Steps:
        """Returns the steps on the CPU."""
        if not len(self.cpu):
            return steps.not_found("the trace has no marks of steps on the CPU")
        return _by_marks(self.cpu, self.cpu_decodes, int(self.cpu_decodes.sum()))

    def of_gpu(self, device: int, kernels: _Spans) -> Steps:
        """Returns the steps on a GPU: without marks on it, by its kernels."""
        seen = int(self.cpu_decodes.sum()) if len(self.cpu) else None
        here = self.gpu.device == device
        if here.any():
            return _by_marks(self.gpu[here], self.gpu_decodes[here], seen)
        found = _periodic(kernels)
        return found if seen is None else replace(found, seen=max(seen, len(found.start_ns)))


def _by_marks(spans: _Spans, decodes: Flags, seen: int | None) -> Steps:
    """Takes steps from the lane with the most decode steps, of those the one with most time.

    Kernels of one step may run on several streams, each of which has a copy of its mark.
    """
    lanes = int(spans.lane.max()) + 1
    count = np.bincount(spans.lane, weights=decodes, minlength=lanes)
    lasting_ns = np.bincount(spans.lane, weights=spans.end_ns - spans.start_ns, minlength=lanes)
    here = np.flatnonzero(spans.lane == np.lexsort((lasting_ns, count))[-1])
    order = here[np.argsort(spans.start_ns[here], kind="stable")]
    of_lane = decodes[order]
    return steps.by_annotations(
        spans.start_ns[order], of_lane, int(of_lane.sum()) if seen is None else seen
    )


@dataclass(frozen=True)
class _Names:
    """Names of operations; all categories that they have; and the number of each name's."""

    names: Sequence[str]
    categories: Sequence[str]
    category: Index

    @classmethod
    def of(cls, names: Sequence[str]) -> "_Names":
        """Looks the categories up."""
        found = [category(name) for name in names]
        categories = sorted(set(found))
        numbers = np.array([categories.index(one) for one in found], np.int64)
        return cls(names, categories, numbers)


def _gpu(
    recorded: _Recorded, marks: _Marks, launches: Mapping[int, Geometry]
) -> tuple[list[Operation], list[DeviceTime]]:
    order = np.argsort(recorded.on_gpu.start_ns, kind="stable")
    spans, kernels = recorded.on_gpu[order], recorded.is_kernel[order]
    used, name = np.unique(spans.name, return_inverse=True)
    names = _Names.of([recorded.names[code] for code in used.tolist()])
    union_ns = np.zeros(len(used), np.int64)
    devices = []
    # A GPU without kernels is one that others copied to.
    for device in np.unique(spans.device[kernels] if kernels.any() else spans.device).tolist():
        here = spans.device == device
        found = marks.of_gpu(device, spans[here & kernels])
        time, of_names_ns = _gpu_time(spans[here], name[here], kernels[here], names, found)
        devices.append(time)
        union_ns += of_names_ns
    self_ns = sum_by(name, spans.end_ns - spans.start_ns, len(used))
    calls = np.bincount(name, minlength=len(used))
    operations = [
        Operation(
            device=GPU,
            name=one,
            category=names.categories[names.category[code]],
            in_loop=False,
            calls=int(calls[code]),
            self_us=int(self_ns[code]) / _NS_PER_US,
            union_us=int(union_ns[code]) / _NS_PER_US,
            launch=launches.get(int(used[code])),
        )
        for code, one in enumerate(names.names)
    ]
    return operations, devices


def _periodic(kernels: _Spans) -> Steps:
    """Looks for steps among the kernels of the busiest stream."""
    if not len(kernels):
        return steps.not_found("no kernels")
    lasting_ns = np.bincount(kernels.lane, weights=kernels.end_ns - kernels.start_ns)
    here = kernels.lane == np.argmax(lasting_ns)
    return steps.by_periodicity(kernels.name[here], kernels.start_ns[here])


def _gpu_time(
    spans: _Spans, name: Index, kernels: Flags, names: _Names, found: Steps
) -> tuple[DeviceTime, Ns]:
    """Returns the times of one GPU, and the union of each name's operations.

    Args:
        spans: Its operations, by start.
        name: Number of each one's name.
        kernels: Which of them are kernels.
        names: The names.
        found: The decode steps.
    """
    windows = _windows(found, spans)
    from_ns, to_ns, of = clip(spans.start_ns, spans.end_ns, windows)
    busy = merge(from_ns, to_ns)[:2]
    idle_from_ns, idle_to_ns = gaps(busy, windows)
    idle_ns = idle_to_ns - idle_from_ns
    following = np.searchsorted(spans.start_ns, idle_to_ns, side="left")
    known = following < len(spans)
    count = len(names.categories)
    gap_ns = sum_by(names.category[name[following[known]]], idle_ns[known], count)
    start_ns, end_ns, group = merge(from_ns, to_ns, names.category[name[of]])
    union_ns = sum_by(group, end_ns - start_ns, count)
    only_ns = alone_ns(start_ns, end_ns, group, count)
    start_ns, end_ns, group = merge(from_ns, to_ns, name[of])
    of_names_ns = sum_by(group, end_ns - start_ns, len(names.names))
    time = DeviceTime(
        steps=found,
        recording_us=_recording(spans),
        span_us=int((windows[1] - windows[0]).sum()) / _NS_PER_US,
        busy_us=int((busy[1] - busy[0]).sum()) / _NS_PER_US,
        gaps_us=_us(idle_ns),
        categories={
            one: CategoryTime(
                union_us=int(union_ns[code]) / _NS_PER_US,
                alone_us=int(only_ns[code]) / _NS_PER_US,
                gap_us=int(gap_ns[code]) / _NS_PER_US,
            )
            for code, one in enumerate(names.categories)
        },
        collectives_us=_collectives(spans, name, kernels & _inside(spans.start_ns, windows), names),
    )
    return time, of_names_ns


def _collectives(spans: _Spans, name: Index, counted: Flags, names: _Names) -> dict[str, Us]:
    """Returns by name how long each call of the communication's kernels took, in order."""
    found = {}
    for code, one in enumerate(names.names):
        calls = counted & (name == code) if category(one) == COMMUNICATION else counted[:0]
        if calls.any():
            found[one] = _us(spans.end_ns[calls] - spans.start_ns[calls])
    return found


def _recording(spans: _Spans) -> tuple[float, float]:
    """Returns the time from the first start to the last end, and how much of it something ran."""
    busy = merge(spans.start_ns, spans.end_ns)[:2]
    span_ns, busy_ns = int(busy[1][-1] - busy[0][0]), int((busy[1] - busy[0]).sum())
    return span_ns / _NS_PER_US, busy_ns / _NS_PER_US


def _us(time_ns: Ns) -> Us:
    found: Us = time_ns / _NS_PER_US
    return found


def _windows(found: Steps, spans: _Spans) -> Intervals:
    """Returns the whole steps as intervals, none of which touch; else all that was recorded."""
    if len(found.start_ns):
        return merge(found.start_ns, found.end_ns)[:2]
    return np.array([spans.start_ns.min()]), np.array([spans.end_ns.max()])


def _inside(at_ns: Ns, windows: Intervals) -> Flags:
    """Tells which times are in one of the windows."""
    window = np.searchsorted(windows[0], at_ns, side="right") - 1
    return (window >= 0) & (at_ns < windows[1][np.maximum(window, 0)])


def _launches(recorded: _Recorded, devices: Sequence[Mapping[str, Any]]) -> dict[int, Geometry]:
    """Returns for each kernel, by the number of its name, the geometry that has most of its time.

    Args:
        recorded: The events.
        devices: What is known of the GPUs.
    """
    kernels = recorded.on_gpu[recorded.is_kernel]
    columns = [kernels.name, kernels.device, *recorded.launches]
    kind = np.zeros(len(kernels), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        # Numbered anew each time, so that no product of numbers grows beyond 64 bits.
        kind = np.unique(kind * len(values) + code, return_inverse=True)[1]
    first = np.unique(kind, return_index=True)[1]
    lasting_ns = np.bincount(kind, weights=kernels.end_ns - kernels.start_ns)
    of_device = {device["id"]: device for device in devices}
    found: dict[int, Geometry] = {}
    # The longest last: it stays.
    for one in np.argsort(lasting_ns, kind="stable").tolist():
        name, device, *launch = (int(column[first[one]]) for column in columns)
        if launch[0] >= 0:
            blocks, threads, registers, shared = (None if n < 0 else n for n in launch)
            chip = _chip(of_device.get(device, {}))
            found[name] = geometry(blocks, threads, registers, shared, *chip)
    return found


def _chip(device: Mapping[str, Any]) -> tuple[int | None, Capability | None]:
    major, minor = device.get("compute_major"), device.get("compute_minor")
    capability = None if major is None or minor is None else (int(major), int(minor))
    return device.get("sm_count"), capability


def _cpu(recorded: _Recorded, marks: _Marks) -> tuple[list[Operation], list[DeviceTime]]:
    spans = recorded.on_cpu
    if not len(spans):
        return [], []
    if recorded.end_ns is not None:
        # What is open when the recording ends goes on while the trace is written.
        end_ns = np.maximum(np.minimum(spans.end_ns, recorded.end_ns), spans.start_ns)
        spans = replace(spans, end_ns=end_ns)
    calls = nest(
        recorded.names, spans.name, recorded.is_annotation, spans.lane, spans.start_ns, spans.end_ns
    )
    found = marks.of_cpu()
    windows = _windows(found, spans)
    operations = _cpu_operations(calls, windows)
    # Others are inside of these.
    outermost = calls.outer < 0
    busy = merge(*clip(calls.start_ns[outermost], calls.end_ns[outermost], windows)[:2])[:2]
    of_category: dict[str, float] = {}
    for operation in operations:
        so_far_us = of_category.get(operation.category, 0.0)
        of_category[operation.category] = so_far_us + operation.union_us
    time = DeviceTime(
        steps=found,
        recording_us=_recording(spans),
        span_us=int((windows[1] - windows[0]).sum()) / _NS_PER_US,
        busy_us=int((busy[1] - busy[0]).sum()) / _NS_PER_US,
        gaps_us=None,
        categories={name: CategoryTime(union_us) for name, union_us in of_category.items()},
        collectives_us=None,
    )
    return operations, [time]


def _cpu_operations(calls: Calls, windows: Intervals) -> list[Operation]:
    """Returns the operations on the CPU, and the time between those of loops as further ones."""
    known = loops()
    loop, self_ns, pauses = mark_loops(calls, self_times(calls), known)
    counted_ns = np.where(_inside(calls.start_ns, windows), self_ns, 0)
    # Name, whether it is an annotation, and loop, in one number.
    number = (calls.name.astype(np.int64) * 2 + calls.annotation) * (len(known) + 1) + loop + 1
    kinds, kind = np.unique(number, return_inverse=True)
    count = np.bincount(kind)
    self_of_ns = sum_by(kind, self_ns, len(kinds))
    counted_of_ns = sum_by(kind, counted_ns, len(kinds))
    operations = []
    for code, one in enumerate(kinds.tolist()):
        rest, of_loop = divmod(one, len(known) + 1)
        name, annotation = calls.names[rest // 2], bool(rest % 2)
        of = known[of_loop - 1].category if of_loop else category(name, annotation=annotation)
        self_us, counted_us = (int(ns[code]) / _NS_PER_US for ns in (self_of_ns, counted_of_ns))
        count_of = int(count[code])
        operations.append(Operation(CPU, name, of, of_loop > 0, count_of, self_us, counted_us))
    for of, call in sorted({(pause.category, pause.call) for pause in pauses}):
        own = [pause for pause in pauses if (pause.category, pause.call) == (of, call)]
        lasting_ns = np.array([pause.self_ns for pause in own])
        inside = _inside(np.array([pause.start_ns for pause in own]), windows)
        self_us, counted_us = (
            int(ns.sum()) / _NS_PER_US for ns in (lasting_ns, lasting_ns[inside])
        )
        name = f"loop of {call}, between operations"
        operations.append(Operation(CPU, name, of, True, len(own), self_us, counted_us))
    return operations
