import csv
import math

import pandas as pd
import pytest
from unit.analysis.fake_campaign import FakeCampaign, write_campaign, write_record

from leverbench.analysis import analyse
from leverbench.analysis.measurements import (
    as_rows,
    collect,
    differences,
    holes,
    newest,
    placement_text,
    read_measurements,
    write_measurements,
)
from leverbench.errors import LeverbenchError
from leverbench.records import read_record

FIRST_COLUMNS = [
    "campaign",
    "variant",
    "parent",
    "session",
    "workload",
    "concurrency",
    "server_id",
    "valid",
    "invalid_reason",
    "num_requests",
    "failures",
    "output_tok_per_s",
    "request_per_s",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "accept_length",
    "duration_s",
    "started_at",
]


@pytest.fixture
def campaign(tmp_path):
    return write_campaign(tmp_path)


def table(campaign: FakeCampaign) -> pd.DataFrame:
    return collect(read_record(campaign.plan), campaign.results, campaign.points, campaign.attempts)


def find(campaign: FakeCampaign, variant: str, session: int, concurrency: int):
    (row,) = [
        row
        for row in as_rows(table(campaign))
        if (row["variant"], row["session"], row["concurrency"]) == (variant, session, concurrency)
    ]
    return row


def test_a_row_a_point_in_the_plans_order_whatever_the_order_of_paths(campaign):
    measurements = collect(
        read_record(campaign.plan), campaign.results, campaign.points[::-1], campaign.attempts
    )
    assert list(measurements.columns[:20]) == FIRST_COLUMNS
    assert list(measurements["variant"].unique()) == [
        "baseline",
        "threads-2",
        "float32",
        "decode-steps-4",
    ]
    assert list(measurements["concurrency"][:6]) == [1, 8, 16, 1, 8, 16]
    assert list(measurements["session"][:6]) == [1, 1, 1, 2, 2, 2]
    assert len(measurements) == 24


def test_fields_come_from_their_places_in_the_record(campaign):
    row = find(campaign, "float32", 1, 16)
    assert row["output_tok_per_s"] == pytest.approx(560)
    assert row["mean_ttft_ms"] == 56
    assert row["p99_ttft_ms"] == 84
    assert row["warm_up_agreed"] is True
    assert row["loop_lag_p99_ms"] == 0.4
    assert row["model_digest"] == "b" * 64
    assert row["machine_device"] == "cpu"
    assert row["valid"] is True


def test_gpus_of_a_server_are_one_row(campaign):
    def gpu(power_w, sm_clock_mhz, reasons):
        figures = {"power_w": power_w, "sm_clock_mhz": sm_clock_mhz, "memory_clock_mhz": None}
        ranges = {k: v and {"mean": v, "min": v, "max": v} for k, v in figures.items()}
        return {"samples": 9, **ranges, "temperature_c": None, "reasons": reasons}

    path = campaign.point("float32", 1, 16)
    gpus = {"gpu0": gpu(300.0, 1980.0, {"power-cap": 0.125}), "gpu1": gpu(400.0, 1500.0, {})}
    campaign.alter(path, gpus=gpus)
    row = find(campaign, "float32", 1, 16)
    assert (row["gpu_power_w"], row["gpu_sm_clock_mhz"]) == (700, 1500)
    assert row["gpu_memory_clock_mhz"] is row["gpu_temperature_c"] is None
    assert row["gpu_reasons"] == "power-cap 12%"

    # The power of one of two GPUs is not that of the server.
    campaign.alter(path, gpus={"gpu0": gpu(300.0, 1980.0, {}), "gpu1": gpu(None, 1500.0, None)})
    row = find(campaign, "float32", 1, 16)
    assert row["gpu_power_w"] is None
    assert row["gpu_reasons"] == "none"
    assert find(campaign, "float32", 1, 8)["gpu_reasons"] is None


