"""Decode steps: whole ones by marks and by what comes back; the cut ones are left out."""

import numpy as np
import pytest

from leverbench.profiling.steps import Steps, by_annotations, by_periodicity

# A step of a small model: embedding, three layers, head, sampling.
LAYER = ["norm", "qkv", "attention", "out", "norm", "up", "act", "down"]
STEP = ["embed", *3 * LAYER, "norm", "head", "argmax"]


def periods(*parts: list[str]) -> tuple[list[str], Steps]:
    """Returns a sequence, and its steps: each kernel starts 10 ns after the one before it."""
    sequence = [name for part in parts for name in part]
    known = {name: number for number, name in enumerate(dict.fromkeys(sequence))}
    code = np.array([known[name] for name in sequence], np.int64)
    return sequence, by_periodicity(code, np.arange(len(sequence)) * 10)


def starts(steps: Steps) -> list[int]:
    return (steps.start_ns // 10).tolist()


def test_marked_steps_last_until_the_next_mark():
    steps = by_annotations(np.array([0, 10, 25, 40]), np.array([True, False, True, True]), 3)

    # The first ends where the prefill begins, the last one's end is not recorded.
    assert (steps.start_ns.tolist(), steps.end_ns.tolist()) == ([0, 25], [10, 40])
    assert (steps.found_by, steps.seen, steps.dropped) == ("annotations", 3, 1)


@pytest.mark.parametrize(
    ("marks", "seen"), [([], 0), ([True], 1), ([False, True], 1), ([False, False], 0)]
)
def test_without_a_whole_marked_step_there_is_a_reason(marks, seen):
    steps = by_annotations(np.arange(len(marks)), np.array(marks, np.bool_), seen)

    assert (len(steps.start_ns), steps.seen, steps.dropped) == (0, seen, seen)
    assert steps.reason == f"no whole decode step among {len(marks)} marked steps"


def test_steps_come_back_as_sequences_of_kernels():
    _, steps = periods(*5 * [STEP])
    length = len(STEP)

    assert (steps.found_by, steps.seen, steps.dropped) == ("periodicity", 5, 1)
    assert starts(steps) == [0, length, 2 * length, 3 * length]
    assert (steps.end_ns // 10).tolist() == [length, 2 * length, 3 * length, 4 * length]
    assert steps.reason is None


@pytest.mark.parametrize(
    ("head", "tail", "seen"),
    [
        # Less than half a step at an edge is none; more is one that the edge cuts.
        (STEP[20:], [], 5),
        ([], STEP[:5], 5),
        (STEP[5:], [], 6),
        ([], STEP[:20], 6),
        (STEP[5:], STEP[:20], 7),
    ],
)
def test_steps_that_an_edge_cuts_are_left_out(head, tail, seen):
    _, steps = periods(head, *5 * [STEP], tail)

    assert steps.seen == seen
    kept = [(end - start) // 10 for start, end in zip(steps.start_ns, steps.end_ns, strict=True)]
    assert set(kept) == {len(STEP)}
    # What begins in the last period has no end; a head as long as half a step adds none.
    assert len(kept) in (4, 5)


def test_a_prefill_between_steps_is_no_part_of_one():
    layer = ["norm", "big-qkv", "big-attention", "big-out", "big-up"]
    prefill = ["embed", *4 * layer, "argmax"]
    _, steps = periods(*3 * [STEP], prefill, *4 * [STEP])

    assert {end - start for start, end in zip(steps.start_ns, steps.end_ns, strict=True)} == {
        10 * len(STEP)
    }
    # The step before the prefill is not told from it.
    assert (len(steps.start_ns), steps.seen) == (5, 7)


def test_a_kernel_more_or_less_does_not_make_another_step():
    longer = [*STEP[:12], "index", *STEP[12:]]
    _, steps = periods(STEP, longer, STEP, STEP[:6] + STEP[7:], STEP)

    assert len(steps.start_ns) == 4


def test_layers_are_not_steps():
    # Sixteen layers: most of what lies between two calls of a layer's kernel is alike.
    many = ["embed", *16 * LAYER, "norm", "head", "argmax"]
    _, steps = periods(*3 * [many])

    assert starts(steps) == [0, len(many)]


def test_the_layers_of_one_step_are_not_steps():
    before = ["positions", "gather", "embed", "plan"]
    after = ["norm", "head", "softmax", "sort", "argmax"]
    _, steps = periods([*before, *16 * LAYER, *after])

    assert (steps.found_by, steps.seen) == (None, None)


def test_what_happens_every_third_step_does_not_make_three_one():
    counted = [*STEP, "statistics"]
    _, steps = periods(*4 * [STEP, STEP, counted])

    assert len(steps.start_ns) == 11


def test_two_steps_are_found_by_what_follows_them():
    _, steps = periods(STEP, STEP)

    assert (starts(steps), steps.seen, steps.dropped) == ([0], 2, 1)


@pytest.mark.parametrize(
    "sequence",
    [
        pytest.param([], id="nothing"),
        pytest.param(["a"], id="one"),
        pytest.param(list("aaaaaaaa"), id="one name"),
        pytest.param(list("abcdefgh"), id="no name twice"),
        pytest.param(STEP, id="one step"),
        pytest.param(list("abacadbcaebdafcb"), id="no order"),
    ],
)
def test_where_nothing_comes_back_there_is_a_reason(sequence):
    _, steps = periods(sequence)

    assert (steps.found_by, steps.seen, steps.dropped, len(steps.start_ns)) == (None, None, None, 0)
    assert steps.reason


def test_a_long_random_sequence_has_no_steps():
    code = np.random.default_rng(1).integers(0, 50, 100_000)

    assert by_periodicity(code, np.arange(len(code))).found_by is None
