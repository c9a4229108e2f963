"""Findings on levers: whether they were in force, what they gave, and what they could give."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from leverbench.analysis.agreement import PromptAgreement
from leverbench.analysis.ceilings import CategoryCeiling, Ceiling, ceiling
from leverbench.analysis.crossover import GAIN, LOSS, NOTHING, crossovers
from leverbench.analysis.measurements import row_name
from leverbench.analysis.predictions import Choice, Prediction
from leverbench.analysis.settings import as_text, changes
from leverbench.analysis.verdicts import PRIMARY, Verdict, interval_text, verdict_text
from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN, RANDOM_IDS
from leverbench.profiling.categories import OTHER
from leverbench.report.findings.finding import (
    Finding,
    config_text,
    counted,
    cross_text,
    gain_text,
    pooled_names,
    profile_name,
    range_text,
)
from leverbench.report.summary import Gain, Summary

_EFFECTS = {
    GAIN: "a gain",
    LOSS: "a loss",
    NOTHING: "nothing that matters",
}
# The same limit below which a launch with drafts is not worth its ladder: no draft pays for itself
# with a token in twenty steps.
USELESS_DRAFT = 1.05
# Three sessions find 6% two times out of three, and 10% nearly always (docs/verdicts.md): for less,
# a lever costs more sessions than it gives.
EXHAUSTED = 0.1
# Categories that are named as what is left.
_LARGEST_LEFT = 3
# Characters of a model's answer in a sentence.
_LONGEST_ANSWER = 200


def not_applied(summary: Summary) -> Iterator[Finding]:
    """Variants whose settings were not seen in force."""
    for variant, proof in summary.applied.items():
        if proof.state == "not applied":
            rows = [row_name(row) for row in summary.rows if row["variant"] == variant]
            ratio = "its ratio" if variant in summary.compared else "every ratio to it"
            text = f"{variant}: not applied, so {ratio} is withheld: {proof.reason}."
            yield Finding("not applied", text, (*rows, *_launches(summary, variant)))


def _launches(summary: Summary, *variants: str) -> tuple[str, ...]:
    return tuple(
        f"launches/{server}"
        for server, launch in summary.launches.items()
        if launch["variant"] in variants
    )


def answers_changed(summary: Summary) -> Iterator[Finding]:
    """Variants that answer otherwise than their parents."""
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


def answers_unsteady(summary: Summary) -> Iterator[Finding]:
    """Variants of which that cannot be said."""
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


def answers_after_load(summary: Summary) -> Iterator[Finding]:
    """Servers that answered otherwise after a point than at their launch."""
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


def verdicts(summary: Summary) -> Iterator[Finding]:
    """Each variant against its parent."""
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
        rows = pooled_names(summary, names, ratio.workload, ratio.concurrency)
        yield Finding("verdict", text, rows)


def interactions(summary: Summary) -> Iterator[Finding]:
    """What levers give together, over what they give one by one."""
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
        rows = pooled_names(summary, names, found.workload, found.concurrency)
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


def not_compared(summary: Summary) -> Iterator[Finding]:
    """Rows that were measured under conditions unlike their parents'."""
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


def confounded(summary: Summary) -> Iterator[Finding]:
    """Variants that pull more than one lever."""
    for name, variant in summary.plan["variants"].items():
        if len(variant["levers"]) > 1:
            levers = ", ".join(variant["levers"])
            text = (
                f"{name} is confounded: it differs from {variant['parent']} in more than one lever"
                f" ({levers}), so its ratio belongs to none of them alone."
            )
            rows = [row_name(row) for row in summary.valid if row["variant"] == name]
            yield Finding("confounded", text, tuple(rows))


def beside(summary: Summary) -> Iterator[Finding]:
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


