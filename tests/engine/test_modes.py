"""The real engine in other ways: a session as one job, recovery, attached."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded import Embedded, events, left_behind

from leverbench.campaign.file import load_campaign
from leverbench.engines import get_engine

POINT = "results/quickstart/baseline/s1/random/c8.json"


def test_one_session_as_one_job(small):
    small.change(profile={"concurrency": [8], "steps": 3})

    said = small.snakemake("--config", "execution=session")

    assert said.returncode == 0, said.stdout[-5000:]
    assert [e["what"] for e in events(small)].count("launch") == 1
    assert json.loads((small.path / POINT).read_text())["valid"]
    folder = small.path / "results/quickstart/baseline/profile/random/c8"
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "profiled"
    # The files are the usual ones: nothing is left for a run that keeps a server.
    assert small.jobs() == {}


def test_recovery_from_a_pool_that_is_too_small(small):
    small.change(
        variants={
            "baseline": {},
            "tiny-pool": {"from": "baseline", "args": {"mem-fraction-static": 0.0001}},
        },
        recovery={"pool-too-small": [{"args": {"mem-fraction-static": 0.1}}]},
        profile={"concurrency": []},
        ladder={1: 2},
    )

    said = small.snakemake()

    assert said.returncode == 0, said.stdout[-5000:]
    session = json.loads((small.path / "results/quickstart/tiny-pool/s1/server.json").read_text())
    assert [step["cause"] for step in session["recovery"]] == ["pool-too-small"]
    # The step undid what the variant is about: that is told, and no figure is called its own.
    findings = (small.path / "reports/quickstart/findings.md").read_text()
    assert "tiny-pool: not applied" in findings.replace("\\", "")


@pytest.fixture
def running(embedded: Embedded, tmp_path: Path) -> Iterator[str]:
    """The address of a server that somebody else started."""
    campaign = load_campaign(
        embedded.project.path / "config/campaign.yaml", {}, lambda engine, key: key
    )
    settings = campaign.variants["baseline"].engine
    engine = get_engine(settings.name)
    model = embedded.project.path / "models/tiny"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = engine.command(settings, model)
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [str(port) if word == "{port}" else word for word in words],
            env={**os.environ, **engine.environment(settings)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"{url}{engine.ready_path}", timeout=30)
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
                assert time.monotonic() < end
                time.sleep(0.5)
        yield url
        assert server.poll() is None
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_attached_to_a_server_started_by_hand(small, running):
    shutil.rmtree(small.path / "models")
    small.change(
        attach=running,
        model={"token_ids": [300, 900]},
        engine={"name": "sglang"},
        profile={"concurrency": [8], "steps": 3},
    )

    said = small.snakemake()

    assert said.returncode == 0, said.stdout[-5000:]
    assert [e["what"] for e in events(small)].count("launch") == 0
    point = json.loads((small.path / POINT).read_text())
    assert point["valid"]
    folder = small.path / "results/quickstart/baseline/profile/random/c8"
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "profiled"
    assert running in (small.path / "reports/quickstart/index.html").read_text()
    # It lives on, and answers.
    assert urllib.request.urlopen(f"{running}/health", timeout=60).status == 200
    assert left_behind(small) == {}
