"""The figures of a window, each defined once."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leverbench.campaign.model import Goodput
from leverbench.load.window import RequestRow, Window

# With fewer completions than this times C, one slow request makes two halves differ.
HALVES_MIN_WAVES = 8


@dataclass(frozen=True)
class MetricSpec:
    """One metric of a measured point.

    Attributes:
        name: Key in records and tables; ends in the unit where it has one.
        unit: For headings.
        better: Which direction is an improvement.
        formula: How it is computed, in words.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"]
    formula: str


# Name: formula. All over successful requests; times from the intended send, not from the send.
LATENCIES = {
    "ttft": "first token - intended send, per request",
    "tpot": "(last token - first token) / (tokens - 1), per request of two tokens or more",
    "itl": "time since the arrival before / tokens that arrive together, once per such token",
    "e2e": "last byte - intended send, per request",
}
# Name: percentile (numpy's linear method); None is the arithmetic mean.
STATISTICS: dict[str, float | None] = {"mean": None, "p50": 50, "p90": 90, "p95": 95, "p99": 99}

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "output_tok_per_s",
        "tok/s",
        "higher",
        "output tokens of successful requests / (last byte - first intended send)",
    ),
    MetricSpec(
        "steady_output_tok_per_s",
        "tok/s",
        "higher",
        "output tokens that came in the steady interval / its length (see `steady_interval`)",
    ),
    MetricSpec(
        "request_per_s",
        "req/s",
        "higher",
        "successful requests / (last byte - first intended send)",
    ),
    *(
        MetricSpec(f"{statistic}_{latency}_ms", "ms", "lower", f"{statistic} of {formula}")
        for latency, formula in LATENCIES.items()
        for statistic in STATISTICS
    ),
    MetricSpec(
        "accept_length",
        "tokens",
        "higher",
        "tokens per verify step, mean over successful requests of a speculative server",
    ),
)


def point_metrics(window: Window) -> dict[str, float | None]:
    """Returns the value of each of `METRICS` by name; None where there is no data."""
    successful = window.successful
    tokens = sum(len(row.token_times_s) for row in successful)
    duration_s = window.duration_s
    accept_lengths = [row.accept_length for row in successful if row.accept_length is not None]
    metrics: dict[str, float | None] = {
        "output_tok_per_s": tokens / duration_s if successful else None,
        "steady_output_tok_per_s": _steady_output_tok_per_s(window),
        "request_per_s": len(successful) / duration_s if successful else None,
    }
    for latency, of_request in _OF_REQUEST.items():
        values_s = [value for row in successful for value in of_request(row)]
        for statistic, percentile in STATISTICS.items():
            metrics[f"{statistic}_{latency}_ms"] = _statistic_ms(values_s, percentile)
    metrics["accept_length"] = float(np.mean(accept_lengths)) if accept_lengths else None
    return metrics


def goodput_request_per_s(window: Window, limits: Goodput) -> float | None:
    """Returns the rate of successful requests that keep within all limits.

    A request without a value that is limited (one token has no TPOT) keeps within that limit.
    None without a successful request: nobody knows what the server could have done.
    """
    if not window.successful:
        return None
    bounds_s = {
        latency: bound_ms / 1e3
        for latency in ("ttft", "tpot", "e2e")
        if (bound_ms := getattr(limits, f"{latency}_ms")) is not None
    }
    good = sum(
        all(value <= bound for name, bound in bounds_s.items() for value in _OF_REQUEST[name](row))
        for row in window.successful
    )
    return good / window.duration_s


def steady_interval(window: Window) -> tuple[float, float] | None:
    """Returns start and end of the time in which all slots are busy and past their ramp-up.

    It starts with the first completion after each of the first C requests has had its first token,
    and ends with the first completion that leaves a slot empty for good, which is the first one
    after the last request was sent. Both ends are completions, so the interval holds as many
    prefills as decodes: to start at a first token instead would leave out the prefills of the
    first C requests but keep their decodes, and flatter the throughput.

    None unless at least 2 C requests end in the interval, so that each slot has been through
    prefill and decode twice on average; three times C requests of equal length just do.
    """
    first = [row.first_token_s for row in window.rows[: window.concurrency]]
    ramped_up_s = max((time_s for time_s in first if time_s is not None), default=None)
    if ramped_up_s is None:
        return None
    last_sent_s = max(row.sent_s for row in window.rows)
    ends_s = sorted(row.ended_s for row in window.rows)
    start, stop = bisect_left(ends_s, ramped_up_s), bisect_right(ends_s, last_sent_s)
    if stop - start < 2 * window.concurrency:
        return None
    return ends_s[start], ends_s[stop]


def steady_halves_tok_per_s(window: Window) -> tuple[float, float] | None:
    """Returns the throughput of the two halves of the steady interval.

    They meet at the completion in their middle, so each holds as many prefills as decodes; of
    requests that go in step, whole waves. None with fewer than `HALVES_MIN_WAVES` times C
    completions in the interval.
    """
    interval = steady_interval(window)
    if interval is None:
        return None
    start_s, stop_s = interval
    ends_s = sorted(row.ended_s for row in window.rows if start_s < row.ended_s <= stop_s)
    if len(ends_s) < HALVES_MIN_WAVES * window.concurrency:
        return None
    middle_s = ends_s[(len(ends_s) - 1) // 2]
    if middle_s == stop_s:
        return None
    return _tok_per_s(window, start_s, middle_s), _tok_per_s(window, middle_s, stop_s)


def _steady_output_tok_per_s(window: Window) -> float | None:
    interval = steady_interval(window)
    if interval is None or not window.successful:
        return None
    return _tok_per_s(window, *interval)


def _tok_per_s(window: Window, start_s: float, stop_s: float) -> float:
    tokens = sum(
        start_s < time_s <= stop_s for row in window.successful for time_s in row.token_times_s
    )
    return tokens / (stop_s - start_s)


def _statistic_ms(values_s: Sequence[float], percentile: float | None) -> float | None:
    if not values_s:
        return None
    value_s = np.mean(values_s) if percentile is None else np.percentile(values_s, percentile)
    return float(value_s) * 1e3


def _ttft_s(row: RequestRow) -> list[float]:
    return [time_s - row.intended_s for time_s in row.token_times_s[:1]]


def _tpot_s(row: RequestRow) -> list[float]:
    times_s = row.token_times_s
    return [(times_s[-1] - times_s[0]) / (len(times_s) - 1)] if len(times_s) > 1 else []


def _itl_s(row: RequestRow) -> list[float]:
    arrivals_s, tokens = np.unique(row.token_times_s, return_counts=True)
    values_s: list[float] = np.repeat(np.diff(arrivals_s) / tokens[1:], tokens[1:]).tolist()
    return values_s


def _e2e_s(row: RequestRow) -> list[float]:
    return [row.ended_s - row.intended_s]


_OF_REQUEST: dict[str, Callable[[RequestRow], list[float]]] = {
    "ttft": _ttft_s,
    "tpot": _tpot_s,
    "itl": _itl_s,
    "e2e": _e2e_s,
}
