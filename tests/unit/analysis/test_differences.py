import pytest

from leverbench.analysis.differences import (
    Change,
    Measured,
    ProfileTimes,
    explain,
    profile_differences,
    profile_times,
)

PLAN = {"variants": {"base": {"parent": None}, "up": {"parent": "base"}}}


def times(name="base", step_us=100.0, idle_us=20.0, operations=None, **more) -> ProfileTimes:
    values = {
        "engine": "1.0",
        "machine": {"device": "gpu", "driver": "1"},
        "in_flight": 16,
        "shares": {"attention": 0.75, "gemm": 0.25},
        "categories_us": {"attention": 60.0, "gemm": 20.0},
        "step_range_us": (90.0, 110.0),
        "untimed": None,
        **more,
    }
    return ProfileTimes(
        name=name, step_us=step_us, idle_us=idle_us, operations_us=operations or {}, **values
    )


def compare(base: ProfileTimes, up: ProfileTimes):
    cell = ("random", 16)
    (found,) = profile_differences(PLAN, {("base", *cell): base, ("up", *cell): up})
    return found


def changes(parts):
    return [(part.name, part.before, part.after, part.change) for part in parts]


def test_parts_stand_by_the_size_of_their_change():
    up = times("up", 70.0, 25.0, categories_us={"attention": 20.0, "norm": 30.0})
    found = compare(times(), up)

    assert (found.variant, found.parent, found.profiles) == ("up", "base", ("base", "up"))
    assert changes(found.categories) == [
        ("attention", 60.0, 20.0, -40.0),
        ("norm", None, 30.0, 30.0),
        ("gemm", 20.0, None, -20.0),
    ]
    assert changes([found.step, found.idle]) == [
        ("decode step", 100.0, 70.0, -30.0),
        ("idle", 20.0, 25.0, 5.0),
    ]


@pytest.mark.parametrize(("longest", "uneven"), [(1500.0, ()), (1501.0, ("up (1 to 1.5 ms)",))])
def test_steps_of_very_different_lengths_are_told(longest, uneven):
    found = compare(times(), times("up", step_range_us=(1000.0, longest)))

    assert found.uneven == uneven


def test_what_runs_side_by_side_is_a_remainder_below_nothing():
    # 100 - 60 - 20 - 20, and 70 - 60 - 20 - 5.
    remainder = compare(times(), times("up", 70.0, 5.0)).remainder

    assert (remainder.before, remainder.after, remainder.change) == (0.0, -15.0, -15.0)


def test_operations_appear_and_vanish():
    old = {("attention", "loop"): 60.0, ("gemm", "mm"): 20.0}
    new = {("attention", "fused"): 15.0, ("gemm", "mm"): 21.0}
    found = compare(times(operations=old), times("up", operations=new))

    assert [
        (one.category, *rest)
        for one, rest in zip(found.operations, changes(found.operations), strict=True)
    ] == [
        ("attention", "loop", 60.0, None, -60.0),
        ("attention", "fused", None, 15.0, 15.0),
        ("gemm", "mm", 20.0, 21.0, 1.0),
    ]


def test_operations_are_not_said_to_vanish_where_one_side_tells_none():
    found = compare(times(operations={("gemm", "mm"): 1.0}), times("up"))

    assert found.operations == ()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"engine": "2.0"}, "engine versions 1.0 and 2.0"),
        ({"engine": None}, "engine versions 1.0 and not told"),
        ({"machine": {"device": "cpu", "driver": "1"}}, "different machines (device)"),
        ({"in_flight": 12}, "16 and 12 requests in flight"),
        (
            {"engine": "2.0", "in_flight": 1},
            "engine versions 1.0 and 2.0; 16 and 1 requests in flight",
        ),
    ],
)
def test_profiles_of_other_conditions_have_no_difference(other, why):
    found = compare(times(), times("up", **other))

    assert (found.incomparable, found.step, found.categories) == (why, None, ())


def test_without_steps_shares_alone_are_compared():
    none = {"step_us": None, "step_range_us": None, "idle_us": None, "categories_us": {}}
    old = times("up", shares={"attention": 0.5, "gemm": 0.5}, untimed="too short", **none)
    found = compare(times(), old)

    assert (found.untimed, found.step) == ("up: too short", None)
    assert changes(found.categories) == [
        ("attention", 0.75, 0.5, -0.25),
        ("gemm", 0.25, 0.5, 0.25),
    ]
    assert explain(found, Measured(10.0, 8.0, 0.8, None, None)) is None


def test_a_variant_whose_parent_has_no_profile_has_no_difference():
    assert profile_differences(PLAN, {("up", "random", 16): times("up")}) == []


