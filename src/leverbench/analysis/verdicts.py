"""Verdicts: which lever is faster, which slower, which makes no difference, which nobody knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverbench.analysis.agreement import Agreement
from leverbench.analysis.blocks import blocks
from leverbench.analysis.effects import (
    Contrasts,
    Flags,
    Floats,
    against_parents,
    compare,
    holm,
    sessions_to_settle,
)
from leverbench.analysis.measurements import Row, differences, newest
from leverbench.analysis.ratios import METRICS, Applied, Ratio, metrics_of
from leverbench.analysis.settings import free_conditions
from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN

# The one that is judged; the others have intervals.
PRIMARY = METRICS[0]
# Chance that a campaign without any effect has a verdict faster or slower.
LEVEL = 0.05
# The same for each look of a campaign that runs until it is decided.
LEVEL_PER_LOOK = 0.01
# More sessions than this are not worth a decision.
WORTH_SESSIONS = 20

# Workload and concurrency.
Cell = tuple[str, int]


class Word(StrEnum):
    """A verdict."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"
    NOT_WORTH_DECIDING = "not worth deciding"


@dataclass(frozen=True)
class Decision:
    """Verdicts on n campaigns of c cells (workload and concurrency) and v variants.

    Attributes:
        words: A `Word` each; None without a comparison (n, c, v).
        p_values: Of no difference; NaN without (n, c, v).
        p_holm: The same, adjusted for all comparisons of a campaign (n, c, v).
        settle: Sessions that would decide; NaN where decided, or not worth it (n, c, v).
    """

    words: NDArray[np.object_]
    p_values: Floats
    p_holm: Floats
    settle: Floats


@dataclass(frozen=True)
class Design:
    """What is compared with what, and how strictly.

    Attributes:
        parents: Each variant's parent, in the order of the report.
        controls: Variants that differ from their parent in nothing.
        confounded: Whether more than the lever differs, by variant, workload and concurrency;
            None where nobody says.
        applied: Whether a variant's settings were in force.
        answers_changed: Whether a variant answers otherwise than its parent.
        withheld: By variant: why it is not judged although it was measured.
        free: By variant, the names of conditions in which it may differ from its parent.
        level: Of the verdicts.
        margin: Of *equal*.
        metrics: What is compared, the judged one first.
    """

    parents: Mapping[str, str | None]
    controls: frozenset[str] = frozenset()
    confounded: Mapping[tuple[str, str, int], bool] | None = None
    applied: Mapping[str, bool | None] | None = None
    answers_changed: Mapping[str, bool | None] | None = None
    withheld: Mapping[str, str] | None = None
    free: Mapping[str, frozenset[str]] | None = None
    level: float = LEVEL
    margin: float = DEFAULT_EQUAL_WITHIN
    metrics: Sequence[str] = METRICS


@dataclass(frozen=True)
class Verdict:
    """A variant against its parent, at one workload and concurrency, in one metric.

    Attributes:
        variant: The variant.
        parent: Its parent.
        workload: The workload of both.
        concurrency: The concurrency of both.
        metric: What is compared.
        ratio: Estimate of variant over parent; None where there is none.
        low: Lower end of its interval at 1 - level; None where the noise is not known.
        high: Upper end.
        p: Two-sided p value of no difference; None as above.
        p_holm: Adjusted for all comparisons of the campaign; None for a control, and for metrics
            without verdicts.
        verdict: A `Word`, or None where there is none.
        sessions: Blocks that have both.
        settled_by: Sessions that would settle what is undecided; None else.
        differs: Equal, though no difference is excluded at the level.
        noisy: Variant or parent is noisier than the others: its own paired differences judge it.
        unblocked: Not measured beside its parent: the interval holds the noise between blocks.
        control: An A/A control, which no lever changes and no correction counts.
        confounded: More than its lever differs; None where nobody says.
        applied: True, False, or None where it cannot be shown.
        answers_changed: Whether it answers otherwise than its parent; None where nobody knows.
        withheld: Why there is no verdict though there are measurements; None else.
    """

    variant: str
    parent: str
    workload: str
    concurrency: int
    metric: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: str | None = None
    sessions: int = 0
    settled_by: int | None = None
    differs: bool = False
    noisy: bool = False
    unblocked: bool = False
    control: bool = False
    confounded: bool | None = None
    applied: bool | None = None
    answers_changed: bool | None = None
    withheld: str | None = None


