"""Findings on the campaign as a whole: what was measured, the target, noise and launches."""

from collections.abc import Iterator, Mapping
from typing import Any

from leverbench.analysis.ceilings import Shares, ceiling
from leverbench.analysis.measurements import row_name
from leverbench.analysis.ratios import concurrencies
from leverbench.analysis.verdicts import PRIMARY, Word, interval_text, verdict_text
from leverbench.profiling.categories import OTHER
from leverbench.report.findings.finding import (
    Finding,
    counted,
    pooled_names,
    profile_name,
    rounded,
    session_names,
)
from leverbench.report.summary import Summary, engine_text

# The categories that a report thinks away, the largest ones.
_REMOVED = 2


def imported(summary: Summary) -> Iterator[Finding]:
    """What an import cannot show, and what its reader noted."""
    if summary.imported:
        names = ", ".join(file["name"] for file in summary.imported["files"])
        text = (
            f"An import of {names} ({summary.imported['kind']}), measured by others: nothing shows"
            " that settings were in force, that servers were warm, or that nothing ran beside them."
        )
        if all(spread.sessions < 2 for spread in summary.spreads):
            text += (
                " No configuration was launched twice: every figure is unreplicated, and none can"
                " be told from noise."
            )
        yield Finding("record", text, ())
        for note in summary.imported["notes"]:
            yield Finding("record", f"{note}.", ())


def coverage(summary: Summary) -> Iterator[Finding]:
    """How many of the planned points are measured."""
    if summary.imported:
        text = f"{summary.measured} of {counted(summary.planned, 'point')} of its grid are told."
        yield Finding("coverage", text, ())
        return
    counts = ", ".join(
        f"{summary.point_count(kind)} {kind}" for kind in ("failed", "invalid", "missing")
    )
    yield Finding(
        "coverage",
        f"{summary.measured} of {counted(summary.planned, 'planned point')} measured: {counts}.",
        (),
    )


def target(summary: Summary) -> Iterator[Finding]:
    """The best measured rate against the target."""
    if text := target_sentence(summary):
        best = summary.best
        rows = summary.pooled(best.variant, best.workload, best.concurrency) if best else []
        yield Finding("target", text, tuple(map(row_name, rows)))


def target_sentence(summary: Summary) -> str | None:
    """Returns the best measured rate against the target; None where nothing can be said."""
    best, target = summary.best, (summary.plan.get("target") or {}).get("output_tok_per_s")
    if best is None:
        what = "Nothing is measured yet"
        if summary.valid:
            what = "No variant was measured with its settings in force"
        return f"Target: {target:,.0f} output tok/s. {what}." if target else None
    text = (
        f"Best measured: {best.output_tok_per_s:,.1f} output tok/s ({best.variant},"
        f" {best.workload}, C={best.concurrency}; mean of {counted(best.sessions, 'session')})"
    )
    if not target:
        return f"{text}. The campaign states no target."
    if best.output_tok_per_s >= target:
        return f"{text}; target {target:,.0f}: reached."
    return f"{text}; target {target:,.0f}: {target / best.output_tok_per_s:.1f} times short."


def removal(summary: Summary) -> Iterator[Finding]:
    """What is left to gain from the largest categories, against what is missing."""
    best, target = summary.best, (summary.plan.get("target") or {}).get("output_tok_per_s")
    if not (best and target and best.output_tok_per_s < target):
        return
    profiles = [
        shares
        for shares in summary.shares
        if shares.variant in (None, best.variant)
        and shares.workload in (None, best.workload)
        and shares.concurrency is not None
    ]
    if not profiles:
        return
    nearest = min(profiles, key=lambda shares: abs((shares.concurrency or 0) - best.concurrency))
    named = {name: share for name, share in nearest.categories.items() if name != OTHER}
    largest = sorted(named.items(), key=lambda entry: -entry[1])[:_REMOVED]
    share, rate = sum(part for _, part in largest), _best_rate(summary, nearest)
    if rate is None or not 0 < share < 1:
        return
    (variant, workload, without), left = rate, rate[2] * ceiling(share)
    what = " and ".join(f"{name} ({part:.1%})" for name, part in largest)
    text = (
        f"Without {what} altogether, {variant} would give about {rounded(left)} output tok/s at"
        f" C={nearest.concurrency}: {without:,.1f} / (1 - {share:.2f}), with the shares of profile"
        f" {nearest.name}. "
    )
    alone = "this category alone does" if len(largest) == 1 else "these categories alone do"
    text += (
        f"The target is {target:,.0f}: {alone} not reach it. A factor of {target / left:.1f} would"
        f" still be missing; to reach it, {1 - without / target:.1%} of decode time must go."
        if left < target
        else f"The target of {target:,.0f} is within that bound."
    )
    rows = summary.pooled(variant, workload, nearest.concurrency or 0)
    evidence = (*map(row_name, rows), profile_name(summary, nearest.name))
    yield Finding("removal", text, evidence)