def test_no_data_is_an_empty_cell_and_floats_come_back_exactly(campaign, tmp_path):
    campaign.alter_metrics(campaign.point("baseline", 1, 1), output_tok_per_s=0.1 + 0.2)
    analyse(campaign.plan, campaign.points, campaign.attempts, tmp_path)
    with (tmp_path / "measurements.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first["output_tok_per_s"] == "0.30000000000000004"
    assert first["parent"] == first["accept_length"] == first["invalid_reason"] == ""
    assert first["failures"] == "0"
    assert list(tmp_path.glob(".*.tmp")) == []


def test_parquet_gives_the_table_back(campaign, tmp_path):
    measurements = table(campaign)
    write_measurements(measurements, tmp_path / "m.csv", tmp_path / "m.parquet")
    pd.testing.assert_frame_equal(read_measurements(tmp_path / "m.parquet"), measurements)


def test_the_same_records_give_the_same_bytes(campaign, tmp_path):
    for name in ("a", "b"):
        write_measurements(table(campaign), tmp_path / f"{name}.csv", tmp_path / f"{name}.pq")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert (tmp_path / "a.pq").read_bytes() == (tmp_path / "b.pq").read_bytes()


def test_a_lasting_failure_is_a_row_without_figures(campaign):
    path = campaign.point("float32", 1, 8)
    campaign.alter(
        path,
        outcome="out-of-memory",
        detail="7.50 GiB wanted",
        valid=False,
        metrics=None,
        client=None,
        warm_up=None,
        num_requests=None,
    )
    row = find(campaign, "float32", 1, 8)
    assert row["valid"] is False
    assert row["invalid_reason"] == "out-of-memory"
    assert row["output_tok_per_s"] is None
    assert row["num_requests"] is None


def test_the_last_attempt_stands_in_for_a_missing_record(campaign):
    campaign.point("float32", 1, 8).unlink()
    campaign.attempt(
        "float32",
        1,
        8,
        {"at": "t", "cause": "server-died", "detail": "first", "row": None},
        {
            "at": "t",
            "cause": "client-bound",
            "detail": "lag",
            "row": {"num_requests": 32, "detail": None, "metrics": {"output_tok_per_s": 355.5}},
        },
    )
    row = find(campaign, "float32", 1, 8)
    assert row["valid"] is False
    assert row["invalid_reason"] == "client-bound"
    assert row["detail"] == "lag"
    assert row["output_tok_per_s"] == 355.5
    assert row["parent"] == "baseline"
    assert row["num_requests"] == 32


def test_an_attempt_cut_short_by_a_kill_leaves_the_one_before(campaign):
    campaign.point("float32", 1, 8).unlink()
    path = campaign.attempt("float32", 1, 8, {"at": "t", "cause": "timeout", "detail": "d"})
    with path.open("a") as file:
        file.write('{"at": "t", "cau')
    assert find(campaign, "float32", 1, 8)["invalid_reason"] == "timeout"


def test_points_of_a_session_that_did_not_launch_share_its_account(campaign):
    for concurrency in (1, 8, 16):
        campaign.point("float32", 1, concurrency).unlink()
    campaign.session("float32", 1).unlink()
    account = campaign.attempts / "float32" / "s1" / "serve.jsonl"
    account.parent.mkdir(parents=True)
    account.write_text('{"kind": "session", "at": "t", "cause": "server-died", "detail": "gone"}\n')
    plan = read_record(campaign.plan)
    (hole,) = holes(plan, as_rows(table(campaign)))
    assert (hole.concurrencies, hole.kind, hole.reason) == ((1, 8, 16), "invalid", "server-died")
    # Once it was launched, the account is history: the points are merely not measured yet.
    write_record(campaign.session("float32", 1), {"kind": "session"})
    (hole,) = holes(plan, as_rows(table(campaign)))
    assert (hole.concurrencies, hole.kind) == ((1, 8, 16), "missing")


def test_attempts_of_a_measured_point_do_not_count(campaign):
    campaign.attempt("float32", 1, 8, {"at": "t", "cause": "timeout", "detail": "d"})
    assert find(campaign, "float32", 1, 8)["valid"] is True


def test_no_points_give_an_empty_table_with_all_columns(campaign, tmp_path):
    measurements = collect(read_record(campaign.plan), campaign.results, [], campaign.attempts)
    write_measurements(measurements, tmp_path / "m.csv", tmp_path / "m.parquet")
    assert len(read_measurements(tmp_path / "m.parquet")) == 0
    assert (tmp_path / "m.csv").read_text().startswith(",".join(FIRST_COLUMNS))


@pytest.mark.parametrize(
    "damage",
    [
        {"campaign": "another"},
        {"kind": "launch"},
        {"variant": "unknown"},
        {"workload": "unknown"},
        {"metrics": {"output_tok_per_s": "fast"}},
        {"metrics": [1]},
        {"concurrency": None},
    ],
)
def test_a_foreign_record_is_named(campaign, damage):
    path = campaign.point("baseline", 1, 1)
    campaign.alter(path, **damage)
    with pytest.raises(LeverbenchError, match=r"baseline/s1/random/c1\.json"):
        table(campaign)


def test_a_truncated_record_is_named(campaign):
    path = campaign.point("baseline", 1, 1)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LeverbenchError, match=r"baseline/s1/random/c1\.json"):
        table(campaign)


