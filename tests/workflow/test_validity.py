"""One campaign in which each variant has one thing planted that must void its points."""

import json

import pytest
from project_copy import ProjectCopy
from scripted_campaign import LIMITS, measurements, use_scripted_gpu, use_scripted_servers
from scripted_gpu import Gpu

from leverbench.analysis.measurements import as_rows, read_measurements
from leverbench.analysis.ratios import applied_levers, ratios, read_launches
from leverbench.records import read_record

SCRIPT = {"ttft_s": 0.005, "step_s": 0.012, "metrics_prefix": "sglang"}
# Two windows of warm-up, of four requests of seven steps after the first token, two at a time.
WARM_UP_REQUESTS, WARM_UP_STEPS = 8, 28
# Of the window's 12 waves or, where it would be too short else, some 17.
GOOD_WAVES_STEPS = 8 * 7
# What the server of a variant does, and the reason that must be found.
PLANTED = {
    "failing": ({"misbehave": {WARM_UP_REQUESTS + 1: "status"}}, "failed-requests"),
    "miscounting": ({"misbehave": {WARM_UP_REQUESTS + 1: "count"}}, "wrong-token-count"),
    "cached": ({"cached_tokens": 4}, "prefix-cache-hits"),
    "compiling": ({"says": "Compiling a kernel"}, "compiled-in-window"),
    # The answer at the launch and the one before the point are right.
    "forgetful": ({"right_answers": 2}, "probe-failed-after"),
    "popular": ({"strangers_tokens": 5}, "server-shared"),
    "waking": (
        # Fast, once awake: the requests that the ladder asks for take 0.7 s.
        {"step_s": 0.008, "throttled_steps": WARM_UP_STEPS, "throttled_factor": 12.0},
        "window-too-short",
    ),
    "restless": (
        {"throttled_steps": WARM_UP_STEPS // 2, "throttled_factor": 12.0},
        "unsteady-warm-up",
    ),
    "tiring": (
        {
            "throttled_from": WARM_UP_STEPS + GOOD_WAVES_STEPS,
            "throttled_steps": 1000,
            "throttled_factor": 6.0,
        },
        "unsteady-window",
    ),
}
# What its GPU does; 1 is the first process of a machine, and no server's.
ON_THE_GPU = {
    "hot": (Gpu(reasons=0x40), "gpu-throttled"),
    "capped": (Gpu(reasons=0x4), "gpu-capped"),
    "beside-others": (Gpu(pids=(1,)), "gpu-shared"),
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, small_project) -> ProjectCopy:
    """The campaign after its run."""
    project = small_project(tmp_path_factory.mktemp("void"))
    variants = {
        "baseline": {"sessions": 2},
        "good": {"from": "baseline", "env": env(step_s=0.015)},
        # Its second session alone has something planted.
        "half": {"from": "baseline", "sessions": 2, "env": env(step_s=0.018)},
    }
    for name, (script, _) in PLANTED.items():
        variants[name] = {"from": "baseline", "sessions": 1, "env": env(**script)}
    for name in ON_THE_GPU:
        # Something must differ, or it would be no variant.
        variants[name] = {"from": "baseline", "sessions": 1, "env": env(seed=2)}
    use_scripted_servers(
        project,
        SCRIPT,
        variants=variants,
        ladder={2: 24},
        limits={
            **LIMITS,
            "min_window_s": 1.0,
            "warm_up_agreement": 0.5,
            "max_warm_up_windows": 2,
        },
        profile={"concurrency": []},
    )
    gpus = {name: gpu for name, (gpu, _) in ON_THE_GPU.items()}
    use_scripted_gpu(project, {**gpus, "half/s2": Gpu(reasons=0x20)})
    said = project.snakemake()
    # A run that leaves void points has not done all of its work.
    assert said.returncode != 0
    return project


def env(**script: object) -> dict[str, str]:
    return {"SCRIPT": json.dumps({**SCRIPT, **script})}


@pytest.mark.parametrize(
    ("variant", "reason"),
    [(name, reason) for planted in (PLANTED, ON_THE_GPU) for name, (_, reason) in planted.items()],
)
def test_each_planted_reason_is_caught_and_shown(campaign, variant, reason):
    (row,) = [row for row in measurements(campaign) if row["variant"] == variant]
    page = (campaign.path / "reports/small/index.html").read_text()

    assert (row["valid"], row["invalid_reason"]) == ("False", reason)
    # What was measured all the same is shown.
    assert float(row["output_tok_per_s"]) > 0
    assert f'<span class="warn">{reason}</span>' in page
    assert not (campaign.path / f"results/small/{variant}/s1/random/c2.json").exists()


def test_rows_with_nothing_planted_are_valid(campaign):
    rows = {(row["variant"], row["session"]): row for row in measurements(campaign)}

    for key in (("baseline", "1"), ("baseline", "2"), ("good", "1"), ("half", "1")):
        assert (rows[key]["valid"], rows[key]["invalid_reason"]) == ("True", "")
        assert float(rows[key]["gpu_power_w"]) == 300
        assert rows[key]["gpu_reasons"] == "none"
    assert rows["half", "2"]["invalid_reason"] == "gpu-throttled"
    assert rows["half", "2"]["gpu_reasons"] == "software-thermal 100%"


def test_no_ratio_pools_a_void_row(campaign):
    folder = campaign.path / "results/small"
    plan = read_record(folder / "plan.json")
    rows = as_rows(read_measurements(folder / "analysis/measurements.parquet"))
    launches = read_launches(rows, folder / "launches")
    found = ratios(plan, rows, applied_levers(plan, rows, launches), launches)

    sessions = {
        ratio.variant: [session for session, _ in ratio.sessions]
        for ratio in found
        if ratio.metric == "output_tok_per_s"
    }
    assert sessions == {"good": [1], "half": [1]} | {name: [] for name in (*PLANTED, *ON_THE_GPU)}
