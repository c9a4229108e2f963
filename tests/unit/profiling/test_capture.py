"""A profile of the scripted server: what is recorded, what is kept, and what is refused."""

import gzip
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import scripted_nvml
from scripted_server import Script, ScriptedServer, make_trace, serving
from scripted_session import SERVER_ID, scripted_session

from leverbench.campaign.model import Engine, Probe, Workload
from leverbench.campaign.slices import Launch, Patience, ProfileSlice
from leverbench.errors import LeverbenchError
from leverbench.profiling import capture, tensor_activity
from leverbench.records import read_record, write_record
from leverbench.serving.session import Session
from leverbench.serving.spec import ServerError

pytestmark = pytest.mark.server

PATIENCE = Patience(start_s=60, request_s=20, recovery={})
HASTY = Patience(start_s=60, request_s=2, recovery={})
# Long enough that the first requests are under way for all of the recording.
SCRIPT = {"ttft_s": 0.02, "step_s": 0.01}


def launch(device: str = "cpu") -> Launch:
    return Launch(
        campaign="c",
        variant="v",
        session=1,
        engine=Engine("sglang", None, None, (), {}, {}),
        removed=(),
        model_path="m",
        token_ids=None,
        devices=(device,),
        probe=Probe(),
    )


def asked(concurrency: int = 4, steps: int = 5) -> ProfileSlice:
    return ProfileSlice("random", Workload("random-ids", 8, 40), concurrency, steps, seed=1)


