"""The candidates of a kernel, and its restrictions."""

import os
from pathlib import Path

import pytest
from tuned_kernel import write_kernel

from leverbench.errors import LeverbenchError
from leverbench.tuning.space import make_space

CALL = {"width": 64, "dtype": "float32", "batch": 3}


def works(tmp_path: Path, *restrictions: str) -> tuple[list[int], int]:
    kernel = write_kernel(tmp_path, [30, 10, 20, 40], restrictions=restrictions)
    space = make_space(kernel, CALL)
    return [candidate["work"] for candidate in space.candidates], space.restricted


def test_the_default_comes_first_then_the_manifests_order(tmp_path):
    assert works(tmp_path) == ([30, 10, 20, 40], 0)


@pytest.mark.parametrize(
    ("restriction", "kept"),
    [
        ("work <= 30", [30, 10, 20]),
        ("work % 20 == 10", [30, 10]),
        ("work - 10 >= batch * 2 + -6", [30, 10, 20, 40]),
        ("not work < width // 3", [30, 40]),
        ("10 < work <= 30", [30, 20]),
        ("dtype == 'float32' and work > 10", [30, 20, 40]),
        (f"cores == {len(os.sched_getaffinity(0))}", [30, 10, 20, 40]),
        ("work == 30", [30]),
    ],
)
def test_what_does_not_meet_a_restriction_is_counted_and_not_tried(tmp_path, restriction, kept):
    assert works(tmp_path, restriction) == (kept, 4 - len(kept))


def test_every_restriction_is_to_be_met(tmp_path):
    assert works(tmp_path, "work > 10", "work < 40") == ([30, 20], 2)


@pytest.mark.parametrize(
    ("restriction", "message"),
    [
        ("work <=", "it is no expression"),
        ("wrok <= 30", "nothing is called wrok. There are: batch, cores, dtype, fault, width,"),
        ("max(work, 3) > 1", "max(work, 3) is not allowed"),
        ("work.real > 1", "work.real is not allowed"),
        ("work / 2 > 1", "work / 2 is not allowed"),
        ("work > 1.5", "1.5 is not allowed"),
        ("work in [1, 2]", "work in [1, 2] is not allowed"),
        ("work ** 9 > 1", "work ** 9 is not allowed"),
        ("dtype > 3", "it cannot be told at"),
        ("dtype * 2 == 1", "float32 is no number"),
        ("work // fault > 1", "division"),
        (" + ".join(["work"] * 2000) + " > 1", "it is too long"),
        ("-" * 90_000 + "1", "it is no expression"),
        ("work < 30", "the default does not meet it at cores="),
    ],
)
def test_a_wrong_restriction_gives_one_message(tmp_path, restriction, message):
    with pytest.raises(LeverbenchError) as caught:
        works(tmp_path, "work > 1", restriction)

    told = str(caught.value)
    assert told.startswith(f"{tmp_path}/twice/kernel.yaml: restrictions[1]: ")
    assert repr(restriction) in told
    assert message in told
