import pytest

from leverbench.campaign.model import Goodput
from leverbench.load.metrics import (
    METRICS,
    goodput_request_per_s,
    point_metrics,
    steady_halves_tok_per_s,
    steady_interval,
)
from leverbench.load.window import ClientAudit, Failure, RequestRow, Window

AUDIT = ClientAudit(0.1, 0.5, 1.0, 2.0, None)


def window(*rows: RequestRow, concurrency: int = 1) -> Window:
    return Window(concurrency, 1_700_000_000.0, rows, AUDIT)


def test_every_metric_is_computed_and_no_other(row):
    metrics = point_metrics(window(row(0.0, 1.0, 2.0)))

    assert list(metrics) == [spec.name for spec in METRICS]
    assert len(metrics) == 24


def test_one_request(row):
    # First of 5 tokens 2 s after the intended send, then one every half second; last byte at 4.5 s.
    metrics = point_metrics(window(row(0.0, 2.0, 2.5, 3.0, 3.5, 4.0, ended_s=4.5)))

    assert metrics["mean_ttft_ms"] == pytest.approx(2000)
    assert metrics["mean_tpot_ms"] == pytest.approx(500)  # (4.0 - 2.0) / 4
    assert metrics["mean_itl_ms"] == pytest.approx(500)
    assert metrics["mean_e2e_ms"] == pytest.approx(4500)
    assert metrics["output_tok_per_s"] == pytest.approx(5 / 4.5)
    assert metrics["request_per_s"] == pytest.approx(1 / 4.5)
    assert metrics["accept_length"] is None
    assert metrics["steady_output_tok_per_s"] is None


def test_latencies_count_from_the_intended_send(row):
    metrics = point_metrics(window(row(1.0, 3.0, 4.0, sent_s=2.0)))

    assert metrics["mean_ttft_ms"] == pytest.approx(2000)
    assert metrics["mean_e2e_ms"] == pytest.approx(3000)


def test_tokens_that_arrive_together_share_their_gap(row):
    # 1 token at 1 s; 3 tokens 0.6 s later: 0.2 s each; 1 token 1 s after that.
    metrics = point_metrics(window(row(0.0, 1.0, 1.6, 1.6, 1.6, 2.6)))

    assert metrics["mean_itl_ms"] == pytest.approx((3 * 200 + 1000) / 4)
    assert metrics["p50_itl_ms"] == pytest.approx(200)
    assert metrics["mean_tpot_ms"] == pytest.approx(1600 / 4)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft_ms": 1000}, 1),
        ({"ttft_ms": 2000}, 2),
        ({"tpot_ms": 400}, 1),
        ({"ttft_ms": 2000, "tpot_ms": 400}, 1),
        ({"ttft_ms": 1000, "tpot_ms": 400}, 0),
        ({"e2e_ms": 3500}, 1),
    ],
)
def test_goodput_counts_requests_within_all_limits(row, limits, good):
    # TTFT 1 s and TPOT 0.5 s; TTFT 2 s and TPOT 0.4 s. The one that failed counts for nothing.
    asked = window(
        row(0.0, 1.0, 1.5, 2.0, ended_s=4.0),
        row(0.0, 2.0, 2.4, 2.8, ended_s=3.0),
        row(0.0, 0.1, failure=Failure.STATUS),
    )

    assert goodput_request_per_s(asked, Goodput(**limits)) == pytest.approx(good / 4.0)


def test_goodput_of_nothing_is_not_known(row):
    nothing = window(row(0.0, failure=Failure.STATUS))

    assert goodput_request_per_s(nothing, Goodput(ttft_ms=1)) is None


def test_percentiles_are_linear(row):
    # TTFT 100, 200 ... 1100 ms: the p-th percentile of eleven is the (p / 10)-th, counted from 0.
    metrics = point_metrics(window(*[row(0.0, 0.1 * n) for n in range(1, 12)]))

    assert metrics["mean_ttft_ms"] == pytest.approx(600)
    assert metrics["p50_ttft_ms"] == pytest.approx(600)
    assert metrics["p90_ttft_ms"] == pytest.approx(1000)
    assert metrics["p95_ttft_ms"] == pytest.approx(1050)
    assert metrics["p99_ttft_ms"] == pytest.approx(1090)


def test_one_token_has_no_tpot_and_no_itl(row):
    metrics = point_metrics(window(row(0.0, 1.0)))

    assert metrics["mean_ttft_ms"] == pytest.approx(1000)
    assert metrics["mean_tpot_ms"] is None
    assert metrics["p99_itl_ms"] is None


def test_failed_requests_do_not_count_but_their_time_does(row):
    good = row(0.0, 1.0, 2.0)
    bad = row(2.0, 3.5, 4.0, failure=Failure.BROKEN, error="cut")
    metrics = point_metrics(window(good, bad))

    assert metrics["output_tok_per_s"] == pytest.approx(2 / 4)
    assert metrics["request_per_s"] == pytest.approx(1 / 4)
    assert metrics["p99_ttft_ms"] == pytest.approx(1000)


