"""The client against a server of known truth.

Times are checked from both sides: no request may be faster than what was planted, and the one
measured best may differ from the server's own account by a small share only. A busy machine delays
some requests, but a client that measures wrongly is wrong in all of them.
"""

import gc
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import scripted_server
from scripted_server import Script, ScriptedServer, serving

from leverbench.campaign.model import Workload
from leverbench.load.client import LoadFailed, do_under_load, run_window
from leverbench.load.endpoint import Request, StreamSummary
from leverbench.load.metrics import point_metrics
from leverbench.load.validity import judge
from leverbench.load.window import Failure, RequestRow, Window
from leverbench.load.workload import make_requests


@dataclass(frozen=True)
class ScriptedEndpoint:
    """The scripted server's protocol."""

    url: str
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    def body(self, request: Request) -> bytes:
        return json.dumps(
            {
                "input_ids": request.input_ids,
                "sampling_params": {"max_new_tokens": request.output_tokens},
                "stream": True,
            }
        ).encode()

    def parse(self, events: Sequence[bytes]) -> StreamSummary:
        bodies = [json.loads(event) for event in events]
        error = next((b["error"]["message"] for b in bodies if "error" in b), None)
        bodies = [b for b in bodies if "error" not in b]
        counts = [b["meta_info"]["completion_tokens"] for b in bodies]
        if error is not None:
            counts.append(counts[-1])
        meta = bodies[-1]["meta_info"]
        reason = meta["finish_reason"]
        return StreamSummary(
            cumulative_output_tokens=tuple(counts),
            prompt_tokens=meta["prompt_tokens"],
            cached_tokens=meta["cached_tokens"],
            finish_reason=None if reason is None else reason["type"],
            accept_length=meta.get("spec_accept_length"),
            output_ids=tuple(bodies[-1]["output_ids"]),
            error=error,
        )


def load(
    server: ScriptedServer,
    count: int,
    concurrency: int,
    *,
    input_tokens: int = 4,
    output_tokens: int = 6,
    request_timeout_s: float = 20.0,
    endpoint: type[ScriptedEndpoint] = ScriptedEndpoint,
) -> Window:
    return run_window(
        endpoint(server.url + "/generate"),
        prompts(count, input_tokens, output_tokens),
        concurrency,
        request_timeout_s=request_timeout_s,
    )


def prompts(count: int, input_tokens: int = 4, output_tokens: int = 6) -> list[Request]:
    workload = Workload("random-ids", input_tokens, output_tokens)
    return make_requests(workload, count, range(1000), [1])


def with_account(
    server: ScriptedServer, window: Window
) -> list[tuple[RequestRow, scripted_server.Generation]]:
    """Pairs each row with what the server says of the same request."""
    made = {tuple(generation.input_ids): generation for generation in server.generations}
    asked = prompts(len(window.rows))
    return [(row, made[asked[row.request_index].input_ids]) for row in window.rows]


def test_planted_times_are_recovered():
    # First token after 200 ms, then one every 30 ms: a request of 11 tokens takes 500 ms, and four
    # slots go through eight of them in 1 s.
    with serving(Script(ttft_s=0.200, step_s=0.030)) as server:
        window = load(server, 8, 4, output_tokens=11)

    assert [row.error for row in window.rows] == [None] * 8
    ttft_s = [row.first_token_s - row.intended_s for row in window.rows]
    tpot_s = [(row.last_token_s - row.first_token_s) / 10 for row in window.rows]
    assert min(ttft_s) >= 0.200
    # A step that had begun when a request came in brings it a token early, but one of ten only.
    assert max(tpot_s) >= 0.030 * 0.9
    server_times_s = [
        (made.token_times_s[0] - made.arrived_s, made.token_times_s[-1] - made.token_times_s[0])
        for _, made in with_account(server, window)
    ]
    ttft_error_s = [a - b for a, (b, _) in zip(ttft_s, server_times_s, strict=True)]
    tpot_error_s = [a - b / 10 for a, (_, b) in zip(tpot_s, server_times_s, strict=True)]
    assert 0 <= min(ttft_error_s) < 0.200 * 0.25
    assert min(map(abs, tpot_error_s)) < 0.030 * 0.25
    metrics = point_metrics(window)
    assert metrics["mean_ttft_ms"] == pytest.approx(statistics.mean(ttft_s) * 1e3)
    assert metrics["mean_tpot_ms"] == pytest.approx(statistics.mean(tpot_s) * 1e3)
    assert metrics["output_tok_per_s"] == pytest.approx(88 / window.duration_s)
    assert window.duration_s >= 1.0 * 0.9


