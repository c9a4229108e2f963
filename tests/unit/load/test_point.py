"""A point on the scripted server, with one thing planted that must void it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_gpu import Gpu, install
from scripted_server import Script, ScriptedServer, serving
from scripted_session import ScriptedHandle, scripted_session

from leverbench.campaign.model import Engine, Probe, Workload
from leverbench.campaign.slices import Launch, Patience, Point
from leverbench.errors import LeverbenchError
from leverbench.load import client, point
from leverbench.records import read_record, write_record
from leverbench.serving.processes import Process, identify
from leverbench.serving.session import Session
from leverbench.serving.spec import ServerError

pytestmark = pytest.mark.server

# Slow enough that a busy machine's late timers do not void a window.
SCRIPT = Script(ttft_s=0.005, step_s=0.01, metrics_prefix="sglang")
ASKED = Point(
    workload_name="random",
    workload=Workload("random-ids", 8, 6),
    concurrency=2,
    requests=8,
    seed=1,
    min_window_s=0.1,
    warm_up_agreement=1.0,
    max_warm_up_windows=2,
    max_strangers_cpu_share=1.0,
)
LAUNCH = Launch(
    campaign="c",
    variant="v",
    session=1,
    engine=Engine("sglang", None, None, (), {}, {}),
    removed=(),
    model_path=None,
    token_ids=None,
    devices=("cpu",),
    probe=Probe(),
)
RECORD = Path("c2.json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERBENCH_RUN_DIR", str(tmp_path))
    write_record(Path("server.json"), {"outcome": "ok", "recovery": [], "server_id": "feed01"})


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Measures a point and returns its record, or, where it is void, the row of its attempt."""

    def job(
        server: ScriptedServer,
        asked: Point = ASKED,
        *,
        handle: Mapping[str, Any] | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        made = scripted_session(server)
        assert isinstance(made.server, ScriptedHandle)
        session = replace(
            made,
            server=replace(made.server, **(handle or {})),
            evidence={**made.evidence, **(evidence or {})},
        )

        @contextmanager
        def at_hand(*_: object, measured: bool) -> Iterator[Session]:
            assert measured
            yield session

        monkeypatch.setattr(point, "open_session", at_hand)
        patience = Patience(60, 20, {})
        files = Path("server.json"), RECORD, Path("c2.parquet")
        try:
            point.bench(LAUNCH.as_params(), asked.as_params(), patience, *files)
        except ServerError:
            raise
        except LeverbenchError:
            path = Path("state/attempts/c/v/s1/random/c2.jsonl")
            row: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])["row"]
            assert not RECORD.exists()
            return row
        return read_record(RECORD)

    return job


def test_a_good_point_is_valid(measure):
    with serving(SCRIPT) as server:
        row = measure(server)

    assert (row["valid"], row["invalid_reason"]) == (True, None)
    assert row["gpus"] is row["gpu_strangers"] is row["halves_tok_per_s"] is None
    assert abs(row["client"]["clock_step_ms"]) < 50


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        # Eight requests warm up: the ninth is the window's first.
        ({"misbehave": {9: "status"}}, "failed-requests"),
        ({"misbehave": {9: "count"}}, "wrong-token-count"),
        ({"cached_tokens": 4}, "prefix-cache-hits"),
        ({"says": "Compiling a kernel"}, "compiled-in-window"),
        ({"right_answers": 1}, "probe-failed-after"),
        ({"strangers_tokens": 5}, "server-shared"),
        # The first of the two warm-up windows takes 10 steps.
        ({"throttled_steps": 10, "throttled_factor": 10.0}, "unsteady-warm-up"),
    ],
)
def test_what_a_server_does_voids_the_window(measure, script, reason):
    with serving(replace(SCRIPT, **script)) as server:
        row = measure(server)

    assert (row["valid"], row["invalid_reason"]) == (False, reason)
    assert row["metrics"]["output_tok_per_s"] > 0


def test_a_server_that_becomes_faster_after_the_warm_up_leaves_too_short_a_window(measure):
    # Warmed up at a tenth of its speed, in 20 steps.
    script = replace(SCRIPT, throttled_steps=20, throttled_factor=10.0)
    with serving(script) as server:
        row = measure(server, replace(ASKED, min_window_s=1.5))

    assert row["invalid_reason"] == "window-too-short"


