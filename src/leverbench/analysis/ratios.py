"""What a variant measured relative to its parent, and whether its lever was in force."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.analysis.measurements import Row, newest
from leverbench.records import read_record

METRICS = ("output_tok_per_s", "mean_tpot_ms", "mean_ttft_ms")


@dataclass(frozen=True)
class Applied:
    """Whether a variant's delta was in force in the servers that measured it.

    Attributes:
        applied: True if every key was seen in force in every launch of a valid row, False if one
            was seen not to be, None if it cannot be shown.
        state: ``applied``, ``not applied`` (what cannot be shown is not) or ``not measured``.
        reason: Why it is not applied; else empty.
        evidence: What was seen of each key, and in how many launches.
    """

    applied: bool | None
    state: str
    reason: str
    evidence: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Ratio:
    """A variant over its parent, at one workload and concurrency, in one metric.

    Attributes:
        variant: The variant.
        parent: What it is divided by.
        workload: The workload of both.
        concurrency: The concurrency of both.
        metric: One of `METRICS`.
        sessions: ``(session, ratio)`` for each session in which both have a valid row of one
            protocol. Empty where the ratio is withheld.
        mean: Geometric mean over the sessions, None where there is none.
        low: Smallest of the sessions. With `high` a range, not a confidence interval.
        high: Largest of the sessions.
        confounded: More than one lever differs.
        withheld: Why there is no ratio although there may be measurements; None if there may be.
    """

    variant: str
    parent: str
    workload: str
    concurrency: int
    metric: str
    sessions: tuple[tuple[int, float], ...]
    mean: float | None
    low: float | None
    high: float | None
    confounded: bool
    withheld: str | None


@dataclass(frozen=True)
class Spread:
    """How far the sessions of one variant lie apart at one point.

    Attributes:
        variant: The variant.
        workload: The workload.
        concurrency: The concurrency.
        metric: One of `METRICS`.
        sessions: Number of valid rows of the newest protocol.
        share: Largest over smallest, minus 1; None with fewer than two sessions.
    """

    variant: str
    workload: str
    concurrency: int
    metric: str
    sessions: int
    share: float | None


def changes(variant: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns a planned variant's delta as ``{"args.dtype": (old, new)}``; None is unset."""
    flat: dict[str, tuple[Any, Any]] = {}
    for section, content in (variant.get("delta") or {}).items():
        if isinstance(content, dict):
            flat |= {f"{section}.{key}": (old, new) for key, (old, new) in content.items()}
        else:
            flat[section] = (content[0], content[1])
    return flat


