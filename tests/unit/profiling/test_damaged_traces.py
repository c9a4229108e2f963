"""Damaged traces: one message or what is whole in them, never another error, in little of all.

Made from a real trace, with a fixed seed.
"""

import gzip
import json
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leverbench.errors import LeverbenchError
from leverbench.profiling.events import Events, load_events
from leverbench.profiling.reader import read_events

PACKED = (
    Path(__file__).resolve().parents[2] / "data/decode-c16-cpu-gpu.trace.json.gz"
).read_bytes()
PLAIN = gzip.decompress(PACKED)
ROWS = 1906
LIMIT_S, LIMIT_MB = 10.0, 40.0


def rng(seed: int) -> random.Random:
    return random.Random(f"damage {seed}")


def cut(content: bytes, seed: int) -> bytes:
    return content[: rng(seed).randrange(1, len(content))]


def flipped(content: bytes, seed: int) -> bytes:
    changed = bytearray(content)
    for _ in range(1 + seed % 3):
        changed[rng(seed).randrange(20, len(content))] ^= 1 << rng(seed).randrange(8)
    return bytes(changed)


def overwritten(content: bytes, patch: bytes, seed: int) -> bytes:
    at = rng(seed).randrange(len(content) - len(patch))
    return content[:at] + patch + content[at + len(patch) :]


def retyped(seed: int) -> bytes:
    """Every tenth field of every other event has a value of another type."""
    draw, document = rng(seed), json.loads(PLAIN)
    others = [None, [], {}, "x", True, -1, 1e300, [[1]], {"a": 1}, "1e999", 10**30]
    for event in document["traceEvents"][::2]:
        for fields in (event, event.get("args", {})):
            for name in fields:
                if draw.random() < 0.1:
                    fields[name] = draw.choice(others)
    return json.dumps(document).encode()


def with_event(text: str) -> bytes:
    """A trace of three events, the second of which is given."""
    whole = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    return f'{{"traceEvents": [{whole}, {text}, {whole}]}}'.encode()


def odd_time(value: str) -> bytes:
    return with_event(f'{{"ph": "X", "cat": "kernel", "ts": {value}, "dur": {value}}}')


def twice() -> bytes:
    """Every key twice, the array of events, too."""
    events = PLAIN[PLAIN.index(b'[\n  {\n    "ph"') : PLAIN.rindex(b"]") + 1]
    doubled = events.replace(b'"name":', b'"name": {"a": "}, {"}, "name":')
    return b'{"traceEvents": ' + doubled + b', "traceEvents": ' + doubled + b"}"


def packed(content: bytes, level: int = 1) -> bytes:
    return gzip.compress(content, level)


DEEP = "[" * 40_000 + "]" * 40_000
LONG = b'{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1, "name": "%s"}'
DAMAGED: dict[str, Callable[[], bytes]] = {
    **{f"json cut {seed}": lambda seed=seed: cut(PLAIN, seed) for seed in range(8)},
    **{f"gzip cut {seed}": lambda seed=seed: cut(PACKED, seed) for seed in range(8, 16)},
    **{f"json flipped {seed}": lambda seed=seed: flipped(PLAIN, seed) for seed in range(6)},
    **{f"gzip flipped {seed}": lambda seed=seed: flipped(PACKED, seed) for seed in range(6, 12)},
    "gzip cut in its head": lambda: PACKED[:5],
    "gzip cut in its tail": lambda: PACKED[:-3],
    "json with zeros": lambda: overwritten(PLAIN, b"\0" * 4096, 1),
    "gzip with zeros": lambda: overwritten(PACKED, b"\0" * 512, 2),
    "json with brackets": lambda: overwritten(PLAIN, b"}]" * 200, 3),
    "json with quotes": lambda: overwritten(PLAIN, b'"' * 33, 4),
    **{f"other types {seed}": lambda seed=seed: retyped(seed) for seed in range(3)},
    "nested deep in an event": lambda: with_event(f'{{"ph": "X", "args": {DEEP}}}'),
    "nested deep in the head": lambda: f'{{"a": {DEEP}, "traceEvents": []}}'.encode(),
    "nested deep and nothing else": lambda: b"[" * 1_000_000,
    "nested deep without an end": lambda: b'{"traceEvents": [' + b'{"a": [' * 40_000,
    "nothing": lambda: b"",
    "white space": lambda: b" \n" * 100_000,
    "zeros": lambda: b"\0" * 100_000,
    "gzip of nothing": lambda: packed(b""),
    "gzip of zeros, many": lambda: packed(b"\0" * 100_000_000),
    "html": lambda: b"<!DOCTYPE html><html><body>404</body></html>",
    "png": lambda: b"\x89PNG\r\n\x1a\n" + rng(5).randbytes(4000),
    "gzip of html": lambda: packed(b"<html></html>"),
    "noise": lambda: rng(6).randbytes(50_000),
    "gzip of noise": lambda: packed(rng(7).randbytes(50_000)),
    "another object": lambda: json.dumps({"spans": [{"ts": 1}] * 10_000}).encode(),
    "another list": lambda: json.dumps([{"ph": "X", "cat": "kernel"}] * 1000).encode(),
    "lines of objects": lambda: b'{"ph": "X", "cat": "kernel"}\n' * 1000,
    "a text": lambda: b'"traceEvents"',
    "a number": lambda: b"7" * 1_000_000,
    "utf-16": lambda: PLAIN.decode().encode("utf-16"),
    "events of no object": lambda: b'{"traceEvents": [' + b"1, null, [], " * 3_000 + b"2]}",
    "commas": lambda: b'{"traceEvents": [' + b"," * 50_000 + b"]}",
    "a time without bound": lambda: odd_time("1e400"),
    "a time of 10^30": lambda: odd_time("1e30"),
    "a time of many digits": lambda: odd_time("9" * 100_000),
    "a time of no number": lambda: odd_time("-nan"),
    "keys twice": twice,
    "two traces in one": lambda: PACKED + PACKED,
    "a trace and more": lambda: PACKED + b"more",
    "text of 100 MB": lambda: packed(b'{"traceEvents": [' + LONG % (b"x" * 100_000_000) + b"]}"),
    "a text without an end": lambda: packed(b'{"traceEvents": [{"ph": "' + b"}, {" * 500_000),
    "escapes without an end": lambda: b'{"traceEvents": [{"name": "' + b"\\" * 99_999,
}