def test_without_a_success_there_is_no_data(row):
    bad = row(0.0, failure=Failure.STATUS, error="HTTP 500", ended_s=1.0)

    assert set(point_metrics(window(bad)).values()) == {None}


def test_accept_length_is_the_mean_over_requests(row):
    rows = [row(0.0, 1.0, accept_length=1.5), row(1.0, 2.0, accept_length=2.5)]

    assert point_metrics(window(*rows))["accept_length"] == pytest.approx(2.0)


@pytest.fixture
def lockstep(row):
    """Waves of requests of 3 tokens; a wave takes 10 s, its tokens come after 8, 9 and 10 s."""

    def make(concurrency: int, waves: int) -> Window:
        starts_s = [10.0 * wave for wave in range(waves) for _ in range(concurrency)]
        return window(*[row(s, s + 8, s + 9, s + 10) for s in starts_s], concurrency=concurrency)

    return make


def test_steady_throughput_holds_as_many_prefills_as_decodes(lockstep):
    # Waves 2 and 3 of 3: 2 slots * 3 tokens * 2 waves in 20 s, the rate of the whole run. To start
    # at the first token of wave 1 would claim 16 tokens in 22 s.
    steady = lockstep(concurrency=2, waves=3)

    assert steady_interval(steady) == (10.0, 30.0)
    assert point_metrics(steady)["steady_output_tok_per_s"] == pytest.approx(12 / 20)


def test_steady_ends_with_the_first_slot_that_stays_empty(row):
    # Slot 1 ends a request a second until 6 s. Slot 2 has one of 4.5 s and, sent last, one of 9 s.
    slot_1 = [row(float(n), n + 1.0) for n in range(6)]
    slot_2 = [row(0.0, 0.5, 4.5), row(5.5, 14.5, intended_s=4.5)]
    both = sorted([*slot_1, *slot_2], key=lambda r: r.sent_s)

    assert steady_interval(window(*both, concurrency=2)) == (1.0, 6.0)


def test_steady_starts_when_all_first_requests_have_their_first_token(row):
    # Slot 2 waits 2.5 s for its first token, while slot 1 ends a request a second.
    slot_1 = [row(float(n), n + 1.0) for n in range(10)]
    slot_2 = [row(0.0, 2.5, 4.5), row(4.5, 10.5)]
    both = sorted([*slot_1, *slot_2], key=lambda r: r.sent_s)

    # The last one is sent at 9; the first completion after that is at 10.
    assert steady_interval(window(*both, concurrency=2)) == (3.0, 10.0)


@pytest.mark.parametrize(("waves", "has_one"), [(1, False), (2, False), (3, True)])
def test_steady_needs_two_turns_of_every_slot(lockstep, waves, has_one):
    assert (steady_interval(lockstep(concurrency=4, waves=waves)) is not None) is has_one


def test_fewer_requests_than_slots_are_never_steady(row):
    assert steady_interval(window(row(0.0, 1.0), concurrency=4)) is None


def test_no_token_at_all_is_never_steady(row):
    rows = [row(float(n), failure=Failure.STATUS, ended_s=n + 1.0) for n in range(9)]

    assert steady_interval(window(*rows)) is None


def test_halves_of_requests_that_go_in_step_are_whole_waves(lockstep):
    # 2 slots * 3 tokens each 10 s, before and after the middle.
    assert steady_halves_tok_per_s(lockstep(concurrency=2, waves=12)) == pytest.approx((0.6, 0.6))
    assert steady_halves_tok_per_s(lockstep(concurrency=2, waves=13)) == pytest.approx((0.6, 0.6))


@pytest.mark.parametrize(("waves", "have_halves"), [(8, False), (9, True)])
def test_halves_need_eight_turns_of_every_slot(lockstep, waves, have_halves):
    halves = steady_halves_tok_per_s(lockstep(concurrency=4, waves=waves))

    assert (halves is not None) is have_halves


def test_halves_meet_where_half_of_the_requests_are_done(row):
    # One slot: six requests of a second and 2 tokens, then six of four seconds.
    starts_s = [*map(float, range(6)), *(6.0 + 4 * n for n in range(6))]
    ends_s = [*starts_s[1:], 30.0]
    rows = [row(s, s + 0.5, e) for s, e in zip(starts_s, ends_s, strict=True)]

    # From 1 s to 30 s eleven requests end: six by 10 s, with 12 tokens; five after, with 10.
    assert steady_interval(window(*rows)) == (1.0, 30.0)
    assert steady_halves_tok_per_s(window(*rows)) == pytest.approx((12 / 9, 10 / 20))
