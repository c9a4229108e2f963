"""How GPUs ran, with an nvidia-smi of known truth."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_gpu import Gpu, install

from leverbench.serving.gpus import (
    GpuSample,
    capped_share,
    gpu_account,
    sampled,
    strangers,
    throttled,
)
from leverbench.serving.processes import identify

from .conftest import wait_for


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LEVERBENCH_RUN_DIR", str(tmp_path))
    return folder


def sample(gpu: str = "gpu0", *reasons: str, power_w: float | None = 300.0) -> GpuSample:
    return GpuSample(gpu, power_w, 1980.0, 3201.0, 60.0, reasons)


def test_the_first_and_the_last_sample_are_outside_the_block(smi: Path) -> None:
    install(smi, Gpu(power_w=100.0))
    with sampled(["gpu0"]) as samples:
        install(smi, Gpu(power_w=400.0, reasons=0x44))

    assert samples[0] == GpuSample("gpu0", 100.0, 1980.0, 3201.0, 60.0, ())
    assert samples[-1].power_w == 400.0
    assert samples[-1].reasons == ("power-cap", "hardware-thermal")


def test_it_is_sampled_once_a_second(smi: Path) -> None:
    install(smi, Gpu())
    with sampled(["gpu0"]) as samples:
        time.sleep(1.5)

    assert len(samples) >= 3


def test_what_is_not_told_is_none(smi: Path) -> None:
    install(smi, Gpu(sm_clock_mhz="[N/A]"))
    with sampled(["gpu0"]) as samples:
        pass

    account = gpu_account(samples)
    assert account is not None
    assert account["gpu0"]["sm_clock_mhz"] is None
    assert account["gpu0"]["power_w"] == {"mean": 300.0, "min": 300.0, "max": 300.0}


@pytest.mark.parametrize("devices", [["cpu"], ["attached"]])
def test_without_a_gpu_nobody_is_asked(smi: Path, devices: list[str]) -> None:
    install(smi, Gpu(pids=(os.getpid(),)))
    with sampled(devices) as samples:
        pass

    assert samples == []
    assert gpu_account(samples) is None
    assert strangers(devices, [identify(os.getpid())]) is None


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 9\n"])
def test_without_an_answer_there_is_no_account(smi: Path, script: str | None) -> None:
    smi.mkdir()
    if script:
        (smi / "nvidia-smi").write_text(script)
        (smi / "nvidia-smi").chmod(0o755)
    with sampled(["gpu0"]) as samples:
        pass

    assert gpu_account(samples) is None
    assert strangers(["gpu0"], [identify(os.getpid())]) is None


def test_an_error_in_the_block_comes_out_and_ends_the_watch(smi: Path) -> None:
    install(smi, Gpu())
    with pytest.raises(KeyError), sampled(["gpu0"]):
        raise KeyError

    wait_for(lambda: not children())


def test_the_watch_ends_with_a_process_that_is_killed(smi: Path) -> None:
    install(smi, Gpu())
    code = (
        "import time\nfrom leverbench.serving.gpus import sampled\n"
        "with sampled(['gpu0']):\n  print('in', flush=True)\n  time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"in\n"
        (watch,) = children(job.pid)
        job.send_signal(signal.SIGKILL)

    wait_for(lambda: not Path(f"/proc/{watch}").exists())


def children(parent: int | None = None) -> list[int]:
    text = Path(f"/proc/{parent or os.getpid()}/task/{parent or os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def test_the_account_is_of_each_gpu() -> None:
    samples = [
        sample("gpu0", "power-cap", power_w=600.0),
        sample("gpu1", power_w=None),
        sample("gpu0", power_w=500.0),
        sample("gpu1", power_w=None),
    ]

    account = gpu_account(samples)

    assert account is not None
    assert account["gpu0"]["samples"] == 2
    assert account["gpu0"]["power_w"] == {"mean": 550.0, "min": 500.0, "max": 600.0}
    assert account["gpu0"]["reasons"] == {"power-cap": 0.5}
    assert account["gpu1"]["power_w"] is None
    assert account["gpu1"]["reasons"] == {}
    assert capped_share(account) == 0.5


@pytest.mark.parametrize(
    ("reason", "is_throttled"),
    [
        ("hardware-slowdown", True),
        ("software-thermal", True),
        ("hardware-thermal", True),
        ("power-brake", True),
        ("power-cap", False),
        ("idle", False),
        ("application-clocks", False),
        ("sync-boost", False),
    ],
)
def test_one_sample_of_heat_or_of_a_power_brake_is_throttled(
    reason: str, is_throttled: bool
) -> None:
    samples = [*[sample()] * 20, sample("gpu0", reason)]

    assert throttled(gpu_account(samples)) is is_throttled
    assert throttled(None) is False
    assert capped_share(None) == 0.0


def test_strangers_are_those_that_are_not_the_server_s(smi: Path) -> None:
    me, parent = identify(os.getpid()), identify(os.getppid())
    install(smi, Gpu(pids=(me.pid, parent.pid)))

    assert strangers(["gpu0"], [me]) == [parent.pid]
    assert strangers(["gpu0"], [me, parent]) == []


@pytest.mark.parametrize("pids", [(), (4242,)])
def test_where_the_server_is_not_listed_nobody_can_be_told(
    smi: Path, pids: tuple[int, ...]
) -> None:
    install(smi, Gpu(pids=pids))

    assert strangers(["gpu0"], [identify(os.getpid())]) is None
