"""The embedded campaign: what it leaves, and what the next command does."""

import csv
import itertools
import json
import re
from datetime import datetime

import pyarrow.parquet as pq
import pytest
from embedded import events, left_behind, snapshot

VARIANTS = ("baseline", "threads-2", "float32", "decode-steps-4", "decode-kernel")
WORDS = ("faster", "slower", "equal", "undecided", "not worth deciding")
COLUMNS = [
    *("campaign", "variant", "parent", "session", "workload", "concurrency", "server_id", "valid"),
    *("invalid_reason", "num_requests", "failures", "output_tok_per_s", "request_per_s"),
    *("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "accept_length"),
    *("duration_s", "started_at"),
]


def test_it_succeeds(embedded):
    assert embedded.returncode == 0, embedded.said[-6000:]
    assert left_behind(embedded.project) == {}


def test_every_point_is_measured_and_sound(embedded):
    points = embedded.points()

    assert len(points) == 5 * 2 * 3
    for path, point in points.items():
        assert point["outcome"] == "measured", path
        assert point["valid"], path
        assert point["failures"] == 0
        assert point["cached_tokens"] == 0
        assert point["duration_s"] >= 2
        assert point["warm_up"]["agreed"]
        assert point["probe"]["before"]["answer"] == "Paris"
        assert point["probe"]["after"]["answer"] == "Paris"


def test_each_launch_and_point_has_answers_to_compare(embedded):
    launches = embedded.records("launches/*.json")
    assert len(launches) >= 5 * 2
    for path, launch in launches.items():
        assert len(launch["answers"]) == 3, path
        assert all(len(answer["token_ids"]) >= 8 for answer in launch["answers"]), path
    asked = {}
    for point in embedded.points().values():
        # A server without an accident answers as it did.
        assert point["agreement"]["share"] == 1.0
        assert point["agreement"]["unit"] == "token ids"
        asked.setdefault((point["variant"], point["session"]), set()).add(
            point["agreement"]["prompt"]
        )
    assert all(len(prompts) > 1 for prompts in asked.values())
    findings = (embedded.project.path / "reports/quickstart/findings.md").read_text()
    assert "decode-steps-4 changes answers" not in findings
    assert "not recorded" not in findings


def test_token_counts_agree_with_the_server_s_own(embedded):
    for point in embedded.points().values():
        counters = point["counters"]
        generated = (
            counters["after"]["generation_tokens_total"]
            - counters["before"]["generation_tokens_total"]
        )
        assert generated == point["num_requests"] * 64


def test_each_request_has_the_time_of_each_token(embedded):
    root = embedded.project.path / "results/quickstart"
    for path, point in embedded.points().items():
        table = pq.read_table((root / path).with_suffix(".parquet"))

        assert table.num_rows == point["num_requests"]
        for times in table["token_times_s"].to_pylist():
            assert len(times) == 64
            assert times == sorted(times)


def test_variants_share_prompts_and_sessions_do_not(embedded):
    root = embedded.project.path / "results/quickstart"

    def outputs(variant: str, session: int) -> list[list[int]]:
        table = pq.read_table(root / variant / f"s{session}/random/c1.parquet")
        return table["output_ids"].to_pylist()[:4]

    # Greedy answers to the same prompts at the same precision; another session has other prompts.
    assert outputs("baseline", 1) == outputs("decode-steps-4", 1)
    assert outputs("baseline", 1) != outputs("baseline", 2)


def test_windows_do_not_overlap_and_keep_the_plan_s_order(embedded):
    (plan,) = embedded.records("plan.json").values()
    points = sorted(embedded.points().values(), key=lambda point: point["started_at"])

    for earlier, later in itertools.pairwise(points):
        assert datetime.fromisoformat(earlier["ended_at"]) < datetime.fromisoformat(
            later["started_at"]
        )
    # Those of the sessions' first launches: a later run measures what was void in a new one.
    measured = [(p["variant"], p["session"], p["concurrency"]) for p in points]
    first = [at for at, p in zip(measured, points, strict=True) if p["launch_index"] == 1]
    planned = [(*session, c) for session in plan["order"] for c in (1, 8, 16)]
    assert first == [at for at in planned if at in first]
    assert len(first) >= 25


def test_leases_to_measure_do_not_overlap(embedded):
    measuring = [e["what"] for e in events(embedded.project) if e["what"].startswith("measure-")]

    # More than one a point where a void window was measured again.
    assert len(measuring) >= 2 * 30
    assert measuring == ["measure-begin", "measure-end"] * (len(measuring) // 2)


def test_each_session_is_one_launch_with_every_setting_in_force(embedded):
    launches = embedded.records("launches/*.json")
    used = {point["server_id"] for point in embedded.points().values()}

    again = sum(point["launch_index"] == 2 for point in embedded.points().values())
    assert 10 <= len(launches) <= 10 + again
    assert used <= {launch["server_id"] for launch in launches.values()}
    for launch in launches.values():
        for lever in launch["levers_applied"]:
            # This version takes the argument and never looks at it: that is no proof.
            ignored = lever["key"] == "args.num-continuous-decode-steps"
            assert lever["applied"] is (None if ignored else True), lever
    assert {
        (launch["variant"], lever["seen"])
        for launch in launches.values()
        for lever in launch["levers_applied"]
        if lever["key"] == "env.OMP_NUM_THREADS"
    } == {(variant, "2" if variant == "threads-2" else "1") for variant in VARIANTS}


def test_the_table_has_a_row_a_point(embedded):
    path = embedded.project.path / "results/quickstart/analysis/measurements.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))

    assert list(rows[0])[: len(COLUMNS)] == COLUMNS
    assert len(rows) == 30
    assert {row["parent"] for row in rows if row["variant"] != "baseline"} == {
        "baseline",
        "float32",
    }


def test_the_report_is_one_page_without_outside_references(embedded):
    page = (embedded.project.path / "reports/quickstart/index.html").read_text()

    for variant in VARIANTS:
        assert variant in page
    assert page.count("<svg") == 4
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\((?!#)""", page)
    findings = (embedded.project.path / "reports/quickstart/findings.md").read_text()
    assert "decode-steps-4: not applied" in findings.replace("\\", "")


def test_each_variant_is_judged_or_says_why_not(embedded):
    path = embedded.project.path / "results/quickstart/analysis/verdicts.json"
    verdicts = json.loads(path.read_text())
    findings = (embedded.project.path / "reports/quickstart/findings.md").read_text()

    judged = [
        v for v in verdicts if v["metric"] == "output_tok_per_s" and v["concurrency"] in (1, 8, 16)
    ]
    assert len(judged) == 4 * 3
    for verdict in judged:
        if verdict["variant"] == "decode-steps-4":
            assert verdict["verdict"] is None
            assert verdict["withheld"].startswith("not applied")
            continue
        assert verdict["verdict"] in WORDS
        assert verdict["low"] < verdict["ratio"] < verdict["high"]
        assert 0 <= verdict["p"] <= verdict["p_holm"] <= 1
        assert verdict["sessions"] == 2
        told = f"{verdict['ratio']:.3f} ({verdict['low']:.3f} to {verdict['high']:.3f}), p "
        assert told in findings
    assert findings.count("- **verdict**") >= 3 * 3


def test_nothing_to_do_right_after(embedded):
    assert embedded.project.jobs() == {}
    assert "Nothing to be done" in embedded.project.snakemake().stdout


@pytest.mark.parametrize("concurrency", [16, 4])
def test_one_point_is_one_launch_and_changes_nothing_else(embedded, concurrency):
    """A deleted point of the ladder, and a concurrency outside it."""
    project, target = embedded.project, f"quickstart/baseline/s2/random/c{concurrency}.json"
    new = {target, target.replace(".json", ".parquet")}
    (project.path / "results" / target).unlink(missing_ok=True)
    before = snapshot(project)
    launches = sum(event["what"] == "launch" for event in events(project))

    said = project.snakemake(f"results/{target}")

    assert said.returncode == 0, said.stdout
    assert sum(event["what"] == "launch" for event in events(project)) == launches + 1
    after = snapshot(project)
    added = {path for path in after if path not in before} | new
    assert {path: after[path] for path in before if path not in new} == {
        path: content for path, content in before.items() if path not in new
    }
    assert added - new == {path for path in added if path.startswith("quickstart/launches/")}
    assert len(added - new) == 1
    assert left_behind(project) == {}


def test_the_kernel_is_proven_at_ready_and_in_each_window(embedded):
    launches = [
        launch
        for launch in embedded.records("launches/*.json").values()
        if launch["variant"] == "decode-kernel"
    ]
    for launch in launches:
        (proof,) = launch["kernels"]
        assert proof["applied"]
        # The scheduler alone runs the model, though each process loads the plugin.
        assert len([count for count in proof["calls"].values() if count]) == 1
        assert len(proof["registered"]) > 1
    for path, point in embedded.points().items():
        if point["variant"] != "decode-kernel":
            assert "kernels" not in point, path
            continue
        (counted,) = point["kernels"]
        assert sum(counted["calls"].values()) > 0, path
        assert sum(counted["left"].values()) == 0, path


def test_servers_without_kernels_load_no_plugin(embedded):
    for launch in embedded.records("launches/*.json").values():
        plugins = launch["env"]["SGLANG_PLUGINS"]
        given = launch["variant"] == "decode-kernel"
        assert plugins == ("leverbench_decode_attention" if given else "leverbench-none")


def test_the_kernel_s_gain_is_predicted_beside_the_measured_one(embedded):
    (bench,) = embedded.project.path.glob("results/kernels/*/*/*/microbench.json")
    calls = json.loads(bench.read_text())["calls"]
    assert [call["dimensions"]["batch"] for call in calls] == [1, 8, 16]
    page = (embedded.project.path / "reports/quickstart/index.html").read_text()
    assert "Predicted and measured" in page
    findings = (embedded.project.path / "reports/quickstart/findings.md").read_text()
    assert "- **predicted**" in findings
