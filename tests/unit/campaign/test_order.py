"""The order of sessions."""

from collections import Counter
from itertools import pairwise

import pytest

from leverbench.campaign.order import session_order


def blocks(order):
    found: dict[int, list[str]] = {}
    for variant, session in order:
        found.setdefault(session, []).append(variant)
    return list(found.values())


@pytest.mark.parametrize("seed", range(20))
def test_each_variant_stands_once_in_each_position(seed):
    order = session_order(dict.fromkeys("abcde", 5), seed)

    positions = Counter(
        (variant, place) for block in blocks(order) for place, variant in enumerate(block)
    )
    assert len(order) == 25
    assert set(positions.values()) == {1}


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("seed", range(20))
def test_no_variant_follows_itself(seed, count):
    order = session_order(dict.fromkeys("abcdef"[:count], 7), seed)

    assert all(left[0] != right[0] for left, right in pairwise(order))


def test_blocks_are_run_one_after_the_other():
    sessions = [session for _, session in session_order(dict.fromkeys("abcd", 3), 1)]

    assert sessions == sorted(sessions)


@pytest.mark.parametrize("seed", range(10))
def test_more_sessions_leave_the_earlier_ones_in_place(seed):
    few = session_order(dict.fromkeys("abcd", 2), seed)

    assert session_order(dict.fromkeys("abcd", 9), seed)[: len(few)] == few


def test_a_variant_with_fewer_sessions_leaves_the_later_blocks():
    order = session_order({"a": 1, "b": 3, "c": 3}, 1)

    assert Counter(variant for variant, _ in order) == {"a": 1, "b": 3, "c": 3}
    assert ("a", 1) in order


def test_seeds_give_different_orders():
    assert len({tuple(session_order(dict.fromkeys("abcd", 4), seed)) for seed in range(8)}) > 4


def test_nothing_gives_nothing():
    assert session_order({}, 1) == []
