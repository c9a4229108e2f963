"""Leases: how a client gets a server, waits for it, and knows that it stayed the same one."""

import contextlib
import fcntl
import json
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN
from pathlib import Path

from leverbench.serving import locks
from leverbench.serving.devices import quarantine_path
from leverbench.serving.locks import State, open_lock, read_state, try_lock
from leverbench.serving.owner import owner_lock, run_alive, sweep
from leverbench.serving.processes import KEEPER_MARK, Process, alive, descendants, listens
from leverbench.serving.spec import PORT, Cause, ServerError, ServerSpec

__all__ = [
    "Cause",
    "ServerError",
    "ServerHandle",
    "client_of_run",
    "lease",
    "noted_measurement",
]

EXIT_OWNER_GONE = 75
"""Exit code of a client whose Snakemake process has died (EX_TEMPFAIL)."""

_POLL_S = 0.05
_SWEEP_INTERVAL_S = 1.0
_TAIL_LINES = 20
_HOST = "127.0.0.1"
# Below the ports that the kernel gives to outgoing connections, which come and go.
_PORTS = range(20000, 30000)
# Without this environment's packages and their start-up hooks, which a keeper does not need.
_KEEPER = [
    sys.executable,
    "-IS",
    "-c",
    f"import sys; sys.path.append({str(Path(__file__).resolve().parents[2])!r})\n"
    "from leverbench.serving.keeper import main; main()",
]


@dataclass(frozen=True)
class ServerHandle:
    """A ready server on which this process has a lease.

    Attributes:
        server_id: Names the launch.
        label: What messages call the server.
        device: Its first device, under which its keeper tells its state.
        base_url: Its address, without a final slash.
        port: Its TCP port on the loopback interface.
        argv: Its command line, with the port.
        log_path: Its output.
        keeper: The process that decides when it ends.
        guardian: The process that is its parent.
        server: The program that was launched.
        started_at_unix_s: Time of the launch.
        ready_at_unix_s: Time of its first answer with status 200.
        launched_here: Whether it was launched for this lease.
        inherited: Descriptors of this lease's locks. Give them to processes that load the server
            (``pass_fds``): if this process is killed, its locks stay until they have ended.
    """

    server_id: str
    label: str
    device: str
    base_url: str
    port: int
    argv: tuple[str, ...]
    log_path: Path
    keeper: Process
    guardian: Process
    server: Process
    started_at_unix_s: float
    ready_at_unix_s: float
    launched_here: bool
    inherited: tuple[int, ...]

    def check_alive(self) -> None:
        """Returns if the server still runs and is to go on.

        Raises:
            ServerError: It has ended or is being stopped.
        """
        gone = not (alive(self.keeper) and alive(self.server))  # first, or it may end in between
        state = read_state(self.device)
        if state and state["server_id"] == self.server_id and state["status"] != "ready":
            raise _failure(state)
        if gone:
            raise _died(self.label, "it or its keeper was killed", self.log_path)

    def processes(self) -> list[Process]:
        """Returns the live processes of the server, as (pid, start time in ticks since boot)."""
        return [p for p in descendants(self.keeper.pid) if p != self.guardian]

    def listeners(self) -> list[Process]:
        """Returns those of its processes that accept requests; none where it cannot be seen."""
        return [process for process in self.processes() if listens(self.port, [process])]

    def log_size(self) -> int:
        """Returns the present size of the server's log in bytes."""
        return self.log_path.stat().st_size

    def read_log(self, start_byte: int = 0) -> str:
        """Returns the server's output from a byte of its log on."""
        with self.log_path.open("rb") as file:
            file.seek(start_byte)
            return file.read().decode(errors="replace")


