import math

import pytest
from unit.analysis.fake_campaign import FakeCampaign, write_campaign, write_record

from leverbench.analysis.measurements import as_rows, collect
from leverbench.analysis.ratios import applied_levers, ratios, read_launches, spreads
from leverbench.analysis.settings import changes
from leverbench.errors import LeverbenchError
from leverbench.records import read_record


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path)


def measure(campaign: FakeCampaign):
    """Returns the plan, rows, what was applied, and ratios by (variant, C, metric)."""
    plan = read_record(campaign.plan)
    rows = as_rows(collect(plan, campaign.results, campaign.points, campaign.attempts))
    launches = read_launches(rows, campaign.launches)
    applied = applied_levers(plan, rows, launches)
    found = {(r.variant, r.concurrency, r.metric): r for r in ratios(plan, rows, applied, launches)}
    return plan, rows, applied, found


def ratio(campaign: FakeCampaign, variant: str, concurrency: int, metric="output_tok_per_s"):
    return measure(campaign)[3][variant, concurrency, metric]


def mean(found):
    return math.prod(value for _, value in found.sessions) ** (1 / len(found.sessions))


def test_each_session_has_its_ratio(campaign):
    found = ratio(campaign, "float32", 16)
    assert [session for session, _ in found.sessions] == [1, 2]
    assert [value for _, value in found.sessions] == pytest.approx([1.4, 1.4 * 1.01])
    assert mean(found) == pytest.approx(1.4 * 1.01**0.5)
    assert found.withheld is None


def test_times_have_ratios_too(campaign):
    found = ratio(campaign, "float32", 16, "mean_tpot_ms")
    assert mean(found) == pytest.approx(1 / (1.4 * 1.01**0.5))


def test_the_baseline_has_no_ratio(campaign):
    assert {variant for variant, _, _ in measure(campaign)[3]} == {
        "threads-2",
        "float32",
        "decode-steps-4",
    }


@pytest.mark.parametrize("variant", ["float32", "baseline"])
def test_a_session_needs_valid_rows_of_both(campaign, variant):
    campaign.alter(campaign.point(variant, 2, 16), valid=False, invalid_reason="throttled")
    found = ratio(campaign, "float32", 16)
    assert found.sessions == ((1, pytest.approx(1.4)),)


def test_a_session_needs_one_protocol(campaign):
    campaign.alter(campaign.point("float32", 2, 16), protocol=2)
    found = ratio(campaign, "float32", 16)
    # Session 1 is of one protocol, but no longer of the newest.
    assert found.sessions == ()
    assert found.not_compared == ((2, "another protocol"),)


def test_only_pairs_of_the_newest_conditions_are_pooled(campaign):
    for variant in ("baseline", "float32"):
        campaign.alter_conditions(campaign.point(variant, 2, 16), machine="Newer CPU")
    found = ratio(campaign, "float32", 16)
    assert [session for session, _ in found.sessions] == [2]
    assert found.not_compared == ()


@pytest.mark.parametrize("what", ["model", "machine", "engine", "workload"])
def test_rows_of_other_conditions_are_not_divided(campaign, what):
    for session in (1, 2):
        campaign.alter_conditions(campaign.point("float32", session, 16), **{what: "other"})
    _, _, _, found = measure(campaign)
    withheld = found["float32", 16, "output_tok_per_s"]
    assert withheld.sessions == ()
    assert withheld.not_compared == ((1, f"another {what}"), (2, f"another {what}"))
    assert len(found["float32", 8, "output_tok_per_s"].sessions) == 2


def test_an_older_pair_of_other_conditions_leaves_the_newer(campaign):
    campaign.alter_conditions(campaign.point("float32", 1, 16), machine="x", model="y")
    found = ratio(campaign, "float32", 16)
    assert found.sessions == ((2, pytest.approx(1.414)),)
    assert found.not_compared == ((1, "another model and another machine"),)


@pytest.mark.parametrize("key", ["python", "wrapper", "version", "attach"])
def test_the_engine_may_differ_where_it_is_the_lever(campaign, key):
    plan = read_record(campaign.plan)
    plan["variants"]["float32"]["delta"] = {key: [None, "other"]}
    write_record(campaign.plan, plan)
    for session in (1, 2):
        path = campaign.launches / f"float32-s{session}.json"
        lever = {"key": key, "asked": "other", "seen": "other", "applied": True, "evidence": "e"}
        campaign.alter(path, levers_applied=[lever])
        campaign.alter_conditions(campaign.point("float32", session, 16), engine="other")
    assert len(ratio(campaign, "float32", 16).sessions) == 2
    campaign.alter_conditions(campaign.point("float32", 1, 16), engine="third")
    # Sessions of two engines are not pooled.
    assert [session for session, _ in ratio(campaign, "float32", 16).sessions] == [2]


