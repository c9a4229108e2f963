"""Time on GPUs: unions, gaps, steps; and two traces of a real GPU, with their known sums."""

from pathlib import Path
from typing import Any

import pytest
from trace_files import event, gpu_step, kernel, launch, step, write_trace

from leverbench.engines import step_marks
from leverbench.profiling.attribution import (
    CPU,
    GPU,
    DeviceTime,
    RankTime,
    attribute,
    attribute_ranks,
)
from leverbench.profiling.reader import read_events
from leverbench.profiling.table import decode_steps, summarise

DATA = Path(__file__).resolve().parents[2] / "data"
GEMM, NORM, NCCL = "nvjet_a", "rmsnorm_b", "ncclDevKernel_AllReduce"


def read(folder: Path, *events: Any) -> RankTime:
    read_events(write_trace(folder / "t.json", *events), folder / "t.parquet")
    return attribute(folder / "t.parquet", step_marks)


def on_gpu(rank: RankTime) -> DeviceTime:
    (time,) = rank.devices[GPU]
    return time


def test_durations_add_up_though_they_overlap(tmp_path):
    rank = read(
        tmp_path,
        kernel("k", 0, 10, stream=7),
        kernel("k", 5, 10, stream=9),
        event("gpu_memcpy", "Memcpy DtoH", 1, 2, pid=0, tid=7),
        event("gpu_memset", "Memset (Device)", 4, 1, pid=0, tid=7),
        gpu_step(0, 20),
        event("cuda_runtime", "cudaLaunchKernel", 0, 3),
        {"ph": "f", "cat": "ac2g", "id": 1, "ts": 0},
    )

    found = {operation.name: operation.self_us for operation in rank.operations}
    assert found == {"k": 20.0, "Memcpy DtoH": 2.0, "Memset (Device)": 1.0}
    # The union of k is 0 to 15, and that of all as long.
    assert {o.name: o.union_us for o in rank.operations}["k"] == 15
    assert (on_gpu(rank).busy_us, rank.events, rank.devices[CPU]) == (15, 4, [])


def test_what_a_category_has_alone_and_what_is_idle_before_it(tmp_path):
    rank = read(
        tmp_path,
        kernel(GEMM, 0, 10),
        kernel(GEMM, 12, 10),
        # Half of it beside the product, on another stream.
        kernel(NORM, 17, 10, stream=8),
        kernel(NORM, 30, 5),
    )
    time = on_gpu(rank)

    # Without steps, the whole recording of 35 us: idle 10 to 12 and 27 to 30.
    assert (time.span_us, time.busy_us, time.gaps_us.tolist()) == (35, 30, [2, 3])
    assert time.categories["gemm"].__dict__ == {"union_us": 20, "alone_us": 15, "gap_us": 2}
    assert time.categories["norm"].__dict__ == {"union_us": 15, "alone_us": 10, "gap_us": 3}


def test_whole_steps_are_counted_and_the_last_is_not(tmp_path):
    rank = read(
        tmp_path,
        *(event for start in (0, 100, 210) for event in (step(start, 20), gpu_step(start, 50))),
        *(kernel(GEMM, start + 1, 30) for start in (0, 100, 210)),
        kernel(NORM, 60, 10),
        # It goes on across the start of the next step.
        kernel(NORM, 205, 10, stream=8),
        # Before the first step.
        kernel(NORM, -50, 10),
    )
    time = on_gpu(rank)

    assert (time.steps.found_by, time.steps.seen, time.steps.dropped) == ("annotations", 3, 1)
    # From 0 to 100 and from 100 to 210.
    assert time.span_us == 210
    assert time.busy_us == 30 + 10 + 30 + 5
    assert time.categories["gemm"].union_us == 60
    # 10 us and the five before the last step.
    assert time.categories["norm"].union_us == 15
    # Idle before products: 0 to 1 and 70 to 101.
    assert time.categories["gemm"].gap_us == 1 + 31
    assert time.gaps_us.sum() == time.span_us - time.busy_us
    assert {o.name: o.self_us for o in rank.operations if o.device == GPU} == {GEMM: 90, NORM: 30}


