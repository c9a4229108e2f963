"""Server-sent events, taken apart after the run.

Format: WHATWG HTML Living Standard, section "Server-sent events". Only `data` fields are kept; an
event that the stream does not finish with an empty line is dropped, as the standard asks.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

_EVENT_END = re.compile(rb"\r?\n\r?\n")


def split_events(
    chunks: Sequence[bytes], chunk_times_s: Sequence[float]
) -> tuple[list[bytes], list[float]]:
    """Splits the chunks of one response into its events.

    Args:
        chunks: The body as it came from the network, in order.
        chunk_times_s: When each chunk came.

    Returns:
        The `data` payload of each event, and when the chunk that holds the event's end came.
    """
    stream = b"".join(chunks)
    chunk_ends = list(accumulate(map(len, chunks)))
    payloads: list[bytes] = []
    times_s: list[float] = []
    start = 0
    for end in _EVENT_END.finditer(stream):
        data = [
            line[5:].removeprefix(b" ")
            for line in stream[start : end.start()].splitlines()
            if line.startswith(b"data:")
        ]
        start = end.end()
        if data:
            payloads.append(b"\n".join(data))
            times_s.append(chunk_times_s[bisect_left(chunk_ends, start)])
    return payloads, times_s
