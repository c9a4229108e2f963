"""How many requests a measured window gets, so that it is long enough."""

from dataclasses import replace

import numpy as np
import pytest
from scripted_server import Script, ScriptedServer
from scripted_session import scripted_session

from leverbench.campaign.model import FILE, Engine, Probe, Workload
from leverbench.campaign.slices import Launch, Point
from leverbench.load.endpoint import Request
from leverbench.load.point import _requests
from leverbench.load.prompts import Prompts
from leverbench.load.window import ClientAudit, Window

ENGINE = Engine("sglang", None, None, (), {}, {})
LAUNCH = Launch("c", "v", 1, ENGINE, (), "m", None, ("cpu",), Probe())
EVEN, MIXED = Workload("random-ids", 100, 10), Workload("random-ids", (50, 150), (2, 18))
TEXT = Workload(FILE, path="chat.jsonl", content="0" * 64)


def drawn(
    row, workload: Workload, prompts: Prompts | None = None, planned: int = 4
) -> list[Request]:
    """Draws a window of 10 s or more after a warm-up of 4 requests in 4 s, two at a time."""
    point = Point("w", workload, 2, planned, 1, 10.0, 0.1, 8, 0.2)
    warm = replace(row(0.0, 4.0), input_tokens=100, output_tokens_asked=10)
    window = Window(2, 0.0, (warm,) * 4, ClientAudit(0, 0, 0, 0, None))
    session = scripted_session(ScriptedServer(Script()))
    return _requests(session, LAUNCH, point, window, prompts)


def test_requests_of_one_length_fill_the_shortest_window_with_a_margin(row):
    # One a second, for 10 s and half as long again: 15, in waves of 2.
    assert len(drawn(row, EVEN)) == 16
    assert len(drawn(row, EVEN, planned=50)) == 50


def test_requests_of_mixed_lengths_have_as_many_tokens_as_the_time_takes(row):
    requests = drawn(row, MIXED)

    # At 100 prompt tokens and 10 output tokens a second, 15 s of either.
    for tokens, needed in (
        ([len(r.input_ids) for r in requests], 1500),
        ([r.output_tokens for r in requests], 150),
    ):
        assert sum(tokens) >= needed
    assert len(requests) % 2 == 0
    assert len(requests) < 40


@pytest.mark.parametrize(("lines", "taken"), [(6, 6), (60, 30)])
def test_a_file_gives_no_more_requests_than_it_has_lines(row, lines, taken):
    # Answers of 5 tokens: half the warm-up's, so twice the requests.
    ends = np.arange(1, lines + 1) * 100
    length = np.full(lines, 5)
    prompts = Prompts(np.zeros(100 * lines, dtype=int), ends, length, np.arange(lines))

    assert len(drawn(row, TEXT, prompts)) == taken
