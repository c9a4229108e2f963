"""The table of a profile: time by operation and category, and what stands out in it."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from leverbench.parquet import write_rows
from leverbench.profiling.attribution import CPU, GPU, DeviceTime, Operation, RankTime
from leverbench.profiling.categories import OTHER, tensor_cores, tensor_cores_of
from leverbench.profiling.geometry import Geometry
from leverbench.profiling.steps import Steps
from leverbench.records import SCHEMA_VERSION

Key = TypeVar("Key", bound=Hashable)

_TOP = 10


@dataclass(frozen=True)
class Row:
    """One operation of one rank.

    Attributes:
        rank: The rank's name, such as ``TP-0``.
        device: ``cpu`` or ``gpu``.
        name: Of the kernel, the operation or the annotation.
        category: From ``categories.yaml``, or ``host-code`` or ``other``.
        in_loop: Whether the loop that it is in decided on the category, and not its name.
        calls: How many.
        self_us: Time in it, without that in operations inside it.
        share: Of the rank's total on that device.
        union_us: Time in which it ran in the whole decode steps, once where it overlaps itself; in
            the whole recording where none were found.
        per_step_us: The same for one step; None where none were found.
        tensor_cores: Whether it uses them, as its name tells: ``likely`` or ``none``; None where
            the name does not tell, and on the CPU.
        grid_blocks: Blocks of the launch that has most of its time; None on the CPU.
        block_threads: Threads of a block, likewise.
        registers: Registers of a thread, likewise.
        shared_bytes: Shared memory of a block, likewise.
        occupancy: Of that launch, by arithmetic, 0 to 1; None where the device is not known.
    """

    rank: str
    device: str
    name: str
    category: str
    in_loop: bool
    calls: int
    self_us: float
    share: float
    union_us: float
    per_step_us: float | None
    tensor_cores: str | None
    grid_blocks: int | None
    block_threads: int | None
    registers: int | None
    shared_bytes: int | None
    occupancy: float | None


_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("in_loop", pa.bool_(), nullable=False),
        pa.field("calls", pa.int64(), nullable=False),
        pa.field("self_us", pa.float64(), nullable=False),
        pa.field("share", pa.float64(), nullable=False),
        pa.field("union_us", pa.float64(), nullable=False),
        pa.field("per_step_us", pa.float64()),
        pa.field("tensor_cores", pa.string()),
        pa.field("grid_blocks", pa.int64()),
        pa.field("block_threads", pa.int64()),
        pa.field("registers", pa.int64()),
        pa.field("shared_bytes", pa.int64()),
        pa.field("occupancy", pa.float64()),
    ]
)


def make_table(ranks: Mapping[str, RankTime]) -> list[Row]:
    """Returns the rows of all ranks: by rank and device, the longest first."""
    rows = []
    for rank, time in ranks.items():
        total_us = _sums((operation.device, operation.self_us) for operation in time.operations)
        steps = {device: _whole_steps(times) for device, times in time.devices.items()}
        rows += [
            _row(rank, operation, total_us[operation.device], steps[operation.device])
            for operation in time.operations
        ]
    return sorted(rows, key=lambda row: (row.rank, row.device, -row.self_us, row.name))


def _row(rank: str, operation: Operation, total_us: float, steps: int) -> Row:
    launch = operation.launch
    return Row(
        rank=rank,
        device=operation.device,
        name=operation.name,
        category=operation.category,
        in_loop=operation.in_loop,
        calls=operation.calls,
        self_us=operation.self_us,
        share=_share(operation.self_us, total_us),
        union_us=operation.union_us,
        per_step_us=operation.union_us / steps if steps else None,
        tensor_cores=tensor_cores(operation.name) if operation.device == GPU else None,
        grid_blocks=launch.grid_blocks if launch else None,
        block_threads=launch.block_threads if launch else None,
        registers=launch.registers if launch else None,
        shared_bytes=launch.shared_bytes if launch else None,
        occupancy=launch.occupancy if launch else None,
    )


def summarise(ranks: Mapping[str, RankTime], device: str) -> dict[str, Any]:
    """Returns what a device's decode steps consist of, over all ranks.

    Totals and shares are of the whole recording. What is said of steps is of the whole decode
    steps, and of the whole recording where none were found.

    Args:
        ranks: What each rank did.
        device: ``cpu`` or ``gpu``; what the other one did does not count.
    """
    times = [time for rank in ranks.values() for time in rank.devices[device]]
    operations = [
        operation
        for rank in ranks.values()
        for operation in rank.operations
        if operation.device == device
    ]
    total_us = sum(operation.self_us for operation in operations)
    span_us, busy_us = sum(time.span_us for time in times), sum(time.busy_us for time in times)
    steps = _whole_steps(times)
    cut = [f"{name}: {rank.truncated}" for name, rank in ranks.items() if rank.truncated]
    return {
        "total_us": total_us,
        "recording": _recording(times),
        "steps": _steps([time.steps for time in times]),
        "span_us": span_us,
        "busy_us": busy_us,
        "idle_us": span_us - busy_us,
        "idle_share": _share(span_us - busy_us, span_us) if span_us else None,
        "gaps": _gaps(times),
        "categories": _categories(operations, times, total_us, span_us, steps),
        "top": _top(operations, total_us, steps),
        "other_top": _other_top(operations),
        "communication": _communication(times),
        "truncated": "; ".join(cut) or None,
    }


def _whole_steps(times: Sequence[DeviceTime]) -> int:
    """Returns the number of whole steps; 0 where one device has none: its times are of all."""
    counts = [len(time.steps.start_ns) for time in times]
    return sum(counts) if all(counts) else 0


def decode_steps(ranks: Mapping[str, RankTime], device: str) -> int | None:
    """Returns the decode steps seen on the rank with the fewest; None where no trace tells."""
    seen = [time.steps.seen for rank in ranks.values() for time in rank.devices[device]]
    return min((count for count in seen if count is not None), default=None)


def _steps(found: Sequence[Steps]) -> dict[str, Any]:
    missing = [steps for steps in found if not len(steps.start_ns)]
    if missing or not found:
        reason = missing[0].reason if missing else "nothing was recorded"
        absent = ("count", "dropped", "mean_us", "min_us", "max_us")
        return {"found_by": None, **dict.fromkeys(absent), "reason": reason}
    fewest = min(found, key=lambda steps: len(steps.start_ns))
    lasting_us = np.concatenate([steps.end_ns - steps.start_ns for steps in found]) / 1000
    return {
        "found_by": fewest.found_by,
        "count": len(fewest.start_ns),
        "dropped": fewest.dropped,
        "mean_us": float(lasting_us.mean()),
        "min_us": float(lasting_us.min()),
        "max_us": float(lasting_us.max()),
        "reason": None,
    }


def _recording(times: Sequence[DeviceTime]) -> dict[str, Any]:
    """Returns how long was recorded, from the first operation to the last, and the idle share."""
    span_us = sum(time.recording_us[0] for time in times)
    busy_us = sum(time.recording_us[1] for time in times)
    idle_share = _share(span_us - busy_us, span_us) if span_us else None
    return {"span_us": span_us, "busy_us": busy_us, "idle_share": idle_share}


def _gaps(times: Sequence[DeviceTime]) -> dict[str, Any] | None:
    known = [time.gaps_us for time in times if time.gaps_us is not None]
    if not known or len(known) < len(times):
        return None
    gaps_us = np.concatenate(known)
    return {
        "count": len(gaps_us),
        "total_us": float(gaps_us.sum()),
        "median_us": float(np.median(gaps_us)) if len(gaps_us) else None,
    }


def _categories(
    operations: Sequence[Operation],
    times: Sequence[DeviceTime],
    total_us: float,
    span_us: float,
    steps: int,
) -> list[dict[str, Any]]:
    self_us = _sums((operation.category, operation.self_us) for operation in operations)
    in_loops = _sums((one.category, one.self_us) for one in operations if one.in_loop)
    found = []
    for name, time_us in _descending(self_us):
        of_ranks = [time.categories[name] for time in times if name in time.categories]
        union_us = sum(one.union_us for one in of_ranks)
        share = _share(time_us, total_us)
        gap_us, step_share = None, share
        if not any(one.gap_us is None for one in of_ranks):
            gap_us = sum(one.gap_us or 0.0 for one in of_ranks)
            alone_us = sum(one.alone_us or 0.0 for one in of_ranks)
            step_share = _share(alone_us + gap_us, span_us)
        found.append(
            {
                "category": name,
                "share": share,
                "in_loops": _share(in_loops.get(name, 0.0), total_us),
                "self_us": time_us,
                "union_us": union_us,
                "gap_us": gap_us,
                "step_share": step_share,
                "per_step_us": union_us / steps if steps else None,
                "tensor_cores": tensor_cores_of(
                    [
                        tensor_cores(one.name)
                        for one in operations
                        if one.category == name and one.device != CPU
                    ]
                ),
            }
        )
    return found


def _top(operations: Sequence[Operation], total_us: float, steps: int) -> list[dict[str, Any]]:
    found = []
    self_us = _sums(((one.category, one.name), one.self_us) for one in operations)
    for (of, name), time_us in _descending(self_us)[:_TOP]:
        own = [one for one in operations if (one.category, one.name) == (of, name)]
        union_us = sum(one.union_us for one in own)
        launch: Geometry | None = max(own, key=lambda one: one.self_us).launch
        found.append(
            {
                "name": name,
                "category": of,
                "calls": sum(one.calls for one in own),
                "self_us": time_us,
                "share": _share(time_us, total_us),
                "per_step_us": union_us / steps if steps else None,
                "tensor_cores": tensor_cores(name) if own[0].device == GPU else None,
                "geometry": asdict(launch) if launch else None,
            }
        )
    return found


def _other_top(operations: Sequence[Operation]) -> list[str]:
    others = _sums((one.name, one.self_us) for one in operations if one.category == OTHER)
    return [name for name, _ in _descending(others)[:_TOP]]


def _communication(times: Sequence[DeviceTime]) -> dict[str, Any] | None:
    """Tells transfer from waiting: None where there are not several ranks to compare.

    A collective ends on all ranks when the last one has come, so who came last took no longer than
    the transfer; the others were waiting before it. The i-th call of a name on one rank is the
    i-th on the others; where ranks have unequal numbers of calls, none are matched.
    """
    told = [time.collectives_us for time in times if time.collectives_us is not None]
    if len(told) < 2:
        return None
    transfer_us = wait_us = unmatched_us = 0.0
    for name in dict.fromkeys(name for calls in told for name in calls):
        of_ranks = [calls.get(name, np.zeros(0)) for calls in told]
        all_us = float(sum(calls.sum() for calls in of_ranks))
        if len({len(calls) for calls in of_ranks}) > 1:
            unmatched_us += all_us
            continue
        least_us = len(told) * float(np.minimum.reduce(of_ranks).sum())
        transfer_us += least_us
        wait_us += all_us - least_us
    return {"transfer_us": transfer_us, "wait_us": wait_us, "unmatched_us": unmatched_us}


def _sums(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    sums: defaultdict[Key, float] = defaultdict(float)
    for key, value in pairs:
        sums[key] += value
    return sums


def _descending(sums: Mapping[Key, float]) -> list[tuple[Key, float]]:
    return sorted(sums.items(), key=lambda item: -item[1])


def _share(part_us: float, total_us: float) -> float:
    return part_us / total_us if total_us else 0.0


def write_table(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Writes the table as Parquet, whole or not at all; no rows where nothing was profiled.

    Args:
        path: The file.
        rows: The table.
        about: JSON-able facts about where it comes from.
    """
    metadata = {"schema_version": SCHEMA_VERSION, "kind": "kernels", "about": dict(about)}
    write_rows(path, [asdict(row) for row in rows], _SCHEMA, metadata)
