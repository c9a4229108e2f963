"""Traces become rows: whatever the layout, whatever is odd in them, in bounded memory."""

import contextlib
import gzip
import json
import math
import os
import random
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leverbench.errors import LeverbenchError
from leverbench.profiling import events as events_module
from leverbench.profiling import ranks as ranks_module
from leverbench.profiling import reader as reader_module
from leverbench.profiling.events import (
    KINDS,
    EventsFacts,
    load_events,
    load_facts,
)
from leverbench.profiling.ranks import events_path, read_ranks
from leverbench.profiling.reader import read_events

DATA = Path(__file__).resolve().parents[2] / "data"
KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm<{lambda()#1}, {lambda()#2}>",
    "pid": 0,
    "tid": 7,
    "ts": 1000.5,
    "dur": 2.25,
    "args": {
        "External id": 3,
        "device": 0,
        "stream": 7,
        "correlation": 12,
        "registers per thread": 40,
        "shared memory": 1024,
        "blocks per SM": 0.5,
        "warps per SM": 2.0,
        "grid": [4, 3, 2],
        "block": [128, 2, 1],
        "est. achieved occupancy %": 25,
    },
}
ROW_OF_KERNEL = {
    "kind": "kernel",
    "name": "gemm<{lambda()#1}, {lambda()#2}>",
    "device": 0,
    "lane": 0,
    "start_ns": 1_000_500,
    "duration_ns": 2_250,
    "grid_blocks": 24,
    "block_threads": 256,
    "registers": 40,
    "shared_bytes": 1024,
}
NOTHING_OF_A_KERNEL = dict.fromkeys(("grid_blocks", "block_threads", "registers", "shared_bytes"))


def event(category: str, name: str = "x", **more: Any) -> dict[str, Any]:
    plain = {"ph": "X", "cat": category, "name": name, "pid": 5, "tid": 6, "ts": 1, "dur": 2}
    return {**plain, **more}


def document(*events: Any, **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **more, "traceEvents": events}).encode()


def spread(*events: Any) -> bytes:
    """A trace laid out as the profiler does it: an event over several lines."""
    lines = []
    for one in events:
        head = json.dumps({key: value for key, value in one.items() if key != "args"})[1:-1]
        lines.append(
            f'  {{\n    {head},\n    "args": {{\n{json.dumps(one["args"])[1:-1]}\n    }}\n  }}'
        )
    text = ",\n".join(lines)
    head = '\n  {\n    "schemaVersion": 1,\n  "traceEvents": [\n'
    return (head + text + '\n  ],\n  "traceName": "t.json"\n}').encode()


def read(path: Path, content: bytes) -> tuple[EventsFacts, list[dict[str, Any]]]:
    """Reads a trace of this content; returns its facts and rows."""
    path.write_bytes(content)
    target = path.with_name("events.parquet")
    facts = read_events(path, target)
    assert load_facts(target) == facts
    return facts, rows(target)


def rows(path: Path) -> list[dict[str, Any]]:
    events = load_events(path)
    columns = {name: column.tolist() for name, column in events.columns.items()}
    columns["kind"] = [KINDS[number] for number in columns["kind"]]
    columns["name"] = [events.names[number] for number in columns["name"]]
    return [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in zip(columns, values, strict=True)
        }
        for values in zip(*columns.values(), strict=True)
    ]


def test_the_form_of_the_file_makes_no_difference(tmp_path):
    second = {**KERNEL, "ts": 2000, "name": "other"}
    lines = {"traceEvents": [KERNEL, second], "deviceProperties": [{"id": 0}]}
    forms = {
        "spread": spread(KERNEL, second),
        "one line": document(KERNEL, second),
        "dense": json.dumps(lines, separators=(",", ":")).encode(),
        "indented": json.dumps(lines, indent=4).encode(),
        "events last": json.dumps(dict(reversed(lines.items()))).encode(),
        "keys in another order": document(
            *(dict(reversed(one.items())) for one in (KERNEL, second))
        ),
        "a byte order mark": b"\xef\xbb\xbf" + document(KERNEL, second),
        "windows": spread(KERNEL, second).replace(b"\n", b"\r\n"),
    }
    expected = [
        ROW_OF_KERNEL,
        {**ROW_OF_KERNEL, "name": "other", "start_ns": 2_000_000},
    ]
    for form, content in forms.items():
        for packed in (content, gzip.compress(content)):
            facts, found = read(tmp_path / "trace", packed)

            assert (form, found) == (form, expected)
            assert (facts.events, facts.left_out, facts.truncated) == (2, 0, None)


