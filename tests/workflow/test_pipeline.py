"""Whole campaigns through Snakemake, on the scripted server: what fails, recovers and goes on."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from embedded import events, left_behind, snapshot
from project_copy import ProjectCopy
from scripted_campaign import LIMITS, measurements, use_scripted_servers

# Slow enough that a busy machine's late timers do not void a window.
SCRIPT = {"ttft_s": 0.01, "step_s": 0.03, "metrics_prefix": "sglang"}
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB"
SECRET = "planted-0123456789-secret"


@pytest.fixture
def scripted(project: ProjectCopy) -> ProjectCopy:
    """A project whose server is the scripted one, with a campaign of one variant."""
    use_scripted_servers(project, SCRIPT, profile={"concurrency": [2], "steps": 2})
    return project


def env(**settings: object) -> dict[str, Any]:
    return {"SCRIPT": json.dumps({**SCRIPT, **settings})}


def record(project: ProjectCopy, path: str) -> dict[str, Any]:
    return json.loads((project.path / "results/small" / path).read_text())


def test_failures_of_the_lasting_kind_leave_the_others_alone(scripted):
    scripted.change(
        variants={
            "baseline": {},
            "broken": {"from": "baseline", "env": {"SCRIPT_END": "no such device"}},
            "lyon": {"from": "baseline", "lever": "answer", "env": env(answer="Lyon")},
        }
    )

    first = scripted.snakemake()
    second = scripted.snakemake()

    for said in (first, second):
        assert said.returncode != 0
        assert "lasting failures stand" in said.stdout
    assert "rule bench:" not in second.stdout
    assert record(scripted, "baseline/s1/random/c2.json")["valid"]
    assert record(scripted, "broken/s1/server.json")["outcome"] == "start-failed"
    assert record(scripted, "broken/s1/random/c1.json")["outcome"] == "no-server"
    assert record(scripted, "broken/profile/random/c2/summary.json")["outcome"] == "no-server"
    assert record(scripted, "lyon/s1/server.json")["outcome"] == "probe-wrong"
    page = (scripted.path / "reports/small/index.html").read_text()
    assert "no such device" in page
    assert "Lyon" in page
    assert left_behind(scripted) == {}


def test_recovery_from_too_little_memory(scripted):
    engine = scripted.campaign()["engine"]
    engine["env"] |= {"SCRIPT_END": OUT_OF_MEMORY, "SCRIPT_MEMORY": "0.5"}
    scripted.change(
        engine=engine,
        variants={
            "baseline": {},
            "greedy": {"from": "baseline", "env": {"SCRIPT_MEMORY": "0.3"}},
            "greedier": {"from": "greedy", "env": {"SCRIPT_MEMORY": "0.05"}},
        },
        recovery={
            "out-of-memory": [
                {"args": {"mem-fraction-static": 0.35}},
                {"args": {"mem-fraction-static": 0.2}},
            ]
        },
        profile={"concurrency": []},
        sessions=2,
    )

    said = scripted.snakemake()

    assert said.returncode != 0
    for session in (1, 2):
        taken = record(scripted, f"greedy/s{session}/server.json")["recovery"]
        assert [step["args"] for step in taken] == [
            {"mem-fraction-static": 0.35},
            {"mem-fraction-static": 0.2},
        ]
        assert record(scripted, f"greedy/s{session}/random/c2.json")["recovery"] == taken
        assert record(scripted, f"baseline/s{session}/server.json")["recovery"] == []
        assert record(scripted, f"greedier/s{session}/server.json")["outcome"] == "out-of-memory"
    # The second session starts where the first one ended.
    attempts = (scripted.path / "state/attempts/small/greedy").glob("s*/serve.jsonl")
    lines = [json.loads(line) for path in attempts for line in path.read_text().splitlines()]
    assert [(line["session"], line["cause"]) for line in lines] == [(1, "out-of-memory")] * 2
    rows = {(row["variant"], row["session"]): row for row in measurements(scripted)}
    assert "mem-fraction-static" in rows["greedy", "1"]["recovery"]
    findings = (scripted.path / "reports/small/findings.md").read_text()
    assert "baseline-as-greedy" in findings

    # A step more: only the sessions that needed one are launched again.
    recovery = scripted.campaign()["recovery"]
    recovery["out-of-memory"].append({"args": {"mem-fraction-static": 0.01}})
    scripted.change(recovery=recovery)
    assert scripted.jobs()["serve"] == 4


def test_a_point_again_takes_the_recovered_server(scripted):
    scripted.change(
        variants={
            "baseline": {"env": {"SCRIPT_MEMORY": "0.3", "SCRIPT_END": OUT_OF_MEMORY}},
        },
        recovery={"out-of-memory": [{"args": {"mem-fraction-static": 0.2}}]},
        profile={"concurrency": []},
    )
    assert scripted.snakemake().returncode == 0
    target = "results/small/baseline/s1/random/c1.json"
    (scripted.path / target).unlink()

    assert scripted.snakemake(target).returncode == 0

    point = record(scripted, "baseline/s1/random/c1.json")
    assert point["launch_index"] == 2
    assert point["recovery"][0]["args"] == {"mem-fraction-static": 0.2}

    # A record that was cut off stops what is made of it, with one message that names it.
    path = scripted.path / target
    path.write_bytes(path.read_bytes()[:100])
    said = scripted.snakemake()
    assert said.returncode != 0
    assert "Traceback" not in said.stdout
    assert f"{target}: unreadable record" in said.stdout


def test_one_job_a_session_makes_the_usual_files(scripted):
    scripted.change(
        variants={"baseline": {}, "slow": {"from": "baseline", "env": env(step_s=0.04)}}
    )
    session = ("--config", "execution=session")

    said = scripted.snakemake(*session)

    assert said.returncode == 0, said.stdout[-5000:]
    assert [e["what"] for e in events(scripted)].count("launch") == 2
    before = snapshot(scripted)
    assert scripted.jobs() == {}
    assert scripted.jobs(*session) == {}
    (scripted.path / "results/small/slow/s1/random/c2.json").unlink()
    # The report is made again with it.
    assert scripted.jobs(*session) == {"session": 1, "finish": 1}
    assert scripted.snakemake(*session).returncode == 0
    unchanged = {
        path: content
        for path, content in snapshot(scripted).items()
        if path in before and "slow/s1/random/c2" not in path and "analysis" not in path
    }
    assert unchanged.items() <= before.items()
    assert left_behind(scripted) == {}


def test_two_sessions_at_once_on_one_folder(scripted):
    scripted.change(
        variants={"baseline": {}, "slow": {"from": "baseline", "env": env(step_s=0.04)}},
        sessions=2,
    )

    said = scripted.snakemake("--set-threads", "session=1", "--config", "execution=session")

    assert said.returncode == 0, said.stdout[-5000:]
    assert "waiting for the run in" in said.stdout
    for variant in ("baseline", "slow"):
        for number in (1, 2):
            assert record(scripted, f"{variant}/s{number}/random/c2.json")["valid"]
    measuring = [e["what"] for e in events(scripted) if e["what"].startswith("measure-")]
    assert measuring == ["measure-begin", "measure-end"] * (len(measuring) // 2)
    assert scripted.jobs() == {}
    assert left_behind(scripted) == {}


def test_a_session_s_job_ends_with_its_snakemake(scripted, tmp_path):
    scripted.change(ladder={1: 4, 2: 8}, limits={**LIMITS, "min_window_s": 20})
    run = scripted.start("--config", "execution=session", log=tmp_path / "log")
    end = time.monotonic() + 60
    while not any(e["what"] == "measure-begin" for e in events(scripted)):
        assert time.monotonic() < end
        assert run.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)

    os.kill(run.pid, signal.SIGKILL)
    run.wait()

    end = time.monotonic() + 30
    while left_behind(scripted):
        assert time.monotonic() < end, left_behind(scripted)
        time.sleep(0.2)


def test_a_planted_secret_is_written_nowhere(scripted):
    scripted.env["MY_API_KEY"] = SECRET
    scripted.change(
        variants={
            "baseline": {},
            # A server that ends, and tells in its last words what it was given.
            "broken": {"from": "baseline", "env": {"SCRIPT_END": f"refused key {SECRET}"}},
        },
        profile={"concurrency": []},
    )
    campaign = scripted.path / "config/campaign.yaml"
    campaign.write_text(campaign.read_text().replace(f"refused key {SECRET}", "$MY_API_KEY"))

    said = scripted.snakemake()

    assert record(scripted, "broken/s1/server.json")["outcome"] == "start-failed"
    assert SECRET not in said.stdout
    run_dir = Path(scripted.env["LEVERBENCH_RUN_DIR"])
    for root in (scripted.path, run_dir):
        for path in root.rglob("*"):
            if path.is_file():
                # The server's own output is its own.
                own = path.suffix == ".log" and path.parent.name == "s1"
                assert own or SECRET.encode() not in path.read_bytes(), path


def test_slurm_profile_submits_one_job_a_session(scripted):
    scripted.change(sessions=2)

    # A dry run knows no cluster: it needs the number of cores that a job there would have.
    said = scripted.snakemake("--cores", "16", "--profile", "profiles/slurm", "--dry-run")

    assert said.returncode == 0, said.stdout
    assert said.stdout.count("rule session:") == 2
    assert "rule bench:" not in said.stdout
    assert "threads: 16" in said.stdout
