"""The machine that a measurement ran on."""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from leverbench.errors import LeverbenchError
from leverbench.serving.devices import nvidia_smi
from leverbench.serving.processes import Process


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


def placement(devices: Sequence[str], processes: Sequence[Process]) -> dict[str, Any]:
    """Returns where a server runs: its GPUs with their NUMA nodes, and the CPUs it may use.

    Args:
        devices: ``("cpu",)``, or the GPUs of the server.
        processes: The server's processes.

    Returns:
        ``{"numa_nodes": number of them in the machine, "gpus": {"gpu0": {"pci": bus id,
        "numa_node": its node, None where the machine has none}}, "cpus_allowed": [a list in the
        kernel's form for each set of CPUs that a process of the server may use]}``.
    """
    allowed = []
    for process in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("Cpus_allowed_list:"):
                    allowed.append(line.partition(":")[2].strip())
    buses = _rows("index,pci.bus_id") if devices[0].startswith("gpu") else []
    gpus = {}
    for index, bus in buses:
        if f"gpu{index}" in devices:
            # nvidia-smi writes the domain with 8 digits, the kernel with 4.
            node = Path(f"/sys/bus/pci/devices/{bus.lower()[-12:]}/numa_node")
            number = int(node.read_text()) if node.exists() else -1
            gpus[f"gpu{index}"] = {"pci": bus, "numa_node": number if number >= 0 else None}
    return {
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        "gpus": gpus,
        "cpus_allowed": sorted(set(allowed)),
    }


def installed_gpus() -> list[tuple[str, str]]:
    """Returns (name, driver version) of each GPU; empty where there is none."""
    return [(name, driver) for name, driver in _rows("name,driver_version")]


def _rows(query: str) -> list[list[str]]:
    """Returns what nvidia-smi says of each GPU; empty where it does not answer."""
    width = query.count(",") + 1
    return [row for row in nvidia_smi(f"--query-gpu={query}") or [] if len(row) == width]


def require_gpus(count: int, device: str | None) -> None:
    """Raises `LeverbenchError` where the machine lacks the GPUs that the campaign needs.

    Args:
        count: How many.
        device: What they are called, or None for any.
    """
    found = [name for name, _ in installed_gpus()] if count else []
    if len(found) < count:
        raise LeverbenchError(
            f"the campaign needs {count} GPUs and nvidia-smi shows {len(found)}",
            where="topology.gpus",
            cure="Run it on a machine that has them, or lower topology.gpus.",
        )
    others = sorted({name for name in found[:count] if device and name != device})
    if others:
        raise LeverbenchError(
            f"the campaign is for {device}, and nvidia-smi shows {', '.join(others)}",
            where="topology.device",
            cure="Run it on such a machine, or change topology.device.",
        )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return platform.machine()