def test_profiles_explain_a_change_by_their_ratio_not_by_their_time():
    # The profiled step goes from 100 to 70 us: a TPOT of 40 ms would go to 28.
    categories = {"attention": 30.0, "gemm": 20.0}
    difference = compare(times(), times("up", 70.0, 20.0, categories_us=categories))
    found = explain(difference, Measured(40.0, 30.0, 0.75, 0.7, 0.8))

    assert (found.change_ms, found.low_ms, found.high_ms) == pytest.approx((-10.0, -12.0, -8.0))
    assert (found.ratio, found.explained_ms) == pytest.approx((0.7, -12.0))
    assert (found.rest_ms, found.rest_share) == pytest.approx((2.0, -0.2))
    # 30 of 100 us are 12 of 40 ms.
    assert found.part_ms(difference.categories[0]) == pytest.approx(-12.0)
    assert found.part_ms(difference.step) == pytest.approx(found.explained_ms)


def test_how_much_longer_recorded_steps_are_is_told():
    difference = compare(times(step_us=50_000.0), times("up", 30_000.0))
    found = explain(difference, Measured(40.0, 30.0, 0.75, None, None))

    assert found.recording == pytest.approx((0.25, 0.0))
    assert (found.low_ms, found.high_ms) == (None, None)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "share"),
    [
        (0.99, 0.97, 1.01, None),
        (1.0, None, None, None),
        (0.9, None, None, -0.5),
        (1.1, 1.05, 1.15, 1.5),
    ],
)
def test_the_rest_has_a_share_only_of_a_change_that_is_one(ratio, low, high, share):
    # Of 10 ms, the profiles explain -1.5 ms where steps go from 100 to 85 us, and -0.5 to 95.
    found = explain(
        compare(times(), times("up", 95.0 if ratio > 1 else 85.0)),
        Measured(10.0, 10.0 * ratio, ratio, low, high),
    )

    assert found.rest_share == (None if share is None else pytest.approx(share))


def test_a_step_of_speculation_gives_several_tokens():
    # The step takes 1.5 times as long and gives two tokens: 0.75 times the time a token.
    difference = compare(times(), times("up", 150.0, 20.0))
    found = explain(difference, Measured(40.0, 30.0, 0.75, None, None, tokens_after=2.0))

    assert found.ratio == pytest.approx(0.75)
    assert found.rest_ms == pytest.approx(0.0)
    assert found.part_ms(Change("all", None, 100.0, 150.0)) == pytest.approx(-10.0)


def record(**changes):
    return {
        "machine": {"device": "gpu"},
        "versions": {"engine": "1.2"},
        "in_flight": 16,
        "steps": {
            "found_by": "periodicity",
            "count": 5,
            "mean_us": 200.0,
            "min_us": 180.0,
            "max_us": 220.0,
        },
        "idle_share": 0.25,
        "categories": [{"category": "gemm", "share": 1.0, "per_step_us": 150.0}],
        **changes,
    }


def row(rank: str, name: str, per_step_us: float | None):
    return {"rank": rank, "category": "gemm", "name": name, "per_step_us": per_step_us}


def test_a_record_is_read_in_times_of_a_step_and_a_rank():
    rows = [row("TP-0", "mm", 100.0), row("TP-1", "mm", 80.0), row("TP-1", "mv", 20.0)]
    found = profile_times("p", record(), rows)

    assert (found.engine, found.step_us, found.idle_us) == ("1.2", 200.0, 50.0)
    assert found.categories_us == {"gemm": 150.0}
    assert found.operations_us == {("gemm", "mm"): 90.0, ("gemm", "mv"): 10.0}
    assert found.untimed is None


def test_a_profile_of_before_has_shares_and_a_reason():
    old = record()
    del old["steps"], old["idle_share"], old["categories"][0]["per_step_us"], old["versions"]
    found = profile_times("p", old, [{"rank": "TP-0", "category": "gemm", "name": "mm"}])

    assert found.shares == {"gemm": 1.0}
    assert (found.step_us, found.idle_us, found.engine) == (None, None, None)
    assert (found.categories_us, found.operations_us) == ({}, {})
    assert found.untimed == "it was made before decode steps were told apart"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ({"found_by": None, "mean_us": None}, "no decode steps were found in it"),
        ({"found_by": None, "mean_us": None, "reason": "no kernels"}, "no kernels"),
    ],
)
def test_a_profile_without_steps_says_why(steps, why):
    found = profile_times("p", record(steps=steps), [row("TP-0", "mm", None)])

    assert (found.untimed, found.step_us, found.operations_us) == (why, None, {})
