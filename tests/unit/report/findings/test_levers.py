import pytest
from unit.analysis.fake_campaign import write_record

from leverbench.records import read_record

BASELINE = "baseline/profile/random/c16"


def shares(campaign, variant: str = "baseline", **categories: float) -> None:
    """Gives a profile these shares."""
    told = [{"category": name, "share": x, "self_us": 1.0} for name, x in categories.items()]
    campaign.alter(campaign.profile(variant), categories=told)


def touch(campaign, **touched: str) -> None:
    """Says which category each variant touches; all others pull no lever."""
    for variant in ("threads-2", "float32", "decode-steps-4"):
        name = variant.replace("-", "_")
        levers = [name] if name in touched else []
        campaign.alter_variant(
            variant, levers=levers, touches=[touched[name]] if touched.get(name) else []
        )


def test_levers_are_exhausted_where_no_ceiling_leaves_a_tenth(campaign, found):
    shares(campaign, attention=0.8, gemm=0.08, comm=0.02, other=0.1)
    touch(campaign, threads_2="gemm", decode_steps_4="comm")
    (one,) = found("levers exhausted")

    # 1 / 0.92 and 1 / 0.98; what no lever touches is left: 1 / 0.2.
    assert one.text == (
        "No lever of the configuration can give 10% any more, by their ceilings: threads_2 1.087"
        f" (gemm 8.0% in {BASELINE}), decode_steps_4 1.020 (comm 2.0% in {BASELINE}). What is left"
        f" is in kernels: at most 5.00 without attention (80.0% in {BASELINE}), 1.67 without"
        " matrix-multiply (40.0% in threads-2/profile/random/c16)."
    )
    assert one.rows == (BASELINE, "threads-2/profile/random/c16")


def test_a_lever_with_a_tenth_left_is_not_exhausted(campaign, found):
    shares(campaign, attention=0.88, gemm=0.12)
    touch(campaign, threads_2="gemm")

    assert found("levers exhausted") == []


def test_what_a_lever_has_given_is_not_left(campaign, found):
    # float32 measured 1.407 in TPOT, at least 1.38, and its ceiling is 1 / 0.7 = 1.429.
    shares(campaign, attention=0.3, gemm=0.7)
    touch(campaign, float32="attention")
    (one,) = found("levers exhausted")

    assert "float32 1.429, of which 1.3" in one.text
    assert "1.43 without attention" not in one.text


def test_a_gain_that_is_surely_above_its_ceiling_leaves_the_rest_open(campaign, found):
    shares(campaign, attention=0.05, gemm=0.95)
    touch(campaign, float32="attention")
    (ceiling,) = found("ceiling")

    assert ceiling.text.endswith("so at most 1 / (1 - 0.05) = 1.053. Not that lever's alone.")
    assert ceiling.rows[-1] == BASELINE
    assert found("levers exhausted") == []


def test_a_gain_above_its_ceiling_within_noise_is_said_as_such(campaign, found):
    # threads-2 measured 1.02 at C=16, and some noise.
    shares(campaign, attention=0.01, gemm=0.99)
    touch(campaign, threads_2="attention")
    (ceiling,) = found("ceiling")

    assert "a gain of 1.015 at C=16" in ceiling.text
    assert "That may be noise: the interval, 0.9" in ceiling.text
    assert ceiling.text.endswith("reaches below the ceiling.")
    # A hundredth is what the lever can give, and more than that is not left.
    assert len(found("levers exhausted")) == 1


@pytest.mark.parametrize("measured", [True, False])
def test_a_lever_without_a_ceiling_must_have_been_measured(campaign, found, measured):
    shares(campaign, attention=0.95, gemm=0.05)
    touch(campaign, threads_2="gemm", float32="")
    if not measured:
        for path in campaign.points:
            if "float32" in path.parts:
                path.unlink()
    said = [one.text for one in found("levers exhausted")]

    assert len(said) == measured
    assert all("float32: no ceiling, and measured." in text for text in said)


def test_kernels_are_no_levers_of_the_configuration(campaign, found):
    shares(campaign, attention=0.95, gemm=0.05)
    touch(campaign, threads_2="gemm", float32="")
    campaign.alter_variant("float32", levers=["decode-attention"])
    campaign.give_kernel("float32", [], {"outcome": "tuned", "chosen": []})
    (one,) = found("levers exhausted")

    assert "decode-attention" not in one.text


def accept(campaign, variant: str, concurrency: int, *lengths: float) -> None:
    for session, length in enumerate(lengths, start=1):
        campaign.alter_metrics(campaign.point(variant, session, concurrency), accept_length=length)


def test_drafts_that_are_hardly_ever_accepted_are_useless(campaign, found):
    accept(campaign, "float32", 1, 1.0, 1.02)
    accept(campaign, "float32", 8, 1.08, 1.06)
    accept(campaign, "float32", 16, 1.04, 1.06)
    (one,) = found("draft useless")

    assert one.text == (
        "float32 under random accepts 1.01 at C=1, 1.05 at C=16 tokens a step (1.05 or less): its"
        " drafts cost time and give nothing."
    )
    assert one.rows == tuple(
        f"float32/s{session}/random/c{c}" for c in (1, 16) for session in (1, 2)
    )


def test_without_speculation_no_draft_is_useless(found):
    assert found("draft useless") == []


def test_what_shows_that_a_lever_was_not_in_force_is_named(campaign, found):
    campaign.alter_lever("float32", 1, "args.dtype", seen="bfloat16", applied=False)
    (one,) = found("not applied")

    assert one.rows[-2:] == ("launches/float32-s1", "launches/float32-s2")
    assert "float32/s2/random/c16" in one.rows


def test_recovery_names_the_launches_that_took_steps(campaign, found):
    campaign.recover("float32", 2, {"args": {"memory": 0.8}})
    (one,) = found("recovery")

    assert one.rows[-2:] == ("launches/float32-s1", "launches/float32-s2")


def test_a_variant_of_two_levers_names_its_rows(campaign, found):
    plan = read_record(campaign.plan)
    plan["variants"]["float32"] |= {"confounded": True, "levers": ["dtype", "memory"]}
    write_record(campaign.plan, plan)
    (one,) = found("confounded")

    assert one.rows[0] == "float32/s1/random/c1"
    assert len(one.rows) == 6
