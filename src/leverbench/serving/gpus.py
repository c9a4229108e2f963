"""How the server's GPUs ran while something was measured, and who else was on them."""

import fcntl
import os
import select
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from leverbench.serving.devices import FORMAT, nvidia_smi
from leverbench.serving.processes import Process

# Bits of NVML's clocks event reasons (nvml.h: nvmlClocksEventReason..., formerly
# nvmlClocksThrottleReason...).
CAPPED = "power-cap"
EVENT_REASONS = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: CAPPED,
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
    0x100: "display-clocks",
}
THROTTLED = frozenset({"hardware-slowdown", "software-thermal", "hardware-thermal", "power-brake"})

_SAMPLE_MS = 1000
# What is asked of each GPU; old and new drivers know the reasons by this name.
_FIELDS = (
    "index",
    "power.draw",
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)
_FIGURES = ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c")
# Eight GPUs write some 400 bytes a second: this lasts for longer than any window.
_PIPE_BYTES = 1 << 20
_FIRST_ANSWER_S = 20.0


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None for what nvidia-smi does not tell.

    Attributes:
        gpu: Its name here, such as ``gpu0``.
        power_w: Power of the board, by the driver averaged over a second or so.
        sm_clock_mhz: Clock of its processors.
        memory_clock_mhz: Clock of its memory.
        temperature_c: Its temperature.
        reasons: Why its clocks are not higher: names of `EVENT_REASONS`.
    """

    gpu: str
    power_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    reasons: tuple[str, ...] | None


@contextmanager
def sampled(devices: Sequence[str]) -> Iterator[list[GpuSample]]:
    """Samples GPUs once a second while the block runs, and once after it.

    One nvidia-smi that repeats itself does it: it costs some 1 ms of CPU time a second, and its
    first answer is awaited before the block begins. What it says waits in the pipe until the
    block has ended, so that nothing of it runs in this process, whose timestamps count. If this
    process is killed, its next line finds no reader, and it ends.

    Args:
        devices: The server's devices; on the CPU there is nothing to sample.

    Yields:
        A list that is filled when the block ends; it stays empty where nvidia-smi does not answer.
    """
    samples: list[GpuSample] = []
    gpus = _gpus(devices)
    if not gpus:
        yield samples
        return
    try:
        watch = subprocess.Popen(
            ["nvidia-smi", *_query(gpus), *FORMAT, f"--loop-ms={_SAMPLE_MS}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
    except OSError:
        yield samples
        return
    with watch:
        try:
            text = _first_answer(watch, len(gpus))
            yield samples
            after = nvidia_smi(*_query(gpus)) or []
        finally:
            watch.terminate()
            try:
                rest, _ = watch.communicate(timeout=_FIRST_ANSWER_S)
            except subprocess.TimeoutExpired:
                watch.kill()
                rest, _ = watch.communicate()
    # A line that was being written when it was ended is not whole.
    lines = (text + rest).decode(errors="replace").rpartition("\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    samples += [_sample(row) for row in [*rows, *after] if len(row) == len(_FIELDS)]


def gpu_account(samples: Iterable[GpuSample]) -> dict[str, dict[str, Any]] | None:
    """Returns what a point's record says of its GPUs, by GPU; None without a sample.

    Each has the number of ``samples``; ``{"mean", "min", "max"}`` of ``power_w``, ``sm_clock_mhz``,
    ``memory_clock_mhz`` and ``temperature_c``, None where not told; and ``reasons``: why its clocks
    were not higher, each with its share of the samples, None where not told.
    """
    by_gpu: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    account: dict[str, dict[str, Any]] = {}
    for gpu, of_gpu in sorted(by_gpu.items()):
        figures = {name: _range([getattr(sample, name) for sample in of_gpu]) for name in _FIGURES}
        told = [sample.reasons for sample in of_gpu if sample.reasons is not None]
        names = sorted({name for reasons in told for name in reasons})
        shares = {name: sum(name in reasons for reasons in told) / len(told) for name in names}
        account[gpu] = {"samples": len(of_gpu), **figures, "reasons": shares if told else None}
    return account or None


def throttled(account: Mapping[str, Mapping[str, Any]] | None) -> bool:
    """Returns whether heat, or too little power from outside, slowed a GPU down in any sample."""
    return any(THROTTLED & set(gpu["reasons"] or ()) for gpu in (account or {}).values())


def capped_share(account: Mapping[str, Mapping[str, Any]] | None) -> float:
    """Returns in which share of its samples a GPU ran at its power limit: the GPU's with most."""
    shares = [(gpu["reasons"] or {}).get(CAPPED, 0.0) for gpu in (account or {}).values()]
    return max(shares, default=0.0)


def strangers(devices: Sequence[str], server: Iterable[Process]) -> list[int] | None:
    """Returns the processes on the server's GPUs that are not the server's.

    Args:
        devices: The server's devices.
        server: Its live processes.

    Returns:
        Pids; None where it cannot be told. Where nvidia-smi does not list the server itself, as in
        some containers, its pids are not ours, or it lists nobody: then it cannot.
    """
    gpus = _gpus(devices)
    rows = nvidia_smi("--query-compute-apps=pid", _id(gpus)) if gpus else None
    listed = {int(row[0]) for row in rows or [] if row[0].isdigit()}
    ours = {process.pid for process in server}
    return sorted(listed - ours) if listed & ours else None


def _gpus(devices: Sequence[str]) -> list[str]:
    return [device for device in devices if device.startswith("gpu")]


def _id(gpus: Sequence[str]) -> str:
    return f"--id={','.join(gpu.removeprefix('gpu') for gpu in gpus)}"


def _query(gpus: Sequence[str]) -> tuple[str, str]:
    return f"--query-gpu={','.join(_FIELDS)}", _id(gpus)


def _first_answer(watch: subprocess.Popen[bytes], lines: int) -> bytes:
    """Waits until it has told of each GPU once; returns what it said."""
    if watch.stdout is None:
        raise ValueError("it writes to no pipe")
    pipe = watch.stdout.fileno()
    with suppress(OSError):  # where it stays smaller, it lasts for minutes all the same
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    limit_s = time.monotonic() + _FIRST_ANSWER_S
    text = b""
    while text.count(b"\n") < lines:
        left_s = limit_s - time.monotonic()
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            break
        if not (more := os.read(pipe, 1 << 16)):  # it has ended
            break
        text += more
    return text


def _sample(row: Sequence[str]) -> GpuSample:
    index, *figures, mask = row
    power_w, sm_clock_mhz, memory_clock_mhz, temperature_c = map(_number, figures)
    gpu = f"gpu{index}"
    return GpuSample(gpu, power_w, sm_clock_mhz, memory_clock_mhz, temperature_c, _reasons(mask))


def _reasons(mask: str) -> tuple[str, ...] | None:
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    return tuple(name for bit, name in EVENT_REASONS.items() if bits & bit)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # such as [N/A]
        return None


def _range(values: Sequence[float | None]) -> dict[str, float] | None:
    told = [value for value in values if value is not None]
    if not told:
        return None
    return {"mean": round(sum(told) / len(told), 3), "min": min(told), "max": max(told)}
