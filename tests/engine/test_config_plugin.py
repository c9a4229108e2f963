"""Tuned FP8 configs in the real server: served to each of its ranks, or left to the engine."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from config_plugin import gemm_config, write_config_plugin
from project_copy import ROOT
from word_model import WORDS, write_word_model

from leverbench.campaign.model import Engine
from leverbench.engines import get_engine
from leverbench.engines.sglang_config_lines import applied_files, looked_up
from leverbench.serving.calls import VARIABLE

PLUGIN = Path(__file__).parents[1] / "lookup_plugin"
RANKS = 2
SERVED, ABSENT = (2048, 4096), (1024, 512)
# Weights that are drawn at the start will do: nobody reads the answer.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}


@dataclass(frozen=True)
class Served:
    """A server after its first answer.

    Attributes:
        log: What its processes told.
        got: What each rank's lookups gave it, by pid and shape.
        calls: Lookups that were served and left, by pid.
        digests: Of the files that it was given.
    """

    log: str
    got: dict[int, dict[str, object]]
    calls: dict[int, tuple[int, int]]
    digests: dict[tuple[int, int], str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    model = write_word_model(folder / "model")
    (model / "config.json").write_text(json.dumps(MODEL))
    tuned = {1: gemm_config(16), 24: gemm_config(64)}
    digests = write_config_plugin(folder, {SERVED: tuned}, "Made-up GPU")
    base = yaml.safe_load((ROOT / "config/campaign.yaml").read_text())["engine"]
    args = {**base["args"], "tp-size": RANKS, "load-format": "dummy"}
    cores = sorted(os.sched_getaffinity(0))
    env = {name: str(value) for name, value in base["env"].items()} | {
        "LOOKED_UP": " ".join(f"{n}x{k}" for n, k in (SERVED, ABSENT)),
        # A core for each rank, which the engine else wants a NUMA node for.
        "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}",
    }
    settings = Engine("sglang", None, None, (), args, env)
    engine = get_engine("sglang")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [port if word == "{port}" else word for word in engine.command(settings, model)],
            env={
                **os.environ,
                **engine.environment(settings, [folder / "plugin", PLUGIN]),
                VARIABLE: str(folder / "calls"),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        answer(server, f"http://127.0.0.1:{port}", log)
        text = log.read_text()
        got: dict[int, dict[str, object]] = {}
        for pid, shape, config in re.findall(r"lookup_plugin: process (\d+) (\S+) (.*)", text):
            got.setdefault(int(pid), {})[shape] = json.loads(config)
        calls = {
            int(path.name.split(".")[1]): struct.unpack("<qq", path.read_bytes())
            for path in (folder / "calls").iterdir()
        }
        yield Served(text, got, calls, digests)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answer(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Waits until a server answers one request."""
    question = json.dumps(
        {"input_ids": [3, 4], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    ).encode()
    for attempt in range(600):
        assert server.poll() is None, log.read_text()[-6000:]
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            break
        assert attempt < 599, log.read_text()[-6000:]
        time.sleep(0.5)
    request = urllib.request.Request(
        f"{url}/generate", question, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        assert json.load(response)["meta_info"]["completion_tokens"] == 2


def test_each_rank_gets_the_config_of_the_nearest_m_and_none_where_there_is_no_file(served):
    expected = {"2048x4096": gemm_config(64), "1024x512": None}

    assert len(served.got) == RANKS
    assert all(got == expected for got in served.got.values())


def test_the_log_proves_on_which_ranks_the_file_is_in_force(served):
    proof, absent = applied_files(served.log, {**served.digests, ABSENT: "0" * 16}, RANKS)

    assert (proof.applied, proof.problem) == (True, None)
    assert set(proof.served) == set(served.got)
    assert proof.used == (24,)
    assert absent.applied is False


def test_the_engine_itself_looks_only_for_what_is_not_there(served):
    lookups = looked_up(served.log)

    assert {(line.n, line.k, line.hit, line.device) for line in lookups} == {
        (*ABSENT, False, "Made-up_GPU")
    }
    assert sorted(line.rank or "" for line in lookups) == ["TP0", "TP1"]


def test_ranks_alone_are_hooked_and_count_their_lookups(served):
    registered = re.findall(r"leverbench: kernel w8a8-block-fp8 .* in process (\d+)", served.log)

    assert sorted(map(int, registered)) == sorted(served.got)
    assert served.calls == dict.fromkeys(served.got, (1, 1))
