"""Whoever is killed: nothing stays, and the next client gets a server."""

import os
import signal

import pytest

from .conftest import Actor, Client, World, wait_for

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("world")]


def roles(client: Client, owner: Actor) -> dict[str, int]:
    """Returns the pid of each process that has to do with a ready server."""
    told = client.wait("ready")
    state = told["state"]
    server = state["server"][0]
    child, grandchild = sorted(pid for pid, _ in told["processes"] if pid != server)
    return {
        "owner": owner.pid,
        "client": told["pid"],
        "keeper": state["keeper"][0],
        "guardian": state["guardian"][0],
        "server": server,
        "child": child,
        "grandchild": grandchild,
    }


def kill(pids: dict[str, int], *victims: str) -> None:
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)


def test_a_killed_owner_takes_client_and_server_with_it(world: World) -> None:
    owner = world.owner()
    client = owner.client(world.spec(), measured=True)
    kill(roles(client, owner), "owner")
    world.await_empty()
    assert [event["reason"] for event in world.events("stop")] == ["owner-gone"]
    told = client.told  # it was ended in the middle, or its keeper told it first
    assert told["status"] == "ready" or told["cause"] == "owner-gone"


def test_another_projects_run_does_not_keep_a_server_alive(world: World) -> None:
    world.owner("other")
    owner = world.owner()
    pids = roles(owner.client(world.spec()), owner)
    kill(pids, "owner")
    world.await_empty()


def test_a_second_run_of_the_project_keeps_the_server_but_not_the_orphaned_client(
    world: World,
) -> None:
    second = world.owner()
    owner = world.owner()
    pids = roles(owner.client(world.spec()), owner)
    kill(pids, "owner")
    wait_for(lambda: pids["client"] not in world.living())
    again = second.client(world.spec()).wait("ready")
    assert again["state"]["server"][0] == pids["server"]


def test_a_killed_client_leaves_the_server_to_the_next_one(world: World) -> None:
    owner = world.owner()
    pids = roles(owner.client(world.spec(), measured=True), owner)
    kill(pids, "client")
    again = owner.client(world.spec(), measured=True).wait("ready")
    assert again["state"]["server"][0] == pids["server"]
    assert not again["launched_here"]


@pytest.mark.parametrize("victim", ["keeper", "guardian", "server"])
def test_a_server_ends_with_any_of_its_three(world: World, victim: str) -> None:
    owner = world.owner()
    client = owner.client(world.spec(), measured=True)
    pids = roles(client, owner)
    kill(pids, victim)
    told = client.wait("error")
    assert told["cause"] == "server-died"
    world.await_empty()
    assert owner.client(world.spec()).wait("ready")["launched_here"]
    assert world.events("sweep") == []  # the two that lived were enough


def test_a_server_outlives_its_child(world: World) -> None:
    owner = world.owner()
    client = owner.client(world.spec())
    kill(roles(client, owner), "child")
    client.release()
    client.wait("done")


def test_keeper_and_guardian_killed_the_next_client_sweeps(world: World) -> None:
    owner = world.owner()
    pids = roles(owner.client(world.spec()), owner)
    kill(pids, "keeper", "guardian")
    again = owner.client(world.spec()).wait("ready")
    assert again["launched_here"]
    assert not {pids["child"], pids["grandchild"]} & set(world.living())
    (sweep,) = world.events("sweep")
    assert {pids["child"], pids["grandchild"]} <= set(sweep["pids"])
    assert sweep["left"] == []


def test_owner_keeper_and_guardian_killed_the_next_run_sweeps(world: World) -> None:
    owner = world.owner()
    pids = roles(owner.client(world.spec()), owner)
    kill(pids, "owner", "keeper", "guardian")
    family = {pids["child"], pids["grandchild"]}
    wait_for(lambda: set(world.living()) == family)  # nobody is there to end them
    world.owner()
    wait_for(lambda: not family & set(world.living()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_runs_group_ends_everything(world: World, number: signal.Signals) -> None:
    owner = world.owner()
    roles(owner.client(world.spec(), measured=True), owner)
    os.killpg(owner.pid, number)
    world.await_empty()
    assert len(world.events("stopped")) == 1


def test_a_client_killed_during_the_start_leaves_the_launch_to_the_next_one(world: World) -> None:
    owner = world.owner()
    first = owner.client(world.spec("a", "--start-s", "1"))
    wait_for(lambda: (world.run_dir / "cpu.json").exists())
    assert first.told["status"] is None
    wait_for(lambda: world.state()["status"] == "starting")
    owner.kill()
    world.await_empty()
    assert world.events("ready") == []


def test_locks_stay_while_a_killed_clients_load_goes_on(world: World) -> None:
    owner = world.owner()
    pids = roles(owner.client(world.spec(), measured=True, load_s=1.5), owner)
    kill(pids, "client")
    owner.client(world.spec(), measured=True).wait("ready")
    first, second = world.events("measure-begin")
    assert second["t_mono_s"] - first["t_mono_s"] > 1.4
