import re
from html.parser import HTMLParser

import pytest
from unit.analysis.fake_campaign import FakeCampaign, chosen, timed, write_campaign, write_record

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
    analyse(campaign.plan, campaign.points, campaign.attempts, parquet.parent)
    render_report(
        campaign.plan,
        parquet,
        campaign.launches,
        campaign.profiles,
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

    def draw(plan, rows, ratios, verdicts):
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
    assert "Every planned point has a valid row, and every planned profile was taken." in page.text


def test_the_lever_table_gives_delta_evidence_sessions_and_range(whole):
    _, page, _ = whole
    assert "args.dtype : bfloat16 → float32" in page.text
    assert "applied args.dtype: seen float32" in page.text
    assert re.search(
        r"faster 1\.407 1\.407 \(1\.3\d+ to 1\.4\d+\), p = 0\.\d+ s1 1\.400, s2 1\.414", page.text
    )
    assert "float32 from baseline 2 sessions" in page.text


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


def test_one_session_has_no_verdict(campaign, undrawn):
    for path in campaign.points:
        if "/s2/" in str(path):
            path.unlink()
    page, findings = render(campaign)
    assert VERDICTS.findall(findings.partition("- **coverage**")[2]) == []
    assert "undecided: unreplicated 1.400 s1 1.400" in page.text
    assert "No comparison tells the noise" in findings


def test_a_findings_sentence_names_its_rule_and_rows(whole):
    _, _, findings = whole
    assert re.search(
        r"- \*\*verdict\*\*: float32 \(args.dtype: bfloat16 to float32\) against baseline"
        r" under random at C=16: faster; ratio of output tok/s 1\.407 \(1\.3\d+ to 1\.4\d+\),"
        r" p = 0\.\d+ \(2 sessions\)\.\n"
        r"  Rows: float32/s1/random/c16, float32/s2/random/c16, baseline/s1/random/c16,"
        r" baseline/s2/random/c16\.\n",
        findings,
    )
    assert re.search(
        r"\| float32 \| baseline \| args.dtype: bfloat16 → float32 \| applied \| not recorded"
        r" \| random \| 16 \| faster \| 1\.407 \([^|]+\| 0\.711 \([^|]+\| 1\.000 \([^|]+\| 2 \|",
        findings,
    )


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
    assert "1 to 2 sessions" in page.text
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
        "threads-2 from baseline ratio withheld env.OMP_NUM_THREADS : 1 → 2 withheld"
        f" withheld withheld not applied {reason}"
    ) in page.text
    assert f"not applied {reason}" in page.text
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
    assert "float32 from baseline 2 sessions confounded" in page.text
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
    campaign.alter(campaign.launch("float32", 1), argv=[HOSTILE], env={"A": HOSTILE})
    campaign.recover("decode-steps-4", 1, {"args": {"memory": HOSTILE}})
    campaign.alter(campaign.profile("baseline"), outcome="profile-failed", detail=HOSTILE)
    profile = read_record(campaign.profile("float32"))
    profile["top"][0]["name"] = HOSTILE
    campaign.alter(campaign.profile("float32"), top=profile["top"])
    campaign.answer("baseline", 1, "a b")
    campaign.answer("float32", 1, HOSTILE)
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
    assert columns == {13, 8}


def test_without_any_point_there_is_still_a_page(campaign):
    for path in [*campaign.points, *campaign.profiles]:
        path.unlink()
    page, findings = render(campaign)
    assert page.text.count("not profiled yet") == 4
    assert "0 of 24 planned points measured" in page.text
    assert "Target: 1,000 output tok/s. Nothing is measured yet." in page.text
    assert page.text.count("nothing measured yet") == 5
    assert "24 missing" in findings
    assert "No comparison tells the noise" in findings


