"""The order of sessions: blocks, in which every variant runs once."""

import random
from collections.abc import Mapping

# Shufflings tried before a neighbour at a block's edge is accepted (two variants have no choice).
_TRIES = 200


def session_order(sessions: Mapping[str, int], seed: int) -> list[tuple[str, int]]:
    """Returns the sessions as (variant, session number) in the order they are run.

    Block ``s`` holds session ``s`` of every variant that has one. The blocks are rows of a
    cyclic Latin square over the shuffled variants, in shuffled order: over as many blocks as
    there are variants, each variant stands once in each position, so that drift is shared
    evenly. With three or more variants no variant ends a block and starts the next, where a
    shuffling allows it. More sessions add blocks; the earlier blocks stay as they were.

    Args:
        sessions: Number of sessions by variant.
        seed: Seed of the campaign.
    """
    variants = sorted(sessions)
    random.Random(f"variants {seed}").shuffle(variants)
    count = len(variants)
    order: list[tuple[str, int]] = []
    last = None
    session = 0
    while session < max(sessions.values(), default=0):
        rng = random.Random(f"rows {seed} {session}")
        for _ in range(_TRIES):
            rows = [variants[k:] + variants[:k] for k in rng.sample(range(count), count)]
            ends = [last, *(row[-1] for row in rows)]
            if all(end != row[0] for end, row in zip(ends, rows, strict=False)):
                break
        for row in rows:
            session += 1
            order += [(variant, session) for variant in row if sessions[variant] >= session]
        last = rows[-1][-1]
    return order
