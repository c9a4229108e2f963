import re
from html.parser import HTMLParser

import pytest
from unit.analysis.fake_campaign import FakeCampaign, write_campaign, write_record

from leverbench.analysis import analyse
from leverbench.records import read_record
from leverbench.report import render_report

HOSTILE = '<script>alert("x")</script> | *a* `b`\n# heading & <img src=//evil.test/x>'
FIGURES = ("output-tok-per-s", "mean-tpot-ms", "mean-ttft-ms", "ratio-to-parent")
VERDICTS = re.compile(r"\b(faster|slower|better|worse|improve\w*|regress\w*|speed-?up)\b", re.I)


class Page(HTMLParser):
    """The page's elements, attributes and visible text."""

    VOID = ("meta", "path", "use", "rect", "br", "line", "img")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)
            assert not name.startswith("on")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def render(campaign: FakeCampaign) -> tuple[Page, str]:
    out = campaign.root / "reports"
    parquet = campaign.results / "analysis" / "measurements.parquet"
    analyse(campaign.plan, campaign.points, campaign.attempts, parquet.with_suffix(".csv"), parquet)
    render_report(
        campaign.plan,
        parquet,
        campaign.launches,
        out / "index.html",
        out / "findings.md",
        out / "figures",
    )
    return Page((out / "index.html").read_text()), (out / "findings.md").read_text()


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path)