def test_every_kind_of_event_has_its_row(tmp_path):
    given = [
        KERNEL,
        event("gpu_memcpy", pid=0, tid=7, args={"bytes": 128, "correlation": 13}),
        event("gpu_memset", pid=0, tid=8, args={"bytes": 64, "grid": [9, 9, 9]}),
        event("cpu_op", args={"Input Dims": [[1, 2], [{"a": []}]], "bytes": 7}),
        event("user_annotation", "step[DECODE bs=16]"),
        event("gpu_user_annotation", "step[DECODE bs=16]", pid=0, tid=7),
        event("python_function", tid=9),
        event("cuda_runtime", args={"correlation": 12}),
        event("cuda_driver", args={"correlation": 13}),
        event("Trace", "PyTorch Profiler (0)", pid="Spans", tid="PyTorch Profiler"),
        event("overhead"),
        event("kernel", ph="i"),
        {"ph": "f", "id": 12, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g"},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 6, "args": {"name": "thread 6 (py)"}},
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 9, "args": {"name": "scheduler"}},
    ]
    _, found = read(tmp_path / "trace", document(*given))

    def row(kind: str, lane: int, **more: Any) -> dict[str, Any]:
        device = 0 if lane in (0, 1) else -1
        plain = {"kind": kind, "name": "x", "device": device, "lane": lane}
        return {**plain, "start_ns": 1000, "duration_ns": 2000, **NOTHING_OF_A_KERNEL, **more}

    assert found == [
        ROW_OF_KERNEL,
        row("memcpy", 0),
        row("memset", 1),
        row("op", 2),
        row("annotation", 2, name="step[DECODE bs=16]"),
        row("gpu-annotation", 0, name="step[DECODE bs=16]"),
        row("python", 3),
        row("runtime", 2),
        row("runtime", 2),
        row("recording", 4, name="PyTorch Profiler (0)"),
    ]


def test_devices_and_rank_are_told(tmp_path):
    gpu = {"id": 1, "name": "H200", "numSms": 132, "computeMajor": 9, "unknown": 3}
    facts, _ = read(
        tmp_path / "trace",
        document(KERNEL, deviceProperties=[gpu], distributedInfo={"rank": 3, "world_size": 8}),
    )

    known = {"id": 1, "name": "H200", "sm_count": 132, "compute_major": 9}
    assert facts.devices == ({**known, "compute_minor": None},)
    assert facts.rank == 3


@pytest.mark.parametrize(
    ("name", "total_ms", "span_ms", "annotations"),
    [("decode-c16-gpu", 6.87, 12.3, 0), ("decode-c16-cpu-gpu", 6.83, 11.4, 63)],
)
def test_real_traces(tmp_path, name, total_ms, span_ms, annotations):
    facts, found = read(tmp_path / "trace", (DATA / f"{name}.trace.json.gz").read_bytes())
    kernels = [row for row in found if row["kind"] == "kernel"]

    assert len(kernels) == 1079
    assert sum(row["duration_ns"] for row in kernels) / 1e6 == pytest.approx(total_ms, abs=0.005)
    end_ns = max(row["start_ns"] + row["duration_ns"] for row in kernels)
    assert (end_ns - kernels[0]["start_ns"]) / 1e6 == pytest.approx(span_ms, abs=0.05)
    assert sum("annotation" in row["kind"] for row in found) == annotations
    assert (facts.rank, facts.left_out, facts.truncated) == (0, 0, None)
    assert [(device["name"], device["sm_count"]) for device in facts.devices] == [
        ("NVIDIA H200", 132)
    ]