def as_text(value: Any) -> str:
    """Returns a setting as a person would write it; None is ``unset``."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def read_launches(rows: Sequence[Row], launches_dir: Path) -> dict[str, dict[str, Any]]:
    """Reads the evidence of the launches that rows name, as far as it exists.

    Returns:
        Launch records by server id, in the order of the rows.

    Raises:
        LeverbenchError: A record is truncated or foreign.
    """
    paths = {
        row["server_id"]: launches_dir / f"{row['server_id']}.json"
        for row in rows
        if row["server_id"]
    }
    return {server: read_record(path) for server, path in paths.items() if path.exists()}


def applied_levers(
    plan: Mapping[str, Any], rows: Sequence[Row], launches: Mapping[str, Mapping[str, Any]]
) -> dict[str, Applied]:
    """Decides for every variant with a parent whether its delta was in force.

    Args:
        plan: The campaign's plan.
        rows: Measurements.
        launches: Launch records by server id.
    """
    return {
        name: _applied(
            list(changes(variant)),
            [row for row in rows if row["variant"] == name],
            launches,
        )
        for name, variant in plan["variants"].items()
        if variant["parent"] is not None
    }


def ratios(
    plan: Mapping[str, Any], rows: Sequence[Row], applied: Mapping[str, Applied]
) -> list[Ratio]:
    """Divides each variant's valid rows by its parent's of the same session and protocol.

    Returns:
        One entry for each variant with a parent, workload, concurrency (of plan or rows) and
        metric, in that order.
    """
    found = []
    for name, variant in plan["variants"].items():
        if variant["parent"] is None:
            continue
        proof = applied[name]
        withheld = f"not applied: {proof.reason}" if proof.state == "not applied" else None
        for workload in plan["workloads"]:
            for concurrency in concurrencies(plan, rows):
                here = [
                    row
                    for row in rows
                    if row["workload"] == workload and row["concurrency"] == concurrency
                ]
                for metric in METRICS:
                    sessions = () if withheld else _pairs(here, name, variant["parent"], metric)
                    values = [value for _, value in sessions]
                    found.append(
                        Ratio(
                            variant=name,
                            parent=variant["parent"],
                            workload=workload,
                            concurrency=concurrency,
                            metric=metric,
                            sessions=sessions,
                            mean=_geometric_mean(values),
                            low=min(values, default=None),
                            high=max(values, default=None),
                            confounded=bool(variant.get("confounded")),
                            withheld=withheld,
                        )
                    )
    return found


def concurrencies(plan: Mapping[str, Any], rows: Sequence[Row]) -> list[int]:
    """Returns the concurrencies of the ladder and of the rows, in ascending order."""
    return sorted({int(c) for c in plan["ladder"]} | {row["concurrency"] for row in rows})


def spreads(plan: Mapping[str, Any], rows: Sequence[Row]) -> list[Spread]:
    """Returns how far sessions lie apart, for each variant, workload, concurrency and metric."""
    found = []
    for name in plan["variants"]:
        for workload in plan["workloads"]:
            for concurrency in concurrencies(plan, rows):
                here = [
                    row
                    for row in rows
                    if (row["variant"], row["workload"], row["concurrency"])
                    == (name, workload, concurrency)
                ]
                for metric in METRICS:
                    values = [row[metric] for row in newest(here) if row[metric]]
                    share = max(values) / min(values) - 1 if len(values) > 1 else None
                    found.append(Spread(name, workload, concurrency, metric, len(values), share))
    return found


def _applied(
    keys: Sequence[str], rows: Sequence[Row], launches: Mapping[str, Mapping[str, Any]]
) -> Applied:
    # A launch that gave no valid row counts only where it shows that a lever was not in force.
    used = dict.fromkeys(row["server_id"] for row in rows if row["valid"])
    others = dict.fromkeys(row["server_id"] for row in rows if row["server_id"] not in used)
    refuted, unproven = [], []
    evidence: Counter[str] = Counter()
    for server in [*used, *others]:
        seen = {lever["key"]: lever for lever in launches.get(server, {}).get("levers_applied", ())}
        for key in keys:
            if server not in launches:
                account, verdict = f"no evidence of launch {server}", None
            elif key not in seen:
                account, verdict = f"launch {server} does not mention {key}", None
            else:
                lever = seen[key]
                verdict = lever["applied"]
                asked = "" if verdict else f"asked {as_text(lever['asked'])}, "
                account = f"{key}: {asked}seen {as_text(lever['seen'])} ({lever['evidence']})"
                evidence[account] += 1
            if verdict is False:
                refuted.append(account)
            elif verdict is None and server in used:
                unproven.append(account)
    told = tuple(evidence.items())
    if refuted:
        return Applied(False, "not applied", "; ".join(dict.fromkeys(refuted)), told)
    if not used:
        return Applied(None, "not measured", "", told)
    if unproven:
        return Applied(None, "not applied", "; ".join(dict.fromkeys(unproven)), told)
    return Applied(True, "applied", "", told)


def _pairs(
    rows: Sequence[Row], variant: str, parent: str, metric: str
) -> tuple[tuple[int, float], ...]:
    """Returns the ratio of each session in which both rows are valid and of one protocol."""
    usable = [row for row in rows if row["valid"] and row[metric]]
    below = {
        (row["session"], row["protocol"]): row[metric] for row in usable if row["variant"] == parent
    }
    paired = [
        row
        for row in usable
        if row["variant"] == variant and (row["session"], row["protocol"]) in below
    ]
    return tuple(
        (row["session"], row[metric] / below[row["session"], row["protocol"]])
        for row in sorted(newest(paired), key=lambda row: int(row["session"]))
    )


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None