def memory_mb(peak: bool) -> float:
    """This process's resident memory, or its peak since that was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:" if peak else "VmRSS:")[1].split()[0]) / 1e3


def attempt(path: Path, content: bytes) -> tuple[Events, str | None, int] | LeverbenchError:
    """Reads a trace within bounds: events, why it is truncated and how many were left out."""
    path.write_bytes(content)
    target = path.with_name("events.parquet")
    Path("/proc/self/clear_refs").write_text("5")
    began, before_mb = time.monotonic(), memory_mb(peak=False)
    try:
        facts = read_events(path, target)
    except LeverbenchError as error:
        assert not target.exists()
        return error
    finally:
        assert memory_mb(peak=True) - before_mb < LIMIT_MB
        assert time.monotonic() - began < LIMIT_S
    events = load_events(target)
    assert len(events) == facts.events > 0
    return events, facts.truncated, facts.left_out


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_trace_is_one_message_or_what_is_whole_in_it(tmp_path, damage):
    found = attempt(tmp_path / "trace.json.gz", DAMAGED[damage]())

    if isinstance(found, LeverbenchError):
        assert (found.where, bool(found.cure)) == (str(tmp_path / "trace.json.gz"), True)
        assert "\n" not in str(found)
        assert len(str(found)) < 400


def test_there_are_enough_of_them():
    assert len(DAMAGED) >= 50


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Events:
    found = attempt(tmp_path_factory.mktemp("whole") / "trace", PACKED)
    assert not isinstance(found, LeverbenchError)
    assert (len(found[0]), *found[1:]) == (ROWS, None, 0)
    return found[0]


def rows(events: Events) -> list[tuple[Any, ...]]:
    names = [events.names[number] for number in events["name"]]
    return list(zip(names, events["start_ns"], events["duration_ns"], strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_of_a_cut_trace_the_first_events_are_kept(tmp_path, whole, seed):
    content = cut(PACKED, seed) if seed % 2 else cut(PLAIN, seed)
    found = attempt(tmp_path / "trace", content)

    # So many events of our kinds end before the cut.
    text = content
    if seed % 2:
        text = zlib.decompressobj(31).decompress(content)
    before = text.count(b'"ph": "X"') - text.count(b'"cat": "overhead"')
    if isinstance(found, LeverbenchError):
        assert before <= 1
        return
    events, truncated, left_out = found
    assert len(events) in (before - 1, before)
    assert rows(events) == rows(whole)[: len(events)]
    assert "ends" in truncated
    assert left_out == 0


def test_several_members_of_gzip_are_one_trace(tmp_path, whole):
    parts = [packed(PLAIN[at : at + 99_999]) for at in range(0, len(PLAIN), 99_999)]
    for between in (b"", b"\0" * 512):
        events, truncated, _ = attempt(tmp_path / "trace", between.join([*parts, packed(b"")]))

        assert (rows(events), truncated) == (rows(whole), None)


@pytest.mark.parametrize(
    ("damage", "count", "truncated", "left_out"),
    [
        ("a trace and more", ROWS, "something else follows the gzip stream", 0),
        ("two traces in one", ROWS, "something follows the trace's end at byte 1066335", 0),
        ("gzip cut in its tail", ROWS, "the gzip stream ends early", 0),
        ("nested deep in an event", 2, None, 1),
        ("a time without bound", 2, None, 1),
        ("a time of many digits", 2, None, 1),
        ("keys twice", 2 * ROWS, None, 0),
    ],
)
def test_what_is_damaged_is_told(tmp_path, damage, count, truncated, left_out):
    events, *told = attempt(tmp_path / "trace", DAMAGED[damage]())

    assert (len(events), told) == (count, [truncated, left_out])


def test_a_wrong_checksum_is_told(tmp_path, whole):
    content = PACKED[:-8] + bytes(4) + PACKED[-4:]
    events, truncated, _ = attempt(tmp_path / "trace", content)

    assert rows(events) == rows(whole)
    assert truncated.startswith("the gzip stream is damaged")


def test_what_precedes_damage_in_a_gzip_is_kept(tmp_path, whole):
    half = len(PACKED) // 2
    content = PACKED[:half] + b"\xff" * 64 + PACKED[half + 64 :]
    events, truncated, _ = attempt(tmp_path / "trace", content)

    text = zlib.decompressobj(31).decompress(PACKED[:half])
    assert len(events) >= text.count(b'"ph": "X"') - 2
    assert rows(events)[:-1] == rows(whole)[: len(events) - 1]
    assert truncated.startswith("the gzip stream is damaged")
