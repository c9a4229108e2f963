"""Traces: read in every form in which they are written, and refused in one sentence where not."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from scripted_server import make_trace

from leverbench.errors import LeverbenchError
from leverbench.profiling.trace import Trace, is_whole, read_trace


def event(category: str, name: str, start_us: float, duration_us: float, **more: Any) -> Any:
    plain = {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": duration_us}
    return {**plain, "pid": 1, "tid": 1, **more}


def op(name: str, start_us: float, duration_us: float, **more: Any) -> Any:
    return event("cpu_op", name, start_us, duration_us, **more)


def read(path: Path, *events: Any) -> Trace:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return read_trace(path)


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
    step = event("user_annotation", "step[DECODE bs=16]", 0, 100)
    trace = read(tmp_path / "t.json", step, op("a", 10, 40), op("b", 60, 15))

    assert self_us(trace) == {"step[DECODE bs=16]": 45.0, "a": 40.0, "b": 15.0}
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
