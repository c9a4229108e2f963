"""Servers that others started: measured through the stages, and left as they were."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from scripted_server import Script, ScriptedServer, serving

from leverbench import stages
from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.slices import launch_slice, patience, point_slice, profile_slice
from leverbench.engines import get_engine
from leverbench.errors import LeverbenchError
from leverbench.project import preflight
from leverbench.records import read_record
from leverbench.serving import locks
from leverbench.serving.failures import PassingFailure
from leverbench.serving.owner import hold_owner
from leverbench.serving.session import open_session

pytestmark = pytest.mark.server

KEY = "key-4711-of-the-test"
# Slow enough that a busy machine does not make the client late; with the engine's own counters.
SCRIPT = Script(step_s=0.03, metrics_prefix="sglang")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project in a live run of its own."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.setenv(locks.RUN_DIR_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setenv("LEVERBENCH_OWNER", "")
    monkeypatch.delenv("LEVERBENCH_API_KEY", raising=False)
    hold_owner(path)
    return path


@pytest.fixture
def server(project: Path) -> Iterator[ScriptedServer]:
    with serving(SCRIPT) as server:
        yield server


RANDOM = {"dataset": "random-ids", "input_tokens": 50, "output_tokens": 5}


def campaign(
    url: str,
    *,
    variants: dict[str, Any] | None = None,
    workload: Mapping[str, Any] = RANDOM,
    **attach: Any,
) -> Campaign:
    """Writes and reads a campaign of two concurrencies that is attached to a server."""
    file = Path("campaign.yaml")
    content = {
        "campaign": "small",
        "model": {"token_ids": [1, 900]},
        "engine": {"name": "sglang"},
        "attach": {"url": url, **attach},
        "variants": variants or {"a": {}},
        "workloads": {"random": dict(workload)},
        "ladder": {1: 2, 2: 4},
        "limits": {"min_window_s": 0.2, "warm_up_agreement": 0.9, "request_timeout_s": 20},
        "profile": {"concurrency": []},
    }
    file.write_text(yaml.safe_dump(content))
    return load_campaign(file, {}, lambda engine, key: get_engine(engine).lever_family(key))


def serve(campaign: Campaign, variant: str = "a", session: int = 1) -> dict[str, Any]:
    record = Path(f"results/small/{variant}/s{session}/server.json")
    launch = launch_slice(campaign, variant, session).as_params()
    stages.serve(launch, str(record), patience(campaign).as_resources(), "logs/serve.log")
    return read_record(record)


def bench(
    campaign: Campaign, variant: str = "a", session: int = 1, concurrency: int = 2
) -> dict[str, Any]:
    folder = Path(f"results/small/{variant}/s{session}")
    record = folder / f"random/c{concurrency}.json"
    stages.bench(
        launch_slice(campaign, variant, session).as_params(),
        point_slice(campaign, "random", concurrency).as_params(),
        str(folder / "server.json"),
        str(record),
        str(record.with_suffix(".parquet")),
        patience(campaign).as_resources(),
        "logs/bench.log",
    )
    return read_record(record)


def evidence() -> dict[str, dict[str, Any]]:
    paths = Path("results/small/launches").glob("*.json")
    return {path.stem: read_record(path) for path in paths}


@pytest.mark.parametrize(
    ("api", "usage", "engine"),
    [
        ("native", "event", {"name": "sglang", "version": "scripted"}),
        ("openai", "event", {"name": "openai-compatible", "version": None}),
        ("openai", "end", {"name": "openai-compatible", "version": None}),
    ],
)
def test_a_point_is_measured_and_says_what_is_known(server, api, usage, engine):
    server.script = replace(SCRIPT, usage=usage)
    attached = campaign(server.url, api=api)
    started = serve(attached)
    point = bench(attached)

    assert started["outcome"] == "ok"
    assert (point["valid"], point["attached"], point["launch_index"]) == (True, True, 1)
    assert point["server_id"] == started["server_id"]
    assert point["machine"] == {"device": "attached", "url": server.url}
    assert point["strangers_cpu_share"] is point["placement"] is None
    assert point["metrics"]["mean_tpot_ms"] > 25
    assert {generation.openai for generation in server.generations} == {api == "openai"}
    (launch,) = evidence().values()
    assert launch["attached"]
    assert (launch["argv"], launch["env"], launch["start_s"]) == ([], {}, None)
    assert launch["engine"] == {**engine, "python": None}
    assert launch["probe"]["answer"] == "Paris"
    prompts = [id for generation in server.generations for id in generation.input_ids]
    assert 1 <= min(prompts) <= max(prompts) <= 900


def test_the_server_goes_on_and_its_cache_stays(server):
    attached = campaign(server.url, variants={"a": {}, "b": {"from": "a", "control": "a-a"}})
    for variant in attached.variants:
        serve(attached, variant)
        bench(attached, variant)

    assert server.flushes == 0
    with urllib.request.urlopen(f"{server.url}/health") as answer:
        assert answer.status == 200
    # So no prompt was sent twice, or it would have been found in the cache.
    prompts = [tuple(generation.input_ids) for generation in server.generations]
    assert len(set(prompts)) == len(prompts)


def test_with_permission_the_cache_is_flushed_and_variants_share_prompts(server):
    variants = {"a": {}, "b": {"from": "a", "control": "a-a"}}
    attached = campaign(server.url, variants=variants, flush_cache=True)
    seeds = []
    for variant in variants:
        serve(attached, variant)
        seeds.append(bench(attached, variant)["seed"])

    assert server.flushes == 2
    assert seeds[0] == seeds[1] == [1, 1, "random", 2, "measured"]


def test_a_few_tokens_of_an_unflushed_cache_may_match_by_chance(server):
    # One of 50 prompt tokens is 2%; where the cache is empty at the start, there is no such chance.
    server.script = replace(SCRIPT, cached_tokens=1)
    unflushed, flushed = campaign(server.url), campaign(server.url, flush_cache=True)
    serve(unflushed)
    assert bench(unflushed)["valid"]

    with pytest.raises(SystemExit, match="prefix-cache-hits"):
        bench(flushed)
    server.script = replace(SCRIPT, cached_tokens=2)
    with pytest.raises(SystemExit, match="prefix-cache-hits"):
        bench(unflushed)


@pytest.mark.parametrize("api", ["native", "openai"])
def test_the_key_is_sent_and_never_written(server, tmp_path, monkeypatch, capfd, api):
    monkeypatch.setenv("MY_KEY", KEY)
    # The first request fails, with a message that repeats the key.
    server.script = replace(SCRIPT, api_key=KEY, misbehave={0: "status"})
    attached = campaign(server.url, api=api, key_variable="MY_KEY")
    preflight(attached, Path())
    serve(attached)
    with pytest.raises(SystemExit, match=r"HTTP 500: .*scripted failure \(Bearer \*\*\*\)"):
        bench(attached)
    assert bench(attached)["valid"]

    assert server.keys == {f"Bearer {KEY}"}
    assert KEY not in "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {".json", ".jsonl", ".parquet", ".log"} <= {path.suffix for path in files}
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path
    (table,) = [pq.read_table(path) for path in files if path.suffix == ".parquet"]
    assert KEY not in str(table.to_pydict()) + str(table.schema.metadata)


def test_a_refusal_names_the_variable(server, monkeypatch, capsys):
    server.script = replace(SCRIPT, api_key=KEY)
    attached = campaign(server.url, key_variable="MY_KEY")
    export = "Export the key as MY_KEY in the shell that runs the campaign"

    with pytest.raises(LeverbenchError, match=f"asks for an API key.*{export}"):
        preflight(attached, Path())
    monkeypatch.setenv("MY_KEY", "another-key")
    with pytest.raises(LeverbenchError, match="refuses the API key in MY_KEY") as caught:
        preflight(attached, Path())
    assert "another-key" not in str(caught.value)
    # A job may run in another environment than the check.
    with pytest.raises(SystemExit, match="refuses the API key in MY_KEY"):
        serve(attached)


@pytest.mark.parametrize("key", ["two words", "line\nend", "schl\u00fcssel"])
def test_a_key_that_cannot_be_sent_is_not_told(server, monkeypatch, key):
    monkeypatch.setenv("LEVERBENCH_API_KEY", key)

    with pytest.raises(LeverbenchError, match="no HTTP header can carry") as caught:
        preflight(campaign(server.url), Path())
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("attach", "said"),
    [
        ({"url": "http://127.0.0.1:9"}, "the attached server does not answer.*Start it, or"),
        ({"url": "URL/v1", "api": "openai"}, "does not speak as openai-comp.*address without /v1"),
        ({"url": "URL/nowhere"}, "does not speak as sglang .*api: openai"),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_message(server, attach, said):
    attached = campaign(**{**attach, "url": attach["url"].replace("URL", server.url)})

    with pytest.raises(LeverbenchError, match=said):
        preflight(attached, Path())


def test_another_version_is_refused(server):
    attached = campaign(server.url, variants={"a": {"engine": {"version": "9.9"}}})

    with pytest.raises(LeverbenchError, match=r"is for sglang 9\.9, and this server is scripted"):
        preflight(attached, Path())


@pytest.mark.parametrize("api", ["native", "openai"])
def test_a_server_set_otherwise_is_another_launch(server, api):
    attached = campaign(server.url, api=api)
    started = serve(attached)
    first = bench(attached, concurrency=1)
    server.script = replace(SCRIPT, context=8192)
    second = bench(attached, concurrency=2)

    assert first["server_id"] == started["server_id"] != second["server_id"]
    assert (first["launch_index"], second["launch_index"]) == (1, 2)
    length = "context_length" if api == "native" else "max_model_len"
    assert {launch["effective"][length] for launch in evidence().values()} == {4096, 8192}


def test_a_server_started_again_is_another_launch(server):
    attached = campaign(server.url)
    first = serve(attached)["server_id"]

    assert serve(attached)["server_id"] == first
    server.started_s += 1
    assert serve(attached)["server_id"] != first


def test_sessions_and_variants_of_one_server_are_told_apart(server):
    attached = campaign(server.url, variants={"a": {}, "b": {"from": "a", "control": "a-a"}})

    ids = {serve(attached, *session)["server_id"] for session in (("a", 1), ("a", 2), ("b", 1))}
    assert len(ids) == 3


def use(attached: Campaign, change: Any) -> None:
    launch = launch_slice(attached, "a", 1)
    with open_session(launch, patience(attached), (), measured=True) as session:
        assert session.server.read_log() is None
        assert session.server.processes() == []
        assert not locks.is_free(locks.MEASURE_LOCK)
        change()


def test_a_session_is_a_measurement_of_ours(server):
    use(campaign(server.url), lambda: None)

    assert locks.is_free(locks.MEASURE_LOCK)
    events = (locks.run_dir() / "events.jsonl").read_text()
    assert events.index('"measure-begin"') < events.index('"measure-end"')


def test_a_server_must_be_the_same_when_the_block_ends(server):
    def change() -> None:
        server.started_s += 1

    with pytest.raises(PassingFailure, match="another server answers: started again") as caught:
        use(campaign(server.url), change)
    assert (caught.value.cause, caught.value.retry) == ("server-restarted", True)


def test_a_server_that_is_gone_is_a_passing_failure(project):
    with serving(SCRIPT) as server:
        attached = campaign(server.url)
        serve(attached)

    with pytest.raises(SystemExit, match="server-died: no answer"):
        bench(attached)
    assert not Path("results/small/a/s1/random/c2.json").exists()


def test_a_point_beside_the_work_of_others_is_void(server):
    attached = campaign(server.url)
    serve(attached)
    server.script = replace(SCRIPT, strangers_tokens=1)

    with pytest.raises(SystemExit, match="server-shared: the server generated more tokens"):
        bench(attached)
    # It was tried once more: others may have left.
    account = Path("state/attempts/small/a/s1/random/c2.jsonl").read_text()
    assert len(account.splitlines()) == 2


def test_a_wrong_answer_stands_until_it_is_asked_again(server):
    attached = campaign(server.url)
    server.script = replace(SCRIPT, answer="Lyon")
    assert serve(attached)["outcome"] == "probe-wrong"
    server.script = SCRIPT

    assert serve(attached)["outcome"] == "ok"
    (launch,) = evidence().values()
    assert launch["outcome"] == "ok"


def test_a_server_on_this_host_is_profiled_without_its_log(server):
    server.effective = {"device": "cpu"}
    attached = campaign(server.url)
    serve(attached)
    folder = Path("results/small/a/profile/random/c2")
    stages.profile(
        launch_slice(attached, "a", 1).as_params(),
        profile_slice(attached, "random", 2).as_params(),
        "results/small/a/s1/server.json",
        str(folder / "summary.json"),
        str(folder / "kernels.parquet"),
        patience(attached).as_resources(),
        "logs/profile.log",
    )

    record = read_record(folder / "summary.json")
    assert (record["outcome"], record["device"], record["placement"]) == ("profiled", "cpu", None)
    assert [recording.asked["activities"] for recording in server.recordings] == [["CPU"]]
    assert server.log  # which nobody here can read
    prompts = [tuple(generation.input_ids) for generation in server.generations]
    assert len(set(prompts)) == len(prompts)


def test_a_file_of_token_ids_is_measured_without_a_model_and_text_is_not(server):
    file = {"dataset": "file", "path": "ids.jsonl"}
    lines = [{"input_ids": [n, n + 1], "output_tokens": 3 + n % 3} for n in range(1, 21)]
    Path("ids.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    attached = campaign(server.url, workload=file, flush_cache=True)
    preflight(attached, Path())
    serve(attached)
    point = bench(attached)

    assert point["valid"]
    # Before each warm-up window, which all have the same prompts, and before the measured one.
    assert server.flushes == len(point["warm_up"]["windows_tok_per_s"]) + 1
    first, second = (server.generations[n : n + 4] for n in (0, 4))
    assert sorted(g.input_ids for g in first) == sorted(g.input_ids for g in second)
    measured = server.generations[-point["num_requests"] :]
    sent = [(*generation.input_ids, generation.asked) for generation in measured]
    assert len(set(sent)) == len(sent)
    assert set(sent) <= {(n, n + 1, 3 + n % 3) for n in range(1, 21)}

    Path("ids.jsonl").write_text('{"prompt": "Hello", "output_tokens": 3}\n' * 20)
    with pytest.raises(LeverbenchError, match=r"ids\.jsonl:1: text needs the model's own"):
        preflight(campaign(server.url, workload=file, flush_cache=True), Path())