def test_a_larger_batch_steps_more_slowly():
    # 20 ms a step alone, 80 ms a step for four together.
    with serving(Script(step_per_running_s=0.020)) as server:
        alone = point_metrics(load(server, 1, 1))["mean_tpot_ms"]
        together = point_metrics(load(server, 4, 4))["mean_tpot_ms"]

    assert together > 2 * alone


def test_token_times_follow_those_of_the_server():
    with serving(Script(ttft_s=0.05, step_s=0.04)) as server:
        # In this order, an interruption between the two readings makes delays longer only.
        before_unix_s, before_s = time.time(), time.perf_counter()
        window = load(server, 6, 2)
    start_s = before_s + window.started_at_unix_s - before_unix_s

    delays_s = [
        start_s + received_s - made_s
        for row, generation in with_account(server, window)
        for received_s, made_s in zip(row.token_times_s, generation.token_times_s, strict=True)
    ]
    assert min(delays_s) > -0.001  # the two clocks are compared to within a millisecond
    assert statistics.median(delays_s) < 0.040 / 2  # half a step


def test_the_closed_loop_keeps_its_slots_busy_and_its_order():
    with serving(Script(ttft_s=0.02, step_s=0.005)) as server:
        window = load(server, 12, 3)

    rows = window.rows
    assert [row.request_index for row in rows] == list(range(12))
    assert [row.intended_s for row in rows[:3]] == [0.0] * 3
    # Each later request was meant for the moment in which one before it ended.
    ends_s = [row.ended_s for row in rows]
    assert all(row.intended_s in ends_s for row in rows[3:])
    assert len({row.intended_s for row in rows[3:]}) == 9
    for row in rows:
        assert row.intended_s <= row.sent_s < row.first_token_s <= row.last_token_s <= row.ended_s
    assert max(sum(r.sent_s <= s.sent_s < r.ended_s for r in rows) for s in rows) == 3
    assert 2.7 < window.audit.delivered_concurrency <= 3


def test_rows_tell_what_the_engine_said():
    with serving(Script(cached_tokens=2)) as server:
        window = load(server, 1, 1, input_tokens=7, output_tokens=5)

    (row,) = window.rows
    generation = server.generations[0]
    assert (row.input_tokens, row.prompt_tokens, row.cached_tokens) == (7, 7, 2)
    assert (row.output_tokens, row.finish_reason) == (5, "length")
    assert row.output_ids == tuple(generation.output_ids(5))
    assert row.accept_length is None
    assert window.audit.delivered_concurrency is None


def test_speculative_tokens_come_several_to_an_event():
    with serving(Script(step_s=0.01, tokens_per_step=3)) as server:
        window = load(server, 1, 1, output_tokens=8)

    (row,) = window.rows
    assert row.failure is None
    assert len(row.token_times_s) == 8
    assert len(set(row.token_times_s)) <= 4  # 1 + 3 + 3 + 1 tokens
    # As the engine counts: tokens by verify steps, the prefill's token among them.
    assert point_metrics(window)["accept_length"] == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("how", "failure", "error", "output_tokens"),
    [
        ("status", Failure.STATUS, "HTTP 500: .*scripted failure", None),
        ("cut", Failure.BROKEN, "Error", 3),
        ("error", Failure.ENGINE, "scripted error", 3),
        ("garbage", Failure.UNREADABLE, "JSONDecodeError", None),
        ("no-done", Failure.BROKEN, r"without \[DONE\]", 6),
        ("count", Failure.TOKEN_COUNT, "asked for 6 tokens, got 5", 5),
        ("hang", Failure.TIMEOUT, "no end within 1.0 s", 3),
    ],
)
def test_a_failed_request_is_a_row_and_the_loop_goes_on(how, failure, error, output_tokens):
    with serving(Script(misbehave={1: how})) as server:
        window = load(server, 4, 1, request_timeout_s=1.0)

    good = [row for row in window.rows if row.request_index != 1]
    bad = window.rows[1]
    assert [row.failure for row in good] == [None] * 3
    assert [row.output_tokens for row in good] == [6] * 3
    assert bad.failure is failure
    assert bad.output_tokens == output_tokens
    assert len(bad.token_times_s) == (output_tokens or 0)
    assert re.search(error, bad.error)
    assert point_metrics(window)["request_per_s"] == pytest.approx(3 / window.duration_s)


