"""GPU memory: it must come back after a server has stopped, or the GPU is set aside."""

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from leverbench.serving.locks import run_dir

TOLERANCE_MIB = 512
FORMAT = ("--format=csv,noheader,nounits",)


def nvidia_smi(*arguments: str) -> list[list[str]] | None:
    """Returns the cells of nvidia-smi's answer, or None without an answer."""
    command = ["nvidia-smi", *arguments, *FORMAT]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]


def memory_used_mib(devices: Iterable[str]) -> dict[str, int]:
    """Returns the memory in use by GPU; one that nvidia-smi does not tell is left out."""
    gpus = [device for device in devices if device.startswith("gpu")]
    rows = (nvidia_smi("--query-gpu=index,memory.used") if gpus else None) or []
    used = {f"gpu{row[0]}": int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    return {gpu: used[gpu] for gpu in gpus if gpu in used}


def wait_released(before_mib: Mapping[str, int], timeout_s: float) -> dict[str, int | None]:
    """Waits until each GPU's memory in use is back to what it was, give or take the tolerance.

    Returns:
        The GPUs that are not, with their memory in use in MiB (None: nvidia-smi does not answer).
    """
    limit = time.monotonic() + timeout_s
    while True:
        used = memory_used_mib(before_mib)
        held = {
            gpu: used.get(gpu)
            for gpu, before in before_mib.items()
            if gpu not in used or used[gpu] > before + TOLERANCE_MIB
        }
        if not held or time.monotonic() > limit:
            return held
        time.sleep(0.5)


def quarantine_path(device: str) -> Path:
    """Returns the file that keeps a device from being leased while it exists."""
    return run_dir() / f"{device}.quarantine"


def quarantine(device: str, before_mib: int, used_mib: int | None) -> None:
    """Sets a GPU aside, with the processes that nvidia-smi reports on it."""
    rows = nvidia_smi("--query-compute-apps=pid", f"--id={device.removeprefix('gpu')}") or []
    record = {
        "gpu": device,
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "before_mib": before_mib,
        "used_mib": used_mib,
        "pids": [int(row[0]) for row in rows if row[0].isdigit()],
    }
    quarantine_path(device).write_text(json.dumps(record))
