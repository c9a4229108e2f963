"""Findings: short sentences, each made by a rule and naming the rows that it rests on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.analysis.agreement import PromptAgreement
from leverbench.analysis.measurements import row_name
from leverbench.analysis.ratios import concurrencies
from leverbench.analysis.settings import as_text, changes
from leverbench.analysis.verdicts import PRIMARY, Word, interval_text, verdict_text
from leverbench.campaign.model import RANDOM_IDS
from leverbench.report.profiles import Profile, ProfileTable
from leverbench.report.summary import Summary, engine_text, first_line

# Characters of an operation's name in a sentence.
_LONGEST_NAME = 100
# Characters of a model's answer in a sentence.
_LONGEST_ANSWER = 200


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
    """Returns what the campaign shows so far."""
    rules = (
        _coverage,
        _target,
        _not_applied,
        _answers_changed,
        _answers_unsteady,
        _answers_after_load,
        _verdicts,
        _interactions,
        _not_compared,
        _confounded,
        _recovered,
        _late,
        _attached,
        _noise,
        _controls,
        _drift,
        _accept_length,
        _relaunched,
        _profiled,
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


def _coverage(summary: Summary) -> Iterator[Finding]:
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


def _answers_changed(summary: Summary) -> Iterator[Finding]:
    for variant, agreement in summary.agreement.items():
        if agreement.changed:
            own = "is not known"
            if agreement.parents_own is not None:
                own = f"is {agreement.parents_own:.0%}"
            enough = 1 - summary.plan["agreement"]["tolerance"]
            text = (
                f"{variant} changes answers: {agreement.lowest:.0%} to"
                f" {max(prompt.mean for prompt in agreement.prompts):.0%} of an answer agree with"
                f" {agreement.parent}'s, at temperature 0, and {enough:.0%} are"
                f" asked for; the agreement of {agreement.parent}'s own launches {own}."
                f" {_answers(agreement.parent, variant, agreement.differing[0])}"
            )
            yield Finding("answers changed", text, _launch_names(summary, variant))


def _answers(parent: str, variant: str, prompt: PromptAgreement) -> str:
    where = f"the same for {prompt.tokens} {prompt.unit}"
    return (
        f"To {_quoted(prompt.prompt)} {parent} answers {_quoted(prompt.parents_answer)} and"
        f" {variant} {_quoted(prompt.answer)}: {where}."
    )


def _quoted(text: str) -> str:
    """Returns a model's text on one line, not longer than a sentence can bear."""
    line = " ".join(text.split())
    return f'"{line[:_LONGEST_ANSWER]}{"..." if len(line) > _LONGEST_ANSWER else ""}"'


def _answers_unsteady(summary: Summary) -> Iterator[Finding]:
    for variant, agreement in summary.agreement.items():
        if agreement.changed is None and agreement.differing:
            text = (
                f"Whether {variant} changes answers cannot be said: they differ from"
                f" {agreement.parent}'s, and so do those of {agreement.parent}'s own launches from"
                f" each other ({agreement.parents_own:.0%} agree)."
            )
            yield Finding("answers unsteady", text, _launch_names(summary, variant))


def _launch_names(summary: Summary, variant: str) -> tuple[str, ...]:
    sides = (summary.plan["variants"][variant]["parent"], variant)
    return tuple(
        f"launches/{server}"
        for server, launch in summary.launches.items()
        if launch["variant"] in sides and launch.get("answers")
    )


def _answers_after_load(summary: Summary) -> Iterator[Finding]:
    tolerance = (summary.plan.get("agreement") or {}).get("tolerance")
    if tolerance is None:
        return
    rows = [
        row
        for row in summary.valid
        if row["answer_agreement"] is not None and row["answer_agreement"] < 1 - tolerance
    ]
    if rows:
        text = (
            f"{counted(len(rows), 'point')} after which the server answered otherwise than at its"
            " launch, at temperature 0 (the probe was right): its answers are not repeatable."
        )
        yield Finding("answers after load", text, tuple(map(row_name, rows)))


def _verdicts(summary: Summary) -> Iterator[Finding]:
    for ratio in summary.ratios:
        key = (ratio.variant, ratio.workload, ratio.concurrency, ratio.metric)
        verdict = summary.verdicts[key]
        if ratio.metric != PRIMARY or verdict.ratio is None:
            continue
        delta = changes(summary.plan["variants"][ratio.variant])
        what = "; ".join(f"{k}: {as_text(a)} to {as_text(b)}" for k, (a, b) in delta.items())
        if cross := cross_text(summary, ratio.variant):
            what = f"{cross}; {what}"
        text = (
            f"{ratio.variant} ({what or 'no difference'}) against {ratio.parent} under"
            f" {ratio.workload} at C={ratio.concurrency}: {verdict_text(verdict)}; ratio of output"
            f" tok/s {interval_text(verdict)} ({counted(verdict.sessions, 'session')})."
        )
        rows = [
            row_name(row)
            for name in (ratio.variant, ratio.parent)
            for row in summary.pooled(name, ratio.workload, ratio.concurrency)
        ]
        yield Finding("verdict", text, tuple(rows))


