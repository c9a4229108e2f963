"""Findings: short sentences, each made by a rule and naming the rows that it rests on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.analysis.ceilings import Shares, ceiling
from leverbench.analysis.crossover import DEFAULT_MARGIN, GAIN, LOSS, NOTHING, crossovers
from leverbench.analysis.measurements import row_name
from leverbench.analysis.ratios import Ratio
from leverbench.analysis.settings import as_text, changes
from leverbench.report.profiles import OTHER, Profile, ProfileTable
from leverbench.report.summary import Summary, engine_text, first_line

_EFFECTS = {
    GAIN: "a gain",
    LOSS: "a loss",
    NOTHING: f"nothing (inside +-{DEFAULT_MARGIN:.0%})",
}
# The categories that a report thinks away, the largest ones.
_REMOVED = 2
# Characters of an operation's name in a sentence.
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Finding:
    """One sentence.

    Attributes:
        rule: Name of the rule that made it.
        text: The sentence.
        rows: Names of the rows it rests on, as paths below ``results/{campaign}``.
    """

    rule: str
    text: str
    rows: tuple[str, ...]


def findings(summary: Summary) -> list[Finding]:
    """Returns what the campaign shows so far: figures and facts, no verdicts."""
    rules = (
        _imported,
        _coverage,
        _target,
        _removal,
        _not_applied,
        _ratios,
        _not_compared,
        _confounded,
        _beside,
        _above_ceiling,
        _crossover,
        _recovered,
        _late,
        _attached,
        _spread,
        _relaunched,
        _profiled,
        _profiles_told,
        _not_profiled,
    )
    return [finding for rule in rules for finding in rule(summary)]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns the number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


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


def cross_text(summary: Summary, variant: str) -> str:
    """Returns the two variants whose levers a cross combines; empty for any other variant."""
    return " x ".join(summary.plan["variants"][variant]["cross"])


def session_names(sessions: list[int]) -> str:
    """Returns sessions by their names: ``s4, s5``."""
    return ", ".join(f"s{session}" for session in sessions)


def _imported(summary: Summary) -> Iterator[Finding]:
    if summary.imported:
        names = ", ".join(file["name"] for file in summary.imported["files"])
        text = (
            f"An import of {names} ({summary.imported['kind']}), measured by others: nothing shows"
            " that settings were in force, that servers were warm, or that nothing ran beside them."
        )
        if all(len(ratio.sessions) < 2 for ratio in summary.ratios):
            text += (
                " No configuration was launched twice: every figure is unreplicated, and none can"
                " be told from noise."
            )
        yield Finding("record", text, ())
        for note in summary.imported["notes"]:
            yield Finding("record", f"{note}.", ())


def _coverage(summary: Summary) -> Iterator[Finding]:
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


def _target(summary: Summary) -> Iterator[Finding]:
    if text := target_sentence(summary):
        best = summary.best
        rows = summary.pooled(best.variant, best.workload, best.concurrency) if best else []
        yield Finding("target", text, tuple(map(row_name, rows)))


def _not_applied(summary: Summary) -> Iterator[Finding]:
    for variant, proof in summary.applied.items():
        if proof.state == "not applied":
            rows = [row_name(row) for row in summary.rows if row["variant"] == variant]
            ratio = "its ratio" if variant in summary.compared else "every ratio to it"
            text = f"{variant}: not applied, so {ratio} is withheld: {proof.reason}."
            yield Finding("not applied", text, tuple(rows))


def _removal(summary: Summary) -> Iterator[Finding]:
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
        f"Without {what} altogether, {variant} would give about {_rounded(left)} output tok/s at"
        f" C={nearest.concurrency}: {without:,.1f} / (1 - {share:.2f}), with the shares of profile"
        f" {nearest.name}. "
    )
    alone = "this category alone does" if len(largest) == 1 else "these categories alone do"
    text += (
        f"The target is {target:,.0f}: {alone} not reach it."
        if left < target
        else f"The target of {target:,.0f} is within that bound."
    )
    rows = summary.pooled(variant, workload, nearest.concurrency or 0)
    yield Finding("removal", text, tuple(map(row_name, rows)))


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


def _rounded(value: float) -> str:
    """Returns two digits of a number, which is all that shares of two digits give."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def _ratios(summary: Summary) -> Iterator[Finding]:
    for ratio in summary.ratios:
        if ratio.metric != "output_tok_per_s" or ratio.mean is None:
            continue
        delta = changes(summary.plan["variants"][ratio.variant])
        what = "; ".join(f"{k}: {as_text(a)} to {as_text(b)}" for k, (a, b) in delta.items())
        if cross := cross_text(summary, ratio.variant):
            what = f"{cross}; {what}"
        sessions = counted(len(ratio.sessions), "session")
        if summary.imported and not what:
            what = "the record does not tell what changed"
        if len(ratio.sessions) > 1:
            sessions = f"range {ratio.low:.3f} to {ratio.high:.3f}, {sessions}"
        text = (
            f"{ratio.variant} ({what or 'no difference'}) measured {ratio.mean:.3f} times the"
            f" output tok/s of {ratio.parent} under {ratio.workload} at C={ratio.concurrency}"
            f" ({sessions}: no verdict{', confounded' if ratio.confounded else ''})."
        )
        rows = [
            f"{name}/s{session}/{ratio.workload}/c{ratio.concurrency}"
            for session, _ in ratio.sessions
            for name in (ratio.variant, ratio.parent)
        ]
        yield Finding("ratio", text, tuple(rows))


