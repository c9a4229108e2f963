"""Findings: short sentences, each made by a rule and naming the rows that it rests on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.analysis.agreement import PromptAgreement
from leverbench.analysis.ceilings import Shares, ceiling
from leverbench.analysis.crossover import GAIN, LOSS, NOTHING, crossovers
from leverbench.analysis.measurements import row_name
from leverbench.analysis.predictions import Choice, Prediction
from leverbench.analysis.ratios import concurrencies
from leverbench.analysis.settings import as_text, changes
from leverbench.analysis.verdicts import PRIMARY, Verdict, Word, interval_text, verdict_text
from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN, RANDOM_IDS
from leverbench.report.profiles import OTHER, Profile, ProfileTable
from leverbench.report.summary import Gain, Summary, engine_text, first_line

_EFFECTS = {
    GAIN: "a gain",
    LOSS: "a loss",
    NOTHING: "nothing that matters",
}
# The categories that a report thinks away, the largest ones.
_REMOVED = 2
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
        _imported,
        _coverage,
        _target,
        _removal,
        _not_applied,
        _answers_changed,
        _answers_unsteady,
        _answers_after_load,
        _verdicts,
        _interactions,
        _not_compared,
        _confounded,
        _beside,
        _above_ceiling,
        _predicted,
        _tuned,
        _crossover,
        _recovered,
        _late,
        _attached,
        _noise,
        _controls,
        _drift,
        _accept_length,
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
        if all(spread.sessions < 2 for spread in summary.spreads):
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


def _answers_changed(summary: Summary) -> Iterator[Finding]:
    for variant, agreement in summary.agreement.items():
        if agreement.changed:
            own = "is not known"
            if agreement.parents_own is not None:
                own = f"is {agreement.parents_own:.0%}"
            enough = 1 - summary.plan["agreement"]["tolerance"]
            # Of a prompt in which the parent agrees with itself: another one would prove nothing.
            shown = next(
                prompt
                for prompt in agreement.differing
                if prompt.parents_own is None or prompt.parents_own >= enough
            )
            text = (
                f"{variant} changes answers: {agreement.lowest:.0%} to"
                f" {max(prompt.mean for prompt in agreement.prompts):.0%} of an answer agree with"
                f" {agreement.parent}'s, at temperature 0, and {enough:.0%} are"
                f" asked for; the agreement of {agreement.parent}'s own launches {own}."
                f" {_answers(agreement.parent, variant, shown)}"
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


def _pooled_names(
    summary: Summary, variants: Iterable[str], workload: str, concurrency: int
) -> tuple[str, ...]:
    """Returns the names of the rows that figures of some variants at one point are made from."""
    return tuple(
        row_name(row) for name in variants for row in summary.pooled(name, workload, concurrency)
    )


def _rounded(value: float) -> str:
    """Returns two digits of a number, which is all that shares of two digits give."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


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
        if summary.imported and not what:
            what = "the record does not tell what changed"
        text = (
            f"{ratio.variant} ({what or 'no difference'}) against {ratio.parent} under"
            f" {ratio.workload} at C={ratio.concurrency}: {verdict_text(verdict)}; ratio of output"
            f" tok/s {interval_text(verdict)} ({counted(verdict.sessions, 'session')})."
        )
        names = (ratio.variant, ratio.parent)
        rows = _pooled_names(summary, names, ratio.workload, ratio.concurrency)
        yield Finding("verdict", text, rows)


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
        rows = _pooled_names(summary, names, found.workload, found.concurrency)
        yield Finding("interaction", text, rows)
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
    for one in summary.ceilings:
        gain = summary.gain(one.variant, one.workload, one.concurrency)
        if gain is None or gain.ratio <= one.gain:
            continue
        shares = f"{' + '.join(one.categories)} {one.share:.1%} of decode time"
        surely = gain.low is not None and gain.low > one.gain
        text = (
            f"{one.variant} measured a gain of {gain.ratio:.3f} at C={one.concurrency} under"
            f" {one.workload} ({gain.how}{', unreplicated' if gain.low is None else ''}), above the"
            f" ceiling of {one.lever}: {shares} in profile {one.profile}, so at most 1 / (1 -"
            f" {one.share:.3g}) = {one.gain:.3f}."
            f" Not that lever's alone{'' if surely else ', or noise'}."
        )
        parent = summary.plan["variants"][one.variant]["parent"]
        rows = _pooled_names(summary, (one.variant, parent), one.workload, one.concurrency)
        yield Finding("ceiling", text, rows)


def _predicted(summary: Summary) -> Iterator[Finding]:
    for prediction in summary.predictions:
        bound = prediction.ceiling
        gain = summary.gain(bound.variant, bound.workload, bound.concurrency)
        if prediction.gain is None or prediction.speedup is None or gain is None:
            continue
        at = f" of size {prediction.size}" if prediction.size is not None else ""
        text = (
            f"{bound.variant} under {bound.workload} at C={bound.concurrency}: {prediction.kernel}"
            f" makes its calls{at} {prediction.speedup:.2f} times as fast, and"
            f" {' + '.join(bound.categories)} is {bound.share:.1%} of its parent's decode time:"
            f" predicted {prediction.gain:.3f}, measured {gain_text(gain)} ({gain.how})."
            f" {_explained(prediction, gain)}"
        )
        parent = summary.plan["variants"][bound.variant]["parent"]
        rows = _pooled_names(summary, (bound.variant, parent), bound.workload, bound.concurrency)
        yield Finding("predicted", text, (*rows, bound.profile))


