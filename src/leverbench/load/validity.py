"""When a measured point is void, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from leverbench.load.window import Failure, Window

# A client whose timers are late by this share of a token's time on average is not watching the
# server alone. A single stall of a shared machine stays below it in a window of seconds.
MAX_MEAN_LAG_SHARE_OF_TPOT = 0.20
# Below this, lateness is the scheduler's and the timer's (1 ms resolution), not the client's.
MIN_CLIENT_BOUND_LAG_MS = 2.0
MIN_DELIVERED_SHARE = 0.95
# A prompt of random ids begins, by chance, like one of the many that an unflushed cache holds: by a
# token or two.
MAX_CHANCE_CACHED_SHARE = 0.02
# Two halves of a window are each shorter than a window, and vary more than two of those.
MAX_HALVES_PER_AGREEMENT = 2.0
# Reading two clocks takes microseconds; a process that is put aside in between, milliseconds.
MAX_CLOCK_STEP_MS = 50.0


class InvalidReason(StrEnum):
    """Why a point does not count."""

    CLIENT_BOUND = "client-bound"
    CONCURRENCY_NOT_DELIVERED = "concurrency-not-delivered"
    FAILED_REQUESTS = "failed-requests"
    WRONG_TOKEN_COUNT = "wrong-token-count"
    PREFIX_CACHE_HITS = "prefix-cache-hits"
    WINDOW_TOO_SHORT = "window-too-short"
    UNSTEADY_WARM_UP = "unsteady-warm-up"
    UNSTEADY_WINDOW = "unsteady-window"
    COMPILED_IN_WINDOW = "compiled-in-window"
    PROBE_FAILED_AFTER = "probe-failed-after"
    MACHINE_SHARED = "machine-shared"
    SERVER_SHARED = "server-shared"
    GPU_THROTTLED = "gpu-throttled"
    GPU_CAPPED = "gpu-capped"
    GPU_SHARED = "gpu-shared"
    CLOCK_STEP = "clock-step"


@dataclass(frozen=True)
class InvalidSpec:
    """What is known of a reason.

    Attributes:
        meaning: What was seen, for the report.
        retry: Whether the point may be measured once more in the same run. Only where the cause
            does not depend on the result: to repeat until a result is accepted would select it.
    """

    meaning: str
    retry: bool


INVALID: Mapping[InvalidReason, InvalidSpec] = {
    InvalidReason.CLIENT_BOUND: InvalidSpec(
        "the client's event loop was late by over 20% of the mean TPOT, and over 2 ms, on average",
        True,
    ),
    InvalidReason.CONCURRENCY_NOT_DELIVERED: InvalidSpec(
        "fewer than 95% of the slots were in flight on average", True
    ),
    InvalidReason.FAILED_REQUESTS: InvalidSpec("requests failed", False),
    InvalidReason.WRONG_TOKEN_COUNT: InvalidSpec(
        "the server took or gave another number of tokens than asked", False
    ),
    InvalidReason.PREFIX_CACHE_HITS: InvalidSpec(
        "prompt tokens came from the prefix cache, though all prompts differ", True
    ),
    InvalidReason.WINDOW_TOO_SHORT: InvalidSpec("the window is shorter than the limit", False),
    InvalidReason.UNSTEADY_WARM_UP: InvalidSpec("warm-up windows did not come to agree", False),
    InvalidReason.UNSTEADY_WINDOW: InvalidSpec(
        "the window's second half ran at another rate than its first, by over twice"
        " limits.warm_up_agreement",
        False,
    ),
    InvalidReason.COMPILED_IN_WINDOW: InvalidSpec(
        "the server compiled, tuned or captured a graph within the window", True
    ),
    InvalidReason.MACHINE_SHARED: InvalidSpec(
        "other programs took more CPU time than limits.max_strangers_cpu_share",
        True,
    ),
    InvalidReason.SERVER_SHARED: InvalidSpec(
        "the server generated more tokens in the window than this client received: others use it",
        True,
    ),
    InvalidReason.GPU_THROTTLED: InvalidSpec(
        "heat, or too little power from outside, slowed a GPU down", True
    ),
    InvalidReason.GPU_CAPPED: InvalidSpec(
        "a GPU ran at its power limit for more of the window than limits.max_power_capped_share",
        True,
    ),
    InvalidReason.GPU_SHARED: InvalidSpec("another program used a GPU of the server", True),
    InvalidReason.CLOCK_STEP: InvalidSpec(
        "the machine's clock was set, or the machine slept: over 50 ms", True
    ),
    InvalidReason.PROBE_FAILED_AFTER: InvalidSpec(
        "the probe was answered wrongly after the window", False
    ),
}


def judge(
    window: Window,
    metrics: Mapping[str, float | None],
    *,
    min_window_s: float,
    prefix_hits_expected: bool,
    cache_flushed: bool = True,
) -> tuple[InvalidReason, ...]:
    """Returns the reasons against a window that its own rows and audit show.

    The others (warm-up, log, server, probe) are found by whoever watches those.

    Args:
        window: The measured window.
        metrics: Its metrics, by `point_metrics`.
        min_window_s: Shortest duration that counts.
        prefix_hits_expected: Whether the workload means prompts to share prefixes.
        cache_flushed: Whether the prefix cache was empty at the start.
    """
    failures = {row.failure for row in window.rows if row.failure is not None}
    delivered = window.audit.delivered_concurrency
    found = {
        InvalidReason.CLIENT_BOUND: _client_bound(window, metrics),
        InvalidReason.CONCURRENCY_NOT_DELIVERED: delivered is not None
        and delivered < MIN_DELIVERED_SHARE * window.concurrency,
        InvalidReason.FAILED_REQUESTS: bool(failures - {Failure.TOKEN_COUNT}),
        InvalidReason.WRONG_TOKEN_COUNT: Failure.TOKEN_COUNT in failures,
        InvalidReason.PREFIX_CACHE_HITS: not prefix_hits_expected
        and _cached_share(window) > (0 if cache_flushed else MAX_CHANCE_CACHED_SHARE),
        InvalidReason.WINDOW_TOO_SHORT: window.duration_s < min_window_s,
        InvalidReason.CLOCK_STEP: abs(window.audit.clock_step_ms or 0.0) > MAX_CLOCK_STEP_MS,
    }
    return tuple(reason for reason, holds in found.items() if holds)


def unsteady(halves_tok_per_s: tuple[float, float] | None, agreement: float) -> bool:
    """Returns whether a window's halves differ by more than those of a steady server do.

    Args:
        halves_tok_per_s: By `steady_halves_tok_per_s`; None is not judged.
        agreement: Largest difference of two warm-up windows that agree, as a share.
    """
    if halves_tok_per_s is None:
        return False
    slower, faster = sorted(halves_tok_per_s)
    return faster > slower * (1 + MAX_HALVES_PER_AGREEMENT * agreement)


def server_shared(
    window: Window, before: Mapping[str, float] | None, after: Mapping[str, float] | None
) -> bool:
    """Returns whether the server's own counters tell that it worked for others in the window.

    Not judged, and False, where requests failed (the server may have generated what never came)
    or the counters do not tell.

    Args:
        window: The measured window.
        before: The server's counters before it, as `engines.Api.counters` gives them.
        after: The same after it.
    """
    name = "generation_tokens_total"
    if before is None or after is None or not {name} <= before.keys() & after.keys():
        return False
    if len(window.successful) < len(window.rows):
        return False
    return after[name] - before[name] > sum(row.output_tokens or 0 for row in window.rows)


def _cached_share(window: Window) -> float:
    """Returns the share of the prompts' tokens that came from the prefix cache, as far as told."""
    sent = sum(row.input_tokens for row in window.rows)
    return sum(row.cached_tokens or 0 for row in window.rows) / sent


def _client_bound(window: Window, metrics: Mapping[str, float | None]) -> bool:
    lag_ms = window.audit.loop_lag_mean_ms
    # Requests of one output token have no TPOT; their latency is the TTFT.
    tpot_ms = metrics["mean_tpot_ms"]
    token_ms = metrics["mean_ttft_ms"] if tpot_ms is None else tpot_ms
    if lag_ms is None or token_ms is None:
        return False
    return lag_ms > max(MIN_CLIENT_BOUND_LAG_MS, MAX_MEAN_LAG_SHARE_OF_TPOT * token_ms)