def test_a_wrong_prompt_count_is_caught():
    class DropsOne(ScriptedEndpoint):
        def body(self, request: Request) -> bytes:
            return super().body(replace(request, input_ids=request.input_ids[1:]))

    with serving(Script()) as server:
        (row,) = load(server, 1, 1, endpoint=DropsOne).rows

    assert row.failure is Failure.TOKEN_COUNT
    assert row.error == "sent 4 prompt tokens, counted as 3"


def test_no_server_is_a_failure_of_each_request():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = ScriptedServer(Script())
        dead.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        window = load(dead, 3, 2)

    assert [row.failure for row in window.rows] == [Failure.BROKEN] * 3
    assert "ClientConnectorError" in window.rows[0].error
    assert [row.request_index for row in window.rows] == [0, 1, 2]


def test_an_error_may_come_without_counts():
    class ErrorAlone(ScriptedEndpoint):
        def parse(self, events: Sequence[bytes]) -> StreamSummary:
            return replace(super().parse(events), cumulative_output_tokens=())

    with serving(Script(misbehave={0: "error"})) as server:
        (row,) = load(server, 1, 1, endpoint=ErrorAlone).rows

    assert (row.failure, row.error) == (Failure.ENGINE, "scripted error")
    assert (row.output_tokens, row.token_times_s) == (None, ())


def test_a_count_that_goes_backwards_is_unreadable():
    class Backwards(ScriptedEndpoint):
        def parse(self, events: Sequence[bytes]) -> StreamSummary:
            summary = super().parse(events)
            counts = summary.cumulative_output_tokens[::-1]
            return replace(summary, cumulative_output_tokens=counts)

    with serving(Script()) as server:
        (row,) = load(server, 1, 1, endpoint=Backwards).rows

    assert row.failure is Failure.UNREADABLE
    assert "goes backwards" in row.error


@pytest.mark.parametrize(
    "script",
    [
        Script(step_s=0.002, split_writes=True),
        Script(step_s=0.002, events_per_write=4),
        Script(step_s=0.002, events_per_write=3, split_writes=True),
    ],
    ids=["split", "merged", "both"],
)
def test_events_do_not_follow_chunks(script):
    with serving(script) as server:
        window = load(server, 4, 2, output_tokens=9)

    assert [row.error for row in window.rows] == [None] * 4
    for row in window.rows:
        assert len(row.token_times_s) == 9
        assert list(row.token_times_s) == sorted(row.token_times_s)
        if script.events_per_write == 4 and not script.split_writes:
            # 4 + 4 + 1; the network may put neighbours together but never apart.
            assert len(set(row.token_times_s)) <= 3


def test_long_prompts_and_large_events_pass():
    # A body of over 1 MiB, and a response of 2.5 MB in events of up to 5 kB.
    with serving(Script()) as server:
        window = load(server, 1, 1, input_tokens=250_000, output_tokens=1000)

    assert [row.error for row in window.rows] == [None]
    assert len(server.generations[0].input_ids) == 250_000


def test_a_slow_start_shows_in_the_first_requests_alone():
    with serving(Script(ttft_s=0.02, slow_first=2, slow_extra_s=0.4)) as server:
        window = load(server, 6, 2)

    slow, warm = window.rows[:2], window.rows[2:]
    assert all(row.first_token_s >= 0.42 for row in slow)
    assert statistics.median(row.first_token_s - row.intended_s for row in warm) < 0.2


def test_the_client_audits_itself():
    with serving(Script(ttft_s=0.1)) as server:
        audit = load(server, 4, 2).audit

    assert 0 <= audit.loop_lag_mean_ms <= audit.loop_lag_max_ms
    assert audit.loop_lag_p99_ms <= audit.loop_lag_max_ms
    assert audit.loop_lag_mean_ms < 50
    assert 0 < audit.cpu_s < 2


