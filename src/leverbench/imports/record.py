"""What readers make of files of others, before it is written as a campaign."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leverbench.analysis.measurements import Row


@dataclass(frozen=True)
class RecordedVariant:
    """A configuration, as far as a record tells.

    Attributes:
        parent: What it is compared with; None for a root.
        levers: Names of the levers that it pulls.
        delta: What differs from the parent, ``{setting: (old, new)}``; None is unset.
        beside: Those of these that belong to no lever.
    """

    parent: str | None
    levers: tuple[str, ...] = ()
    delta: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    beside: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedProfile:
    """A profile, as far as a record tells.

    Attributes:
        name: Its name.
        concurrency: Of the load, where the name says so.
        entries: Its categories, the largest first.
    """

    name: str
    concurrency: int | None
    entries: tuple["RecordedCategory", ...]


@dataclass(frozen=True)
class RecordedCategory:
    """One category of a recorded profile.

    Attributes:
        category: Its name.
        share: Of the time of decode, from 0 to 1.
        kernel: Name of its kernel, or None.
        blocks: Blocks that the kernel is launched with, or None.
        sm_count: Streaming multiprocessors of the GPU, or None.
        tensor_cores: Whether it uses them; None where the record does not tell.
    """

    category: str
    share: float
    kernel: str | None
    blocks: int | None
    sm_count: int | None
    tensor_cores: bool | None


@dataclass(frozen=True)
class Record:
    """All that files of one kind hold.

    Attributes:
        kind: What they are, in words.
        variants: By name, parents before their children.
        workloads: By name: ``dataset``, ``input_tokens``, ``output_tokens``, None if not told.
        rows: Values by column of the table of measurements; columns that are not told are absent.
        model: The model, where it is told.
        engine: The engine and its version, likewise.
        notes: What a reader must know, a sentence each without a full stop.
    """

    kind: str
    variants: Mapping[str, RecordedVariant]
    workloads: Mapping[str, Mapping[str, Any]]
    rows: Sequence[Row]
    model: str | None = None
    engine: str | None = None
    notes: tuple[str, ...] = ()


def workload_name(*parts: object) -> str:
    """Returns a name that is safe in a path, of the parts that are told; ``recorded`` of none."""
    text = "-".join(str(part) for part in parts if part is not None).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "recorded"
