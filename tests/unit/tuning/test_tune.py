"""Tuning with scripted times: what is chosen, what is recorded, and what a resumed run times."""

import json
from pathlib import Path

import pytest
from scripted_timer import ScriptedTimer
from tuned_kernel import write_kernel

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Kernel
from leverbench.records import read_record, write_record
from leverbench.tuning.compile_ahead import Compiled
from leverbench.tuning.invalid import MEANINGS, Invalid, InvalidCandidate
from leverbench.tuning.journal import Journal
from leverbench.tuning.race import BLOCK, ROUNDS
from leverbench.tuning.skip import Skip, skip_of
from leverbench.tuning.tune import Ahead, Tuned, tune, tune_calls

NOBODY = EngineSettings("scripted", None, "/no/such/python", (), {}, {})
SHAPE = {"width": 64, "dtype": "float32"}


def by_work(dimensions, candidate) -> float:
    return candidate["work"] / 1e6 * dimensions["batch"]


def tuned(kernel: Kernel, timer: ScriptedTimer, path: Path) -> Tuned:
    return tune_calls(kernel, SHAPE, timer, Journal(path, {"kernel": kernel.name}))


def race(batch: int, default: int, rival: int) -> list[tuple[int, int, int]]:
    return [(batch, work, BLOCK) for work in (default, rival, rival, default)] * ROUNDS


def test_the_fastest_is_raced_against_the_default_and_shipped(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30, 10, 20, 40])
    timer = ScriptedTimer(by_work)

    result = tuned(kernel, timer, tmp_path / "journal.jsonl")

    assert timer.asked == [
        *((1, work, 5) for work in (50, 30, 10, 20, 40)),
        *((1, work, 10) for work in (10, 20, 30)),
        *race(1, 50, 10),
    ]
    assert (result.candidates, result.timed, result.invalid) == (5, 5, {})
    assert result.chosen[0].as_record() == {
        "dimensions": {**SHAPE, "batch": 1},
        "config": {"work": 10, "fault": 0},
        "default": {"work": 50, "fault": 0},
        "raced": {"work": 10, "fault": 0},
        "tuned_s": 10e-6,
        "default_s": 50e-6,
        "raced_s": 10e-6,
        "speedup": pytest.approx(5),
        "low": pytest.approx(5),
        "high": pytest.approx(5),
        "published": True,
    }


def compiled_but(*too_large: int) -> Ahead:
    """Compiles all candidates ahead but those of some ``work``."""
    problem = InvalidCandidate(Invalid.OUT_OF_RESOURCES, "scripted")
    return lambda dimensions, candidates: [
        problem if candidate["work"] in too_large else Compiled(1024) for candidate in candidates
    ]


def test_what_does_not_compile_is_counted_and_never_timed(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30, 10])
    timer, journal = ScriptedTimer(by_work), Journal(tmp_path / "j.jsonl", {})

    result = tune_calls(kernel, SHAPE, timer, journal, ahead=compiled_but(10))

    assert 10 not in {work for _, work, _ in timer.asked}
    assert (result.candidates, result.timed, result.invalid) == (3, 2, {"out-of-resources": 1})
    assert result.chosen[0].config["work"] == 30


def test_a_default_whose_compiler_was_killed_is_called_all_the_same(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30])
    timer, journal = ScriptedTimer(by_work), Journal(tmp_path / "j.jsonl", {})

    result = tune_calls(kernel, SHAPE, timer, journal, ahead=compiled_but(50))

    assert (result.chosen[0].config["work"], result.timed, result.invalid) == (30, 2, {})


def test_what_a_call_has_without_tuning_is_the_incumbent(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30, 40])
    timer, journal = ScriptedTimer(by_work), Journal(tmp_path / "j.jsonl", {})
    shipped = {"work": 20, "fault": 0}

    result = tune_calls(kernel, SHAPE, timer, journal, incumbent=lambda dimensions: shipped)

    # It is none of those that are tried, and the fastest of them all.
    (chosen,) = result.chosen
    assert (chosen.default, chosen.config, chosen.published) == (shipped, shipped, False)
    assert (result.candidates, timer.asked[0]) == (4, (1, 20, 5))


