"""What a report says, as values: worked out once, for the page and for the findings."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.analysis.agreement import Agreement, agreement_of
from leverbench.analysis.blocks import Drift, drift
from leverbench.analysis.ceilings import (
    CategoryCeiling,
    Ceiling,
    Shares,
    category_ceilings,
    ceilings,
)
from leverbench.analysis.differences import (
    Explained,
    Measured,
    ProfileDifference,
    explain,
    profile_differences,
)
from leverbench.analysis.interactions import Interaction, interactions, squares
from leverbench.analysis.measurements import (
    Hole,
    Row,
    as_rows,
    differences,
    holes,
    newest,
    placement_text,
    planned_points,
    read_measurements,
)
from leverbench.analysis.predictions import (
    KernelResults,
    Prediction,
    new_kernels,
    predictions,
    read_kernels,
)
from leverbench.analysis.ratios import (
    Applied,
    Ratio,
    Spread,
    applied_levers,
    concurrencies,
    matched_controls,
    ratios,
    read_launches,
    spreads,
)
from leverbench.analysis.settings import MatchedControl, steps_text
from leverbench.analysis.verdicts import PRIMARY, Verdict, campaign_design, judge
from leverbench.records import read_record
from leverbench.report.profiles import (
    ProfileHole,
    ProfileTable,
    decode_shares,
    read_profiles,
)
from leverbench.serving.failures import SUCCESSES


@dataclass(frozen=True)
class Best:
    """The point with the greatest mean output rate over its sessions."""

    variant: str
    workload: str
    concurrency: int
    output_tok_per_s: float
    sessions: int


@dataclass(frozen=True)
class Gain:
    """What a variant measured over its parent, as old time over new.

    Attributes:
        ratio: The estimate.
        low: Lower end of its interval; None where the noise is not known.
        high: Upper end.
        how: The two figures that it is had from.
    """

    ratio: float
    low: float | None
    high: float | None
    how: str


@dataclass(frozen=True)
class Summary:
    """Everything that a report shows.

    Attributes:
        plan: The campaign's plan.
        rows: Measurements, None where there is no data.
        launches: Launch evidence by server id.
        applied: By variant.
        agreement: How far answers agree with the parent's, by variant with a parent.
        ratios: Each variant over its parent, session by session.
        verdicts: Each variant against its parent, by variant, workload, concurrency and metric.
        level: Of the verdicts.
        interactions: Of pairs of levers, where the campaign has both one by one and together.
        drift: Of output tok/s over the campaign; None where it cannot be estimated.
        spreads: Each variant's sessions against each other.
        controls: By variant whose ratio recovery confounds: what tells lever and recovery apart.
        holes: Planned points without a valid row.
        planned: Number of planned points.
        measured: Number of these with a valid row.
        best: The point with the greatest output rate, among variants that were not seen to lack a
            setting; None if there is none.
        failed_sessions: By variant and session that has no server: how it ended, and what
            recovery steps were tried.
        profiles: A table for each workload and concurrency that is profiled.
        shares: Shares of decode time by category, a record's profiles included.
        ceilings: What levers can give at most, where a profile tells.
        category_ceilings: What each category of each profile can, were it gone altogether.
        profile_differences: Each variant's profile against its parent's.
        kernels: The tunable kernels that servers are given, as far as they are built.
        predictions: What these should give, where a profile tells.
        machines: The values seen of each entry of the machine's fingerprint.
        versions: The values seen of each version, of where servers ran, and of recovery steps.
        order: ``(variant, session)`` in the order of their first rows.
    """

    plan: Mapping[str, Any]
    rows: Sequence[Row]
    launches: Mapping[str, Mapping[str, Any]]
    applied: Mapping[str, Applied]
    agreement: Mapping[str, Agreement]
    ratios: Sequence[Ratio]
    verdicts: Mapping[tuple[str, str, int, str], Verdict]
    level: float
    interactions: Sequence[Interaction]
    drift: Drift | None
    spreads: Sequence[Spread]
    controls: Mapping[str, MatchedControl | None]
    holes: Sequence[Hole]
    failed_sessions: Mapping[tuple[str, int], str]
    profiles: Sequence[ProfileTable]
    shares: Sequence[Shares]
    ceilings: Sequence[Ceiling]
    category_ceilings: Sequence[CategoryCeiling]
    profile_differences: Sequence[ProfileDifference]
    kernels: Sequence[KernelResults]
    predictions: Sequence[Prediction]
    planned: int
    measured: int
    best: Best | None
    machines: Mapping[str, Sequence[str]]
    versions: Mapping[str, Sequence[str]]
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

    @property
    def attached(self) -> bool:
        """Whether others started the servers."""
        return list(self.plan["devices"]) == ["attached"]

    @property
    def squares(self) -> list[tuple[str, str, str, str]]:
        """The pairs of levers that the campaign pulls one by one and together."""
        return squares(self.plan)

    def noise_floor(self, workload: str, concurrency: int) -> float | None:
        """Returns the smallest gain that these sessions can tell from none, as a share.

        Half the width of the interval of a variant that is no noisier than the others, without
        the correction for several comparisons; None where the noise is not known.
        """
        widths = [
            (verdict.high / verdict.low) ** 0.5 - 1
            for (_, *cell, metric), verdict in self.verdicts.items()
            if metric == PRIMARY and cell == [workload, concurrency]
            if verdict.low and verdict.high and not (verdict.noisy or verdict.unblocked)
        ]
        return statistics.median(widths) if widths else None

    @property
    def imported(self) -> Mapping[str, Any] | None:
        """What an import noted of the record of others that it read; None for a campaign."""
        return self.plan.get("imported")

    @property
    def recovered(self) -> dict[str, list[str]]:
        """By variant: the settings beside its lever in which recovery made it differ."""
        found: dict[str, dict[str, None]] = {}
        for ratio in self.ratios:
            if ratio.recovery:
                found.setdefault(ratio.variant, {}).update(dict.fromkeys(ratio.recovery))
        return {variant: list(settings) for variant, settings in found.items()}

    @property
    def profile_holes(self) -> list[ProfileHole]:
        """The planned profiles that there are not."""
        return [hole for table in self.profiles for hole in table.holes.values()]

    @property
    def late(self) -> dict[str, list[int]]:
        """The sessions of each variant that was added after the first block."""
        numbers: dict[str, list[int]] = {}
        for variant, session in self.plan["order"]:
            numbers.setdefault(variant, []).append(session)
        return {variant: sorted(own) for variant, own in numbers.items() if min(own) > 1}

    def pooled(self, variant: str, workload: str, concurrency: int) -> list[Row]:
        """Returns the rows that a variant's figures at a point are made from."""
        cell = (variant, workload, concurrency)
        return newest([row for row in self.rows if _cell(row) == cell])

    def mean(self, metric: str, variant: str, workload: str, concurrency: int) -> float | None:
        """Returns a metric's mean over the sessions of a point; None where there is no data."""
        pooled = self.pooled(variant, workload, concurrency)
        values = [row[metric] for row in pooled if row[metric] is not None]
        return statistics.fmean(values) if values else None

    def gain(self, variant: str, workload: str, concurrency: int) -> Gain | None:
        """Returns what a variant gains over its parent at a point; None where nothing tells.

        Per token where that is known: shares of profiles are of decode time.
        """
        point = (variant, workload, concurrency)
        tpot = self.verdicts.get((*point, "mean_tpot_ms"))
        timed = tpot is not None and tpot.ratio is not None
        metric = "mean_tpot_ms" if timed else PRIMARY
        verdict = self.verdicts.get((*point, metric))
        if verdict is None or verdict.ratio is None:
            return None
        before, after = (
            self.mean(metric, name, workload, concurrency) for name in (verdict.parent, variant)
        )
        if before is None or after is None:
            return None
        if timed:
            how = f"TPOT {before:.4g} to {after:.4g} ms"
            return Gain(1 / verdict.ratio, _inverse(verdict.high), _inverse(verdict.low), how)
        how = f"{before:,.1f} to {after:,.1f} tok/s"
        return Gain(verdict.ratio, verdict.low, verdict.high, how)

    def explained(self, difference: ProfileDifference) -> Explained | None:
        """Returns what two profiles explain of the measured TPOTs; None where either is missing."""
        at = (difference.workload, difference.concurrency)
        verdict = self.verdicts.get((difference.variant, *at, "mean_tpot_ms"))
        before, after = (
            self.mean("mean_tpot_ms", name, *at) for name in (difference.parent, difference.variant)
        )
        if verdict is None or verdict.ratio is None or not (before and after):
            return None
        # A decode step of speculation gives a request as many tokens as it accepts.
        tokens = (
            self.mean("accept_length", name, *at) or 1.0
            for name in (difference.parent, difference.variant)
        )
        measured = Measured(before, after, verdict.ratio, verdict.low, verdict.high, *tokens)
        return explain(difference, measured)

    def unlike_newest(self, row: Row) -> list[str]:
        """Returns in which conditions a valid row differs from the rows that are pooled."""
        return differences(row, self.pooled(*_cell(row))[0]) if row["valid"] else []

    def point_count(self, kind: str) -> int:
        """Returns the number of points in holes of a kind."""
        return sum(len(hole.concurrencies) for hole in self.holes if hole.kind == kind)


