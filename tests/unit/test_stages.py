"""A job ends with one message where the user can do something, and with a traceback at a bug."""

import errno

import pytest
from unit.analysis.fake_campaign import write_campaign

from leverbench.errors import LeverbenchError
from leverbench.records import write_record
from leverbench.stages import _stage, analyse, gate, report


def ended(path) -> str:
    return path.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            LeverbenchError("it is wrong", where="f:1", cure="Mend it."),
            "f:1: it is wrong. Mend it.",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/disk/f"), "/disk/f: No space left"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_what_has_a_cure_is_one_message(tmp_path, error, message):
    with pytest.raises(SystemExit, match="leverbench: ") as caught, _stage(str(tmp_path / "log")):
        raise error
    assert message in str(caught.value)


def test_a_bug_keeps_its_traceback(tmp_path):
    with pytest.raises(PermissionError), _stage(str(tmp_path / "log")):
        raise PermissionError(errno.EACCES, "denied")


def test_the_log_tells_how_a_job_ended(tmp_path):
    with _stage(str(tmp_path / "a/log")):
        pass

    assert ended(tmp_path / "a/log") == "done"


def test_the_gate_passes_when_every_record_is_sound(tmp_path):
    write_record(tmp_path / "r.json", {"outcome": "measured", "detail": None})
    gate([str(tmp_path / "r.json")], str(tmp_path / "s/passed"), str(tmp_path / "log"))

    assert (tmp_path / "s/passed").exists()


def test_the_gate_names_each_lasting_failure(tmp_path):
    write_record(tmp_path / "r.json", {"outcome": "probe-wrong", "detail": "Lyon"})

    with pytest.raises(SystemExit, match=r"r\.json: probe-wrong: Lyon"):
        gate([str(tmp_path / "r.json")], str(tmp_path / "passed"), str(tmp_path / "log"))
    assert not (tmp_path / "passed").exists()


def test_analysis_and_report_take_what_their_rules_give_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = write_campaign(tmp_path)
    plan, parquet = str(campaign.plan), str(campaign.results / "analysis/measurements.parquet")
    verdicts = str(campaign.results / "analysis/verdicts.json")
    analyse(plan, [str(path) for path in campaign.points], verdicts, "analyse.log")
    profiles = [str(campaign.profile("float32"))]
    report(plan, parquet, profiles, "i.html", "f.md", "figures", "report.log")

    findings = (tmp_path / "f.md").read_text()
    assert "24 of 24 planned points measured" in findings
    assert findings.count("- **profile**: float32: under random at C=16") == 1
    assert findings.count("- **profile**") == 1
    assert (tmp_path / "figures/random-mean-tpot-ms.svg").exists()