def test_a_point_recorded_twice_is_refused(campaign):
    with pytest.raises(LeverbenchError, match="second record"):
        collect(
            read_record(campaign.plan),
            campaign.results,
            campaign.points + campaign.points[:1],
            campaign.attempts,
        )


def test_a_truncated_table_is_named(campaign, tmp_path):
    write_measurements(table(campaign), tmp_path / "m.csv", tmp_path / "m.parquet")
    (tmp_path / "m.parquet").write_bytes((tmp_path / "m.parquet").read_bytes()[:500])
    with pytest.raises(LeverbenchError, match=r"m\.parquet"):
        read_measurements(tmp_path / "m.parquet")


def test_text_with_commas_quotes_and_newlines_survives_the_csv(campaign, tmp_path):
    hostile = 'a,"b"\n<script>|'
    campaign.alter(campaign.point("baseline", 1, 1), detail=hostile)
    write_measurements(table(campaign), tmp_path / "m.csv", tmp_path / "m.parquet")
    with (tmp_path / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["detail"] == hostile
    assert len(rows) == 24


def test_holes_name_what_is_planned_and_not_valid(campaign):
    plan = read_record(campaign.plan)
    for concurrency in (1, 8, 16):
        campaign.alter(
            campaign.point("float32", 2, concurrency),
            outcome="start-failed",
            detail="died",
            valid=False,
        )
    campaign.point("threads-2", 1, 8).unlink()
    campaign.point("threads-2", 2, 8).unlink()
    campaign.attempt("threads-2", 2, 8, {"at": "t", "cause": "throttled", "detail": "hot"})
    found = [
        (h.variant, h.session, h.concurrencies, h.kind, h.reason, h.detail)
        for h in holes(plan, as_rows(table(campaign)))
    ]
    assert found == [
        ("threads-2", 1, (8,), "missing", "", ""),
        ("threads-2", 2, (8,), "invalid", "throttled", "hot"),
        ("float32", 2, (1, 8, 16), "failed", "start-failed", "died"),
    ]


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("protocol", "protocol"),
        ("workload_digest", "workload"),
        ("model_digest", "model"),
        ("engine_digest", "engine"),
        ("machine_cpu", "machine"),
    ],
)
def test_only_rows_of_the_last_measured_ones_conditions_are_pooled(campaign, column, name):
    first, second = (find(campaign, "baseline", session, 8) for session in (1, 2))
    assert newest([second, first]) == [second, first]
    other = {**first, column: 99}
    assert differences(other, second) == [name]
    assert newest([other, second]) == [second]
    late = {**other, "started_at": "2025-03-02T00:00:00.000+00:00"}
    assert newest([late, second]) == [late]
    assert newest([{**late, "valid": False}, second]) == [second]
    assert newest([{**late, "valid": False}]) == []


def test_a_launch_digest_alone_is_no_condition(campaign):
    row = find(campaign, "baseline", 1, 8)
    assert differences(row, {**row, "launch_digest": "x", "server_id": "y"}) == []


