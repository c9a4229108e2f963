"""HTTP questions to a running server, outside of measured windows."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from leverbench.engines.base import Address, NoAnswer
from leverbench.secrets import redacted


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an answer: to follow it would carry the API key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


# Without the proxies of the environment, which the load client does not use either.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def fetch(at: Address, path: str, timeout_s: float, body: bytes | None = None) -> bytes:
    """Returns the body of an answer with status 200; posts where there is a body to send.

    Raises:
        NoAnswer: There is no answer, or one with another status.
    """
    url = f"{at.url}{path}"
    request = urllib.request.Request(url, data=body, headers=at.headers)
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            content: bytes = response.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise NoAnswer(f"{url}: {error.code} {error.reason}", error.code) from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise NoAnswer(f"{url}: {error!r}") from None
    return content


def fetch_json(at: Address, path: str, timeout_s: float, question: object = None) -> dict[str, Any]:
    """Returns the JSON object that answers a question, which is posted as JSON.

    Raises:
        NoAnswer: There is no answer, or it is no JSON object.
    """
    body = None if question is None else json.dumps(question).encode()
    try:
        answer = json.loads(fetch(at, path, timeout_s, body))
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{at.url}{path}: not JSON ({error})") from None
    if not isinstance(answer, dict):
        raise NoAnswer(f"{at.url}{path}: not a JSON object")
    return answer


def chat(
    at: Address, model: str, prompt: str, max_tokens: int, timeout_s: float, **more: object
) -> dict[str, Any]:
    """Asks ``/v1/chat/completions`` for the answer to one message, at temperature 0.

    Args:
        at: The server.
        model: The model's name.
        prompt: The message.
        max_tokens: Longest answer.
        timeout_s: Longest wait for it.
        more: Fields of the question that an engine has beyond the protocol.

    Returns:
        The answer's only choice; its text is `chat_text` of it.

    Raises:
        NoAnswer: There is no answer, or none of that form.
    """
    question = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
        **more,
    }
    answer = fetch_json(at, "/v1/chat/completions", timeout_s, question)
    try:
        choice: dict[str, Any] = {**answer["choices"][0]}
        choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise NoAnswer(f"no answer in {redacted(json.dumps(answer))[:200]}") from None
    return choice


def chat_text(choice: dict[str, Any]) -> str:
    """Returns the text of a choice of `chat`; empty where all of it was reasoning."""
    return str(choice["message"]["content"] or "")
