"""The load client: a closed loop of streaming HTTP requests.

While the run lasts, the client does as little as it can: it notes the time of each network chunk
and keeps the bytes. Bodies are made before and responses parsed after, so that the client's own
work does not show in the times that it reports.
"""

import asyncio
import gc
import io
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

import aiohttp
import numpy as np
import uvloop
from yarl import URL

from leverbench.load.endpoint import Request, StreamingEndpoint, StreamSummary
from leverbench.load.sse import split_events
from leverbench.load.window import ClientAudit, Failure, RequestRow, Window, mean_in_flight
from leverbench.secrets import redacted

Result = TypeVar("Result")

LAG_PERIOD_S = 0.010
# How often load that nobody measures looks whether it is complete.
_WATCH_PERIOD_S = 0.005
# aiohttp stops reading from the socket at twice this. Its default of 64 KiB stalls streams whose
# events repeat a long context; a response never comes near this one unread.
_READ_BUFFER_BYTES = 1 << 26
# Below the 5 s after which common servers close an idle connection: reusing one that the server
# is just closing would count as a failed request.
_KEEP_ALIVE_S = 2.0
_ERROR_CHARACTERS = 500
_DONE = b"[DONE]"
_NO_EVENTS = StreamSummary(
    cumulative_output_tokens=(),
    prompt_tokens=None,
    cached_tokens=None,
    finish_reason=None,
    accept_length=None,
    output_ids=None,
    error=None,
)


@dataclass
class _Exchange:
    """One request under way; times are `time.perf_counter` readings."""

    request: Request
    intended_s: float
    sent_s: float
    ended_s: float = 0.0
    chunks: list[bytes] = field(default_factory=list)
    chunk_times_s: list[float] = field(default_factory=list)
    failure: Failure | None = None
    error: str | None = None


def run_window(
    endpoint: StreamingEndpoint,
    requests: Sequence[Request],
    concurrency: int,
    *,
    request_timeout_s: float,
) -> Window:
    """Sends all requests, `concurrency` at a time, and returns what happened to each.

    A request that fails is a row with its failure; the run goes on with the next.

    Args:
        endpoint: The server and its protocol.
        requests: What to send, in this order; at least one.
        concurrency: Number of slots; each sends its next request when its last one has ended.
        request_timeout_s: Longest time from send to end of one request.
    """
    if not requests or concurrency < 1:
        raise ValueError("a window needs at least one request and one slot")
    bodies = [endpoint.body(request) for request in requests]
    # A collection in the middle of the run would stop all streams at once.
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            run = runner.run(_run(endpoint, requests, bodies, concurrency, request_timeout_s))
    finally:
        if collecting:
            gc.enable()
    rows = tuple(_row(endpoint, exchange, run.start_s) for exchange in run.exchanges)
    return Window(
        concurrency=concurrency,
        started_at_unix_s=run.started_at_unix_s,
        rows=rows,
        audit=_audit(run, mean_in_flight(rows, concurrency)),
    )


@dataclass
class _Run:
    """The raw account of a run."""

    start_s: float
    started_at_unix_s: float
    exchanges: list[_Exchange] = field(default_factory=list)
    loop_lags_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    clock_step_s: float = 0.0


async def _run(
    endpoint: StreamingEndpoint,
    requests: Sequence[Request],
    bodies: Sequence[bytes],
    concurrency: int,
    request_timeout_s: float,
) -> _Run:
    # One iterator for all slots: requests are taken up in order, each once.
    pending = iter(zip(requests, bodies, strict=True))
    url = URL(endpoint.url)
    async with _client_session(endpoint) as session:
        cpu_start_s = time.process_time()
        run = _Run(start_s=time.perf_counter(), started_at_unix_s=time.time())
        lag = asyncio.create_task(_watch_lag(run.loop_lags_s))
        async with asyncio.TaskGroup() as slots:
            for _ in range(concurrency):
                slots.create_task(_slot(session, url, pending, run, request_timeout_s))
        lag.cancel()
        run.cpu_s = time.process_time() - cpu_start_s
        # Both clocks are slewed alike: what differs is a step, or time in which all was asleep.
        wall_s, passed_s = time.time() - run.started_at_unix_s, time.perf_counter() - run.start_s
        run.clock_step_s = wall_s - passed_s
    return run


def _client_session(endpoint: StreamingEndpoint) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        headers={"Accept-Encoding": "identity", **endpoint.headers},
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=_READ_BUFFER_BYTES,
        auto_decompress=False,
    )


