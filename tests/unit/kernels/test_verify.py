"""Kernels that are wrong in a known way are rejected with that reason, and honest ones are not."""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from adversarial_kernels import (
    DEADLY,
    HONEST,
    REJECTED,
    ROUNDED,
    TOLERANCE,
    WITHOUT_REFERENCE,
    write_kernel,
)

from leverbench.campaign.model import Engine
from leverbench.errors import LeverbenchError
from leverbench.kernels import verify as verification
from leverbench.kernels import verify_script
from leverbench.kernels.manifest import Kernel
from leverbench.kernels.verify import MEANINGS, Case, Rejection, decide, verdict, verify

CONFIGS = [{"block": 1}, {"block": 2}]
SETTINGS = Engine("scripted", version=None, python=None, wrapper=(), args={}, env={})


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undoes what loading a kernel into this process changes."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    threads = torch.get_num_threads()
    yield
    sys.modules.pop("kernel", None)
    torch.set_num_threads(threads)


def observed(kernel: Kernel, seed: int = 1, device: str = "cpu") -> dict[str, Any]:
    """Returns the verdict on a kernel that is called in this process, without guard pages."""
    question = {
        "code": str(kernel.folder),
        "calls": [dict(call) for shape in kernel.shapes for call in kernel.calls(shape)],
        "configs": CONFIGS,
        "tolerance": asdict(kernel.tolerance),
        "device": device,
        "guard_pages": False,
        "seed": seed,
    }
    return verdict(verify_script.observe(question))


@pytest.mark.parametrize("name", REJECTED)
def test_a_wrong_kernel_is_rejected_with_its_reason(name, tmp_path):
    rejection, body = REJECTED[name]

    found = observed(write_kernel(tmp_path / "kernel", body))

    assert ("rejected", rejection) == (found["outcome"], found["rejection"]), found["detail"]
    assert found["detail"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("name", [*REJECTED, "honest"])
def test_a_gpu_tells_the_same(name, tmp_path):
    rejection, body = REJECTED.get(name, (None, HONEST))

    found = observed(write_kernel(tmp_path / "kernel", body), device="cuda")

    assert found["rejection"] == rejection, found["detail"]


@pytest.mark.parametrize("problem", WITHOUT_REFERENCE)
def test_a_mistake_of_the_author_is_told(problem, tmp_path):
    found = observed(write_kernel(tmp_path / "kernel", HONEST, WITHOUT_REFERENCE[problem]))

    assert found["rejection"] == Rejection.NO_REFERENCE
    assert problem in found["detail"]


@pytest.mark.parametrize("body", [HONEST, ROUNDED])
def test_an_honest_kernel_is_verified(body, tmp_path):
    found = observed(write_kernel(tmp_path / "kernel", body))

    assert (found["outcome"], found["rejection"], found["detail"]) == ("verified", None, None)
    # Two sizes and two odd shapes, five kinds of inputs.
    assert len(found["cases"]) == 4 * 5 * len(CONFIGS)
    assert {case["data"] for case in found["cases"]} == {*verify_script.DATA}
    dimensions = [tuple(case["dimensions"].values()) for case in found["cases"]]
    assert set(dimensions) == {(8, 4), (8, 6), (1, 1), (7, 3)}


def test_the_detail_leads_to_the_failure(tmp_path):
    found = observed(write_kernel(tmp_path / "kernel", "out.copy_(x); out[2:] = (2 * x + y)[2:]"))

    first = found["cases"][0]
    assert first["seed"] == 2
    assert found["detail"].startswith("out[0, 0] is ")
    assert "; so are 16 of 32 (columns=8, rows=4, block=1, data random, seed 2)" in found["detail"]


def test_the_largest_error_is_that_of_the_result(tmp_path):
    found = observed(write_kernel(tmp_path / "kernel", "out.copy_(2 * x + y + 0.25)"))

    zeros = next(case for case in found["cases"] if case["data"] == "zeros")
    assert zeros["largest_error"] == 0.25


def test_the_same_seed_gives_the_same_inputs(tmp_path):
    kernel = write_kernel(tmp_path / "kernel", "out.copy_(x)")
    first = observed(kernel, seed=5)
    again, other = observed(kernel, seed=5), observed(kernel, seed=6)

    assert first == again
    assert first["detail"] != other["detail"]


def test_integers_must_be_equal(tmp_path):
    integers = (
        "def make_outputs(dimensions, device):\n"
        "    return {'out': torch.empty(dimensions['rows'], dtype=torch.int64)}\n"
        "def reference(inputs): return {'out': (inputs['x'] * 1000).sum(1).long()}\n"
    )
    loose = replace(TOLERANCE, absolute=10.0, relative=0.5)
    exact = write_kernel(
        tmp_path / "exact", "out.copy_((x.double() * 1000).sum(1).long())", integers
    )
    near = write_kernel(
        tmp_path / "near", "out.copy_((x.double() * 1000).sum(1).long() + 1)", integers
    )

    assert observed(replace(exact, tolerance=loose))["rejection"] is None
    sys.modules.pop("kernel")
    assert observed(replace(near, tolerance=loose))["rejection"] == Rejection.WRONG


def test_inputs_keep_their_strides_and_what_lies_between_is_not_theirs(tmp_path):
    columns = (
        "def make_inputs(dimensions, generator):\n"
        "    shape = dimensions['rows'], 2 * dimensions['columns']\n"
        "    return {name: torch.randn(shape, generator=generator)[:, ::2] for name in 'xy'}\n"
    )
    body = "assert x.stride(1) == 2; out.copy_(2 * x + y)"
    strided = write_kernel(tmp_path / "strided", body, columns)
    beside = write_kernel(tmp_path / "beside", f"{body}; elements(x, 1, 1).zero_()", columns)

    assert observed(strided)["rejection"] is None
    sys.modules.pop("kernel")
    assert observed(beside)["rejection"] == Rejection.WRITES_OUT_OF_BOUNDS


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """Kernels that need processes of their own, and an honest one."""
    folder = tmp_path_factory.mktemp("kernels")
    bodies = {**{name: body for name, (_, body) in DEADLY.items()}, "honest": HONEST}
    return {
        name: write_kernel(folder / str(number), body)
        for number, (name, body) in enumerate(bodies.items())
    }


@pytest.fixture(scope="module")
def verified(kernels: dict[str, Kernel]) -> dict[str, dict[str, Any]]:
    """What is recorded of them: made at once, to save time."""

    def record(name: str) -> dict[str, Any]:
        kernel = kernels[name]
        limit_s = 5.0 if DEADLY.get(name, ("", ""))[0] == Rejection.TIMED_OUT else 120.0
        return verify(kernel, kernel.folder, CONFIGS, SETTINGS, "cpu", call_limit_s=limit_s)

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(kernels, pool.map(record, kernels), strict=True))


