"""The order of sessions: blocks, in which every variant concerned runs once."""

import random
from collections.abc import Mapping, Sequence

# Shufflings tried before a neighbour at a block's edge is accepted (two variants have no choice).
_TRIES = 200

# Variant and session number.
Session = tuple[str, int]


def session_order(
    sessions: Mapping[str, int],
    parents: Mapping[str, str | None],
    seed: int,
    begun: Sequence[Session] = (),
) -> list[Session]:
    """Returns the sessions as (variant, session number) in the order they are run.

    Block ``s`` holds session ``s`` of its variants: of those that still lack sessions, and of
    their parents, so that each is measured beside what it is compared with. A campaign that
    starts from nothing has full blocks; a variant added later gets blocks of its own, after the
    others, with fresh launches of its parent. Blocks that were begun stay as they are.

    Blocks of the same variants are rows of a cyclic Latin square over these variants, shuffled,
    in shuffled order: over as many blocks as there are variants, each variant stands once in each
    position, so that drift is shared evenly. With three or more variants no variant ends a block
    and starts the next, where a shuffling allows it. More sessions add blocks; the earlier blocks
    stay as they were.

    Args:
        sessions: Number of sessions by variant.
        parents: Parent by variant.
        seed: Seed of the campaign.
        begun: Sessions of earlier plans, up to the last block that was begun; variants that are
            no longer there leave it.
    """
    begun = [session for session in begun if session[0] in sessions]
    last_block = max((number for _, number in begun), default=0)
    blocks = [[v for v, number in begun if number == s] for s in range(1, last_block + 1)]
    while True:
        lacking = {v for v, n in sessions.items() if sum(v in block for block in blocks) < n}
        if not lacking:
            break
        beside = {parent for v in lacking if (parent := parents[v]) is not None}
        blocks.append(_row(sorted(lacking | beside), blocks, seed))
    return [(v, number) for number, block in enumerate(blocks, start=1) for v in block]


def _row(variants: list[str], blocks: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Returns the next block of these variants, after the blocks before it."""
    alike = [index for index, block in enumerate(blocks) if sorted(block) == variants]
    square, row = divmod(len(alike), len(variants))
    # What stood before this square's first row, whether that is planned now or long measured.
    start = alike[square * len(variants)] if row else len(blocks)
    before = next((block[-1] for block in reversed(blocks[:start]) if block), None)
    shuffled = list(variants)
    random.Random(f"variants {seed}").shuffle(shuffled)
    count = len(variants)
    rng = random.Random(f"rows {seed} {square} {' '.join(variants)}")
    for _ in range(_TRIES):
        rows = [shuffled[k:] + shuffled[:k] for k in rng.sample(range(count), count)]
        ends = [before, *(each[-1] for each in rows)]
        if all(end != each[0] for end, each in zip(ends, rows, strict=False)):
            break
    return rows[row]
