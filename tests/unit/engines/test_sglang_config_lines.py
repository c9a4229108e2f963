"""What a log proves of config files: lines of a real server, and of our plugin."""

from pathlib import Path

import pytest

from leverbench.engines.sglang_config_lines import (
    Answer,
    FirstUse,
    TunedFileLine,
    applied_files,
    first_uses,
    looked_up,
    tuned_file_lines,
)
from leverbench.tuning.shapes import LookedUp

# Of a real start on one GPU: eight shapes are looked up, and a plugin answers for (2048, 2048).
REAL = (Path(__file__).parents[2] / "data/sglang-0.5.17-lookups.log").read_text()
A, B = "a" * 16, "b" * 16
FOLDER = "/opt/engine/configs"
NAME = "N=512,K=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
PROGRESS = "Capturing batches (bs=16):   0%|          | 0/6 [00:00<?, ?it/s]"


def ours(what: str, pid: int = 7, rank: str = "TP0", n: int = 512) -> str:
    shape = f"N={n} K=256 block=[128, 128]"
    return f"leverbench: w8a8-block-fp8 rank {rank} process {pid} {shape}: {what}\n"


def missed(rank: str = " TP0") -> str:
    return (
        f"[2026-11-29 15:59:38{rank}] Using default W8A8 Block FP8 kernel config. Performance might"
        f" be sub-optimal! Config file not found at {FOLDER}/{NAME}\n"
    )


def found(rank: str = " TP0") -> str:
    return (
        f"[2026-11-29 15:59:38{rank}] Using configuration from {FOLDER}/{NAME}"
        " for W8A8 Block FP8 kernel.\n"
    )


def test_the_lookups_of_a_real_start_are_all_found():
    lookups = looked_up(REAL)

    assert [(found.n, found.k) for found in lookups] == [
        (1344, 2048),
        (6144, 768),
        (2048, 4096),
        (16384, 2048),
        (2048, 8192),
        (2048, 1024),
        (8192, 512),
    ]
    folder = "/opt/engine/sglang/kernels/ops/quantization/configs"
    name = "N=1344,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    assert lookups[0] == LookedUp(
        n=1344,
        k=2048,
        block_n=128,
        block_k=128,
        device="NVIDIA_H200",
        dtype="fp8_w8a8",
        hit=False,
        path=f"{folder}/{name}",
        rank=None,
    )


def test_files_of_a_real_start_are_not_applied_where_it_missed_them_and_not_known_elsewhere():
    missed, unseen = applied_files(REAL, {(1344, 2048): A, (2048, 2048): A}, ranks=1)

    assert (missed.applied, missed.problem) == (
        False,
        "N=1344, K=2048: the engine took its default",
    )
    # That plugin told of it in words of its own.
    assert (unseen.applied, unseen.problem) == (None, "N=2048, K=2048 was never looked up")


@pytest.mark.parametrize(
    ("rank", "expected"), [("", None), (" TP3", "TP3"), (" DP1 PP0 ATTN_CP0", "DP1_PP0_ATTN_CP0")]
)
def test_the_engine_s_lines_tell_hit_or_miss_and_the_rank(rank, expected):
    log = found(rank) + PROGRESS + missed(rank)

    assert [(line.hit, line.rank, line.path) for line in looked_up(log)] == [
        (True, expected, f"{FOLDER}/{NAME}"),
        (False, expected, f"{FOLDER}/{NAME}"),
    ]


def test_other_kernels_files_are_no_lookups():
    for other in ("W8A8 Block INT8", "MoE"):
        assert looked_up(found().replace("W8A8 Block FP8", other)) == []


def test_our_lines_tell_what_was_done_in_each_process():
    log = PROGRESS + ours(f"served {A}") + ours("not here, left to the engine", rank="-")
    log += ours("refused, made for NVIDIA_H200 and this is NVIDIA_L4", pid=8, rank="DP0_TP1")
    at = {"n": 512, "k": 256}

    assert tuned_file_lines(log) == [
        TunedFileLine(7, **at, answer=Answer.SERVED, digest=A, detail=None),
        TunedFileLine(7, **at, answer=Answer.LEFT, digest=None, detail=None),
        TunedFileLine(
            8,
            **at,
            answer=Answer.REFUSED,
            digest=None,
            detail="made for NVIDIA_H200 and this is NVIDIA_L4",
        ),
    ]


def test_the_first_use_of_a_config_is_no_lookup():
    log = ours("first use of M=16", rank="TP1")

    assert first_uses(log) == [FirstUse(7, 512, 256, 16)]
    assert tuned_file_lines(log) == []


def test_a_file_that_every_rank_was_served_is_applied():
    log = "".join(
        ours(what, pid, rank)
        for pid, rank in ((7, "TP0"), (8, "TP1"))
        for what in (f"served {A}", "first use of M=1", f"first use of M={pid * 2}")
    )

    (proof,) = applied_files(log, {(512, 256): A + "0" * 48}, ranks=2)

    assert (proof.applied, proof.problem) == (True, None)
    assert (proof.served, proof.used) == ((7, 8), (1,))


def test_a_rank_that_has_not_looked_it_up_leaves_it_open():
    (proof,) = applied_files(ours(f"served {A}"), {(512, 256): A}, ranks=2)

    assert (proof.applied, proof.problem) == (
        None,
        "N=512, K=256 was looked up on 1 of 2 ranks",
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (missed(" TP1"), "N=512, K=256: the engine took its default on rank TP1"),
        (found(" TP0"), "N=512, K=256: the engine took its own file on rank TP0"),
        (ours(f"served {B}", 8), f"N=512, K=256 in process 8: the file served is {B}"),
        (
            ours("not here, left to the engine", 8),
            "N=512, K=256 in process 8: the plugin has no such file",
        ),
        (
            ours("refused, made for X and this is Y", 8),
            "N=512, K=256 in process 8: refused, made for X and this is Y",
        ),
    ],
)
def test_one_rank_with_something_else_refutes_it(line, problem):
    (proof,) = applied_files(ours(f"served {A}") + line, {(512, 256): A}, ranks=1)

    assert (proof.applied, proof.problem) == (False, problem)


def test_lines_of_another_shape_say_nothing_of_this_one():
    log = ours(f"served {A}", n=1024) + missed()

    (proof,) = applied_files(log, {(1024, 256): A}, ranks=1)

    assert proof.applied
