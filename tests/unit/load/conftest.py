"""Rows of requests for the tests of what is made from them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from leverbench.load.window import RequestRow


@pytest.fixture
def row() -> Callable[..., RequestRow]:
    """Makes a good row: sent when intended, its tokens at the given times, ended with the last."""

    def make(start_s: float, /, *token_times_s: float, **changes: object) -> RequestRow:
        plain = RequestRow(
            request_index=0,
            input_tokens=4,
            output_tokens_asked=len(token_times_s),
            intended_s=start_s,
            sent_s=start_s,
            ended_s=token_times_s[-1] if token_times_s else start_s,
            output_tokens=len(token_times_s),
            prompt_tokens=4,
            cached_tokens=0,
            finish_reason="length",
            accept_length=None,
            failure=None,
            error=None,
            token_times_s=token_times_s,
            output_ids=None,
        )
        return replace(plain, **changes)

    return make