def test_idle_time_at_a_steps_end_is_before_what_comes_next(tmp_path):
    rank = read(
        tmp_path,
        *(event for start in (0, 100) for event in (step(start, 20), gpu_step(start, 30))),
        *(kernel(GEMM, start, 30) for start in (0, 100)),
    )

    assert on_gpu(rank).gaps_us.tolist() == [70]
    assert on_gpu(rank).categories["gemm"].gap_us == 70


def test_the_marks_of_the_stream_with_most_steps_count(tmp_path):
    rank = read(
        tmp_path,
        *(gpu_step(start, 50) for start in (0, 100, 200)),
        # A copy of two of them, on a stream that joins in later.
        *(gpu_step(start + 20, 10, stream=8) for start in (0, 100)),
        *(kernel(GEMM, start, 50) for start in (0, 100, 200)),
    )

    assert on_gpu(rank).steps.start_ns.tolist() == [0, 100_000]
    assert on_gpu(rank).steps.seen == 3


def test_a_prefill_ends_a_step_and_is_none(tmp_path):
    marks = [gpu_step(0, 9), gpu_step(10, 25, "EXTEND"), gpu_step(40, 9), gpu_step(50, 9)]
    rank = read(tmp_path, *marks, *(kernel(GEMM, at, 9) for at in (0, 10, 40, 50)))

    assert on_gpu(rank).steps.start_ns.tolist() == [0, 40_000]
    assert on_gpu(rank).span_us == 20
    assert on_gpu(rank).busy_us == 18


def test_without_marks_steps_are_found_by_what_comes_back(tmp_path):
    names = ["embed", "a", "b", "a", "b", "sample"]
    rank = read(tmp_path, *(kernel(names[i % 6], 10 * i, 8) for i in range(18)))
    time = on_gpu(rank)

    assert (time.steps.found_by, time.steps.seen, time.span_us) == ("periodicity", 3, 120)
    assert time.busy_us == 12 * 8


def test_marks_on_the_cpu_alone_still_count_the_steps(tmp_path):
    rank = read(tmp_path, step(0, 9), step(10, 9), kernel(GEMM, 0, 5), kernel(NORM, 10, 5))

    assert (on_gpu(rank).steps.found_by, on_gpu(rank).steps.seen) == (None, 2)
    assert decode_steps({"TP-0": rank}, GPU) == 2


def test_gpus_of_one_rank_have_their_own_time(tmp_path):
    rank = read(
        tmp_path,
        kernel(GEMM, 0, 10),
        kernel(GEMM, 5, 10, pid=1),
        # A GPU that this one only copies to.
        event("gpu_memcpy", "Memcpy PtoP", 100, 10, pid=2, tid=1),
    )

    assert [time.span_us for time in rank.devices[GPU]] == [10, 10]


def test_a_kernels_geometry_is_that_of_most_of_its_time(tmp_path):
    rank = read(
        tmp_path,
        kernel("k", 0, 5, **launch(132, 256)),
        kernel("k", 10, 5, **launch(132, 256)),
        kernel("k", 20, 8, **launch(64, 128)),
        kernel("untold", 30, 1),
        step(0, 10),
    )
    launches = {operation.name: operation.launch for operation in rank.operations}

    assert launches["k"].grid_blocks == 132
    assert (launches["k"].sm_count, launches["k"].busy_sm_share) == (132, 1.0)
    assert launches["untold"] is launches["step[DECODE bs=3]"] is None


def test_ranks_are_read_at_once_and_a_truncated_one_says_so(tmp_path):
    whole = write_trace(tmp_path / "whole.json", kernel(GEMM, 0, 5), kernel(GEMM, 10, 5))
    cut = tmp_path / "cut.json"
    text = whole.read_text()
    cut.write_text(text[: text.rindex("{")])
    ranks = attribute_ranks({"TP-0": whole, "TP-1": cut}, tmp_path / "events", step_marks)

    assert (ranks["TP-0"].events, ranks["TP-0"].truncated) == (2, None)
    assert ranks["TP-1"].events == 1
    assert ranks["TP-1"].truncated


# Of 132 SMs; what is known of them: 1,079 kernels each in five steps of a model of six layers.
REAL = {
    "decode-c16-gpu": {"kernels_ms": 6.87, "idle": 0.497, "found_by": "periodicity"},
    "decode-c16-cpu-gpu": {"kernels_ms": 6.83, "idle": 0.462, "found_by": "annotations"},
}