# What may look like an event's end, and what has to be escaped.
HOSTILE = [
    "} , {",
    "},{",
    '"}, {"',
    "\\",
    "a\\",
    '\\"',
    "]",
    "\u00e9\u4f60\U0001f600",
    "\n\t",
    "nan",
    "",
]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    made = [
        lambda: rng.choice(HOSTILE),
        lambda: rng.randrange(1 << 40),
        lambda: rng.random() * 1e6,
        lambda: rng.choice([True, False, None]),
        lambda: [random_value(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: [{"ph": "X"}, {"ph": "X"}],
        lambda: {str(key): random_value(rng, depth + 1) for key in range(rng.randrange(4))},
    ]
    return rng.choice(made[:4] if depth > 2 else made)()


def random_event(rng: random.Random) -> dict[str, Any]:
    name = "".join(rng.choice(["gemm", *HOSTILE]) for _ in range(rng.randrange(4)))
    category = rng.choice(["kernel", "gpu_memcpy", "cpu_op", "python_function", "ac2g", "Trace"])
    found = {
        "ph": rng.choice("XXXXXif"),
        "cat": category,
        "name": name,
        "pid": rng.choice([0, 1, "a", 489]),
        "tid": rng.randrange(3),
        "ts": rng.choice([rng.randrange(1 << 42), rng.random() * 1e12, str(rng.random() * 1e6)]),
        "dur": rng.choice([0, rng.randrange(1000), rng.random() * 1e3]),
        "args": {f"arg {number}": random_value(rng) for number in range(rng.randrange(3))},
    }
    if category == "kernel":
        found["args"]["grid"] = [rng.randrange(1, 99) for _ in range(3)]
        found["args"]["registers per thread"] = rng.choice([rng.randrange(1 << 32), 7.0, "8"])
    keys = rng.sample(list(found), len(found))
    return {key: found[key] for key in keys if rng.random() > 0.05 or key in ("ts", "dur")}


def plain_rows(content: bytes) -> list[tuple[Any, ...]]:
    """The same by the plainest means: the whole file at once, a loop."""
    kinds = {
        "kernel": "kernel",
        "gpu_memcpy": "memcpy",
        "cpu_op": "op",
        "python_function": "python",
        "Trace": "recording",
    }
    found = []
    for one in json.loads(content)["traceEvents"]:
        if one.get("ph") == "X" and one.get("cat") in kinds:
            arguments = one.get("args", {}) if one["cat"] == "kernel" else {}
            grid = math.prod(arguments["grid"]) if "grid" in arguments else None
            registers = arguments.get("registers per thread")
            found.append(
                (
                    kinds[one["cat"]],
                    one.get("name", ""),
                    round(float(one["ts"]) * 1e3),
                    round(float(one["dur"]) * 1e3),
                    grid,
                    None if registers is None else int(registers),
                )
            )
    return found


@pytest.mark.parametrize("chunk_bytes", [64, 1000, reader_module._CHUNK_BYTES])
@pytest.mark.parametrize("indent", [None, 2])
def test_it_is_what_a_plain_reader_finds(tmp_path, monkeypatch, chunk_bytes, indent):
    monkeypatch.setattr(reader_module, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(events_module, "_GROUP_ROWS", 500)
    rng = random.Random(20261 + chunk_bytes)
    events = [random_event(rng) for _ in range(600 if chunk_bytes < 999 else 3000)]
    content = json.dumps(
        {"a": HOSTILE, "traceEvents": events, "z": [{"b": 1}, {"b": 2}]},
        indent=indent,
        ensure_ascii=False,
    ).encode()
    facts, found = read(tmp_path / "trace", content)

    names = ("kind", "name", "start_ns", "duration_ns", "grid_blocks", "registers")
    assert [tuple(row[name] for name in names) for row in found] == plain_rows(content)
    assert (facts.left_out, facts.truncated) == (0, None)


def test_one_kind_and_some_columns_can_be_loaded_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "_GROUP_ROWS", 2)
    monkeypatch.setattr(reader_module, "_BATCH", 2)
    given = [event("cpu_op", f"op {number}", ts=number) for number in range(5)]
    read(tmp_path / "trace", document(*given, {**KERNEL, "ts": 9}, *given, KERNEL))
    events = load_events(tmp_path / "events.parquet", ["name", "start_ns"], {"kernel"})

    assert set(events.columns) == {"kind", "name", "start_ns"}
    assert events["start_ns"].tolist() == [9000, 1_000_500]
    assert [events.names[number] for number in events["name"]] == [KERNEL["name"]] * 2
    assert len(load_events(tmp_path / "events.parquet", ["name"], {"memset"})) == 0


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (b'"dur": 2, "args": {"registers per thread": nan}', {"registers": None}),
        (
            b'"dur": 2, "args": {"memory bandwidth (GB/s)": -inf, "registers per thread": 3}',
            {"registers": 3},
        ),
        (
            b'"dur": 2, "args": {"a": NaN, "b": [Infinity, -Infinity], "registers per thread": 3}',
            {"registers": 3},
        ),
        (b'"dur": 2, "args": {"registers per thread": 1e400}', {"registers": None}),
        (b'"dur": 2, "args": {"registers per thread": [1]}', {"registers": None}),
        (b'"dur": 2, "args": {"registers per thread": "12"}', {"registers": 12}),
        (b'"dur": 2, "args": null', {"registers": None}),
        (
            b'"dur": 2, "args": [{"registers per thread": 1}, {"registers per thread": 2}]',
            {"registers": None},
        ),
        (b'"dur": "2.5"', {"duration_ns": 2500}),
        (b'"dur": 7, "dur": 3', {"duration_ns": 3000}),
        (b'"dur": 2, "name": "a\xff"', {"name": "a\ufffd"}),
        (b'"dur": 2, "name": "a\\ud800b"', {"name": "a\ufffdb"}),
        (b'"dur": 2, "name": "\\ud83d\\ude00"', {"name": "\U0001f600"}),
        (b'"dur": 2, "name": "C:\\Users\\q"', {"name": "C:\\Users\\q"}),
        (b'"dur": 2, "name": "a\nb"', {"name": "a b"}),
        (b'"dur": 2, "name": 7', {"name": "7"}),
        (
            b'"dur": 2, "name": "nan, \\" inf", "args": {"registers per thread": nan}',
            {"name": 'nan, " inf'},
        ),
        (b'"dur": 2, "pid": 1.5', {"device": 0}),
        (b'"dur": 2, "pid": null, "tid": {}', {"device": 0}),
        (b'"dur": 2, "pid": 99999999999999999999', {"device": 0}),
        (b'"dur": 2, "x": ' + b"[" * 40_000 + b"]" * 40_000, {"duration_ns": 2000}),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_odd_events_are_read_as_far_as_they_can_be(tmp_path, odd, expected):
    odd = b'{"ph": "X", "cat": "kernel", "ts": 1, ' + odd + b"}"
    around = json.dumps(event("cpu_op")).encode()
    content = b'{"traceEvents": [' + b",\n".join([around, odd, around]) + b"]}"
    facts, found = read(tmp_path / "trace", content)

    if b"[[[" in odd:
        # Nested too deep for any decoder.
        assert ([row["kind"] for row in found], facts.left_out) == (["op", "op"], 1)
        return
    assert [row["kind"] for row in found] == ["op", "kernel", "op"]
    assert {key: found[1][key] for key in expected} == expected
    assert (facts.left_out, facts.truncated) == (0, None)


@pytest.mark.parametrize(
    "times",
    [
        '"ts": 1, "dur": -1',
        '"ts": 1, "dur": 1e30',
        '"ts": 1e30, "dur": 1',
        '"ts": -1e400, "dur": 1',
        '"ts": nan, "dur": 1',
        '"ts": 1',
        '"dur": 1',
        '"ts": "soon", "dur": 1',
        '"ts": [], "dur": {}',
        '"ts": 1, "dur": ' + "9" * 5000,
        '"ts" 1, "dur": 1',
    ],
)
def test_events_without_usable_times_are_left_out_and_counted(tmp_path, times):
    bad = f'{{"ph": "X", "cat": "kernel", "name": "bad", "pid": 0, "tid": 7, {times}}}'
    good = json.dumps(KERNEL)
    content = f'{{"traceEvents": [{bad}, {good}, 3, "text", {bad}, null]}}'.encode()
    facts, found = read(tmp_path / "trace", content)

    assert [row["name"] for row in found] == [KERNEL["name"]]
    assert (facts.events, facts.left_out, facts.truncated) == (1, 5, None)


def test_what_is_too_long_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_LONGEST_BYTES", 4000)
    monkeypatch.setattr(reader_module, "_CHUNK_BYTES", 500)
    long = event("cpu_op", "long", args={"stack": '\\"}, {' * 2000})
    content = document(KERNEL, long, KERNEL, deviceProperties=[{"name": "x" * 9000}], other=[long])
    facts, found = read(tmp_path / "trace", content)

    assert [row["kind"] for row in found] == ["kernel", "kernel"]
    assert (facts.left_out, facts.truncated, facts.devices) == (1, None, ())


def test_more_threads_than_there_can_be_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_MOST_LANES", 3)
    given = [event("cpu_op", tid=number) for number in (1, 2, 1, 3, 4, 5, 2)]
    facts, found = read(tmp_path / "trace", document(*given))

    assert [row["lane"] for row in found] == [0, 1, 0, 2, 1]
    assert facts.left_out == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "missing"),
        (b"", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (document()[:-2], "no whole event.*ends early"),
        (document(KERNEL)[:-30], "no whole event.*ends within what begins at byte 37"),
        (gzip.compress(document(KERNEL), mtime=0)[:60], "no whole event.*gzip stream ends early"),
        (b"\x1f\x8b" + b"garbage!" * 9, "no whole event.*gzip stream is damaged"),
        (b"\x00\xff\x00", "not a trace of the torch profiler"),
        (b"[1, 2]", "not a trace of the torch profiler"),
        (b'{"spans": []}', "not a trace of the torch profiler.*traceEvents"),
        (b'{"traceEvents": 5}', "not a trace of the torch profiler.*traceEvents"),
        (b'{"traceEvents": []}', "no event of the torch profiler"),
        (b'{"traceEvents": [3]}', "no event.*1 are unusable"),
        (document(event("kernel", ts=None)), "no event.*1 are unusable"),
    ],
)
def test_a_file_without_events_is_one_message_and_leaves_nothing(tmp_path, content, message):
    path, target = tmp_path / "trace.json.gz", tmp_path / "events" / "events.parquet"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(LeverbenchError, match=message) as caught:
        read_events(path, target)
    assert (caught.value.where, bool(caught.value.cure)) == (str(path), True)
    assert list(tmp_path.glob("events/.*")) == list(tmp_path.glob("events/*")) == []


