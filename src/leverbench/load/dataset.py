"""Datasets: files of requests, one a line, as they are written.

Light to import: it is read whenever a workflow is parsed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from leverbench.campaign.model import Workload
from leverbench.errors import LeverbenchError
from leverbench.models.tokenizer import Text

_KINDS = ("prompt", "messages", "input_ids")
# No token id and no length comes near it.
_NUMBERS_END = 1 << 31
_EXAMPLE = '{"prompt": "Once upon a time", "output_tokens": 128}'


@dataclass(frozen=True)
class Line:
    """One request of a file.

    Attributes:
        number: Its line, from 1.
        text: The prompt or chat; None where the file has token ids.
        input_ids: The token ids that the file has; None where it has text.
        output_tokens: How many tokens are asked for.
    """

    number: int
    text: Text | None
    input_ids: Sequence[int] | None
    output_tokens: int


def require_lines(workload: Workload, lines: int, requests: int) -> None:
    """Raises `LeverbenchError` where a file has fewer requests than a window needs."""
    if lines < requests:
        raise LeverbenchError(
            f"it has {lines} requests, and a window needs {requests}",
            where=workload.path,
            cure="Add lines, or ask for fewer requests in ladder: (a warm-up needs two a slot).",
        )


def read_lines(workload: Workload) -> list[Line]:
    """Reads a workload's file; empty lines do not count.

    Raises:
        LeverbenchError: The file is not what it was when the campaign was read, or a line is no
            request.
    """
    path = _path(workload)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LeverbenchError(f"unreadable ({error.strerror})", where=str(path)) from None
    if hashlib.sha256(content).hexdigest() != workload.content:
        raise LeverbenchError(
            "the file has changed since this run began", where=str(path), cure="Run again."
        )
    numbered = enumerate(content.split(b"\n"), start=1)
    lines = [_line(f"{path}:{number}", number, line) for number, line in numbered if line.strip()]
    if not lines:
        raise LeverbenchError("there is no request in it", where=str(path), cure=_cure())
    return lines


def require_model(workload: Workload, lines: Sequence[Line], model: Path | None) -> None:
    """Raises `LeverbenchError` where a file has text, and no model says how to read it."""
    first = next((line.number for line in lines if line.text is not None), None)
    if model is None and first is not None:
        raise LeverbenchError(
            "text needs the model's own tokenizer, and the campaign names no model",
            where=f"{workload.path}:{first}",
            cure="Set model.path to its folder, or give input_ids in place of text.",
        )


def _path(workload: Workload) -> Path:
    if workload.path is None:
        raise ValueError("a workload without a file")
    return Path(workload.path)


def _line(where: str, number: int, content: bytes) -> Line:
    def refuse(what: str, cure: str) -> NoReturn:
        raise LeverbenchError(what, where=where, cure=cure)

    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        refuse(f"not JSON ({error})", _cure())
    if not isinstance(data, dict):
        refuse("not a JSON object", _cure())
    kinds = [kind for kind in _KINDS if kind in data]
    if len(kinds) != 1:
        refuse(
            f"{' and '.join(kinds) or 'nothing'} says what the prompt is",
            f"Give one of {', '.join(_KINDS)}.",
        )
    output_tokens: Any = data.get("output_tokens")
    if not _is_number(output_tokens, 1):
        said = "is missing" if output_tokens is None else f"{output_tokens!r} is no length"
        refuse(f"output_tokens {said}", "Say how many tokens to ask for, from 1.")
    (kind,) = kinds
    value = data[kind]
    if kind == "input_ids":
        if not _is_list(value) or not all(_is_number(id, 0) for id in value):
            refuse("input_ids is no list of token ids", "Give whole numbers from 0, at least one.")
        return Line(number, None, value, output_tokens)
    if kind == "prompt":
        if not isinstance(value, str) or not value:
            refuse("prompt is no text", _cure())
        return Line(number, value, None, output_tokens)
    if not _is_list(value) or not all(map(_is_message, value)):
        refuse(
            "messages is no list of chat messages",
            'Each one is {"role": "user", "content": "text"}; other content than text is not sent.',
        )
    chat = [{"role": message["role"], "content": message["content"]} for message in value]
    return Line(number, chat, None, output_tokens)


def _is_number(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < _NUMBERS_END


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _cure() -> str:
    return f"A line is one JSON object, such as {_EXAMPLE}."
