"""The run directory, the turn, and Snakemake's own lock."""

import time
from pathlib import Path

import pytest

from leverbench.errors import LeverbenchError
from leverbench.serving import locks

from .conftest import World, wait_for


def test_runs_take_turns_and_are_told_for_whom_they_wait(world: World) -> None:
    first = world.actor("turn", str(world.project("one"))).ready()
    second = world.actor("turn", str(world.project("two")))
    text = f"waiting for the run in {world.project('one')} (pid {first.pid})"
    wait_for(lambda: text in second.log.read_text())
    assert second.process.poll() is None
    first.kill()
    second.ready()


def snakemake_lock(project: Path) -> Path:
    path = project / ".snakemake/locks/0.output.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("results/x\n")
    return path


def test_snakemakes_lock_goes_only_when_no_run_of_ours_lives(world: World) -> None:
    project = world.project()
    lock = snakemake_lock(project)
    first = world.actor("lock", str(project)).ready()
    assert not lock.exists()  # left by a killed run
    lock.write_text("results/x\n")
    second = world.actor("lock", str(project)).ready()
    assert lock.exists()  # the first one's
    first.kill()
    world.actor("lock", str(project)).ready().kill()
    assert lock.exists()  # the second run lives
    second.kill()
    world.actor("lock", str(project)).ready()
    assert not lock.exists()


def test_a_dry_run_neither_hides_a_dead_run_nor_harms_a_live_one(world: World) -> None:
    project = world.project()
    dry = world.actor("lock", str(project), "-n").ready()
    lock = snakemake_lock(project)
    run = world.actor("lock", str(project)).ready()
    assert not lock.exists()  # although the dry run lives
    lock.write_text("results/x\n")
    world.actor("lock", str(project), "--dry-run").ready()
    assert lock.exists()
    run.kill()
    dry.close()


def test_the_run_directory_must_be_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    monkeypatch.setenv("LEVERBENCH_RUN_DIR", str(path))
    assert locks.run_dir() == path
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o770)
    with pytest.raises(LeverbenchError, match=r"can be written by others.*LEVERBENCH_RUN_DIR"):
        locks.run_dir()
    path.chmod(0o700)
    monkeypatch.setattr(locks.os, "getuid", lambda: 12345)
    with pytest.raises(LeverbenchError, match="belongs to someone else"):
        locks.run_dir()
    path.rmdir()
    path.touch()
    with pytest.raises(LeverbenchError, match="cannot be made"):
        locks.run_dir()


def test_a_bell_of_a_dead_client_is_not_heard(world: World) -> None:
    owner = world.owner()
    client = owner.client(world.spec())
    client.wait("ready")
    (world.run_dir / "cpu.want").write_text("another-digest")
    client.release()
    client.wait("done")
    time.sleep(0.4)
    assert world.state()["status"] == "ready"
