"""A user's mistake is one message, before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.plans

ROOT = Path(__file__).resolve().parents[2]


def message(said: subprocess.CompletedProcess[str]) -> str:
    """Returns the line in which leverbench speaks; there must be no traceback."""
    assert said.returncode != 0
    assert "Traceback" not in said.stdout, said.stdout
    assert "rule serve:" not in said.stdout
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("leverbench: ")]
    return line


def test_an_unknown_key(project):
    project.change(sesions=3)

    assert "unknown key 'sesions'" in message(project.snakemake())


def test_a_cycle(project):
    project.change(variants={"a": {"from": "b"}, "b": {"from": "a"}})

    assert "a cycle in from: a -> b -> a" in message(project.snakemake())


def test_two_levers(project):
    variants = project.campaign()["variants"]
    variants["float32"]["env"] = {"OMP_NUM_THREADS": 2}
    project.change(variants=variants)

    assert "2 levers in one delta: dtype, openmp" in message(project.snakemake())


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        (
            {"baseline": {}, "s": {"from": "baseline", "sweep": {"dtype": ["a"]}, "env": {"X": 1}}},
            "2 levers in one delta: dtype, X",
        ),
        (
            {"a": {}, "b": {"from": "a", "control": "a-a"}, "x": {"cross": ["a", "b"]}},
            "cross: b changes nothing",
        ),
    ],
)
def test_a_sweep_or_a_cross_that_is_none(project, variants, said):
    project.change(variants=variants)

    assert said in message(project.snakemake())


def test_a_missing_campaign_file(project):
    said = project.snakemake("--config", "campaign=config/none.yaml")

    assert "config/none.yaml: there is no such campaign file" in message(said)


def test_an_unknown_override(project):
    assert "--config sesions=... is unknown" in message(project.snakemake("--config", "sesions=3"))


def test_an_override_that_is_no_number(project):
    assert "sessions=many" in message(project.snakemake("--config", "sessions=many"))


def test_an_unknown_way_to_run(project):
    said = message(project.snakemake("--config", "execution=cloud"))

    assert "--config execution=cloud is unknown. It is one of jobs, session." in said


def test_an_unknown_variant_in_only(project):
    assert "only=none: no such variant" in message(project.snakemake("--config", "only=none"))


def test_a_missing_model(project):
    project.change(model={"path": "models/absent"})

    assert "models/absent: there is no model here" in message(project.snakemake())


def test_too_few_gpus(project):
    project.change(topology={"gpus": 64})

    assert "needs 64 GPUs" in message(project.snakemake())


def test_a_line_of_a_dataset_that_is_no_request(project):
    (project.path / "chat.jsonl").write_text('{"prompt": "Hello", "output_tokens": 8}\n{}\n')
    project.change(workloads={"chat": {"dataset": "file", "path": "chat.jsonl"}})

    lacking = "chat.jsonl:2: nothing says what the prompt is"
    assert lacking in message(project.snakemake())
    dry = project.snakemake("--dry-run")
    assert dry.returncode == 0
    assert f"a run would stop: {lacking}" in dry.stdout


def test_a_workload_that_is_longer_than_the_context(project):
    engine = project.campaign()["engine"]
    engine["args"]["context-length"] = 64
    project.change(
        engine=engine,
        workloads={"long": {"dataset": "random-ids", "input_tokens": 60, "output_tokens": 8}},
    )

    said = message(project.snakemake())
    assert "workloads.long: a request of 68 tokens, prompt and answer, is longer than" in said


NVIDIA_SMI = """#!/bin/sh
case "$1" in
  --query-gpu=name,driver_version) echo "Other GPU, 1.0"; echo "Some GPU, 1.0" ;;
esac
"""


def test_gpus_of_another_kind(project):
    script = project.path / "bin/nvidia-smi"
    script.parent.mkdir()
    script.write_text(NVIDIA_SMI)
    script.chmod(0o755)
    project.env["PATH"] = f"{script.parent}:{project.env['PATH']}"
    project.change(topology={"gpus": 1, "device": "Some GPU"})

    assert "the campaign is for Some GPU, and nvidia-smi shows Other GPU" in message(
        project.snakemake()
    )


def test_another_version_of_the_engine(project):
    project.change(engine={**project.campaign()["engine"], "version": "0.0.1"})

    lacking = "the campaign is for sglang 0.0.1, and 0."
    assert lacking in message(project.snakemake())
    # A dry run only says so.
    said = project.snakemake("--dry-run", "--quiet")
    assert said.returncode == 0, said.stdout
    assert f"leverbench: a run would stop: config/campaign.yaml: {lacking}" in said.stdout


def test_a_kernel_that_is_not_there(project):
    variants = project.campaign()["variants"]
    variants["tuned"] = {"from": "baseline", "lever": "gemm", "tuned": ["w8a8-block-int8"]}
    project.change(variants=variants)

    assert "there is no kernel w8a8-block-int8" in message(project.snakemake())


@pytest.mark.parametrize("path", ["plan.json", "threads/s1/server.json"])
def test_a_truncated_record_that_planning_reads(measured, path):
    record = measured.path / "results/small" / path
    record.write_text(record.read_text()[:40])

    said = message(measured.snakemake("--dry-run"))
    assert f"results/small/{path}: unreadable record" in said
    assert "Delete the file and run again" in said


def test_a_ladder_of_few_requests_is_told_and_not_refused(project):
    project.change(ladder={1: 4, 8: 15})

    said = project.leverbench("plan")
    assert said.returncode == 0, said.stdout
    assert "C=8: fewer requests than 2C" in said.stdout
    assert "C=1: fewer" not in said.stdout


def test_an_interpreter_that_is_not_there(project):
    engine = {**project.campaign()["engine"], "python": "/nowhere/python"}
    project.change(engine=engine)

    assert "interpreter does not run" in message(project.snakemake())


def test_a_session_that_is_not_planned(project):
    said = project.snakemake("results/small/baseline/s9/random/c1.json")

    assert "session 9 of baseline is not planned (it has 1, 2)" in message(said)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"no-such-flag": 1}, "unrecognized arguments: --no-such-flag"),
        ({"cuda-graph-max-bs": 4}, "perhaps --cuda-graph-max-bs-decode"),
        ({"dtype": "float33"}, "invalid choice: 'float33'"),
        ({"port": 1}, "args.port is set by leverbench itself"),
    ],
)
def test_an_argument_that_the_engine_refuses(project, args, said):
    project.change(variants={"baseline": {"args": args}})

    assert said in message(project.snakemake())


def test_a_python_without_the_package(project):
    # A Snakemake whose Python cannot import leverbench: the site hook is switched off.
    blocked = "import sys; sys.modules['leverbench'] = None; from snakemake.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", blocked, "--cores", "1", "--dry-run"],
        cwd=project.path,
        capture_output=True,
        text=True,
    )

    assert said.returncode != 0
    assert "leverbench is not installed in this Python. Run `make setup`" in said.stderr
    assert "Traceback" not in said.stderr