def decide(
    cells: Sequence[Contrasts],
    *,
    sessions: int | NDArray[np.int64],
    level: float = LEVEL,
    margin: float = float(np.log1p(DEFAULT_EQUAL_WITHIN)),
    family: Flags | None = None,
) -> Decision:
    """Turns comparisons into verdicts.

    *Equal* where the interval at ``1 - 2 * level`` lies inside the margin (two one-sided tests);
    else *faster* or *slower* where Holm's adjusted p value is below the level; else *undecided*,
    or *not worth deciding* where even `WORTH_SESSIONS` sessions would not settle it.

    Args:
        cells: The comparisons at each workload and concurrency.
        sessions: How many sessions there are, of all or of each comparison (cells, variants).
        level: Of the verdicts.
        margin: Largest difference of logarithms that counts as equal.
        family: Which comparisons are counted by the correction (cells, variants); all by default.
    """
    estimate = np.stack([cell.estimate for cell in cells], axis=1)
    p_values = np.stack([cell.p_values() for cell in cells], axis=1)
    count, width = len(estimate), estimate.shape[1] * estimate.shape[2]
    counted = np.ones(estimate.shape[1:], dtype=bool) if family is None else family
    adjusted = holm(np.where(counted, p_values, np.nan).reshape(count, width))
    p_holm = adjusted.reshape(estimate.shape)
    # Controls are no levers: a family of their own.
    beside = holm(np.where(counted, np.nan, p_values).reshape(count, width))
    judged_by = np.where(counted, p_holm, beside.reshape(estimate.shape))
    with np.errstate(invalid="ignore"):
        reach = np.abs(estimate) + np.stack([c.half_width(1 - 2 * level) for c in cells], axis=1)
        equal = reach < margin
        significant = ~equal & (judged_by < level)
    words = np.full(estimate.shape, None, dtype=object)
    words[~np.isnan(estimate)] = Word.UNDECIDED
    words[equal] = Word.EQUAL
    words[significant & (estimate > 0)] = Word.FASTER
    words[significant & (estimate < 0)] = Word.SLOWER
    open_ = words == Word.UNDECIDED
    df = np.stack([cell.df for cell in cells], axis=1)
    sd = np.stack([cell.residual_sd for cell in cells], axis=1)
    settle = np.full(estimate.shape, np.nan)
    number = np.broadcast_to(np.maximum(open_.sum(axis=(1, 2), keepdims=True), 1), open_.shape)
    beyond = np.broadcast_to(sessions, estimate.shape)
    settle[open_] = sessions_to_settle(
        estimate[open_],
        sd[open_],
        df[open_] / np.maximum(beyond[open_] - 1, 1),
        number[open_],
        level=level,
        margin=margin,
        beyond=beyond[open_],
        most=WORTH_SESSIONS,
    )
    # Without a figure for the noise, nobody knows what it is worth.
    words[open_ & np.isnan(settle) & (df > 0)] = Word.NOT_WORTH_DECIDING
    return Decision(words, p_values, p_holm, settle)


def judge(rows: Sequence[Row], design: Design) -> list[Verdict]:
    """Judges every variant against its parent.

    Args:
        rows: Measurements; invalid ones count for nothing but the passes over the variants.
        design: What is compared with what.

    Returns:
        One verdict for each metric, variant with a parent, workload and concurrency, in this
        order.
    """
    cells = cells_of(rows)
    return [v for metric in design.metrics for v in _judge_metric(rows, design, metric, cells)]


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    """Returns each workload and concurrency of the rows once."""
    return list(dict.fromkeys((row["workload"], row["concurrency"]) for row in rows))


