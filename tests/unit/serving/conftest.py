import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DUMMY = HERE.parents[1] / "dummy_server.py"


def wait_for(what: Callable[[], Any], timeout_s: float = 8.0) -> Any:
    """Returns the first true value; fails after the limit."""
    limit = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)
    return value


class Client:
    """A process that asks for a lease; what it told last is in `told`."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.out, self._release = Path(order["out"]), Path(order["release"])

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self.out.read_text()) if self.out.exists() else {"status": None}

    def wait(self, status: str, timeout_s: float = 8.0) -> dict[str, Any]:
        """Waits until it is ready, or, for another status, until it has ended."""
        on_the_way = (None,) if status == "ready" else (None, "ready")
        wait_for(lambda: self.told["status"] not in on_the_way, timeout_s)
        told = self.told
        assert told["status"] == status, told
        return told

    def release(self) -> None:
        self._release.touch()


class Actor:
    def __init__(self, world: "World", *words: str) -> None:
        self._world = world
        self.log = world.path / f"actor-{world.number()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "actor.py"), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=world.environment(),
                start_new_session=True,
                text=True,
            )
        self.pid = self.process.pid

    def ready(self) -> "Actor":
        """Waits until it holds what it is there to hold."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holding\n", self.log.read_text()
        return self

    def client(
        self,
        spec: dict[str, Any],
        *,
        measured: bool = False,
        timeout_s: float = 5.0,
        load_s: float = 0.0,
    ) -> Client:
        name = self._world.path / f"client-{self._world.number()}"
        order = {
            "spec": spec,
            "measured": measured,
            "timeout_s": timeout_s,
            "load_s": load_s,
            "out": f"{name}.json",
            "release": f"{name}.release",
        }
        assert self.process.stdin is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return Client(order)

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        """Ends its input, and with that itself."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(10)


class World:
    """A run directory of its own, projects, and everything that was started in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_dir = path / "run"
        self.extra_path = path / "bin"  # before PATH
        self.actors: list[Actor] = []
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LEVERBENCH_RUN_DIR": str(self.run_dir),
            "PATH": f"{self.extra_path}:{os.environ['PATH']}",
        }

    def project(self, name: str = "project") -> Path:
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def owner(self, project: str = "project") -> Actor:
        return self.actor("owner", str(self.project(project))).ready()

    def actor(self, *words: str) -> Actor:
        self.actors.append(Actor(self, *words))
        return self.actors[-1]

    def spec(
        self, digest: str = "a", *dummy: str, project: str = "project", **fields: Any
    ) -> dict[str, Any]:
        """Returns the fields of a spec of the dummy server, with its own arguments in `dummy`."""
        command = [sys.executable, "-IS", str(DUMMY), "--port", "{port}"]
        return {
            "digest": digest,
            "label": f"label-{digest}",
            "argv": [*command, "--start-s", "0.1", "--stop-s", "0.05", *dummy],
            "project": str(self.project(project)),
            "log_dir": str(self.path / "logs"),
            "start_timeout_s": 20.0,
            "stop_grace_s": 0.15,
            "idle_s": 30.0,
            "release_timeout_s": 0.3,
            **fields,
        }

    def events(self, *what: str) -> list[dict[str, Any]]:
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for line in lines if (event := json.loads(line))["what"] in what]

    def state(self, device: str = "cpu") -> dict[str, Any]:
        return json.loads((self.run_dir / f"{device}.json").read_text())

    def living(self) -> list[int]:
        """Returns the processes that were started in this world, but for its actors."""
        mark = f"LEVERBENCH_RUN_DIR={self.run_dir}".encode()
        actors = {actor.pid for actor in self.actors}
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if (
                    entry.name.isdigit()
                    and int(entry.name) not in actors
                    and mark in (entry / "environ").read_bytes().split(b"\0")
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def await_empty(self, timeout_s: float = 6.0) -> None:
        wait_for(lambda: not self.living(), timeout_s)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Fails if a process is left behind some seconds after all actors have ended."""
    world = World(tmp_path)
    yield world
    for actor in world.actors:
        if actor.process.poll() is None:
            actor.process.kill()
        actor.close()
    try:
        world.await_empty()
    finally:
        for pid in world.living():
            os.kill(pid, signal.SIGKILL)
