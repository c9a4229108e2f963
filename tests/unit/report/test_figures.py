import xml.etree.ElementTree as ET

import pytest
from unit.analysis.fake_campaign import write_campaign

from leverbench.analysis.measurements import as_rows, collect
from leverbench.analysis.ratios import applied_levers, ratios, read_launches
from leverbench.analysis.verdicts import campaign_design, judge
from leverbench.records import read_record
from leverbench.report.figures import draw_figures

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path)


def draw(campaign):
    plan = read_record(campaign.plan)
    rows = as_rows(collect(plan, campaign.results, campaign.points, campaign.attempts))
    launches = read_launches(rows, campaign.launches)
    applied = applied_levers(plan, rows, launches)
    found = ratios(plan, rows, applied, launches)
    verdicts = judge(rows, campaign_design(plan, applied, {}, found))
    by_key = {(v.variant, v.workload, v.concurrency, v.metric): v for v in verdicts}
    return draw_figures(plan, rows, [r for r in found if _key(r) in by_key], by_key)


def _key(ratio):
    return ratio.variant, ratio.workload, ratio.concurrency, ratio.metric


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def marks(svg):
    """The number of markers drawn."""
    return sum(1 for _ in ET.fromstring(svg).iter(f"{SVG}use"))


def test_curves_are_named_and_ordered_by_their_right_ends(campaign):
    drawn = texts(draw(campaign)["random-output-tok-per-s"])
    variants = [text for text in drawn if text in read_record(campaign.plan)["variants"]]
    # At C=16: 1.40, 1.01, 1.00 and 0.95 times the baseline.
    assert variants == ["float32", "threads-2", "baseline", "decode-steps-4"]
    assert {"1", "8", "16", "concurrency (C)", "output tok/s"} <= set(drawn)


def test_every_session_is_a_mark(campaign):
    before = marks(draw(campaign)["random-ratio-to-parent"])
    campaign.alter(campaign.point("float32", 2, 16), valid=False)
    # Of 3 variants x 3 C x 2 sessions, one less; grid and ticks may move with it.
    after = draw(campaign)
    circles = [
        node
        for node in ET.fromstring(after["random-ratio-to-parent"]).iter(f"{SVG}use")
        if "fill: #ffffff" in (node.get("style") or "")
    ]
    assert before >= 18
    assert len(circles) == 17


def test_a_dollar_or_a_tag_in_a_name_is_text(campaign):
    plan = read_record(campaign.plan)
    rows = as_rows(collect(plan, campaign.results, campaign.points, campaign.attempts))
    name = "<b>$\\frac$"
    plan["variants"] = {name: plan["variants"]["baseline"]}
    renamed = [{**row, "variant": name} for row in rows if row["variant"] == "baseline"]
    assert name in texts(draw_figures(plan, renamed, [], {})["random-mean-tpot-ms"])


def test_no_date_and_the_same_bytes_each_time(campaign):
    first = draw(campaign)
    assert first == draw(campaign)
    assert "metadata" not in first["random-mean-ttft-ms"]


def test_nothing_measured_still_draws(campaign):
    for path in campaign.points:
        path.unlink()
    drawn = draw(campaign)
    assert sorted(drawn) == [
        "random-mean-tpot-ms",
        "random-mean-ttft-ms",
        "random-output-tok-per-s",
        "random-ratio-to-parent",
    ]
    assert all("nothing measured yet" in texts(svg) for svg in drawn.values())
