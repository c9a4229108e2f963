"""What a variant measured relative to its parent, and whether its lever was in force."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leverbench.analysis.measurements import Row, differences, newest
from leverbench.analysis.settings import (
    MatchedControl,
    Steps,
    as_text,
    beside_the_lever,
    changed_settings,
    changes,
    free_conditions,
    matched_control,
    planned_settings,
)
from leverbench.errors import LeverbenchError
from leverbench.records import read_record
from leverbench.serving.failures import Outcome

METRICS = ("output_tok_per_s", "mean_tpot_ms", "mean_ttft_ms")
GOODPUT = "goodput_request_per_s"


@dataclass(frozen=True)
class Applied:
    """Whether a variant's settings were in force in the servers that measured it.

    Attributes:
        applied: True if every key of the delta was seen in force in every launch of a valid row,
            False if any setting was seen not to be, or no row counts since it was not, None if it
            cannot be shown.
        state: ``applied``, ``not applied`` (what cannot be shown is not), ``not measured``, or
            ``not told`` in a record of others, which has no evidence of launches.
        reason: Why it is not applied; else empty.
        evidence: What was seen of each key of the delta, and in how many launches.
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
        metric: One of `metrics_of` the plan.
        sessions: ``(session, ratio)`` for each session in which both have a valid row, measured
            under the same conditions. Empty where the ratio is withheld.
        not_compared: ``(session, names)`` for each session in which both have a valid row under
            conditions that differ in what is named, such as ``another machine``.
        confounded: More than one lever differs, or recovery made settings differ beside it.
        recovery: These settings, each with both its values; empty where there are none.
        withheld: Why there is no ratio although there may be measurements; None if there may be.
    """

    variant: str
    parent: str
    workload: str
    concurrency: int
    metric: str
    sessions: tuple[tuple[int, float], ...]
    not_compared: tuple[tuple[int, str], ...]
    confounded: bool
    recovery: tuple[str, ...]
    withheld: str | None


@dataclass(frozen=True)
class Spread:
    """How far the sessions of one variant lie apart at one point.

    Attributes:
        variant: The variant.
        workload: The workload.
        concurrency: The concurrency.
        metric: One of `metrics_of` the plan.
        sessions: Number of rows that may be pooled.
        share: Largest over smallest, minus 1; None with fewer than two sessions.
    """

    variant: str
    workload: str
    concurrency: int
    metric: str
    sessions: int
    share: float | None


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
    launches = {server: read_record(path) for server, path in paths.items() if path.exists()}
    for server, launch in launches.items():
        if launch.get("kind") != "launch" or "engine" not in launch:
            raise LeverbenchError(
                "not the evidence of a launch",
                where=str(paths[server]),
                cure="Delete it, and the points that name it: they are measured again.",
            )
    return launches


def applied_levers(
    plan: Mapping[str, Any], rows: Sequence[Row], launches: Mapping[str, Mapping[str, Any]]
) -> dict[str, Applied]:
    """Decides for every variant whether its settings, and those of its parents, were in force.

    Args:
        plan: The campaign's plan.
        rows: Measurements.
        launches: Launch records by server id.
    """
    variants = plan["variants"]
    if plan.get("imported"):
        return dict.fromkeys(variants, Applied(None, "not told", "", ()))
    own = {
        name: _applied(
            changes(variant),
            _levers_settings(plan, name),
            [row for row in rows if row["variant"] == name],
            launches,
        )
        for name, variant in variants.items()
    }

    def inherited(name: str) -> Applied:
        proof, parent = own[name], variants[name]["parent"]
        if parent is None or proof.state == "not applied":
            return proof
        above = inherited(parent)
        if above.state != "not applied":
            return proof
        reason = f"parent {parent} is not applied: {above.reason}"
        return replace(proof, applied=above.applied, state=above.state, reason=reason)

    return {name: inherited(name) for name in variants}


def ratios(
    plan: Mapping[str, Any],
    rows: Sequence[Row],
    applied: Mapping[str, Applied],
    launches: Mapping[str, Mapping[str, Any]],
) -> list[Ratio]:
    """Divides each variant's valid rows by its parent's of the same session and conditions.

    Args:
        plan: The campaign's plan.
        rows: Measurements.
        applied: What `applied_levers` found.
        launches: Launch records by server id, for the recovery steps that they took.

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
        free = free_conditions(variant)
        for workload in plan["workloads"]:
            for concurrency in concurrencies(plan, rows):
                mine, theirs = (
                    [
                        row
                        for row in rows
                        if (row["variant"], row["workload"], row["concurrency"])
                        == (side, workload, concurrency)
                    ]
                    for side in (name, variant["parent"])
                )
                for metric in metrics_of(plan):
                    sessions, not_compared = (
                        ((), ()) if withheld else _pairs(mine, theirs, metric, free)
                    )
                    recovery = _recovery(plan, name, sessions, mine, theirs, launches)
                    found.append(
                        Ratio(
                            variant=name,
                            parent=variant["parent"],
                            workload=workload,
                            concurrency=concurrency,
                            metric=metric,
                            sessions=sessions,
                            not_compared=not_compared,
                            confounded=bool(variant["confounded"] or recovery),
                            recovery=recovery,
                            withheld=withheld,
                        )
                    )
    return found


