"""Whatever is killed while a point is measured: nothing stays, and the next run does the rest."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from embedded import events, left_behind, snapshot
from project_copy import ProjectCopy

FIRST = "small/baseline/s1/random/c1"
DEADLINE_S = 240


def wait_until(holds: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def state(project: ProjectCopy) -> dict[str, list[int]]:
    return json.loads((Path(project.env["LEVERBENCH_RUN_DIR"]) / "cpu.json").read_text())


def client(project: ProjectCopy) -> int:
    (pid,) = (pid for pid, command in left_behind(project).items() if ".bench.py" in command)
    return pid


def scheduler(project: ProjectCopy) -> int:
    commands = left_behind(project).items()
    return next(pid for pid, command in commands if "scheduler" in command)


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def interrupt(project: ProjectCopy, run: int, times: int) -> None:
    for _ in range(times):
        os.killpg(run, signal.SIGINT)
        time.sleep(1)


def last_cause(project: ProjectCopy) -> str:
    account = project.path / "state/attempts/small/baseline/s1/random/c8.jsonl"
    return json.loads(account.read_text().splitlines()[-1])["cause"]


def void_at_first(project: ProjectCopy) -> int:
    """Returns how often the machine has disturbed the first point."""
    account = project.path / "state/attempts" / f"{FIRST}.jsonl"
    return len(account.read_text().splitlines()) if account.exists() else 0


# What is done to a run, and whether it heals within the run.
ACTIONS: dict[str, tuple[Callable[[ProjectCopy, int], None], bool]] = {
    "snakemake": (lambda project, run: kill(run), False),
    "server": (lambda project, run: kill(state(project)["server"][0]), True),
    "ctrl-c": (lambda project, run: interrupt(project, run, 1), False),
    "ctrl-c-twice": (lambda project, run: interrupt(project, run, 2), False),
    "keeper": (lambda project, run: kill(state(project)["keeper"][0]), True),
    "guardian": (lambda project, run: kill(state(project)["guardian"][0]), True),
    "scheduler": (lambda project, run: kill(scheduler(project)), True),
    "client": (lambda project, run: kill(client(project)), False),
    "keeper-and-guardian": (
        lambda project, run: kill(state(project)["keeper"][0], state(project)["guardian"][0]),
        True,
    ),
}
# Causes that depend on what else the machine does.
THE_MACHINE = ("client-bound", "machine-shared")
COMMON = ("snakemake", "server", "ctrl-c")


@pytest.mark.parametrize(
    "action",
    [name if name in COMMON else pytest.param(name, marks=pytest.mark.long) for name in ACTIONS],
)
def test_kill_while_measuring(small, tmp_path, action):
    act, heals = ACTIONS[action]
    small.change(campaign="small")
    log = tmp_path / "log"
    run = small.start(log=log)
    try:
        wait_until(
            lambda: (
                sum(e["what"] == "measure-begin" for e in events(small)) == 2 + void_at_first(small)
                or run.poll() is not None
            ),
            "the second point",
        )
        assert run.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
        finished = {p: c for p, c in snapshot(small).items() if p.startswith(FIRST)}
        assert len(finished) == 2

        act(small, run.pid)
        returncode = run.wait(DEADLINE_S)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()

    wait_until(lambda: not left_behind(small), f"nothing left: {left_behind(small)}", 30)
    healed = returncode == 0
    # The one more attempt of the run may fall to the machine: then the next run makes the point.
    assert healed == heals or last_cause(small) in THE_MACHINE, log.read_text()[-3000:]
    assert {p: c for p, c in snapshot(small).items() if p.startswith(FIRST)} == finished

    jobs = small.jobs()
    assert jobs.get("bench", 0) == (0 if healed else 1)
    assert "serve" not in jobs
    said = small.snakemake()
    assert said.returncode == 0, said.stdout[-3000:]
    assert {p: c for p, c in snapshot(small).items() if p.startswith(FIRST)} == finished
    assert small.jobs() == {}