@pytest.mark.server
@pytest.mark.parametrize("name", DEADLY)
def test_a_kernel_that_ends_its_process_is_rejected_with_its_reason(name, verified):
    assert DEADLY[name][0] == verified[name]["rejection"], verified[name]["detail"]


@pytest.mark.server
def test_the_record_of_an_honest_kernel(verified):
    record = verified["honest"]

    assert (record["kind"], record["outcome"]) == ("kernel-verification", "verified")
    assert record["detail"] is None
    # The default is tried, and each config once.
    assert record["configs"] == CONFIGS
    assert all(case["largest_error"] < 1e-5 for case in record["cases"])


@pytest.mark.server
def test_verification_leaves_nothing_in_the_folder(kernels, verified):
    assert verified["honest"]["outcome"] == "verified"

    assert [path.name for path in kernels["honest"].folder.iterdir()] == ["kernel.py"]


@pytest.mark.server
def test_each_verification_has_inputs_of_its_own(verified):
    seeds = [record["seed"] for record in verified.values()]

    assert len(set(seeds)) == len(seeds)


@pytest.mark.server
def test_a_death_is_told_with_its_place(verified):
    detail = verified["looks past the end of its input"]["detail"]

    assert detail.startswith("SIGSEGV in a call with nothing readable beyond the end of the inputs")
    assert "(columns=8, rows=4, block=1, data random, seed" in detail


def answered(tmp_path: Path, *commands: str, limit_s: float = 60.0) -> dict[str, Any]:
    """Returns the record where the interpreter is a shell script."""
    python = tmp_path / "python"
    python.write_text("\n".join(["#!/bin/sh", *commands]))
    python.chmod(0o755)
    kernel = write_kernel(tmp_path / "kernel", HONEST)
    settings = replace(SETTINGS, python=str(python))
    return verify(kernel, kernel.folder, [], settings, "cpu", call_limit_s=limit_s)


