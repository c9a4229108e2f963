"""What the client and an engine agree on: a request, and how its streamed answer is read.

Light to import: it is read whenever a workflow is parsed, long before any load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """One request: token ids in, an exact number of tokens out.

    Attributes:
        index: Place in the window, from 0.
        input_ids: The prompt's token ids.
        output_tokens: How many tokens the server is asked for.
    """

    index: int
    input_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True)
class StreamSummary:
    """What the events of one response say.

    Attributes:
        cumulative_output_tokens: Output tokens so far, one number an event; an event without
            tokens repeats the number before it. May be empty where there is an `error`.
        prompt_tokens: Prompt tokens by the engine's count.
        cached_tokens: Prompt tokens served from the prefix cache.
        finish_reason: Why generation stopped.
        accept_length: Tokens per verify step; None unless speculative.
        output_ids: The output's token ids.
        error: An error that the engine sent in the stream.
    """

    cumulative_output_tokens: tuple[int, ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    accept_length: float | None
    output_ids: tuple[int, ...] | None
    error: str | None


class StreamingEndpoint(Protocol):
    """How an engine is asked for a streamed completion, and how its answer is read."""

    @property
    def url(self) -> str:
        """Full URL to POST to."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of each request, the content type among them."""
        ...

    def body(self, request: Request) -> bytes:
        """Returns the request's body."""
        ...

    def parse(self, events: Sequence[bytes]) -> StreamSummary:
        """Reads the `data` payloads of one response, in order, without the final ``[DONE]``.

        A response that broke off is read too, as far as it came.

        Raises:
            ValueError, LookupError, TypeError: An event is not what the engine documents.
        """
        ...
