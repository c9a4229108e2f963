"""Leases: sharing, eviction, failures to start, and what clients are told."""

import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from leverbench.serving.lease import Cause, ServerError, lease
from leverbench.serving.owner import hold_owner, stop_now
from leverbench.serving.spec import ServerSpec

from .conftest import World, wait_for

pytestmark = pytest.mark.server


@pytest.fixture
def owning(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """This process itself owns the project's servers."""
    monkeypatch.setenv("LEVERBENCH_RUN_DIR", str(world.run_dir))
    monkeypatch.setenv("LEVERBENCH_OWNER", "")
    hold_owner(world.project())
    return world


def test_a_server_is_kept_between_leases_until_it_is_stopped(owning: World) -> None:
    spec = ServerSpec(**owning.spec(env={"LEVER": "on"}, cwd=str(owning.path)))
    with lease(spec, measured=False, timeout_s=5) as first:
        assert first.launched_here
        assert first.argv[3:5] == ("--port", str(first.port))
        assert first.started_at_unix_s < first.ready_at_unix_s < time.time()
        assert first.server in first.processes()
        assert len(first.processes()) == 3
        assert first.listeners() == [first.server]
        for pid, _ in first.processes():
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert {b"LEVER=on", b"SPT_NOENV=1"} <= set(environment)
            assert Path(f"/proc/{pid}/cwd").readlink() == owning.path
        with socket.create_connection(("127.0.0.1", first.port)) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.makefile().read().endswith(first.server_id)
        size = first.log_size()
        assert first.read_log(size - len("ready\n")) == "ready\n"
        assert not stop_now(owning.project(), timeout_s=0.3)  # it is in use
        first.check_alive()
    with lease(spec, measured=True, timeout_s=5) as second:
        assert second.server_id == first.server_id
        assert not second.launched_here
    assert stop_now(owning.project(), timeout_s=5)
    assert owning.living() == []
    assert [e["reason"] for e in owning.events("stop")] == ["requested"]
    assert [e["label"] for e in owning.events("measure-begin", "measure-end")] == ["label-a"] * 2


def test_who_listens_tells_of_a_server_that_was_started_again(owning: World) -> None:
    # Launched: a program that looks after the server. It lives on when the server is another.
    fields = owning.spec()
    again = "import subprocess, sys\nwhile True: subprocess.run(sys.argv[1:])"
    python = fields["argv"][0]
    fields["argv"] = [python, "-IS", "-c", again, *fields["argv"]]
    with lease(ServerSpec(**fields), measured=False, timeout_s=5) as server:
        (first,) = server.listeners()
        assert first != server.server
        os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: server.listeners() not in ([], [first]))
        server.check_alive()
        assert len(server.listeners()) == 1
    assert stop_now(owning.project(), timeout_s=5)


def test_stop_now_leaves_other_projects_alone(owning: World) -> None:
    other = owning.owner("other").client(owning.spec(project="other"))
    other.wait("ready")
    other.release()
    other.wait("done")
    assert stop_now(owning.project(), timeout_s=5)
    assert owning.state()["status"] == "ready"


def test_without_an_owner_there_is_no_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERBENCH_RUN_DIR", str(world.run_dir))
    with (
        pytest.raises(ServerError, match="no live Snakemake process") as caught,
        lease(ServerSpec(**world.spec()), measured=False, timeout_s=5),
    ):
        pass
    assert caught.value.cause == Cause.OWNER_GONE


def test_a_server_must_live_until_the_end_of_the_block(owning: World) -> None:
    def use() -> None:
        with lease(ServerSpec(**owning.spec()), measured=True, timeout_s=5) as server:
            os.kill(server.server.pid, signal.SIGKILL)
            wait_for(lambda: server.processes() == [])

    with pytest.raises(ServerError, match="the server has ended") as caught:
        use()
    assert caught.value.cause == Cause.SERVER_DIED
    assert len(owning.events("measure-end")) == 1


def test_two_clients_at_once_share_one_launch(world: World) -> None:
    owner = world.owner()
    clients = [owner.client(world.spec()) for _ in range(2)]
    told = [client.wait("ready") for client in clients]
    assert told[0]["state"]["server_id"] == told[1]["state"]["server_id"]
    assert sorted(t["launched_here"] for t in told) == [False, True]
    assert len(world.events("launch")) == 1


def test_another_server_evicts_an_idle_one_and_waits_until_it_is_gone(world: World) -> None:
    owner = world.owner()
    first = owner.client(world.spec("a", "--stop-s", "0.4", stop_grace_s=1.0))
    log = Path(first.wait("ready")["state"]["log_path"])
    first.release()
    owner.client(world.spec("b"), measured=True).wait("ready")
    assert log.read_text().endswith("dummy: asked to stop\ndummy: stopped\n")
    order = [(e["what"], e.get("reason")) for e in world.events("launch", "stop", "stopped")]
    launch = ("launch", None)
    assert order == [launch, ("stop", "evicted"), ("stopped", None), launch]


def test_waiting_for_a_working_client_is_not_counted(world: World) -> None:
    owner = world.owner()
    first = owner.client(world.spec("a"), measured=True)
    first.wait("ready")
    second = owner.client(world.spec("b"), timeout_s=1.0)
    third = owner.client(world.spec("b"), measured=True, timeout_s=1.0)
    time.sleep(1.2)
    assert second.told["status"] is third.told["status"] is None
    first.release()
    assert second.wait("ready")["state"]["server_id"] == third.wait("ready")["state"]["server_id"]


