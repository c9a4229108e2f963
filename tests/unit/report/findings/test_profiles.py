from pathlib import Path

import pytest
from unit.analysis.fake_campaign import write_record

from leverbench.profiling.summary import summarise_traces
from leverbench.records import read_record

ROOT = Path(__file__).resolve().parents[4]

BASELINE = "baseline/profile/random/c16"
WHERE = "baseline under random at C=16"


def only(campaign, *variants: str) -> None:
    """Removes the profiles of all variants but some."""
    for path in campaign.profiles:
        if path.relative_to(campaign.results).parts[0] not in variants:
            path.unlink()


def test_a_kernel_of_more_than_a_third_is_dominant(campaign, found):
    only(campaign, "baseline", "float32")
    # Half of the operations' time, and a quarter of a step: the GPU is idle for half of it.
    campaign.tell_steps("baseline", {"attention": 50.0, "gemm": 30.0, "norm": 20.0}, idle_us=100.0)
    campaign.tell_steps("float32", {"attention": 40.0, "gemm": 60.0})
    gemm, attention = found("dominant kernel")

    assert gemm.text == (
        "gemm_kernel (gemm) takes 60.0% of the operations' time in float32 under random at C=16."
        " With all the rest gone, decode would be at most 1 / 0.60 = 1.67 times as fast, with this"
        " kernel gone 2.50."
    )
    assert gemm.rows == ("float32/profile/random/c16",)
    assert attention.text == (
        f"attention_kernel (attention) takes 50.0% of the operations' time in {WHERE} (also 40.0%"
        " in float32). With all the rest gone, decode would be at most 1 / 0.25 = 4.00 times as"
        " fast, with this kernel gone 1.33."
    )
    assert attention.rows == (BASELINE, "float32/profile/random/c16")


def test_a_third_is_not_dominant_and_neither_is_the_engines_own_code(campaign, found):
    only(campaign, "baseline")
    times_us = {"attention": 1.0, "gemm": 1.0, "norm": 1.0}
    campaign.tell_steps("baseline", times_us)
    assert found("dominant kernel") == []

    campaign.tell_steps("baseline", {"host-code": 5.0, **times_us}, device="cpu")
    assert found("dominant kernel") == []


def test_profiles_of_before_have_dominant_operations_too(campaign, found):
    (attention, gemm) = found("dominant kernel")

    assert attention.text.startswith(
        f"decode_kernel (attention) takes 50.0% of the operations' time in {WHERE} (also 50.0% in"
        " threads-2, 50.0% in float32, 1 more)."
    )
    assert attention.text.endswith("with this operation gone 2.00.")
    assert "gemm_bf16 (matrix-multiply) takes 40.0%" in gemm.text
    assert len(attention.rows) == 4


def activity(*shares: float | None):
    gpus = [{"gpu": f"gpu{n}", "any_tensor": share} for n, share in enumerate(shares)]
    return {"source": "nvml-gpm", "seconds": 1.0, "gpus": gpus}


def test_matrix_work_without_tensor_cores_is_a_fallback(campaign, found):
    only(campaign, "baseline")
    times_us = {"attention": 50.0, "moe-routing": 20.0, "norm": 15.0, "gemm": 15.0}
    inferred = {"attention": "none", "moe-routing": "none", "norm": "none", "gemm": "likely"}
    campaign.tell_steps(
        "baseline", times_us, tensor_cores=inferred, tensor_activity=activity(0.02, 0.04, None)
    )
    (fallback,) = found("cuda-core fallback")

    assert fallback.text == (
        f"attention (attention_kernel) takes 50.0% of the operations' time in {WHERE} and uses no"
        " tensor cores (inferred from the kernels' names), although it is matrix work. Measured"
        " there over all kernels: a tensor instruction under way 3.0% of the time."
    )
    assert fallback.rows == (BASELINE,)


@pytest.mark.parametrize(("time_us", "told"), [(10.0, 0), (11.0, 1)])
def test_a_fallback_of_a_tenth_or_less_is_not_told(campaign, found, time_us, told):
    only(campaign, "baseline")
    times_us = {"attention": time_us, "other": 100.0 - time_us}
    campaign.tell_steps("baseline", times_us, tensor_cores={"attention": "none"})

    assert len(found("cuda-core fallback")) == told


def test_of_a_mixed_category_the_kernel_without_is_named(campaign, found):
    only(campaign, "baseline")
    campaign.tell_steps(
        "baseline",
        {"gemm": 60.0, "norm": 40.0},
        top={"gemm": {"name": "splitKreduce", "tensor_cores": "none"}},
        tensor_cores={"gemm": "mixed", "norm": "none"},
    )
    (fallback,) = found("cuda-core fallback")

    assert fallback.text.startswith("splitKreduce takes 60.0%")
    assert "Measured" not in fallback.text


def launch(blocks: int | None, sms: int | None):
    return {"geometry": {"grid_blocks": blocks, "sm_count": sms}}


