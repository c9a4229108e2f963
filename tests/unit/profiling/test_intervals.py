"""Intervals: unions, what is cut to windows, what is idle, who is alone."""

import numpy as np
import pytest

from leverbench.profiling.intervals import alone_ns, clip, gaps, merge


def ns(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def lists(*arrays: np.ndarray) -> tuple[list[int], ...]:
    return tuple(array.tolist() for array in arrays)


def test_a_union_counts_no_time_twice_and_joins_what_touches():
    merged = merge(ns(20, 0, 5, 30, 10), ns(25, 8, 10, 31, 20))

    # 0-8, 5-10, 10-20 and 20-25 are one; 30-31 is another.
    assert lists(*merged) == ([0, 30], [25, 31], [0, 0])


def test_groups_are_united_by_themselves():
    merged = merge(ns(0, 5, 3, 100), ns(10, 15, 4, 101), ns(1, 0, 1, 0))

    assert lists(*merged) == ([5, 100, 0], [15, 101, 10], [0, 0, 1])


def test_times_since_the_start_of_a_machine_are_exact():
    start = 5_000_000_000_000_001
    merged = merge(ns(start, start + 2), ns(start + 1, start + 5), ns(1000, 1000))

    assert lists(*merged) == ([start, start + 2], [start + 1, start + 5], [1000, 1000])


def test_nothing_has_an_empty_union():
    assert lists(*merge(ns(), ns())) == ([], [], [])


def test_intervals_are_cut_to_windows():
    windows = ns(10, 30), ns(20, 40)
    cut = clip(ns(0, 5, 12, 15, 20, 39), ns(5, 12, 13, 35, 30, 90), windows)

    # 0-5 is before, 20-30 between them; 15-35 lies across both.
    assert lists(*cut) == ([10, 12, 15, 30, 39], [12, 13, 20, 35, 40], [1, 2, 3, 3, 5])


def test_what_is_left_of_windows_is_idle():
    busy = ns(10, 15, 32), ns(12, 20, 35)
    windows = ns(10, 30), ns(25, 35)

    assert lists(*gaps(busy, windows)) == ([12, 20, 30], [15, 25, 32])


def test_a_window_without_anything_is_idle_as_a_whole():
    assert lists(*gaps((ns(), ns()), (ns(3), ns(9)))) == ([3], [9])


@pytest.mark.parametrize(
    ("start", "end", "group", "expected"),
    [
        # 0 is there from 0 to 10, 1 from 5 to 20: each is alone for a part.
        ([0, 5], [10, 20], [0, 1], [5, 10, 0]),
        # 1 is inside 0: never alone.
        ([0, 5], [10, 7], [0, 1], [8, 0, 0]),
        # One after the other: all alone.
        ([0, 10], [10, 20], [2, 0], [10, 0, 10]),
        # Three at a time.
        ([0, 1, 2], [9, 8, 7], [0, 1, 2], [2, 0, 0]),
        ([], [], [], [0, 0, 0]),
    ],
)
def test_who_is_alone(start, end, group, expected):
    assert alone_ns(ns(*start), ns(*end), ns(*group), 3).tolist() == expected


def test_groups_may_lie_far_apart_in_time():
    # Since 1970, and one that says 0: for ten groups in one row there are not bits enough.
    late = 1_700_000_000_000_000_000
    merged = merge(ns(0, late, late + 1), ns(5, late + 2, late + 3), ns(0, 9, 9))

    assert lists(*merged) == ([0, late], [5, late + 3], [0, 9])
