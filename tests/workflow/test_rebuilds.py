"""A changed input makes again what depends on it, and nothing else.

The campaign has 3 variants, 2 sessions and 2 concurrencies: 6 launches, 12 points and 3 profiles.
docs/rebuilds.md tells the same for people.
"""

import json
import shutil

import pytest
from project_copy import ROOT, ProjectCopy

from leverbench.campaign.model import Engine
from leverbench.engines.arguments import identify
from leverbench.serving.machine import machine_fingerprint

pytestmark = pytest.mark.plans

AFTER = {"analyse": 1, "report": 1, "gate": 1}
# The plan says what was changed.
PLANNED = {"plan": 1, **AFTER}


def test_a_new_campaign_is_everything(project):
    assert project.jobs() == {
        "plan": 1,
        "prepare_tiny_model": 1,
        "serve": 6,
        "bench": 12,
        "profile": 3,
        "analyse": 1,
        "report": 1,
        "gate": 1,
    }


def test_nothing_to_do_right_after(measured):
    assert measured.jobs() == {}


# --- variants


def test_an_argument_of_one_variant(measured):
    variants = measured.campaign()["variants"]
    variants["float32"]["args"]["dtype"] = "float16"
    measured.change(variants=variants)

    # Its 2 sessions with 2 points each, and its profile.
    assert measured.jobs() == {"serve": 2, "bench": 4, "profile": 1, **PLANNED}


def test_an_argument_that_others_inherit(measured):
    variants = measured.campaign()["variants"]
    variants["baseline"] = {"args": {"random-seed": 7}}
    measured.change(variants=variants)

    assert measured.jobs() == {"serve": 6, "bench": 12, "profile": 3, **PLANNED}


def test_the_engine_s_version(measured):
    measured.change(engine={**measured.campaign()["engine"], "version": "0.0.1"})

    assert measured.jobs() == {"serve": 6, "bench": 12, "profile": 3, **PLANNED}


def test_the_engine_s_version_of_one_variant(measured):
    variants = measured.campaign()["variants"]
    variants["newer"] = {"from": "baseline", "engine": {"version": "0.0.1"}}
    measured.change(variants={name: variants[name] for name in ("baseline", "newer")})

    # A late variant, beside its parent; those that are gone cost nothing.
    assert measured.jobs() == {"serve": 4, "bench": 8, "profile": 1, **PLANNED}


def test_a_variant_added_later(measured):
    variants = measured.campaign()["variants"]
    variants["steps"] = {"from": "baseline", "args": {"num-continuous-decode-steps": 4}}
    measured.change(variants=variants)

    said = measured.snakemake("--dry-run")
    # 2 sessions for it and 2 fresh ones of its parent, 2 points each, and its profile.
    assert measured.jobs() == {"serve": 4, "bench": 8, "profile": 1, **PLANNED}
    for variant in ("baseline", "steps"):
        for session in (3, 4):
            assert f"results/small/{variant}/s{session}/server.json" in said.stdout
    assert "results/small/steps/s1/" not in said.stdout


def test_a_swept_value_added(measured):
    variants = measured.campaign()["variants"]
    del variants["threads"]
    sweep = {"env.OMP_NUM_THREADS": [1, 2]}
    variants["omp"] = {"from": "baseline", "sweep": sweep}
    measured.change(variants=variants)

    # 1 is the baseline's own.
    assert measured.jobs() == {"serve": 4, "bench": 8, "profile": 1, **PLANNED}


def test_a_variant_removed(measured):
    variants = measured.campaign()["variants"]
    del variants["threads"]
    measured.change(variants=variants)

    assert measured.jobs() == PLANNED


def test_the_order_of_arguments_is_no_change(measured):
    engine = measured.campaign()["engine"]
    engine["args"] = {"random-seed": 1, **engine["args"]}
    measured.change(engine=engine)
    measured.snakemake("--touch", "--forceall")
    engine["args"] = dict(reversed(engine["args"].items()))
    measured.change(engine=engine)

    assert measured.jobs() == {}


# --- ladder, sessions, workloads, profiles


def test_a_concurrency_added(measured):
    measured.change(ladder={1: 4, 8: 16, 16: 32})

    # One new point in each of the 6 sessions; no launch is made again.
    assert measured.jobs() == {"bench": 6, **PLANNED}


def test_a_session_added(measured):
    measured.change(sessions=3)

    assert measured.jobs() == {"serve": 3, "bench": 6, **PLANNED}


def test_a_session_added_on_the_command_line(measured):
    jobs = measured.jobs("--config", "sessions=3")

    assert jobs == {"serve": 3, "bench": 6, **PLANNED}


def test_fewer_sessions_lose_nothing(measured):
    measured.change(sessions=1)
    (measured.path / "results/small/float32/s2/random/c8.json").unlink()

    # The second session was begun: it stays in the plan, and so does the point that it lacks.
    assert measured.jobs() == {"bench": 1, **PLANNED}


