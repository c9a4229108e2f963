"""Measured activity of the tensor cores and the memory of GPUs, where NVML offers it.

NVML's GPM (GPU performance monitoring) reads counters of Hopper and later GPUs. Two samples give
averages over the stretch between them. GPM has a part of the GPU to itself, and the profiler of
kernels does not lock it out; but what is recorded runs slower than what is not, so a stretch is to
lie outside of recordings. Only the standard library is needed.
"""

import ctypes
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

NO_GPU = "no GPU of ours"
NO_LIBRARY = "the driver's library libnvidia-ml.so.1 is not there"
NO_FUNCTION = "not offered by this driver"
NOT_OFFERED = "not offered before Hopper"
NO_PERMISSION = "no permission"
LOST = "the GPU was lost"
MIG = "MIG is on: a GPU as a whole is not measured"
NO_FIGURE = "the driver gives no figure"
# The driver renews its counters ten times a second: a sample may be that old, and two that are
# closer may be the same (NVML's description of nvmlGpmMetricsGet).
REFRESH_S = 0.1
TOO_SHORT = f"the stretch is not longer than {REFRESH_S:g} s"

_LIBRARY = "libnvidia-ml.so.1"
# nvml.h: nvmlReturn_t.
_REASONS = {
    3: NOT_OFFERED,
    4: NO_PERMISSION,
    9: "the driver is not loaded",
    13: NO_FUNCTION,
    15: LOST,
    28: LOST,
}
# nvml.h: nvmlGpmMetricId_t. All are percentages, averages over the GPU's multiprocessors (SMs) and
# the stretch: of time with any tensor instruction under way; with one on 16-bit floats; with a warp
# at hand; of the warps that fit; of the memory's bandwidth.
_METRICS = {
    "any_tensor": 5,
    "hmma": 7,
    "sm_active": 2,
    "sm_occupancy": 3,
    "dram_bandwidth": 10,
}
# Room for more metrics than any header of today has (477): the version of the structure is the same
# in all of them and does not tell how many follow.
_ROOM = 512


class _Support(ctypes.Structure):
    """nvml.h: nvmlGpmSupport_t, version 1."""

    _fields_ = (("version", ctypes.c_uint), ("offered", ctypes.c_uint))


class _Metric(ctypes.Structure):
    """nvml.h: nvmlGpmMetric_t; the names are the library's own."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("code", ctypes.c_int),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    )


class _Metrics(ctypes.Structure):
    """nvml.h: nvmlGpmMetricsGet_t, version 1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("metrics", _Metric * _ROOM),
    )


class _Absent(Exception):
    """A GPU is not measured; the text says why."""


@dataclass
class Activity:
    """How busy GPUs were in a stretch.

    Attributes:
        figures: ``{"source": "nvml-gpm", "seconds": length of the stretch, "gpus": [{"gpu",
            "any_tensor", "hmma", "sm_active", "sm_occupancy", "dram_bandwidth"}]}``, shares from 0
            to 1, None for what is not told; None until the stretch has ended, and where no GPU
            tells anything.
        reason: Why figures are missing, or None. It is set when the stretch begins if none are to
            be had.
    """

    figures: dict[str, Any] | None = None
    reason: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Returns what a profile's record says of it."""
        return {"tensor_activity": self.figures, "tensor_activity_reason": self.reason}


@contextmanager
def sampled(devices: Sequence[str]) -> Iterator[Activity]:
    """Measures GPUs while the block runs, by one sample before and one after it.

    Nothing runs meanwhile. Whatever NVML refuses, the block runs all the same.

    Args:
        devices: The server's devices, such as ``gpu0``, by NVML's (and nvidia-smi's) numbers.

    Yields:
        What is filled in when the block ends.
    """
    gpus = [device for device in devices if device.startswith("gpu")]
    if not gpus:
        yield Activity(reason=NO_GPU)
        return
    with ExitStack() as stack:
        meters, absences = _all_begun(stack, gpus)
        activity = Activity(reason=None if meters else _told(absences, gpus))
        began = time.monotonic()
        yield activity
        seconds = time.monotonic() - began
        if not meters:
            return
        if seconds <= REFRESH_S:
            activity.reason = TOO_SHORT
            return
        shares: dict[str, dict[str, float | None]] = {}
        for gpu, meter in meters.items():
            try:
                shares[gpu] = meter.shares()
            except _Absent as absent:
                absences[gpu] = str(absent)
        activity.reason = _told(absences, gpus)
        if shares:
            unknown = dict.fromkeys(_METRICS)
            activity.figures = {
                "source": "nvml-gpm",
                "seconds": round(seconds, 4),
                "gpus": [{"gpu": gpu, **shares.get(gpu, unknown)} for gpu in gpus],
            }


