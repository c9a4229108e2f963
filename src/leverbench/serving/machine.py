"""The machine that a measurement ran on."""

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from leverbench.errors import LeverbenchError

_QUERY = ["nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"]


def machine_fingerprint(devices: Sequence[str]) -> dict[str, str]:
    """Returns what must be equal before rows of two machines may be compared.

    Args:
        devices: ``("cpu",)``, or the GPUs of the server: ``("gpu0", ...)``.
    """
    fingerprint = {
        "device": "cpu" if devices[0] == "cpu" else "gpu",
        "cpu": _cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30),
        "kernel": platform.release(),
    }
    if fingerprint["device"] == "gpu":
        gpus = installed_gpus()
        used = [gpus[int(device.removeprefix("gpu"))] for device in devices]
        fingerprint["gpus"] = ", ".join(name for name, _ in used)
        fingerprint["driver"] = used[0][1]
    return fingerprint


def installed_gpus() -> list[tuple[str, str]]:
    """Returns (name, driver version) of each GPU; empty where there is none."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [(row[1], row[2]) for row in rows if len(row) == 3]


def require_gpus(count: int) -> None:
    """Raises `LeverbenchError` where the machine has fewer GPUs than the campaign needs."""
    found = len(installed_gpus()) if count else 0
    if found < count:
        raise LeverbenchError(
            f"the campaign needs {count} GPUs and nvidia-smi shows {found}",
            where="topology.gpus",
            cure="Run it on a machine that has them, or lower topology.gpus.",
        )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return platform.machine()