def test_fewer_blocks_than_multiprocessors_are_an_under_filled_launch(campaign, found):
    only(campaign, "baseline")
    campaign.tell_steps(
        "baseline",
        {"attention": 60.0, "gemm": 20.0, "norm": 15.0, "kv": 5.0},
        top={
            "attention": launch(64, 170),
            # A wave of 128 of 170 is no worse than an ordinary last one.
            "gemm": launch(128, 170),
            "norm": launch(1, None),
            "kv": launch(1, 170),
        },
    )
    (under,) = found("under-filled launch")

    assert under.text == (
        "attention_kernel has 64 blocks on 170 SMs: at most 38% of the chip. It takes 60.0% of the"
        f" operations' time in {WHERE}."
    )
    assert under.rows == (BASELINE,)


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (None, ""),
        (
            {"transfer_us": 10.0, "wait_us": 30.0},
            " Of it 25% is transfer and 75% waiting for other ranks: ranks are out of step, a"
            " faster link would give little.",
        ),
        (
            {"transfer_us": 30.0, "wait_us": 10.0},
            " Of it 75% is transfer and 25% waiting for other ranks: the link, or how it is used,"
            " is what is slow.",
        ),
    ],
)
def test_communication_is_told_with_transfer_and_waiting(campaign, found, split, told):
    only(campaign, "baseline")
    campaign.tell_steps("baseline", {"gemm": 60.0, "comm": 40.0}, communication=split)
    (comm,) = found("communication-bound")

    assert comm.text == (
        f"comm takes 40.0% of decode time in profile {BASELINE} (more than 25%); gone altogether it"
        f" would give at most 1.667.{told}"
    )
    assert comm.rows == (BASELINE,)


def test_a_quarter_of_communication_is_not_a_bound(campaign, found):
    campaign.tell_steps("baseline", {"gemm": 75.0, "comm": 25.0})

    assert found("communication-bound") == []


def test_an_idle_gpu_is_host_bound_and_what_recording_adds_is_told(campaign, found):
    only(campaign, "baseline")
    # TPOT is 40 ms in session 1 and 39.2 in session 2: 31 ms of work leave 22% of it idle.
    campaign.tell_steps("baseline", {"gemm": 31_000.0}, idle_us=31_000.0)
    (host,) = found("host-bound")

    assert host.text == (
        f"In the decode steps of {WHERE} the GPU has nothing to do for 50.0% of the time (more"
        " than 25%): it waits for the host. 40 gaps between operations, of 2.5 us"
        " (median) and 3875.0 us (mean). Without any, decode would be at most 2.00 times as fast."
        " Recording slows the host: a recorded step takes 62 ms, by the measured TPOT it is 39.6"
        " ms, in which the same work leaves 22% idle. That is below the limit: it is the recording"
        " that makes the server wait."
    )
    assert host.rows == (BASELINE, "baseline/s1/random/c16", "baseline/s2/random/c16")


def test_an_idle_gpu_without_measurements_is_host_bound_all_the_same(campaign, found):
    only(campaign, "baseline")
    campaign.tell_steps("baseline", {"gemm": 60.0}, idle_us=40.0)
    for session in (1, 2):
        campaign.point("baseline", session, 16).unlink()
    (host,) = found("host-bound")

    assert "for 40.0% of the time" in host.text
    assert "Recording" not in host.text


@pytest.mark.parametrize(("idle_us", "device"), [(25.0, "gpu"), (60.0, "cpu")])
def test_a_quarter_idle_or_an_idle_cpu_is_not_host_bound(campaign, found, idle_us, device):
    campaign.tell_steps("baseline", {"gemm": 75.0}, idle_us=idle_us, device=device)

    assert found("host-bound") == []


def test_what_a_kernel_changed_is_explained_by_its_profile(campaign, found):
    only(campaign, "baseline", "float32")
    # TPOT of float32 is 0.711 of the baseline's 39.6 ms; the profiled step goes from 100 to 70.
    campaign.tell_steps("baseline", {"attention": 60.0, "gemm": 30.0}, idle_us=10.0)
    campaign.tell_steps(
        "float32",
        {"attention": 25.0, "gemm": 30.0},
        idle_us=15.0,
        top={"attention": {"name": "fused"}},
    )
    (one,) = found("difference")

    assert one.text.startswith("float32 against baseline under random at C=16: TPOT 39.61 to 28.15")
    # 35 of 100 us are 13.9 of 39.6 ms, and 5 are 1.98.
    assert "takes 0.700 times as long as its parent's, which explains -11.9 ms" in one.text
    assert ": attention -13.9 ms, idle +1.98 ms. Unexplained: +0.425 ms, 4% of the" in one.text
    assert one.text.endswith(" change. New: fused. Gone: attention_kernel.")
    assert one.rows[:2] == (BASELINE, "float32/profile/random/c16")
    assert set(one.rows[2:]) == {
        f"{name}/s{session}/random/c16" for name in ("baseline", "float32") for session in (1, 2)
    }


def test_a_large_unexplained_part_comes_with_what_recording_cost(campaign, found):
    only(campaign, "baseline", "float32")
    campaign.tell_steps("baseline", {"gemm": 59_400.0})
    campaign.tell_steps("float32", {"gemm": 56_300.0})
    (one,) = found("difference")

    assert "Recorded steps are +50% and +100% against what TPOT tells" in one.text