def test_a_folder_is_one_message(tmp_path):
    with pytest.raises(LeverbenchError, match=r"unreadable trace \(Is a directory\)"):
        read_events(tmp_path, tmp_path / "events.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", document(KERNEL), None])
def test_another_file_in_the_place_of_events_is_one_message(tmp_path, content):
    path = tmp_path / "events.parquet"
    if content is not None:
        path.write_bytes(content)

    for load in (load_facts, load_events):
        with pytest.raises(LeverbenchError, match="no file of a trace's events"):
            load(path)


@pytest.mark.server
@pytest.mark.parametrize("workers", [None, 1, 2, 5])
def test_ranks_are_read_side_by_side(tmp_path, workers):
    traces = {}
    for rank in range(3):
        traces[f"TP-{rank}"] = tmp_path / f"{rank}.json"
        content = document(*[KERNEL] * (rank + 1), distributedInfo={"rank": rank})
        traces[f"TP-{rank}"].write_bytes(content)
    found = read_ranks(traces, tmp_path / "events", workers)

    assert list(found) == ["TP-0", "TP-1", "TP-2"]
    assert [(facts.rank, facts.events) for facts in found.values()] == [(0, 1), (1, 2), (2, 3)]
    assert len(rows(events_path(tmp_path / "events", "TP-2"))) == 3


