"""The process that calls a kernel, with a real one."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tuned_kernel import FAULTS, build, write_kernel

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.records import read_record, write_record
from leverbench.tuning.invalid import InvalidCandidate
from leverbench.tuning.microbench import microbench
from leverbench.tuning.worker import Worker

pytestmark = pytest.mark.server

SETTINGS = EngineSettings("scripted", None, None, (), {}, {})
CALL = {"width": 64, "dtype": "float32", "batch": 2}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return write_kernel(tmp_path_factory.mktemp("kernels"), [2000, 500])


@pytest.fixture(scope="module")
def code(kernel, tmp_path_factory) -> Path:
    return build(kernel, tmp_path_factory.mktemp("build"))


def candidate(work: int, fault: int = 0) -> dict[str, int]:
    return {"work": work, "fault": fault}


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != "zombie"]


def test_calls_are_timed_and_whatever_goes_wrong_has_its_reason(kernel, code):
    """The worker is replaced where it died or had to be ended, and ends with its context."""
    with Worker(kernel, code, SETTINGS, "cpu", limit_s=20) as worker:
        slow_s = worker.time(CALL, candidate(2000), 3, check=True)
        fast_s = worker.time(CALL, candidate(500), 3, check=True)
        assert len(slow_s) == len(fast_s) == 3
        assert min(slow_s) >= 0.002
        assert 0.0005 <= min(fast_s) < min(slow_s)
        assert min(worker.time(CALL, None, 2)) >= 0.002
        (first,) = children()
        found = {}
        for fault in FAULTS:
            if FAULTS[fault] != "timed-out":
                with pytest.raises(InvalidCandidate) as caught:
                    worker.time(CALL, candidate(1, fault), 3, check=True)
                found[fault] = caught.value
        assert {fault: problem.reason for fault, problem in found.items()} == {
            fault: reason for fault, reason in FAULTS.items() if reason != "timed-out"
        }
        assert found[3].detail == "ValueError: no such thing"
        assert found[4].detail.startswith("SIGABRT")
        assert found[6].detail.startswith("y: 128 of 128 off")
        assert found[7].detail.startswith("y: 1 of 128 off, by up to 1")
        assert len(worker.time(CALL, candidate(500), 1)) == 1
        (second,) = children()
        assert second.pid != first.pid
    assert children() == []


def test_a_call_without_end_is_ended(kernel, code):
    with Worker(kernel, code, SETTINGS, "cpu", limit_s=1) as worker:
        began = time.monotonic()
        with pytest.raises(InvalidCandidate) as caught:
            worker.time(CALL, candidate(1, 5), 3, check=True)
        assert (caught.value.reason, caught.value.detail) == ("timed-out", "no answer within 1 s")
        assert children() == []
    assert time.monotonic() - began < 60


def test_a_wrapper_may_stand_before_the_interpreter(kernel, code, tmp_path):
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\n"$@"\n')
    wrapper.chmod(0o755)
    settings = replace(SETTINGS, python=sys.executable, wrapper=(str(wrapper),))

    with Worker(kernel, code, settings, "cpu", limit_s=1) as worker:
        with pytest.raises(InvalidCandidate):
            worker.time(CALL, candidate(1, 5), 3)
        limit = time.monotonic() + 10
        while processes_of(code) and time.monotonic() < limit:
            time.sleep(0.05)
        assert processes_of(code) == []


def processes_of(code: Path) -> list[int]:
    """Returns the processes that have the kernel's library loaded."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(code) in mapped.path for mapped in process.memory_maps()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_code_that_does_not_load_is_told(kernel, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "kernel.py").write_text("def load(folder):\n    raise OSError('no kernel.so')\n")

    with (
        Worker(kernel, code, SETTINGS, "cpu") as worker,
        pytest.raises(LeverbenchError) as caught,
    ):
        worker.time(CALL, candidate(1), 1)

    told = str(caught.value)
    assert told.startswith(f"{code}: {sys.executable} cannot load the kernel: exit code 1: OSError")
    assert "no kernel.so" in told


def test_the_kernel_is_compared_with_what_it_stands_in_for(kernel, code, tmp_path):
    """The fallback sleeps for 2 ms."""
    tuning, record = tmp_path / "tuning.json", tmp_path / "microbench.json"
    chosen = [{"dimensions": CALL, "config": candidate(500)}]
    write_record(tuning, {"kind": "tuning", "chosen": chosen})

    microbench(kernel, [tuning], code, SETTINGS, "cpu", record)

    told = read_record(record)
    assert told["kind"] == "microbench"
    (call,) = told["calls"]
    assert (call["dimensions"], call["config"]) == (CALL, candidate(500))
    assert call["fallback_s"] >= 0.002
    assert call["kernel_s"] >= 0.0005
    assert 1 < call["low"] <= call["speedup"] <= call["high"]
    assert len(call["samples"]["fallback_s"]) == len(call["samples"]["kernel_s"]) == 12


def test_a_kernel_that_cannot_be_called_has_no_micro_benchmark(kernel, code, tmp_path):
    tuning = tmp_path / "tuning.json"
    write_record(tuning, {"chosen": [{"dimensions": CALL, "config": candidate(1, 3)}]})

    with pytest.raises(LeverbenchError) as caught:
        microbench(kernel, [tuning], code, SETTINGS, "cpu", tmp_path / "microbench.json")

    assert "raised, ValueError: no such thing" in str(caught.value)
    assert not (tmp_path / "microbench.json").exists()
