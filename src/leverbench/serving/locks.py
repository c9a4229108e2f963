"""The run directory: locks that the kernel drops with their holder, server states and events.

- ``owner-*.lock``: shared by the live Snakemake processes of one project.
- ``<device>.lock``: exclusive; keeper, guardian and server share one open file.
- ``<device>.want``: exclusive by the client that launches; its content is the bell (see `ring`).
- ``<device>.lease``: shared by the clients of a server, at its first device; exclusive by a keeper
  that stops.
- ``<device>.json``: what the keeper says of its server, the same at each of its devices.
- ``<device>.quarantine``: keeps a GPU from being leased that did not give back its memory.
- ``measure.lock``: exclusive while a point is measured.
- ``turn.lock``: exclusive by the one run that measures on this machine.
- ``events.jsonl``: what happened, for tests and for people.
"""

import contextlib
import fcntl
import json
import os
import stat
import time
from fcntl import LOCK_EX, LOCK_NB
from pathlib import Path
from typing import Any, TypedDict

from leverbench.errors import LeverbenchError

RUN_DIR_VARIABLE = "LEVERBENCH_RUN_DIR"
MEASURE_LOCK = "measure.lock"
TURN_LOCK = "turn.lock"


class State(TypedDict):
    """What a keeper says of its server; processes are ``[pid, start time]``."""

    server_id: str
    digest: str
    label: str
    devices: list[str]
    owner_lock: str
    argv: list[str]
    port: int
    status: str  # starting, ready, stopping, stopped
    reason: str | None  # why it stops
    exit_code: int | None
    keeper: list[int]
    guardian: list[int]
    server: list[int]
    started_at_unix_s: float
    ready_at_unix_s: float | None
    log_path: str
    memory_before_mib: dict[str, int]


def run_dir() -> Path:
    """Returns the run directory of this user on this machine, made if need be.

    Raises:
        LeverbenchError: It is not a directory of this user's alone.
    """
    chosen = os.environ.get(RUN_DIR_VARIABLE)
    path = Path(chosen).resolve() if chosen else Path(f"/tmp/leverbench-{os.getuid()}")
    cure = f"Remove it, or set {RUN_DIR_VARIABLE} to a directory of your own (chmod 700)."
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise LeverbenchError(
            f"the run directory cannot be made ({error.strerror})", where=str(path), cure=cure
        ) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise LeverbenchError(
            "the run directory belongs to someone else or can be written by others",
            where=str(path),
            cure=cure,
        )
    return path


def open_lock(name: str) -> int:
    """Opens a lock file of the run directory; a program started later does not inherit it."""
    return os.open(run_dir() / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, mode: int) -> bool:
    """Takes or converts a lock (``LOCK_SH`` or ``LOCK_EX``) if that is possible at once."""
    try:
        fcntl.flock(descriptor, mode | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(name: str) -> bool:
    """Returns whether nobody holds a lock of the run directory."""
    descriptor = open_lock(name)
    try:
        return try_lock(descriptor, LOCK_EX)
    finally:
        os.close(descriptor)


def ring(bell: int, message: str) -> None:
    """Writes into a held ``.want`` file; keepers of that device read it while they are idle.

    The message is a server digest (a keeper of another digest leaves), ``stop <server id>`` (that
    keeper leaves), or empty.
    """
    os.ftruncate(bell, 0)
    os.pwrite(bell, message.encode(), 0)


def read_state(device: str) -> State | None:
    """Returns what the last keeper of a device said; None if that is missing or damaged."""
    try:
        state: Any = json.loads((run_dir() / f"{device}.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(state, dict) or not state.keys() >= State.__required_keys__:
        return None
    return state  # type: ignore[return-value]


def write_state(state: State) -> None:
    """Writes a state at each device of the server, whole or not at all.

    It is not synced: it says nothing that outlives the machine's next start.
    """
    for device in state["devices"]:
        path = run_dir() / f"{device}.json"
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(state, indent=1))
        temporary.replace(path)


def record_event(what: str, **fields: object) -> None:
    """Appends an event in one write; ``t_mono_s`` can be compared between processes.

    A full disk costs the event and not the server.
    """
    times = {"t_unix_s": time.time(), "t_mono_s": time.monotonic(), "pid": os.getpid()}
    line = json.dumps({"what": what, **times, **fields}) + "\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(run_dir() / "events.jsonl", flags, 0o600)
    with contextlib.suppress(OSError):
        os.write(descriptor, line.encode())
    os.close(descriptor)
