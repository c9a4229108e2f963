"""Owners: the live Snakemake processes of a project, without whom none of its servers goes on."""

import fcntl
import hashlib
import os
import re
import sys
import time
from fcntl import LOCK_EX, LOCK_SH
from pathlib import Path

from leverbench.serving import locks
from leverbench.serving.locks import State, is_free, open_lock, try_lock
from leverbench.serving.processes import (
    KEEPER_MARK,
    SERVER_MARK,
    Process,
    alive,
    identify,
    kill,
    marked,
)

_OWNER_VARIABLE = "LEVERBENCH_OWNER"
_INNER_VARIABLE = "LEVERBENCH_INNER"
# Short options can stand together, as in -nq.
_DRY_RUN = re.compile(r"-[a-zA-Z]*n[a-zA-Z]*|--dry-?run")
# Locks that are held until this process ends: the kernel drops them then, however it ends.
_held: dict[Path, int] = {}


def owner_lock(project: Path) -> str:
    """Returns the name of a project's owner lock in the run directory."""
    return f"owner-{hashlib.sha256(str(project.resolve()).encode()).hexdigest()[:16]}.lock"


def hold_owner(project: Path) -> None:
    """Makes this process an owner of the project's servers until it ends, however it ends.

    Its children learn of it, so that they end with it (see `run_alive`). What servers of killed
    runs have left behind is swept.

    Raises:
        LeverbenchError: The run directory is not this user's alone.
    """
    path = locks.run_dir() / owner_lock(project)
    if path not in _held:
        descriptor = open_lock(path.name)
        fcntl.flock(
            descriptor, LOCK_SH
        )  # waits for no longer than somebody looks whether it is free
        _held[path] = descriptor
    pid, start = identify(os.getpid())
    os.environ[_OWNER_VARIABLE] = f"{pid}:{start}"
    sweep()


def run_alive(project: Path) -> bool:
    """Returns whether the Snakemake process that this process works for still lives.

    The lock alone does not tell: another run of the same project may hold it.
    """
    if is_free(owner_lock(project)):
        return False
    pid, _, start = os.environ.get(_OWNER_VARIABLE, "").partition(":")
    return not pid or alive(Process(int(pid), int(start)))


def take_turn(project: Path) -> None:
    """Waits until no other run measures on this machine, and has the turn until this process ends.

    It says for whom it waits. Two runs at once would evict each other's servers, point by point.
    """
    path = locks.run_dir() / locks.TURN_LOCK
    if path in _held:
        return
    descriptor, told = open_lock(path.name), b""
    while not try_lock(descriptor, LOCK_EX):
        holder = os.pread(descriptor, 4096, 0)
        if holder not in (b"", told):
            told, text = holder, holder.decode(errors="replace")
            print(f"leverbench: waiting for {text}", file=sys.stderr, flush=True)
        time.sleep(0.2)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"the run in {project.resolve()} (pid {os.getpid()})".encode(), 0)
    _held[path] = descriptor


def clear_stale_lock(project: Path) -> None:
    """Removes Snakemake's own lock files where the run that left them was killed.

    Each run shares a lock beside them until it ends, so that whoever can have it alone knows that
    they are nobody's. Dry runs look, but do not keep it: they would only hide the death of others.
    """
    folder = project.resolve() / ".snakemake"
    path = folder / "leverbench.lock"
    if path in _held:
        return
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a dry run in a project that is not ours to write
        return
    try:
        if try_lock(descriptor, LOCK_EX):
            for stale in (folder / "locks").glob("*.lock"):
                stale.unlink(missing_ok=True)
        fcntl.flock(descriptor, LOCK_SH)
    except OSError:  # a file system without locks: nothing can be known, so Snakemake decides
        pass
    if is_dry_run():
        os.close(descriptor)
    else:
        _held[path] = descriptor


def is_dry_run() -> bool:
    """Returns whether this Snakemake process only says what it would do."""
    return any(_DRY_RUN.fullmatch(word) for word in sys.argv)


def is_inner() -> bool:
    """Returns whether this Snakemake process was started by a job of another one."""
    return _INNER_VARIABLE in os.environ


def inner_environment() -> dict[str, str]:
    """Returns the environment of a Snakemake process that a job starts."""
    # Words of `--config` and options are all that is meant to tell an inner run what to do.
    outer = {key: value for key, value in os.environ.items() if key != "SNAKEMAKE_PROFILE"}
    return outer | {_INNER_VARIABLE: "1"}


def sweep() -> list[Process]:
    """Kills what is left of servers whose keeper and guardian were both killed.

    Safe at any time: as long as either of them lives, the server is theirs to end.

    Returns:
        What could not be killed, such as a process stuck in a driver.
    """
    directory = locks.run_dir()

    def orphans() -> list[Process]:
        # Servers first: whichever is seen had a keeper or guardian by then.
        servers = marked(SERVER_MARK, directory)
        kept = marked(KEEPER_MARK, directory) if servers else {}
        return [p for sid, found in servers.items() if sid not in kept for p in found]

    found = orphans()
    if not found:
        return []
    left = kill(orphans, timeout_s=5.0)
    locks.record_event("sweep", pids=[p.pid for p in found], left=[p.pid for p in left])
    return left


def stop_now(project: Path, timeout_s: float = 120.0) -> bool:
    """Stops the project's idle servers and waits until they are gone.

    Returns:
        False where a server is still there after the limit, because a client holds a lease on it
        or because it does not end.
    """
    limit = time.monotonic() + timeout_s
    states: dict[str, State] = {}
    for path in locks.run_dir().glob("*.json"):
        state = locks.read_state(path.stem)
        if state and state["owner_lock"] == owner_lock(project):
            states[state["server_id"]] = state
    stopped = [_stop(state, limit) for state in states.values()]
    return all(stopped) and not sweep()


def _stop(state: State, limit: float) -> bool:
    bell, rung = open_lock(f"{state['devices'][0]}.want"), False
    keepers = [Process(*state["keeper"]), Process(*state["guardian"])]
    try:
        while any(alive(process) for process in keepers):
            if time.monotonic() > limit:
                return False
            if not rung and (rung := try_lock(bell, LOCK_EX)):
                locks.ring(bell, f"stop {state['server_id']}")
            time.sleep(0.05)
        return True
    finally:
        if rung:
            locks.ring(bell, "")
        os.close(bell)
