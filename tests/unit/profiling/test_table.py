"""The table: shares that add up, a summary of the device that counts, ranks side by side."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from trace_files import gpu_step, kernel, launch, op, step, write_trace

from leverbench.engines import step_marks
from leverbench.profiling.attribution import (
    CPU,
    GPU,
    CategoryTime,
    DeviceTime,
    Operation,
    RankTime,
    attribute,
)
from leverbench.profiling.geometry import geometry
from leverbench.profiling.reader import read_events
from leverbench.profiling.steps import Steps, not_found
from leverbench.profiling.table import decode_steps, make_table, summarise, write_table


def operation(name: str, category: str, self_us: float = 1.0, **more: Any) -> Operation:
    plain = {"device": GPU, "in_loop": False, "calls": 1, "union_us": self_us, "launch": None}
    return Operation(name=name, category=category, self_us=self_us, **plain | more)


def steps(*start_us: int) -> Steps:
    marks = np.array(start_us) * 1000
    return Steps("annotations", marks[:-1], marks[1:], len(start_us), None)


def time(found: Steps, categories: Any = None, **more: Any) -> DeviceTime:
    plain: dict[str, Any] = {
        "recording_us": (100.0, 60.0),
        "span_us": 80.0,
        "busy_us": 60.0,
        "gaps_us": np.array([5.0, 15.0]),
        "collectives_us": {},
    }
    return DeviceTime(steps=found, categories=categories or {}, **plain | more)


def rank(*operations: Operation, times: DeviceTime | None = None) -> RankTime:
    on_gpu = [times or time(not_found("no marks"))]
    return RankTime(operations, len(operations), {GPU: on_gpu, CPU: []})


def two_ranks() -> dict[str, RankTime]:
    cpu = operation("aten::mm", "gemm", 900.0, device=CPU)
    on_cpu = [time(not_found("no marks"), gaps_us=None)]
    ranks = {
        "TP-1": rank(operation("nvjet_a", "gemm", 30.0), operation("odd", "other", 10.0), cpu),
        "TP-0": rank(
            operation("odd", "other", 10.0), operation("nvjet_a", "gemm", 50.0, calls=3), cpu
        ),
    }
    return {name: replace(one, devices={**one.devices, CPU: on_cpu}) for name, one in ranks.items()}


def test_shares_are_of_a_ranks_time_on_one_device():
    rows = make_table(two_ranks())

    assert [(row.rank, row.device, row.name) for row in rows] == [
        ("TP-0", "cpu", "aten::mm"),
        ("TP-0", "gpu", "nvjet_a"),
        ("TP-0", "gpu", "odd"),
        ("TP-1", "cpu", "aten::mm"),
        ("TP-1", "gpu", "nvjet_a"),
        ("TP-1", "gpu", "odd"),
    ]
    assert [row.share for row in rows] == pytest.approx([1, 50 / 60, 10 / 60, 1, 0.75, 0.25])


def test_the_summary_counts_one_device_over_all_ranks():
    summary = summarise(two_ranks(), GPU)

    keys = ("category", "share", "in_loops", "self_us")
    assert summary["total_us"] == 100
    assert [tuple(entry[key] for key in keys) for entry in summary["categories"]] == [
        ("gemm", 0.8, 0.0, 80.0),
        ("other", 0.2, 0.0, 20.0),
    ]
    keys = ("name", "category", "calls", "self_us", "share")
    assert [tuple(entry[key] for key in keys) for entry in summary["top"]] == [
        ("nvjet_a", "gemm", 4, 80.0, 0.8),
        ("odd", "other", 2, 20.0, 0.2),
    ]
    assert summary["other_top"] == ["odd"]
    # Both ranks recorded 100 us, and were busy for 60 of 80 in what counts.
    assert summary["recording"] == {"span_us": 200, "busy_us": 120, "idle_share": 0.4}
    assert (summary["span_us"], summary["busy_us"], summary["idle_us"]) == (160, 120, 40)
    assert summary["idle_share"] == 0.25
    assert summary["gaps"] == {"count": 4, "total_us": 40, "median_us": 10}


def test_the_summary_names_the_ten_longest():
    names = [operation(f"odd-{i}", "other", i + 1.0) for i in range(12)]
    summary = summarise({"TP-0": rank(*names)}, GPU)

    assert [top["name"] for top in summary["top"]] == [f"odd-{i}" for i in range(11, 1, -1)]
    assert summary["other_top"] == [top["name"] for top in summary["top"]]


def test_the_time_of_a_step_is_a_mean_over_ranks():
    nvjet = operation("nvjet_a", "gemm", 90.0, union_us=40.0)
    other = replace(nvjet, union_us=80.0)
    ranks = {
        # Two whole steps of 40 us, and three of 30, 30 and 20.
        "TP-0": rank(nvjet, times=time(steps(0, 40, 80), {"gemm": CategoryTime(40, 30, 10)})),
        "TP-1": rank(other, times=time(steps(0, 30, 60, 80), {"gemm": CategoryTime(80, 60, 12)})),
    }
    summary = summarise(ranks, GPU)
    (gemm,), (top,) = summary["categories"], summary["top"]

    # 120 us in five steps.
    assert (gemm["union_us"], gemm["per_step_us"], top["per_step_us"]) == (120, 24, 24)
    # Without it, 30 + 60 us alone and 22 us before it would be gone, of 160.
    assert (gemm["gap_us"], gemm["step_share"]) == (22, 112 / 160)
    assert [row.per_step_us for row in make_table(ranks)] == [20, 80 / 3]
    assert summary["steps"] == {
        "found_by": "annotations",
        "count": 2,
        "dropped": 1,
        "mean_us": 32,
        "min_us": 20,
        "max_us": 40,
        "reason": None,
    }
    assert decode_steps(ranks, GPU) == 3


def test_where_one_rank_has_no_whole_step_there_is_no_time_of_a_step():
    ranks = {
        "TP-0": rank(operation("nvjet_a", "gemm"), times=time(steps(0, 40))),
        "TP-1": rank(operation("nvjet_a", "gemm"), times=time(not_found("no kernels"))),
    }
    summary = summarise(ranks, GPU)

    assert (summary["steps"]["found_by"], summary["steps"]["reason"]) == (None, "no kernels")
    assert summary["steps"]["count"] is summary["steps"]["mean_us"] is None
    assert summary["top"][0]["per_step_us"] is None
    assert decode_steps(ranks, GPU) == 2


def collectives(calls_us: list[float]) -> DeviceTime:
    return time(steps(0, 9), collectives_us={"nccl": np.array(calls_us)})


@pytest.mark.parametrize(
    ("calls_us", "expected"),
    [
        # 3 and 4 are the transfers, on each rank; who came first waited for 2, and for 5.
        (([3.0, 9.0], [5.0, 4.0]), (2 * 7.0, 7.0, 0.0)),
        (([3.0], [3.0]), (6.0, 0.0, 0.0)),
        # Which call is which cannot be told.
        (([3.0, 9.0], [5.0]), (0.0, 0.0, 17.0)),
        (([], []), (0.0, 0.0, 0.0)),
    ],
)
def test_communication_is_transfer_and_waiting(calls_us, expected):
    ranks = {
        f"TP-{number}": rank(
            operation("nccl", "comm"),
            times=time(steps(0, 9), collectives_us={"nccl": np.array(calls)}),
        )
        for number, calls in enumerate(calls_us)
    }

    assert tuple(summarise(ranks, GPU)["communication"].values()) == expected


def test_one_rank_does_not_tell_transfer_from_waiting():
    one = rank(
        operation("nccl", "comm"), times=time(steps(0, 9), collectives_us={"nccl": np.array([5.0])})
    )

    assert summarise({"TP-0": one}, GPU)["communication"] is None


def test_a_truncated_trace_is_named():
    ranks = {"TP-0": rank(), "TP-1": replace(rank(), truncated="it ends early")}

    assert summarise(ranks, GPU)["truncated"] == "TP-1: it ends early"


def test_a_table_with_and_without_rows_has_the_same_columns(tmp_path):
    known = operation("k", "other", launch=geometry(64, 256, 32, 0, 132, (9, 0)))
    rows = make_table({"TP-0": rank(known, operation("nvjet_a", "gemm"))})
    write_table(tmp_path / "full.parquet", rows, {"variant": "a"})
    write_table(tmp_path / "empty.parquet", [], {"variant": "a"})
    full, empty = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("full", "empty"))

    assert full.to_pylist() == [vars(row) for row in rows]
    assert (empty.num_rows, empty.schema) == (0, full.schema)
    assert (rows[0].grid_blocks, rows[0].block_threads, rows[0].registers) == (64, 256, 32)
    assert (rows[1].grid_blocks, rows[1].tensor_cores) == (None, "likely")


def test_a_summary_of_events_is_json(tmp_path):
    events = [
        *(event for at in (0, 100) for event in (step(at, 20), gpu_step(at, 50))),
        *(kernel("nvjet_a", at, 30, **launch(66, 128)) for at in (0, 100)),
        op("aten::mm", 1, 5),
    ]
    read_events(write_trace(tmp_path / "t.json", *events), tmp_path / "events")
    ranks = {"TP-0": attribute(tmp_path / "events", step_marks)}

    for device in (GPU, CPU):
        assert json.loads(json.dumps(summarise(ranks, device), allow_nan=False))
    top = summarise(ranks, GPU)["top"][0]
    assert top["geometry"]["busy_sm_share"] == 0.5
    assert summarise(ranks, CPU)["gaps"] is None


# What one decode step calls in a layer with a fallback attention, as in a real trace: before the
# requests, for each of them, and after.
BEFORE = ["linear", "split", "index_select", "mul", "sub", "cat", "index_put_", "index_put_"]
BEFORE += ["view", "view", "movedim"]
REQUEST = [
    "select",
    "add",
    "slice",
    "select",
    "item",
    "select",
    "item",
    "slice",
    "index",
    "movedim",
]
REQUEST += ["index", "movedim", "unsqueeze", "unsqueeze", "unsqueeze"]
REQUEST += ["scaled_dot_product_attention", "squeeze", "movedim", "slice", "copy_"]
AFTER = ["view", "linear", "add", "rms_norm"]


@pytest.mark.parametrize("requests", [1, 2, 16])
def test_a_fallback_attention_over_requests_is_counted_whole(tmp_path: Path, requests: int):
    names = 2 * [*BEFORE, *requests * REQUEST, *AFTER]
    # Each operation takes 1 us, and the engine's code before it another one.
    events = [op(f"aten::{name}", 2 * i + 1, 1) for i, name in enumerate(names)]
    trace = write_trace(tmp_path / "t.json", *events, step(0, 2 * len(names)))
    read_events(trace, tmp_path / "events")
    summary = summarise({"TP-0": attribute(tmp_path / "events", step_marks)}, CPU)
    found = {entry["category"]: entry for entry in summary["categories"]}

    # From the first view behind the writes to the view before the projection, in both layers.
    operations = 2 * (3 + requests * len(REQUEST) + 1)
    assert summary["total_us"] == 2 * len(names)
    assert found["attention"]["self_us"] == 2 * operations - 2
    assert found["attention"]["in_loops"] == found["attention"]["share"]
    assert found["gemm"]["self_us"] == 4
    # Split, the lookup of rope, its cat, and the two writes.
    assert found["memory"]["self_us"] == 2 * 5
    assert found["memory"]["in_loops"] == 0
    (between,) = (top for top in summary["top"] if top["name"].startswith("loop of"))
    assert (between["category"], between["calls"]) == ("attention", 2)
