"""A measured window: every request that was sent, and the client's account of itself.

All times of a window are seconds since its start, unless their name says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """Why a request does not count; its row's `error` has the particulars."""

    STATUS = "status"  # an HTTP status other than 200
    BROKEN = "broken"  # no connection, or the stream ended early
    TIMEOUT = "timeout"  # not finished within the time allowed
    ENGINE = "engine"  # the stream carried an error of the engine
    UNREADABLE = "unreadable"  # an event is not what the engine documents
    TOKEN_COUNT = "token-count"  # other than asked (output) or other than sent (prompt)


@dataclass(frozen=True)
class RequestRow:
    """What happened to one request.

    Attributes:
        request_index: `Request.index`.
        input_tokens: Prompt tokens sent.
        output_tokens_asked: Output tokens asked for.
        intended_s: When its slot became free; 0 for the first requests, one a slot.
        sent_s: When the client began to send it.
        ended_s: When its response had ended, or it failed.
        output_tokens: Tokens received, by the engine's count; None if no event came.
        prompt_tokens: Prompt tokens by the engine's count; None if it gives none.
        cached_tokens: Prompt tokens served from the prefix cache; None if the engine does not say.
        finish_reason: The engine's; None if the response did not finish.
        accept_length: Tokens per verify step; None unless speculative.
        failure: None if the request counts.
        error: The failure in words.
        token_times_s: When each token came; tokens of one network chunk have one time.
        output_ids: The output's token ids; None if the engine gives none.
    """

    request_index: int
    input_tokens: int
    output_tokens_asked: int
    intended_s: float
    sent_s: float
    ended_s: float
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    accept_length: float | None
    failure: Failure | None
    error: str | None
    token_times_s: tuple[float, ...]
    output_ids: tuple[int, ...] | None

    @property
    def first_token_s(self) -> float | None:
        """When the first token came."""
        return self.token_times_s[0] if self.token_times_s else None

    @property
    def last_token_s(self) -> float | None:
        """When the last token came."""
        return self.token_times_s[-1] if self.token_times_s else None


@dataclass(frozen=True)
class ClientAudit:
    """Whether the client kept up.

    Attributes:
        loop_lag_mean_ms: Mean delay of a timer due every 10 ms in the client's event loop.
        loop_lag_p99_ms: Its 99th percentile.
        loop_lag_max_ms: Its maximum.
        cpu_s: CPU time of the client's process during the window.
        delivered_concurrency: Mean number of requests in flight, from the start until the last
            request was sent; None unless there were more requests than slots.
        clock_step_ms: By how much the wall clock was set during the window, forwards or (negative)
            backwards; None where it was not looked at.
    """

    loop_lag_mean_ms: float | None
    loop_lag_p99_ms: float | None
    loop_lag_max_ms: float | None
    cpu_s: float
    delivered_concurrency: float | None
    clock_step_ms: float | None = None


@dataclass(frozen=True)
class Window:
    """All requests of one closed-loop run at one concurrency.

    Attributes:
        concurrency: Number of slots, each with one request in flight at a time.
        started_at_unix_s: Wall-clock time of the start.
        rows: One a request, in the order in which they were taken up; at least one.
        audit: The client's account of itself.
    """

    concurrency: int
    started_at_unix_s: float
    rows: tuple[RequestRow, ...]
    audit: ClientAudit

    @property
    def duration_s(self) -> float:
        """From the first intended send to the last byte."""
        return max(row.ended_s for row in self.rows) - min(row.intended_s for row in self.rows)

    @property
    def successful(self) -> tuple[RequestRow, ...]:
        """The rows that count."""
        return tuple(row for row in self.rows if row.failure is None)


def mean_in_flight(rows: Sequence[RequestRow], concurrency: int) -> float | None:
    """Returns the time-weighted number of requests in flight until the last one was sent.

    The drain is left out: there the closed loop has nothing more to send. None unless there are
    more requests than slots, since then all are sent at the start.
    """
    if len(rows) <= concurrency:
        return None
    until_s = max(row.sent_s for row in rows)
    busy_s = sum(min(row.ended_s, until_s) - row.sent_s for row in rows)
    return busy_s / until_s