def test_all_of_the_server_may_differ_where_it_is_the_lever(campaign):
    plan = read_record(campaign.plan)
    plan["variants"]["float32"]["delta"] = {"attach": [{"url": "http://a"}, {"url": "http://b"}]}
    write_record(campaign.plan, plan)
    for session in (1, 2):
        path = campaign.launches / f"float32-s{session}.json"
        lever = {"key": "attach", "asked": {"url": "http://b"}, "seen": "http://b"}
        campaign.alter(path, levers_applied=[{**lever, "applied": True, "evidence": "e"}])
        point = campaign.point("float32", session, 16)
        campaign.alter_conditions(point, engine="other", machine="other")
    assert len(ratio(campaign, "float32", 16).sessions) == 2
    campaign.alter_conditions(point, model="other")
    assert ratio(campaign, "float32", 16).not_compared == ((2, "another model"),)


def test_a_point_outside_the_ladder_has_ratios(campaign):
    for variant in ("baseline", "float32"):
        campaign.add_point(variant, 1, 4, 8)
    assert ratio(campaign, "float32", 4).sessions == ((1, pytest.approx(1.2)),)


def test_without_a_pair_there_is_no_ratio(campaign):
    for session in (1, 2):
        campaign.point("float32", session, 16).unlink()
    found = ratio(campaign, "float32", 16)
    assert found.sessions == ()
    assert found.withheld is None


def test_a_metric_that_was_not_measured_has_no_ratio(campaign):
    campaign.alter_metrics(campaign.point("float32", 1, 16), mean_tpot_ms=None)
    assert [s for s, _ in ratio(campaign, "float32", 16, "mean_tpot_ms").sessions] == [2]
    assert [s for s, _ in ratio(campaign, "float32", 16).sessions] == [1, 2]


def test_seen_in_every_launch_is_applied(campaign):
    proof = measure(campaign)[2]["float32"]
    assert (proof.applied, proof.state, proof.reason) == (True, "applied", "")
    assert proof.evidence == (("args.dtype: seen float32 (server info)", 2),)


def test_one_launch_without_the_lever_withholds_the_ratio(campaign):
    campaign.alter_lever(
        "threads-2", 2, "env.OMP_NUM_THREADS", seen="1", applied=False, evidence="/proc environ"
    )
    _, _, applied, found = measure(campaign)
    assert applied["threads-2"].applied is False
    expected = "env.OMP_NUM_THREADS: asked 2, seen 1 (/proc environ)"
    assert applied["threads-2"].reason == expected
    assert found["threads-2", 16, "output_tok_per_s"].withheld == f"not applied: {expected}"
    assert found["threads-2", 16, "output_tok_per_s"].sessions == ()
    assert found["float32", 16, "output_tok_per_s"].withheld is None


def test_any_setting_that_is_not_in_force_withholds_the_ratio(campaign):
    campaign.alter_lever("threads-2", 2, "args.dtype", seen="float16", applied=False)
    campaign.alter_lever("float32", 2, "env.OMP_NUM_THREADS", seen=None, applied=None)
    applied = measure(campaign)[2]
    assert applied["threads-2"].state == "not applied"
    assert applied["threads-2"].reason == "args.dtype: asked bfloat16, seen float16 (server info)"
    # What is not the lever need not be proven.
    assert applied["float32"].state == "applied"


def test_what_descends_from_a_variant_that_is_not_applied_is_not_either(campaign):
    plan = read_record(campaign.plan)
    plan["variants"]["threads-2"]["parent"] = "float32"
    write_record(campaign.plan, plan)
    campaign.alter_lever("baseline", 1, "env.OMP_NUM_THREADS", seen="4", applied=False)
    _, _, applied, found = measure(campaign)
    assert {proof.state for proof in applied.values()} == {"not applied"}
    seen = "env.OMP_NUM_THREADS: asked 1, seen 4 (server info)"
    assert applied["baseline"].reason == seen
    above = f"parent baseline is not applied: {seen}"
    assert applied["float32"].reason == above
    assert applied["threads-2"].reason == f"parent float32 is not applied: {above}"
    assert all(ratio.sessions == () for ratio in found.values())


def test_a_launch_without_a_valid_row_does_not_count(campaign):
    for concurrency in (1, 8, 16):
        campaign.alter(campaign.point("threads-2", 2, concurrency), valid=False)
    campaign.alter_lever("threads-2", 2, "env.OMP_NUM_THREADS", seen="1", applied=False)
    assert measure(campaign)[2]["threads-2"].state == "applied"