@pytest.fixture
def undrawn(monkeypatch):
    """Spares tests of text the drawing of figures, most of a rendering's time."""

    def draw(plan, rows, ratios):
        return {f"{w}-{name}": "<svg></svg>" for w in plan["workloads"] for name in FIGURES}

    monkeypatch.setattr("leverbench.report.render.draw_figures", draw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    campaign = write_campaign(tmp_path_factory.mktemp("whole"))
    return campaign, *render(campaign)


def test_the_page_is_one_well_formed_file_that_asks_for_nothing(whole):
    _, page, _ = whole
    assert page.open == []
    assert "script" not in page.tags
    assert all(link.startswith("#") or link == "findings.md" for link in page.links)
    anchors = {link[1:] for link in page.links if link.startswith("#")}
    assert anchors <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 4


def test_the_page_tells_what_was_measured_and_how_far_the_target_is(whole):
    _, page, findings = whole
    sentence = (
        "Best measured: 568.5 output tok/s (float32, random, C=16; mean of 2 sessions);"
        " target 1,000: 1.8 times short."
    )
    assert sentence in page.text
    assert sentence in findings
    assert "24 of 24 planned points measured" in page.text
    assert "CPU: Made-up CPU 9000, 2 cores, 15 GiB" in page.text
    assert "2025-03-01 09:10 to 2025-03-01 16:30 UTC" in page.text
    assert "The CPU path proves the pipeline, not GPU levers" in page.text
    assert "Every planned point has a valid row." in page.text


def test_the_lever_table_gives_delta_evidence_sessions_and_range(whole):
    _, page, _ = whole
    assert "args.dtype : bfloat16 → float32 applied args.dtype: seen float32" in page.text
    assert "1.407 s1 1.400, s2 1.414 range 1.400 to 1.414" in page.text
    assert "2 sessions: no verdict" in page.text
    assert "These are figures, not verdicts" in page.text


def test_order_commands_overrides_and_digests_are_there(whole):
    campaign, page, _ = whole
    planned = [v for v, session in read_record(campaign.plan)["order"] if session == 2]
    assert sorted(planned) == ["baseline", "decode-steps-4", "float32", "threads-2"]
    assert page.text.count(f"session 2: {', '.join(planned)}") == 2
    assert (
        ".venv/bin/snakemake --cores 8 --force results/fake/float32/s2/random/c16.json"
        " --config campaign=config/fake.yaml sessions=2"
    ) in page.text
    assert "sessions=2" in page.text
    assert "a" * 64 in page.text


def test_no_verdict_words(whole):
    _, page, findings = whole
    assert VERDICTS.findall(page.text) == []
    assert VERDICTS.findall(findings) == []


def test_a_findings_sentence_names_its_rule_and_rows(whole):
    _, _, findings = whole
    assert (
        "- **ratio**: float32 (args.dtype: bfloat16 to float32) measured 1.407 times the output"
        " tok/s of baseline under random at C=16 (range 1.400 to 1.414, 2 sessions: no verdict).\n"
        "  Rows: float32/s1/random/c16, baseline/s1/random/c16, float32/s2/random/c16,"
        " baseline/s2/random/c16.\n"
    ) in findings
    assert (
        "| float32 | baseline | args.dtype: bfloat16 → float32 | applied | random | 16 | 1.407"
        " | 0.711 | 1.000 | 2 |"
    ) in findings


def test_rendering_twice_gives_the_same_files(whole):
    campaign = whole[0]
    reports = campaign.root / "reports"
    before = {path: path.read_bytes() for path in reports.rglob("*.*")}
    render(campaign)
    assert {path: path.read_bytes() for path in reports.rglob("*.*")} == before
    assert {path.name for path in before} == {
        "index.html",
        "findings.md",
        *(f"random-{name}.svg" for name in FIGURES),
    }


def test_holes_are_named_with_their_reasons(campaign, undrawn):
    for concurrency in (1, 8, 16):
        campaign.alter(
            campaign.point("decode-steps-4", 2, concurrency),
            outcome="out-of-memory",
            detail="7.50 GiB wanted",
            valid=False,
            metrics=None,
            client=None,
            warm_up=None,
            server_id=None,
            started_at=None,
            num_requests=None,
        )
    campaign.point("float32", 2, 8).unlink()
    campaign.point("threads-2", 2, 8).unlink()
    campaign.attempt("threads-2", 2, 8, {"at": "t", "cause": "client-bound", "detail": "lag"})
    campaign.alter(
        campaign.point("baseline", 2, 8), launch_index=2, failures=1, failure_messages=["HTTP 500"]
    )
    page, findings = render(campaign)
    assert "19 of 24 planned points measured" in page.text
    assert "decode-steps-4 2 random 1, 8, 16 failed out-of-memory 7.50 GiB wanted" in page.text
    assert "float32 2 random 8 missing" in page.text
    assert "threads-2 2 random 8 invalid client-bound lag" in page.text
    assert "valid launched again" in page.text
    assert "baseline 2 8 1 HTTP 500" in page.text
    assert "1 to 2 sessions: no verdict" in page.text
    assert (
        "| decode-steps-4 | 2 | random | 1, 8, 16 | failed | out-of-memory | 7.50 GiB wanted |"
        in findings
    )
    assert "- **launched again**: 1 point ran on a later launch" in findings


def test_a_lever_not_seen_in_force_has_no_ratio_and_says_why(campaign):
    campaign.alter_lever(
        "threads-2", 1, "env.OMP_NUM_THREADS", seen="1", applied=False, evidence="/proc environ"
    )
    page, findings = render(campaign)
    reason = "env.OMP_NUM_THREADS: asked 2, seen 1 (/proc environ)"
    assert (
        f"threads-2 from baseline ratio withheld env.OMP_NUM_THREADS : 1 → 2 not applied {reason}"
        in page.text
    )
    assert f"threads-2: not applied, so its ratio is withheld: {reason}." in findings
    assert "threads-2 (env.OMP" not in findings
    svg = (campaign.root / "reports/figures/random-ratio-to-parent.svg").read_text()
    assert svg.count("not applied") == 3


def test_confounded_and_control_variants_are_marked(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan["variants"]["float32"] |= {"confounded": True, "levers": ["dtype", "memory"]}
    plan["variants"]["threads-2"] |= {"delta": {}, "control": "a-a"}
    write_record(campaign.plan, plan)
    page, findings = render(campaign)
    assert "float32 from baseline 2 sessions: no verdict confounded" in page.text
    assert "threads-2 from baseline control: a-a" in page.text
    assert "more than one lever (dtype, memory)" in findings
    assert "| float32 (confounded) | baseline |" in findings


def test_hostile_text_is_shown_and_never_obeyed(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan |= {"description": HOSTILE, "overrides": {"only": HOSTILE}}
    plan["model"]["path"] = HOSTILE
    plan["variants"]["float32"]["delta"] = {"args.dtype": [HOSTILE, "float32"]}
    write_record(campaign.plan, plan)
    campaign.alter(campaign.point("float32", 1, 1), valid=False, detail=HOSTILE)
    campaign.alter(campaign.point("float32", 1, 8), failures=1, failure_messages=[HOSTILE])
    campaign.alter_lever("threads-2", 1, "env.OMP_NUM_THREADS", seen=HOSTILE, applied=False)
    campaign.alter(campaign.launches / "float32-s1.json", argv=[HOSTILE], env={"A": HOSTILE})
    page, findings = render(campaign)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.open == []
    assert page.text.count('<script>alert("x")</script> | *a* `b` # heading') >= 7
    assert "<script" not in findings
    assert "<img" not in findings
    assert "\n# heading" not in findings
    tables = [line for line in findings.splitlines() if line.startswith("|")]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert columns == {11, 8}


def test_without_any_point_there_is_still_a_page(campaign):
    for path in campaign.points:
        path.unlink()
    page, findings = render(campaign)
    assert "0 of 24 planned points measured" in page.text
    assert "Target: 1,000 output tok/s. Nothing is measured yet." in page.text
    assert page.text.count("nothing measured yet") == 5
    assert "24 missing" in findings
    assert "the noise is not known" in findings


def test_without_target_launches_engine_or_second_variant(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan |= {"target": None, "description": None, "overrides": {}}
    plan["variants"] = {"baseline": plan["variants"]["baseline"]}
    plan["order"] = [["baseline", 1], ["baseline", 2]]
    write_record(campaign.plan, plan)
    for path in campaign.points:
        if "baseline" not in path.parts:
            path.unlink()
    for path in campaign.launches.iterdir():
        path.unlink()
    page, _ = render(campaign)
    assert "The campaign states no target." in page.text
    assert "no variant with a parent" in page.text
    assert "Engine not known yet" in page.text


def test_a_reached_target_says_so(campaign, undrawn):
    write_record(campaign.plan, read_record(campaign.plan) | {"target": {"output_tok_per_s": 500}})
    page, _ = render(campaign)
    assert "target 500: reached." in page.text


def test_several_workloads_and_several_machines_are_told_apart(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan["workloads"]["long"] = {"dataset": "text", "input_tokens": 4096, "output_tokens": 64}
    write_record(campaign.plan, plan)
    for path in campaign.points:
        record = read_record(path) | {"workload": "long"}
        record["machine"]["cores"] = "4"
        write_record(path.parent.parent / "long" / path.name, record)
    page, _ = render(campaign)
    assert page.tags.count("svg") == 8
    assert "Workload long: text, 4096 tokens in, 64 out." in page.text
    assert "2 / 4 more than one" in page.text
    assert len(page.ids) == len(set(page.ids))


def test_the_command_names_the_campaigns_file_quoted_and_no_sessions_of_its_own(campaign, undrawn):
    write_record(
        campaign.plan, read_record(campaign.plan) | {"file": "my files/a.yaml", "overrides": {}}
    )
    page, _ = render(campaign)
    command = "snakemake --cores 8 --force results/fake/baseline/s1/random/c1.json --config"
    assert f"{command} 'campaign=my files/a.yaml' " in page.text
    assert "sessions=" not in page.text


def test_pairs_of_other_conditions_are_named_and_not_compared(campaign):
    for session in (1, 2):
        campaign.alter_conditions(campaign.point("float32", session, 16), machine="other")
    campaign.alter_conditions(campaign.point("threads-2", 1, 16), model="other")
    page, findings = render(campaign)
    assert "withheld s1 measured on another machine: not compared" in page.text
    assert "1.020 s2 1.020 s1 measured on another model: not compared" in page.text
    assert (
        "- **not compared**: 2 pairs of float32 and baseline: measured on another machine:"
        " not compared.\n"
        "  Rows: float32/s1/random/c16, baseline/s1/random/c16, float32/s2/random/c16,"
        " baseline/s2/random/c16.\n"
    ) in findings
    assert "float32 (args.dtype: bfloat16 to float32) measured 1.4" not in findings
    assert "valid another model: not pooled" in page.text
    svg = (campaign.root / "reports/figures/random-ratio-to-parent.svg").read_text()
    assert svg.count("measured on another machine: not compared") == 1


def test_a_variant_that_is_not_applied_is_not_the_best(campaign, undrawn):
    campaign.alter_lever("float32", 1, "args.dtype", seen="bfloat16", applied=False)
    page, findings = render(campaign)
    # 400 x 1.01 in session 1, and 2% and 1% more in session 2.
    assert "Best measured: 410.1 output tok/s (threads-2, random, C=16; mean of 2" in page.text
    assert "Rows: threads-2/s1/random/c16, threads-2/s2/random/c16." in findings


def test_a_root_that_is_not_applied_withholds_every_ratio(campaign, undrawn):
    campaign.alter_lever("baseline", 1, "args.dtype", seen="float32", applied=False)
    page, findings = render(campaign)
    seen = "args.dtype: asked bfloat16, seen float32 (server info)"
    assert f"baseline : not applied , {seen}" in page.text
    assert f"baseline: not applied, so every ratio to it is withheld: {seen}." in findings
    assert findings.count("- **ratio**") == 0
    assert findings.count("- **not applied**") == 4
    target = "Target: 1,000 output tok/s. No variant was measured with its settings in force."
    assert target in page.text
    assert target in findings


def test_later_launches_of_one_session_are_told_apart(campaign, undrawn):
    for concurrency, server in ((8, "abcdef123456"), (16, "fedcba654321")):
        path = campaign.point("baseline", 1, concurrency)
        campaign.alter(path, launch_index=2, server_id=server)
    campaign.alter(campaign.point("baseline", 2, 8), launch_index=2, server_id="012345678901")
    page, _ = render(campaign)
    assert "launched again: abcdef" in page.text
    assert "launched again: fedcba" in page.text
    assert "abcdef1" not in page.text
    assert "012345" not in page.text


def test_a_point_outside_the_ladder_is_shown(campaign):
    for variant in ("baseline", "float32"):
        campaign.add_point(variant, 1, 4, 8)
    page, findings = render(campaign)
    assert "24 of 24 planned points measured" in page.text
    assert "C=1 C=4 C=8 C=16" in page.text
    assert "baseline 1 4 300.0" in page.text
    assert "under random at C=4 (1 session: no verdict)" in findings
    figures = campaign.root / "reports/figures"
    assert ">4</text>" in (figures / "random-output-tok-per-s.svg").read_text()
    assert "float32 / baseline   C=1" in (figures / "random-ratio-to-parent.svg").read_text()
    assert "C=4</text>" in (figures / "random-ratio-to-parent.svg").read_text()