def test_measured_windows_never_overlap_even_on_different_devices(world: World) -> None:
    owner = world.owner()
    gpus = [world.spec(digest, devices=[f"gpu{i}"]) for i, digest in enumerate("ab")]
    clients = [owner.client(gpus[i % 2], measured=True) for i in range(4)]
    for _ in clients:
        ready = wait_for(lambda: [c for c in clients if c.told["status"] == "ready"])
        assert len(ready) == 1
        ready[0].release()
        ready[0].wait("done")
    whats = [e["what"] for e in world.events("measure-begin", "measure-end")]
    assert whats == ["measure-begin", "measure-end"] * 4


def test_a_server_has_all_its_devices_alone(world: World) -> None:
    owner = world.owner()
    both = owner.client(world.spec("a", devices=["gpu1", "gpu0"]))
    both.wait("ready")
    second = owner.client(world.spec("b", devices=["gpu1"]), timeout_s=1.0)
    time.sleep(1.2)
    assert second.told["status"] is None
    both.release()
    second.wait("ready")
    owner.client(world.spec("c", devices=["gpu0"])).wait("ready")
    assert [e["reason"] for e in world.events("stop")] == ["evicted"]


def test_a_server_without_clients_ends_after_a_while(world: World) -> None:
    owner = world.owner()
    client = owner.client(world.spec(idle_s=0.5))
    client.wait("ready")
    time.sleep(0.8)
    assert world.events("stop") == []  # it had a client
    client.release()
    (stop,) = wait_for(lambda: world.events("stop"))
    assert stop["reason"] == "idle"
    wait_for(lambda: world.events("stopped"))
    world.await_empty()


def test_a_server_that_dies_at_its_start_says_why(world: World) -> None:
    told = world.owner().client(world.spec("a", "--exit-code", "3")).wait("error")
    assert (told["cause"], told["exit_code"]) == ("start-failed", 3)
    assert told["text"].startswith("label-a: it ended with exit code 3 before it was ready")
    assert "\n  dummy: loading\n  dummy: I do not feel well\n" in told["text"]
    world.await_empty()


def test_a_program_that_does_not_exist_is_named(world: World) -> None:
    told = world.owner().client(world.spec(argv=["/no/such/engine"])).wait("error")
    assert (told["cause"], told["exit_code"]) == ("start-failed", 127)
    assert "/no/such/engine cannot be run in /" in told["text"]


@pytest.mark.parametrize("dummy", [["--deaf"], ["--status", "503 Busy"]])
def test_a_server_that_never_gets_ready_is_given_up(world: World, dummy: list[str]) -> None:
    told = world.owner().client(world.spec("a", *dummy, start_timeout_s=0.8)).wait("error")
    assert told["cause"] == "start-timeout"
    world.await_empty()


def test_an_answer_from_another_program_is_not_the_servers(world: World) -> None:
    client = world.owner().client(world.spec("a", "--deaf"))
    wait_for(lambda: (world.run_dir / "cpu.json").exists())
    with socket.create_server(("127.0.0.1", world.state()["port"])) as listener:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        told = client.wait("error")
    assert told["cause"] == "port-in-use"


def test_a_port_range_that_is_used_up_is_told(
    owning: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("leverbench.serving.lease._PORTS", range(port, port + 1))
        spec = ServerSpec(**owning.spec())

        with (
            pytest.raises(ServerError, match=f"no free port from {port} to {port}") as caught,
            lease(spec, measured=False, timeout_s=5),
        ):
            pass

    assert caught.value.cause == Cause.PORT_IN_USE
    assert "ss -ltnp" in str(caught.value)


def test_a_keeper_that_does_not_leave_makes_the_device_busy(world: World) -> None:
    owner = world.owner()
    first = owner.client(world.spec("a"))
    keeper = first.wait("ready")["state"]["keeper"][0]
    first.release()
    first.wait("done")
    os.kill(keeper, signal.SIGSTOP)
    told = owner.client(world.spec("b"), timeout_s=0.5).wait("error")
    os.kill(keeper, signal.SIGCONT)
    assert told["cause"] == "device-busy"


@pytest.mark.parametrize("garbage", [b'{"server_id": "a', b"{}"])
def test_a_damaged_state_is_said_again(world: World, garbage: bytes) -> None:
    owner = world.owner()
    first = owner.client(world.spec())
    told = first.wait("ready")
    (world.run_dir / "cpu.json").write_bytes(garbage)
    first.release()
    first.wait("done")  # it did not take that for a dead server
    again = owner.client(world.spec()).wait("ready")
    assert again["state"] == told["state"]


def test_the_run_directory_may_go_between_runs(world: World) -> None:
    first = world.owner()
    client = first.client(world.spec())
    client.wait("ready")
    client.release()
    client.wait("done")
    shutil.rmtree(world.run_dir)
    world.await_empty()  # its owner lock went with it
    world.owner().client(world.spec()).wait("ready")


def test_servers_survive_threads_that_lease_at_once(owning: World) -> None:
    spec, ids = ServerSpec(**owning.spec()), []

    def use() -> None:
        with lease(spec, measured=True, timeout_s=5) as server:
            ids.append(server.server_id)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 4
    assert len(set(ids)) == 1
    stop_now(owning.project())


def test_devices_are_names_that_make_good_file_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="devices are cpu, gpu0"):
        ServerSpec("d", "l", ["x"], "/p", str(tmp_path), devices=["../gpu0"])
