"""Time on the CPU: what is left of each call without the calls inside it, and what loops claim."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_files import annotation, event, op, step, write_trace

from leverbench.engines import step_marks
from leverbench.profiling.attribution import CPU, RankTime, attribute
from leverbench.profiling.reader import read_events
from leverbench.profiling.selftime import nest, self_times

# As the loops of categories.yaml know them.
CALL = "aten::scaled_dot_product_attention"
LINEAR, WRITE = "aten::linear", "aten::index_put_"
BETWEEN = f"loop of {CALL}, between operations"


def read(folder: Path, *events: Any) -> RankTime:
    read_events(write_trace(folder / "t.json", *events), folder / "t.parquet")
    return attribute(folder / "t.parquet", step_marks)


def self_us(rank: RankTime) -> dict[str, float]:
    return {operation.name: operation.self_us for operation in rank.operations}


def test_the_time_inside_other_operations_is_theirs(tmp_path):
    rank = read(
        tmp_path,
        # In no order; ts grows as in real traces, whose zero is the machine's start.
        op("c", 5_000_000_000_030.0, 20.0),
        op("a", 5_000_000_000_000.0, 100.0),
        op("b", 5_000_000_000_010.0, 50.0),
        op("d", 5_000_000_000_070.0, 30.0),
        op("e", 5_000_000_000_100.0, 7.0),
    )

    # a: 100 - b's 50 - d's 30; b: 50 - c's 20; d ends with a; e begins where a ends.
    assert self_us(rank) == {"a": 20.0, "b": 30.0, "c": 20.0, "d": 30.0, "e": 7.0}


def test_calls_of_one_name_add_up(tmp_path):
    rank = read(tmp_path, op("a", 0, 10), op("a", 2, 5), op("a", 20, 3))

    # The second is inside the first: 5 + 5 + 3.
    (operation,) = rank.operations
    assert (operation.calls, operation.self_us) == (3, 13.0)


def test_threads_do_not_contain_one_another(tmp_path):
    rank = read(tmp_path, op("a", 0, 10), op("b", 2, 5, tid=2), op("c", 3, 4, pid=2, tid=1))

    assert self_us(rank) == {"a": 10.0, "b": 5.0, "c": 4.0}


def test_a_span_that_outlasts_the_one_around_it_takes_only_what_is_inside(tmp_path):
    rank = read(tmp_path, op("a", 0, 10), op("b", 8, 4))

    assert self_us(rank) == {"a": 8.0, "b": 4.0}


def test_the_engines_own_code_is_the_rest_of_its_annotation(tmp_path):
    rank = read(tmp_path, step(0, 100), op("a", 10, 40), op("b", 60, 15))

    assert self_us(rank) == {"step[DECODE bs=3]": 45.0, "a": 40.0, "b": 15.0}
    assert {o.name: o.category for o in rank.operations} == {
        "step[DECODE bs=3]": "host-code",
        "a": "other",
        "b": "other",
    }


def test_what_is_open_when_the_recording_ends_does_not_count_further(tmp_path):
    # The server writes the trace inside of the span in which it stops the recording.
    recording = event("Trace", "PyTorch Profiler (0)", 0, 130, pid="Spans", tid="PyTorch Profiler")
    events = [step(0, 100), op("a", 10, 40), step(110, 900), op("a", 120, 5), op("a", 128, 7)]
    plain = read(tmp_path, *events)
    rank = read(tmp_path, *events, recording)

    assert self_us(plain) == {"step[DECODE bs=3]": 60 + 900 - 12, "a": 52}
    # Of the second step 20 us, of its last operation 2.
    assert self_us(rank) == {"step[DECODE bs=3]": 60 + 20 - 7, "a": 40 + 5 + 2}
    assert (rank.events, rank.devices[CPU][0].steps.seen) == (5, 2)


def test_self_times_are_those_of_the_plain_definition():
    random = np.random.default_rng(7)
    start_ns = random.integers(0, 500, 300)
    end_ns = start_ns + random.integers(0, 60, 300)
    lane = random.integers(0, 3, 300)
    calls = nest(["x"], np.zeros(300, np.int64), np.zeros(300, np.bool_), lane, start_ns, end_ns)

    assert self_times(calls).tolist() == plain_self_times(
        list(zip(calls.lane, calls.start_ns, calls.end_ns, strict=True))
    )


def plain_self_times(calls: Sequence[tuple[int, int, int]]) -> list[int]:
    """Takes the calls one after the other, with those that are open in a list."""
    left, open_calls = [end - start for _, start, end in calls], []
    for call, (lane, start, end) in enumerate(calls):
        while open_calls and (
            calls[open_calls[-1]][0] != lane or calls[open_calls[-1]][2] <= start
        ):
            open_calls.pop()
        if open_calls:
            outer = open_calls[-1]
            left[outer] = max(0, left[outer] - (min(end, calls[outer][2]) - start))
        open_calls.append(call)
    return left


def layer(start_us: float, calls: int) -> list[Any]:
    """A layer of 200 us: projection, write, loop of 10 us a call from 25 us on, projection."""
    loop = []
    for call in range(calls):
        at_us = start_us + 25 + 10 * call
        loop += [op("aten::index", at_us, 2), op(CALL, at_us + 3, 3)]
        loop += [op("aten::_flash", at_us + 4, 1), op("aten::copy_", at_us + 7, 1)]
    end_us = start_us + 25 + 10 * calls
    return [
        op(LINEAR, start_us, 10),
        op(WRITE, start_us + 16, 2),
        op("aten::movedim", start_us + 21, 1),
        *loop,
        op("aten::view", end_us + 1, 1),
        op(LINEAR, start_us + 150, 40),
    ]


def by_loop(rank: RankTime) -> dict[tuple[str, bool], tuple[int, float]]:
    return {(o.name, o.in_loop): (o.calls, o.self_us) for o in rank.operations}


def total_us(rank: RankTime) -> float:
    return sum(operation.self_us for operation in rank.operations)


def test_a_loop_is_its_operations_and_the_time_between_them(tmp_path):
    rank = read(tmp_path, step(0, 200), *layer(0, calls=3))

    # From 21 (movedim) to 57 (view): 36 us, of which the operations have 1 + 3 * 6 + 1.
    assert by_loop(rank) == {
        ("step[DECODE bs=3]", False): (1, 200 - 52 - 36),
        (LINEAR, False): (2, 50),
        (WRITE, False): (1, 2),
        ("aten::movedim", True): (1, 1),
        ("aten::index", True): (3, 6),
        (CALL, True): (3, 6),
        ("aten::_flash", True): (3, 3),
        ("aten::copy_", True): (3, 3),
        ("aten::view", True): (1, 1),
        (BETWEEN, True): (1, 16),
    }
    assert {o.category for o in rank.operations if o.in_loop} == {"attention"}
    assert total_us(rank) == 200
    assert rank.events == 18


def test_one_call_between_its_fences_is_a_loop_too(tmp_path):
    rank = read(tmp_path, step(0, 200), *layer(0, calls=1))

    # From 21 to 37.
    found = {name: us for (name, inside), (_, us) in by_loop(rank).items() if inside}
    operations = {"aten::movedim": 1, "aten::index": 2, CALL: 2, "aten::_flash": 1}
    assert found == {**operations, "aten::copy_": 1, "aten::view": 1, BETWEEN: 16 - 8}
    assert total_us(rank) == 200


def test_layers_have_loops_of_their_own(tmp_path):
    rank = read(tmp_path, step(0, 400), *layer(0, calls=3), *layer(200, calls=3))

    assert by_loop(rank)[BETWEEN, True] == (2, 2 * 16)
    assert sum(o.self_us for o in rank.operations if o.in_loop) == 2 * 36
    assert total_us(rank) == 400


def test_what_is_further_from_the_calls_than_a_period_is_not_the_loops(tmp_path):
    # The calls begin at 28, 38 and 48, ten apart: the loop's operations, from 18 until 58.
    far = [op("rope", 11, 2), op("norm", 58, 1), op("near", 18.5, 1)]
    events = [step(0, 200), *(e for e in layer(0, 3) if e["name"] != WRITE), *far]
    rank = read(tmp_path, *events)

    inside = {name for name, inside in by_loop(rank) if inside}
    assert {"rope", "norm"}.isdisjoint(inside)
    assert {"near", "aten::movedim", "aten::view"} <= inside
    assert total_us(rank) == 200


def test_what_is_inside_the_last_operation_of_a_loop_is_in_it_too(tmp_path):
    inner = op("aten::slice", 36.2, 0.5)
    rank = read(tmp_path, step(0, 200), *layer(0, calls=1), inner)

    assert by_loop(rank)["aten::slice", True] == (1, 0.5)
    assert by_loop(rank)["aten::view", True] == (1, 0.5)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([step(0, 200), *layer(0, calls=0)], id="no call"),
        pytest.param([step(0, 200), *layer(0, calls=3)[:-1]], id="no fence after"),
        pytest.param([step(0, 200), *layer(0, calls=3)[2:]], id="no fence before"),
        pytest.param(layer(0, calls=3), id="no annotation"),
        pytest.param([step(0, 57), step(58, 142), *layer(0, calls=3)], id="an annotation's end"),
        pytest.param(
            [step(0, 200), *layer(0, calls=3)[:-1], op(LINEAR, 150, 40, tid=2)],
            id="fence on another thread",
        ),
    ],
)
def test_without_call_fences_or_annotation_there_is_no_loop(tmp_path, events):
    rank = read(tmp_path, *events)

    assert not any(operation.in_loop for operation in rank.operations)
    assert BETWEEN not in self_us(rank)


def test_steps_on_the_cpu_last_from_mark_to_mark(tmp_path):
    # Two decode steps with other work after each, a prefill, a last step that has no end.
    rank = read(
        tmp_path,
        step(0, 60),
        op("aten::mm", 10, 40),
        annotation("scheduler.recv", 70, 20),
        step(100, 50),
        op("aten::mm", 110, 10),
        step(160, 30, "EXTEND"),
        op("aten::mm", 165, 20),
        step(200, 50),
        op("aten::mm", 210, 30),
    )
    (time,) = rank.devices[CPU]

    assert time.steps.start_ns.tolist() == [0, 100_000]
    assert time.steps.end_ns.tolist() == [100_000, 160_000]
    assert (time.steps.seen, time.steps.dropped) == (3, 1)
    # Of 160 us, something was under way for 60 + 20 + 50.
    assert (time.span_us, time.busy_us) == (160, 130)
    assert {name: one.union_us for name, one in time.categories.items()} == {
        "gemm": 50,
        "host-code": 20 + 20 + 40,
    }
    # Over all of the recording: 40 + 10 + 20 + 30.
    assert self_us(rank)["aten::mm"] == 100
