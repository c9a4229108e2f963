"""GPU memory after a stop, with a fake nvidia-smi: its memory is a file that the test writes."""

import json
import os
import signal
import time

import pytest

from leverbench.serving import devices

from .conftest import World, wait_for

pytestmark = pytest.mark.server

SCRIPT = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, $(cat {memory})"; echo "1, 10" ;;
  --query-compute-apps=*) echo 4242 ;;
esac
"""


@pytest.fixture
def gpu(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    world.extra_path.mkdir()
    script = world.extra_path / "nvidia-smi"
    script.write_text(SCRIPT.format(memory=world.path / "memory"))
    script.chmod(0o755)
    set_memory(world, 100)
    monkeypatch.setenv("PATH", f"{world.extra_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LEVERBENCH_RUN_DIR", str(world.run_dir))
    return world


def set_memory(world: World, mib: int) -> None:
    (world.path / "memory").write_text(str(mib))


def test_memory_is_read_by_gpu(gpu: World) -> None:
    assert devices.memory_used_mib(["gpu1", "gpu0", "gpu7"]) == {"gpu1": 10, "gpu0": 100}
    assert devices.memory_used_mib(["cpu"]) == {}
    (gpu.extra_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert devices.memory_used_mib(["gpu0"]) == {}


def test_memory_is_back_within_512_mib(gpu: World) -> None:
    set_memory(gpu, 612)
    assert devices.wait_released({"gpu0": 100, "gpu1": 10}, timeout_s=0) == {}
    set_memory(gpu, 613)
    assert devices.wait_released({"gpu0": 100, "gpu1": 10}, timeout_s=0) == {"gpu0": 613}
    assert devices.wait_released({"gpu7": 100}, timeout_s=0) == {"gpu7": None}


def test_a_stop_waits_for_memory_that_comes_back_late(gpu: World) -> None:
    owner = gpu.owner()
    client = owner.client(gpu.spec(devices=["gpu0"], release_timeout_s=20))
    client.wait("ready")
    set_memory(gpu, 70000)
    client.release()
    second = owner.client(gpu.spec("b", devices=["gpu0"]))
    wait_for(lambda: gpu.events("stop"))
    time.sleep(0.8)
    assert second.told["status"] is None
    set_memory(gpu, 100)
    second.wait("ready")


def test_a_gpu_that_keeps_its_memory_is_set_aside_until_somebody_has_looked(gpu: World) -> None:
    owner = gpu.owner()
    client = owner.client(gpu.spec(devices=["gpu0"]))
    client.wait("ready")
    set_memory(gpu, 70000)
    client.release()
    told = owner.client(gpu.spec("b", devices=["gpu1", "gpu0"])).wait("error")
    assert told["cause"] == "quarantined"
    path = gpu.run_dir / "gpu0.quarantine"
    record = json.loads(path.read_text())
    assert record["used_mib"] == 70000
    assert record["pids"] == [4242]
    assert told["text"].endswith(f"then remove {path}.")
    owner.client(gpu.spec("c", devices=["gpu1"])).wait("ready")  # the other GPU is well
    path.unlink()
    owner.client(gpu.spec("d", devices=["gpu0"])).wait("ready")


def test_memory_is_awaited_for_a_keeper_that_was_killed(gpu: World) -> None:
    owner = gpu.owner()
    state = owner.client(gpu.spec(devices=["gpu0"])).wait("ready")["state"]
    set_memory(gpu, 70000)
    for role in ("keeper", "guardian"):
        os.kill(state[role][0], signal.SIGKILL)
    told = owner.client(gpu.spec(devices=["gpu0"])).wait("error")
    assert told["cause"] == "quarantined"
    (gpu.run_dir / "gpu0.quarantine").unlink()
    owner.client(gpu.spec(devices=["gpu0"])).wait("ready")  # whoever removed it takes it as it is
