"""Traces as the torch profiler writes them, for tests: events of which the head knows all sums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9, "computeMinor": 0}


def event(category: str, name: str, start_us: float, duration_us: float, **more: Any) -> Any:
    plain = {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": duration_us}
    return {**plain, "pid": 1, "tid": 1, **more}


def op(name: str, start_us: float, duration_us: float, **more: Any) -> Any:
    return event("cpu_op", name, start_us, duration_us, **more)


def kernel(name: str, start_us: float, duration_us: float, stream: int = 7, **more: Any) -> Any:
    return event("kernel", name, start_us, duration_us, **{"pid": 0, "tid": stream, **more})


def annotation(name: str, start_us: float, duration_us: float) -> Any:
    return event("user_annotation", name, start_us, duration_us)


def step(start_us: float, duration_us: float, mode: str = "DECODE") -> Any:
    return annotation(f"step[{mode} bs=3]", start_us, duration_us)


def gpu_step(start_us: float, duration_us: float, mode: str = "DECODE", stream: int = 7) -> Any:
    name = f"step[{mode} bs=3]"
    return event("gpu_user_annotation", name, start_us, duration_us, pid=0, tid=stream)


def launch(
    blocks: int, threads: int, registers: int = 32, shared_bytes: int = 0
) -> Mapping[str, Any]:
    return {
        "args": {
            "grid": [blocks, 1, 1],
            "block": [threads, 1, 1],
            "registers per thread": registers,
            "shared memory": shared_bytes,
        }
    }


def write_trace(path: Path, *events: Any) -> Path:
    document = {"schemaVersion": 1, "deviceProperties": [H200], "traceEvents": events}
    path.write_text(json.dumps(document))
    return path
