"""The plan as a record, as text, and as slices that jobs depend on."""

import json
from pathlib import Path

import pytest

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.plan import describe, estimate_s, plan_record
from leverbench.campaign.slices import Launch, Point, launch_slice, point_slice

TEXT = """\
campaign: small
target: {output_tok_per_s: 100}
model: {path: models/m, prepare: tiny}
engine: {name: sglang, args: {dtype: bfloat16}, env: {OMP_NUM_THREADS: 1}}
variants:
  baseline: {}
  float32: {from: baseline, args: {dtype: float32}}
  unset: {from: baseline, env: {OMP_NUM_THREADS: null}}
  again: {from: baseline, control: a-a}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
ladder: {1: 4, 8: 12}
sessions: 2
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    return load_campaign(path, {}, lambda engine, key: key)


def test_the_record_holds_what_is_resolved(campaign):
    plan = plan_record(campaign)

    assert plan["target"] == {"output_tok_per_s": 100}
    assert plan["ladder"] == {"1": 4, "8": 12}
    assert plan["variants"]["float32"]["delta"] == {"args.dtype": ["bfloat16", "float32"]}
    assert plan["variants"]["again"]["control"] == "a-a"
    assert sorted(plan["order"]) == sorted([v, s] for v in campaign.variants for s in (1, 2))
    assert json.loads(json.dumps(plan))["order"] == plan["order"]


def test_the_text_names_variants_deltas_order_and_jobs(campaign, tmp_path):
    text = describe(campaign, tmp_path / "none.jsonl", 3)

    assert "float32   from baseline, args.dtype: args.dtype: bfloat16 -> float32" in text
    assert "again     control of baseline" in text
    assert "session 2: " in text
    assert "C=8: fewer requests than 2C" in text
    assert "jobs: 8 launches, 16 points, 3 of them measured" in text
    assert "unknown until this project has measured once" in text


def test_the_estimate_is_the_median_of_the_history(campaign, tmp_path):
    history = tmp_path / "h.jsonl"
    entries = [("launch", 10), ("launch", 30), ("launch", 20), ("point c1", 5), ("point c8", 7)]
    torn = '{"what": "launch", "sec{"what": "launch"}\n7\n'
    lines = [json.dumps({"what": w, "seconds": s}) + "\n" for w, s in entries]
    history.write_text(torn + "".join(lines))

    # 8 launches of 20 s, each with a point of 5 s and one of 7 s.
    assert estimate_s(campaign, history) == 8 * (20 + 5 + 7)


def test_slices_survive_the_way_into_a_job(campaign):
    launch = launch_slice(campaign, "unset", 2)
    point = point_slice(campaign, "random", 8)

    assert launch.removed == ("env.OMP_NUM_THREADS",)
    assert Launch.from_params(json.loads(json.dumps(launch.as_params()))) == launch
    assert Point.from_params(json.loads(json.dumps(point.as_params()))) == point


def test_a_slice_holds_no_other_variant_s_settings(campaign):
    assert "float32" not in json.dumps(launch_slice(campaign, "baseline", 1).as_params())