def gain_text(gain: Gain) -> str:
    """Returns a measured gain with its interval."""
    if gain.low is None or gain.high is None:
        return f"{gain.ratio:.3f} (unreplicated)"
    return range_text(gain.ratio, gain.low, gain.high)


def range_text(ratio: float, low: float, high: float) -> str:
    """Returns a ratio with its interval, such as ``1.371 (1.352 to 1.390)``."""
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def _explained(prediction: Prediction, gain: Gain) -> str:
    """Returns how much of a measured gain its prediction explains."""
    predicted = prediction.gain or 1.0
    if not prediction.alone:
        return "The variant is given other kernels too, and the measured gain is of all of them."
    if gain.low is not None and gain.high is not None and gain.low <= predicted <= gain.high:
        return "The prediction lies inside the measured interval."
    text = f"Measured is {gain.ratio / predicted:.3f} times the prediction: "
    if gain.low is None:
        return f"{text}whether that is noise is not known."
    return f"{text}neither calls nor share of the time explain that part."


def _tuned(summary: Summary) -> Iterator[Finding]:
    """Which parameters of kernels are in servers, and why."""
    for kernel in summary.kernels:
        for tuning in kernel.tunings:
            better = [choice for choice in tuning.choices if choice.published]
            if tuning.skipped is not None:
                text = f"was not tuned: {tuning.skipped}. Servers run it with its defaults."
            elif not better:
                text = (
                    "has no parameters that beat the defaults beyond noise: servers run it with"
                    " these."
                )
            else:
                told = "; ".join(_choice_text(choice, kernel.size) for choice in better)
                text = f"is served with tuned parameters: {told}."
                if len(better) < len(tuning.choices):
                    left = len(tuning.choices) - len(better)
                    text += f" At {counted(left, 'other size')} the defaults stay."
            yield Finding("kernel", f"{kernel.name} ({tuning.shape}) {text}", ())


def _choice_text(choice: Choice, size: str | None) -> str:
    text = config_text(choice.config)
    if size is not None:
        text += f" at {size} {choice.dimensions[size]}"
    if choice.speedup is None or choice.low is None or choice.high is None:
        return text
    return (
        f"{text}, {range_text(choice.speedup, choice.low, choice.high)} times the defaults' speed"
    )


def config_text(values: Mapping[str, Any]) -> str:
    """Returns parameters or dimensions of a kernel on one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def _crossover(summary: Summary) -> Iterator[Finding]:
    """Where the effect of a lever changes: by its verdicts, or by its figures where it has none."""
    curves: dict[tuple[str, str], dict[int, Verdict]] = {}
    for verdict in summary.verdicts.values():
        if verdict.metric == PRIMARY and verdict.ratio is not None:
            curve = curves.setdefault((verdict.variant, verdict.workload), {})
            curve[verdict.concurrency] = verdict
    margin = summary.plan.get("equal_within", DEFAULT_EQUAL_WITHIN)
    for (variant, workload), curve in curves.items():
        once = all(verdict.low is None for verdict in curve.values())
        points = [(c, v.ratio or 1.0, None if once else v.verdict) for c, v in curve.items()]
        for crossover in crossovers(points, margin):
            parts = [
                f"{_EFFECTS[what]} at C={concurrency} ({(curve[concurrency].ratio or 1) - 1:+.0%})"
                for concurrency, what in (
                    (crossover.below, crossover.before),
                    (crossover.above, crossover.after),
                )
            ]
            levers = ", ".join(summary.plan["variants"][variant]["levers"])
            parent = curve[crossover.below].parent
            text = (
                f"{variant}{f' ({levers})' if levers else ''} over {parent} under {workload}:"
                f" {parts[0]}, {parts[1]} in output tok/s. Crossover between C={crossover.below}"
                f" and C={crossover.above};"
                f" both {'figures are unreplicated' if once else 'are decided'}."
            )
            rows = tuple(
                name
                for concurrency in (crossover.below, crossover.above)
                for name in _pooled_names(summary, (variant, parent), workload, concurrency)
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


def _noise(summary: Summary) -> Iterator[Finding]:
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
            names = (verdict.variant, verdict.parent)
            rows = _pooled_names(summary, names, verdict.workload, verdict.concurrency)
            yield Finding("control", text, rows)


def _drift(summary: Summary) -> Iterator[Finding]:
    found = summary.drift
    if found is None:
        return
    text = (
        f"Output tok/s drifted by {found.change:+.1%} (95% interval {found.low:+.1%} to"
        f" {found.high:+.1%}) in the {found.hours:.1f} hours of the campaign; blocks take it out of"
        " the verdicts."
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
