"""Compiling ahead, with a compiler of a few lines: what it comes to, and what is not done twice."""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tuned_kernel import write_kernel

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import FUNCTIONS, Kernel, read_kernel
from leverbench.tuning import compile_ahead as module
from leverbench.tuning.compile_ahead import Compiled, compile_ahead
from leverbench.tuning.interpreter import CancelledError, Interpreter
from leverbench.tuning.invalid import InvalidCandidate
from leverbench.tuning.journal import Journal

pytestmark = pytest.mark.server

SETTINGS = EngineSettings("scripted", None, None, (), {}, {})
CALL = {"width": 64, "dtype": "float32", "batch": 2}
# Needs as many KiB as its work is; the log has a line a compile.
COMPILER = """
import os, time
from pathlib import Path

def compile(dimensions, config, capability):
    work, folder = config["work"], Path(__file__).parent
    with open(folder / "log", "a") as log:
        log.write(f"{os.getpid()} {work} {config['fault']} {capability} {dimensions['batch']}\\n")
    print("noise")
    if work == 1:
        raise SyntaxError("at line 3\\nand more")
    if work == 2:
        os.abort()
    if work == 3:
        time.sleep(1000)
    return {"shared_bytes": 1024 * work}
"""
# Of a block of sm_120, in KiB.
LIMIT = 99


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fails a test after which a process runs, or waits to be reaped, that did not before it."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A kernel whose ``fault`` makes no difference to a compiler."""
    written = write_kernel(tmp_path, [10])
    path = written.folder / "kernel.py"
    path.write_text(COMPILER + "".join(f"def {name}(): ...\n" for name in FUNCTIONS))
    return replace(read_kernel(written.folder), compile_shares=("fault",))


def ahead(
    kernel: Kernel, works: list[tuple[int, int]], journal: Path | None = None, **changes: Any
) -> list[Compiled | InvalidCandidate]:
    candidates = [{"work": work, "fault": fault} for work, fault in works]
    asked = {
        "dimensions": CALL,
        "candidates": candidates,
        "capability": 120,
        "workers": 2,
        "journal": Journal(journal or kernel.folder / "journal.jsonl", {}),
        "limit_s": 60,
    }
    return compile_ahead(kernel, kernel.folder, SETTINGS, **{**asked, **changes})


def log(kernel: Kernel) -> list[list[str]]:
    path = kernel.folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def outcomes(results: list[Compiled | InvalidCandidate]) -> list[int | str]:
    return [
        result.shared_bytes // 1024 if isinstance(result, Compiled) else str(result.reason)
        for result in results
    ]


def test_each_candidate_has_its_result_in_their_order(kernel):
    works = [(LIMIT, 0), (LIMIT + 1, 0), (1, 0), (20, 0), (2, 0), (30, 0)]
    results = ahead(kernel, works)

    expected = [LIMIT, "out-of-resources", "build-failed", 20, "crashed", 30]
    assert outcomes(results) == expected
    told = [result.detail for result in results if isinstance(result, InvalidCandidate)]
    assert told[0] == (
        "it needs 102400 bytes of shared memory, and a block of sm_120 has at most 101376"
    )
    assert told[1] == "SyntaxError: at line 3"
    assert told[2].startswith("SIGABRT")
    assert {(capability, batch) for _, _, _, capability, batch in log(kernel)} == {("120", "2")}


def test_one_that_does_not_end_is_ended_and_the_others_go_on(kernel):
    results = ahead(kernel, [(3, 0), *((work, 0) for work in range(10, 20))], limit_s=2)

    assert outcomes(results) == ["timed-out", *range(10, 20)]


def test_what_differs_in_what_is_shared_is_compiled_once(kernel):
    works = [(work, fault) for work in (10, LIMIT + 1) for fault in (0, 1, 2)]

    assert outcomes(ahead(kernel, works)) == [10] * 3 + ["out-of-resources"] * 3
    assert sorted(work for _, work, *_ in log(kernel)) == ["10", "100"]
    assert len(ahead(replace(kernel, compile_shares=()), works)) == 6
    assert len(log(kernel)) == 2 + 6


def test_there_are_no_more_processes_than_are_asked_for_nor_than_cores(kernel):
    cores = len(os.sched_getaffinity(0))
    works = [(work, 0) for work in range(10, 30)]

    ahead(kernel, works, workers=1)
    assert len({pid for pid, *_ in log(kernel)}) == 1
    ahead(kernel, works, kernel.folder / "other.jsonl", workers=100)
    assert len({pid for pid, *_ in log(kernel)}) <= 1 + cores