@pytest.fixture(scope="module", params=REAL)
def real(request, tmp_path_factory) -> tuple[RankTime, dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("real")
    read_events(DATA / f"{request.param}.trace.json.gz", folder / "events")
    rank = attribute(folder / "events", step_marks)
    return rank, summarise({"TP-0": rank}, GPU), REAL[request.param]


def test_a_real_trace_has_all_its_kernels(real):
    rank, _, known = real
    kernels = [o for o in rank.operations if o.device == GPU and o.category != "memcpy"]

    assert sum(kernel.calls for kernel in kernels) == 1079
    total_ms = sum(kernel.self_us for kernel in kernels) / 1000
    assert total_ms == pytest.approx(known["kernels_ms"], abs=0.005)


def test_a_real_trace_has_five_decode_steps(real):
    rank, summary, known = real

    assert decode_steps({"TP-0": rank}, GPU) == 5
    steps = summary["steps"]
    assert (steps["found_by"], steps["count"], steps["dropped"]) == (known["found_by"], 4, 1)
    # The first step of a recording without the CPU's part is a slow one.
    assert 2000 < steps["min_us"] < steps["mean_us"] < 2500


def test_a_real_trace_shows_a_gpu_that_waits_for_half_of_the_time(real):
    _, summary, known = real

    assert summary["recording"]["idle_share"] == pytest.approx(known["idle"], abs=0.001)
    assert summary["idle_share"] == pytest.approx(known["idle"], abs=0.025)
    assert summary["gaps"]["total_us"] == pytest.approx(summary["idle_us"])


def test_the_longest_kernels_of_a_real_trace(real):
    _, summary, _ = real

    shares = {top["name"]: round(top["share"], 2) for top in summary["top"][:4]}
    assert shares == {
        "_w8a8_block_fp8_matmul": 0.27,
        "_fwd_grouped_kernel_stage1": pytest.approx(0.245, abs=0.01),
        "fused_moe_kernel": 0.10,
        "_fwd_kernel_stage2": 0.06,
    }
    assert [top["tensor_cores"] for top in summary["top"][:4]] == [
        *("likely", "likely", "likely", "none")
    ]


def test_each_kernel_of_a_real_trace_has_a_category(real):
    _, summary, _ = real
    shares = {entry["category"]: entry["share"] for entry in summary["categories"]}

    assert shares["other"] < 0.001
    assert sum(shares.values()) == pytest.approx(1)


def test_the_parts_of_a_real_step_make_it_up(real):
    _, summary, _ = real
    categories = summary["categories"]

    # Streams overlap a little: what two categories have together is neither's alone.
    assert 0.94 < sum(entry["step_share"] for entry in categories) <= 1
    assert sum(entry["union_us"] for entry in categories) >= summary["busy_us"]
    assert summary["busy_us"] + summary["idle_us"] == pytest.approx(summary["span_us"])
    mean_us = summary["steps"]["mean_us"]
    assert summary["span_us"] == pytest.approx(4 * mean_us)


def test_the_geometry_of_a_real_kernel(real):
    _, summary, _ = real
    attention = next(top for top in summary["top"] if top["name"] == "_fwd_grouped_kernel_stage1")

    # 194 registers: two blocks of four warps on each of 132 SMs, of 64 warps.
    known = {"grid_blocks": 8192, "blocks_per_sm": 2, "limited_by": "registers"}
    assert attention["geometry"] | known == attention["geometry"]
    assert attention["geometry"]["occupancy"] == 8 / 64
    assert attention["geometry"]["waves"] == 8192 / 264


def test_no_time_is_so_far_that_sums_overflow(tmp_path):
    far_us = 3.9e15
    rank = read(tmp_path, kernel(GEMM, -far_us, 5), kernel(GEMM, far_us, 5), kernel("x", 0, far_us))
    (time,) = rank.devices["gpu"]

    # The third is no operation; of the rest the times are told as they are.
    assert rank.events == 2
    assert (time.span_us, time.busy_us) == (2 * far_us + 5, 10)
