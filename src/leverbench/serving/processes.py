"""Processes: who lives, who descends from whom, and how they are ended. Linux only."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

KEEPER_MARK = "LEVERBENCH_KEEPER"
"""In the environment of a keeper and its guardian: ``<run directory>/<server id>``."""
SERVER_MARK = "LEVERBENCH_SERVER"
"""In the environment of every process of a server, with the same value as its keeper's."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TCP_LISTEN = "0A"
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here, because it is called between fork and exec


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid.

    Attributes:
        pid: Process id.
        start: Start time in clock ticks since boot (field 22 of ``/proc/<pid>/stat``).
    """

    pid: int
    start: int


class _Stat(NamedTuple):
    parent: int
    group: int
    start: int


def _stat(pid: int) -> _Stat | None:
    """Returns the facts of a live process; None for zombies, which hold nothing any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in "ZX" else _Stat(int(fields[0]), int(fields[1]), int(fields[18]))


def identify(pid: int) -> Process:
    """Returns the identity of a process; of a dead one, an identity that nobody has."""
    stat = _stat(pid)
    return Process(pid, stat.start if stat else -1)


def alive(process: Process) -> bool:
    """Returns whether this very process still runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.start == process.start


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def descendants(root: int, group: int | None = None) -> list[Process]:
    """Returns the live descendants of a process, at will only those of one process group."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid))}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found, queue = [], list(children.get(root, []))
    while queue:
        pid = queue.pop()
        queue += children.get(pid, [])
        if group in (None, stats[pid].group):
            found.append(Process(pid, stats[pid].start))
    return found


def marked(mark: str, run_dir: Path) -> dict[str, list[Process]]:
    """Returns the live processes that carry a mark of this run directory, by server id."""
    prefix = f"{mark}={run_dir}/".encode()
    found: dict[str, list[Process]] = {}
    for pid in _pids():
        process = identify(pid)
        with contextlib.suppress(OSError):
            for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if item.startswith(prefix) and alive(process):
                    server_id = item[len(prefix) :].decode(errors="replace")
                    found.setdefault(server_id, []).append(process)
    return found


def send(process: Process, number: signal.Signals) -> None:
    """Signals a process if it still is the same one."""
    if alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def kill(find: Callable[[], Iterable[Process]], timeout_s: float) -> list[Process]:
    """Kills what ``find`` finds until it finds nothing; returns what is left after the limit."""
    limit = time.monotonic() + timeout_s
    while left := list(find()):
        if time.monotonic() > limit:
            break
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.02)
    return left


def reap() -> dict[int, int] | None:
    """Collects the children that have ended.

    Returns:
        Exit codes by pid (negative: the signal), or None if there is no child left. To a
        subreaper None means that no descendant is left either: an orphan would be its child.
    """
    ended: dict[int, int] = {}
    try:
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            ended[result[0]] = os.waitstatus_to_exitcode(result[1])
    except ChildProcessError:
        return ended or None
    return ended


def kill_descendants(timeout_s: float) -> bool:
    """Kills and collects all descendants of this process, a subreaper; False if some stay."""
    limit = time.monotonic() + timeout_s
    while reap() is not None:
        if time.monotonic() > limit:
            return False
        for process in descendants(os.getpid()):
            send(process, signal.SIGKILL)
        time.sleep(0.02)
    return True


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, so that none gets out of sight."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent, which must be single-threaded, dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call above
        os._exit(1)


def listens(port: int, processes: Iterable[Process]) -> bool | None:
    """Tells whether one of the processes listens on a TCP port of this network namespace.

    Returns:
        True or False; None where it cannot be seen: nobody listens there, or the descriptors of
        a process may not be read (a set-uid wrapper).
    """
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *fields = line.split()
                if state == _TCP_LISTEN and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[5]}]")
    if not sockets:
        return None
    hidden = False
    for process in processes:
        try:
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if str(descriptor.readlink()) in sockets:
                        return True
        except PermissionError:
            hidden = True
        except OSError:  # it has ended
            continue
    return None if hidden else False
