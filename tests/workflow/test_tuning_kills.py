"""Tuning a real kernel, killed at ten random moments: nothing that was timed is timed again."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tuned_kernel import build, write_kernel

from leverbench.records import read_record
from leverbench.tuning.race import BLOCK, ROUNDS
from leverbench.tuning.search import RUNGS

WORK_US = [800, 1500, 300, 900, 100, 1200, 600, 500]
SIZES = [1, 2, 4]
SHAPE = {"width": 64, "dtype": "float32"}
KILLS = 10

TUNE = """
import json, sys
from pathlib import Path
from leverbench.campaign.model import Engine
from leverbench.kernels.manifest import read_kernel
from leverbench.tuning.tune import tune
kernel, code, journal, record = map(Path, sys.argv[1:])
settings = Engine("scripted", None, None, (), {}, {})
tune(read_kernel(kernel), json.loads(sys.stdin.read()), code, settings, "cpu", journal, record)
"""


class Tuning:
    """The tune stage as a process of its own, with a journal and a log of the kernel's calls."""

    def __init__(self, kernel: Path, code: Path, folder: Path) -> None:
        folder.mkdir()
        self._kernel, self._code = kernel, code
        self.journal, self.record = folder / "journal.jsonl", folder / "record.json"
        self._calls = folder / "calls.log"

    def start(self) -> subprocess.Popen[bytes]:
        paths = [self._kernel, self._code, self.journal, self.record]
        process = subprocess.Popen(
            [sys.executable, "-c", TUNE, *map(str, paths)],
            stdin=subprocess.PIPE,
            env={**os.environ, "CALLS_LOG": str(self._calls)},
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(SHAPE).encode())
        process.stdin.close()
        return process

    def steps(self) -> list[dict[str, Any]]:
        """Returns the whole lines of the journal without its header."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()[1:]]

    def calls(self) -> list[int]:
        """Returns the ``work`` of every call of the kernel, in order."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return [int(line) for line in text.splitlines()]

    def chosen(self) -> list[dict[str, int]]:
        return [each["config"] for each in read_record(self.record)["chosen"]]


def living(group: int) -> list[psutil.Process]:
    """Returns the processes of a session that run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def await_none(group: int) -> None:
    limit = time.monotonic() + 10
    while living(group) and time.monotonic() < limit:
        time.sleep(0.02)
    assert living(group) == []


def calls_of(step: dict[str, Any]) -> list[int]:
    """Returns the calls that a step makes: before samples there is one, and two for a check."""
    work = step["candidate"]["work"]
    if step["step"] == "race":
        order = [WORK_US[0], work, work, WORK_US[0]] * ROUNDS
        return [each for each in order for _ in range(1 + BLOCK)]
    rung = int(step["step"].removeprefix("rung-"))
    return [work] * (RUNGS[rung] + (2 if rung == 0 else 1))


def kill_moments(steps: int) -> Iterator[tuple[int, float]]:
    """Yields after how many steps, and how many seconds after those, a kill comes."""
    moments = random.Random(5)
    for after in sorted(moments.choices(range(steps), k=KILLS)):
        yield after, moments.uniform(0, 0.1)


@pytest.mark.long
def test_a_killed_tuning_times_nothing_twice_and_chooses_the_same(tmp_path):
    kernel = write_kernel(tmp_path / "kernels", WORK_US, sizes=SIZES)
    code = build(kernel, tmp_path / "build")
    calm = Tuning(kernel.folder, code, tmp_path / "calm")
    assert calm.start().wait() == 0
    assert calm.chosen() == [{"work": 100, "fault": 0}] * len(SIZES)

    killed = Tuning(kernel.folder, code, tmp_path / "killed")
    snapshots = [(0, 0)]
    for place, (after, pause_s) in enumerate(kill_moments(len(calm.steps()))):
        process = killed.start()
        while process.poll() is None and len(killed.steps()) < after:
            time.sleep(0.01)
        time.sleep(pause_s)
        assert process.poll() is None, "it was done before it was killed"
        # In turn with its worker, and alone: the worker ends by itself then.
        if place % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        await_none(process.pid)
        snapshots.append((len(killed.steps()), len(killed.calls())))
    last = killed.start()
    assert last.wait() == 0
    await_none(last.pid)
    steps, calls = killed.steps(), killed.calls()
    snapshots.append((len(steps), len(calls)))

    keys = [json.dumps([s["call"], s["candidate"], s["step"]], sort_keys=True) for s in steps]
    assert len(set(keys)) == len(keys)
    for (done, called), (then_done, then_called) in itertools.pairwise(snapshots):
        made = calls[called:then_called]
        expected = [work for step in steps[done:then_done] for work in calls_of(step)]
        assert made[: len(expected)] == expected
        # What is more was in flight, and is the beginning of what the next run did first.
        torn = made[len(expected) :]
        following = calls_of(steps[then_done]) if then_done < len(steps) else []
        assert torn == following[: len(torn)]
    assert killed.chosen() == calm.chosen()
    assert all(each["published"] for each in read_record(killed.record)["chosen"])