def test_a_disturbed_recording_is_told(campaign, found):
    only(campaign, "baseline", "float32")
    campaign.tell_steps("baseline", {"gemm": 100_000.0})
    campaign.tell_steps("float32", {"gemm": 71_000.0})
    steps = read_record(campaign.profile("float32"))["steps"]
    campaign.alter(campaign.profile("float32"), steps={**steps, "max_us": 250_000.0})
    (one,) = found("difference")

    assert one.text.endswith(
        " Something disturbed a recording: decode steps differ in float32/profile/random/c16 (71 to"
        " 250 ms)."
    )


def test_without_a_change_of_tpot_there_is_nothing_to_explain(campaign, found):
    only(campaign, "baseline", "threads-2")
    campaign.tell_steps("baseline", {"gemm": 100.0})
    # 1% of a ratio, and noise of as much.
    campaign.tell_steps("threads-2", {"gemm": 50.0})

    assert found("difference") == []


def test_profiles_of_other_engines_are_not_compared(campaign, found):
    only(campaign, "baseline", "float32")
    campaign.tell_steps("baseline", {"gemm": 100.0})
    campaign.tell_steps("float32", {"gemm": 50.0}, versions={"engine": "1.2.4"})
    (one,) = found("difference")

    assert one.text == (
        "float32 against baseline under random at C=16: their profiles are not compared: engine"
        " versions 1.2.3 and 1.2.4."
    )
    assert one.rows == (BASELINE, "float32/profile/random/c16")


def test_ceilings_of_roots_are_told_with_a_share_of_the_step(campaign, found):
    campaign.tell_steps("baseline", {"attention": 50.0, "gemm": 30.0, "norm": 0.1}, idle_us=19.9)
    (one,) = found("category ceilings")

    # The gap of 19.9 us is before the attention: 1 / (1 - 0.699).
    assert one.text == (
        "With all of a category gone, decode would be at most this many times as fast, by profile"
        f" {BASELINE}: attention 3.322, gemm 1.429."
    )
    assert one.rows == (BASELINE,)


def test_an_incomplete_trace_is_told(campaign, found):
    campaign.tell_steps("float32", {"gemm": 1.0}, truncated="TP-0: it ends inside an event")
    said = [one.text for one in found("profile") if one.text.startswith("float32")]

    assert "A trace is incomplete: TP-0: it ends inside an event." in said[0]


def test_a_record_without_steps_in_its_trace_has_shares_of_the_recording(campaign, found):
    only(campaign, "baseline")
    campaign.tell_steps("baseline", {"gemm": 60.0}, idle_us=40.0)
    steps = {"found_by": None, "count": None, "mean_us": None, "reason": "no kernels"}
    campaign.alter(campaign.profile("baseline"), steps=steps)
    (host,) = found("host-bound")

    assert host.text.startswith(f"In the recording of {WHERE} the GPU has nothing")
    assert "Recording slows" not in host.text


def test_damaged_operations_are_named(campaign, found):
    from leverbench.errors import LeverbenchError

    (campaign.profile("float32").parent / "kernels.parquet").write_bytes(b"PAR1")
    with pytest.raises(LeverbenchError, match=r"kernels\.parquet: not the operations of a profile"):
        found("profile")


def test_a_plan_of_one_variant_has_no_difference(campaign, found):
    plan = read_record(campaign.plan)
    plan["variants"] = {"baseline": plan["variants"]["baseline"]}
    plan["order"] = [["baseline", 1], ["baseline", 2]]
    write_record(campaign.plan, plan)
    for path in [*campaign.points, *campaign.profiles]:
        if "baseline" not in path.parts:
            path.unlink()
    campaign.tell_steps("baseline", {"gemm": 1.0})

    assert found("difference") == []


@pytest.mark.parametrize(
    ("trace", "idle", "left"),
    [("decode-c16-cpu-gpu", "44.1%", "20%"), ("decode-c16-gpu", "49.0%", "19%")],
)
def test_traces_of_an_h200_are_host_bound_by_their_recording(campaign, found, trace, idle, left):
    only(campaign, "baseline")
    summary = summarise_traces([ROOT / f"tests/data/{trace}.trace.json.gz"])
    changes = {key: summary[key] for key in summary if key != "files"}
    campaign.alter(campaign.profile("baseline"), machine={"device": "gpu"}, **changes)
    for session in (1, 2):
        # What that machine measured without recording.
        campaign.alter_metrics(campaign.point("baseline", session, 16), mean_tpot_ms=1.537)
    (host,) = found("host-bound")
    (under,) = found("under-filled launch")

    assert f"has nothing to do for {idle} of the time" in host.text
    assert f"by the measured TPOT it is 1.54 ms, in which the same work leaves {left}" in host.text
    assert "_w8a8_block_fp8_matmul has 16 blocks on 132 SMs: at most 12% of the chip" in under.text
    assert found("cuda-core fallback") == []
