"""Traces: read in every form in which they are written, and refused in one sentence where not."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scripted_server import make_trace

from leverbench.errors import LeverbenchError
from leverbench.profiling.trace import Loop, Trace, is_whole, read_trace

LOOP = Loop("attention", re.compile("^sdpa$"), re.compile("linear|write"))
BETWEEN = "loop of sdpa, between operations"


def event(category: str, name: str, start_us: float, duration_us: float, **more: Any) -> Any:
    plain = {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": duration_us}
    return {**plain, "pid": 1, "tid": 1, **more}


def op(name: str, start_us: float, duration_us: float, **more: Any) -> Any:
    return event("cpu_op", name, start_us, duration_us, **more)


def step(start_us: float, duration_us: float) -> Any:
    return event("user_annotation", "step[DECODE bs=3]", start_us, duration_us)


def read(path: Path, *events: Any, loop: Loop | None = None) -> Trace:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return read_trace(path, [loop] if loop else [])


def self_us(trace: Trace) -> dict[str, float]:
    return {operation.name: operation.self_us for operation in trace.operations}


def test_the_form_of_the_file_makes_no_difference(tmp_path):
    spread = make_trace(steps=2, running=4, activities=["CPU", "GPU"])
    one_line = json.dumps(json.loads(spread)).encode()
    files = {
        "spread.json": spread,
        "line.json": one_line,
        "spread.json.gz": gzip.compress(spread),
        "line.json.gz": gzip.compress(one_line),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    traces = [read_trace(tmp_path / name) for name in files]

    assert traces.count(traces[0]) == 4
    # Each step: one annotation, four operations, two kernels.
    assert traces[0].events == 2 * (1 + 4 + 2)
    assert traces[0].annotations == {"step[DECODE bs=4]": 2}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json.gz", None, "missing"),
        ("t.json.gz", b"", "empty"),
        ("t.json.gz", gzip.compress(b""), "empty"),
        ("t.json.gz", gzip.compress(b'{"traceEvents": []}')[:-9], "truncated"),
        ("t.json", b'{"traceEvents": [{"ph": "X"', "truncated or not JSON"),
        ("t.json.gz", b'{"traceEvents": []}', "unreadable.*gzip"),
        ("t.json.gz", gzip.compress(b"x" * 99)[:12] + b"garbage!" * 9, "unreadable"),
        ("t.json", b"\x00\xff\x00", "not JSON"),
        ("t.json", b'{"spans": []}', "not a trace of the torch profiler.*traceEvents"),
        ("t.json", b"[1, 2]", "not a trace of the torch profiler"),
        ("t.json", b'{"traceEvents": [3]}', "not a trace of the torch profiler"),
        ("t.json", b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "profiler.*dur"),
    ],
)
def test_a_bad_file_is_one_message(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(LeverbenchError, match=message) as caught:
        read_trace(path)
    assert (caught.value.where, bool(caught.value.cure)) == (str(path), True)


def test_the_time_inside_other_operations_is_theirs(tmp_path):
    trace = read(
        tmp_path / "t.json",
        # In no order; ts grows as in real traces, whose zero is the machine's start.
        op("c", 5_000_000_000_030.0, 20.0),
        op("a", 5_000_000_000_000.0, 100.0),
        op("b", 5_000_000_000_010.0, 50.0),
        op("d", 5_000_000_000_070.0, 30.0),
        op("e", 5_000_000_000_100.0, 7.0),
    )

    # a: 100 - b's 50 - d's 30; b: 50 - c's 20; d ends with a; e begins where a ends.
    assert self_us(trace) == {"a": 20.0, "b": 30.0, "c": 20.0, "d": 30.0, "e": 7.0}


def test_calls_of_one_name_add_up(tmp_path):
    trace = read(tmp_path / "t.json", op("a", 0, 10), op("a", 2, 5), op("a", 20, 3))

    # The second is inside the first: 5 + 5 + 3.
    (operation,) = trace.operations
    assert (operation.calls, operation.self_us) == (3, 13.0)


def test_threads_do_not_contain_one_another(tmp_path):
    trace = read(
        tmp_path / "t.json", op("a", 0, 10), op("b", 2, 5, tid=2), op("c", 3, 4, pid=2, tid=1)
    )

    assert self_us(trace) == {"a": 10.0, "b": 5.0, "c": 4.0}


def test_a_span_that_outlasts_the_one_around_it_takes_only_what_is_inside(tmp_path):
    trace = read(tmp_path / "t.json", op("a", 0, 10), op("b", 8, 4))

    assert self_us(trace) == {"a": 8.0, "b": 4.0}


def test_on_a_gpu_durations_add_up_though_they_overlap(tmp_path):
    trace = read(
        tmp_path / "t.json",
        event("kernel", "k", 0, 10, pid=0, tid=7),
        event("kernel", "k", 5, 10, pid=0, tid=9),
        event("gpu_memcpy", "Memcpy DtoH", 1, 2, pid=0, tid=7),
        event("gpu_memset", "Memset (Device)", 4, 1, pid=0, tid=7),
        event("gpu_user_annotation", "step[DECODE bs=1]", 0, 20, pid=0, tid=7),
        event("cuda_runtime", "cudaLaunchKernel", 0, 3),
        {"ph": "f", "cat": "ac2g", "id": 1, "ts": 0},
    )

    assert self_us(trace) == {"k": 20.0, "Memcpy DtoH": 2.0, "Memset (Device)": 1.0}
    assert {operation.device for operation in trace.operations} == {"gpu"}
    assert (trace.events, trace.annotations) == (4, {})


def test_the_engines_own_code_is_the_rest_of_its_annotation(tmp_path):
    trace = read(tmp_path / "t.json", step(0, 100), op("a", 10, 40), op("b", 60, 15))

    assert self_us(trace) == {"step[DECODE bs=3]": 45.0, "a": 40.0, "b": 15.0}
    assert [operation.annotation for operation in trace.operations] == [True, False, False]


@pytest.mark.parametrize(
    ("cut", "whole"), [(None, True), (-1, False), (20, False), (0, False)], ids=str
)
def test_a_gzip_is_whole_or_not(tmp_path, cut, whole):
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(make_trace(3, 1, ["CPU"]))[:cut])

    assert is_whole(path) is whole


def test_a_missing_file_is_not_whole(tmp_path):
    assert not is_whole(tmp_path / "t.gz")


def test_what_is_open_when_the_recording_ends_does_not_count_further(tmp_path):
    # The server writes the trace inside of the span in which it stops the recording.
    recording = event("Trace", "PyTorch Profiler (0)", 0, 130, pid="Spans", tid="PyTorch Profiler")
    events = [step(0, 100), op("a", 10, 40), step(110, 900), op("a", 120, 5), op("a", 128, 7)]
    plain = read(tmp_path / "t.json", *events)
    trace = read(tmp_path / "t.json", *events, recording)

    assert self_us(plain) == {"step[DECODE bs=3]": 60 + 900 - 12, "a": 52}
    # Of the second step 20 us, of its last operation 2.
    assert self_us(trace) == {"step[DECODE bs=3]": 60 + 20 - 7, "a": 40 + 5 + 2}
    assert (trace.events, trace.annotations) == (plain.events, plain.annotations)


def layer(start_us: float, calls: int) -> list[Any]:
    """A layer of 200 us: projection, write, loop of 10 us a call from 25 us on, projection."""
    loop = []
    for call in range(calls):
        at_us = start_us + 25 + 10 * call
        loop += [op("index", at_us, 2), op("sdpa", at_us + 3, 3), op("flash", at_us + 4, 1)]
        loop += [op("copy", at_us + 7, 1)]
    end_us = start_us + 25 + 10 * calls
    return [
        op("linear", start_us, 10),
        op("write", start_us + 16, 2),
        op("movedim", start_us + 21, 1),
        *loop,
        op("view", end_us + 1, 1),
        op("linear", start_us + 150, 40),
    ]


def by_loop(trace: Trace) -> dict[tuple[str, bool], tuple[int, float]]:
    return {(o.name, o.loop is not None): (o.calls, o.self_us) for o in trace.operations}


def total_us(trace: Trace) -> float:
    return sum(operation.self_us for operation in trace.operations)


def test_a_loop_is_its_operations_and_the_time_between_them(tmp_path):
    events = [step(0, 200), *layer(0, calls=3)]
    plain = read(tmp_path / "t.json", *events)
    trace = read(tmp_path / "t.json", *events, loop=LOOP)

    # From 21 (movedim) to 57 (view): 36 us, of which the operations have 1 + 3 * 6 + 1.
    assert by_loop(trace) == {
        ("step[DECODE bs=3]", False): (1, 200 - 52 - 36),
        ("linear", False): (2, 50),
        ("write", False): (1, 2),
        ("movedim", True): (1, 1),
        ("index", True): (3, 6),
        ("sdpa", True): (3, 6),
        ("flash", True): (3, 3),
        ("copy", True): (3, 3),
        ("view", True): (1, 1),
        (BETWEEN, True): (1, 16),
    }
    assert {o.loop for o in trace.operations} == {None, "attention"}
    assert total_us(trace) == total_us(plain) == 200
    assert (trace.events, trace.annotations) == (plain.events, plain.annotations)


def test_one_call_between_its_fences_is_a_loop_too(tmp_path):
    events = [step(0, 200), *layer(0, calls=1)]
    trace = read(tmp_path / "t.json", *events, loop=LOOP)

    # From 21 to 37.
    found = {name: us for (name, inside), (_, us) in by_loop(trace).items() if inside}
    operations = {"movedim": 1, "index": 2, "sdpa": 2, "flash": 1, "copy": 1, "view": 1}
    assert found == {**operations, BETWEEN: 16 - 8}
    assert total_us(trace) == 200


def test_layers_have_loops_of_their_own(tmp_path):
    events = [step(0, 400), *layer(0, calls=3), *layer(200, calls=3)]
    trace = read(tmp_path / "t.json", *events, loop=LOOP)

    assert by_loop(trace)[BETWEEN, True] == (2, 2 * 16)
    assert sum(o.self_us for o in trace.operations if o.loop) == 2 * 36
    assert total_us(trace) == 400


def test_what_is_further_from_the_calls_than_a_period_is_not_the_loops(tmp_path):
    # The calls begin at 28, 38 and 48, ten apart: the loop's operations, from 18 until 58.
    far = [op("rope", 11, 2), op("norm", 58, 1), op("near", 18.5, 1)]
    events = [step(0, 200), *(e for e in layer(0, 3) if e["name"] != "write"), *far]
    trace = read(tmp_path / "t.json", *events, loop=LOOP)

    inside = {name for name, inside in by_loop(trace) if inside}
    assert {"rope", "norm"}.isdisjoint(inside)
    assert {"near", "movedim", "view"} <= inside
    assert total_us(trace) == 200


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([step(0, 200), *layer(0, calls=0)], id="no call"),
        pytest.param([step(0, 200), *layer(0, calls=3)[:-1]], id="no fence after"),
        pytest.param([step(0, 200), *layer(0, calls=3)[2:]], id="no fence before"),
        pytest.param(layer(0, calls=3), id="no annotation"),
        pytest.param([step(0, 57), step(58, 142), *layer(0, calls=3)], id="an annotation's end"),
        pytest.param(
            [step(0, 200), *layer(0, calls=3)[:-1], op("linear", 150, 40, tid=2)],
            id="fence on another thread",
        ),
    ],
)
def test_without_call_fences_or_annotation_there_is_no_loop(tmp_path, events):
    plain = read(tmp_path / "t.json", *events)

    assert read(tmp_path / "t.json", *events, loop=LOOP) == plain
    assert all(operation.loop is None for operation in plain.operations)
