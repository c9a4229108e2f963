"""Passing failures are tried once more, by cause; lasting ones are results."""

import json

import pytest

from leverbench.errors import LeverbenchError
from leverbench.serving.failures import (
    LastingFailure,
    Outcome,
    PassingFailure,
    attempt_twice,
    require_started,
)


class Action:
    """Fails with each of the given failures in turn, then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def passing(cause: str = "server-died", **changes: object) -> PassingFailure:
    return PassingFailure(**{"cause": cause, "detail": "seen", "retry": True} | changes)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_success_leaves_no_account(tmp_path):
    assert attempt_twice(Action(), tmp_path / "a.jsonl", {}) == "done"
    assert lines(tmp_path / "a.jsonl") == []


def test_a_passing_failure_is_tried_once_more_and_kept(tmp_path):
    action = Action(passing(row={"tok": 1}))

    assert attempt_twice(action, tmp_path / "a.jsonl", {"variant": "v"}) == "done"
    (line,) = lines(tmp_path / "a.jsonl")
    assert line["variant"] == "v"
    assert line["cause"] == "server-died"
    assert line["row"] == {"tok": 1}


def test_twice_is_enough(tmp_path):
    action = Action(passing(), passing(), passing())

    with pytest.raises(LeverbenchError, match="Run again: only what is missing is measured"):
        attempt_twice(action, tmp_path / "a.jsonl", {})
    assert action.calls == 2
    assert len(lines(tmp_path / "a.jsonl")) == 2


def test_a_cause_that_depends_on_the_result_is_not_tried_again(tmp_path):
    action = Action(passing(retry=False))

    with pytest.raises(LeverbenchError):
        attempt_twice(action, tmp_path / "a.jsonl", {})
    assert action.calls == 1


def test_a_failed_start_is_lasting_when_it_came_twice(tmp_path):
    starts = [passing("start-failed", lasting=Outcome.START_FAILED) for _ in range(2)]
    action = Action(*starts)

    with pytest.raises(LastingFailure) as caught:
        attempt_twice(action, tmp_path / "a.jsonl", {})
    assert caught.value.outcome == "start-failed"
    assert action.calls == 2


def test_a_failed_start_after_another_failure_came_only_once(tmp_path):
    action = Action(passing(), passing("start-failed", lasting=Outcome.START_FAILED))

    with pytest.raises(LeverbenchError, match="start-failed: seen"):
        attempt_twice(action, tmp_path / "a.jsonl", {})
    assert action.calls == 2


def test_a_lasting_failure_is_not_tried_again(tmp_path):
    action = Action(LastingFailure(Outcome.PROBE_WRONG, "Lyon"))

    with pytest.raises(LastingFailure):
        attempt_twice(action, tmp_path / "a.jsonl", {})
    assert action.calls == 1


@pytest.mark.parametrize(
    ("session", "point"), [("probe-wrong", "no-server"), ("not-applied", "not-applied")]
)
def test_a_session_that_failed_tells_its_points(session, point):
    with pytest.raises(LastingFailure) as caught:
        require_started({"outcome": session, "detail": "seen"})

    assert (caught.value.outcome, caught.value.detail) == (point, "seen")


def test_a_session_that_started_has_its_points_measured():
    require_started({"outcome": "ok", "detail": None})
