"""Tuned files that a server was given: what its log proves at ready, and after a window."""

from pathlib import Path

from config_plugin import gemm_config, write_config_plugin

from leverbench.engines import get_engine
from leverbench.kernels.publish import Published, read_published
from leverbench.serving.calls import Counts, calls_between, files_not_used, proof_at_ready

FILES = get_engine("sglang").tuned_files
MISS = (
    "[2026-11-30 12:00:00 TP1] Using default W8A8 Block FP8 kernel config. Performance might be"
    " sub-optimal! Config file not found at /c/N=256,K=512,device_name=GPU,dtype=fp8_w8a8,"
    "block_shape=[128, 128].json\n"
)


def published(folder: Path) -> Published:
    write_config_plugin(folder, {(256, 512): {1: gemm_config(16)}}, "GPU")
    return read_published(folder)


def served(kernel: Published, *pids: int) -> str:
    digest = kernel.files[256, 512][:16]
    return "".join(
        f"leverbench: w8a8-block-fp8 rank TP{rank} process {pid} N=256 K=512 block=[128, 128]:"
        f" served {digest}\n"
        for rank, pid in enumerate(pids)
    )


def proofs(kernel: Published, log: str, **counts: Counts) -> list[dict]:
    calls = {kernel.kernel: {int(pid[1:]): count for pid, count in counts.items()}}
    return proof_at_ready(
        {kernel.kernel: kernel},
        calls,
        2,
        lambda module: None,
        lambda one: FILES.proofs(log, one.files, 2),
    )


def test_files_that_every_rank_was_served_are_in_force(tmp_path):
    kernel = published(tmp_path)
    (proof,) = proofs(kernel, served(kernel, 7, 8), p7=Counts(3, 1), p8=Counts(3, 1))

    assert (proof["applied"], proof["problem"]) == (True, None)
    (file,) = proof["files"]
    assert (file["n"], file["k"], file["served"], file["applied"]) == (256, 512, (7, 8), True)


def test_a_rank_that_took_the_engine_s_default_refutes_them(tmp_path):
    kernel = published(tmp_path)
    log = served(kernel, 7, 8) + MISS
    (proof,) = proofs(kernel, log, p7=Counts(3, 1), p8=Counts(3, 1))

    assert proof["applied"] is False
    assert "the engine took its default on rank TP1" in proof["problem"]


def test_a_server_that_looks_none_of_them_up_does_not_use_them(tmp_path):
    kernel = published(tmp_path)

    (proof,) = proofs(kernel, "", p7=Counts(0, 0), p8=Counts(0, 0))
    assert "looks none of its files up" in proof["problem"]
    (proof,) = proofs(kernel, "", p7=Counts(0, 2), p8=Counts(0, 2))
    assert "none of its 1 files is for one of the 4 lookups" in proof["problem"]


def test_a_window_without_lookups_is_no_proof_against_them_and_a_miss_in_it_is(tmp_path):
    kernel = published(tmp_path)
    log = served(kernel, 7, 8)
    found = proofs(kernel, log, p7=Counts(3, 1), p8=Counts(3, 1))
    before = {kernel.kernel: {7: Counts(3, 1), 8: Counts(3, 1)}}

    assert calls_between(found, before, before) == []
    assert files_not_used(found, log, FILES, 2) is None
    told = files_not_used(found, log + MISS, FILES, 2)
    assert told is not None
    assert told.startswith("w8a8-block-fp8: N=256, K=512: the engine took its default")
