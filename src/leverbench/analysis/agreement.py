"""Whether a variant answers as its parent does: greedy answers of their launches, compared."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from leverbench.analysis.settings import free_conditions
from leverbench.serving.answers import Shared, shared_start

Launch = Mapping[str, Any]


@dataclass(frozen=True)
class PromptAgreement:
    """How far a variant and its parent agree in the answers to one prompt.

    Shares are those of `serving.answers.shared_start`, 0 to 1.

    Attributes:
        prompt: The prompt.
        unit: What was compared: ``token ids`` or ``words``.
        mean: Mean share over all pairs of a launch of the variant and one of the parent.
        parents_own: The same over the pairs of the parent's launches: what numerics alone do.
            None with fewer than two launches to compare.
        tokens: Equal leading tokens of the pair that agrees least.
        parents_answer: The parent's answer in that pair.
        answer: The variant's.
    """

    prompt: str
    unit: str
    mean: float
    parents_own: float | None
    tokens: int
    parents_answer: str
    answer: str


@dataclass(frozen=True)
class Agreement:
    """How far a variant's answers agree with its parent's, over all their launches.

    Attributes:
        variant: The variant.
        parent: What it is compared with.
        changed: True where the answers to some prompt agree less than the tolerance allows, and
            the parent's own launches agree in them. False where all agree. None where it cannot
            be said: no answers to compare, or the parent's own launches differ as far.
        state: ``as the parent``, ``changed``, ``cannot be said`` or ``not recorded``.
        mean: Mean over the prompts; None where nothing can be compared.
        lowest: The prompt that agrees least; None likewise.
        parents_own: Mean of the parent's own launches over the prompts; None where not known.
        launches: How many launches of the variant, and of the parent, were compared.
        prompts: Each prompt that launches of both were asked, in the order of the asking.
        differing: Those of them that agree less than the tolerance allows.
    """

    variant: str
    parent: str
    changed: bool | None
    state: str
    mean: float | None
    lowest: float | None
    parents_own: float | None
    launches: tuple[int, int]
    prompts: tuple[PromptAgreement, ...]
    differing: tuple[PromptAgreement, ...]


def agreement_of(plan: Mapping[str, Any], launches: Mapping[str, Launch]) -> dict[str, Agreement]:
    """Compares the answers of each variant's launches with those of its parent's.

    Launches are compared under equal conditions: model, machine and, unless it is the lever,
    engine. Of a prompt that was asked otherwise, or of only one side, nothing is said.

    Args:
        plan: The campaign's plan.
        launches: Launch records by server id.

    Returns:
        By variant, for those that have a parent.
    """
    answered: dict[str, list[Launch]] = {}
    enough = 1.0
    # None where it is switched off; absent in a plan of before there was any.
    if settings := plan.get("agreement"):
        enough -= settings["tolerance"]
        for launch in launches.values():
            if launch.get("answers"):
                answered.setdefault(launch["variant"], []).append(launch)
    return {
        name: _agreement(name, variant, enough, answered)
        for name, variant in plan["variants"].items()
        if variant["parent"] is not None
    }


def _agreement(
    name: str,
    variant: Mapping[str, Any],
    enough: float,
    answered: Mapping[str, Sequence[Launch]],
) -> Agreement:
    mine, parents = answered.get(name, ()), answered.get(variant["parent"], ())
    free = free_conditions(variant)
    pairs = [pair for pair in product(mine, parents) if _alike(*pair, free)]
    own = [pair for pair in combinations(parents, 2) if _alike(*pair, frozenset())]
    asked = dict.fromkeys(
        (answer["prompt"], answer["max_tokens"])
        for launch, _ in pairs
        for answer in launch["answers"]
    )
    prompts = tuple(
        found for question in asked if (found := _compare(question, pairs, own)) is not None
    )
    compared = [prompt.parents_own for prompt in prompts if prompt.parents_own is not None]
    differing = tuple(prompt for prompt in prompts if prompt.mean < enough)
    if any(prompt.parents_own is None or prompt.parents_own >= enough for prompt in differing):
        changed, state = True, "changed"
    elif prompts and not differing:
        changed, state = False, "as the parent"
    else:
        changed, state = None, "cannot be said" if pairs else "not recorded"
    return Agreement(
        variant=name,
        parent=variant["parent"],
        changed=changed,
        state=state,
        mean=statistics.fmean(prompt.mean for prompt in prompts) if prompts else None,
        lowest=min((prompt.mean for prompt in prompts), default=None),
        parents_own=statistics.fmean(compared) if compared else None,
        launches=(len({a["server_id"] for a, _ in pairs}), len({b["server_id"] for _, b in pairs})),
        prompts=prompts,
        differing=differing,
    )


def _alike(one: Launch, other: Launch, free: frozenset[str]) -> bool:
    """Whether two launches ran under conditions that differ in the lever alone."""
    digests, others = one.get("digests") or {}, other.get("digests") or {}
    return (
        digests.get("model") == others.get("model")
        and ("engine" in free or digests.get("engine") == others.get("engine"))
        and ("machine" in free or one.get("machine") == other.get("machine"))
    )


def _compare(
    question: tuple[str, int],
    pairs: Sequence[tuple[Launch, Launch]],
    own: Sequence[tuple[Launch, Launch]],
) -> PromptAgreement | None:
    """Returns what pairs of variant and parent, and the parent's own, share in one prompt."""
    found = list(_shared(question, pairs))
    if not found:
        return None
    shared, answer, parents_answer = min(found, key=lambda each: each[0].share)
    parents = [each.share for each, _, _ in _shared(question, own)]
    return PromptAgreement(
        prompt=question[0],
        unit=shared.unit,
        mean=statistics.fmean(each.share for each, _, _ in found),
        parents_own=statistics.fmean(parents) if parents else None,
        tokens=shared.tokens,
        parents_answer=parents_answer,
        answer=answer,
    )


def _shared(
    question: tuple[str, int], pairs: Sequence[tuple[Launch, Launch]]
) -> Iterator[tuple[Shared, str, str]]:
    """Yields what each pair shares in one prompt, and its two answers."""
    for pair in pairs:
        one, other = (
            next((a for a in launch["answers"] if (a["prompt"], a["max_tokens"]) == question), None)
            for launch in pair
        )
        if one and other and (shared := shared_start(one, other)):
            yield shared, one["text"], other["text"]