def _interactions(summary: Summary) -> Iterator[Finding]:
    for found in summary.interactions:
        interval = "the noise is not known"
        if found.low is not None and found.high is not None:
            interval = f"95% interval {found.low:.3f} to {found.high:.3f}"
        text = (
            f"{found.both} gives {found.ratio:.3f} times what the gains of {found.one} and"
            f" {found.other} over {found.neither} multiply to, under {found.workload} at"
            f" C={found.concurrency} ({interval})."
        )
        names = (found.both, found.one, found.other, found.neither)
        rows = [
            row_name(row)
            for name in names
            for row in summary.pooled(name, found.workload, found.concurrency)
        ]
        yield Finding("interaction", text, tuple(rows))
    together = {name for square in summary.squares for name in square}
    for name, variant in summary.plan["variants"].items():
        above = variant["parent"]
        grown = above is not None and summary.plan["variants"][above]["delta"]
        if grown and variant["delta"] and name not in together:
            text = (
                f"{name} is measured on top of {above} alone: whether its lever gives as much"
                " without that one's is not known, independence is assumed."
            )
            yield Finding("interaction", text, ())


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
        if variant["confounded"]:
            levers = ", ".join(variant["levers"]) or ", ".join(changes(variant))
            text = (
                f"{name} is confounded: it differs from {variant['parent']} in more than one lever"
                f" ({levers}), so its ratio belongs to none of them alone."
            )
            yield Finding("confounded", text, ())


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


def _noise(summary: Summary) -> Iterator[Finding]:
    floors = {
        (workload, concurrency): floor
        for workload in summary.plan["workloads"]
        for concurrency in concurrencies(summary.plan, summary.rows)
        if (floor := summary.noise_floor(workload, concurrency)) is not None
    }
    if not floors:
        text = "No two variants have two valid sessions each: the noise is not known."
        yield Finding("noise", text, ())
        return
    told = ", ".join(f"{floor:.1%} ({w}, C={c})" for (w, c), floor in floors.items())
    yield Finding("noise", f"A gain smaller than this cannot be told from none: {told}.", ())


def _controls(summary: Summary) -> Iterator[Finding]:
    for verdict in summary.verdicts.values():
        if verdict.control and verdict.metric == PRIMARY and verdict.p is not None:
            text = (
                f"{verdict.variant} has the settings of {verdict.parent}: under {verdict.workload}"
                f" at C={verdict.concurrency} {verdict_text(verdict)}; ratio of output tok/s"
                f" {interval_text(verdict)}."
            )
            if verdict.verdict in (Word.FASTER, Word.SLOWER):
                text += " Nothing differs, so something else does: distrust verdicts of this size."
            rows = [
                row_name(row)
                for name in (verdict.variant, verdict.parent)
                for row in summary.pooled(name, verdict.workload, verdict.concurrency)
            ]
            yield Finding("control", text, tuple(rows))


def _drift(summary: Summary) -> Iterator[Finding]:
    found = summary.drift
    if found is None:
        return
    text = (
        f"Output tok/s drifted by {found.per_hour:+.1%} an hour (95% interval {found.low:+.1%} to"
        f" {found.high:+.1%}) over {found.hours:.1f} hours; blocks take it out of the verdicts."
    )
    yield Finding("drift", text, ())


def _accept_length(summary: Summary) -> Iterator[Finding]:
    told: dict[str, list[str]] = {}
    for row in summary.valid:
        dataset = summary.plan["workloads"][row["workload"]]["dataset"]
        if row["accept_length"] is not None and dataset == RANDOM_IDS:
            told.setdefault(row["workload"], []).append(row_name(row))
    for workload, rows in told.items():
        text = (
            f"Accept lengths under {workload} were measured on random token ids: they, and what"
            " speculation gains there, do not represent text. A workload of a file of real prompts"
            " shows that."
        )
        yield Finding("accept length", text, tuple(rows))


def _relaunched(summary: Summary) -> Iterator[Finding]:
    again = [row_name(row) for row in summary.valid if (row["launch_index"] or 1) > 1]
    if again:
        text = (
            f"{counted(len(again), 'point')} ran on a later launch than the session's first:"
            " the session's points do not share one server."
        )
        yield Finding("launched again", text, tuple(again))