def test_the_default_is_not_raced_against_itself(tmp_path):
    kernel = write_kernel(tmp_path, [10, 30])
    timer = ScriptedTimer(by_work)

    (chosen,) = tuned(kernel, timer, tmp_path / "journal.jsonl").chosen

    assert timer.asked == [(1, 10, 5), (1, 30, 5)]
    assert chosen.config == kernel.default
    assert (chosen.tuned_s, chosen.default_s, chosen.raced) == (10e-6, 10e-6, None)
    assert chosen.as_record()["speedup"] is None
    assert not chosen.published


def test_a_rival_that_loses_its_race_is_not_shipped(tmp_path):
    kernel = write_kernel(tmp_path, [20, 10])
    calls: list[int] = []

    def lucky(dimensions, candidate) -> float:
        """Returns a good time for the rival in the search, and the default's in the race."""
        calls.append(candidate["work"])
        return 10e-6 if calls.count(10) == 1 and candidate["work"] == 10 else 20e-6

    (chosen,) = tuned(kernel, ScriptedTimer(lucky), tmp_path / "journal.jsonl").chosen

    assert chosen.raced == {"work": 10, "fault": 0}
    assert chosen.config == kernel.default
    assert chosen.verdict is not None
    assert chosen.verdict.speedup == 1
    assert (chosen.tuned_s, chosen.default_s) == (20e-6, 20e-6)


def test_the_invalid_are_counted_by_reason(tmp_path):
    restrictions = ["work <= 50", "work > 0"]
    kernel = write_kernel(tmp_path, [50, 30, 10, 20, 60], restrictions=restrictions)
    timer = ScriptedTimer(by_work, {10: Invalid.WRONG_ANSWER, 30: Invalid.CRASHED})

    result = tuned(kernel, timer, tmp_path / "journal.jsonl")

    assert result.chosen[0].config == {"work": 20, "fault": 0}
    assert (result.candidates, result.timed) == (5, 2)
    assert result.invalid == {
        Invalid.RESTRICTED: 1,
        Invalid.WRONG_ANSWER: 1,
        Invalid.CRASHED: 1,
    }
    assert result.restricted == {"work <= 50": 1}


def test_the_restricted_are_counted_over_all_calls(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30, 10], sizes=[1, 2], restrictions=["work > 10 * batch"])

    result = tuned(kernel, ScriptedTimer(by_work), tmp_path / "journal.jsonl")

    assert result.candidates == 6
    assert result.restricted == {"work > 10 * batch": 2}
    assert result.invalid == {Invalid.RESTRICTED: 2}


def test_who_fails_in_the_race_leaves_it_to_the_next(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30, 10, 20])

    class Failing(ScriptedTimer):
        def time(self, dimensions, candidate, samples, *, check=False):
            if len(self.asked) == 5:
                self.invalid = {10: Invalid.TIMED_OUT}
            return super().time(dimensions, candidate, samples, check=check)

    timer = Failing(by_work)

    result = tuned(kernel, timer, tmp_path / "journal.jsonl")

    assert timer.asked[4:7] == [(1, 50, BLOCK), (1, 10, BLOCK), (1, 50, BLOCK)]
    assert result.chosen[0].raced == {"work": 20, "fault": 0}
    assert result.invalid == {Invalid.TIMED_OUT: 1}


def test_a_default_that_cannot_be_used_is_told_and_tried_again(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30])
    path = tmp_path / "journal.jsonl"

    with pytest.raises(LeverbenchError) as caught:
        tuned(kernel, ScriptedTimer(by_work, {50: Invalid.CRASHED}), path)

    assert str(caught.value).startswith(f"{kernel.folder}/kernel.yaml: the default cannot be used")
    assert "crashed, scripted" in str(caught.value)
    assert tuned(kernel, ScriptedTimer(by_work), path).chosen[0].published


def test_every_reason_has_a_meaning():
    assert set(MEANINGS) == set(Invalid)


def test_a_size_that_is_added_leaves_the_others_alone(tmp_path):
    path = tmp_path / "journal.jsonl"
    before = tuned(write_kernel(tmp_path, [50, 30], sizes=[2]), ScriptedTimer(by_work), path)
    timer = ScriptedTimer(by_work)

    after = tuned(write_kernel(tmp_path, [50, 30], sizes=[1, 2, 4]), timer, path)

    assert {batch for batch, _, _ in timer.asked} == {1, 4}
    assert after.chosen[1] == before.chosen[0]


