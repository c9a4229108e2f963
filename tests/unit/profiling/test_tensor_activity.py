"""What NVML measures of GPUs in a stretch, with an NVML of known truth."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_nvml import (
    ANY_TENSOR,
    DRAM_BANDWIDTH,
    HMMA,
    SM_ACTIVE,
    SM_OCCUPANCY,
    Nvml,
    build,
)

from leverbench.profiling import tensor_activity
from leverbench.profiling.tensor_activity import sampled, why_not

STRETCH_S = 0.12
UNKNOWN = {
    "any_tensor": None,
    "hmma": None,
    "sm_active": None,
    "sm_occupancy": None,
    "dram_bandwidth": None,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Nvml]:
    """Makes an NVML with some GPUs."""
    monkeypatch.setattr(tensor_activity, "_LIBRARY", str(library))
    return lambda present=1: Nvml(library, present)


def test_the_averages_are_those_of_the_block_alone(nvml):
    scripted = nvml()
    gpu = scripted.gpus[0]
    with sampled(["gpu0"]) as activity:
        gpu.run(
            200,
            {
                ANY_TENSOR: 50,
                HMMA: 40,
                SM_ACTIVE: 150,
                SM_OCCUPANCY: 20,
                DRAM_BANDWIDTH: 120,
            },
        )
        time.sleep(STRETCH_S)
    gpu.run(1000, {ANY_TENSOR: 1000})

    assert activity.reason is None
    assert activity.figures["source"] == "nvml-gpm"
    assert STRETCH_S <= activity.figures["seconds"] < 10 * STRETCH_S
    assert activity.figures["gpus"] == [
        {
            "gpu": "gpu0",
            "any_tensor": 0.25,
            "hmma": 0.2,
            "sm_active": 0.75,
            "sm_occupancy": 0.1,
            "dram_bandwidth": 0.6,
        }
    ]
    assert scripted.held == (0, 0)


def test_each_gpu_of_the_session_has_its_own(nvml):
    scripted = nvml(3)
    with sampled(["gpu0", "gpu2"]) as activity:
        scripted.gpus[0].run(100, {ANY_TENSOR: 10})
        scripted.gpus[1].run(100, {ANY_TENSOR: 20})
        scripted.gpus[2].run(100, {ANY_TENSOR: 30})
        time.sleep(STRETCH_S)

    assert {g["gpu"]: g["any_tensor"] for g in activity.figures["gpus"]} == {
        "gpu0": 0.1,
        "gpu2": 0.3,
    }
    assert scripted.held == (0, 0)


def test_an_idle_gpu_is_zero_and_not_unknown(nvml):
    scripted = nvml()
    with sampled(["gpu0"]) as activity:
        scripted.gpus[0].run(100, {})
        time.sleep(STRETCH_S)

    assert activity.figures["gpus"] == [{"gpu": "gpu0", **dict.fromkeys(UNKNOWN, 0.0)}]


def old(scripted: Nvml) -> None:
    scripted.gpus[0].offered = 0


def refused(scripted: Nvml) -> None:
    scripted.gpus[0].support_code = 3


def forbidden(scripted: Nvml) -> None:
    scripted.gpus[0].sample_codes[:] = [4, 4]


def forbidden_at_all(scripted: Nvml) -> None:
    scripted.refuse(4)


def divided(scripted: Nvml) -> None:
    scripted.gpus[0].mig = 1


def unloaded(scripted: Nvml) -> None:
    scripted.refuse(9)


def strange(scripted: Nvml) -> None:
    scripted.refuse(999)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (old, "not offered before Hopper"),
        (refused, "not offered before Hopper"),
        (forbidden, "no permission"),
        (forbidden_at_all, "no permission"),
        (divided, "MIG is on: a GPU as a whole is not measured"),
        (unloaded, "the driver is not loaded"),
        (strange, "nvmlInit_v2 ends with NVML's error 999"),
    ],
)
def test_what_is_not_offered_is_told_before_the_block_and_is_no_figure(nvml, how, reason):
    scripted = nvml()
    how(scripted)

    assert why_not(["gpu0"]) == reason
    with sampled(["gpu0"]) as activity:
        assert activity.reason == reason
        time.sleep(STRETCH_S)

    assert activity.as_record() == {"tensor_activity": None, "tensor_activity_reason": reason}
    assert scripted.held == (0, 0)


def test_a_gpu_that_cannot_be_divided_is_measured(nvml):
    nvml().gpus[0].mig = 2

    assert why_not(["gpu0"]) is None


def test_a_gpu_that_is_not_there_is_told(nvml):
    nvml(present=1)

    assert why_not(["gpu1"]) == "nvmlDeviceGetHandleByIndex_v2 ends with NVML's error 2"


def test_without_the_library_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_activity, "_LIBRARY", str(tmp_path / "none.so"))

    assert why_not(["gpu0"]) == "the driver's library libnvidia-ml.so.1 is not there"


def test_a_driver_that_does_not_know_the_function_is_told(tmp_path, monkeypatch):
    library = build(tmp_path, leave_out="nvmlGpmQueryDeviceSupport")
    monkeypatch.setattr(tensor_activity, "_LIBRARY", str(library))
    scripted = Nvml(library)

    assert why_not(["gpu0"]) == "not offered by this driver"
    assert scripted.held == (0, 0)


@pytest.mark.parametrize("devices", [["cpu"], ["attached"], []])
def test_without_a_gpu_of_ours_nothing_is_opened(devices, monkeypatch):
    def opened(path: str) -> ctypes.CDLL:
        raise AssertionError(path)

    monkeypatch.setattr(ctypes, "CDLL", opened)

    assert why_not(devices) == "no GPU of ours"


def test_a_gpu_that_vanishes_meanwhile_has_no_figures(nvml):
    scripted = nvml()
    with sampled(["gpu0"]) as activity:
        assert activity.reason is None
        scripted.gpus[0].sample_codes[1] = 15
        time.sleep(STRETCH_S)

    assert activity.as_record() == {
        "tensor_activity": None,
        "tensor_activity_reason": "the GPU was lost",
    }
    assert scripted.held == (0, 0)


def test_one_of_two_that_vanishes_leaves_the_other(nvml):
    scripted = nvml(2)
    with sampled(["gpu0", "gpu1"]) as activity:
        scripted.gpus[0].run(100, {})
        scripted.gpus[1].sample_codes[1] = 15
        time.sleep(STRETCH_S)

    assert activity.figures["gpus"] == [
        {"gpu": "gpu0", **dict.fromkeys(UNKNOWN, 0.0)},
        {"gpu": "gpu1", **UNKNOWN},
    ]
    assert activity.reason == "gpu1: the GPU was lost"
    assert scripted.held == (0, 0)


def test_a_metric_without_a_figure_is_unknown(nvml):
    scripted = nvml()
    scripted.gpus[0].metric_codes[HMMA] = 3
    with sampled(["gpu0"]) as activity:
        scripted.gpus[0].run(100, {ANY_TENSOR: 100})
        time.sleep(STRETCH_S)

    (gpu,) = activity.figures["gpus"]
    assert (gpu["any_tensor"], gpu["hmma"]) == (1.0, None)


def test_a_gpu_without_any_figure_is_not_measured(nvml):
    scripted = nvml()
    with sampled(["gpu0"]) as activity:
        # Its counters stand still: 0 of 0.
        time.sleep(STRETCH_S)

    assert (activity.figures, activity.reason) == (None, "the driver gives no figure")
    assert scripted.held == (0, 0)


def test_a_stretch_within_one_refresh_of_the_counters_is_none(nvml):
    scripted = nvml()
    with sampled(["gpu0"]) as activity:
        scripted.gpus[0].run(100, {ANY_TENSOR: 100})

    assert activity.as_record() == {
        "tensor_activity": None,
        "tensor_activity_reason": "the stretch is not longer than 0.1 s",
    }
    assert scripted.held == (0, 0)


def test_an_error_in_the_block_is_let_through_and_nothing_stays_open(nvml):
    scripted = nvml()
    with pytest.raises(KeyError), sampled(["gpu0"]):
        raise KeyError

    assert scripted.held == (0, 0)