def _handle(
    state: State, ready_at_unix_s: float, launched_here: bool, inherited: tuple[int, ...]
) -> ServerHandle:
    return ServerHandle(
        server_id=state["server_id"],
        label=state["label"],
        device=state["devices"][0],
        base_url=f"http://{_HOST}:{state['port']}",
        port=state["port"],
        argv=tuple(state["argv"]),
        log_path=Path(state["log_path"]),
        keeper=Process(*state["keeper"]),
        guardian=Process(*state["guardian"]),
        server=Process(*state["server"]),
        started_at_unix_s=state["started_at_unix_s"],
        ready_at_unix_s=ready_at_unix_s,
        launched_here=launched_here,
        inherited=inherited,
    )


@contextmanager
def lease(spec: ServerSpec, *, measured: bool, timeout_s: float) -> Iterator[ServerHandle]:
    """Yields a ready server of this specification, launched if none is running.

    While the block runs, nobody stops the server, and this process is ended when its Snakemake
    process dies. When the block ends, the server must still be the same.

    Args:
        spec: The server.
        measured: Whether to measure: then nothing else of this user is measured at the same time
            on this machine, and the block's start and end are in the run directory's events.
        timeout_s: How long to wait for another server to leave the devices; time during which its
            clients work or others measure does not count.

    Raises:
        ServerError: It cannot be had, or did not live until the end of the block.
    """
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(client_of_run(Path(spec.project), measured=measured))
        # Closed, never unlocked: it stays locked while a process that inherited it lives.
        client = open_lock(f"{sorted(spec.devices)[0]}.lease")
        stack.callback(os.close, client)
        state, launched = _acquire(spec, client, timeout_s)
        ready, ready_at_unix_s = _wait_ready(spec, state)
        server = _handle(ready, ready_at_unix_s, launched, (client, *held))
        if measured:
            stack.enter_context(noted_measurement(spec.label, server.server_id))
        yield server
        server.check_alive()


@contextmanager
def client_of_run(project: Path, *, measured: bool) -> Iterator[list[int]]:
    """Ends this process when its Snakemake process dies, as long as the block runs.

    Args:
        project: The project directory.
        measured: Whether nothing else of this user may be measured meanwhile on this machine.

    Yields:
        The descriptors of the locks that keep others away, for `ServerHandle.inherited`.

    Raises:
        ServerError: No Snakemake process of the project lives.
    """
    if not run_alive(project):
        raise ServerError(
            Cause.OWNER_GONE,
            "no live Snakemake process owns this project's servers",
            where=str(project),
            cure="Run the workflow again; leave the run directory alone while it runs.",
        )
    done = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(done.set)
        threading.Thread(target=_end_with_owner, args=(project, done), daemon=True).start()
        held = []
        if measured:
            held.append(open_lock(locks.MEASURE_LOCK))
            stack.callback(os.close, held[0])  # closed only, like a lease's
            if not try_lock(held[0], LOCK_EX):
                _say("waiting until another measurement is done")
                fcntl.flock(held[0], LOCK_EX)
        yield held


@contextmanager
def noted_measurement(label: str, server_id: str) -> Iterator[None]:
    """Notes start and end of the block in the run directory's events."""
    locks.record_event("measure-begin", label=label, server_id=server_id)
    try:
        yield
    finally:
        locks.record_event("measure-end", label=label, server_id=server_id)


def _end_with_owner(project: Path, done: threading.Event) -> None:
    while not done.wait(0.3):
        if not run_alive(project):
            _say("the Snakemake process has gone")
            os._exit(EXIT_OWNER_GONE)


def _say(what: str) -> None:
    print(f"leverbench: {what}", file=sys.stderr, flush=True)


