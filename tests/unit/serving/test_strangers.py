"""What others take of the machine's CPU."""

import os
import subprocess
import sys
import time

from leverbench.serving.processes import identify
from leverbench.serving.strangers import CpuUse, cpu_use


def test_the_share_is_of_all_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    before = CpuUse(at_s=10.0, machine_s=100.0, ours_s=20.0)
    after = CpuUse(at_s=15.0, machine_s=112.0, ours_s=28.0)

    # 12 s of work in 5 s on 4 cores, 8 s of them ours: 4 of 20 core seconds are others'.
    assert after.strangers_share(before) == 0.2


def test_rounding_never_makes_it_negative():
    before, after = CpuUse(0.0, 5.0, 5.0), CpuUse(1.0, 5.1, 5.2)

    assert after.strangers_share(before) == 0.0


def test_a_process_is_a_stranger_unless_it_is_the_server_s():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process = identify(busy.pid)
        before, before_ours = cpu_use([]), cpu_use([process])
        time.sleep(0.6)
        without, within = cpu_use([]), cpu_use([process])
    finally:
        busy.kill()
        busy.wait()

    taken_s = within.ours_s - before_ours.ours_s - (without.ours_s - before.ours_s)
    assert taken_s > 0.1
    assert without.machine_s - before.machine_s >= taken_s - 0.05
