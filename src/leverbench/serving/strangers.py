"""How much of the machine's CPU others took while something was measured."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from leverbench.serving.processes import Process

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of the first line of /proc/stat that are work, as ``man 5 proc`` numbers them: user, nice,
# system, irq, softirq, and steal (time that the host gave to other machines).
_WORK = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True)
class CpuUse:
    """CPU time since boot at one moment, in seconds.

    Attributes:
        at_s: Monotonic time.
        machine_s: Of the whole machine.
        ours_s: Of the server and of this process.
    """

    at_s: float
    machine_s: float
    ours_s: float

    def strangers_share(self, earlier: "CpuUse") -> float:
        """Returns the share of all cores that neither server nor client used since ``earlier``."""
        machine_s = self.machine_s - earlier.machine_s
        others_s = max(machine_s - (self.ours_s - earlier.ours_s), 0.0)
        cores = os.cpu_count() or 1
        return others_s / ((self.at_s - earlier.at_s) * cores)


def cpu_use(server: Iterable[Process]) -> CpuUse:
    """Reads the CPU time of the machine, of a server's processes and of this process."""
    line = Path("/proc/stat").read_text().splitlines()[0].split()
    machine_s = sum(int(line[field]) for field in _WORK) / _TICKS_PER_S
    ours_s = time.process_time() + sum(_process_s(process.pid) for process in server)
    return CpuUse(time.monotonic(), machine_s, ours_s)


def _process_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
