"""Servers that are given a kernel: proven to use it, or not applied with cause and cure."""

import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from scripted_kernel import ATTEND, SERVES, publish_scripted

from leverbench import stages
from leverbench.campaign.model import Engine, Probe, Workload
from leverbench.campaign.slices import Launch, Patience, Point
from leverbench.records import read_record
from leverbench.serving import locks, session
from leverbench.serving.owner import hold_owner, stop_now
from leverbench.serving.processes import SERVER_MARK, marked

pytestmark = pytest.mark.server

SCRIPTED = Path(__file__).parents[2] / "scripted_launch.py"
PATIENCE = Patience(60, 20, {}).as_resources()
KERNEL = Path("results/kernels/double")
SESSION = Path("results/small/v/s1/server.json")
POINT = SESSION.parent / "random/c2.json"
LEAVES = SERVES.replace("return batch", "return NotImplemented")
# The probe is a chat, and the window has none.
CHATS_ONLY = SERVES.replace("return batch", "return NotImplemented if batch else batch")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a model, in a live run of its own."""
    path = tmp_path / "project"
    (path / "models/m").mkdir(parents=True)
    (path / "models/m/config.json").write_text('{"vocab_size": 1000}')
    monkeypatch.chdir(path)
    monkeypatch.setenv(locks.RUN_DIR_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setenv("LEVERBENCH_OWNER", "")
    monkeypatch.setenv("SCRIPT", '{"ttft_s": 0.005, "step_s": 0.01}')
    # The engine's own parser takes seconds to import, and has nothing to say here.
    monkeypatch.setattr(session, "parsed_arguments", lambda settings: {})
    hold_owner(path)
    yield path
    assert stop_now(path)


def launch(
    *wrapper: str, args: dict[str, Any] | None = None, removed: Sequence[str] = (), **env: str
) -> Launch:
    words = (*wrapper, sys.executable, str(SCRIPTED))
    return Launch(
        campaign="small",
        variant="v",
        session=1,
        engine=Engine("sglang", None, None, words, args or {}, env),
        removed=tuple(removed),
        model_path="models/m",
        token_ids=None,
        devices=("cpu",),
        probe=Probe(),
        kernels={"double": str(KERNEL)},
    )


def serve(asked: Launch) -> dict[str, Any]:
    stages.serve(asked.as_params(), str(SESSION), PATIENCE, "logs/serve.log")
    return read_record(SESSION)


def bench(asked: Launch) -> dict[str, Any]:
    point = Point(
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
    files = (str(SESSION), str(POINT), str(POINT.with_suffix(".parquet")))
    stages.bench(asked.as_params(), point.as_params(), *files, PATIENCE, "logs/bench.log")
    return read_record(POINT)


def evidence(started: dict[str, Any]) -> dict[str, Any]:
    return read_record(Path(f"results/small/launches/{started['server_id']}.json"))


def test_a_kernel_that_is_used_is_proven_by_its_calls(project):
    publish_scripted(KERNEL)
    # Of a process that has ended: its pid may be another's by now.
    stale = Path("state/calls/small/v/s1/double.1.1.calls")
    stale.parent.mkdir(parents=True)
    stale.write_bytes(struct.pack("<qq", 7, 7))
    asked = launch(SGLANG_PLUGINS="mine", removed=("tuned.gone",))

    started = serve(asked)
    found = evidence(started)
    point = bench(asked)

    assert started["outcome"] == "ok"
    (proof,) = found["kernels"]
    (pid,) = proof["registered"]
    assert pid in [process["pid"] for process in found["processes"]]
    assert (proof["kernel"], proof["applied"], proof["problem"]) == ("double", True, None)
    assert proof["digest"] == read_record(KERNEL / "published.json")["digest"]
    assert proof["calls"][str(pid)] > 0
    assert proof["left"] == {str(pid): 0}
    levers = {lever["key"]: lever for lever in found["levers_applied"]}
    assert levers["tuned.double"]["evidence"] == "calls counted on 1 of 1 ranks"
    # The campaign's own plugin stays named, beside ours.
    assert levers["env.SGLANG_PLUGINS"]["seen"] == "mine,leverbench_double"
    applied = {key: lever["applied"] for key, lever in levers.items()}
    names = ("tuned.double", "tuned.gone", "env.SGLANG_PLUGINS")
    assert [applied[name] for name in names] == [True, True, True]
    assert (point["valid"], point["outcome"]) == (True, "measured")
    (window,) = point["kernels"]
    assert window["calls"][str(pid)] >= 20  # 8 requests of 5 steps each, two at a time
    assert window["left"] == {str(pid): 0}
    log = next(Path("logs/small/v/s1").glob("*.log")).read_text()
    assert f"leverbench: kernel double {proof['digest'][:16]} for {ATTEND} in process {pid}" in log


def test_a_server_without_kernels_has_no_such_fields(project):
    plain = Launch(**{**vars(launch()), "kernels": {}})

    started = serve(plain)

    assert "kernels" not in plain.as_params()
    assert Launch.from_params(launch().as_params()).kernels == {"double": str(KERNEL)}
    assert "kernels" not in evidence(started)
    assert "kernels" not in bench(plain)


@pytest.mark.parametrize(
    ("module", "hook", "how", "problem"),
    [
        (
            "raise ImportError('libgone.so: no such file')",
            ATTEND,
            {},
            "double: Failed to execute general plugin: leverbench_double: ImportError: libgone.so:"
            " no such file. Mend kernel.py, or load: hook: in kernel.yaml.",
        ),
        (
            SERVES,
            "scripted_server.gone",
            {},
            "leverbench_double: LookupError: this version of the engine has no"
            " scripted_server.gone (module 'scripted_server' has no attribute 'gone'). Mend",
        ),
        (LEAVES, ATTEND, {}, "double: its serve() leaves all 1 calls to the engine. See in kernel"),
        (
            SERVES,
            "scripted_server.make_trace",
            {},
            "double: the server does not call scripted_server.make_trace. Name another in load",
        ),
        (
            SERVES,
            ATTEND,
            {"wrapper": ("env", "-u", "PYTHONPATH")},
            "double: no process of the server has loaded its plugin. See that engine.wrapper",
        ),
        (SERVES, ATTEND, {"args": {"tp-size": 2}}, "double: 1 of 2 ranks use it. Look in the"),
    ],
)
def test_a_kernel_that_is_not_used_is_not_applied(project, module, hook, how, problem):
    publish_scripted(KERNEL, module, hook=hook)
    asked = launch(*how.get("wrapper", ()), args=how.get("args"))

    started = serve(asked)
    point = bench(asked)

    assert started["outcome"] == point["outcome"] == point["invalid_reason"] == "not-applied"
    assert problem in started["detail"]
    assert point["detail"] == started["detail"]
    assert "metrics" not in point
    (path,) = Path("results/small/launches").glob("*.json")
    found = read_record(path)
    assert (found["outcome"], found["detail"]) == ("not-applied", started["detail"])
    assert [lever["applied"] for lever in found["levers_applied"] if "tuned" in lever["key"]] == [
        False
    ]
    # The next try is another launch.
    assert not marked(SERVER_MARK, locks.run_dir())
    with pytest.raises(SystemExit, match="2 lasting failures stand") as caught:
        stages.gate([str(SESSION), str(POINT)], "state/gate/small", "logs/gate.log")
    assert str(caught.value).count(f"not-applied: {started['detail']}") == 2


def test_a_plugin_that_is_not_there_is_told_without_a_launch(project):
    publish_scripted(KERNEL)
    shutil.rmtree(KERNEL / "plugin")

    started = serve(launch())

    assert started["outcome"] == "not-applied"
    assert "the published kernel is incomplete. Delete" in started["detail"]
    assert "published.json and run again: it is published anew." in started["detail"]
    assert not Path("logs/small").exists()


def test_a_kernel_that_is_not_used_in_the_window_keeps_what_was_measured(project):
    publish_scripted(KERNEL, CHATS_ONLY)
    asked = launch()

    started = serve(asked)
    point = bench(asked)

    assert started["outcome"] == "ok"
    assert (point["outcome"], point["valid"]) == ("not-applied", False)
    assert point["invalid_reason"] == "not-applied"
    assert point["detail"].startswith(
        "double: 0 of 1 ranks used it in the window. Its serve() left "
    )
    assert point["metrics"]["output_tok_per_s"] > 0
    (window,) = point["kernels"]
    assert sum(window["calls"].values()) == 0
    assert sum(window["left"].values()) >= 20
    assert pq.read_table(POINT.with_suffix(".parquet")).num_rows == point["num_requests"]
    # It would come again: it is not tried again.
    assert not Path("state/attempts").exists()
    with pytest.raises(SystemExit, match=r"c2\.json: not-applied: double: 0 of 1 ranks"):
        stages.gate([str(SESSION), str(POINT)], "state/gate/small", "logs/gate.log")


def test_a_kernel_that_is_published_anew_is_another_server(project):
    publish_scripted(KERNEL)
    first = serve(launch())
    publish_scripted(KERNEL, SERVES + "\n")

    second = serve(launch())

    assert first["outcome"] == second["outcome"] == "ok"
    assert first["server_id"] != second["server_id"]