async def _slot(
    session: aiohttp.ClientSession,
    url: URL,
    pending: Iterator[tuple[Request, bytes]],
    run: _Run,
    request_timeout_s: float,
) -> None:
    free_s = run.start_s
    for request, body in pending:
        exchange = _Exchange(request, intended_s=free_s, sent_s=time.perf_counter())
        run.exchanges.append(exchange)
        await _send(session, url, body, exchange, request_timeout_s)
        free_s = exchange.ended_s


async def _send(
    session: aiohttp.ClientSession, url: URL, body: bytes, exchange: _Exchange, timeout_s: float
) -> None:
    try:
        # BytesIO, because aiohttp sends it in parts: a long context does not hold up the loop.
        async with (
            asyncio.timeout(timeout_s),
            # A redirect would carry the API key to another host, and its time into the request's.
            session.post(url, data=io.BytesIO(body), allow_redirects=False) as response,
        ):
            if response.status == 200:
                async for chunk in response.content.iter_any():
                    exchange.chunk_times_s.append(time.perf_counter())
                    exchange.chunks.append(chunk)
            else:
                text = (await response.read()).decode(errors="replace")
                exchange.failure = Failure.STATUS
                # Masked before it is cut: half a secret would not be recognised.
                exchange.error = f"HTTP {response.status}: {redacted(text)[:_ERROR_CHARACTERS]}"
    except TimeoutError:
        exchange.failure, exchange.error = Failure.TIMEOUT, f"no end within {timeout_s} s"
    except (aiohttp.ClientError, OSError) as error:
        exchange.failure, exchange.error = Failure.BROKEN, f"{type(error).__name__}: {error}"
    exchange.ended_s = time.perf_counter()


class LoadFailed(Exception):
    """A request of load that was kept up for an action has failed."""


@dataclass(frozen=True)
class UnderLoad(Generic[Result]):
    """What an action gave that was done under load.

    Attributes:
        result: What it returned.
        in_flight: When it began, the requests that had their first token and not their last.
    """

    result: Result
    in_flight: int


def do_under_load(
    endpoint: StreamingEndpoint,
    requests: Iterable[Request],
    concurrency: int,
    action: Callable[[], Result],
    *,
    request_timeout_s: float,
) -> UnderLoad[Result]:
    """Does something while `concurrency` requests are in flight, and then breaks those off.

    The action begins when each slot has had its first token, and runs in a thread of its own.
    Nothing is measured: the bodies are made on the way.

    Args:
        endpoint: The server and its protocol.
        requests: What to send, in this order; more than will be needed.
        concurrency: Number of slots.
        action: What to do.
        request_timeout_s: Longest time from send to end of one request.

    Raises:
        LoadFailed: A request failed before the action returned; what the action itself raises
            comes first.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            _do_under_load(endpoint, requests, concurrency, action, request_timeout_s)
        )


async def _do_under_load(
    endpoint: StreamingEndpoint,
    requests: Iterable[Request],
    concurrency: int,
    action: Callable[[], Result],
    request_timeout_s: float,
) -> UnderLoad[Result]:
    url = URL(endpoint.url)
    run = _Run(start_s=time.perf_counter(), started_at_unix_s=time.time())
    pending = _until_failure(endpoint, requests, run)
    async with _client_session(endpoint) as session:
        slots = [
            asyncio.create_task(_slot(session, url, pending, run, request_timeout_s))
            for _ in range(concurrency)
        ]
        try:
            # The first requests are one of each slot.
            while sum(bool(e.chunks) for e in run.exchanges[:concurrency]) < concurrency:
                _raise_failure(run)
                await asyncio.sleep(_WATCH_PERIOD_S)
            in_flight = sum(bool(e.chunks) and not e.ended_s for e in run.exchanges)
            result = await _in_thread(action)
            _raise_failure(run)
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
    return UnderLoad(result, in_flight)


def _until_failure(
    endpoint: StreamingEndpoint, requests: Iterable[Request], run: _Run
) -> Iterator[tuple[Request, bytes]]:
    """Yields requests while none has failed: a server that refuses is not asked over and over."""
    for request in requests:
        if any(exchange.failure for exchange in run.exchanges):
            return
        yield request, endpoint.body(request)


def _raise_failure(run: _Run) -> None:
    for exchange in run.exchanges:
        if exchange.failure:
            raise LoadFailed(exchange.error)


async def _in_thread(action: Callable[[], Result]) -> Result:
    """Runs an action in a daemon thread: an interrupted job does not wait for it to end."""
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()  # it cannot be cancelled, only left alone

    def run() -> None:
        try:
            done.set_result(action())
        except BaseException as error:  # raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)


async def _watch_lag(lags_s: list[float]) -> None:
    """Notes by how much a timer of `LAG_PERIOD_S` is late; uvloop's resolution is 1 ms."""
    while True:
        due_s = time.perf_counter() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lag_s = max(0.0, time.perf_counter() - due_s)
        lags_s.append(lag_s)
        # A loop that was held up for long would have been late for the ticks after this one too.
        while (lag_s := lag_s - LAG_PERIOD_S) > 0:
            lags_s.append(lag_s)


