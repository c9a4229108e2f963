"""The table of a profile: time by operation and category, and what stands out in it."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import yaml

from leverbench.errors import LeverbenchError
from leverbench.parquet import write_rows
from leverbench.profiling.trace import Loop, Operation, Trace
from leverbench.records import SCHEMA_VERSION

Key = TypeVar("Key", bound=Hashable)

CATEGORIES = Path(__file__).with_name("categories.yaml")
OTHER = "other"
# The engine's own code between operations.
HOST_CODE = "host-code"
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
    """

    rank: str
    device: str
    name: str
    category: str
    in_loop: bool
    calls: int
    self_us: float
    share: float


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
    ]
)


def category(operation: Operation) -> str:
    """Returns an operation's category: its loop's, or that of the first pattern that is found."""
    if operation.loop is not None:
        return operation.loop
    for name, pattern in _rules()[0]:
        if pattern.search(operation.name):
            return name
    return HOST_CODE if operation.annotation else OTHER


def loops() -> tuple[Loop, ...]:
    """Returns the loops whose time belongs to the category of the operation in them."""
    return _rules()[1]


@cache
def _rules() -> tuple[tuple[tuple[str, re.Pattern[str]], ...], tuple[Loop, ...]]:
    try:
        entries = yaml.safe_load(CATEGORIES.read_text(encoding="utf-8"))
        patterns = tuple(
            (str(entry["category"]), re.compile(pattern))
            for entry in entries
            if "loop" not in entry
            for pattern in entry["patterns"]
        )
        found = tuple(
            Loop(str(entry["category"]), re.compile(entry["loop"]), re.compile(entry["fence"]))
            for entry in entries
            if "loop" in entry
        )
    except (OSError, yaml.YAMLError, re.error, LookupError, TypeError) as error:
        raise LeverbenchError(
            f"unusable patterns ({error})",
            where=str(CATEGORIES),
            cure="Each entry has a category and its patterns, or a loop and its fence: Python"
            " regular expressions.",
        ) from None
    return patterns, found


def make_table(traces: Mapping[str, Trace]) -> list[Row]:
    """Returns the rows of all ranks: by rank and device, the longest first."""
    rows = []
    for rank, trace in traces.items():
        total_us = _sums((operation.device, operation.self_us) for operation in trace.operations)
        rows += [
            Row(
                rank=rank,
                device=operation.device,
                name=operation.name,
                category=category(operation),
                in_loop=operation.loop is not None,
                calls=operation.calls,
                self_us=operation.self_us,
                share=_share(operation.self_us, total_us[operation.device]),
            )
            for operation in trace.operations
        ]
    return sorted(rows, key=lambda row: (row.rank, row.device, -row.self_us, row.name))


def summarise(rows: Sequence[Row], device: str) -> dict[str, Any]:
    """Returns the total, the categories and the longest operations of a device, over all ranks.

    Args:
        rows: The table.
        device: ``cpu`` or ``gpu``; rows of the other one do not count.
    """
    counted = [row for row in rows if row.device == device]
    total_us = sum(row.self_us for row in counted)
    categories = _sums((row.category, row.self_us) for row in counted)
    in_loops = _sums((row.category, row.self_us) for row in counted if row.in_loop)
    operations = _sums(((row.category, row.name), row.self_us) for row in counted)
    calls = _sums(((row.category, row.name), row.calls) for row in counted)
    return {
        "total_us": total_us,
        "categories": [
            {
                "category": name,
                "share": _share(time_us, total_us),
                "in_loops": _share(in_loops.get(name, 0.0), total_us),
                "self_us": time_us,
            }
            for name, time_us in _descending(categories)
        ],
        "top": [
            {
                "name": name,
                "category": of,
                "calls": int(calls[of, name]),
                "self_us": time_us,
                "share": _share(time_us, total_us),
            }
            for (of, name), time_us in _descending(operations)[:_TOP]
        ],
        "other_top": [name for (of, name), _ in _descending(operations) if of == OTHER][:_TOP],
    }


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
