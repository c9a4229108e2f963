"""A changed input makes again what depends on it, and nothing else.

The campaign has 3 variants, 2 sessions and 2 concurrencies: 6 launches and 12 points.
"""

import json

import pytest

AFTER = {"analyse": 1, "report": 1, "gate": 1}


def test_a_new_campaign_is_everything(project):
    assert project.jobs() == {
        "plan": 1,
        "prepare_tiny_model": 1,
        "serve": 6,
        "bench": 12,
        "analyse": 1,
        "report": 1,
        "gate": 1,
    }


@pytest.fixture
def measured(project):
    """A project in which everything has been measured."""
    project.pretend()
    return project


def test_nothing_to_do_right_after(measured):
    assert measured.jobs() == {}


def test_an_argument_of_one_variant(measured):
    variants = measured.campaign()["variants"]
    variants["float32"]["args"]["dtype"] = "float16"
    measured.change(variants=variants)

    # 2 sessions of the variant with 2 points each; the plan says what was changed.
    assert measured.jobs() == {"plan": 1, "serve": 2, "bench": 4, **AFTER}


def test_an_argument_that_others_inherit(measured):
    variants = measured.campaign()["variants"]
    variants["baseline"] = {"args": {"random-seed": 7}}
    measured.change(variants=variants)

    assert measured.jobs() == {"plan": 1, "serve": 6, "bench": 12, **AFTER}


def test_a_concurrency_added(measured):
    measured.change(ladder={1: 4, 8: 16, 16: 32})

    # One new point in each of the 6 sessions; no launch is made again.
    assert measured.jobs() == {"plan": 1, "bench": 6, **AFTER}


def test_a_session_added(measured):
    measured.change(sessions=3)

    assert measured.jobs() == {"plan": 1, "serve": 3, "bench": 6, **AFTER}


def test_a_session_added_on_the_command_line(measured):
    jobs = measured.jobs("--config", "sessions=3")

    assert jobs == {"plan": 1, "serve": 3, "bench": 6, **AFTER}


def test_a_workload_added(measured):
    workloads = measured.campaign()["workloads"]
    workloads["long"] = {"dataset": "random-ids", "input_tokens": 64, "output_tokens": 8}
    measured.change(workloads=workloads)

    # 2 new points in each of the 6 sessions.
    assert measured.jobs() == {"plan": 1, "bench": 12, **AFTER}


def test_the_length_of_a_workload(measured):
    workloads = measured.campaign()["workloads"]
    workloads["random"]["output_tokens"] = 16
    measured.change(workloads=workloads)

    assert measured.jobs() == {"plan": 1, "bench": 12, **AFTER}


def test_a_variant_added(measured):
    variants = measured.campaign()["variants"]
    variants["steps"] = {"from": "baseline", "args": {"num-continuous-decode-steps": 4}}
    measured.change(variants=variants)

    assert measured.jobs() == {"plan": 1, "serve": 2, "bench": 4, **AFTER}


def test_the_target_changes_the_report_alone(measured):
    measured.change(target={"output_tok_per_s": 50})

    assert measured.jobs() == {"plan": 1, **AFTER}


def test_more_patience_measures_nothing_again(measured):
    measured.change(limits={"start_timeout_s": 3600, "request_timeout_s": 60})

    assert measured.jobs() == {"plan": 1, **AFTER}


def test_one_deleted_point(measured):
    target = "results/small/float32/s2/random/c8.json"
    (measured.path / target).unlink()

    assert measured.jobs(target) == {"bench": 1}


def test_a_concurrency_outside_the_ladder(measured):
    assert measured.jobs("results/small/baseline/s1/random/c4.json") == {"bench": 1}


def test_only_narrows_the_targets(measured):
    for session in (1, 2):
        for variant in ("threads", "float32"):
            (measured.path / f"results/small/{variant}/s{session}/random/c1.json").unlink()

    assert measured.jobs("--config", "only=float32") == {"bench": 2}


def test_a_lasting_failure_keeps_the_gate(measured):
    path = measured.path / "results/small/threads/s1/random/c1.json"
    record = {"schema_version": 1, "outcome": "probe-wrong", "detail": "Lyon"}
    path.write_text(json.dumps(record))
    measured.snakemake("--touch", "--forceall")
    (measured.path / "state/gate/small").unlink()

    # Not only in the run that found it: in each one after.
    for _ in range(2):
        said = measured.snakemake("state/gate/small")
        assert said.returncode != 0
        assert "s1/random/c1.json: probe-wrong: Lyon" in said.stdout


def test_a_touched_script_measures_nothing_again(measured):
    for script in (measured.path / "workflow/scripts").glob("*.py"):
        script.write_text(script.read_text() + "\n# A comment.\n")

    assert measured.jobs() == {}


def test_the_order_of_arguments_is_no_change(measured):
    engine = measured.campaign()["engine"]
    engine["args"] = {"random-seed": 1, **engine["args"]}
    measured.change(engine=engine)
    measured.snakemake("--touch", "--forceall")
    engine["args"] = dict(reversed(engine["args"].items()))
    measured.change(engine=engine)

    assert measured.jobs() == {}


def test_a_measured_point_outside_the_ladder_is_analysed(measured):
    path = measured.path / "results/small/baseline/s1/random/c4.json"
    path.write_text(json.dumps({"schema_version": 1, "outcome": "measured"}))
    path.with_suffix(".parquet").touch()
    measured.snakemake("--touch", "--force", str(path.relative_to(measured.path)))

    assert measured.jobs() == AFTER
