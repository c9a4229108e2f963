import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from leverbench.serving.processes import (
    Process,
    alive,
    descendants,
    identify,
    listens,
    send,
)

from .conftest import wait_for


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    process = identify(sleeper.pid)
    assert alive(process)
    send(process, signal.SIGKILL)
    wait_for(lambda: not alive(process))
    assert os.waitpid(sleeper.pid, os.WNOHANG)[0] == sleeper.pid  # it was not yet collected


def test_a_pid_that_is_used_again_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    process = identify(sleeper.pid)
    earlier = Process(process.pid, process.start - 1)
    assert not alive(earlier)
    send(earlier, signal.SIGKILL)
    assert alive(process)


def test_descendants_of_one_group(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as leader:
        ours, theirs = identify(sleeper.pid), identify(leader.pid)
        assert {ours, theirs} <= set(descendants(os.getpid()))
        assert descendants(os.getpid(), group=leader.pid) == [theirs]
        leader.kill()


def test_who_listens_on_a_port(sleeper: subprocess.Popen[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert listens(port, [identify(os.getpid())]) is True
        assert listens(port, [identify(sleeper.pid)]) is False
    assert listens(port, [identify(os.getpid())]) is None
