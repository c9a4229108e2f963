"""Keeper and guardian: the two processes that stay with a server from its launch to its end.

The keeper watches clients, owner and server, and decides when the server ends. Its child, the
guardian, is the parent of the server. Either of them ends the server when the other is killed: the
guardian sees the keeper's end of a socket close, and the kernel kills the server with the guardian
and hands its orphans to the keeper. They live as long as a server, so they import little, run on
one thread and wake up rarely.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN
from pathlib import Path
from typing import Any, NoReturn

from leverbench.serving import devices, locks
from leverbench.serving.locks import State, is_free, open_lock, try_lock
from leverbench.serving.processes import (
    KEEPER_MARK,
    SERVER_MARK,
    become_subreaper,
    descendants,
    die_with_parent,
    identify,
    kill_descendants,
    listens,
    reap,
)

_HOST = "127.0.0.1"
_POLL_S = 0.2
# An engine may answer its health check with a generation, which takes its time.
_PROBE_TIMEOUT_S = 30.0
_REPAIR_INTERVAL_S = 1.0
# For processes to go after SIGKILL; the driver may first have to free their memory.
_KILL_TIMEOUT_S = 15.0


class _Probe:
    """Asks a server whether it is ready, without ever waiting for the answer."""

    def __init__(self, port: int, path: str) -> None:
        self.sockets: list[socket.socket] = []  # the one on which an answer is awaited
        self._port = port
        self._request = f"GET {path} HTTP/1.0\r\nHost: {_HOST}:{port}\r\n\r\n".encode()
        self._answer = b""
        self._asked_s = 0.0

    def ready(self) -> bool:
        """Asks, or reads on; True when an answer with status 200 is complete."""
        try:
            if not self.sockets:
                self._ask()
            while part := self.sockets[0].recv(65536):
                self._answer += part
        except BlockingIOError:
            if time.monotonic() < self._asked_s + _PROBE_TIMEOUT_S:
                return False
        except OSError:
            self._answer = b""
        while self.sockets:
            self.sockets.pop().close()
        return self._answer.split(b" ", 2)[1:2] == [b"200"]

    def _ask(self) -> None:
        self._asked_s, self._answer = time.monotonic(), b""
        self.sockets.append(socket.create_connection((_HOST, self._port), timeout=1.0))
        self.sockets[0].sendall(self._request)
        self.sockets[0].setblocking(False)


class _Keeper:
    def __init__(self, spec: dict[str, Any], state: State, guardian: socket.socket) -> None:
        self.spec = spec
        self.state = state
        self.guardian = guardian
        self.terminated = False
        self.lease = open_lock(f"{state['devices'][0]}.lease")
        self.bells = [open_lock(f"{device}.want") for device in state["devices"]]
        self.probe = _Probe(state["port"], spec["ready_path"])
        self.idle_since_s: float | None = None
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self.terminated = True

    def tell(self, what: str, **fields: object) -> None:
        """Records an event of this server."""
        locks.record_event(what, server_id=self.state["server_id"], **fields)

    def say(self) -> None:
        """Tells clients the state; a full disk costs the word and not the server."""
        try:
            locks.write_state(self.state)
        except OSError as error:
            print(f"leverbench keeper: {error}", file=sys.stderr, flush=True)

    def keep(self) -> str:
        """Returns why the server has to end, when it has to."""
        started_s = repaired_s = time.monotonic()
        while True:
            heard = select.select([self.guardian, *self.probe.sockets], [], [], _POLL_S)[0]
            now = time.monotonic()
            if self.guardian in heard:
                return self._ended(self.guardian.recv(64))
            if self.terminated:
                return "terminated"
            if is_free(self.state["owner_lock"]):  # even with leases: clients end then, too
                return "owner-gone"
            if self.state["status"] == "starting":
                if self.probe.ready():
                    if self._port_is_others():
                        return "port-in-use"
                    self.state["status"] = "ready"
                    self.state["ready_at_unix_s"] = time.time()
                    self.say()
                    self.tell("ready")
                elif now > started_s + self.spec["start_timeout_s"]:
                    return "start-timeout"
            if now > repaired_s + _REPAIR_INTERVAL_S:
                repaired_s = now
                if any(locks.read_state(device) != self.state for device in self.state["devices"]):
                    self.say()
            if reason := self._unwanted(now):
                return reason

    def _ended(self, message: bytes) -> str:
        if not message:
            return "guardian-died"
        self.state["exit_code"] = int(message)
        if self.state["status"] == "ready":
            return "server-died"
        return "port-in-use" if self._port_is_others() else "start-failed"

    def _port_is_others(self) -> bool:
        return listens(self.state["port"], descendants(os.getpid())) is False

    def _unwanted(self, now: float) -> str | None:
        """Returns why the server is not needed any more; then it keeps new clients out."""
        if not try_lock(self.lease, LOCK_EX):
            self.idle_since_s = None
            return None
        if self.idle_since_s is None:
            self.idle_since_s = now
        for bell in self.bells:
            message = os.pread(bell, 4096, 0).decode(errors="replace")
            if message in ("", self.state["digest"]):
                continue
            if try_lock(bell, LOCK_SH):  # who rang it is dead
                fcntl.flock(bell, LOCK_UN)
            elif not message.startswith("stop "):
                return "evicted"
            elif message == f"stop {self.state['server_id']}":
                return "requested"
        if now > self.idle_since_s + self.spec["idle_s"]:
            return "idle"
        fcntl.flock(self.lease, LOCK_UN)
        return None


def main() -> None:
    """Launches a server and stays with it; the order comes on standard input (it has secrets)."""
    order = json.load(sys.stdin)
    spec, state = order["spec"], order["state"]
    with Path(os.devnull).open() as null:
        os.dup2(null.fileno(), 0)
    become_subreaper()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _require_memory_of_last_server(spec)
    before = devices.memory_used_mib(spec["devices"])
    state.update(memory_before_mib=before, started_at_unix_s=time.time())

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guardian_pid = os.fork()
    if guardian_pid == 0:
        ours.close()
        _guard(spec, state, theirs)
    theirs.close()
    try:
        pids = {"keeper": os.getpid(), "guardian": guardian_pid, "server": int(ours.recv(64) or 0)}
        state.update({role: list(identify(pid)) for role, pid in pids.items()})
        keeper = _Keeper(spec, state, ours)
        keeper.say()
        state.update(reason=keeper.keep(), status="stopping")
        keeper.say()
        keeper.tell("stop", reason=state["reason"], exit_code=state["exit_code"])
    finally:
        ours.close()  # tells the guardian
        _wait_for(guardian_pid, spec["stop_grace_s"] + _KILL_TIMEOUT_S + 5.0)
        gone = kill_descendants(_KILL_TIMEOUT_S)  # there are some only if the guardian was killed
    held = devices.wait_released(before, spec["release_timeout_s"])
    for device, used in held.items():
        devices.quarantine(device, before[device], used)
    state["status"] = "stopped"
    keeper.say()
    keeper.tell("stopped", gone=gone, quarantined=sorted(held))


def _require_memory_of_last_server(spec: dict[str, Any]) -> None:
    """Sets aside a GPU that the last server, whose keeper was killed, has not given back."""
    for device in spec["devices"]:
        last = locks.read_state(device)
        if last is None or last["status"] == "stopped" or device not in last["memory_before_mib"]:
            continue
        before = last["memory_before_mib"][device]
        held = devices.wait_released({device: before}, spec["release_timeout_s"])
        if held:
            devices.quarantine(device, before, held[device])
            (locks.run_dir() / f"{device}.json").unlink(missing_ok=True)  # it is told in the file
            sys.exit(f"leverbench keeper: the memory of {device} has not come back")


def _wait_for(child_pid: int, timeout_s: float) -> None:
    limit = time.monotonic() + timeout_s
    while os.waitpid(child_pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > limit:
            os.kill(child_pid, signal.SIGKILL)
        time.sleep(0.02)


def _guard(spec: dict[str, Any], state: State, keeper: socket.socket) -> NoReturn:
    """Runs the server, and ends it when the keeper's end of the socket closes."""
    try:
        os.setsid()
        become_subreaper()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server_pid = _start(spec, state)
        with contextlib.suppress(OSError):  # the keeper may have been killed
            keeper.sendall(str(server_pid).encode())
        while not select.select([keeper], [], [], _POLL_S)[0]:
            ended = reap() or {}
            if server_pid in ended:
                with contextlib.suppress(OSError):
                    keeper.sendall(str(ended[server_pid]).encode())
                break
        _end(server_pid, spec["stop_grace_s"])
    finally:
        os._exit(0)


def _start(spec: dict[str, Any], state: State) -> int:
    guardian_pid, argv = os.getpid(), state["argv"]
    environment = {key: value for key, value in os.environ.items() if key != KEEPER_MARK}
    environment.update(spec["env"])
    # Process titles overwrite the environment that others can read, unless they are told not to.
    environment.update({SERVER_MARK: f"{locks.run_dir()}/{state['server_id']}", "SPT_NOENV": "1"})
    server_pid = os.fork()
    if server_pid != 0:
        return server_pid
    try:
        os.setsid()
        die_with_parent(guardian_pid)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(spec["cwd"])
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"leverbench: {argv[0]} cannot be run in {spec['cwd']}: {error}\n".encode())
    finally:
        os._exit(127)


def _end(server_pid: int, grace_s: float) -> None:
    """Ends all descendants of the guardian: the server's process group gets time to do so."""
    limit = time.monotonic() + grace_s
    if descendants(os.getpid(), group=server_pid):
        os.killpg(server_pid, signal.SIGTERM)
    while time.monotonic() < limit and descendants(os.getpid(), group=server_pid):
        reap()
        time.sleep(0.05)
    kill_descendants(_KILL_TIMEOUT_S)
