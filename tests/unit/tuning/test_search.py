"""Successive halving on scripted times."""

import pytest

from leverbench.tuning.invalid import Invalid, InvalidCandidate
from leverbench.tuning.search import RUNGS, Found, halve


def search(times_s: list[float], invalid: dict[int, Invalid] | None = None):
    """Returns what was found, and the (candidate, rung) that were measured, in order."""
    measured: list[tuple[int, int]] = []

    def measure(candidate, rung):
        work = candidate["work"]
        measured.append((work, rung))
        if work in (invalid or {}):
            raise InvalidCandidate(invalid[work], "scripted")
        return [times_s[work]] * RUNGS[rung]

    found: Found = halve([{"work": work} for work in range(len(times_s))], measure)
    return found, measured


def test_the_slower_half_is_dropped_until_two_are_left():
    found, measured = search([8, 3, 7, 1, 6, 2, 5, 4])

    assert measured == [
        *((work, 0) for work in range(8)),
        *((work, 1) for work in (3, 5, 1, 7)),
    ]
    assert found.ranking == (3, 5)
    assert found.medians_s == (8, 3, 7, 1, 6, 2, 5, 4)


def test_it_ends_with_the_last_rung():
    found, measured = search([float(64 - work) for work in range(64)])

    assert [sum(rung == at for _, at in measured) for rung in range(4)] == [64, 32, 16, 8]
    assert found.ranking == (63, 62, 61, 60)


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_are_measured_once(count):
    found, measured = search([2.0, 1.0][:count])

    assert measured == [(work, 0) for work in range(count)]
    assert found.ranking == (count - 1,)


def test_of_equal_ones_the_first_stays():
    found, _ = search([1.0] * 5)

    assert found.ranking == (0, 1)


def test_the_invalid_are_counted_and_not_measured_again():
    found, measured = search(
        [5, 1, 2, 3, 4, 6], {1: Invalid.CRASHED, 2: Invalid.WRONG_ANSWER, 5: Invalid.CRASHED}
    )

    assert found.invalid == {Invalid.CRASHED: 2, Invalid.WRONG_ANSWER: 1}
    assert found.ranking == (3, 4)
    assert found.medians_s == (5, None, None, 3, 4, None)
    assert len(measured) == 6


def test_all_samples_of_a_candidate_count():
    """In rung 1 the first candidate is slow: 10 samples of 9 against 5 of 1."""
    times_s = {(0, 0): 1.0, (0, 1): 9.0}
    found = halve(
        [{"work": work} for work in range(5)],
        lambda candidate, rung: (
            [times_s.get((candidate["work"], rung), float(candidate["work"] + 1))] * RUNGS[rung]
        ),
    )

    assert found.medians_s[0] == 9
    assert found.ranking == (1, 2)
