"""A campaign noted down by hand: a configuration at a concurrency a line."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverbench.analysis.measurements import Row
from leverbench.errors import LeverbenchError
from leverbench.imports.record import Record, RecordedVariant, workload_name
from leverbench.imports.tables import Line, read_lines

COLUMNS = ("config", "parent", "lever", "concurrency", "output_tok_per_s")
_OPTIONAL = (
    "num_prompts",
    "input_tokens",
    "output_tokens",
    "tpot_ms",
    "ttft_ms",
    "accept_length",
    "note",
)
# "mem-fraction-static 0.70->0.60" in a note: a setting that changed beside the lever.
_CHANGE = re.compile(
    r"([A-Za-z_][\w.-]*)[ =:]+([^\s,;()]+?) ?(?:->|\N{RIGHTWARDS ARROW}) ?([^\s,;()]+)"
)


def is_campaign_table(columns: Sequence[str]) -> bool:
    """Returns whether a table with these columns is such a record."""
    return {"config", "parent", "lever"} <= set(columns)


def read_campaign_tables(paths: Sequence[Path]) -> Record:
    """Reads the columns of `COLUMNS` and, where there are, requests, lengths, times and notes.

    Lever names joined by ``+`` are several levers. A note that tells settings with old and new
    value tells what changed beside the lever.

    Raises:
        LeverbenchError: A line is not what it should be, or contradicts another; with the cure.
    """
    lines = [line for path in paths for line in read_lines(path, COLUMNS, _OPTIONAL)]
    variants = _variants(lines)
    workloads: dict[str, Mapping[str, Any]] = {}
    rows: dict[tuple[str, str, int], Row] = {}
    for line in lines:
        tokens = {key: line.whole(key) for key in ("input_tokens", "output_tokens")}
        name = workload_name(
            *(f"{key[:-7]}-{value}" for key, value in tokens.items() if value is not None)
        )
        workloads[name] = {"dataset": None, **tokens}
        concurrency = line.whole("concurrency")
        if concurrency is None:
            line.need("concurrency")
            continue
        key = (line.need("config"), name, concurrency)
        if key in rows:
            raise LeverbenchError(
                f"a second line of {key[0]} at C={concurrency}",
                where=line.where,
                cure="Keep one, or import a measurements.csv, which has sessions.",
            )
        rows[key] = {
            "variant": key[0],
            "session": 1,
            "workload": name,
            "concurrency": concurrency,
            "valid": True,
            "num_requests": line.whole("num_prompts"),
            "output_tok_per_s": _rate(line),
            "mean_tpot_ms": line.number("tpot_ms"),
            "mean_ttft_ms": line.number("ttft_ms"),
            "accept_length": line.number("accept_length"),
            "detail": line.text("note"),
        }
    return Record("table of a campaign", variants, workloads, list(rows.values()))


def _rate(line: Line) -> float:
    line.need("output_tok_per_s")
    rate = line.number("output_tok_per_s")
    if not rate:
        raise LeverbenchError(
            "an output_tok_per_s of 0",
            where=line.where,
            cure="Remove the line where nothing was measured: no data is not 0.",
        )
    return rate


def _variants(lines: Sequence[Line]) -> dict[str, RecordedVariant]:
    """Returns the configurations, each told by its lines alike."""
    told: dict[str, tuple[str | None, str | None]] = {}
    beside: dict[str, dict[str, tuple[str, str]]] = {}
    first: dict[str, str] = {}
    for line in lines:
        name, says = line.need("config"), (line.text("parent"), line.text("lever"))
        first.setdefault(name, line.where)
        if told.setdefault(name, says) != says:
            raise LeverbenchError(
                f"{name} has another parent or lever than in {first[name]}",
                where=line.where,
                cure="A configuration has one parent and one lever, in every line.",
            )
        found = _CHANGE.findall(line.text("note") or "")
        beside.setdefault(name, {}).update({key: (old, new) for key, old, new in found})
    for name, (parent, _) in told.items():
        chain, above = [name], parent
        while above is not None:
            if above not in told or above in chain:
                raise LeverbenchError(
                    f"parent {above} is not in the record"
                    if above not in told
                    else f"{name} descends from itself",
                    where=first[chain[-1]],
                    cure=f"Configurations are: {', '.join(told)}.",
                )
            chain.append(above)
            above = told[above][0]
    variants = {}
    for name, (parent, lever) in told.items():
        levers = tuple(filter(None, (part.strip() for part in (lever or "").split("+"))))
        pulled = {"lever": (None, " + ".join(levers))} if levers else {}
        changed = {**pulled, **beside[name]} if parent else {}
        variants[name] = RecordedVariant(
            parent, levers if parent else (), changed, beside[name] if parent else {}
        )
    return variants
