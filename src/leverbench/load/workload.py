"""Workloads: which prompts are sent, and how many tokens are asked for."""

from collections.abc import Sequence

import numpy as np

from leverbench.campaign.model import Workload
from leverbench.errors import LeverbenchError
from leverbench.load.endpoint import Request
from leverbench.records import digest

RANDOM_IDS = "random-ids"


def make_requests(
    workload: Workload, count: int, vocabulary: Sequence[int] | range, seed_parts: Sequence[object]
) -> list[Request]:
    """Draws the requests of a window; equal arguments give equal requests.

    Ids are uniform over the vocabulary. First ids differ from request to request (as long as the
    vocabulary lasts), so that no prompt shares even one leading token with another: a prefix
    cache that matches single tokens would otherwise hit by chance where the vocabulary is small.

    Args:
        workload: Lengths and data set.
        count: Number of requests; fewer requests are the first ones of more.
        vocabulary: The token ids to draw from, special tokens left out.
        seed_parts: JSON-able parts that name the window, such as campaign seed, session, workload,
            concurrency and phase. Variants share them, sessions do not.

    Raises:
        LeverbenchError: An unknown data set, or an empty vocabulary.
    """
    if workload.dataset != RANDOM_IDS:
        raise LeverbenchError(
            f"unknown dataset {workload.dataset!r}", cure=f"Use {RANDOM_IDS}, the only one so far."
        )
    if not vocabulary:
        raise LeverbenchError("the model's vocabulary has no token ids to draw prompts from")
    generator = np.random.default_rng(int(digest(list(seed_parts)), 16))
    ids = np.asarray(vocabulary, dtype=np.int64)
    # Drawn before the rest and whatever the count: the rows drawn after it stay prefix-stable.
    first_ids = generator.permutation(ids)
    prompts = ids[generator.integers(len(ids), size=(count, workload.input_tokens))]
    prompts[:, 0] = np.resize(first_ids, count)
    return [
        Request(index, tuple(prompt), workload.output_tokens)
        for index, prompt in enumerate(prompts.tolist())
    ]
