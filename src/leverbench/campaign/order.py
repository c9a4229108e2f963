"""The order of sessions: blocks, in which every variant concerned runs once."""

import random
from collections import Counter
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
    blocks: dict[int, list[str]] = {}
    for variant, number in sorted(begun, key=lambda session: session[1]):
        if variant in sessions:
            blocks.setdefault(number, []).append(variant)
    planned = Counter(variant for block in blocks.values() for variant in block)
    while lacking := {variant for variant, count in sessions.items() if planned[variant] < count}:
        beside = {parent for variant in lacking if (parent := parents[variant]) is not None}
        block = _row(sorted(lacking | beside), list(blocks.values()), seed)
        blocks[max(blocks, default=0) + 1] = block
        planned.update(block)
    return [(variant, number) for number, block in blocks.items() for variant in block]


def _row(variants: list[str], blocks: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Returns the next block of these variants, after the blocks before it."""
    count = len(variants)
    alike = [
        n for n, block in enumerate(blocks) if len(block) == count and sorted(block) == variants
    ]
    square, row = divmod(len(alike), count)
    # What stood before this square's first row, whether that is planned now or long measured.
    start = alike[square * count] if row else len(blocks)
    before = blocks[start - 1][-1] if start else None
    shuffled = list(variants)
    random.Random(f"variants {seed}").shuffle(shuffled)
    rng = random.Random(f"rows {seed} {square} {' '.join(variants)}")
    for _ in range(_TRIES):
        rows = [shuffled[k:] + shuffled[:k] for k in rng.sample(range(count), count)]
        ends = [before, *(each[-1] for each in rows)]
        if all(end != each[0] for end, each in zip(ends, rows, strict=False)):
            break
    return rows[row]