def why_not(devices: Sequence[str]) -> str | None:
    """Returns why no GPU of these can be measured; None where one can."""
    with sampled(devices) as activity:
        return activity.reason


@dataclass(frozen=True)
class _Meter:
    """A GPU whose first sample is taken."""

    nvml: ctypes.CDLL
    handle: ctypes.c_void_p
    first: ctypes.c_void_p
    last: ctypes.c_void_p

    def shares(self) -> dict[str, float | None]:
        """Takes the last sample; returns the averages since the first by name."""
        _call(self.nvml, "nvmlGpmSampleGet", self.handle, self.last)
        asked = _Metrics(version=1, count=len(_METRICS), first=self.first, last=self.last)
        for metric, number in zip(asked.metrics, _METRICS.values(), strict=False):
            metric.id = number
        _call(self.nvml, "nvmlGpmMetricsGet", ctypes.byref(asked))
        told = dict(zip(_METRICS, map(_share, asked.metrics), strict=False))
        if all(share is None for share in told.values()):
            raise _Absent(_REASONS.get(asked.metrics[0].code, NO_FIGURE))
        return told


def _all_begun(stack: ExitStack, gpus: Sequence[str]) -> tuple[dict[str, _Meter], dict[str, str]]:
    """Returns the GPUs whose first sample is taken, and why others are not measured."""
    try:
        nvml = stack.enter_context(_opened())
    except _Absent as absent:
        return {}, dict.fromkeys(gpus, str(absent))
    meters, absences = {}, {}
    for gpu in gpus:
        try:
            meters[gpu] = stack.enter_context(_begun(nvml, gpu))
        except _Absent as absent:
            absences[gpu] = str(absent)
    return meters, absences


@contextmanager
def _opened() -> Iterator[ctypes.CDLL]:
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise _Absent(NO_LIBRARY) from None
    _call(nvml, "nvmlInit_v2")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


@contextmanager
def _begun(nvml: ctypes.CDLL, gpu: str) -> Iterator[_Meter]:
    """Yields a GPU with its first sample taken; frees its samples afterwards."""
    handle = ctypes.c_void_p()
    index = ctypes.c_uint(int(gpu.removeprefix("gpu")))
    _call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    # A GPU that cannot be divided refuses the question.
    code = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending))
    if code == 0 and mode.value:
        raise _Absent(MIG)
    support = _Support(version=1)
    _call(nvml, "nvmlGpmQueryDeviceSupport", handle, ctypes.byref(support))
    if not support.offered:
        raise _Absent(NOT_OFFERED)
    with _sample(nvml) as first, _sample(nvml) as last:
        _call(nvml, "nvmlGpmSampleGet", handle, first)
        yield _Meter(nvml, handle, first, last)


@contextmanager
def _sample(nvml: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
    sample = ctypes.c_void_p()
    _call(nvml, "nvmlGpmSampleAlloc", ctypes.byref(sample))
    try:
        yield sample
    finally:
        nvml.nvmlGpmSampleFree(sample)


def _call(nvml: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        function = getattr(nvml, name)
    except AttributeError:
        raise _Absent(NO_FUNCTION) from None
    if code := function(*arguments):
        raise _Absent(_REASONS.get(code, f"{name} ends with NVML's error {code}"))


def _share(metric: _Metric) -> float | None:
    percent: float = metric.value
    return None if metric.code or not math.isfinite(percent) else round(percent / 100, 6)


def _told(absences: dict[str, str], gpus: Sequence[str]) -> str | None:
    """Returns one text for all GPUs that are not measured; without names if it is all, alike."""
    if len(absences) == len(gpus) and len(set(absences.values())) == 1:
        return absences[gpus[0]]
    return "; ".join(f"{gpu}: {reason}" for gpu, reason in absences.items()) or None
