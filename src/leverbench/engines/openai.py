"""OpenAI-compatible servers that others started, whichever engine is behind them.

Format: the completions, chat and models endpoints of the OpenAI API, with what inference servers
add to it: token ids as the prompt, ``ignore_eos``, and usage in each event.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverbench.engines.base import Address, Answer, NoAnswer
from leverbench.engines.http import chat, chat_text, fetch_json
from leverbench.load.endpoint import Request, StreamSummary

# The list of models is short, and comes from memory.
_MODELS_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class _CompletionsEndpoint:
    """``/v1/completions``, streamed: token ids in, text and counts out."""

    url: str
    headers: Mapping[str, str]
    model: str

    def body(self, request: Request) -> bytes:
        question = {
            "model": self.model,
            "prompt": request.input_ids,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        return json.dumps(question).encode()

    def parse(self, events: Sequence[bytes]) -> StreamSummary:
        """Counts tokens by the usage of each event, or, without it, one an event.

        Where only the final usage tells the number of tokens, the last event that brought text
        has what the events before it have not.
        """
        counts: list[int] = []
        count, last = 0, 0
        usage: Mapping[str, Any] = {}
        reason: str | None = None
        for event in events:
            data = json.loads(event)
            if error := data.get("error"):
                message = error.get("message", error) if isinstance(error, dict) else error
                return StreamSummary((), None, None, None, None, None, str(message))
            usage = data.get("usage") or usage
            if choices := data["choices"]:
                count = data["usage"]["completion_tokens"] if data.get("usage") else count + 1
                reason = choices[0].get("finish_reason") or reason
                last = len(counts)
            counts.append(count)
        total = usage.get("completion_tokens")
        if total is not None and counts:
            counts = [min(c, total) for c in counts[:last]] + [total] * (len(counts) - last)
        return StreamSummary(
            cumulative_output_tokens=tuple(counts),
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            finish_reason=reason,
            accept_length=None,
            output_ids=None,
            error=None,
        )


class OpenAICompatible:
    """A server of which only the OpenAI-compatible endpoints are known."""

    name = "openai-compatible"
    ready_path = "/v1/models"

    def endpoint(self, at: Address) -> _CompletionsEndpoint:
        """Returns ``/v1/completions`` of the first model that the server names."""
        model = str(_first_model(at, _MODELS_TIMEOUT_S)["id"])
        return _CompletionsEndpoint(f"{at.url}/v1/completions", at.headers, model)

    def ask(self, at: Address, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
        """Returns the answer of ``/v1/chat/completions``, which has no token ids."""
        model = str(_first_model(at, timeout_s)["id"])
        return Answer(chat_text(chat(at, model, prompt, max_tokens, timeout_s)), None)

    def server_info(self, at: Address, timeout_s: float) -> dict[str, Any]:
        """Reads from ``/v1/models`` the one setting that may stand there: the longest context."""
        length = _first_model(at, timeout_s).get("max_model_len")
        effective = {} if length is None else {"max_model_len": length}
        unknown = dict.fromkeys(("memory", "version", "device", "start"))
        return {"effective": effective, **unknown}

    def served_model(self, at: Address, timeout_s: float) -> dict[str, Any]:
        """Reads ``/v1/models``; of the card, ``created`` and ``permission`` are new each time."""
        card = _first_model(at, timeout_s)
        return {key: card.get(key) for key in ("id", "root", "parent")}

    def counters(self, at: Address, timeout_s: float) -> dict[str, float] | None:
        """Returns None: the counters have another name with each engine."""
        return None

    def longest_request(
        self, args: Mapping[str, Any], model_config: Mapping[str, Any]
    ) -> int | None:
        """Returns None: what becomes of a model's own limit is another with each engine."""
        return None


def _first_model(at: Address, timeout_s: float) -> dict[str, Any]:
    answer = fetch_json(at, "/v1/models", timeout_s)
    try:
        card: dict[str, Any] = {**answer["data"][0]}
        card["id"]
    except (KeyError, IndexError, TypeError):
        raise NoAnswer(f"{at.url}/v1/models: it names no model") from None
    return card