@dataclass(frozen=True)
class Job:
    """A profile's job in a project of its own; its session is at hand."""

    session: Session
    folder: Path

    def run(self, patience: Patience = PATIENCE, device: str = "cpu") -> dict[str, Any]:
        capture.profile(
            launch(device).as_params(),
            asked().as_params(),
            patience,
            Path("server.json"),
            self.folder / "summary.json",
            self.folder / "kernels.parquet",
        )
        return read_record(self.folder / "summary.json")

    def table(self) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / "kernels.parquet").to_pylist()

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def attempts(self) -> list[dict[str, Any]]:
        path = Path("state/attempts/c/v/profile/random/c4.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes a job on a server."""

    def make(server: ScriptedServer, **session: Any) -> Job:
        made = scripted_session(server, **session)

        @contextmanager
        def at_hand(launch: Launch, *_: object, measured: bool) -> Iterator[Session]:
            assert measured
            yield replace(made, device="cpu" if launch.devices == ("cpu",) else "gpu")

        monkeypatch.setattr(capture, "open_session", at_hand)
        write_record(Path("server.json"), {"outcome": "ok", "detail": None, "recovery": []})
        return Job(made, tmp_path / "results/c/v/profile/random/c4")

    monkeypatch.chdir(tmp_path)
    return make


def test_a_profile_is_recorded_when_every_slot_decodes(job):
    with serving(Script(**SCRIPT)) as server:
        record = job(server).run()

    (recording,) = server.recordings
    assert recording.running == 4
    assert record["in_flight"] == 4
    assert recording.asked["num_steps"] == 5
    assert recording.asked["activities"] == ["CPU"]
    assert recording.asked["with_stack"] is recording.asked["record_shapes"] is False
    assert Path(recording.asked["output_dir"]).is_absolute()
    # Only the first wave of the load was needed, after one of warm-up; nothing else ran.
    assert {len(generation.input_ids) for generation in server.generations} == {8}
    assert server.profile_stops == 0


def test_the_record_tells_what_the_steps_consist_of(job):
    with serving(Script(**SCRIPT)) as server:
        profile = job(server)
        record = profile.run()

    assert (record["kind"], record["outcome"]) == ("profile", "profiled")
    assert (record["steps_asked"], record["decode_steps"]) == (5, 5)
    # Five steps of 300 us: linear 30 (150 less the product's 120), addmm 120, attention 100,
    # argmax 20, and 30 in no operation.
    assert record["total_us"] == pytest.approx(1500)
    shares = {part["category"]: part["share"] for part in record["categories"]}
    assert shares == pytest.approx(
        {"gemm": 0.5, "attention": 1 / 3, "host-code": 0.1, "sampling": 2 / 30}
    )
    assert [(top["name"], top["calls"]) for top in record["top"][:2]] == [
        ("aten::addmm", 5),
        ("aten::scaled_dot_product_attention", 5),
    ]
    # The last step's end is not recorded: of the other four, nothing else was under way.
    steps = {key: record["steps"][key] for key in ("found_by", "count", "dropped", "mean_us")}
    assert steps == {"found_by": "annotations", "count": 4, "dropped": 1, "mean_us": 300}
    assert (record["span_us"], record["idle_share"], record["gaps"]) == (1200, 0, None)
    assert record["top"][0]["per_step_us"] == 120
    assert (record["communication"], record["truncated"]) == (None, None)
    by_name = {row["name"]: row for row in profile.table()}
    assert by_name["aten::linear"]["self_us"] == pytest.approx(150)
    assert sum(row["share"] for row in by_name.values()) == pytest.approx(1)
    assert record["probe"]["before"]["right"]
    assert record["probe"]["after"]["right"]
    assert record["digests"].keys() == {"launch", "workload", "engine", "model"}
    assert set(record["timing_s"]) == {
        *("lease", "probe_before", "warm_up", "tensor_activity"),
        *("recording", "reading", "probe_after"),
    }
    assert not any("tok_per_s" in key for key in record)


def test_each_rank_has_its_file_beside_the_record(job):
    with serving(Script(**SCRIPT, ranks=2)) as server:
        profile = job(server, tp_size=2)
        record = profile.run()

    names = [f"{SERVER_ID}-TP-{rank}.trace.json.gz" for rank in (0, 1)]
    assert profile.files() == {"summary.json", "kernels.parquet", *names}
    assert [(file["name"], file["rank"]) for file in record["files"]] == [
        (names[0], "TP-0"),
        (names[1], "TP-1"),
    ]
    content = (profile.folder / names[1]).read_bytes()
    assert record["files"][1]["bytes"] == len(content)
    assert record["files"][1]["sha256"] == hashlib.sha256(content).hexdigest()
    assert record["files"][1]["events"] == 5 * 5
    assert {row["rank"] for row in profile.table()} == {"TP-0", "TP-1"}


def test_on_a_gpu_its_kernels_count_and_the_cpu_is_kept(job):
    with serving(Script(**SCRIPT)) as server:
        profile = job(server)
        record = profile.run(device="gpu0")

    assert server.recordings[0].asked["activities"] == ["CPU", "GPU"]
    shares = {part["category"]: part["share"] for part in record["categories"]}
    assert shares == pytest.approx({"gemm": 0.75, "comm": 0.25})
    assert {row["device"] for row in profile.table()} == {"cpu", "gpu"}
    # A product from 15 to 90, the reduction from 95 to 120, then nothing until the next step.
    steps = {key: record["steps"][key] for key in ("found_by", "count", "dropped", "mean_us")}
    assert steps == {"found_by": "periodicity", "count": 4, "dropped": 1, "mean_us": 300}
    assert record["idle_share"] == pytest.approx(200 / 300)
    assert record["decode_steps"] == 5
    assert [top["tensor_cores"] for top in record["top"]] == ["likely", "none"]


def test_earlier_traces_go_when_the_new_ones_are_there(job):
    with serving(Script(**SCRIPT)) as server:
        profile = job(server)
        profile.folder.mkdir(parents=True)
        (profile.folder / "old-TP-0.trace.json.gz").touch()
        profile.run()

    assert f"{SERVER_ID}-TP-0.trace.json.gz" in profile.files()
    assert "old-TP-0.trace.json.gz" not in profile.files()


def test_what_a_killed_job_left_goes_and_its_recording_is_ended(job):
    with serving(Script(**SCRIPT)) as server:
        profile = job(server)
        (profile.folder / ".unfinished-x/y").mkdir(parents=True)
        record = profile.run()

    assert record["outcome"] == "profiled"
    assert not any(name.startswith(".unfinished") for name in profile.files())
    assert server.profile_stops == 1


@pytest.mark.parametrize(
    ("profiling", "detail"),
    [
        ("refuse", "refuses to record: .*500"),
        ("empty", "TP-0: the trace is empty"),
        ("truncated", "TP-0: .*the gzip stream ends early"),
        ("foreign", "TP-0: not a trace"),
    ],
)
def test_an_incomplete_profile_twice_is_a_result(job, profiling, detail):
    with serving(Script(**SCRIPT, profiling=profiling)) as server:
        profile = job(server)
        profile.folder.mkdir(parents=True)
        (profile.folder / "old-TP-0.trace.json.gz").touch()
        record = profile.run()

    assert record["outcome"] == "profile-failed"
    assert [attempt["cause"] for attempt in profile.attempts()] == ["profile-incomplete"] * 2
    for told in (record["detail"], profile.attempts()[0]["detail"]):
        assert re.search(detail, told), told
    assert profile.table() == []
    # What was there stays, and nothing unfinished does.
    assert profile.files() == {"summary.json", "kernels.parquet", "old-TP-0.trace.json.gz"}


@pytest.mark.parametrize(
    ("cut", "whole"), [(None, True), (-1, False), (20, False), (0, False)], ids=str
)
def test_a_gzip_is_whole_or_not(tmp_path, cut, whole):
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(make_trace(3, 1, ["CPU"]))[:cut])

    assert capture.is_whole(path) is whole