def test_a_workload_added(measured):
    workloads = measured.campaign()["workloads"]
    workloads["long"] = {"dataset": "random-ids", "input_tokens": 64, "output_tokens": 8}
    measured.change(workloads=workloads)

    # 2 new points in each of the 6 sessions, and a profile of each variant.
    assert measured.jobs() == {"bench": 12, "profile": 3, **PLANNED}


def test_the_length_of_a_workload(measured):
    workloads = measured.campaign()["workloads"]
    workloads["random"]["output_tokens"] = 16
    measured.change(workloads=workloads)

    assert measured.jobs() == {"bench": 12, "profile": 3, **PLANNED}


def test_an_edited_dataset_file(project, monkeypatch):
    path = project.path / "data/chat.jsonl"
    path.parent.mkdir()
    path.write_text('{"prompt": "Hello", "output_tokens": 8}\n' * 20)
    workloads = project.campaign()["workloads"]
    workloads["chat"] = {"dataset": "file", "path": "data/chat.jsonl"}
    project.change(workloads=workloads)
    monkeypatch.chdir(project.path)
    project.pretend()
    assert project.jobs() == {}
    path.touch()
    assert project.jobs() == {}
    path.write_text(path.read_text().replace("Hello", "Bye"))

    # Its points and profiles alone, on the launches that exist.
    assert project.jobs() == {"bench": 12, "profile": 3, **PLANNED}


def test_the_steps_of_a_profile(measured):
    measured.change(profile={"steps": 3})

    assert measured.jobs() == {"profile": 3, **PLANNED}


def test_a_concurrency_of_profiles_added(measured):
    measured.change(profile={"concurrency": [1, 16]})

    assert measured.jobs() == {"profile": 3, **PLANNED}


# --- what changes no figure


def test_the_target_changes_the_report_alone(measured):
    measured.change(target={"output_tok_per_s": 50})

    assert measured.jobs() == PLANNED


def test_more_patience_measures_nothing_again(measured):
    measured.change(limits={"start_timeout_s": 3600, "request_timeout_s": 60})

    assert measured.jobs() == PLANNED


def test_other_prompts_for_the_answers_measure_nothing_again(measured):
    measured.change(agreement={"prompts": ["Say something else."], "tolerance": 0.2})
    assert measured.jobs() == PLANNED

    measured.change(agreement=None)
    assert measured.jobs() == PLANNED


def test_a_touched_script_measures_nothing_again(measured):
    for script in (measured.path / "workflow/scripts").glob("*.py"):
        script.write_text(script.read_text() + "\n# A comment.\n")

    assert measured.jobs() == {}


RECOVERY = {"out-of-memory": [{"args": {"mem-fraction-static": 0.05}}]}


def test_other_recovery_steps_concern_sessions_that_needed_some(measured):
    measured.change(recovery=RECOVERY)
    assert measured.jobs() == PLANNED

    # One session did not start, one started with a step; both knew other steps.
    failed, recovered = "threads/s2", "float32/s1"
    measured.record(f"results/small/{failed}/server.json", outcome="out-of-memory")
    step = {"cause": "out-of-memory", "args": {}, "env": {"X": "1"}}
    measured.record(f"results/small/{recovered}/server.json", recovery=[step])
    said = measured.snakemake("--dry-run").stdout

    # Their points, and the profile, which float32 has from its first session.
    assert measured.jobs() == {"serve": 2, "bench": 4, "profile": 1, **PLANNED}
    assert f"results/small/{failed}/server.json" in said
    assert f"results/small/{recovered}/server.json" in said


def test_recovery_steps_that_are_what_they_were(measured):
    measured.record("results/small/threads/s2/server.json", outcome="out-of-memory")

    assert measured.jobs() == {}


# --- protocol and environment


def test_an_older_protocol_is_measured_again_when_asked(measured):
    older = "results/small/threads/s1/random/c8.json"
    measured.record(older, protocol=0)
    # All that was measured on a server that was proven under the older one.
    measured.record("results/small/float32/s1/server.json", protocol=0)
    assert measured.jobs() == {}

    expected = {"serve": 1, "bench": 3, "profile": 1, **AFTER}
    assert measured.jobs("--config", "remeasure=protocol") == expected
    assert measured.jobs("--config", "remeasure=protocol", "only=threads") == {"bench": 1}
    assert measured.jobs(older, "--config", "remeasure=protocol") == {"bench": 1}
    measured.change(remeasure="protocol")
    assert measured.jobs() == expected


def test_what_was_measured_again_is_not_outdated_any_more(measured):
    measured.change(remeasure="protocol")

    assert measured.jobs() == {}


ELSEWHERE = "results/small/threads/s2/random/c1.json"


@pytest.fixture
def moved(measured: ProjectCopy) -> ProjectCopy:
    """A project with a point of another machine, one of another engine, and one to measure."""
    here = {"machine": machine_fingerprint(("cpu",))}
    digest = identify(Engine("sglang", None, None, (), {}, {})).digest
    for point in (measured.path / "results/small").glob("*/s*/random/c*.json"):
        path = str(point.relative_to(measured.path))
        measured.record(path, **here, digests={"engine": digest})
    measured.record(ELSEWHERE, machine={**here["machine"], "cpu": "Another CPU"})
    measured.record("results/small/float32/s2/random/c8.json", digests={"engine": "0" * 64})
    (measured.path / "results/small/baseline/s1/random/c1.json").unlink()
    return measured