@pytest.mark.server
@pytest.mark.parametrize("bad", [0, 1])
def test_one_bad_rank_is_one_message(tmp_path, bad):
    traces = {f"TP-{rank}": tmp_path / f"{rank}.json" for rank in range(2)}
    for rank, path in enumerate(traces.values()):
        path.write_bytes(b"<html>" if rank == bad else document(KERNEL))

    with pytest.raises(LeverbenchError, match="not a trace") as caught:
        read_ranks(traces, tmp_path, 2)
    assert caught.value.where == str(tmp_path / f"{bad}.json")


@pytest.mark.server
@pytest.mark.parametrize(
    ("program", "told"), [("exit 3", "ended with 3"), ("kill -9 $$", "ended with -9")]
)
def test_a_reader_that_dies_is_one_message(tmp_path, monkeypatch, program, told):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho no memory >&2\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(ranks_module.sys, "executable", str(python))

    with pytest.raises(LeverbenchError, match=rf"{told} \(no memory\)") as caught:
        ranks_module._read_in_process(
            tmp_path / "t.json", tmp_path / "events.parquet", lambda process: None
        )
    assert caught.value.where == str(tmp_path / "t.json")


def peak_mb(trace: Path, target: Path) -> float:
    """Reads a trace in a process of its own; returns the most memory that it had."""
    command = [sys.executable, "-m", reader_module.__name__, str(trace), str(target)]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1e3