def above_ceiling(summary: Summary) -> Iterator[Finding]:
    """Gains that are greater than their lever's share of the time allows."""
    for one in summary.ceilings:
        gain = summary.gain(one.variant, one.workload, one.concurrency)
        if gain is None or gain.ratio <= one.gain:
            continue
        shares = f"{' + '.join(one.categories)} {one.share:.1%} of decode time"
        text = (
            f"{one.variant} measured a gain of {gain.ratio:.3f} at C={one.concurrency} under"
            f" {one.workload} ({gain.how}{', unreplicated' if gain.low is None else ''}), above the"
            f" ceiling of {one.lever}: {shares} in profile {one.profile}, so at most 1 / (1 -"
            f" {one.share:.3g}) = {one.gain:.3f}."
            f" {_beyond(gain, one.gain)}{_together(summary, one)}"
        )
        parent = summary.plan["variants"][one.variant]["parent"]
        rows = pooled_names(summary, (one.variant, parent), one.workload, one.concurrency)
        yield Finding("ceiling", text, (*rows, profile_name(summary, one.profile)))


def _beyond(gain: Gain, bound: float) -> str:
    """Returns what a gain above its ceiling means."""
    if gain.low is None or gain.high is None:
        return "Not that lever's alone, or noise."
    if gain.low > bound:
        return "Not that lever's alone."
    return (
        f"That may be noise: the interval, {gain.low:.3f} to {gain.high:.3f}, reaches below the"
        " ceiling."
    )


def _together(summary: Summary, bound: Ceiling) -> str:
    """Returns what all levers of a variant can give at most, where it has several."""
    at = (bound.variant, bound.workload, bound.concurrency, bound.profile)
    parts = [
        one
        for one in summary.ceilings
        if (one.variant, one.workload, one.concurrency, one.profile) == at
    ]
    categories = [name for one in parts for name in one.categories]
    share = sum(one.share for one in parts)
    if len(parts) < 2 or len(set(categories)) < len(categories) or share >= 1:
        return ""
    levers = " and ".join(one.lever for one in parts)
    return f" {levers} together: at most {ceiling(share):.3f}."


def predicted(summary: Summary) -> Iterator[Finding]:
    """What kernels should give, and what was measured."""
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
        rows = pooled_names(summary, (bound.variant, parent), bound.workload, bound.concurrency)
        yield Finding("predicted", text, (*rows, bound.profile))


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


def tuned(summary: Summary) -> Iterator[Finding]:
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
                if tuning.given is not None:
                    text = f"was not tuned: {tuning.given}. It is served with {told}."
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


def crossover(summary: Summary) -> Iterator[Finding]:
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
                for name in pooled_names(summary, (variant, parent), workload, concurrency)
            )
            yield Finding("crossover", text, rows)


def recovered(summary: Summary) -> Iterator[Finding]:
    """Variants that recovery made differ beside their lever."""
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
        evidence = (*dict.fromkeys(rows), *_launches(summary, variant))
        yield Finding("recovery", text, evidence)


def accept_length(summary: Summary) -> Iterator[Finding]:
    """Accept lengths that do not represent text."""
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


def draft_useless(summary: Summary) -> Iterator[Finding]:
    """Speculation whose drafts are hardly ever accepted."""
    lengths: dict[tuple[str, str], dict[int, float]] = {}
    for row in summary.valid:
        at = (row["variant"], row["workload"], row["concurrency"])
        length = summary.mean("accept_length", *at)
        if length is not None and length <= USELESS_DRAFT:
            lengths.setdefault(at[:2], {})[at[2]] = length
    for (variant, workload), by_concurrency in lengths.items():
        told = ", ".join(f"{length:.2f} at C={c}" for c, length in by_concurrency.items())
        text = (
            f"{variant} under {workload} accepts {told} tokens a step"
            f" ({USELESS_DRAFT:g} or less): its drafts cost time and give nothing."
        )
        rows = [
            name for c in by_concurrency for name in pooled_names(summary, [variant], workload, c)
        ]
        yield Finding("draft useless", text, tuple(rows))


