"""The order of sessions."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from leverbench.campaign.order import session_order


def star(names, root="a"):
    """All variants are children of one root."""
    return {name: None if name == root else root for name in names}


def even(names, count):
    return dict.fromkeys(names, count)


def blocks(order):
    found: dict[int, list[str]] = {}
    for variant, session in order:
        found.setdefault(session, []).append(variant)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_each_variant_stands_once_in_each_position(seed):
    order = session_order(even("abcde", 5), star("abcde"), seed)

    positions = Counter(
        (variant, place) for block in blocks(order).values() for place, variant in enumerate(block)
    )
    assert len(order) == 25
    assert set(positions.values()) == {1}


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("seed", range(20))
def test_no_variant_follows_itself(seed, count):
    names = "abcdef"[:count]
    order = session_order(even(names, 7), star(names), seed)

    assert all(left[0] != right[0] for left, right in pairwise(order))


def test_blocks_are_run_one_after_the_other():
    sessions = [n for _, n in session_order(even("abcd", 3), star("abcd"), 1)]

    assert sessions == sorted(sessions)


@pytest.mark.parametrize("seed", range(10))
def test_more_sessions_leave_the_earlier_ones_in_place(seed):
    few = session_order(even("abcd", 2), star("abcd"), seed)

    assert session_order(even("abcd", 9), star("abcd"), seed)[: len(few)] == few


def test_a_variant_that_asks_for_more_sessions_brings_its_parent_along():
    sessions, parents = {"a": 1, "b": 3, "c": 2, "d": 1}, {"a": None, "b": "a", "c": "a", "d": "c"}
    order = session_order(sessions, parents, 1)

    assert {n: sorted(block) for n, block in blocks(order).items()} == {
        1: ["a", "b", "c", "d"],
        2: ["a", "b", "c"],
        3: ["a", "b"],
    }


def test_a_root_brings_nobody_along():
    order = session_order({"a": 3, "b": 1}, {"a": None, "b": "a"}, 1)

    assert Counter(variant for variant, _ in order) == {"a": 3, "b": 1}


@pytest.mark.parametrize("seed", range(10))
def test_a_late_variant_runs_after_the_others_beside_fresh_launches_of_its_parent(seed):
    begun = session_order(even("abc", 3), star("abc"), seed)
    order = session_order(even("abcd", 3), {**star("abc"), "d": "b"}, seed, begun)

    assert order[: len(begun)] == begun
    later = blocks(order[len(begun) :])
    assert list(later) == [4, 5, 6]
    assert all(sorted(block) == ["b", "d"] for block in later.values())
    # Each of the two goes first as often as their number allows.
    assert sorted(Counter(block[0] for block in later.values()).values()) == [1, 2]


def test_sessions_added_after_a_late_variant_complete_the_others_first():
    begun = session_order(even("abc", 2), star("abc"), 1)
    begun = session_order(even("abcd", 2), star("abcd"), 1, begun)
    order = session_order(even("abcd", 3), star("abcd"), 1, begun)

    # a has four sessions already, beside d; it runs a fifth time as the parent of the others.
    assert order[: len(begun)] == begun
    assert {n: sorted(block) for n, block in blocks(order[len(begun) :]).items()} == {
        5: ["a", "b", "c", "d"]
    }


def test_sessions_that_were_begun_stay_when_fewer_are_asked_for():
    begun = session_order(even("abc", 3), star("abc"), 1)

    assert session_order(even("abc", 1), star("abc"), 1, begun) == begun


def test_a_removed_variant_leaves_the_order_and_the_others_stay():
    begun = session_order(even("abcd", 2), star("abcd"), 1)

    assert session_order(even("abd", 2), star("abd"), 1, begun) == [s for s in begun if s[0] != "c"]


def test_numbers_go_on_after_the_last_one_that_is_left():
    begun = [("a", 1), ("a", 7), ("gone", 9)]

    assert session_order({"a": 3}, {"a": None}, 1, begun) == [("a", 1), ("a", 7), ("a", 8)]


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_that_is_continued_is_the_plan_made_at_once(seed):
    rng = random.Random(seed)
    names = "abcdefgh"[: rng.randint(1, 8)]
    # Each one's parent comes before it, or it is a root.
    parents = {
        name: rng.choice([None, *names[:place]]) if place else None
        for place, name in enumerate(names)
    }
    sessions = {name: rng.randint(1, 5) for name in names}
    late = session_order(
        {name: n for name, n in sessions.items() if name != names[-1]}, parents, seed
    )
    cut = rng.randint(0, 3)
    # From nothing, and from a campaign to which the last variant was added after some blocks.
    for begun in ([], [session for session in late if session[1] <= cut]):
        at_once = session_order(sessions, parents, seed, begun)
        assert len(set(at_once)) == len(at_once)
        for block in range(max((n for _, n in begun), default=0), max(n for _, n in at_once) + 1):
            prefix = [session for session in at_once if session[1] <= block]
            assert session_order(sessions, parents, seed, prefix) == at_once
        counts = Counter(variant for variant, _ in at_once)
        assert all(counts[name] >= n for name, n in sessions.items())
        # A variant without its parent in a block is there as the parent of another.
        for block in blocks(at_once[len(begun) :]).values():
            alone = [v for v in block if parents[v] is not None and parents[v] not in block]
            assert all(any(parents[other] == v for other in block) for v in alone)


def test_seeds_give_different_orders():
    orders = {tuple(session_order(even("abcd", 4), star("abcd"), seed)) for seed in range(8)}

    assert len(orders) > 4


def test_nothing_gives_nothing():
    assert session_order({}, {}, 1) == []