def test_a_killed_run_is_resumed_wherever_it_was_killed(tmp_path):
    """The journal is cut at the end of each line, and within each: only the rest is timed."""
    kernel = write_kernel(tmp_path, [50, 30, 10, 20, 40, 60, 70], sizes=[1, 2])
    invalid = {40: Invalid.RAISED}
    path = tmp_path / "journal.jsonl"
    whole = ScriptedTimer(by_work, invalid)
    expected = tuned(kernel, whole, path)
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [json.loads(line) for line in lines[1:]]
    # A race is 4 requests a round, anything else is one.
    requests = [4 * ROUNDS if step["step"] == "race" else 1 for step in steps]
    assert sum(requests) == len(whole.asked)

    for kept in range(len(lines) + 1):
        for torn in (b"", lines[kept][: len(lines[kept]) // 2] if kept < len(lines) else b"{"):
            path.write_bytes(b"".join(lines[:kept]) + torn)
            timer = ScriptedTimer(by_work, invalid)

            assert tuned(kernel, timer, path) == expected

            assert timer.asked == whole.asked[sum(requests[: max(0, kept - 1)]) :]
            again = [json.loads(line) for line in path.read_bytes().splitlines()[1:]]
            assert [{**step, "at": None} for step in again] == [
                {**step, "at": None} for step in steps
            ]


@pytest.mark.parametrize(("share", "floor", "skipped"), [(0.01, 0.03, True), (0.05, 0.03, False)])
def test_what_can_gain_less_than_the_noise_is_skipped(share, floor, skipped):
    assert (Skip(share, floor, "a profile").reason is not None) == skipped


def test_all_of_the_time_can_gain_anything():
    assert Skip(1.0, 0.03, "a profile").reason is None


def test_a_skipped_shape_is_recorded_and_nothing_is_started(tmp_path):
    kernel = write_kernel(tmp_path, [50, 30], sizes=[1, 2])
    record, journal = tmp_path / "record.json", tmp_path / "journal.jsonl"

    tune(
        *(kernel, SHAPE, tmp_path / "build/code", NOBODY, "cpu", journal, record),
        skip=Skip(0.01, 0.03, "results/c/v/profile/w/c16/summary.json"),
    )

    told = read_record(record)
    assert (told["kind"], told["outcome"]) == ("tuning", "skipped")
    assert told["detail"] == (
        "it replaces 1.00% of the time in results/c/v/profile/w/c16/summary.json: were that gone,"
        " the rest would be 1.01% faster, which is below the noise floor of 3.00%"
    )
    assert [each["dimensions"]["batch"] for each in told["chosen"]] == [1, 2]
    assert all(each["config"] == kernel.default for each in told["chosen"])
    assert not any(each["published"] for each in told["chosen"])
    assert (told["timed"], told["invalid"]) == (0, {})
    assert not journal.exists()


def profile(path: Path, outcome: str, **shares: float) -> Path:
    categories = [{"category": name, "share": share} for name, share in shares.items()]
    write_record(path, {"kind": "profile", "outcome": outcome, "categories": categories})
    return path


def test_a_profile_tells_the_share_of_what_the_kernel_replaces(tmp_path):
    kernel = write_kernel(tmp_path, [50])
    summary = profile(tmp_path / "summary.json", "profiled", attention=0.25, gemm=0.75)

    assert skip_of(kernel, summary, 0.03) == Skip(0.25, 0.03, str(summary))


def test_a_profile_that_failed_tells_nothing(tmp_path):
    kernel = write_kernel(tmp_path, [50])

    assert skip_of(kernel, profile(tmp_path / "summary.json", "no-server"), 0.03) is None


def test_an_interpreter_that_is_not_there_is_told(tmp_path):
    kernel = write_kernel(tmp_path, [50])
    paths = tmp_path / "journal.jsonl", tmp_path / "record.json"

    with pytest.raises(LeverbenchError) as caught:
        tune(kernel, SHAPE, tmp_path / "build/code", NOBODY, "cpu", *paths)

    assert "/no/such/python cannot load the kernel: [Errno 2]" in str(caught.value)
    assert not paths[1].exists()


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"outcome": "profiled"},
        {"outcome": "profiled", "categories": [{"category": "attention", "share": "x"}]},
        {"outcome": "profiled", "categories": [{"category": "attention", "share": -3}]},
        {"outcome": "profiled", "categories": [{"category": "attention", "share": 7}]},
    ],
)
def test_what_is_no_profile_is_told(tmp_path, content):
    write_record(tmp_path / "summary.json", content)

    with pytest.raises(LeverbenchError, match="no record of a profile"):
        skip_of(write_kernel(tmp_path, [20]), tmp_path / "summary.json", 0.03)