def test_what_was_compiled_is_not_compiled_again(kernel):
    works = [(10, 0), (LIMIT + 1, 0), (1, 0), (2, 0)]
    first = ahead(kernel, works)
    # Now the other of those that share is asked for.
    again = ahead(kernel, [(work, 1) for work, _ in works])

    assert again == first
    assert len(log(kernel)) == len(works)
    assert outcomes(ahead(kernel, [(10, 0)], capability=90)) == [10]
    assert outcomes(ahead(kernel, [(10, 0)], dimensions={**CALL, "batch": 3})) == [10]
    assert len(log(kernel)) == len(works) + 2


def test_a_killed_run_goes_on_where_it_was(kernel):
    """The journal is cut after each of its lines, and within each."""
    works = [(work, 0) for work in (10, 20, 30)]
    path = kernel.folder / "journal.jsonl"
    expected = outcomes(ahead(kernel, works, workers=1))
    lines = path.read_bytes().splitlines(keepends=True)

    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
        before = len(log(kernel))

        assert outcomes(ahead(kernel, works, workers=1)) == expected
        assert len(log(kernel)) - before == len(lines) - kept


def test_who_is_interrupted_leaves_no_verdict_on_what_was_under_way(kernel, monkeypatch):
    class Interrupting(Interpreter):
        def ask(self, request: Any) -> Any:
            if request["config"]["work"] == 20:
                while not log(kernel):  # until the other one is under way
                    time.sleep(0.01)
                raise KeyboardInterrupt
            return super().ask(request)

    monkeypatch.setattr(module, "Interpreter", Interrupting)

    with pytest.raises(KeyboardInterrupt):
        ahead(kernel, [(3, 0), (20, 0), (30, 0)])

    lines = (kernel.folder / "journal.jsonl").read_text()
    assert "invalid" not in lines
    assert '"work": 3}' not in lines


def test_a_cancelled_request_says_nothing_of_a_candidate(kernel):
    interpreter = Interpreter("compile_script.py", kernel.folder, {}, SETTINGS, limit_s=60)
    request = {"dimensions": CALL, "config": {"work": 3, "fault": 0}, "capability": 120}
    timer = threading.Timer(1, interpreter.cancel)
    timer.start()

    with pytest.raises(CancelledError):
        interpreter.ask(request)
    with pytest.raises(CancelledError):
        interpreter.ask(request)

    timer.join()
    interpreter.close()


def test_an_interpreter_that_cannot_load_the_kernel_is_told(kernel):
    (kernel.folder / "kernel.py").write_text("import no_such_module\n")

    with pytest.raises(LeverbenchError, match=r"cannot load the kernel: .*no_such_module"):
        ahead(kernel, [(10, 0), (20, 0), (30, 0)])


@pytest.mark.parametrize(
    ("changes", "capability", "message"),
    [
        ({"compiles_ahead": False}, 120, "kernel.py: it defines no function compile"),
        ({}, 7, "the shared memory of a block is not known of sm_7"),
    ],
)
def test_what_cannot_be_compiled_ahead_is_told(kernel, changes, capability, message):
    with pytest.raises(LeverbenchError, match=message):
        ahead(replace(kernel, **changes), [(10, 0)], capability=capability)


def test_a_line_of_the_journal_has_what_was_found(kernel):
    ahead(kernel, [(10, 4)])

    line = json.loads((kernel.folder / "journal.jsonl").read_text().splitlines()[1])
    assert (line["step"], line["call"], line["candidate"]) == (
        "compile-sm_120",
        CALL,
        {"work": 10},
    )
    assert line["compiled"]["shared_bytes"] == 10240
    assert 0 <= line["compiled"]["seconds"] < 10


@pytest.mark.parametrize(
    "returned", ["None", "{}", "{'shared_bytes': None}", "{'shared_bytes': 1, 'of': {1, 2}}"]
)
def test_a_compile_function_that_returns_something_else_makes_no_candidate(kernel, returned):
    path = kernel.folder / "kernel.py"
    path.write_text(path.read_text().replace('{"shared_bytes": 1024 * work}', returned))

    assert outcomes(ahead(kernel, [(10, 0), (20, 0)])) == ["build-failed"] * 2