def test_a_blocked_client_finds_itself_out():
    with serving(Script(ttft_s=0.1, step_s=0.005)) as server:

        def hog() -> None:
            while not server.generations:
                time.sleep(0.001)
            sum(range(40_000_000))  # for some 0.5 s, no other thread runs

        thread = threading.Thread(target=hog, daemon=True)
        thread.start()
        window = load(server, 1, 1)
        thread.join()

    audit = window.audit
    assert audit.loop_lag_max_ms > 100
    # Most of the window was spent waiting, though the watch woke only once in all that time.
    assert audit.loop_lag_mean_ms > audit.loop_lag_max_ms / 10
    assert "client-bound" in judge(
        window, point_metrics(window), min_window_s=0, prefix_hits_expected=False
    )


def test_garbage_collection_is_as_before():
    with serving(Script()) as server:
        load(server, 1, 1)
        assert gc.isenabled()


@pytest.mark.parametrize(("count", "concurrency"), [(0, 1), (1, 0)])
def test_an_empty_window_is_refused(count, concurrency):
    with pytest.raises(ValueError, match="at least one request and one slot"):
        load(ScriptedServer(Script()), count, concurrency)


def under_load(server: ScriptedServer, action, count: int = 60, output_tokens: int = 40):
    return do_under_load(
        ScriptedEndpoint(server.url + "/generate"),
        prompts(count, output_tokens=output_tokens),
        3,
        action,
        request_timeout_s=20.0,
    )


def test_an_action_begins_when_every_slot_has_its_first_token():
    # The slowest of three slots has its first token after 0.3 s, when the others are at their
    # second request.
    with serving(Script(ttft_s=0.02, step_s=0.01, slow_first=1, slow_extra_s=0.28)) as server:

        def tokens_seen() -> list[int]:
            return [len(generation.token_times_s) for generation in server.generations]

        under = under_load(server, tokens_seen, output_tokens=20)

    assert len(under.result) > 3
    assert 0 not in under.result[:3]
    assert 1 <= under.in_flight <= 3


def test_load_is_kept_up_until_the_action_returns_and_then_broken_off():
    with serving(Script(step_s=0.01)) as server:
        alive = []

        def act() -> str:
            for _ in range(8):
                time.sleep(0.05)
                alive.append(server.in_flight)
            return "done"

        # A request takes 60 ms: within 0.4 s each slot needs several.
        under = under_load(server, act, output_tokens=6)
        deadline_s = time.monotonic() + 10
        while server.in_flight and time.monotonic() < deadline_s:
            time.sleep(0.01)

        assert (under.result, server.in_flight) == ("done", 0)
    assert statistics.mean(alive) > 2
    assert len(server.generations) >= 6
    assert len(server.generations) < 60


def test_what_an_action_raises_comes_out_and_ends_the_load():
    with serving(Script(step_s=0.01)) as server:

        def fail() -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            under_load(server, fail)


@pytest.mark.parametrize("number", [0, 2])
def test_an_action_does_not_begin_where_a_request_failed(number):
    with serving(Script(ttft_s=0.05, misbehave={number: "status"})) as server:
        begun: list[bool] = []
        with pytest.raises(LoadFailed, match="HTTP 500"):
            under_load(server, lambda: begun.append(True))

    assert begun == []
    assert len(server.generations) == 3  # a server that refuses is left alone


def test_an_action_under_failing_load_does_not_count():
    with (
        serving(Script(step_s=0.01, misbehave={1: "cut"})) as server,
        pytest.raises(LoadFailed, match="Error"),
    ):
        under_load(server, lambda: time.sleep(0.5))

    assert len(server.generations) <= 3


def test_the_scripted_server_runs_as_a_process():
    command = [sys.executable, scripted_server.__file__, "--port", "0", "--answer", "Rome"]
    command += ["--tokens-per-step", "2", "--misbehave", "1=status"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = ScriptedServer(Script())
            server.url = process.stdout.readline().removeprefix("ready: ").strip()
            window = load(server, 2, 1)
            seen = {
                path: urllib.request.urlopen(server.url + path).read().decode()
                for path in ("/health", "/flush_cache", "/server_info", "/metrics")
            }
            question = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()
            chat = urllib.request.Request(server.url + "/v1/chat/completions", data=question)
            answer = json.load(urllib.request.urlopen(chat))
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0

    assert [row.failure for row in window.rows] == [None, Failure.STATUS]
    assert window.rows[0].accept_length == 2.0
    assert answer["choices"][0]["message"]["content"] == "Rome"
    assert json.loads(seen["/server_info"])["version"] == "scripted"
    assert "scripted:prompt_tokens_total 8\n" in seen["/metrics"]
