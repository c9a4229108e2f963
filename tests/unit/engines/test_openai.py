"""OpenAI-compatible servers: what is sent to them, and how their streams are counted."""

import json

import pytest
from scripted_server import Script, serving

from leverbench.campaign.model import Attach, Engine
from leverbench.engines import Address, Answer, NoAnswer, api_of
from leverbench.load.client import run_window
from leverbench.load.endpoint import Request, StreamSummary
from leverbench.load.window import RequestRow

OPENAI = api_of(Engine("sglang", None, None, (), {}, {}, attach=Attach("http://x", "openai")))


def event(text: str | None = "x", usage: int | None = None, **more: object) -> bytes:
    choices = [] if text is None else [{"text": text, "finish_reason": None} | more]
    told = None if usage is None else {"prompt_tokens": 4, "completion_tokens": usage}
    return json.dumps({"choices": choices, "usage": told}).encode()


def parsed(*events: bytes) -> StreamSummary:
    with serving(Script()) as server:
        return OPENAI.endpoint(Address(server.url)).parse(events)


@pytest.mark.parametrize(
    ("events", "cumulative"),
    [
        # Each event tells: two tokens came with the second one.
        ([event(usage=1), event(usage=3), event(None, usage=3)], (1, 3, 3)),
        # Only the end tells: one an event, and the third event brought the other two of five.
        ([event(), event(), event(), event(None, usage=5)], (1, 2, 5, 5)),
        # The last event brought no token, only the reason to stop.
        ([event(), event(), event(""), event(None, usage=2)], (1, 2, 2, 2)),
        # Nothing tells: one an event.
        ([event(), event()], (1, 2)),
        # It broke off.
        ([event(usage=2), event(usage=4)], (2, 4)),
        ([], ()),
    ],
)
def test_tokens_are_counted_by_usage_where_it_is_told(events, cumulative):
    assert parsed(*events).cumulative_output_tokens == cumulative


def test_what_else_a_stream_tells():
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    end = json.dumps({"choices": [], "usage": usage}).encode()
    summary = parsed(event(finish_reason="length"), end)

    assert (summary.prompt_tokens, summary.cached_tokens) == (7, 3)
    assert summary.finish_reason == "length"
    assert summary.accept_length is summary.output_ids is summary.error is None


def test_no_word_of_the_cache_is_none_and_not_zero():
    assert parsed(event(usage=1)).cached_tokens is None
    assert parsed(event()).prompt_tokens is None


@pytest.mark.parametrize("error", [{"message": "too long"}, "too long"])
def test_an_error_in_the_stream_is_told(error):
    assert parsed(event(), json.dumps({"error": error}).encode()).error == "too long"


def test_a_request_asks_for_an_exact_number_of_tokens():
    with serving(Script(model="m")) as server:
        endpoint = OPENAI.endpoint(Address(server.url, "k"))
        body = json.loads(endpoint.body(Request(0, (5, 6), 7)))

    assert endpoint.url == f"{server.url}/v1/completions"
    assert endpoint.headers["Authorization"] == "Bearer k"
    assert (body["model"], body["prompt"], body["max_tokens"]) == ("m", [5, 6], 7)
    assert (body["temperature"], body["ignore_eos"], body["stream"]) == (0, True, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def window_of(script: Script) -> RequestRow:
    with serving(script) as server:
        endpoint = OPENAI.endpoint(Address(server.url))
        window = run_window(endpoint, [Request(0, (1, 2, 3), 8)], 1, request_timeout_s=20)
    (row,) = window.rows
    return row


def test_every_token_has_the_time_of_its_event():
    # Four events, with 1, 3, 3 and 1 tokens.
    row = window_of(Script(step_s=0.02, tokens_per_step=3, usage="event"))

    assert row.failure is None, row.error
    times_s = row.token_times_s
    assert len(times_s) == 8
    assert times_s[1] == times_s[3] < times_s[4] == times_s[6] < times_s[7]


def test_without_usage_in_each_event_the_last_one_has_the_rest():
    # Four events: three with a token each, then the other five.
    row = window_of(Script(step_s=0.02, tokens_per_step=3, usage="end"))

    assert row.failure is None, row.error
    times_s = row.token_times_s
    assert len(times_s) == 8
    assert times_s[0] < times_s[1] < times_s[2] < times_s[3] == times_s[7]


def test_a_server_that_never_tells_is_taken_at_an_event_a_token():
    assert window_of(Script(usage="never")).failure is None
    assert window_of(Script(usage="never", tokens_per_step=3)).failure == "token-count"


def test_a_server_is_asked_with_the_name_of_its_model():
    with serving(Script(model="m", context=99)) as server:
        at = Address(server.url)

        assert OPENAI.ask(at, "Capital?", 16, 10) == Answer("Paris", None)
        assert OPENAI.served_model(at, 10) == {"id": "m", "root": "m", "parent": None}
        assert OPENAI.server_info(at, 10)["effective"] == {"max_model_len": 99}
        assert OPENAI.counters(at, 10) is None


def test_what_a_server_tells_is_the_same_each_time():
    with serving(Script()) as server:
        at = Address(server.url)

        assert OPENAI.served_model(at, 10) == OPENAI.served_model(at, 10)
        assert OPENAI.server_info(at, 10) == OPENAI.server_info(at, 10)


def test_a_server_without_such_endpoints_gives_no_answer():
    with serving(Script()) as server, pytest.raises(NoAnswer) as caught:
        OPENAI.endpoint(Address(f"{server.url}/v1"))

    assert caught.value.status == 404
