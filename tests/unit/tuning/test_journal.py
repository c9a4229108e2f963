"""What is on disk is not measured again."""

import pytest

from leverbench.errors import LeverbenchError
from leverbench.tuning.invalid import Invalid, InvalidCandidate
from leverbench.tuning.journal import Journal, Step

STEP = Step({"batch": 1}, {"work": 2}, "rung-0")
HEADER = {"kernel": "twice", "machine": {"cores": "2"}}


def never():
    raise AssertionError("measured again")


def test_a_step_is_measured_once(tmp_path):
    path = tmp_path / "state/journal.jsonl"
    first = Journal(path, HEADER).do(STEP, lambda: {"samples_s": [0.5]})
    again = Journal(path, HEADER).do(STEP, never)

    assert again == first
    assert again["samples_s"] == [0.5]


@pytest.mark.parametrize(
    "other",
    [
        Step({"batch": 2}, {"work": 2}, "rung-0"),
        Step({"batch": 1}, {"work": 3}, "rung-0"),
        Step({"batch": 1}, {"work": 2}, "rung-1"),
    ],
)
def test_another_step_is_another_result(tmp_path, other):
    journal = Journal(tmp_path / "journal.jsonl", HEADER)
    journal.do(STEP, lambda: {"samples_s": [0.5]})

    assert journal.do(other, lambda: {"samples_s": [0.7]})["samples_s"] == [0.7]


def test_an_invalid_candidate_stays_invalid(tmp_path):
    path = tmp_path / "journal.jsonl"

    def crash():
        raise InvalidCandidate(Invalid.CRASHED, "SIGSEGV")

    for measure in (crash, never):
        with pytest.raises(InvalidCandidate) as caught:
            Journal(path, HEADER).do(STEP, measure)
        assert caught.value == InvalidCandidate(Invalid.CRASHED, "SIGSEGV")


def test_any_other_error_leaves_no_line(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", HEADER)

    def fail():
        raise LeverbenchError("no interpreter")

    with pytest.raises(LeverbenchError):
        journal.do(STEP, fail)

    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("torn", [b'{"call": {"ba', b'{"call": {}, "candidate": {}, "step": "a"}'])
def test_a_torn_line_is_cut_off(tmp_path, torn):
    path = tmp_path / "journal.jsonl"
    Journal(path, HEADER).do(STEP, lambda: {"samples_s": [0.5]})
    whole = path.read_bytes()
    path.write_bytes(whole + torn)

    Journal(path, HEADER).do(STEP, never)

    assert path.read_bytes() == whole


def test_a_foreign_journal_is_set_aside(tmp_path, capfd):
    path = tmp_path / "journal.jsonl"
    Journal(path, HEADER).do(STEP, lambda: {"samples_s": [0.5]})
    theirs = path.read_bytes()

    ours = Journal(path, {**HEADER, "machine": {"cores": "4"}})

    assert ours.do(STEP, lambda: {"samples_s": [0.7]})["samples_s"] == [0.7]
    (aside,) = set(tmp_path.iterdir()) - {path}
    assert aside.read_bytes() == theirs
    told = capfd.readouterr().err
    assert told.startswith(f"leverbench: {path} was measured otherwise (machine)")
    assert aside.name in told


@pytest.mark.parametrize(
    "damage", ["no json\n", '{"call": 1}\n', "3\n", '{"call": 1, "candidate": 1, "step": 1}\n']
)
@pytest.mark.parametrize("first", [True, False])
def test_a_damaged_journal_is_told(tmp_path, damage, first):
    path = tmp_path / "journal.jsonl"
    Journal(path, HEADER)
    path.write_text(damage + path.read_text() if first else path.read_text() + damage)

    with pytest.raises(LeverbenchError) as caught:
        Journal(path, HEADER)

    assert str(caught.value).startswith(f"{path}: the journal is damaged")
    assert "run again" in str(caught.value)
