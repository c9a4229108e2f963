"""Output files of the engine's own benchmark: a run a line."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.analysis.measurements import Row
from leverbench.engines.bench_records import (
    is_bench_line,
    lever_family,
    load_of,
    measured_values,
    server_of,
)
from leverbench.errors import LeverbenchError
from leverbench.imports.record import Record, RecordedVariant, workload_name
from leverbench.imports.tables import read_text

# Repetitions that differ by more than this share are told of: one of them was cold, or disturbed.
_APART = 0.1
# At the end of a tag or of a file's name, as in ``mtp-c16``.
_CONCURRENCY = re.compile(r"[-_.]?c([1-9][0-9]*)$", re.IGNORECASE)


@dataclass(frozen=True)
class _Run:
    """One line: its row without a session, and what the server told."""

    where: str
    row: Row
    load: Mapping[str, Any]
    server: tuple[str | None, str | None, dict[str, Any]]


def looks_like_lines(path: Path) -> bool:
    """Returns whether a file begins as a JSON object does."""
    return read_text(path).lstrip().startswith("{")


def read_bench_lines(paths: Sequence[Path], parent: str | None, fresh_launches: bool) -> Record:
    """Reads the files together.

    The tag names the variant, else the file does; ``-c16`` at its end is the concurrency, which is
    not repeated in the variant's name. What servers told of their settings is the delta.

    Args:
        paths: The files.
        parent: The tag that the others are compared with; None for the first.
        fresh_launches: Whether lines of one tag and concurrency are from a launch each. Else they
            are repetitions on one server, which make one point together.

    Raises:
        LeverbenchError: A line is not of that benchmark, or does not tell its concurrency.
    """
    runs: list[_Run] = []
    notes: list[str] = []
    for path in paths:
        found, truncated = _read(path)
        runs += found
        if truncated:
            notes.append(
                f"{path.name}: {truncated} truncated"
                f" {'line is' if truncated == 1 else 'lines are'} left out"
            )
    names = list(dict.fromkeys(run.row["variant"] for run in runs))
    root = names[0] if parent is None else parent
    if root not in names:
        raise LeverbenchError(
            f"--parent {root}: no line has this tag", cure=f"Tags are: {', '.join(names)}."
        )
    ordered = [root, *(name for name in names if name != root)]
    groups: dict[tuple[str, str, int], list[_Run]] = {}
    for name in ordered:
        for run in runs:
            if run.row["variant"] == name:
                key = (name, run.row["workload"], run.row["concurrency"])
                groups.setdefault(key, []).append(run)
    rows: list[Row] = []
    for group in groups.values():
        if fresh_launches:
            rows += [{**run.row, "session": n} for n, run in enumerate(group, start=1)]
        else:
            rows.append(_pooled(group))
            notes += _apart(group)
    models = dict.fromkeys(run.server[0] for run in runs if run.server[0])
    engines = dict.fromkeys(run.server[1] for run in runs if run.server[1])
    return Record(
        kind="lines of the engine's benchmark",
        variants={name: _variant(runs, name, None if name == root else root) for name in ordered},
        workloads={
            run.row["workload"]: {
                key: run.load[key] for key in ("dataset", "input_tokens", "output_tokens")
            }
            for run in runs
        },
        rows=rows,
        model=" / ".join(models) or None,
        engine=" / ".join(engines) or None,
        notes=tuple(notes),
    )


def _read(path: Path) -> tuple[list[_Run], int]:
    """Returns the runs of a file, and how many of its lines are cut off."""
    runs, truncated = [], 0
    for number, text in enumerate(read_text(path).splitlines(), start=1):
        where = f"{path}:{number}"
        if not text.strip():
            continue
        try:
            # Infinity, which is no JSON, is what the tool writes for a rate without a limit.
            line = json.loads(text)
        except ValueError as error:
            if text.lstrip().startswith("{") and not text.rstrip().endswith("}"):
                truncated += 1
                continue
            raise LeverbenchError(
                f"not a line of JSON ({error})", where=where, cure="Remove the line."
            ) from None
        if not isinstance(line, dict) or not is_bench_line(line):
            raise LeverbenchError(
                "not a line of the engine's benchmark: no backend, or no output throughput",
                where=where,
                cure="Give files that its --output-file wrote.",
            )
        runs.append(_run(line, path, where))
    if not runs:
        raise LeverbenchError(
            f"no whole line ({truncated} truncated)",
            where=str(path),
            cure="Measure again: nothing can be read from it.",
        )
    return runs, truncated


def _run(line: Mapping[str, Any], path: Path, where: str) -> _Run:
    load, tag = load_of(line), line.get("tag")
    name = tag.strip() if isinstance(tag, str) and tag.strip() else path.stem
    concurrency = load["concurrency"]
    ending = _CONCURRENCY.search(name)
    if ending and concurrency in (None, int(ending[1])) and ending.start():
        name, concurrency = name[: ending.start()], int(ending[1])
    if concurrency is None:
        raise LeverbenchError(
            "the line does not tell its concurrency",
            where=where,
            cure='Add "max_concurrency": 16 to the line, or let the file end in -c16.jsonl.',
        )
    rate = load["request_per_s"]
    workload = workload_name(
        load["dataset"],
        load["input_tokens"],
        load["output_tokens"],
        None if load["fixed"] or load["input_tokens"] is None else "varied",
        None if rate is None else f"rate-{rate:g}",
    )
    values = measured_values(line)
    if not values["output_tok_per_s"]:
        raise LeverbenchError(
            "an output throughput of 0",
            where=where,
            cure="Remove the line: no request of this run gave a token.",
        )
    row: Row = {
        "variant": name,
        "session": 1,
        "workload": workload,
        "concurrency": concurrency,
        "valid": True,
        **values,
    }
    return _Run(where, row, load, server_of(line))


def _pooled(group: Sequence[_Run]) -> Row:
    """Returns repetitions on one server as one row.

    Rates are those of all runs together: all tokens over all time. Means of times are weighted by
    requests; percentiles of several runs cannot be had from those of each.
    """
    rows = [run.row for run in group]
    if len(rows) == 1:
        return rows[0]

    def total(column: str) -> float | None:
        values = [row[column] for row in rows]
        return None if None in values else sum(values)

    duration_s, requests, tokens = (
        total(column) for column in ("duration_s", "num_requests", "output_tokens")
    )
    if not (duration_s and requests and tokens):
        raise LeverbenchError(
            f"{len(rows)} lines of {rows[0]['variant']} at C={rows[0]['concurrency']} without"
            " duration, requests or tokens cannot be added up",
            where=group[-1].where,
            cure="Keep one of them, or say --fresh-launches if each is from a launch of its own.",
        )
    pooled = {name: None if re.match(r"p\d\d_", name) else value for name, value in rows[0].items()}
    for name in [name for name in pooled if name.startswith("mean_")] + ["accept_length"]:
        values = [row[name] for row in rows]
        pooled[name] = (
            None
            if None in values
            else sum(row[name] * row["num_requests"] for row in rows) / requests
        )
    rates = ", ".join(f"{row['output_tok_per_s']:,.1f}" for row in rows)
    return {
        **pooled,
        "output_tok_per_s": tokens / duration_s,
        "request_per_s": requests / duration_s,
        "duration_s": duration_s,
        "num_requests": requests,
        "delivered_concurrency": None,
        "detail": f"{len(rows)} runs taken together as repetitions on one server: {rates} tok/s",
    }


def _apart(group: Sequence[_Run]) -> list[str]:
    """Returns a note where repetitions on one server are far apart."""
    rates = [run.row["output_tok_per_s"] for run in group]
    share = max(rates) / min(rates) - 1
    if share <= _APART:
        return []
    row = group[0].row
    return [
        f"{row['variant']}, {row['workload']}, C={row['concurrency']}: {len(group)} repetitions on"
        f" one server differ by {share:.0%} in output tok/s, so one of them was cold or disturbed"
    ]


def _variant(runs: Sequence[_Run], name: str, parent: str | None) -> RecordedVariant:
    """Returns a variant with what its servers told otherwise than its parent's."""
    if parent is None:
        return RecordedVariant(None)
    own, theirs = (
        next((run.server[2] for run in runs if run.row["variant"] == tag and run.server[2]), None)
        for tag in (name, parent)
    )
    if own is None or theirs is None:
        return RecordedVariant(parent)
    delta = {
        key: (theirs.get(key), own.get(key))
        for key in sorted({*own, *theirs})
        if theirs.get(key) != own.get(key)
    }
    return RecordedVariant(parent, tuple(dict.fromkeys(map(lever_family, delta))), delta)