def _not_compared(summary: Summary) -> Iterator[Finding]:
    apart: dict[tuple[str, str, str], list[str]] = {}
    for ratio in summary.ratios:
        if ratio.metric == "output_tok_per_s":
            for session, what in ratio.not_compared:
                apart.setdefault((ratio.variant, ratio.parent, what), []).extend(
                    f"{name}/s{session}/{ratio.workload}/c{ratio.concurrency}"
                    for name in (ratio.variant, ratio.parent)
                )
    for (variant, parent, what), rows in apart.items():
        pairs = counted(len(rows) // 2, "pair")
        text = f"{pairs} of {variant} and {parent}: measured on {what}: not compared."
        yield Finding("not compared", text, tuple(rows))


def _confounded(summary: Summary) -> Iterator[Finding]:
    for name, variant in summary.plan["variants"].items():
        if len(variant["levers"]) > 1:
            levers = ", ".join(variant["levers"])
            text = (
                f"{name} is confounded: it differs from {variant['parent']} in more than one lever"
                f" ({levers}), so its ratio belongs to none of them alone."
            )
            yield Finding("confounded", text, ())


def _beside(summary: Summary) -> Iterator[Finding]:
    """What a record says was changed along with a lever."""
    for name, variant in summary.plan["variants"].items():
        if not variant.get("beside"):
            continue
        changed = ", ".join(
            f"{key} {old} to {new}" for key, (old, new) in variant["beside"].items()
        )
        control = ", ".join(f"{key} {new}" for key, (_, new) in variant["beside"].items())
        rows = [row for row in summary.valid if row["variant"] == name]
        notes = dict.fromkeys(row["detail"] for row in rows if row["detail"])
        text = (
            f"{name} is confounded: beside its lever ({', '.join(variant['levers']) or 'not told'})"
            f" it differs from {variant['parent']} in {changed} (noted: {'; '.join(notes)}). The"
            f" matched control, {variant['parent']} with {control}, costs one more measurement."
        )
        yield Finding("confounded", text, tuple(map(row_name, rows)))


def _above_ceiling(summary: Summary) -> Iterator[Finding]:
    gains = {
        (ratio.variant, ratio.workload, ratio.concurrency): gain
        for ratio in summary.ratios
        if (gain := _gain(summary, ratio))
    }
    for one in summary.ceilings:
        gain = gains.get((one.variant, one.workload, one.concurrency))
        if gain is None or gain[0] <= one.gain:
            continue
        value, how, rows, unreplicated = gain
        shares = f"{' + '.join(one.categories)} {one.share:.1%} of decode time"
        text = (
            f"{one.variant} measured a gain of {value:.3f} at C={one.concurrency} under"
            f" {one.workload} ({how}{', unreplicated' if unreplicated else ''}), above the ceiling"
            f" of {one.lever}: {shares} in profile {one.profile}, so at most 1 / (1 -"
            f" {one.share:.3g}) = {one.gain:.3f}. Not that lever's alone, or noise."
        )
        yield Finding("ceiling", text, rows)


def _gain(summary: Summary, ratio: Ratio) -> tuple[float, str, tuple[str, ...], bool] | None:
    """Returns old time over new, how it was had, its rows, and whether it was measured once.

    Per token where that is known: the shares are of decode time.
    """
    if ratio.mean is None or ratio.metric == "mean_ttft_ms":
        return None
    points = [(name, ratio.workload, ratio.concurrency) for name in (ratio.parent, ratio.variant)]
    before, after = (summary.mean(ratio.metric, *point) for point in points)
    timed = all(summary.mean("mean_tpot_ms", *point) for point in points)
    if before is None or after is None or timed != (ratio.metric == "mean_tpot_ms"):
        return None
    how = (
        f"TPOT {before:.4g} to {after:.4g} ms" if timed else f"{before:,.1f} to {after:,.1f} tok/s"
    )
    rows = tuple(
        f"{name}/s{session}/{ratio.workload}/c{ratio.concurrency}"
        for session, _ in ratio.sessions
        for name in (ratio.variant, ratio.parent)
    )
    return (1 / ratio.mean if timed else ratio.mean), how, rows, len(ratio.sessions) == 1


def _crossover(summary: Summary) -> Iterator[Finding]:
    """Where the effect of a lever that was measured once changes, by its figures alone."""
    curves: dict[tuple[str, str], dict[int, Ratio]] = {}
    for ratio in summary.ratios:
        if ratio.metric == "output_tok_per_s" and ratio.mean is not None:
            curves.setdefault((ratio.variant, ratio.workload), {})[ratio.concurrency] = ratio
    for (variant, workload), curve in curves.items():
        if any(len(ratio.sessions) > 1 for ratio in curve.values()):
            continue
        points = [(c, ratio.mean, None) for c, ratio in curve.items() if ratio.mean is not None]
        for crossover in crossovers(points):
            parts = [
                f"{_EFFECTS[what]} at C={concurrency} ({(curve[concurrency].mean or 1) - 1:+.0%})"
                for concurrency, what in (
                    (crossover.below, crossover.before),
                    (crossover.above, crossover.after),
                )
            ]
            levers = ", ".join(summary.plan["variants"][variant]["levers"])
            text = (
                f"{variant}{f' ({levers})' if levers else ''} over {curve[crossover.below].parent}"
                f" under {workload}: {parts[0]}, {parts[1]} in output tok/s. Crossover between C="
                f"{crossover.below} and C={crossover.above}; both figures are unreplicated."
            )
            rows = tuple(
                f"{name}/s{session}/{workload}/c{concurrency}"
                for concurrency in (crossover.below, crossover.above)
                for session, _ in curve[concurrency].sessions
                for name in (variant, curve[concurrency].parent)
            )
            yield Finding("crossover", text, rows)


def _recovered(summary: Summary) -> Iterator[Finding]:
    for variant, settings in summary.recovered.items():
        control = summary.controls[variant]
        if control is None:
            advice = "No control can tell them apart: recovery changed what the lever changes."
        elif control.planned:
            advice = f"The campaign has the matched control. {control.compare}"
        else:
            advice = f"The report has the matched control to add, {control.name}. {control.compare}"
        parent = summary.plan["variants"][variant]["parent"]
        text = (
            f"{variant} is confounded: so that servers start, recovery made it differ from {parent}"
            f" beside its lever ({'; '.join(settings)}). {advice}"
        )
        rows = [
            f"{name}/s{session}/{ratio.workload}/c{ratio.concurrency}"
            for ratio in summary.ratios
            if ratio.variant == variant and ratio.recovery
            for session, _ in ratio.sessions
            for name in (variant, parent)
        ]
        yield Finding("recovery", text, tuple(dict.fromkeys(rows)))


def _late(summary: Summary) -> Iterator[Finding]:
    for variant, sessions in summary.late.items():
        parent = summary.plan["variants"][variant]["parent"]
        what = "new sessions" if summary.attached else "fresh launches"
        beside = f", beside {what} of {parent}" if parent else ""
        text = f"{variant} was added later: its sessions are {session_names(sessions)}{beside}."
        yield Finding("added later", text, ())


def _attached(summary: Summary) -> Iterator[Finding]:
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


def _profiled(summary: Summary) -> Iterator[Finding]:
    told: dict[str, list[tuple[ProfileTable, Profile]]] = {}
    for table in summary.profiles:
        for variant, profile in table.profiles.items():
            told.setdefault(variant, []).append((table, profile))
    for variant, profiles in told.items():
        sentences = " ".join(_largest(table, profile) for table, profile in profiles)
        cpu = all(profile.device == "cpu" for _, profile in profiles)
        note = " Shares on a CPU say nothing of a GPU." if cpu else ""
        names = tuple(profile.name for _, profile in profiles)
        yield Finding("profile", f"{variant}: {sentences}{note}", names)


def _profiles_told(summary: Summary) -> Iterator[Finding]:
    """What the profiles of a record say."""
    for profile in (summary.imported or {"profiles": ()})["profiles"]:
        at = f"C={profile['concurrency']}" if profile["concurrency"] else "no concurrency told"
        parts = []
        for entry in profile["entries"]:
            facts = [f"{entry['share']:.1%}"]
            if entry["blocks"] and entry["sm_count"]:
                facts.append(f"{entry['blocks']} blocks on {entry['sm_count']} SMs")
            if entry["tensor_cores"] is False:
                facts.append("no tensor cores")
            kernel = f" in {_short(entry['kernel'])}" if entry["kernel"] else ""
            parts.append(f"{entry['category']}{kernel} ({', '.join(facts)})")
        text = f"Profile {profile['name']} ({at}), shares of decode: {', '.join(parts)}."
        yield Finding("profile", text, ())


def _largest(table: ProfileTable, profile: Profile) -> str:
    where = f"under {table.workload} at C={table.concurrency}"
    if not (profile.shares and profile.top):
        return f"{where} the profile holds no operation."
    category, share = next(iter(profile.shares.items()))
    top = profile.top[0]
    text = (
        f"{where} the largest category is {category} with {share:.1%} of the operations' time,"
        f" the top operation {_short(top['name'])} ({top['category']}) with {top['share']:.1%}."
    )
    if profile.large_other is not None:
        text += (
            f" No category claims {profile.large_other:.1%}:"
            f" {', '.join(map(_short, profile.other_top)) or 'no names'}."
        )
    return text


def _short(name: str) -> str:
    """Returns what tells an operation: names of templates run to a thousand characters."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def _not_profiled(summary: Summary) -> Iterator[Finding]:
    for hole in summary.profile_holes:
        if hole.kind == "failed":
            text = (
                f"{hole.variant} has no profile under {hole.workload} at C={hole.concurrency}:"
                f" {hole.reason}: {first_line(hole.detail)}"
            )
            row = f"{hole.variant}/profile/{hole.workload}/c{hole.concurrency}"
            yield Finding("profile", text, (row,))


def _spread(summary: Summary) -> Iterator[Finding]:
    told = [s for s in summary.spreads if s.metric == "output_tok_per_s" and s.share is not None]
    if not told:
        yield Finding("noise", "No variant has two valid sessions: the noise is not known.", ())
        return
    widest = max(told, key=lambda spread: spread.share or 0)
    text = (
        f"Sessions of one variant differ by up to {widest.share:.1%} in output tok/s"
        f" ({widest.variant}, {widest.workload}, C={widest.concurrency},"
        f" {counted(widest.sessions, 'session')})."
    )
    rows = summary.pooled(widest.variant, widest.workload, widest.concurrency)
    yield Finding("noise", text, tuple(map(row_name, rows)))


def _relaunched(summary: Summary) -> Iterator[Finding]:
    again = [row_name(row) for row in summary.valid if (row["launch_index"] or 1) > 1]
    if again:
        text = (
            f"{counted(len(again), 'point')} ran on a later launch than the session's first:"
            " the session's points do not share one server."
        )
        yield Finding("launched again", text, tuple(again))