def test_a_wrapper_may_print_and_tells_signals_its_own_way(tmp_path):
    record = answered(
        tmp_path, "echo loading modules", """echo '{"phase": "load"}'""", "echo why >&2; exit 139"
    )

    assert record["rejection"] == Rejection.CRASHED
    assert record["detail"] == "SIGSEGV when it was loaded: why"


def test_an_end_without_a_signal_is_a_crash(tmp_path):
    record = answered(tmp_path, """echo '{"phase": "call"}'""", "exit 0")

    assert record["rejection"] == Rejection.CRASHED
    assert record["detail"] == "exit status 0 in a call"


def test_a_reference_that_hangs_is_no_fault_of_the_kernel(tmp_path):
    record = answered(tmp_path, """echo '{"phase": "reference"}'""", "exec sleep 3600", limit_s=0.2)

    assert record["rejection"] == Rejection.NO_REFERENCE
    assert record["detail"] == "no sign of life for 0.2 s in reference"


@pytest.mark.parametrize(
    "command",
    ["echo No module named torch >&2; exit 1", """echo '{"failed": "No module named torch"}'"""],
)
def test_an_interpreter_that_cannot_try_it_is_no_verdict(command, tmp_path):
    with pytest.raises(LeverbenchError, match="cannot try the kernel: No module named torch"):
        answered(tmp_path, command)


def test_a_process_that_others_end_is_no_verdict(tmp_path):
    with pytest.raises(LeverbenchError, match="it was ended by SIGKILL"):
        answered(tmp_path, """echo '{"phase": "call"}'""", "kill -KILL $$")


@pytest.mark.server
def test_an_interpreter_that_does_not_exist_is_told(tmp_path):
    kernel = write_kernel(tmp_path / "kernel", HONEST)

    with pytest.raises(LeverbenchError, match="No such file"):
        verify(kernel, kernel.folder, [], replace(SETTINGS, python="/nowhere"), "cpu")


@pytest.mark.server
def test_a_kernel_without_sizes_is_not_verified(tmp_path):
    kernel = replace(write_kernel(tmp_path / "kernel", HONEST), sizes=())

    with pytest.raises(LeverbenchError, match="no sizes to verify"):
        verify(kernel, kernel.folder, [], SETTINGS, "cpu")


def case(*faults: Rejection, rows: int = 4, data: str = "random") -> Case:
    return Case({"rows": rows}, {"block": 1}, data, 1, {str(fault): "" for fault in faults}, 0.0)


R = Rejection


@pytest.mark.parametrize(
    ("cases", "end", "expected"),
    [
        ([case(), case(rows=7)], None, []),
        ([case(R.WRONG)], None, [R.WRONG]),
        ([case(R.WRONG), case(rows=7)], None, [R.WRONG_SHAPE, R.WRONG]),
        ([case(R.WRONG), case(data="zeros")], None, [R.ZEROS_ONLY, R.WRONG]),
        ([case(R.WRONG), case(), case(data="zeros")], None, [R.WRONG]),
        ([case(R.WRONG), case(R.WRONG, R.STALE)], None, [R.STALE, R.WRONG]),
        ([case(R.WRITES_NOTHING), case(R.WRITES_PART)], None, [R.WRITES_PART, R.WRITES_NOTHING]),
        ([case(R.WRONG)], R.RAISED, [R.RAISED, R.WRONG]),
        ([case(R.NOT_A_NUMBER)], R.CRASHED, [R.CRASHED, R.NOT_A_NUMBER]),
        ([case()], R.READS_OUT_OF_BOUNDS, [R.READS_OUT_OF_BOUNDS]),
        ([], R.NO_REFERENCE, [R.NO_REFERENCE]),
    ],
)
def test_the_most_specific_reason_is_given(cases, end, expected):
    assert decide(cases, end) == expected


def test_each_rejection_has_a_meaning_and_a_kernel_that_shows_it():
    shown = {rejection for rejection, _ in (*REJECTED.values(), *DEADLY.values())}

    assert set(MEANINGS) == set(Rejection)
    assert shown | {Rejection.NO_REFERENCE} == set(Rejection)


def test_the_table_of_rejections_is_complete():
    page = Path(__file__).resolve().parents[3] / "docs/kernels-verification.md"
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page.read_text(), re.MULTILINE)

    assert rows == [(str(rejection), meaning) for rejection, meaning in MEANINGS.items()]


def test_each_phase_of_the_script_has_a_reading():
    assert verification._DEATHS.keys() == verification._PHASES.keys()