def _acquire(spec: ServerSpec, client: int, timeout_s: float) -> tuple[State, bool]:
    """Takes a lease on a starting or ready server; returns its state and whether it is new."""
    devices = sorted(spec.devices)  # one order for all, so that no two wait for each other
    bells = [open_lock(f"{device}.want") for device in devices]
    device_locks = [open_lock(f"{device}.lock") for device in devices]
    rung = held = 0
    waited_s, last_s, swept_s = 0.0, time.monotonic(), 0.0
    stuck: list[Process] = []
    told = False
    try:
        while True:
            if state := _attach(spec, devices, client):
                return state, False
            while rung < len(bells) and try_lock(bells[rung], LOCK_EX):
                locks.ring(bells[rung], spec.digest)
                rung += 1
            while rung == len(bells) and held < len(bells):
                if not try_lock(device_locks[held], LOCK_EX):
                    break
                held += 1
            if held == len(bells):
                return _launch(spec, devices, device_locks, client), True
            now_s = time.monotonic()
            if now_s > swept_s + _SWEEP_INTERVAL_S:  # an orphan may hold the lock
                stuck, swept_s = sweep(), now_s
            if user := _used_by_others(devices):
                if not told:
                    _say(f"waiting until {user} is not used any more")
                told = True
            else:
                waited_s += now_s - last_s
            last_s = now_s
            if waited_s > timeout_s:
                raise _busy(devices, f"not free within {timeout_s:g} s", stuck)
            time.sleep(_POLL_S)
    finally:
        for bell in bells[:rung]:
            locks.ring(bell, "")
        for descriptor in (*bells, *device_locks):
            os.close(descriptor)


def _attach(spec: ServerSpec, devices: list[str], client: int) -> State | None:
    """Takes a lease on the server that runs, if it is the one asked for."""
    if not try_lock(client, LOCK_SH):  # its keeper stops it, or just looks
        return None
    state = read_state(devices[0])
    if (
        state
        and state["digest"] == spec.digest
        and state["devices"] == devices
        and state["owner_lock"] == owner_lock(Path(spec.project))
        and state["status"] in ("starting", "ready")
        and alive(Process(*state["keeper"]))
        and alive(Process(*state["server"]))  # its keeper may not have noticed yet
    ):
        return state
    fcntl.flock(client, LOCK_UN)
    return None


def _used_by_others(devices: list[str]) -> str | None:
    """Returns the label of a server on these devices that has clients."""
    for state in map(read_state, devices):
        if state:
            descriptor = open_lock(f"{state['devices'][0]}.lease")
            # Shared but not alone: clients. Not even shared: a keeper that stops.
            used = try_lock(descriptor, LOCK_SH) and not try_lock(descriptor, LOCK_EX)
            os.close(descriptor)
            if used:
                return state["label"]
    return None


def _launch(spec: ServerSpec, devices: list[str], device_locks: list[int], client: int) -> State:
    """Starts a keeper, which inherits the locks of the devices, and waits for its first word."""
    if left := sweep():
        raise _busy(devices, "not free", left)
    _refuse_quarantined(devices)
    fcntl.flock(client, LOCK_SH)
    server_id, port, run_dir = secrets.token_hex(6), _free_port(spec), str(locks.run_dir())
    log_path = Path(spec.log_dir) / f"{server_id}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "server_id": server_id,
        "digest": spec.digest,
        "label": spec.label,
        "devices": devices,
        "owner_lock": owner_lock(Path(spec.project)),
        "argv": [str(port) if word == PORT else word for word in spec.argv],
        "port": port,
        "status": "starting",
        "reason": None,
        "exit_code": None,
        "ready_at_unix_s": None,
        "log_path": str(log_path),
    }
    environment = {
        **os.environ,
        locks.RUN_DIR_VARIABLE: run_dir,
        KEEPER_MARK: f"{run_dir}/{server_id}",
    }
    locks.record_event("launch", server_id=server_id, label=spec.label, devices=devices)
    with log_path.open("ab") as log:
        keeper = subprocess.Popen(
            _KEEPER,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            pass_fds=device_locks,
            start_new_session=True,
            text=True,
        )
    if keeper.stdin is not None:
        with contextlib.suppress(BrokenPipeError), keeper.stdin:
            json.dump({"spec": asdict(spec), "state": state}, keeper.stdin)
    while True:
        ended = keeper.poll()  # first, or it may say its last word in between
        first_word = read_state(devices[0])
        if first_word and first_word["server_id"] == server_id:
            keeper.returncode = 0  # it outlives this process: nobody here waits for it
            return first_word
        if ended is not None:
            _refuse_quarantined(devices)
            raise _died(spec.label, f"its keeper ended with exit code {ended}", log_path)
        time.sleep(0.02)