@pytest.mark.parametrize("waves", [12, 4])
def test_a_throttled_half_is_told_where_there_are_waves_enough(measure, waves):
    # Five steps a wave: two waves of warm-up twice, then a good half and a slow one.
    script = replace(
        SCRIPT, throttled_from=20 + 5 * waves // 2, throttled_steps=1000, throttled_factor=5.0
    )
    asked = replace(ASKED, requests=2 * waves, warm_up_agreement=0.5)
    with serving(script) as server:
        row = measure(server, asked)

    if waves == 4:
        assert (row["valid"], row["halves_tok_per_s"]) == (True, None)
    else:
        first, second = row["halves_tok_per_s"]
        assert first > 2 * second
        assert row["invalid_reason"] == "unsteady-window"


def test_a_server_that_pauses_is_no_less_steady(measure):
    with serving(replace(SCRIPT, pause_every=5, pause_s=0.03)) as server:
        row = measure(server, replace(ASKED, requests=24, warm_up_agreement=0.5))

    assert row["valid"]
    assert row["halves_tok_per_s"] is not None


def test_a_clock_that_is_set(measure, monkeypatch):
    class Clock:
        """The time of day, which jumps ahead on its second reading."""

        readings = 0
        perf_counter = staticmethod(time.perf_counter)
        process_time = staticmethod(time.process_time)
        monotonic = staticmethod(time.monotonic)

        def time(self) -> float:
            self.readings += 1
            return time.time() + (0.2 if self.readings % 2 == 0 else 0.0)

    monkeypatch.setattr(client, "time", Clock())
    with serving(SCRIPT) as server:
        row = measure(server)

    assert row["invalid_reason"] == "clock-step"
    assert row["client"]["clock_step_ms"] == pytest.approx(200, abs=20)


def test_a_busy_stranger_on_the_cpu(measure):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    asked = replace(ASKED, min_window_s=1.0, max_strangers_cpu_share=0.2 / (os.cpu_count() or 1))
    try:
        with serving(SCRIPT) as server:
            row = measure(server, asked)
    finally:
        busy.kill()
        busy.wait()

    assert row["invalid_reason"] == "machine-shared"


def test_a_server_that_was_started_again(measure):
    me, parent = identify(os.getpid()), identify(os.getppid())
    launched = [{"pid": me.pid, "started": me.start}]
    with serving(SCRIPT) as server:
        same = measure(server, handle={"listening": [me]}, evidence={"processes": launched})
        # The pid of the launch, but another start.
        again = [parent, Process(me.pid, me.start + 1)]
        with pytest.raises(ServerError) as caught:
            measure(server, handle={"listening": again}, evidence={"processes": launched})

    assert same["valid"]
    assert caught.value.cause == "server-restarted"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (Gpu(), None),
        (Gpu(reasons=0x40), "gpu-throttled"),
        (Gpu(reasons=0x4), "gpu-capped"),
        (Gpu(pids=(os.getpid(), os.getppid())), "gpu-shared"),
        # Idle between two windows, application clocks set: neither slows it down.
        (Gpu(reasons=0x3), None),
    ],
)
def test_what_happens_to_the_gpu_voids_the_window(measure, smi, gpu, reason):
    install(smi, gpu)
    me = identify(os.getpid())
    with serving(SCRIPT) as server:
        row = measure(server, handle={"live": [me]}, evidence={"devices": ["gpu0"]})

    assert row["invalid_reason"] == reason
    assert row["gpus"]["gpu0"]["power_w"]["mean"] == 300.0
    assert row["gpus"]["gpu0"]["samples"] >= 2
    assert row["gpu_strangers"] == ([os.getppid()] if reason == "gpu-shared" else None)


def test_a_gpu_may_always_run_at_its_power_limit(measure, smi):
    install(smi, Gpu(reasons=0x4))
    with serving(SCRIPT) as server:
        asked = replace(ASKED, max_power_capped_share=1.0)
        row = measure(server, asked, evidence={"devices": ["gpu0"]})

    assert row["valid"]
    assert row["gpus"]["gpu0"]["reasons"] == {"power-cap": 1.0}
