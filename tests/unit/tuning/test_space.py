"""The candidates of a kernel, and its restrictions."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tuned_kernel import write_kernel

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Kernel
from leverbench.tuning.gpu import Gpu
from leverbench.tuning.space import make_space, parse_expressions

CALL = {"width": 64, "dtype": "float32", "batch": 3}
GPU = Gpu(capability=120, multiprocessors=20)


def works(tmp_path: Path, *restrictions: str) -> tuple[list[int], int]:
    kernel = write_kernel(tmp_path, [30, 10, 20, 40], restrictions=restrictions)
    space = make_space(kernel, CALL)
    return [candidate["work"] for candidate in space.candidates], sum(space.restricted.values())


def tried(kernel: Kernel, gpu: Gpu | None = None) -> list[int]:
    return [candidate["work"] for candidate in make_space(kernel, CALL, gpu).candidates]


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


def test_who_is_refused_is_counted_by_the_first_restriction_that_does(tmp_path):
    restrictions = ["work > 10", "work > 0", "work > 20", "width > 1"]
    kernel = write_kernel(tmp_path, [40, 10, 20, 30], restrictions=restrictions)

    assert make_space(kernel, CALL).restricted == {"work > 10": 1, "work > 20": 1}


@pytest.mark.parametrize(
    ("restriction", "kept"),
    [
        ("work <= multiprocessors", [20, 10]),
        # A block of sm_120 has 99 KiB.
        ("work * 1024 * 3 < shared_bytes", [20, 30, 10]),
    ],
)
def test_a_restriction_may_name_facts_of_the_gpu(tmp_path, restriction, kept):
    kernel = write_kernel(tmp_path, [20, 30, 10, 40], restrictions=[restriction])

    assert tried(kernel, GPU) == kept


@pytest.mark.parametrize(
    ("name", "gpu"),
    [("multiprocessors", None), ("shared_bytes", Gpu(capability=7, multiprocessors=1))],
)
def test_facts_that_are_not_known_are_not_guessed(tmp_path, name, gpu):
    kernel = write_kernel(tmp_path, [20, 30], restrictions=[f"work < {name}"])

    with pytest.raises(LeverbenchError) as caught:
        make_space(kernel, CALL, gpu)

    assert f"'work < {name}': {name} is a fact of a GPU, and is not known here." in str(
        caught.value
    )
    # A run is planned on a machine that need not have one.
    assert [each.text for each in parse_expressions(kernel)[0]] == [f"work < {name}"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("work", [30, 10, 20, 40]),
        ("-work", [30, 40, 20, 10]),
        # The smallest remainder first; among equals, as the manifest has them.
        ("work % 20", [30, 20, 40, 10]),
        ("(work == 20) - work // multiprocessors", [30, 40, 10, 20]),
    ],
)
def test_the_default_comes_first_then_by_order(tmp_path, order, expected):
    kernel = write_kernel(tmp_path, [30, 10, 20, 40])

    assert tried(replace(kernel, order=order), GPU) == expected


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("wrok", "nothing is called wrok"),
        ("min(work, 3)", "min(work, 3) is not allowed"),
        ("work // fault", "it cannot be told at"),
        ("dtype", "float32 is no number"),
    ],
)
def test_a_wrong_order_gives_one_message(tmp_path, order, message):
    kernel = replace(write_kernel(tmp_path, [30, 10]), order=order)

    with pytest.raises(LeverbenchError) as caught:
        make_space(kernel, CALL)

    assert str(caught.value).startswith(f"{tmp_path}/twice/kernel.yaml: order: {order!r}: ")
    assert message in str(caught.value)


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
