import pytest

from leverbench.analysis.ceilings import Shares, category_ceilings, ceiling, ceilings


def variant(parent: str | None, *levers: str, touches: tuple[str, ...] = ()):
    return {"parent": parent, "levers": levers, "touches": touches}


def plan(**variants):
    return {"variants": {"base": variant(None), **variants}, "workloads": {"random": {}}}


def test_what_is_gone_altogether_gives_the_most():
    assert ceiling(0) == 1
    assert ceiling(0.75) == 4
    for share in (1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="has no ceiling"):
            ceiling(share)


def test_a_levers_share_is_that_of_the_parents_profile():
    profiles = [
        Shares("p", "base", "random", 16, {"comm": 0.2, "attention": 0.5, "kv": 0.1}),
        Shares("q", "up", "random", 16, {"comm": 0.5}),
    ]
    found = ceilings(plan(up=variant("base", "nccl")), [1, 16], profiles, {})

    assert [(c.concurrency, c.lever, c.categories, c.gain) for c in found] == [
        (16, "nccl", ("comm",), 1.25)
    ]


def test_the_campaign_says_what_a_lever_touches():
    profiles = [Shares("p", "base", "random", 16, {"comm": 0.2, "attention": 0.5})]
    up = variant("base", "nccl", touches=("attention", "norm"))
    (found,) = ceilings(plan(up=up), [16], profiles, {})

    assert (found.categories, found.gain) == (("attention",), 2)


def test_a_record_s_profile_counts_for_its_concurrency_and_one_without_for_all():
    profiles = [
        Shares("first", None, None, None, {"gemm_fp8_block": 0.06, "communication": 0.02}),
        Shares("c16", None, None, 16, {"communication": 0.5}),
    ]
    up = variant("base", "fp8-tuned-configs", "nccl-ll")
    found = ceilings(plan(up=up), [1, 16], profiles, {})

    assert [(c.concurrency, c.lever, c.profile) for c in found] == [
        (1, "fp8-tuned-configs", "first"),
        (1, "nccl-ll", "first"),
        (16, "fp8-tuned-configs", "first"),
        (16, "nccl-ll", "c16"),
    ]


def test_an_unknown_lever_and_a_whole_share_have_none():
    profiles = [Shares("p", "base", "random", 16, {"attention": 1.0})]
    variants = {"a": variant("base", "mtp"), "b": variant("base", "attention")}

    assert ceilings(plan(**variants), [16], profiles, {}) == []


def test_what_a_kernel_touches_its_manifest_says_before_levers_names_do():
    profiles = [Shares("p", "base", "random", 16, {"comm": 0.2, "attention": 0.5})]
    touches = {"up": {"decode": ("attention",), "untold": ()}}
    (found,) = ceilings(plan(up=variant("base", "nccl")), [16], profiles, touches)
    told = variant("base", "nccl", touches=("comm",))
    of_campaign = ceilings(plan(up=told), [16], profiles, touches)

    assert (found.lever, found.categories, found.gain) == ("decode", ("attention",), 2)
    assert [(c.lever, c.gain) for c in of_campaign] == [("decode", 1.25), ("untold", 1.25)]


def test_every_category_of_every_profile_has_a_ceiling_the_largest_first():
    first = Shares("p", "base", "random", 16, {"comm": 0.2, "attention": 0.5})
    second = Shares("c1", None, None, 1, {"gemm": 1.0})
    found = category_ceilings([first, second])

    # With all of the time gone, nothing is left to be faster.
    assert [(c.shares, c.category, c.share, c.gain) for c in found] == [
        (first, "attention", 0.5, 2.0),
        (first, "comm", 0.2, 1.25),
        (second, "gemm", 1.0, None),
    ]
