"""Answers by which servers are compared: asked at temperature 0, and how far two of them agree.

Prompts are asked one after the other: what else is in a batch changes the numerics of an answer.
What a server has in its prefix cache can change them too; the probe is asked before the prompts
at a launch and before the one after a point, so that much the same is in it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverbench.campaign.model import Agreement
from leverbench.engines import Address, Api, NoAnswer


@dataclass(frozen=True)
class Shared:
    """How far two answers agree.

    Attributes:
        share: Equal leading tokens over the tokens of the longer answer, 0 to 1.
        tokens: Number of equal leading tokens.
        unit: What counts as a token: ``token ids``, or ``words`` where a server tells no ids.
    """

    share: float
    tokens: int
    unit: str


def ask_prompts(
    api: Api, address: Address, agreement: Agreement, timeout_s: float
) -> list[dict[str, Any]]:
    """Asks all prompts of a campaign; one that the server does not answer is left out.

    Args:
        api: How to talk to the server.
        address: The server.
        agreement: The prompts.
        timeout_s: Longest wait for one answer.

    Returns:
        For each ``{"prompt", "max_tokens", "text", "token_ids": list or None, "seconds"}``.
    """
    asked = (
        _ask(api, address, prompt, agreement.max_tokens, timeout_s) for prompt in agreement.prompts
    )
    return [answer for answer in asked if answer is not None]


def ask_again(
    api: Api,
    address: Address,
    answers: Sequence[Mapping[str, Any]],
    place: int,
    timeout_s: float,
) -> dict[str, Any] | None:
    """Asks one of the prompts that a launch was asked, and compares with its answer then.

    Args:
        api: How to talk to the server.
        address: The server.
        answers: What `ask_prompts` returned at the launch.
        place: Which of them: each number has one, successive ones have all.
        timeout_s: Longest wait for the answer.

    Returns:
        An answer as of `ask_prompts`, and what it shares with the one of the launch: ``"share"``
        and ``"unit"``, None where there is nothing to compare. None where none was asked, or the
        server does not answer.
    """
    if not answers:
        return None
    first = answers[place % len(answers)]
    again = _ask(api, address, first["prompt"], first["max_tokens"], timeout_s)
    if again is None:
        return None
    shared = shared_start(first, again)
    return {
        **again,
        "share": shared.share if shared else None,
        "unit": shared.unit if shared else None,
    }


def shared_start(one: Mapping[str, Any], other: Mapping[str, Any]) -> Shared | None:
    """Compares two answers to one prompt, as `ask_prompts` returns them.

    The share is that of the common start: each greedy token depends on those before it, so after
    the first difference the two are answers to different texts, and equal tokens further on are
    chance. Words are a coarser measure than token ids; they are taken where one side has no ids.

    Returns:
        None where there is nothing to compare: two answers without text or ids.
    """
    if one["token_ids"] is not None and other["token_ids"] is not None:
        unit, tokens, others = "token ids", one["token_ids"], other["token_ids"]
    else:
        unit, tokens, others = "words", one["text"].split(), other["text"].split()
    longer = max(len(tokens), len(others))
    if not longer:
        return None
    pairs = zip(tokens, others, strict=False)
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))
    return Shared(equal / longer, equal, unit)


def _ask(
    api: Api, address: Address, prompt: str, max_tokens: int, timeout_s: float
) -> dict[str, Any] | None:
    """Returns the answer; None without one: whether the server works is for the probe to say."""
    began = time.monotonic()
    try:
        answer = api.ask(address, prompt, max_tokens, timeout_s)
    except NoAnswer:
        return None
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "text": answer.text,
        "token_ids": None if answer.token_ids is None else list(answer.token_ids),
        "seconds": round(time.monotonic() - began, 4),
    }