def logarithms(
    rows: Sequence[Row], cell: Cell, design: Design, metric: str
) -> tuple[Floats, dict[str, str]]:
    """Returns what one cell measured, as the model takes it.

    Of rows under different conditions, those like the newest one count.

    Returns:
        Logarithms (variants, blocks), NaN where there is nothing, and by variant why it cannot be
        compared with its parent although both were measured.
    """
    here = [row for row in rows if (row["workload"], row["concurrency"]) == cell]
    numbers = dict(zip(map(id, here), blocks(here), strict=True))
    own = {
        name: [
            row
            for row in newest([r for r in here if r["variant"] == name])
            if row[metric] is not None
        ]
        for name in design.parents
    }
    pooled = [row for rows in own.values() for row in rows]
    kept = own
    if pooled:
        last = max(pooled, key=lambda row: str(row["started_at"] or ""))
        free = {"engine"}.union(*(design.free or {}).values())
        kept = {
            name: [row for row in rows if not set(differences(row, last)) - free]
            for name, rows in own.items()
        }
    y = np.full((len(kept), max(numbers.values(), default=0) + 1), np.nan)
    for v, rows_of_variant in enumerate(kept.values()):
        for row in rows_of_variant:
            if row[metric] > 0:
                y[v, numbers[id(row)]] = np.log(row[metric])
    apart = {name: _apart(own, kept, name, metric, design) for name in own}
    return y, {name: why for name, why in apart.items() if why is not None}


def campaign_design(
    plan: Mapping[str, Any],
    applied: Mapping[str, Applied],
    agreement: Mapping[str, Agreement],
    ratios: Sequence[Ratio],
) -> Design:
    """Returns what a planned campaign compares.

    Args:
        plan: The campaign's plan.
        applied: What `applied_levers` found.
        agreement: What `agreement_of` found.
        ratios: What `ratios` found, for what recovery confounds.
    """
    variants = plan["variants"]
    confounded: dict[tuple[str, str, int], bool] = {}
    for ratio in ratios:
        key = (ratio.variant, ratio.workload, ratio.concurrency)
        confounded[key] = confounded.get(key, False) or ratio.confounded
    return Design(
        parents={name: variant["parent"] for name, variant in variants.items()},
        controls=frozenset(name for name, variant in variants.items() if variant["control"]),
        confounded=confounded,
        applied={name: proof.applied for name, proof in applied.items()},
        answers_changed={name: found.changed for name, found in agreement.items()},
        withheld={
            name: f"not applied: {proof.reason}"
            for name, proof in applied.items()
            if proof.state == "not applied"
        },
        free={name: free_conditions(variant) for name, variant in variants.items()},
        level=level(until=bool(plan.get("until"))),
        margin=plan.get("equal_within", DEFAULT_EQUAL_WITHIN),
        metrics=metrics_of(plan),
    )


def level(*, until: bool) -> float:
    """Returns the level of verdicts; stricter where a campaign is looked at several times."""
    return LEVEL_PER_LOOK if until else LEVEL


def verdict_text(verdict: Verdict) -> str:
    """Returns a verdict in words, with what is to be known of it."""
    if verdict.withheld is not None:
        return f"withheld: {verdict.withheld}"
    if verdict.ratio is None:
        return "not measured"
    text = verdict.verdict or "no verdict on this metric"
    if verdict.verdict == Word.UNDECIDED:
        if verdict.low is None:
            text += ": unreplicated"
        elif verdict.settled_by is not None:
            text += f": {verdict.settled_by} sessions would settle it"
    if verdict.differs:
        text += ", though not the same"
    notes = {
        "noisy": verdict.noisy,
        "unblocked": verdict.unblocked,
        "confounded": bool(verdict.confounded),
        "answers changed": bool(verdict.answers_changed),
    }
    return ", ".join([text, *(note for note, holds in notes.items() if holds)])


def interval_text(verdict: Verdict) -> str:
    """Returns ratio, interval and p value as text; what is not known is left out."""
    if verdict.ratio is None:
        return "no ratio"
    text = f"{verdict.ratio:.3f}"
    if verdict.low is not None and verdict.high is not None:
        text += f" ({verdict.low:.3f} to {verdict.high:.3f})"
    p = verdict.p if verdict.p_holm is None else verdict.p_holm
    return text if p is None else f"{text}, p {'< 0.0001' if p < 0.0001 else f'= {p:.4f}'}"


def verdict_line(verdict: Verdict) -> str:
    """Returns a comparison and its verdict in one line."""
    what = f"{verdict.variant} / {verdict.parent}, {verdict.workload}, C={verdict.concurrency}"
    return f"{what}: {interval_text(verdict)}: {verdict_text(verdict)}"