def _best_rate(summary: Summary, shares: Shares) -> tuple[str, str, float] | None:
    """Returns ``(variant, workload, output tok/s)``, the greatest at a profile's concurrency."""
    found = []
    for variant in summary.plan["variants"] if shares.variant is None else [shares.variant]:
        if summary.applied[variant].state == "not applied":
            continue
        for workload in summary.plan["workloads"] if shares.workload is None else [shares.workload]:
            at = (variant, workload, shares.concurrency or 0)
            rate = summary.mean("output_tok_per_s", *at)
            if rate is not None:
                found.append((variant, workload, rate))
    return max(found, key=lambda entry: entry[2], default=None)


def late(summary: Summary) -> Iterator[Finding]:
    """Variants that were added after the first block."""
    for variant, sessions in summary.late.items():
        parent = summary.plan["variants"][variant]["parent"]
        what = "new sessions" if summary.attached else "fresh launches"
        beside = f", beside {what} of {parent}" if parent else ""
        text = f"{variant} was added later: its sessions are {session_names(sessions)}{beside}."
        yield Finding("added later", text, ())


def attached(summary: Summary) -> Iterator[Finding]:
    """Variants whose servers others started."""
    rows: dict[str, list[str]] = {}
    for row in summary.valid:
        if row["attached"]:
            rows.setdefault(row["variant"], []).append(row_name(row))
    for variant, names in rows.items():
        told = dict.fromkeys(
            _told(launch) for launch in summary.launches.values() if launch["variant"] == variant
        )
        text = (
            f"{variant}: others started its server, which its sessions share: they are repetitions,"
            " not launches, and their spread lacks what differs between launches."
            f" The server told: {' / '.join(told) or 'nothing that was recorded'}."
        )
        yield Finding("attached", text, tuple(names))


def _told(launch: Mapping[str, Any]) -> str:
    settings = launch.get("effective") or {}
    what = counted(len(settings), "setting") if settings else "none of its settings"
    return f"{engine_text(launch)}, {what}"


def noise(summary: Summary) -> Iterator[Finding]:
    """The smallest gain that can be told from none."""
    floors = {
        (workload, concurrency): floor
        for workload in summary.plan["workloads"]
        for concurrency in concurrencies(summary.plan, summary.rows)
        if (floor := summary.noise_floor(workload, concurrency)) is not None
    }
    if not floors:
        text = (
            "No comparison tells the noise: each lacks sessions, or is noisy, unblocked or"
            " withheld."
        )
        yield Finding("noise", text, ())
        return
    told = ", ".join(f"{floor:.1%} ({w}, C={c})" for (w, c), floor in floors.items())
    yield Finding("noise", f"A gain smaller than this cannot be told from none: {told}.", ())


def controls(summary: Summary) -> Iterator[Finding]:
    """What A/A controls show, which no lever changes."""
    for verdict in summary.verdicts.values():
        if verdict.control and verdict.metric == PRIMARY and verdict.p is not None:
            text = (
                f"{verdict.variant} has the settings of {verdict.parent}: under {verdict.workload}"
                f" at C={verdict.concurrency} {verdict_text(verdict)}; ratio of output tok/s"
                f" {interval_text(verdict)}."
            )
            if verdict.verdict in (Word.FASTER, Word.SLOWER):
                text += " Nothing differs, so something else does: distrust verdicts of this size."
            names = (verdict.variant, verdict.parent)
            rows = pooled_names(summary, names, verdict.workload, verdict.concurrency)
            yield Finding("control", text, rows)


def drift(summary: Summary) -> Iterator[Finding]:
    """How all figures changed with time."""
    found = summary.drift
    if found is None:
        return
    text = (
        f"Output tok/s drifted by {found.change:+.1%} (95% interval {found.low:+.1%} to"
        f" {found.high:+.1%}) in the {found.hours:.1f} hours of the campaign; blocks take it out of"
        " the verdicts."
    )
    yield Finding("drift", text, ())


def relaunched(summary: Summary) -> Iterator[Finding]:
    """Points that ran on a later launch than their session's first."""
    again = [row_name(row) for row in summary.valid if (row["launch_index"] or 1) > 1]
    if again:
        text = (
            f"{counted(len(again), 'point')} ran on a later launch than the session's first:"
            " the session's points do not share one server."
        )
        yield Finding("launched again", text, tuple(again))