def test_a_missing_file_is_not_whole(tmp_path):
    assert not capture.is_whole(tmp_path / "t.gz")


def test_ranks_that_wait_for_one_another_are_told_apart(job):
    with serving(Script(**SCRIPT, ranks=2)) as server:
        record = job(server, tp_size=2).run(device="gpu0")

    # Both ranks write the same: nobody waits. 25 us in four steps of two ranks.
    assert record["communication"] == {"transfer_us": 200, "wait_us": 0, "unmatched_us": 0}
    assert (record["span_us"], record["steps"]["count"]) == (2400, 4)


def test_a_recording_that_does_not_end_is_stopped(job):
    with serving(Script(**SCRIPT, profiling="never")) as server:
        record = job(server).run(HASTY)

    assert record["outcome"] == "profile-failed"
    assert "after 2 s, 0 of 1 traces are there" in record["detail"]
    # Both attempts were let in: the first one's recording was ended.
    assert (len(server.recordings), server.profile_stops) == (2, 2)


def test_fewer_traces_than_ranks_are_no_profile(job):
    with serving(Script(**SCRIPT, ranks=1)) as server:
        record = job(server, tp_size=2).run(HASTY)

    assert record["outcome"] == "profile-failed"
    assert "1 of 2 traces" in record["detail"]


def test_traces_without_kernels_are_no_profile_of_a_gpu(job, monkeypatch):
    monkeypatch.setattr("scripted_server.KERNELS", ())
    with serving(Script(**SCRIPT)) as server:
        record = job(server).run(device="gpu0")

    assert record["outcome"] == "profile-failed"
    assert "no time on the gpu" in record["detail"]


def test_a_server_that_keeps_no_log_is_known_by_its_files(job):
    with serving(Script(**SCRIPT, profiling="silent")) as server:
        record = job(server).run()

    assert server.log == ""
    assert record["outcome"] == "profiled"


def test_the_load_is_broken_off_when_the_profile_is_done(job):
    with serving(Script(ttft_s=0.01, step_s=0.05)) as server:
        # Requests of 40 tokens take 2 s; five steps are done after 0.25 s.
        session = job(server).session
        began = time.monotonic()
        capture.capture(session, launch(), asked(), PATIENCE, Path("p").absolute())
        while server.in_flight:
            assert time.monotonic() < began + 10
            time.sleep(0.01)

    assert len(server.generations) == 8  # the warm-up's wave and one more
    assert not any(generation.done for generation in server.generations[4:])


def test_a_session_without_a_server_has_no_profile(job):
    with serving(Script()) as server:
        profile = job(server)
    write_record(
        Path("server.json"), {"outcome": "start-failed", "detail": "no flag", "recovery": []}
    )
    record = profile.run()

    assert (record["outcome"], record["detail"]) == ("no-server", "no flag")
    assert profile.table() == []


