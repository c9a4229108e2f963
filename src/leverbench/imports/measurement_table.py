"""Tables with the columns of our own measurements.csv, wherever they come from."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leverbench.analysis.measurements import COLUMNS, Row
from leverbench.errors import LeverbenchError
from leverbench.imports.record import Record, RecordedVariant
from leverbench.imports.tables import Line, read_lines

REQUIRED = ("variant", "parent", "session", "workload", "concurrency", "output_tok_per_s")


def is_measurement_table(columns: Sequence[str]) -> bool:
    """Returns whether a table with these columns is one of measurements."""
    return set(REQUIRED) <= set(columns)


def read_measurement_tables(paths: Sequence[Path]) -> Record:
    """Reads the columns of `REQUIRED`, and what else there is of ours, machines included.

    A row is valid unless it says otherwise. A table does not say what its variants changed.

    Raises:
        LeverbenchError: A line is not what it should be, or contradicts another; with the cure.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    parents: dict[str, str | None] = {}
    for line in (line for path in paths for line in read_lines(path, REQUIRED)):
        row = _row(line)
        key = tuple(row[name] for name in ("variant", "session", "workload", "concurrency"))
        if key in rows:
            raise LeverbenchError(
                f"a second row of {key[0]}/s{key[1]}/{key[2]}/c{key[3]}",
                where=line.where,
                cure="A variant has one row a session, workload and concurrency.",
            )
        rows[key] = row
        if parents.setdefault(row["variant"], line.text("parent")) != line.text("parent"):
            raise LeverbenchError(
                f"{row['variant']} has another parent than above",
                where=line.where,
                cure="A variant has one parent, in every row.",
            )
    if unknown := [p for p in parents.values() if p is not None and p not in parents]:
        raise LeverbenchError(
            f"parent {unknown[0]} has no row",
            where=str(paths[0]),
            cure=f"Variants are: {', '.join(parents)}.",
        )
    for name in parents:
        chain: list[str | None] = [name]
        while (above := parents[chain[-1] or name]) is not None:
            if above in chain:
                raise LeverbenchError(
                    f"{above} descends from itself",
                    where=str(paths[0]),
                    cure="Leave the parent empty for what is compared with nothing.",
                )
            chain.append(above)
    unknown_load = {"dataset": None, "input_tokens": None, "output_tokens": None}
    return Record(
        kind="table of measurements",
        variants={name: RecordedVariant(parent) for name, parent in parents.items()},
        workloads=dict.fromkeys((row["workload"] for row in rows.values()), unknown_load),
        rows=list(rows.values()),
    )


def _row(line: Line) -> Row:
    row: Row = {}
    for name, kind in COLUMNS.items():
        if kind == "float64":
            row[name] = line.number(name)
        elif kind == "Int64":
            # Counts, of which some may be 0.
            value = line.number(name)
            row[name] = None if value is None else int(value)
        elif kind == "boolean":
            row[name] = line.flag(name)
        else:
            row[name] = line.text(name)
    for name in ("variant", "workload"):
        row[name] = line.need(name)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", row["workload"]):
        raise LeverbenchError(
            f"workload {row['workload']!r} cannot be part of a file's name",
            where=line.where,
            cure="Use small letters, digits and dashes.",
        )
    for name in ("session", "concurrency"):
        line.need(name)
        row[name] = line.whole(name)
    if row["valid"] is None:
        row["valid"] = True
    if row["valid"] and not row["output_tok_per_s"]:
        raise LeverbenchError(
            "a valid row without output_tok_per_s",
            where=line.where,
            cure="Fill the cell, or say false under valid.",
        )
    machine = {name: cell for name, cell in line.cells.items() if name.startswith("machine_")}
    return row | machine