def test_without_target_launches_engine_or_second_variant(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan |= {"target": None, "description": None, "overrides": {}}
    plan["variants"] = {"baseline": plan["variants"]["baseline"]}
    plan["order"] = [["baseline", 1], ["baseline", 2]]
    write_record(campaign.plan, plan)
    for path in [*campaign.points, *campaign.profiles]:
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


def test_workloads_are_told_in_words(campaign, undrawn):
    plan = read_record(campaign.plan)
    lengths = {"dataset": "random-ids", "input_tokens": [600, 900], "output_tokens": 64}
    plan["workloads"] |= {
        "shared": {**lengths, "shared_prefix": {"tokens": 512, "groups": 1}},
        "chat": {"dataset": "file", "path": "<b>.jsonl", "content": "a" * 64},
    }
    write_record(campaign.plan, plan)
    page, _ = render(campaign)
    shared = "600 to 900 tokens in, 64 out, the first 512 of each prompt one of 1 prefix"
    assert f"Workload shared: random-ids, {shared}." in page.text
    assert "Workload chat: <b>.jsonl (SHA-256 aaaaaaaaaaaa), a line a request." in page.text


def test_accept_lengths_of_random_ids_are_said_not_to_represent_text(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan["workloads"]["chat"] = {"dataset": "file", "path": "c.jsonl", "content": "a" * 64}
    write_record(campaign.plan, plan)
    for workload in ("random", "chat"):
        path = campaign.point("float32", 1, 16)
        record = read_record(path) | {"workload": workload}
        record["metrics"]["accept_length"] = 1.7
        write_record(path.parent.parent / workload / path.name, record)
    _, findings = render(campaign)
    assert findings.count("do not represent text") == 1
    _, _, after = findings.partition("Accept lengths under random were measured on random")
    assert after.splitlines()[1] == "  Rows: float32/s1/random/c16."


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
    assert "s2 1.020 s1 measured on another model: not compared" in page.text
    assert (
        "- **not compared**: 2 pairs of float32 and baseline: measured on another machine:"
        " not compared.\n"
        "  Rows: float32/s1/random/c16, baseline/s1/random/c16, float32/s2/random/c16,"
        " baseline/s2/random/c16.\n"
    ) in findings
    assert (
        "float32 (args.dtype: bfloat16 to float32) against baseline under random at C=16"
        not in (findings)
    )
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
    assert findings.count("- **verdict**") == 0
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
    assert re.search(
        r"at C=4: undecided: unreplicated; ratio of output tok/s 1\.\d+ \(1 s", findings
    )
    figures = campaign.root / "reports/figures"
    assert ">4</text>" in (figures / "random-output-tok-per-s.svg").read_text()
    assert "float32 / baseline   C=1" in (figures / "random-ratio-to-parent.svg").read_text()
    assert "C=4</text>" in (figures / "random-ratio-to-parent.svg").read_text()


MEMORY = {"args": {"mem-fraction-static": 0.8}}


def test_recovery_confounds_and_the_report_gives_the_control_to_add(campaign, undrawn):
    for session in (1, 2):
        campaign.recover("float32", session, MEMORY)
    page, findings = render(campaign)
    settings = "args.mem-fraction-static: unset in baseline, 0.8 in float32"
    compare = (
        "float32 and baseline-as-float32 differ in args.dtype alone: divide the ratio of float32"
        " to baseline by that of baseline-as-float32 to baseline."
    )
    assert "float32 from baseline 2 sessions confounded" in page.text
    assert f"by recovery, beside the lever: {settings}" in page.text
    snippet = (
        "baseline-as-float32:\n  from: baseline\n  lever: recovery\n"
        "  args: {mem-fraction-static: 0.8}\n"
    )
    assert f"<pre>{snippet}</pre>" in (campaign.root / "reports/index.html").read_text()
    assert compare in page.text
    assert f"beside its lever ({settings}). The report has the matched control to add" in findings
    assert "C=16: faster, confounded; ratio" in findings
    assert "| float32 (confounded) | baseline |" in findings
    assert findings.count("- **recovery**") == 1


def test_without_recovery_there_is_no_control_to_add(whole):
    _, page, findings = whole
    assert "Matched control" not in page.text
    assert "confounded" not in findings


def test_a_profile_shows_shares_top_operations_and_files(whole):
    _, page, findings = whole
    assert "Category baseline threads-2 float32 decode-steps-4 attention 50.0 %" in page.text
    # 1 / 0.5, 1 / 0.6 and 1 / 0.9
    of_all = (
        "matrix-multiply" + 4 * " 40.0 % at most 1.667" + " other" + 4 * " 10.0 % at most 1.111"
    )
    assert of_all in page.text
    assert "Time of operations, ms 80.0 80.0 80.0 80.0 Decode steps 5 5 5 5" in page.text
    assert "baseline: top operations (3) and files (1)" in page.text
    assert "decode_kernel attention 50.0 % 40.00 120" in page.text
    assert f"a.trace.json.gz 0 9,000 4.2 {'f' * 64}" in page.text
    assert "Shares on a CPU say nothing of a GPU." in page.text
    assert "no category claims" not in page.text
    assert (
        "- **profile**: float32: under random at C=16 the largest category is attention with 50.0%"
        " of the operations' time, the top operation decode_kernel (attention) with 50.0%."
        " Without attention, decode would be at most 2.000 times as fast. Shares on a CPU say"
        " nothing of a GPU.\n"
        "  Rows: float32/profile/random/c16.\n"
    ) in findings


def test_a_profile_without_names_for_much_of_its_time_warns(campaign, undrawn):
    categories = [{"category": "other", "share": 0.123, "self_us": 1.0}]
    campaign.alter(campaign.profile("float32"), categories=categories, other_top=["odd", "strange"])
    campaign.alter(campaign.profile("float32"), machine={"device": "gpu"})
    page, findings = render(campaign)
    assert "float32 : no category claims 12.3 % , of it the most in odd , strange ." in page.text
    assert page.text.count("no category claims") == 1
    assert "more than one machine" in page.text
    assert "No category claims 12.3%: odd, strange." in findings


def test_a_failed_profile_is_a_hole_with_the_first_line_of_its_reason(campaign, undrawn):
    detail = "no decode step in the trace\nline of the log"
    campaign.alter(campaign.profile("float32"), outcome="profile-failed", detail=detail)
    campaign.profile("threads-2").unlink()
    page, findings = render(campaign)
    reason = "profile-failed : no decode step in the trace"
    assert f"float32 : {reason}" in page.text
    assert "threads-2 : not profiled yet" in page.text
    hole = "float32 profile random 16 failed profile-failed no decode step in the trace"
    assert f"{hole} all of the message" in page.text
    assert "threads-2 profile random 16 missing" in page.text
    row = "| float32 | profile | random | 16 | failed | profile-failed |"
    assert f"{row} no decode step in the trace |" in findings
    assert "float32 has no profile under random at C=16: profile-failed: no decode" in findings
    assert "24 of 24 planned points measured" in page.text


def test_a_long_operations_name_is_cut_in_sentences_alone(campaign, undrawn):
    name = "void gemm<" + "x" * 200
    profile = read_record(campaign.profile("float32"))
    profile["top"][0]["name"] = name
    campaign.alter(campaign.profile("float32"), top=profile["top"])
    page, findings = render(campaign)
    assert f"{name} attention 50.0 %" in page.text
    assert f"{'x' * 90}... (attention)" in findings
    assert "x" * 91 not in findings


def test_a_profile_of_a_variant_that_is_not_applied_says_so(campaign, undrawn):
    campaign.alter_lever("float32", 1, "args.dtype", seen="bfloat16", applied=False)
    page, _ = render(campaign)
    assert "Category baseline threads-2 float32 not applied decode-steps-4" in page.text


def test_a_campaign_that_profiles_nothing_says_so(campaign, undrawn):
    plan = read_record(campaign.plan)
    write_record(campaign.plan, plan | {"profile": {"concurrency": [], "steps": 5}})
    page, findings = render(campaign)
    assert "The campaign profiles nothing." in page.text
    assert "**profile**" not in findings


def test_a_session_without_server_shows_the_steps_that_were_tried(campaign, undrawn):
    steps = [
        {"cause": "out-of-memory", "args": {"memory": value}, "env": {}} for value in (0.8, 0.7)
    ]
    campaign.alter(
        campaign.session("float32", 2),
        outcome="out-of-memory",
        server_id=None,
        detail="7.50 GiB wanted",
        recovery=steps,
    )
    for concurrency in (1, 8, 16):
        campaign.alter(
            campaign.point("float32", 2, concurrency),
            outcome="no-server",
            detail="7.50 GiB wanted\nlog line",
            valid=False,
            server_id=None,
            recovery=None,
        )
    page, findings = render(campaign)
    tried = (
        "out-of-memory, after the recovery steps"
        " out-of-memory: args.memory=0.8; out-of-memory: args.memory=0.7"
    )
    assert "float32 2 random 1, 8, 16 failed no-server 7.50 GiB wanted all of" in page.text
    assert f"the session's server: {tried}" in page.text
    assert f"no-server (the session's server: {tried}) | 7.50 GiB wanted |" in findings


def test_sessions_on_an_attached_server_are_repetitions(campaign, undrawn):
    campaign.attach()
    page, findings = render(campaign)
    sentence = (
        "baseline: others started its server, which its sessions share: they are repetitions, not"
        " launches, and their spread lacks what differs between launches. The server told:"
        " engine 1.2.3, 2 settings."
    )
    assert sentence in findings
    assert findings.count("- **attached**") == 4
    assert "the sessions of a variant are repetitions on one server" in page.text
    assert "A session is one launch" not in page.text
    assert "what the server told page_size=64 dtype=bfloat16" in page.text


def test_launched_servers_are_not_called_attached(whole):
    _, page, findings = whole
    assert "attached" not in findings
    assert "A session is one launch of a server." in page.text
    assert "what the server told" not in page.text


def test_versions_placement_and_recovery_of_each_launch_are_told(campaign, undrawn):
    gpus = {"gpu0": {"pci": "00000000:1B:00.0", "numa_node": 1}}
    where = {"numa_nodes": 2, "gpus": gpus, "cpus_allowed": ["0-31"]}
    campaign.alter(campaign.launch("float32", 1), placement=where)
    campaign.recover("float32", 2, {"env": {"A": "1"}})
    versions = {"leverbench": "0.9.9", "snakemake": "9.19.0", "python": "3.12.1"}
    campaign.alter(campaign.launch("threads-2", 1), versions=versions)
    page, _ = render(campaign)
    assert (
        "engine engine 1.2.3 leverbench 0.9.9 snakemake 9.18.0 / 9.19.0 more than one" in page.text
    )
    on_gpu = "gpu0 (00000000:1B:00.0, NUMA node 1); CPUs 0-31 of 2 NUMA nodes"
    assert f"placement CPUs 0-1 of 1 NUMA node / {on_gpu} more than one" in page.text
    assert "recovery no step / out-of-memory: env.A=1 more than one" in page.text
    assert f"leverbench 0.9.9 snakemake 9.18.0 python 3.12.1 {on_gpu} no step" in page.text
    assert "1 NUMA node out-of-memory: env.A=1 OMP_NUM_THREADS=1 python -m engine" in page.text


def test_a_cross_names_both_levers(campaign, undrawn):
    campaign.alter_variant("float32", cross=["threads-2", "decode-steps-4"])
    page, findings = render(campaign)
    assert "float32 from baseline cross: threads-2 x decode-steps-4" in page.text
    assert "float32 (threads-2 x decode-steps-4; args.dtype: bfloat16 to float32)" in findings


def test_a_variant_added_later_says_with_what_it_was_measured(campaign, undrawn):
    plan = read_record(campaign.plan)
    plan["order"] = [s for s in plan["order"] if s[0] != "float32"]
    plan["order"] += [["float32", 3], ["baseline", 3], ["baseline", 4], ["float32", 4]]
    write_record(campaign.plan, plan)
    page, findings = render(campaign)
    assert "added later: s3, s4, beside fresh launches of baseline" in page.text
    assert page.text.count("added later") == 1
    sentence = (
        "float32 was added later: its sessions are s3, s4, beside fresh launches of baseline."
    )
    assert sentence in findings


def test_results_without_answers_are_rendered(whole):
    _, page, findings = whole
    assert page.text.count("not recorded") == 3
    assert "| applied | not recorded | random | 1 |" in findings
    assert "answers changed" not in findings


def test_a_variant_that_changes_answers_is_flagged_on_each_figure(campaign, undrawn):
    for session in (1, 2):
        campaign.answer("baseline", session, "a b c d", "x y")
        campaign.answer("threads-2", session, "a b c d", "x y")
        campaign.answer("float32", session, "a b <i> d", "x y")
    page, findings = render(campaign)

    assert (
        "- **answers changed**: float32 changes answers: 50% to 100% of an answer agree with"
        " baseline's, at temperature 0, and 90% are asked for; the agreement of baseline's own"
        " launches is 100%."
    ) in findings
    assert 'baseline answers "a b c d" and float32 "a b &lt;i&gt; d": the same for 2' in findings
    assert "Rows: launches/baseline-s1, " in findings
    ratios = [line for line in findings.splitlines() if line.startswith("- **verdict**")]
    flagged = [line for line in ratios if ", answers changed; ratio" in line]
    assert flagged == [line for line in ratios if "**: float32 (" in line]
    assert len(flagged) == 3
    assert "agreement 75.0 %, lowest 50.0 % 2 launches against 2 of the parent" in page.text
    assert "as the parent agreement 100.0 %" in page.text
    assert "i" not in page.tags


def test_a_parent_that_differs_from_itself_is_told(campaign, undrawn):
    campaign.answer("baseline", 1, "a b c d")
    campaign.answer("baseline", 2, "a x c d")
    campaign.answer("float32", 1, "a b c d")
    _, findings = render(campaign)

    assert "Whether float32 changes answers cannot be said" in findings
    assert "each other (25% agree)" in findings


def test_a_point_after_which_answers_differ_is_told(campaign, undrawn):
    path = campaign.point("float32", 2, 16)
    campaign.alter(path, agreement={"share": 0.5, "unit": "token ids"})
    campaign.alter(campaign.point("float32", 1, 16), agreement={"share": 0.95, "unit": "words"})
    _, findings = render(campaign)

    assert "- **answers after load**: 1 point after which the server answered" in findings
    assert "Rows: float32/s2/random/c16." in findings
    assert read_record(path)["valid"]


def test_a_ceiling_stands_beside_the_ratio_and_a_gain_above_it_is_called_out(campaign, undrawn):
    campaign.alter_variant("float32", touches=["gemm"])
    campaign.alter(
        campaign.profile("baseline"),
        categories=[
            {"category": name, "share": share, "self_us": 1.0}
            for name, share in (("attention", 0.6), ("gemm", 0.2), ("other", 0.2))
        ],
    )
    page, findings = render(campaign)

    # 1 / (1 - 0.2); the profile is of C=16 alone.
    told = "C=16: 1.250 for args.dtype (gemm 20.0 % in baseline/profile/random/c16)"
    assert told in page.text
    assert "| 1.250 for args.dtype |" in findings
    assert "above the ceiling of args.dtype: gemm 20.0% of decode time" in findings
    assert "float32 measured a gain of" in findings
    # By the best variant's own profile: 568.5 / (1 - 0.9), and a target of 1,000.
    assert (
        "Without attention (50.0%) and matrix-multiply (40.0%) altogether, float32 would give about"
        " 5,700 output tok/s at C=16: 568.5 / (1 - 0.90)"
    ) in findings
    assert "The target of 1,000 is within that bound." in findings


def test_without_a_known_share_there_is_no_ceiling(whole):
    _, page, findings = whole

    assert "Ceiling" not in page.text
    assert "**ceiling**" not in findings


def give_kernel(campaign: FakeCampaign, speedup: float = 3.0) -> None:
    """Gives float32 a kernel for half of its parent's time; its TPOT gain is 1.407."""
    entries = [chosen(1, 1.0, published=False), chosen(16, 1.25, published=True)]
    tuned = {"outcome": "tuned", "chosen": entries}
    campaign.give_kernel("float32", [timed(1, 1.5), timed(16, speedup)], tuned)


def test_predicted_and_measured_stand_side_by_side(campaign, undrawn):
    give_kernel(campaign)
    page, findings = render(campaign)

    # Half of the time three times as fast: 1 / (0.5 + 0.5 / 3) = 1.5; measured 1.407.
    row = re.search(
        r"float32 decode-attention 16 50\.0 % attention baseline/profile/random/c16 2\.000"
        r" 3\.00 2\.70 to 3\.30, size 16 1\.500 1\.407 \(1\.\d+ to 1\.\d+\)"
        r" TPOT \S+ to \S+ ms 0\.938",
        page.text,
    )
    assert row
    assert "C=16: 2.000 for decode-attention" in page.text
    assert re.search(
        r"\| float32 \| decode-attention \| random \| 16 \| 50\.0 % \| 2\.000 \|"
        r" 3\.000 \(2\.700 to 3\.300\) \| 1\.500 \| 1\.407 \([^|]+\) \| 0\.938 \|\n",
        findings,
    )
    assert re.search(
        r"- \*\*predicted\*\*: float32 under random at C=16: decode-attention makes its calls of"
        r" size 16 3\.00 times as fast, and attention is 50\.0% of its parent's decode time:"
        r" predicted 1\.500, measured 1\.407 \([^)]+\) \(TPOT [^)]+\)\. Measured is 0\.938 times"
        r" the prediction: neither calls nor share of the time explain that part\.\n"
        r"  Rows: float32/s1/random/c16, .*, baseline/profile/random/c16\.\n",
        findings,
    )


def test_a_prediction_inside_the_measured_interval_is_one_that_holds(campaign, undrawn):
    # 1 / (0.5 + 0.5 / s) = 1.407.
    give_kernel(campaign, speedup=1 / (2 / 1.407 - 1))
    page, findings = render(campaign)

    assert "The prediction lies inside the measured interval." in findings
    assert "The prediction lies inside the measured interval." in page.text


def test_one_session_leaves_open_whether_the_rest_is_noise(campaign, undrawn):
    for path in campaign.points:
        if "/s2/" in str(path):
            path.unlink()
    give_kernel(campaign)
    _, findings = render(campaign)

    assert "measured 1.400 (unreplicated)" in findings
    assert "times the prediction: whether that is noise is not known." in findings


def test_the_parameters_in_servers_are_named_by_size(campaign, undrawn):
    give_kernel(campaign)
    page, findings = render(campaign)

    assert (
        "- **kernel**: decode-attention (heads4) is served with tuned parameters: block=64 at batch"
        " 16, 1.250 (1.238 to 1.262) times the defaults' speed. At 1 other size the defaults stay."
    ) in findings
    assert "batch=1 heads=4 block=16 default 1.000 (0.990 to 1.010) 1.500" in page.text
    assert "batch=16 heads=4 block=64 tuned 1.250 (1.238 to 1.262) 3.000" in page.text


def test_a_kernel_whose_default_won_is_named(campaign, undrawn):
    entries = [chosen(16, 1.01, published=False)]
    campaign.give_kernel("float32", [], {"outcome": "tuned", "chosen": entries})
    page, findings = render(campaign)

    assert "(heads4) has no parameters that beat the defaults beyond noise" in findings
    assert "size 16" not in page.text
    assert "decode-attention 16 50.0 %" in page.text
    assert "2.000 not timed \N{EN DASH}" in page.text
    assert "**predicted**" not in findings


def test_given_files_are_told_as_such_and_not_as_tuned(campaign, undrawn):
    entries = [chosen(16, None, published=True)]
    given = {"outcome": "given", "detail": "its files are given: there", "chosen": entries}
    campaign.give_kernel("float32", [timed(16, 3.0)], given)
    page, findings = render(campaign)

    told = "(heads4) was not tuned: its files are given: there. It is served with block="
    assert told in findings
    assert "given not tuned 3.000" in page.text


def test_a_tuning_that_was_skipped_is_told_with_its_reason(campaign, undrawn):
    why = "attention is 1.2% of the time, so no more than 1.012 could be gained"
    entries = [chosen(16, None, published=False)]
    skipped = {"outcome": "skipped", "detail": why, "chosen": entries}
    campaign.give_kernel("float32", [timed(16, 3.0)], skipped)
    page, findings = render(campaign)

    assert f"(heads4) was not tuned: {why}. Servers run it with its defaults." in findings
    assert "batch=16 heads=4 block=16 default not tuned 3.000" in page.text


def test_two_kernels_of_one_variant_have_no_prediction_to_hold_against(campaign, undrawn):
    give_kernel(campaign)
    tuned = {"outcome": "tuned", "chosen": []}
    campaign.give_kernel("float32", [timed(16, 2.0)], tuned, ("matrix-multiply",), "gemm")
    page, findings = render(campaign)

    assert findings.count("The variant is given other kernels too") == 2
    assert page.text.count("of all its kernels \N{EN DASH}") == 2


def test_without_kernels_nothing_is_predicted(whole):
    _, page, findings = whole

    assert "predicted" not in page.ids
    assert "redicted" not in page.text + findings


def test_what_is_inferred_of_a_share_is_said(campaign, undrawn):
    categories = read_record(campaign.profile("baseline"))["categories"]
    campaign.alter(
        campaign.profile("baseline"),
        categories=[{**categories[0], "in_loops": 0.375}, categories[1]],
    )
    page, _ = render(campaign)

    assert "attention 50.0 % 37.5 % in loops at most 2.000" in page.text
    assert "inferred from their order" in page.text


def test_profiles_without_loops_say_nothing_of_them(whole):
    assert "in loops" not in whole[1].text


LAUNCH = {
    "grid_blocks": 64,
    "block_threads": 128,
    "registers": 255,
    "shared_bytes": 49152,
    "sm_count": 170,
    "blocks_per_sm": 1,
    "waves": 64 / 170,
    "last_wave_loss": 106 / 170,
    "busy_sm_share": 64 / 170,
    "occupancy": 0.083,
    "limited_by": "grid",
}


@pytest.fixture
def stepped(campaign):
    """The fake campaign with steps told in the profiles of float32 and its parent alone."""
    for variant in ("threads-2", "decode-steps-4"):
        campaign.profile(variant).unlink()
    gpus = [{"gpu": "gpu0", "any_tensor": 0.008, "dram_bandwidth": 0.31}]
    measured = {"source": "nvml-gpm", "seconds": 1.0, "gpus": gpus}
    full = {"geometry": {**LAUNCH, "grid_blocks": 340, "waves": 2.0, "last_wave_loss": 0.0}}
    campaign.tell_steps(
        "baseline",
        {"attention": 6000.0, "gemm": 3000.0},
        idle_us=1000.0,
        top={"attention": {"geometry": LAUNCH, "tensor_cores": "none"}, "gemm": full},
        tensor_cores={"attention": "none"},
        communication={"transfer_us": 700.0, "wait_us": 2100.0},
        tensor_activity=measured,
    )
    campaign.tell_steps("float32", {"attention": 3000.0, "norm": 3100.0}, idle_us=1000.0)
    return campaign


def test_steps_idle_time_communication_and_tensor_cores_are_shown(stepped, undrawn):
    page, _ = render(stepped)
    # The gap is before the attention: 7 of 10 ms, and 1 / 0.3.
    attention = "attention 66.7 % 70.0 % of a step at most 3.333 tensor cores: none"
    assert f"{attention} \N{EN DASH} 49.2 % 56.3 % of a step at most 2.290" in page.text
    assert "Whole steps (left out) 5 (2) \N{EN DASH} 5 (2)" in page.text
    assert "A decode step, ms 10.00 \N{EN DASH} 7.10" in page.text
    assert "TPOT measured, ms 39.61 \N{EN DASH} 28.15" in page.text
    assert "Device idle 10.0 % \N{EN DASH} 14.1 %" in page.text
    assert "Communication: transfer, waiting, ms 0.7, 2.1" in page.text
    assert "Tensor instructions, measured 0.8 %" in page.text
    assert "Memory bandwidth, measured 31.0 %" in page.text


def test_launches_of_top_operations_are_shown(stepped, undrawn):
    page, _ = render(stepped)
    assert (
        "attention_kernel attention 66.7 % 30.00 5 6,000.0"
        " 64 blocks on 170 SMs: at most 38% of the chip"
        " 128 threads a block, 255 registers, 49,152 bytes shared, occupancy 8%, limited by grid"
        " none"
    ) in page.text
    assert "340 blocks on 170 SMs, 1 at once on each (limited by grid): 2.0 waves, 0% lost" in (
        page.text
    )


def test_a_variants_profile_is_held_against_its_parents(stepped, undrawn):
    page, findings = render(stepped)
    # 7.1 / 10, of 39.61 ms; TPOT measured 0.711.
    row = r"float32 from baseline 10\.00 → 7\.10 0\.710 39\.61 → 28\.15 0\.711 0\.\d+ to 0\.\d+"
    assert re.search(rf"{row} -11\.5 -11\.5 \+0\.02\d+ 0 % of the change", page.text)
    assert "float32 against baseline: by category and operation" in page.text
    assert "attention 6,000.0 3,000.0 -3,000 -11.9" in page.text
    assert "gemm_kernel gemm, gone 3,000.0 \N{EN DASH} -3,000" in page.text
    assert "norm_kernel norm, new \N{EN DASH} 3,100.0 +3,100 +12.3" in page.text
    assert "- **difference**: float32 against baseline" in findings


def test_profiles_of_before_are_compared_by_shares(campaign, undrawn):
    shares = [
        {"category": name, "share": share, "self_us": 1.0}
        for name, share in (("attention", 0.3), ("matrix-multiply", 0.7))
    ]
    campaign.alter(campaign.profile("float32"), categories=shares)
    page, _ = render(campaign)
    why = "it was made before decode steps were told apart"
    parent, own = (f"{name}/profile/random/c16: {why}" for name in ("baseline", "float32"))
    assert f"float32 from baseline by shares alone: {parent}; {own}" in page.text
    assert "matrix-multiply 40.0 % 70.0 % +30.0 points attention 50.0 % 30.0 % -20.0" in page.text
    assert "Whole steps" not in page.text
    assert "TPOT measured, ms Ratio" in page.text


def test_sentences_on_the_page_link_to_what_they_rest_on(stepped, undrawn):
    page, _ = render(stepped)
    assert "#baseline/profile/random/c16" in page.links
    assert "#float32/s2/random/c8" in page.links
    assert "under-filled launch : attention_kernel has 64 blocks on 170 SMs" in page.text
    anchors = {link[1:] for link in page.links if link.startswith("#")}
    assert anchors <= set(page.ids)


def test_a_profile_without_a_measured_tpot_is_compared_all_the_same(stepped, undrawn):
    for path in stepped.points:
        if "float32" in path.parts:
            path.unlink()
    page, findings = render(stepped)
    assert "10.00 → 7.10 0.710 no TPOT to hold it against" in page.text
    assert "**difference**" not in findings


def test_an_incomplete_trace_is_told_on_the_page(stepped, undrawn):
    stepped.alter(stepped.profile("float32"), truncated="TP-0: cut off")
    page, _ = render(stepped)
    assert "float32 : a trace is incomplete : TP-0: cut off" in page.text