def _judge_metric(
    rows: Sequence[Row], design: Design, metric: str, cells: Sequence[Cell]
) -> list[Verdict]:
    if not cells:
        return []
    names = list(design.parents)
    parents = [None if p is None else names.index(p) for p in design.parents.values()]
    contrasts, pairs, apart = [], [], []
    for cell in cells:
        y, unlike = logarithms(rows, cell, design, metric)
        withheld = {**unlike, **(design.withheld or {})}
        weights = against_parents(parents)
        # What is withheld is no comparison: none that the correction counts.
        weights[[name in withheld for name in names]] = 0
        contrasts.append(compare(y[None], weights))
        pairs.append(_shared_blocks(y, parents))
        apart.append(withheld)
    controls = np.array([name in design.controls for name in names])
    decision = decide(
        contrasts,
        sessions=np.array(pairs),
        level=design.level,
        margin=float(np.log1p(design.margin)),
        family=np.broadcast_to(~controls, (len(cells), len(names))),
    )
    verdicts = []
    for v, name in enumerate(names):
        parent = design.parents[name]
        if parent is None:
            continue
        for place, (workload, concurrency) in enumerate(cells):
            key = (name, workload, concurrency)
            verdict = Verdict(
                variant=name,
                parent=parent,
                workload=workload,
                concurrency=concurrency,
                metric=metric,
                sessions=pairs[place][v],
                control=name in design.controls,
                confounded=None if design.confounded is None else design.confounded.get(key),
                applied=(design.applied or {}).get(name),
                answers_changed=(design.answers_changed or {}).get(name),
                withheld=apart[place].get(name),
            )
            if verdict.withheld is None:
                verdict = _with_figures(verdict, contrasts[place], decision, place, v, design)
            verdicts.append(verdict)
    return verdicts


def _with_figures(
    verdict: Verdict,
    contrasts: Contrasts,
    decision: Decision,
    place: int,
    v: int,
    design: Design,
) -> Verdict:
    estimate = contrasts.estimate[0, v]
    half = contrasts.half_width(1 - design.level)[0, v]
    verdict = replace(
        verdict,
        ratio=_number(np.exp(estimate)),
        low=_number(np.exp(estimate - half)),
        high=_number(np.exp(estimate + half)),
        p=_number(decision.p_values[0, place, v]),
        noisy=bool(contrasts.noisy[0, v]),
        unblocked=bool(contrasts.unblocked[0, v]),
    )
    if verdict.metric != PRIMARY:
        return verdict
    word, settle = decision.words[0, place, v], decision.settle[0, place, v]
    return replace(
        verdict,
        p_holm=None if verdict.control else _number(decision.p_holm[0, place, v]),
        verdict=None if word is None else str(word),
        settled_by=None if np.isnan(settle) else int(settle),
        differs=bool(word == Word.EQUAL and abs(estimate) > half),
    )


def _shared_blocks(y: Floats, parents: Sequence[int | None]) -> list[int]:
    present = ~np.isnan(y)
    return [0 if p is None else int((present[v] & present[p]).sum()) for v, p in enumerate(parents)]


def _apart(
    own: Mapping[str, Sequence[Row]],
    kept: Mapping[str, Sequence[Row]],
    name: str,
    metric: str,
    design: Design,
) -> str | None:
    """Returns why a variant cannot be compared with its parent; None where it can, or has no rows.

    Args:
        own: The newest rows of each variant.
        kept: Those of them that are like the newest row of all.
        name: The variant.
        metric: What is compared.
        design: What is compared with what.
    """
    parent = design.parents[name]
    if parent is None or not (own[name] and own[parent]):
        return None
    free = (design.free or {}).get(name, frozenset())
    apart = [key for key in differences(own[name][0], own[parent][0]) if key not in free]
    if apart:
        return f"measured on another {' and another '.join(apart)}"
    if not (kept[name] and kept[parent]):
        return "measured under other conditions than the newest rows"
    if any(row[metric] <= 0 for side in (name, parent) for row in kept[side]):
        return "0 in a session, which has no ratio"
    return None


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
