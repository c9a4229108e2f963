"""What a report says, as values: worked out once, for the page and for the findings."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.analysis.measurements import (
    Hole,
    Row,
    as_rows,
    differences,
    holes,
    newest,
    planned_points,
    read_measurements,
)
from leverbench.analysis.ratios import (
    Applied,
    Ratio,
    Spread,
    applied_levers,
    ratios,
    read_launches,
    spreads,
)
from leverbench.records import read_record


@dataclass(frozen=True)
class Best:
    """The point with the greatest mean output rate over its sessions."""

    variant: str
    workload: str
    concurrency: int
    output_tok_per_s: float
    sessions: int


@dataclass(frozen=True)
class Summary:
    """Everything that a report shows.

    Attributes:
        plan: The campaign's plan.
        rows: Measurements, None where there is no data.
        launches: Launch evidence by server id.
        applied: By variant.
        ratios: Each variant over its parent.
        spreads: Each variant's sessions against each other.
        holes: Planned points without a valid row.
        planned: Number of planned points.
        measured: Number of these with a valid row.
        best: The point with the greatest output rate, among variants that were not seen to lack a
            setting; None if there is none.
        machines: The values seen of each entry of the machine's fingerprint.
        order: ``(variant, session)`` in the order of their first rows.
    """

    plan: Mapping[str, Any]
    rows: Sequence[Row]
    launches: Mapping[str, Mapping[str, Any]]
    applied: Mapping[str, Applied]
    ratios: Sequence[Ratio]
    spreads: Sequence[Spread]
    holes: Sequence[Hole]
    planned: int
    measured: int
    best: Best | None
    machines: Mapping[str, Sequence[str]]
    order: Sequence[tuple[str, int]]

    @property
    def valid(self) -> list[Row]:
        """The rows that figures are made from."""
        return [row for row in self.rows if row["valid"]]

    @property
    def is_cpu(self) -> bool:
        """Whether every machine that measured is a CPU."""
        return list(self.machines.get("device", ())) == ["cpu"]

    @property
    def compared(self) -> list[str]:
        """The variants that have a parent."""
        return [name for name, variant in self.plan["variants"].items() if variant["parent"]]

    def pooled(self, variant: str, workload: str, concurrency: int) -> list[Row]:
        """Returns the rows that a variant's figures at a point are made from."""
        cell = (variant, workload, concurrency)
        return newest([row for row in self.rows if _cell(row) == cell])

    def unlike_newest(self, row: Row) -> list[str]:
        """Returns in which conditions a valid row differs from the rows that are pooled."""
        return differences(row, self.pooled(*_cell(row))[0]) if row["valid"] else []

    def point_count(self, kind: str) -> int:
        """Returns the number of points in holes of a kind."""
        return sum(len(hole.concurrencies) for hole in self.holes if hole.kind == kind)


def summarise(plan_path: Path, measurements_path: Path, launches_dir: Path) -> Summary:
    """Reads a campaign's results and works out what the report says.

    Raises:
        LeverbenchError: A file is truncated or foreign.
    """
    plan = read_record(plan_path)
    rows = as_rows(read_measurements(measurements_path))
    launches = read_launches(rows, launches_dir)
    applied = applied_levers(plan, rows, launches)
    planned = planned_points(plan)
    valid = {
        (row["variant"], row["session"], row["workload"], row["concurrency"])
        for row in rows
        if row["valid"]
    }
    started = sorted(
        (row["started_at"], row["variant"], row["session"]) for row in rows if row["started_at"]
    )
    return Summary(
        plan=plan,
        rows=rows,
        launches=launches,
        applied=applied,
        ratios=ratios(plan, rows, applied),
        spreads=spreads(plan, rows),
        holes=holes(plan, rows),
        planned=len(planned),
        measured=len(valid.intersection(planned)),
        best=_best([row for row in rows if applied[row["variant"]].state != "not applied"]),
        machines={
            name.removeprefix("machine_"): sorted({row[name] for row in rows if row[name]})
            for name in (rows[0] if rows else ())
            if name.startswith("machine_")
        },
        order=list(dict.fromkeys((variant, session) for _, variant, session in started)),
    )


def row_name(row: Mapping[str, Any]) -> str:
    """Returns a row's name: its record's path below the campaign, without the suffix."""
    return f"{row['variant']}/s{row['session']}/{row['workload']}/c{row['concurrency']}"


def _cell(row: Row) -> tuple[str, str, int]:
    return row["variant"], row["workload"], row["concurrency"]


def _best(rows: Sequence[Row]) -> Best | None:
    cells: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault(_cell(row), []).append(row)
    found = []
    for cell, members in cells.items():
        values = [r["output_tok_per_s"] for r in newest(members) if r["output_tok_per_s"]]
        if values:
            found.append(Best(*cell, statistics.fmean(values), len(values)))
    return max(found, key=lambda best: best.output_tok_per_s, default=None)