@pytest.mark.parametrize(
    ("old", "seen", "applied"), [(8, 8, None), ("8", 8, None), (8, 16, True), (8, None, None)]
)
def test_a_removed_setting_is_applied_if_another_value_is_seen(campaign, old, seen, applied):
    plan = read_record(campaign.plan)
    plan["variants"]["float32"]["delta"] = {"args.dtype": [old, None]}
    write_record(campaign.plan, plan)
    for session in (1, 2):
        campaign.alter_lever("float32", session, "args.dtype", asked=None, seen=seen, applied=None)
    assert measure(campaign)[2]["float32"].applied is applied


@pytest.mark.parametrize("way", ["unknown", "unmentioned", "no file"])
def test_what_cannot_be_shown_is_not_applied(campaign, way):
    path = campaign.launches / "float32-s1.json"
    if way == "unknown":
        campaign.alter_lever("float32", 1, "args.dtype", seen=None, applied=None)
    elif way == "unmentioned":
        campaign.alter(path, levers_applied=[])
    else:
        path.unlink()
    _, _, applied, found = measure(campaign)
    assert applied["float32"].applied is None
    assert applied["float32"].state == "not applied"
    assert applied["float32"].reason != ""
    assert found["float32", 16, "output_tok_per_s"].sessions == ()


def test_a_failed_start_beside_good_launches_does_not_unprove_them(campaign):
    for concurrency in (1, 8, 16):
        campaign.alter(
            campaign.point("float32", 2, concurrency), valid=False, outcome="start-failed"
        )
    campaign.alter_lever("float32", 2, "args.dtype", seen=None, applied=None)
    assert measure(campaign)[2]["float32"].applied is True


def test_rows_that_did_not_use_their_kernel_are_not_applied_and_never_ratios(campaign):
    missed = {"valid": False, "outcome": "not-applied", "invalid_reason": "not-applied"}
    for session, detail in ((1, "double: not loaded"), (2, "double: not called")):
        for concurrency in (1, 8, 16):
            # Their figures stand in the record.
            point = campaign.point("float32", session, concurrency)
            campaign.alter(point, **missed, detail=detail)
    _, rows, applied, found = measure(campaign)

    proof = applied["float32"]
    told = "double: not loaded; double: not called"
    assert (proof.applied, proof.state, proof.reason) == (False, "not applied", told)
    ratio = found["float32", 16, "output_tok_per_s"]
    assert (ratio.sessions, ratio.withheld) == ((), f"not applied: {told}")
    shown = [row for row in rows if row["variant"] == "float32"]
    assert {row["invalid_reason"] for row in shown} == {"not-applied"}
    assert all(row["output_tok_per_s"] > 0 for row in shown)


def test_a_row_that_did_not_use_its_kernel_leaves_those_that_did(campaign):
    missed = {"valid": False, "outcome": "not-applied", "detail": "double: not called"}
    campaign.alter(campaign.point("float32", 1, 16), **missed)
    _, _, applied, found = measure(campaign)

    assert applied["float32"].state == "applied"
    assert [s for s, _ in found["float32", 16, "output_tok_per_s"].sessions] == [2]


def test_a_variant_without_rows_is_not_measured_rather_than_not_applied(campaign):
    for session in (1, 2):
        for concurrency in (1, 8, 16):
            campaign.point("float32", session, concurrency).unlink()
    proof = measure(campaign)[2]["float32"]
    assert (proof.applied, proof.state) == (None, "not measured")


def test_a_control_has_ratios_like_any_other(campaign):
    plan = read_record(campaign.plan)
    plan["variants"]["threads-2"] |= {"delta": {}, "levers": [], "control": "a-a"}
    write_record(campaign.plan, plan)
    _, _, applied, found = measure(campaign)
    assert applied["threads-2"].applied is True
    assert mean(found["threads-2", 16, "output_tok_per_s"]) == pytest.approx(1.01 * 1.01**0.5)


def test_confounded_is_carried(campaign):
    campaign.alter_variant("float32", confounded=True)
    assert ratio(campaign, "float32", 1).confounded
    assert not ratio(campaign, "threads-2", 1).confounded


MEMORY = {"args": {"memory": 0.8}}


def test_recovery_on_one_side_confounds_the_ratio_and_names_the_settings(campaign):
    campaign.recover("float32", 2, MEMORY)
    found = ratio(campaign, "float32", 16)
    assert found.confounded
    assert found.recovery == ("args.memory: unset in baseline, 0.8 in float32",)
    assert found.sessions
    assert not ratio(campaign, "threads-2", 16).confounded