def test_a_wrong_answer_before_is_a_result(job):
    with serving(Script(answer="Lyon")) as server:
        record = job(server).run()

    assert (record["outcome"], server.recordings) == ("probe-wrong", [])


def test_a_wrong_answer_afterwards_is_not_recorded(job):
    with serving(Script(**SCRIPT, right_answers=1)) as server:
        profile = job(server)
        with pytest.raises(LeverbenchError, match="probe-failed-after"):
            profile.run()

    assert not (profile.folder / "summary.json").exists()


@pytest.mark.parametrize(("number", "where"), [(1, "in warm-up"), (5, "under the profile")])
def test_a_failed_request_ends_the_profile(job, number, where):
    with serving(Script(**SCRIPT, misbehave={number: "status"})) as server:
        profile = job(server)
        with pytest.raises(LeverbenchError, match=f"failed-requests: {where}: HTTP 500"):
            profile.run()

    assert len(profile.attempts()) == 1
    assert server.recordings == []


def test_a_server_that_dies_meanwhile_is_noticed_at_once(job):
    with serving(Script(**SCRIPT, profiling="never")) as server:
        session = job(server, is_dead=lambda: bool(server.recordings)).session
        began = time.monotonic()
        with pytest.raises(ServerError, match="has ended"):
            capture.capture(session, launch(), asked(), PATIENCE, Path("p").absolute())

    assert time.monotonic() - began < PATIENCE.request_s / 2


@pytest.fixture
def busy_gpu(tmp_path, monkeypatch):
    """Makes a GPU whose tensor cores are busy while four requests are under way, and no longer."""
    library = scripted_nvml.build(tmp_path)
    monkeypatch.setattr(tensor_activity, "_LIBRARY", str(library))
    gpu, ended = scripted_nvml.Nvml(library).gpus[0], threading.Event()

    def run(server: ScriptedServer) -> None:
        while not ended.wait(0.005):
            loaded = server.in_flight == 4 and not server.recordings
            gpu.run(1, {scripted_nvml.ANY_TENSOR: float(loaded)})

    def start(server: ScriptedServer) -> None:
        threading.Thread(target=run, args=(server,)).start()

    yield start
    ended.set()


def test_the_tensor_cores_are_measured_under_the_same_load_before_the_recording(job, busy_gpu):
    with serving(Script(**SCRIPT)) as server:
        profile = job(server)
        profile.session.evidence["devices"] = ["gpu0"]
        busy_gpu(server)
        record = profile.run(device="gpu0")

    (gpu,) = record["tensor_activity"]["gpus"]
    # A wave takes 0.4 s, and between two of them the slots are empty for a moment.
    assert gpu["gpu"] == "gpu0"
    assert 0.8 < gpu["any_tensor"] <= 1
    assert 0.5 <= record["tensor_activity"]["seconds"] < 1
    assert record["tensor_activity_reason"] is None
    # The recording has a load of its own, which begins when the other has ended.
    assert server.flushes == 1
    assert (server.recordings[0].running, record["in_flight"]) == (4, 4)
    prompts = [tuple(generation.input_ids) for generation in server.generations]
    assert len(set(prompts)) == len(prompts)


def test_a_request_that_fails_while_the_tensor_cores_are_measured_ends_the_profile(job, busy_gpu):
    with serving(Script(**SCRIPT, misbehave={5: "status"})) as server:
        profile = job(server)
        profile.session.evidence["devices"] = ["gpu0"]
        busy_gpu(server)
        with pytest.raises(LeverbenchError, match="failed-requests: before the profile: HTTP 500"):
            profile.run(device="gpu0")

    assert server.recordings == []


def test_without_a_gpu_of_ours_no_tensor_cores_are_measured_and_the_record_says_so(job):
    with serving(Script(**SCRIPT)) as server:
        record = job(server).run()

    assert record["tensor_activity"] is None
    assert record["tensor_activity_reason"] == "no GPU of ours"
    assert (len(server.generations), server.flushes) == (8, 0)