def matched_controls(
    plan: Mapping[str, Any],
    rows: Sequence[Row],
    launches: Mapping[str, Mapping[str, Any]],
    found: Sequence[Ratio],
) -> dict[str, MatchedControl | None]:
    """Returns the control for each variant with a ratio that recovery confounds.

    Args:
        plan: The campaign's plan.
        rows: Measurements.
        launches: Launch records by server id.
        found: What `ratios` found.

    Returns:
        By variant; None where no control can tell lever and recovery apart.
    """
    servers = {
        (row["variant"], row["session"], row["workload"], row["concurrency"]): row["server_id"]
        for row in rows
        if row["valid"]
    }
    controls: dict[str, MatchedControl | None] = {}
    for ratio in found:
        if not ratio.recovery:
            continue
        for session, _ in ratio.sessions:
            own, parents = (
                _steps(servers[name, session, ratio.workload, ratio.concurrency], launches)
                for name in (ratio.variant, ratio.parent)
            )
            # The last session's steps are the ones that the next launches will take.
            if beside_the_lever(plan, ratio.variant, own, parents):
                controls[ratio.variant] = matched_control(plan, ratio.variant, own, parents)
    return controls


def metrics_of(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the metrics in which variants are compared: goodput where the campaign limits it."""
    return (*METRICS, GOODPUT) if plan.get("goodput") else METRICS


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
                for metric in metrics_of(plan):
                    values = [row[metric] for row in newest(here) if row[metric]]
                    share = max(values) / min(values) - 1 if len(values) > 1 else None
                    found.append(Spread(name, workload, concurrency, metric, len(values), share))
    return found


def _levers_settings(plan: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the planned value of each setting that a variant or one of its parents changes."""
    variants = plan["variants"]
    settings, keys = planned_settings(variants[name]), set[str]()
    above: str | None = name
    while above is not None:
        keys |= variants[above]["delta"].keys()
        above = variants[above]["parent"]
    return {key: settings.get(key) for key in sorted(keys)}


def _steps(server_id: str | None, launches: Mapping[str, Mapping[str, Any]]) -> Steps:
    return launches.get(server_id or "", {}).get("recovery") or ()


def _recovery(
    plan: Mapping[str, Any],
    variant: str,
    sessions: Sequence[tuple[int, float]],
    mine: Sequence[Row],
    theirs: Sequence[Row],
    launches: Mapping[str, Mapping[str, Any]],
) -> tuple[str, ...]:
    """Returns the settings beside the lever in which recovery made compared launches differ."""
    parent = plan["variants"][variant]["parent"]
    own, parents = (
        {row["session"]: _steps(row["server_id"], launches) for row in side if row["valid"]}
        for side in (mine, theirs)
    )
    told: dict[str, None] = {}
    for session, _ in sessions:
        beside = beside_the_lever(plan, variant, own[session], parents[session])
        for key, (below, above) in beside.items():
            told[f"{key}: {as_text(below)} in {parent}, {as_text(above)} in {variant}"] = None
    return tuple(told)


def _applied(
    delta: Mapping[str, tuple[Any, Any]],
    planned: Mapping[str, Any],
    rows: Sequence[Row],
    launches: Mapping[str, Mapping[str, Any]],
) -> Applied:
    """Decides for one variant alone.

    Args:
        delta: What it changes.
        planned: The planned value of each setting that it or one of its parents changes.
        rows: Its measurements.
        launches: Launch records by server id.
    """
    used = dict.fromkeys(row["server_id"] for row in rows if row["valid"])
    if not used:
        missed = [str(row["detail"]) for row in rows if row["outcome"] == Outcome.NOT_APPLIED]
        if missed:
            return Applied(False, "not applied", "; ".join(dict.fromkeys(missed)), ())
        return Applied(None, "not measured", "", ())
    refuted, unproven = [], []
    evidence: Counter[str] = Counter()
    for server in used:
        steps = _steps(server, launches)
        recovered = {
            key: value
            for key, value in changed_settings(steps).items()
            if key in planned and value != planned[key]
        }
        for key, value in recovered.items():
            causes = " and ".join(dict.fromkeys(step["cause"] for step in steps))
            told = f"asked {as_text(planned[key])}, {as_text(value)} after recovery from {causes}"
            refuted.append(f"{key}: {told}")
        levers = launches.get(server, {}).get("levers_applied", ())
        for lever in levers:
            key, verdict = lever["key"], lever["applied"]
            # The server was asked for what recovery chose.
            if key in recovered:
                continue
            if verdict is None and _is_gone(lever, delta.get(key)):
                verdict = True
            asked = "" if verdict else f"asked {as_text(lever['asked'])}, "
            account = f"{key}: {asked}seen {as_text(lever['seen'])} ({lever['evidence']})"
            if key in delta:
                evidence[account] += 1
            if verdict is False:
                refuted.append(account)
            elif verdict is None and key in delta:
                unproven.append(account)
        seen = {lever["key"] for lever in levers}
        if server not in launches and delta:
            unproven.append(f"no evidence of launch {server}")
        else:
            unproven += [f"launch {server} does not mention {k}" for k in delta if k not in seen]
    seen_of_each = tuple(evidence.items())
    if refuted or unproven:
        reason = "; ".join(dict.fromkeys(refuted or unproven))
        return Applied(False if refuted else None, "not applied", reason, seen_of_each)
    return Applied(True, "applied", "", seen_of_each)


def _is_gone(lever: Mapping[str, Any], change: tuple[Any, Any] | None) -> bool:
    """Whether a setting that the variant removes is seen to have another value than before."""
    if change is None or change[1] is not None or lever["seen"] is None:
        return False
    return str(lever["seen"]) != str(change[0])


def _pairs(
    mine: Sequence[Row], theirs: Sequence[Row], metric: str, free: Collection[str]
) -> tuple[tuple[tuple[int, float], ...], tuple[tuple[int, str], ...]]:
    """Returns the ratio of each session that has one, and the sessions that are not compared.

    Args:
        mine: The variant's rows at one workload and concurrency.
        theirs: The parent's.
        metric: One of `metrics_of` the plan.
        free: Names of conditions that may differ.
    """
    pooled, below = newest(mine), newest(theirs)
    parents = {row["session"]: row for row in theirs if row["valid"] and row[metric]}
    compared, not_compared = [], []
    for row in sorted(mine, key=lambda row: int(row["session"])):
        session = row["session"]
        if not (row["valid"] and row[metric] and session in parents):
            continue
        parent = parents[session]
        if differing := [name for name in differences(row, parent) if name not in free]:
            not_compared.append((session, " and ".join(f"another {name}" for name in differing)))
        elif row in pooled and parent in below:
            compared.append((session, row[metric] / parent[metric]))
    return tuple(compared), tuple(not_compared)