@pytest.mark.server
def test_memory_does_not_grow_with_the_trace(tmp_path):
    small, large, long = (tmp_path / name for name in ("small", "large", "long"))
    small.write_bytes(document(KERNEL))
    # 60 MB each: of events, and of one text inside one event.
    events = json.dumps(KERNEL).encode() + b","
    large.write_bytes(b'{"traceEvents": [' + events * (60_000_000 // len(events)) + b"{}]}")
    text = b'{"ph": "X", "cat": "cpu_op", "name": "' + b"x" * 60_000_000 + b'"},'
    long.write_bytes(b'{"a": ' + text[:-1] + b', "traceEvents": [' + text + events + b"{}]}")
    base_mb = peak_mb(small, tmp_path / "events.parquet")

    assert peak_mb(large, tmp_path / "events.parquet") < base_mb + 45
    assert peak_mb(long, tmp_path / "events.parquet") < base_mb + 45
    assert load_facts(tmp_path / "events.parquet").left_out == 1


@pytest.mark.parametrize("value", ["132", -5, 1.5, True, None, [1], 1 << 53])
def test_a_property_of_a_gpu_that_cannot_be_one_is_not_told(tmp_path, value):
    devices = [{"id": 0, "numSms": value, "computeMajor": 9, "name": value}]
    path = tmp_path / "t.json"
    path.write_bytes(document(KERNEL, deviceProperties=devices))
    (device,) = read_events(path, tmp_path / "events").devices

    assert (device["sm_count"], device["compute_major"]) == (None, 9)
    assert device["name"] in ("132", None)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_pipe_is_read_as_a_file_is(tmp_path, damaged):
    content = gzip.compress(document(*[KERNEL] * 20_000))
    if damaged:
        content = content[: len(content) // 2] + b"\xff" * 99 + content[len(content) // 2 :]
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=write, args=(tmp_path / "pipe", content))
    writing.start()
    facts = read_events(tmp_path / "pipe", tmp_path / "events")
    writing.join()

    assert facts.events == 20_000 if not damaged else 0 < facts.events < 20_000
    assert (facts.truncated is not None) == damaged


def write(path: Path, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        path.write_bytes(content)


@pytest.mark.server
def test_a_reader_that_cannot_write_says_so_as_this_process_does(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(document(KERNEL))
    (tmp_path / "file").touch()
    reader = partial(ranks_module._read_in_process, started=lambda process: None)
    for read in (read_events, reader):
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            read(path, tmp_path / "file" / "events")


def test_a_name_is_cut_where_no_name_of_a_kernel_is_so_long(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(document({**KERNEL, "name": "n" * 100_000}))
    read_events(path, tmp_path / "events")

    assert load_events(tmp_path / "events").names == ("n" * 16_384,)