def test_another_environment_stops_a_run_before_it_starts(moved):
    said = moved.snakemake()

    assert said.returncode != 0
    assert not (moved.path / "results/small/baseline/s1/random/c1.json").exists()
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("leverbench: ")]
    assert "2 records were made under other conditions" in line
    assert "cpu Another CPU is now" in line
    assert "another engine" in line
    assert "on_environment_change=remeasure" in line
    # A run that measures nothing does not ask.
    assert moved.snakemake("results/small/plan.json").returncode == 0


def test_another_environment_is_measured_again_or_kept_apart_when_asked(moved):
    missing = {"bench": 1, **AFTER}
    assert moved.jobs() == missing
    assert moved.jobs("--config", "on_environment_change=separate") == missing
    # The sessions of the two points, whole.
    again = {"serve": 2, "bench": 5, **AFTER}
    assert moved.jobs("--config", "on_environment_change=remeasure") == again
    moved.change(on_environment_change="remeasure")
    assert moved.jobs() == again


def test_a_machine_without_the_campaign_s_gpus_has_nothing_to_compare(measured):
    measured.change(topology={"gpus": 1})

    # Another device: all is measured again, and nobody is asked what is here instead of it.
    jobs = measured.jobs("--config", "on_environment_change=remeasure")
    assert jobs == {"serve": 6, "bench": 12, "profile": 3, **PLANNED}


# --- the package


@pytest.fixture(scope="module")
def with_package(tmp_path_factory: pytest.TempPathFactory, measured_once: ProjectCopy):
    """A measured project that runs its own copy of the package."""
    copy = measured_once.copy(tmp_path_factory.mktemp("package"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", copy.path / "src", ignore=ignored)
    copy.env["PYTHONPATH"] = str(copy.path / "src")
    said = copy.snakemake("--touch", "--forceall")
    assert said.returncode == 0, said.stdout
    return copy


@pytest.mark.parametrize(
    ("source", "jobs"),
    [
        ("report/templates/index.html", {"report": 1, "gate": 1}),
        ("analysis/measurements.py", AFTER),
        ("load/client.py", {}),
    ],
)
def test_a_source_of_the_package(with_package, source, jobs):
    path = with_package.path / "src/leverbench" / source
    before = path.read_text()
    path.write_text(before + "\n")
    try:
        assert with_package.jobs() == jobs
    finally:
        path.write_text(before)


# --- targets


def test_one_deleted_point(measured):
    target = "results/small/float32/s2/random/c8.json"
    (measured.path / target).unlink()

    assert measured.jobs(target) == {"bench": 1}


def test_a_concurrency_outside_the_ladder(measured):
    assert measured.jobs("results/small/baseline/s1/random/c4.json") == {"bench": 1}


def test_a_measured_point_outside_the_ladder_is_analysed(measured):
    path = measured.path / "results/small/baseline/s1/random/c4.json"
    path.write_text(json.dumps({"schema_version": 1, "outcome": "measured"}))
    path.with_suffix(".parquet").touch()
    measured.snakemake("--touch", "--force", str(path.relative_to(measured.path)))

    assert measured.jobs() == AFTER


def test_only_narrows_the_targets(measured):
    for variant in ("threads", "float32"):
        for session in (1, 2):
            (measured.path / f"results/small/{variant}/s{session}/random/c1.json").unlink()
        shutil.rmtree(measured.path / f"results/small/{variant}/profile")

    assert measured.jobs("--config", "only=float32") == {"bench": 2, "profile": 1}


def test_a_lasting_failure_keeps_the_gate(measured):
    path = "results/small/threads/s1/random/c1.json"
    measured.record(path, outcome="probe-wrong", detail="Lyon")
    measured.snakemake("--touch", "--forceall")
    (measured.path / "state/gate/small").unlink()

    # Not only in the run that found it: in each one after.
    for _ in range(2):
        said = measured.snakemake("state/gate/small")
        assert said.returncode != 0
        assert "s1/random/c1.json: probe-wrong: Lyon" in said.stdout


def test_a_deleted_session_record_is_the_session(measured):
    (measured.path / "results/small/float32/s2/server.json").unlink()

    assert measured.jobs() == {"serve": 1, "bench": 2, **AFTER}


def test_another_file_of_the_same_name_is_refused_in_each_mode(measured):
    other = measured.path / "config/other.yaml"
    other.write_text((measured.path / "config/campaign.yaml").read_text() + "\nseed: 2\n")
    # The same file by its absolute name is no other file.
    own = measured.path / "config/campaign.yaml"
    assert measured.jobs("--config", f"campaign={own}") == {}

    for execution in ("jobs", "session"):
        said = measured.snakemake(
            "--config", "campaign=config/other.yaml", f"execution={execution}"
        ).stdout
        assert "was made by config/campaign.yaml, a campaign of the same name" in said
        assert "Traceback" not in said
