"""Whole campaigns through Snakemake, on the scripted server: what fails, recovers and goes on."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from embedded import events, left_behind, snapshot
from project_copy import ProjectCopy
from scripted_campaign import LIMITS, measurements, use_scripted_servers
from word_model import write_word_model

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


def test_a_variant_that_changes_answers_is_flagged(scripted):
    # Characters that a resource has to bring through several command lines.
    prompts = ['Say a {word}: it\'s "so", $HOME;\n100% naïve?', "Count."]
    answers = {prompts[0]: "a word", prompts[1]: "one two three four five six seven"}
    other = {**answers, prompts[1]: "one two <b>3</b> four five six seven"}
    scripted.change(
        agreement={"prompts": prompts, "max_tokens": 8},
        variants={
            "baseline": {"env": env(answers=answers)},
            "same": {"from": "baseline", "env": env(answers=answers, ttft_s=0.011)},
            "other": {"from": "baseline", "env": env(answers=other)},
        },
        profile={"concurrency": []},
    )

    said = scripted.snakemake()

    assert said.returncode == 0, said.stdout[-5000:]
    launch = record(scripted, "other/s1/server.json")["server_id"]
    evidence = record(scripted, f"launches/{launch}.json")["answers"]
    assert [(answer["prompt"], answer["text"]) for answer in evidence] == list(other.items())
    again = [record(scripted, f"other/s1/random/c{c}.json")["agreement"] for c in (1, 2)]
    # A session's points ask for different ones.
    assert {answer["prompt"] for answer in again} == set(prompts)
    assert [(answer["share"], answer["unit"]) for answer in again] == [(1.0, "token ids")] * 2
    findings = (scripted.path / "reports/small/findings.md").read_text()
    assert findings.count("- **answers changed**") == 1
    assert "other changes answers: 25% to 100% of an answer agree with baseline's" in findings
    assert "&lt;b&gt;3&lt;/b&gt;" in findings
    assert "the same for 2 token ids" in findings
    page = (scripted.path / "reports/small/index.html").read_text()
    assert page.count('class="tag">answers changed</span>') == 1
    assert "<b>3</b>" not in page


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


def test_text_of_a_file_and_prompts_that_share_prefixes(scripted):
    write_word_model(scripted.path / "models/m", vocab_size=1000)
    # The n-th line has n tokens more than the special one, so that its requests are told apart.
    lines = [{"prompt": " ".join(["Hello"] * n), "output_tokens": 3 + n % 5} for n in range(1, 31)]
    (scripted.path / "chat.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    lengths = {"input_tokens": [20, 40], "output_tokens": [3, 7]}
    prefix = {"tokens": 16, "groups": 2}
    scripted.change(
        variants={
            "baseline": {"env": env(cached_tokens=2)},
            "slow": {"from": "baseline", "env": env(cached_tokens=2, step_s=0.04)},
        },
        workloads={
            "chat": {"dataset": "file", "path": "chat.jsonl"},
            "shared": {"dataset": "random-ids", **lengths, "shared_prefix": prefix},
        },
    )

    said = scripted.snakemake()

    assert said.returncode == 0, said.stdout[-5000:]
    asked = {}
    for variant in ("baseline", "slow"):
        for workload in ("chat", "shared"):
            point = record(scripted, f"{variant}/s1/{workload}/c2.json")
            # What the server found in its cache was meant to be found there.
            assert point["valid"]
            assert point["cached_tokens"] == 2 * point["num_requests"]
            path = scripted.path / f"results/small/{variant}/s1/{workload}/c2.parquet"
            rows = pq.read_table(path).to_pylist()
            rows.sort(key=lambda row: row["request_index"])
            asked[variant, workload] = [(r["input_tokens"], r["output_tokens"]) for r in rows]
    chat = asked["baseline", "chat"]
    assert len(set(chat)) == len(chat) >= 8
    assert set(chat) <= {(n + 1, 3 + n % 5) for n in range(1, 31)}
    assert len(set(asked["baseline", "shared"])) > 4
    for workload in ("chat", "shared"):
        pairs = zip(asked["baseline", workload], asked["slow", workload], strict=False)
        assert all(one == other for one, other in pairs)
    plan = json.loads((scripted.path / "results/small/plan.json").read_text())
    assert plan["workloads"]["shared"]["shared_prefix"] == prefix
    assert record(scripted, "baseline/profile/chat/c2/summary.json")["outcome"] == "profiled"
    assert scripted.jobs() == {}


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


def test_a_campaign_runs_until_it_is_decided(scripted):
    scripted.change(
        variants={
            "baseline": {},
            "slower": {"from": "baseline", "lever": "slower", "env": env(step_s=0.06)},
            "same": {"from": "baseline", "lever": "same", "env": env(model="another name")},
        },
        ladder={2: 8},
        profile={"concurrency": []},
        until="decided",
        # A step of the script is as long as its timer says: nearer than this nobody can say.
        equal_within=0.2,
    )

    first = scripted.snakemake()
    second = scripted.snakemake()

    assert first.returncode == 0, first.stdout
    assert "not decided after session 1: session 2 is next" in first.stdout
    assert "Nothing to be done" in second.stdout
    plan = record(scripted, "plan.json")
    last = max(number for _, number in plan["order"])
    assert 2 <= last <= 10
    # Whole blocks, and nothing that a run of this many sessions would not have planned.
    assert sorted(plan["order"]) == sorted(
        [variant, number] for variant in plan["variants"] for number in range(1, last + 1)
    )
    assert plan["overrides"] == {}
    verdicts = json.loads((scripted.path / "results/small/analysis/verdicts.json").read_text())
    judged = {v["variant"]: v for v in verdicts if v["metric"] == "output_tok_per_s"}
    assert judged["slower"]["verdict"] == "slower"
    assert judged["same"]["verdict"] == "equal"
    assert judged["slower"]["sessions"] == last
    assert left_behind(scripted) == {}


@pytest.mark.long
def test_one_job_a_session_goes_on_until_it_is_decided_too(scripted):
    scripted.change(
        variants={
            "baseline": {},
            "broken": {"from": "baseline", "env": {"SCRIPT_END": "no such device"}},
            "slower": {"from": "baseline", "lever": "slower", "env": env(step_s=0.06)},
        },
        ladder={2: 8},
        profile={"concurrency": []},
        until="decided",
        equal_within=0.2,
        execution="session",
    )

    said = scripted.snakemake()

    # A variant that cannot be measured fails the campaign, and does not end it.
    assert said.returncode != 0
    assert "lasting failures stand" in said.stdout
    assert "session 2 is next" in said.stdout
    numbers = {number for _, number in record(scripted, "plan.json")["order"]}
    folders = {int(p.name[1:]) for p in (scripted.path / "results/small/slower").iterdir()}
    assert folders == numbers
    assert len(numbers) >= 2
    verdicts = json.loads((scripted.path / "results/small/analysis/verdicts.json").read_text())
    judged = {v["variant"]: v for v in verdicts if v["metric"] == "output_tok_per_s"}
    assert judged["slower"]["verdict"] == "slower"
    assert left_behind(scripted) == {}


def test_a_campaign_with_one_target_does_not_go_on(scripted):
    scripted.change(until="decided", ladder={2: 8}, profile={"concurrency": []})

    done = scripted.snakemake("results/small/baseline/s1/random/c2.json")

    assert done.returncode == 0, done.stdout
    assert "is next" not in done.stdout


@pytest.mark.long
def test_goodput_is_the_rate_of_requests_within_the_limits(scripted):
    scripted.change(ladder={2: 8}, profile={"concurrency": []}, goodput={"ttft_ms": 5})

    assert scripted.snakemake().returncode == 0
    strict = measurements(scripted)
    scripted.change(goodput={"ttft_ms": 60000, "tpot_ms": 60000, "e2e_ms": 60000})
    again = scripted.snakemake()

    assert "rule bench:" not in again.stdout
    (row,) = measurements(scripted)
    assert strict[0]["goodput_request_per_s"] == "0.0"
    assert row["goodput_request_per_s"] == row["request_per_s"]