@dataclass(frozen=True)
class _Left:
    """What a lever can still give: its ceiling, and what of it is measured."""

    ceiling: Ceiling
    measured: float

    @property
    def gain(self) -> float:
        return max(1.0, self.ceiling.gain / self.measured)

    @property
    def text(self) -> str:
        one = self.ceiling
        categories = f"{' + '.join(one.categories)} {one.share:.1%} in {one.profile}"
        measured = f", of which {self.measured:.3f} is measured" if self.measured > 1 else ""
        return f"{one.lever} {one.gain:.3f}{measured} ({categories})"


def exhausted(summary: Summary) -> Iterator[Finding]:
    """Levers of the configuration, none of which can give much any more."""
    plan = summary.plan["variants"]
    kernels = {kernel for variant in plan.values() for kernel in variant.get("kernels", {})}
    left = _left(summary, kernels)
    unbound = _unbound(summary, kernels)
    if not left or max(one.gain for one in left.values()) >= 1 + EXHAUSTED:
        return
    if not all(_is_measured(summary, name) for names in unbound.values() for name in names):
        return
    text = (
        f"No lever of the configuration can give {EXHAUSTED:.0%} any more, by their ceilings:"
        f" {', '.join(one.text for one in left.values())}."
    )
    if unbound:
        text += f" {', '.join(unbound)}: no ceiling, and measured."
    touched = {name for one in left.values() for name in one.ceiling.categories}
    large = _large(summary, {*touched, OTHER})
    if large:
        told = ", ".join(
            f"{part.gain:.2f} without {part.category} ({part.share:.1%} in {part.shares.name})"
            for part in large
        )
        text += f" What is left is in kernels: at most {told}."
    profiles = [one.ceiling.profile for one in left.values()]
    profiles += [part.shares.name for part in large]
    names = dict.fromkeys(profile_name(summary, name) for name in profiles)
    yield Finding("levers exhausted", text, tuple(names))


def _left(summary: Summary, kernels: Container[str]) -> dict[str, _Left]:
    """Returns what is left of each lever with a ceiling, where it is most.

    Empty where a gain is surely above its ceiling: then shares, or what a lever touches, are not
    what they are taken for.
    """
    found: dict[str, _Left] = {}
    for one in summary.ceilings:
        if one.lever in kernels:
            continue
        gain = summary.gain(one.variant, one.workload, one.concurrency)
        measured = 1.0
        if gain is not None:
            if gain.low is not None and gain.low > one.gain:
                return {}
            # The gain of several levers is none's alone.
            if len(summary.plan["variants"][one.variant]["levers"]) == 1:
                measured = max(1.0, gain.ratio if gain.low is None else gain.low)
        here = _Left(one, measured)
        if one.lever not in found or here.gain > found[one.lever].gain:
            found[one.lever] = here
    return found


def _large(summary: Summary, apart: Container[str]) -> list[CategoryCeiling]:
    """Returns the categories that would give most if they were gone, each where it is largest."""
    found: dict[str, CategoryCeiling] = {}
    for part in sorted(summary.category_ceilings, key=lambda part: -part.share):
        if part.gain and part.gain >= 1 + EXHAUSTED and part.category not in apart:
            found.setdefault(part.category, part)
    return list(found.values())[:_LARGEST_LEFT]


def _unbound(summary: Summary, kernels: Container[str]) -> dict[str, list[str]]:
    """Returns the levers that have no ceiling, with the variants that pull them."""
    bounded = {one.lever for one in summary.ceilings}
    found: dict[str, list[str]] = {}
    for name, variant in summary.plan["variants"].items():
        # What the campaign says of a variant is of all its levers.
        together = " + ".join(variant["levers"])
        for lever in variant["levers"]:
            if not {lever, together} & bounded and lever not in kernels:
                found.setdefault(lever, []).append(name)
    return found


def _is_measured(summary: Summary, variant: str) -> bool:
    return any(
        verdict.variant == variant and verdict.ratio is not None
        for verdict in summary.verdicts.values()
    )
