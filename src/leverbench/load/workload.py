"""Workloads: which prompts are sent, and how many tokens are asked for."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leverbench.campaign.model import FILE, RANDOM_IDS, Tokens, Workload
from leverbench.errors import LeverbenchError
from leverbench.load.dataset import require_lines
from leverbench.load.endpoint import Request
from leverbench.load.prompts import Prompts
from leverbench.records import digest

Integers = NDArray[np.int64]


def make_requests(
    workload: Workload,
    count: int,
    vocabulary: Sequence[int] | range,
    seed_parts: Sequence[object],
    prompts: Prompts | None = None,
    *,
    shape_parts: Sequence[object] | None = None,
) -> list[Request]:
    """Draws the requests of a window; equal arguments give equal requests.

    Random ids are uniform over the vocabulary. First ids differ from request to request (as long
    as the vocabulary lasts), so that no prompt shares even one leading token with another: a prefix
    cache that matches single tokens would otherwise hit by chance where the vocabulary is small.
    With shared prefixes the same holds for the prefixes, and for what follows them. Lengths are
    uniform over their range.

    Lines of a file are drawn without repetition, since a prompt that came again would be found in
    the cache.

    Args:
        workload: Lengths and data set.
        count: Number of requests; fewer requests are the first ones of more.
        vocabulary: The token ids to draw from, special tokens left out.
        seed_parts: JSON-able parts that name the window, such as campaign seed, session, workload,
            concurrency and phase. Variants share them, sessions do not.
        prompts: The prompts of a workload that is read from a file.
        shape_parts: Seed of the lengths, or of the lines that are taken, where several windows are
            to have the same ones; the default is ``seed_parts``.

    Raises:
        LeverbenchError: An unknown data set, an empty vocabulary, or more requests than lines.
    """
    shape = list(seed_parts if shape_parts is None else shape_parts)
    if workload.dataset == FILE:
        if prompts is None:
            raise ValueError("the requests of a file are drawn from its prompts")
        require_lines(workload, len(prompts), count)
        places = _generator(shape).permutation(len(prompts))[:count]
        return [prompts.request(int(place), index) for index, place in enumerate(places)]
    if workload.dataset != RANDOM_IDS:
        raise LeverbenchError(
            f"unknown dataset {workload.dataset!r}", cure=f"Use {RANDOM_IDS} or {FILE}."
        )
    if not vocabulary:
        raise LeverbenchError("the model's vocabulary has no token ids to draw prompts from")
    ids = np.asarray(vocabulary, dtype=np.int64)
    lengths = _lengths(workload.input_tokens, count, [*shape, "input_tokens"])
    answers = _lengths(workload.output_tokens, count, [*shape, "output_tokens"])
    if workload.shared_prefix is None:
        inputs = _draw(ids, lengths, seed_parts)
    else:
        tokens, groups = workload.shared_prefix.tokens, workload.shared_prefix.groups
        prefixes = _draw(ids, np.full(groups, tokens), [*seed_parts, "prefixes"])
        taken = _generator([*shape, "groups"]).integers(groups, size=count).tolist()
        own = _draw(ids, lengths - tokens, seed_parts)
        inputs = [prefixes[group] + rest for group, rest in zip(taken, own, strict=True)]
    return [
        Request(index, tuple(prompt), answer)
        for index, (prompt, answer) in enumerate(zip(inputs, answers.tolist(), strict=True))
    ]


def _generator(seed_parts: Sequence[object]) -> np.random.Generator:
    return np.random.default_rng(int(digest(list(seed_parts)), 16))


def _lengths(tokens: Tokens | None, count: int, seed_parts: Sequence[object]) -> Integers:
    """Draws a length for each request; with a generator of its own, so that ids do not change."""
    if tokens is None:
        raise ValueError("random ids have lengths")
    if isinstance(tokens, int):
        return np.full(count, tokens)
    low, high = tokens
    return _generator(seed_parts).integers(low, high, size=count, endpoint=True)


def _draw(ids: Integers, lengths: Integers, seed_parts: Sequence[object]) -> list[list[int]]:
    """Draws token ids, one list for each length; first ids differ as long as there are others."""
    generator = _generator(seed_parts)
    # Drawn before the rest and whatever the count: what is drawn after it stays prefix-stable.
    first_ids = generator.permutation(ids)
    starts = np.cumsum(lengths) - lengths
    drawn = ids[generator.integers(len(ids), size=int(lengths.sum()))]
    drawn[starts] = np.resize(first_ids, len(lengths))
    return [part.tolist() for part in np.split(drawn, starts)[1:]]
