"""The campaign of a GPU box, as far as a machine without GPUs can tell."""

from collections.abc import Iterator

import pytest
from project_copy import ROOT

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.campaign.slices import launch_slice
from leverbench.engines import get_engine
from leverbench.engines.arguments import check_arguments, identify
from leverbench.errors import LeverbenchError

pytestmark = pytest.mark.plans

PATH = "config/campaigns/deepseek-v4-flash.yaml"
CHOSEN = ("--config", f"campaign={PATH}")


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return load_campaign(ROOT / PATH, {}, lambda engine, key: get_engine(engine).lever_family(key))


def servers(campaign: Campaign) -> Iterator[tuple[str, EngineSettings]]:
    """Yields every server that a run may launch: each variant, and what recovery makes of it."""
    for name in campaign.variants:
        launch = launch_slice(campaign, name, 1)
        for cause, steps in campaign.recovery.items():
            for count in range(len(steps) + 1):
                yield f"{name} {cause} {count}", launch.recovered(steps[:count]).engine


def test_it_plans_and_says_what_a_run_would_lack(project):
    said = project.snakemake("--dry-run", *CHOSEN)

    assert said.returncode == 0, said.stdout
    lacking = [line for line in said.stdout.splitlines() if line.startswith("leverbench: ")]
    assert all(line.startswith("leverbench: a run would stop: ") for line in lacking)
    assert any("needs 4 GPUs and nvidia-smi shows 0" in line for line in lacking)
    assert any("models/DeepSeek-V4-Flash: there is no model here" in line for line in lacking)
    # 13 variants in 3 sessions: 3 workloads at 3 concurrencies each; 2 profiles a workload.
    jobs = project.jobs(*CHOSEN)
    assert jobs == {
        "plan": 1,
        "build_kernel": 1,
        "tune_kernel": 6,
        "verify_kernel": 1,
        "publish_kernel": 1,
        "microbench_kernel": 1,
        "serve": 39,
        "bench": 351,
        "profile": 78,
        "analyse": 1,
        "report": 1,
        "gate": 1,
    }


def test_a_run_without_gpus_stops_with_one_message_before_anything_starts(project):
    said = project.snakemake(*CHOSEN)

    assert said.returncode != 0
    assert "Traceback" not in said.stdout
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("leverbench: ")]
    assert line == (
        "leverbench: topology.gpus: the campaign needs 4 GPUs and nvidia-smi shows 0."
        " Run it on a machine that has them, or lower topology.gpus."
    )
    assert not (project.path / "results").exists()


def test_the_engine_s_own_parser_accepts_every_server(campaign, tmp_path, monkeypatch):
    installed = identify(campaign.variants["baseline"].engine).version
    if installed != campaign.variants["baseline"].engine.version:
        pytest.skip(f"the campaign is for another version than {installed}")
    monkeypatch.chdir(tmp_path)
    asked = dict(servers(campaign))
    answers = dict(zip(asked, check_arguments(list(asked.values())), strict=True))

    refused = {name: str(a) for name, a in answers.items() if isinstance(a, LeverbenchError)}
    assert refused == {}
    assert len(asked) == 13 * 3
    assert answers["baseline out-of-memory 0"]["numa-node"] == ["numa_node", [0, 0, 0, 0]]
    assert answers["mtp-3 out-of-memory 1"]["mem-fraction-static"] == ["mem_fraction_static", 0.6]


def test_what_the_model_s_start_asks_of_speculation(campaign):
    speculative = [
        (name, engine.args)
        for name, engine in servers(campaign)
        if "speculative-algorithm" in engine.args
    ]

    assert {name.split()[0] for name, _ in speculative} == {
        "mtp-1",
        "mtp-3",
        "mtp-1-decode-steps-2",
        "mtp-1-decode-steps-4",
        "mtp-1-fp8-tuned",
    }
    for _, args in speculative:
        assert args["speculative-algorithm"] == "EAGLE"
        assert args["speculative-eagle-topk"] == 1
        assert args["speculative-num-draft-tokens"] == args["speculative-num-steps"] + 1


def test_every_server_says_what_a_default_would_choose_for_it(campaign):
    for _, engine in servers(campaign):
        # `auto` is another backend from version to version, and reads no tuned files.
        assert engine.args["fp8-gemm-backend"] in ("triton", "cutlass")
        assert len(engine.args["numa-node"]) == engine.args["tp-size"] == campaign.gpus
        assert engine.args["random-seed"] == 1
        if engine.tuned:
            assert engine.args["fp8-gemm-backend"] == "triton"


def test_recovery_lowers_what_memory_is_taken_for(campaign):
    steps = campaign.recovery["out-of-memory"]
    launch = launch_slice(campaign, "mtp-1", 1)
    fractions = [
        launch.recovered(steps[:n]).engine.args["mem-fraction-static"]
        for n in range(len(steps) + 1)
    ]
    last = launch.recovered(steps).engine.args

    assert fractions == [0.7, 0.6, 0.6]
    # The engine takes the maximum from the list, where there is one.
    assert "cuda-graph-bs-decode" not in last
    assert last["cuda-graph-max-bs-decode"] >= max(campaign.ladder)
    # A pool that is too small asks for more, not for less.
    assert list(campaign.recovery) == ["out-of-memory"]


def test_each_variant_pulls_one_lever(campaign):
    levers = {name: variant.levers for name, variant in campaign.variants.items()}

    assert not any(variant.confounded for variant in campaign.variants.values())
    assert levers["fp8-tuned"] == levers["cutlass"] == ("fp8-gemm",)
    assert levers["nccl-ll"] == ("nccl",)
    assert levers["mtp-1"] == levers["mtp-3"] == ("mtp",)
    assert levers["expert-parallel"] == ("expert-parallel",)
    assert (levers["baseline"], levers["again"]) == ((), ())
    # The measured concurrencies are captured as they are.
    captured = campaign.variants["baseline"].engine.args["cuda-graph-bs-decode"]
    assert set(campaign.ladder) <= set(captured)