def _free_port(spec: ServerSpec) -> int:
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind((_HOST, port))
            return port
    raise ServerError(
        Cause.PORT_IN_USE,
        f"no free port from {_PORTS.start} to {_PORTS.stop - 1}",
        where=spec.label,
        cure="End the programs that listen on them (ss -ltnp).",
    )


def _refuse_quarantined(devices: list[str]) -> None:
    for device in devices:
        path = quarantine_path(device)
        if path.exists():
            raise ServerError(
                Cause.QUARANTINED,
                f"the GPU did not give back its memory after a server: {path.read_text()}",
                where=device,
                cure=f"Look with nvidia-smi who holds it, end that, then remove {path}.",
            )


def _wait_ready(spec: ServerSpec, state: State) -> tuple[State, float]:
    # The keeper keeps the limit; this one is for a keeper that hangs.
    limit_s = time.monotonic() + spec.start_timeout_s + 30.0
    while state["status"] == "starting":
        gone = not alive(Process(*state["keeper"]))  # first, or it may say its last word in between
        latest = read_state(state["devices"][0])
        if latest and latest["server_id"] == state["server_id"]:
            state = latest
        if state["status"] == "starting" and gone:
            raise _died(state["label"], "its keeper was killed", Path(state["log_path"]))
        if time.monotonic() > limit_s:
            raise ServerError(
                Cause.START_TIMEOUT, "its keeper does not answer", where=state["label"]
            )
        time.sleep(_POLL_S)
    if state["status"] != "ready" or state["ready_at_unix_s"] is None:
        raise _failure(state)
    return state, state["ready_at_unix_s"]


def _failure(state: State) -> ServerError:
    """Returns what a keeper that stops its server, or has stopped it, means to a client."""
    code, log_path = state["exit_code"], Path(state["log_path"])
    what = {
        Cause.START_FAILED: f"it ended with exit code {code} before it was ready",
        Cause.START_TIMEOUT: "it was not ready in time",
        Cause.PORT_IN_USE: f"another program listens on its port {state['port']}",
        Cause.OWNER_GONE: "the Snakemake process that owned it has gone",
    }
    for cause, text in what.items():
        if state["reason"] == cause:
            return _told(cause, text, state["label"], log_path, code)
    how = state["reason"] if code is None else f"exit code {code}"
    return _died(state["label"], f"{how}", log_path, code)


def _died(label: str, how: str, log_path: Path, exit_code: int | None = None) -> ServerError:
    return _told(Cause.SERVER_DIED, f"the server has ended ({how})", label, log_path, exit_code)


def _told(
    cause: Cause, what: str, label: str, log_path: Path, exit_code: int | None = None
) -> ServerError:
    cure = f"The whole log is {log_path}"
    return ServerError(
        cause,
        what + _tail(log_path),
        where=label,
        cure=cure,
        exit_code=exit_code,
        log_path=log_path,
    )


def _busy(devices: list[str], what: str, stuck: list[Process]) -> ServerError:
    if stuck:
        what += f", processes of a killed run do not end: {[p.pid for p in stuck]}"
    return ServerError(
        Cause.DEVICE_BUSY,
        what,
        where=", ".join(devices),
        cure=f"Look who holds the .lock files in {locks.run_dir()} (lsof), end that, run again.",
    )


def _tail(log_path: Path) -> str:
    try:
        with log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return ""
    return "".join(["; the end of its log:", *(f"\n  {line}" for line in lines), "\n"])