def summarise(
    plan_path: Path,
    measurements_path: Path,
    launches_dir: Path,
    profile_paths: Sequence[Path],
) -> Summary:
    """Reads a campaign's results and works out what the report says.

    Beside these files it reads the records of the plan's sessions, from the plan's folder, and
    those of its kernels, from the project's folder: the plan is ``results/{campaign}/plan.json``.

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
    found = ratios(plan, rows, applied, launches)
    agreement = agreement_of(plan, launches)
    design = campaign_design(plan, applied, agreement, found)
    verdicts = {
        # What is not measured at all has no verdict, and its place in the tables.
        (r.variant, r.workload, r.concurrency, r.metric): Verdict(
            r.variant, r.parent, r.workload, r.concurrency, r.metric, withheld=r.withheld
        )
        for r in found
    } | {(v.variant, v.workload, v.concurrency, v.metric): v for v in judge(rows, design)}
    profiles = read_profiles(plan, profile_paths)
    shares = decode_shares(plan, profiles)
    kernels = read_kernels(plan, plan_path.parent / "../..")
    new = new_kernels(plan, kernels)
    touches = {name: {one.name: one.touches for one in given} for name, given in new.items()}
    bounds = ceilings(plan, concurrencies(plan, rows), shares, touches)
    return Summary(
        plan=plan,
        rows=rows,
        launches=launches,
        applied=applied,
        agreement=agreement,
        ratios=found,
        verdicts=verdicts,
        level=design.level,
        interactions=interactions(plan, rows, design),
        drift=_drift(rows),
        spreads=spreads(plan, rows),
        controls=matched_controls(plan, rows, launches, found),
        holes=holes(plan, rows),
        failed_sessions=_failed_sessions(plan, plan_path.parent),
        profiles=profiles,
        shares=shares,
        ceilings=bounds,
        category_ceilings=category_ceilings(shares),
        profile_differences=profile_differences(
            plan,
            {
                (variant, table.workload, table.concurrency): profile.times
                for table in profiles
                for variant, profile in table.profiles.items()
            },
        ),
        kernels=list(kernels.values()),
        predictions=predictions(bounds, new),
        planned=len(planned),
        measured=len(valid.intersection(planned)),
        best=_best([row for row in rows if applied[row["variant"]].state != "not applied"]),
        machines={
            name.removeprefix("machine_"): sorted({row[name] for row in rows if row[name]})
            for name in (rows[0] if rows else ())
            if name.startswith("machine_")
        },
        versions=_versions(launches.values()),
        order=list(dict.fromkeys((variant, session) for _, variant, session in started)),
    )


def first_line(text: str) -> str:
    """Returns what a message begins with: a failed start brings the end of its log along."""
    return text.strip().partition("\n")[0]


def engine_text(launch: Mapping[str, Any]) -> str:
    """Returns which engine a launch record is of."""
    engine = launch["engine"]
    return f"{engine['name']} {engine['version'] or '(version not told)'}"


def _failed_sessions(plan: Mapping[str, Any], results: Path) -> dict[tuple[str, int], str]:
    found = {}
    for variant, session in plan["order"]:
        path = results / variant / f"s{session}" / "server.json"
        record = read_record(path) if path.exists() else None
        if record is not None and record["outcome"] not in SUCCESSES:
            tried = steps_text(record.get("recovery") or ())
            after = f", after the recovery steps {tried}" if tried else ""
            found[variant, session] = f"{record['outcome']}{after}"
    return found


def _versions(launches: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    seen: dict[str, dict[str, None]] = {}
    for launch in launches:
        values = {
            "engine": engine_text(launch),
            **(launch.get("versions") or {}),
            "placement": placement_text(launch.get("placement")),
            "recovery": steps_text(launch.get("recovery") or ()) or "no step",
        }
        for name, value in values.items():
            if value is not None:
                seen.setdefault(name, {})[value] = None
    return {name: sorted(values) for name, values in seen.items()}


def _drift(rows: Sequence[Row]) -> Drift | None:
    """Returns the drift of output tok/s, of the rows that figures are made from."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for variant, workload, concurrency in dict.fromkeys(map(_cell, rows)):
        own = newest([row for row in rows if _cell(row) == (variant, workload, concurrency)])
        cells.setdefault((workload, concurrency), []).extend(own)
    return drift(list(cells.values()), PRIMARY)


def _inverse(ratio: float | None) -> float | None:
    return None if ratio is None else 1 / ratio


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
