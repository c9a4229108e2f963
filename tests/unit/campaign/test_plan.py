"""The plan as a record, as text, and as slices that jobs depend on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from unit.campaign.campaign_files import HEAD, load

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign, RecoveryStep
from leverbench.campaign.order import session_order
from leverbench.campaign.plan import describe, estimate_s, plan_record, planned_order
from leverbench.campaign.slices import (
    Launch,
    Patience,
    Point,
    ProfileSlice,
    launch_slice,
    patience,
    point_slice,
    profile_slice,
)
from leverbench.errors import LeverbenchError
from leverbench.records import read_record, write_record

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
  both: {cross: [float32, unset]}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
ladder: {1: 4, 8: 12}
sessions: 2
recovery:
  out-of-memory:
    - args: {mem-fraction-static: 0.6}
    - {args: {dtype: null}, env: {X: 1}}
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    return load_campaign(path, {}, lambda engine, key: key)


@pytest.fixture
def order(campaign: Campaign, tmp_path: Path):
    return planned_order(campaign, tmp_path / "results")


def test_the_record_holds_what_is_resolved(campaign, order):
    plan = plan_record(campaign, order)

    assert plan["target"] == {"output_tok_per_s": 100}
    assert plan["ladder"] == {"1": 4, "8": 12}
    assert plan["variants"]["float32"]["delta"] == {"args.dtype": ["bfloat16", "float32"]}
    assert plan["variants"]["again"]["control"] == "a-a"
    assert plan["variants"]["both"]["cross"] == ["float32", "unset"]
    assert plan["profile"] == {"concurrency": [16], "steps": 5}
    assert len(plan["agreement"]["prompts"]) == 3
    assert plan["agreement"]["tolerance"] == 0.1
    assert plan_record(replace(campaign, agreement=None), order)["agreement"] is None
    assert plan["recovery"]["out-of-memory"][1] == {"args": {"dtype": None}, "env": {"X": "1"}}
    assert sorted(plan["order"]) == sorted([v, s] for v in campaign.variants for s in (1, 2))
    assert json.loads(json.dumps(plan))["order"] == plan["order"]


def test_the_text_names_variants_deltas_order_and_jobs(campaign, order, tmp_path):
    text = describe(campaign, order, tmp_path / "none.jsonl", 3)

    assert "float32   from baseline, args.dtype: args.dtype: bfloat16 -> float32" in text
    assert "again     control of baseline" in text
    assert "both      from float32, env.OMP_NUM_THREADS: env.OMP_NUM_THREADS: 1 -> unset" in text
    assert "session 2: " in text
    assert "C=8: fewer requests than 2C" in text
    assert "C=1: fewer" not in text
    assert (
        "recovery from out-of-memory: args.mem-fraction-static: 0.6; then args.dtype: unset" in text
    )
    assert "jobs: 10 launches, 20 points (3 of them measured), 5 profiles" in text
    assert "unknown until this campaign has measured once" in text


def test_the_estimate_is_the_median_of_the_history(campaign, order, tmp_path):
    history = tmp_path / "h.jsonl"
    entries = [("launch", 10), ("launch", 30), ("launch", 20), ("point c1", 5), ("point c8", 7)]
    torn = '{"what": "launch", "sec{"what": "launch"}\n7\n'
    lines = [
        json.dumps({"campaign": c, "what": w, "seconds": s}) + "\n"
        for c, factor in ((campaign.name, 1), ("another", 100))
        for w, s in [(what, factor * seconds) for what, seconds in entries]
    ]
    history.write_text(torn + "".join(lines))

    # No profile has been taken yet.
    assert estimate_s(campaign, order, history) is None
    profile = {"campaign": campaign.name, "what": "profile", "seconds": 11}
    history.write_text(history.read_text() + json.dumps(profile) + "\n")
    # 10 launches of 20 s, each with a point of 5 s and one of 7 s; 5 profiles.
    assert estimate_s(campaign, order, history) == 10 * (20 + 5 + 7) + 5 * 11


def test_slices_survive_the_way_into_a_job(campaign):
    launch = launch_slice(campaign, "unset", 2)
    point = point_slice(campaign, "random", 8)
    profile = profile_slice(campaign, "random", 16)
    waiting = patience(campaign)

    assert launch.removed == ("env.OMP_NUM_THREADS",)
    assert Launch.from_params(json.loads(json.dumps(launch.as_params()))) == launch
    assert Point.from_params(json.loads(json.dumps(point.as_params()))) == point
    assert ProfileSlice.from_params(json.loads(json.dumps(profile.as_params()))) == profile
    assert Patience.from_resources(waiting.as_resources()) == waiting
    silent = replace(waiting, agreement=None)
    assert Patience.from_resources(silent.as_resources()) == silent


def test_a_limit_that_came_later_is_in_a_slice_only_where_it_is_set(campaign):
    usual = point_slice(campaign, "random", 8)
    other = replace(campaign, limits=replace(campaign.limits, max_power_capped_share=1.0))
    set_so = point_slice(other, "random", 8)

    # Or points that were measured before would be measured again.
    assert "max_power_capped_share" not in usual.as_params()
    assert set_so.as_params()["max_power_capped_share"] == 1.0
    assert Point.from_params(set_so.as_params()) == set_so


def test_the_launch_of_an_attached_server_survives_the_way_into_a_job(tmp_path):
    head = HEAD.replace("{path: models/m}", "{token_ids: [10, 90]}").replace(
        ", args: {dtype: bfloat16, device: cpu}, env: {OMP_NUM_THREADS: 1}", ""
    )
    launch = launch_slice(load(tmp_path, "a: {attach: 'http://h:1'}\n", head), "a", 1)

    assert launch.token_ids == (10, 90)
    assert Launch.from_params(json.loads(json.dumps(launch.as_params()))) == launch


def test_an_attached_campaign_has_sessions_and_no_launches(tmp_path):
    head = HEAD.replace("{path: models/m}", "{token_ids: [10, 90]}").replace(
        ", args: {dtype: bfloat16, device: cpu}, env: {OMP_NUM_THREADS: 1}", ""
    )
    variants = "a: {attach: 'http://h:1', sessions: 2}\n"
    attached = load(tmp_path, variants, head + "ladder: {1: 4}\n")
    order = planned_order(attached, tmp_path / "results")
    history = tmp_path / "h.jsonl"
    entry = {"campaign": attached.name, "what": "point c1", "seconds": 30}
    history.write_text(json.dumps(entry) + "\n")

    text = describe(attached, order, history, 0)
    assert "model of the server, on servers that others started" in text
    assert "jobs: 2 sessions, 2 points (0 of them measured), 0 profiles" in text
    assert "estimated time: 1 min" in text


def test_a_slice_holds_no_other_variant_s_settings(campaign):
    assert "float32" not in json.dumps(launch_slice(campaign, "baseline", 1).as_params())


def test_recovery_changes_no_slice_and_has_a_digest(campaign, tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text(TEXT.replace("0.6", "0.5"))
    other = load_campaign(path, {}, lambda engine, key: key)

    assert launch_slice(other, "float32", 1) == launch_slice(campaign, "float32", 1)
    assert patience(other).recovery_digest != patience(campaign).recovery_digest


def test_recovery_steps_stand_on_one_another(campaign):
    launch = launch_slice(campaign, "baseline", 1)
    first, second = campaign.recovery["out-of-memory"]
    back = RecoveryStep(args={"mem-fraction-static": None, "dtype": "float16"}, env={})

    assert launch.recovered([]) == launch
    once = launch.recovered([first]).engine
    assert once.args == {"dtype": "bfloat16", "mem-fraction-static": 0.6}
    twice = launch.recovered([first, second]).engine
    assert (twice.args, twice.env) == (
        {"mem-fraction-static": 0.6},
        {"OMP_NUM_THREADS": "1", "X": "1"},
    )
    assert launch.recovered([first, second, back]).engine.args == {"dtype": "float16"}


# --- the order goes on from what is there


def measure(results: Path, *sessions: tuple[str, int]) -> None:
    for variant, number in sessions:
        write_record(results / variant / f"s{number}/server.json", {"outcome": "ok"})


def test_a_plan_of_which_nothing_is_measured_binds_nobody(campaign, order, tmp_path):
    results = tmp_path / "results"
    path = tmp_path / "c.yaml"
    write_record(results / "plan.json", plan_record(campaign, order))
    path.write_text(TEXT.replace("  again:", "  more: {from: baseline, args: {x: 1}}\n  again:"))
    longer = load_campaign(path, {}, lambda engine, key: key)

    sessions = {name: 2 for name in longer.variants}
    parents = {name: variant.parent for name, variant in longer.variants.items()}
    assert planned_order(longer, results) == session_order(sessions, parents, 1)


def test_a_variant_added_after_a_block_was_begun_comes_later(campaign, order, tmp_path):
    results = tmp_path / "results"
    path = tmp_path / "c.yaml"
    write_record(results / "plan.json", plan_record(campaign, order))
    measure(results, order[0])
    path.write_text(TEXT.replace("  again:", "  more: {from: baseline, args: {x: 1}}\n  again:"))

    longer = planned_order(load_campaign(path, {}, lambda engine, key: key), results)
    # The first block is complete as planned, and holds its place although one session is there.
    assert longer[:5] == order[:5]
    assert all(session != 1 for variant, session in longer if variant == "more")
    # The second was not begun: it takes the new one in.
    assert {v for v, session in longer if session == 2} == {*campaign.variants, "more"}
    assert {v for v, session in longer if session == 3} == {"baseline", "more"}


def test_a_variant_that_was_taken_out_for_a_while_keeps_its_sessions(campaign, order, tmp_path):
    results = tmp_path / "results"
    measure(results, *order)
    without = [session for session in order if session[0] != "again"]
    write_record(
        results / "plan.json", {**plan_record(campaign, order), "order": list(map(list, without))}
    )

    assert sorted(planned_order(campaign, results)) == sorted(order)


def test_what_was_measured_is_known_without_the_plan_too(campaign, tmp_path):
    results = tmp_path / "results"
    measure(results, ("baseline", 4), ("again", 4), ("gone", 9))
    (results / "baseline/s01").mkdir()
    (results / "baseline/sx").mkdir()

    found = planned_order(campaign, results)
    # The blocks of a plan from nothing, and beside them what was measured outside of these.
    assert found == [*planned_order(campaign, tmp_path / "none"), ("baseline", 4), ("again", 4)]


def test_the_plan_of_another_file_is_not_continued(campaign, order, tmp_path):
    results = tmp_path / "results"
    measure(results, ("baseline", 7))
    write_record(results / "plan.json", {**plan_record(campaign, order), "file": "other.yaml"})

    assert planned_order(campaign, results) == order


@pytest.mark.parametrize(
    "damage", [{"order": [["baseline"]]}, {"order": 7}, {"order": [["a", "b"]]}]
)
def test_a_damaged_plan_is_one_message(campaign, order, tmp_path, damage):
    path = tmp_path / "results/plan.json"
    write_record(path, {**plan_record(campaign, order), **damage})
    with pytest.raises(LeverbenchError, match="no readable order"):
        planned_order(campaign, path.parent)
    record = read_record(path)
    del record["order"]
    path.write_text(json.dumps(record))
    with pytest.raises(LeverbenchError, match="no readable order"):
        planned_order(campaign, path.parent)
    path.write_text('{"schema_ver')
    with pytest.raises(LeverbenchError, match="unreadable record"):
        planned_order(campaign, path.parent)


def test_a_campaign_does_not_take_the_place_of_an_import(campaign, order, tmp_path):
    write_record(tmp_path / "plan.json", {**plan_record(campaign, order), "imported": {"kind": ""}})

    with pytest.raises(LeverbenchError, match="an import of the name small is here"):
        planned_order(campaign, tmp_path)


def test_a_point_measured_first_leaves_the_blocks_whole(campaign, tmp_path):
    """One result file as the target makes no plan: the next plan still has full blocks."""
    whole = planned_order(campaign, tmp_path)
    variant = list(campaign.variants)[-1]
    record = tmp_path / variant / "s1/server.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")

    assert planned_order(campaign, tmp_path) == whole