def test_attempts_of_an_older_configuration_do_not_count(campaign):
    campaign.point("float32", 1, 8).unlink()
    old = {"at": "t", "cause": "timeout", "detail": "old", "digests": {"launch": "e" * 64}}
    path = campaign.attempt("float32", 1, 8, old)
    (hole,) = holes(read_record(campaign.plan), as_rows(table(campaign)))
    assert (hole.concurrencies, hole.kind) == ((8,), "missing")
    campaign.attempt("float32", 1, 8, {"at": "t", "cause": "throttled", "detail": "new"}, old)
    assert find(campaign, "float32", 1, 8)["detail"] == "new"
    # Without the session's record nothing says which configuration is the present one.
    campaign.session("float32", 1).unlink()
    assert find(campaign, "float32", 1, 8)["detail"] == "old"
    for torn in ("", "not a line", '{"at": "t", "cau'):
        path.write_text(torn)
        (hole,) = holes(read_record(campaign.plan), as_rows(table(campaign)))
        assert hole.kind == "missing"


def test_a_point_outside_the_ladder_is_a_row_and_no_hole(campaign, tmp_path):
    campaign.add_point("float32", 1, 4, 8)
    assert find(campaign, "float32", 1, 4)["output_tok_per_s"] == pytest.approx(360)
    write_measurements(table(campaign), tmp_path / "m.csv", tmp_path / "m.parquet")
    with (tmp_path / "m.csv").open(newline="") as file:
        assert [row["concurrency"] for row in csv.DictReader(file)].count("4") == 1
    assert holes(read_record(campaign.plan), as_rows(table(campaign))) == []


def test_the_command_is_made_from_the_plan_and_not_read_from_the_record(campaign):
    campaign.alter(campaign.point("float32", 2, 8), command="rm -rf results")
    expected = (
        ".venv/bin/snakemake --cores 8 --force results/fake/float32/s2/random/c8.json"
        " --config campaign=config/fake.yaml"
    )
    assert find(campaign, "float32", 2, 8)["command"] == f"{expected} sessions=2"
    # Nothing else of a row depends on what the command line changed.
    write_record(campaign.plan, read_record(campaign.plan) | {"overrides": {}})
    assert find(campaign, "float32", 2, 8)["command"] == expected


def test_versions_placement_and_recovery_have_columns(campaign):
    row = find(campaign, "float32", 1, 8)
    assert (row["engine_version"], row["leverbench_version"]) == ("1.2.3", "0.9.9")
    assert row["placement"] == "CPUs 0-1 of 1 NUMA node"
    assert (row["recovery"], row["attached"]) == ("", False)
    campaign.recover("float32", 1, {"args": {"memory": 0.8}, "env": {"A": None}})
    steps = "out-of-memory: args.memory=0.8, env.A=unset"
    assert find(campaign, "float32", 1, 8)["recovery"] == steps


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (None, None),
        ({"numa_nodes": 0, "gpus": {}, "cpus_allowed": []}, None),
        (
            {"numa_nodes": 2, "gpus": {}, "cpus_allowed": ["0-3", "8"]},
            "CPUs 0-3 and 8 of 2 NUMA nodes",
        ),
        (
            {
                "numa_nodes": 2,
                "gpus": {
                    "gpu0": {"pci": "00000000:1B:00.0", "numa_node": 1},
                    "gpu1": {"pci": "00000000:43:00.0", "numa_node": None},
                },
                "cpus_allowed": ["0-31"],
            },
            "gpu0 (00000000:1B:00.0, NUMA node 1), gpu1 (00000000:43:00.0);"
            " CPUs 0-31 of 2 NUMA nodes",
        ),
    ],
)
def test_a_placement_reads_as_text(placement, text):
    assert placement_text(placement) == text


def test_rows_of_an_attached_server_say_so(campaign):
    campaign.attach()
    row = find(campaign, "baseline", 1, 8)
    assert (row["attached"], row["placement"]) == (True, None)


def test_what_no_server_measured_is_neither_attached_nor_launched(campaign):
    campaign.alter(campaign.point("baseline", 1, 8), server_id=None, valid=False, recovery=None)
    row = find(campaign, "baseline", 1, 8)
    assert (row["attached"], row["recovery"]) == (None, None)


def test_missing_numbers_are_none_in_rows_and_nan_in_the_table(campaign):
    assert find(campaign, "baseline", 1, 1)["steady_output_tok_per_s"] is None
    assert math.isnan(table(campaign)["steady_output_tok_per_s"][0])
