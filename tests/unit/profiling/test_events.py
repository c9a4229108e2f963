"""Sums over events: by kernel, and busy time as the union over streams."""

from typing import Any

import numpy as np
import pytest

from leverbench.profiling.events import KINDS, BusyTime, Events, busy_and_idle, kernel_totals

# Kind, name, device, start and duration.
Row = tuple[str, str, int, int, int]


def events(*rows: Row) -> Events:
    names = sorted({name for _, name, *_ in rows})
    columns: dict[str, Any] = {
        "kind": [KINDS.index(kind) for kind, *_ in rows],
        "name": [names.index(name) for _, name, *_ in rows],
        "device": [device for _, _, device, _, _ in rows],
        "start_ns": [start for *_, start, _ in rows],
        "duration_ns": [duration for *_, duration in rows],
    }
    return Events(tuple(names), {name: np.array(of, np.int64) for name, of in columns.items()})


def test_durations_of_kernels_add_up_by_name():
    found = events(
        ("kernel", "a", 0, 0, 5),
        ("kernel", "b", 0, 5, 7),
        ("kernel", "a", 1, 2, 6),
        ("kernel", "zero", 0, 2, 0),
        ("memcpy", "copy", 0, 3, 9),
        ("op", "a", -1, 0, 100),
    )

    assert kernel_totals(found) == {"a": 11, "b": 7, "zero": 0}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], BusyTime(0, 0)),
        ([("op", "a", -1, 0, 9)], BusyTime(0, 0)),
        # 0 to 5 and 7 to 10, in no order.
        ([("kernel", "b", 0, 7, 3), ("kernel", "a", 0, 0, 5)], BusyTime(10, 8)),
        # The short one is inside of the long one; the last begins after the long one's end.
        (
            [("kernel", "a", 0, 0, 10), ("memset", "b", 0, 2, 3), ("memcpy", "c", 0, 12, 3)],
            BusyTime(15, 13),
        ),
        # One begins where the other ends.
        ([("kernel", "a", 0, 0, 5), ("kernel", "b", 0, 5, 5)], BusyTime(10, 10)),
        # Two GPUs: 10 of 10, and 2 + 2 of 10.
        (
            [("kernel", "a", 0, 0, 10), ("kernel", "a", 1, 0, 2), ("kernel", "a", 1, 8, 2)],
            BusyTime(20, 14),
        ),
        # Neither annotations nor calls keep a GPU busy.
        (
            [
                ("kernel", "a", 0, 0, 2),
                ("gpu-annotation", "s", 0, 0, 99),
                ("runtime", "l", -1, 5, 5),
            ],
            BusyTime(2, 2),
        ),
    ],
)
def test_a_gpu_is_busy_while_anything_runs_on_it(rows, expected):
    assert busy_and_idle(events(*rows)) == expected


def test_the_idle_share_is_of_the_span():
    assert (BusyTime(20, 15).idle_ns, BusyTime(20, 15).idle_share) == (5, 0.25)
    assert BusyTime(0, 0).idle_share is None
