from dataclasses import replace

import pytest

from leverbench.load.metrics import point_metrics
from leverbench.load.validity import INVALID, InvalidReason, judge, server_shared, unsteady
from leverbench.load.window import ClientAudit, Failure, RequestRow, Window

# Two slots, three requests of two tokens, 50 ms apart: mean TPOT 50 ms.
ROW = RequestRow(
    request_index=0,
    input_tokens=4,
    output_tokens_asked=2,
    intended_s=0.0,
    sent_s=0.0,
    ended_s=1.0,
    output_tokens=2,
    prompt_tokens=4,
    cached_tokens=0,
    finish_reason="length",
    accept_length=None,
    failure=None,
    error=None,
    token_times_s=(0.5, 0.55),
    output_ids=None,
)
GOOD = Window(2, 0.0, (ROW, ROW, ROW), ClientAudit(0.1, 0.5, 1.0, 0.2, 1.99))


def reasons(window: Window, **changes: object) -> tuple[str, ...]:
    options = {"min_window_s": 0.5, "prefix_hits_expected": False} | changes
    return judge(window, point_metrics(window), **options)


def with_audit(**changes: float | None) -> Window:
    return replace(GOOD, audit=replace(GOOD.audit, **changes))


def with_row(**changes: object) -> Window:
    return replace(GOOD, rows=(ROW, ROW, replace(ROW, **changes)))


def test_a_good_window_is_valid():
    assert reasons(GOOD) == ()


@pytest.mark.parametrize(("mean_ms", "bound"), [(9.9, False), (10.1, True)])
def test_client_bound_above_a_fifth_of_the_tpot(mean_ms, bound):
    assert reasons(with_audit(loop_lag_mean_ms=mean_ms)) == (("client-bound",) if bound else ())


@pytest.mark.parametrize(("mean_ms", "bound"), [(1.9, False), (2.1, True)])
def test_client_bound_never_below_two_milliseconds(mean_ms, bound):
    fast = replace(ROW, token_times_s=(0.5, 0.501))  # TPOT 1 ms: a fifth is 0.2 ms
    window = replace(with_audit(loop_lag_mean_ms=mean_ms), rows=(fast,))

    assert reasons(window) == (("client-bound",) if bound else ())


@pytest.mark.parametrize(("mean_ms", "bound"), [(99, False), (101, True)])
def test_client_bound_by_ttft_where_there_is_one_token(mean_ms, bound):
    single = replace(ROW, token_times_s=(0.5,))  # TTFT 500 ms
    window = replace(with_audit(loop_lag_mean_ms=mean_ms), rows=(single,))

    assert reasons(window) == (("client-bound",) if bound else ())


@pytest.mark.parametrize(("delivered", "held"), [(1.91, True), (1.89, False), (None, True)])
def test_concurrency_is_delivered_from_95_percent(delivered, held):
    expected = () if held else ("concurrency-not-delivered",)

    assert reasons(with_audit(delivered_concurrency=delivered)) == expected


@pytest.mark.parametrize("failure", sorted(set(Failure) - {Failure.TOKEN_COUNT}))
def test_failed_requests(failure):
    assert reasons(with_row(failure=failure, error="x")) == ("failed-requests",)


def test_wrong_token_count():
    assert reasons(with_row(failure=Failure.TOKEN_COUNT, error="x")) == ("wrong-token-count",)


def test_one_cached_token_is_a_prefix_cache_hit():
    assert reasons(with_row(cached_tokens=1)) == ("prefix-cache-hits",)
    assert reasons(with_row(cached_tokens=1), prefix_hits_expected=True) == ()


def test_unknown_cached_tokens_are_no_hit():
    assert reasons(with_row(cached_tokens=None)) == ()


@pytest.mark.parametrize(("cached", "hit"), [(2, False), (3, True)])
def test_an_unflushed_cache_may_match_2_percent_by_chance(cached, hit):
    long = replace(ROW, input_tokens=100, cached_tokens=cached)
    expected = ("prefix-cache-hits",) if hit else ()

    assert reasons(replace(GOOD, rows=(long,)), cache_flushed=False) == expected
    assert reasons(replace(GOOD, rows=(long,))) == ("prefix-cache-hits",)


def counted(tokens: float) -> dict[str, float]:
    return {"generation_tokens_total": tokens}


@pytest.mark.parametrize(
    ("window", "before", "after", "shared"),
    [
        # The window's three requests have two tokens each.
        (GOOD, counted(10), counted(16), False),
        (GOOD, counted(10), counted(17), True),
        # It counts otherwise than we do, but for nobody else.
        (GOOD, counted(10), counted(12), False),
        # What never came may have been generated all the same.
        (with_row(failure=Failure.BROKEN, output_tokens=1), counted(10), counted(20), False),
        (GOOD, None, None, False),
        (GOOD, counted(10), {"prompt_tokens_total": 90.0}, False),
    ],
)
def test_others_work_shows_in_the_server_s_counters(window, before, after, shared):
    assert server_shared(window, before, after) is shared


@pytest.mark.parametrize(
    ("halves", "is_unsteady"),
    [((100, 119), False), ((100, 121), True), ((121, 100), True), ((0, 5), True), (None, False)],
)
def test_halves_may_differ_by_twice_what_warm_up_windows_may(halves, is_unsteady):
    assert unsteady(halves, agreement=0.1) is is_unsteady


@pytest.mark.parametrize(
    ("step_ms", "stepped"), [(49.0, False), (51.0, True), (-51.0, True), (None, False)]
)
def test_a_clock_step_of_over_50_ms_in_either_direction(step_ms, stepped):
    assert reasons(with_audit(clock_step_ms=step_ms)) == (("clock-step",) if stepped else ())


def test_window_too_short():
    assert reasons(GOOD, min_window_s=1.0) == ()
    assert reasons(GOOD, min_window_s=1.1) == ("window-too-short",)


def test_all_reasons_are_told():
    window = replace(with_row(failure=Failure.TIMEOUT, error="x"), audit=GOOD.audit)
    window = replace(window, audit=replace(GOOD.audit, delivered_concurrency=0.5))

    assert reasons(window, min_window_s=9) == (
        "concurrency-not-delivered",
        "failed-requests",
        "window-too-short",
    )


def test_every_reason_is_described():
    assert set(INVALID) == set(InvalidReason)


def test_what_depends_on_the_result_is_never_retried():
    assert {reason for reason, spec in INVALID.items() if not spec.retry} == {
        "failed-requests",
        "wrong-token-count",
        "window-too-short",
        "unsteady-warm-up",
        "unsteady-window",
        "probe-failed-after",
    }