def test_the_parents_recovery_confounds_every_ratio_to_it(campaign):
    for session in (1, 2):
        campaign.recover("baseline", session, MEMORY)
        campaign.recover("float32", session, MEMORY)
    _, _, _, found = measure(campaign)
    told = ("args.memory: 0.8 in baseline, unset in threads-2",)
    assert found["threads-2", 8, "mean_tpot_ms"].recovery == told
    # The same steps on both sides.
    assert found["float32", 8, "mean_tpot_ms"].recovery == ()
    assert not found["float32", 8, "mean_tpot_ms"].confounded


def test_recovery_of_a_session_that_is_not_compared_confounds_nothing(campaign):
    campaign.recover("float32", 2, MEMORY)
    campaign.alter(campaign.point("baseline", 2, 16), valid=False)
    assert not ratio(campaign, "float32", 16).confounded
    assert ratio(campaign, "float32", 8).confounded


@pytest.mark.parametrize("value", ["bfloat16", None])
def test_a_lever_that_recovery_changed_is_not_applied(campaign, value):
    campaign.recover("float32", 2, {"args": {"dtype": value}})
    # The launch was asked for what recovery chose, and shows it.
    campaign.alter_lever("float32", 2, "args.dtype", asked=value, seen=value, applied=True)
    _, _, applied, found = measure(campaign)
    shown = "unset" if value is None else value
    reason = f"args.dtype: asked float32, {shown} after recovery from out-of-memory"
    assert applied["float32"].applied is False
    assert applied["float32"].reason == reason
    assert applied["float32"].evidence == (("args.dtype: seen float32 (server info)", 1),)
    assert found["float32", 16, "output_tok_per_s"].withheld == f"not applied: {reason}"


def test_a_parents_lever_that_recovery_changed_is_not_applied_either(campaign):
    campaign.alter_variant("threads-2", parent="float32")
    plan = read_record(campaign.plan)
    plan["variants"]["threads-2"]["engine"]["args"]["dtype"] = "float32"
    write_record(campaign.plan, plan)
    campaign.recover("threads-2", 1, {"args": {"dtype": "float16"}})
    applied = measure(campaign)[2]
    expected = "args.dtype: asked float32, float16 after recovery from out-of-memory"
    assert (applied["threads-2"].state, applied["threads-2"].reason) == ("not applied", expected)
    assert applied["float32"].state == "applied"


def test_a_step_that_sets_the_levers_own_value_leaves_it_in_force(campaign):
    for session in (1, 2):
        campaign.recover("float32", session, {"args": {"dtype": "float32"}})
    assert measure(campaign)[2]["float32"].state == "applied"
    assert ratio(campaign, "float32", 16).recovery == ()


def test_a_late_variant_pairs_with_its_parents_later_launches(campaign):
    plan = read_record(campaign.plan)
    plan["order"] = [s for s in plan["order"] if s[0] != "float32"]
    plan["order"] += [["baseline", 3], ["float32", 3]]
    write_record(campaign.plan, plan)
    for session in (1, 2):
        campaign.point("float32", session, 16).unlink()
    for variant in ("baseline", "float32"):
        record = read_record(campaign.point(variant, 1, 8))
        write_record(campaign.point(variant, 3, 8), {**record, "session": 3})
    assert ratio(campaign, "float32", 16).sessions == ()
    assert [s for s, _ in ratio(campaign, "float32", 8).sessions][-1] == 3


def test_a_truncated_launch_record_is_named(campaign):
    (campaign.launches / "float32-s1.json").write_text("{")
    with pytest.raises(LeverbenchError, match=r"float32-s1\.json"):
        measure(campaign)


def test_a_delta_is_read_as_planned(campaign):
    variants = read_record(campaign.plan)["variants"]
    assert changes(variants["float32"]) == {"args.dtype": ("bfloat16", "float32")}
    assert changes(variants["baseline"]) == {}


def test_spread_is_largest_over_smallest_minus_one(campaign):
    campaign.point("float32", 2, 8).unlink()
    plan, rows, _, _ = measure(campaign)
    found = {(s.variant, s.concurrency): s for s in spreads(plan, rows) if s.metric.startswith("o")}
    assert found["baseline", 16].share == pytest.approx(0.02)
    assert found["float32", 16].share == pytest.approx(1.02 * 1.01 - 1)
    assert (found["float32", 8].sessions, found["float32", 8].share) == (1, None)


def test_a_spread_is_of_equal_conditions(campaign):
    campaign.alter_conditions(campaign.point("baseline", 1, 16), machine="older")
    plan, rows, _, _ = measure(campaign)
    (found,) = [
        s
        for s in spreads(plan, rows)
        if (s.variant, s.concurrency, s.metric) == ("baseline", 16, "mean_ttft_ms")
    ]
    assert (found.sessions, found.share) == (1, None)