def _row(endpoint: StreamingEndpoint, exchange: _Exchange, start_s: float) -> RequestRow:
    """Parses one response; a failure of the transport outranks what its part of a stream says."""
    events, event_times_s = split_events(exchange.chunks, exchange.chunk_times_s)
    done = _DONE in events[-1:]
    if done:
        events.pop()
        event_times_s.pop()
    summary = _NO_EVENTS
    token_times_s: tuple[float, ...] = ()
    failure, error = exchange.failure, exchange.error
    try:
        if events:
            summary = endpoint.parse(events)
            token_times_s = _token_times(
                summary.cumulative_output_tokens, [time_s - start_s for time_s in event_times_s]
            )
    except (ValueError, LookupError, TypeError) as unreadable:
        failure = failure or Failure.UNREADABLE
        error = error or f"{type(unreadable).__name__}: {unreadable}"
    request = exchange.request
    counts = summary.cumulative_output_tokens
    if failure is None:
        failure, error = _judge_response(request, summary, done)
    return RequestRow(
        request_index=request.index,
        input_tokens=len(request.input_ids),
        output_tokens_asked=request.output_tokens,
        intended_s=exchange.intended_s - start_s,
        sent_s=exchange.sent_s - start_s,
        ended_s=exchange.ended_s - start_s,
        output_tokens=counts[-1] if counts else None,
        prompt_tokens=summary.prompt_tokens,
        cached_tokens=summary.cached_tokens,
        finish_reason=summary.finish_reason,
        accept_length=summary.accept_length,
        failure=failure,
        error=error,
        token_times_s=token_times_s,
        output_ids=summary.output_ids,
    )


def _token_times(
    cumulative_tokens: Sequence[int], event_times_s: Sequence[float]
) -> tuple[float, ...]:
    """Returns the time of each token: that of the event that brought it."""
    if not cumulative_tokens:
        return ()
    new_tokens = [after - before for before, after in pairwise((0, *cumulative_tokens))]
    if min(new_tokens) < 0:
        raise ValueError("the count of output tokens goes backwards")
    return tuple(
        time_s
        for time_s, count in zip(event_times_s, new_tokens, strict=True)
        for _ in range(count)
    )


def _judge_response(
    request: Request, summary: StreamSummary, done: bool
) -> tuple[Failure, str] | tuple[None, None]:
    """Says what is wrong with a response whose transport went well."""
    if summary.error is not None:
        return Failure.ENGINE, summary.error
    if not done:
        return Failure.BROKEN, "the stream ended without [DONE]"
    received = summary.cumulative_output_tokens[-1] if summary.cumulative_output_tokens else 0
    if received != request.output_tokens:
        return Failure.TOKEN_COUNT, f"asked for {request.output_tokens} tokens, got {received}"
    if summary.prompt_tokens not in (None, len(request.input_ids)):
        return (
            Failure.TOKEN_COUNT,
            f"sent {len(request.input_ids)} prompt tokens, counted as {summary.prompt_tokens}",
        )
    return None, None


def _audit(run: _Run, delivered_concurrency: float | None) -> ClientAudit:
    mean_ms = p99_ms = max_ms = None
    if run.loop_lags_s:
        mean_ms = float(np.mean(run.loop_lags_s) * 1e3)
        p99_ms, max_ms = (np.percentile(run.loop_lags_s, (99, 100)) * 1e3).tolist()
    step_ms = run.clock_step_s * 1e3
    return ClientAudit(mean_ms, p99_ms, max_ms, run.cpu_s, delivered_concurrency, step_ms)
