"""Micro-benchmark: a kernel as it is shipped against what it stands in for, call by call."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Kernel
from leverbench.serving.failures import now
from leverbench.tuning.invalid import InvalidCandidate
from leverbench.tuning.race import judge, run_race
from leverbench.tuning.tune import what_is_timed
from leverbench.tuning.worker import Timer, Worker


def microbench(
    kernel: Kernel,
    tunings: Sequence[Path],
    code: Path,
    settings: EngineSettings,
    device: str,
    record: Path,
) -> None:
    """Races a kernel, with what was chosen for each call, against its fallback; records the times.

    Args:
        kernel: The kernel.
        tunings: Records of what was chosen, by `tune`.
        code: Folder of what was built.
        settings: The engine's, for its interpreter.
        device: ``cpu``, or the name of the GPU.
        record: The record; its speed-ups are the fallback's time over the kernel's, with the race's
            interval, whether or not the kernel is the faster one.

    Raises:
        LeverbenchError: The kernel or its fallback cannot be called, or a record is unreadable.
    """
    about, started_at = what_is_timed(kernel, code, device), now()
    chosen = [each for path in tunings for each in records.read_record(path)["chosen"]]
    with Worker(kernel, code, settings, device) as worker:
        calls = [_compare(kernel, worker, each["dimensions"], each["config"]) for each in chosen]
    records.write_record(
        record,
        {
            "kind": "microbench",
            **about,
            "device": device,
            "calls": calls,
            "started_at": started_at,
            "ended_at": now(),
        },
    )


def _compare(
    kernel: Kernel, timer: Timer, dimensions: Mapping[str, Any], config: Mapping[str, int]
) -> dict[str, Any]:
    try:
        timer.time(dimensions, config, 1, check=True)
        rounds = run_race(
            partial(timer.time, dimensions, None), partial(timer.time, dimensions, config)
        )
    except InvalidCandidate as problem:
        raise LeverbenchError(
            f"no micro-benchmark at {dict(dimensions)} with {dict(config)}:"
            f" {problem.reason}, {problem.detail}",
            where=str(kernel.folder),
            cure="Correct the kernel's run, fallback or reference.",
        ) from None
    verdict = judge(rounds)
    samples = asdict(rounds)
    return {
        "dimensions": dict(dimensions),
        "config": dict(config),
        "fallback_s": verdict.incumbent_s,
        "kernel_s": verdict.rival_s,
        "speedup": verdict.speedup,
        "low": verdict.low,
        "high": verdict.high,
        "samples": {"fallback_s": samples["incumbent_s"], "kernel_s": samples["rival_s"]},
    }
