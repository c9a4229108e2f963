"""Prompts: the requests of a dataset file as token ids, made once."""

import io
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leverbench.campaign.model import FILE, Engine, Workload
from leverbench.campaign.slices import Launch
from leverbench.errors import LeverbenchError
from leverbench.load.dataset import Line, read_lines, require_lines, require_model
from leverbench.load.endpoint import Request
from leverbench.load.fit import require_room
from leverbench.models.files import model_facts, vocabulary_size
from leverbench.models.tokenizer import TextRefusedError, token_ids
from leverbench.records import digest, write_bytes

# Token ids of files that were read before; relative to the project directory.
CACHE = Path("state/datasets")


@dataclass(frozen=True)
class Prompts:
    """The requests of a file, in its order.

    Attributes:
        ids: The token ids of all prompts, one prompt after the other.
        ends: For each request, where its prompt ends in ``ids``.
        output_tokens: For each request, how many tokens are asked for.
        lines: For each request, its line in the file, from 1.
    """

    ids: NDArray[np.int64]
    ends: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        """Returns the number of requests."""
        return len(self.ends)

    def request(self, place: int, index: int) -> Request:
        """Returns the request at a place of the file, as one of a window."""
        start = int(self.ends[place - 1]) if place else 0
        prompt = self.ids[start : int(self.ends[place])].tolist()
        return Request(index, tuple(prompt), int(self.output_tokens[place]))

    def longest(self) -> tuple[int, int]:
        """Returns the tokens of the longest request, prompt and answer, and its line."""
        tokens = np.diff(self.ends, prepend=0) + self.output_tokens
        place = int(tokens.argmax())
        return int(tokens[place]), int(self.lines[place])


def load_prompts(workload: Workload, model: Path | None, settings: Engine) -> Prompts:
    """Returns the requests of a workload's file as token ids.

    They are kept by the digests of file and model, so that text is turned into token ids once, for
    all variants.

    Args:
        workload: One that is read from a file.
        model: Folder of the model; None where a server is attached and none is named.
        settings: The engine's, for its interpreter.

    Raises:
        LeverbenchError: A line is no request, or the model cannot take it.
    """
    key = digest([workload.content, model_facts(model).digest if model else None])
    kept = CACHE / f"{key[:16]}.npz"
    # What is damaged is made again: it is only a memory.
    with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
        arrays = np.load(io.BytesIO(kept.read_bytes()))
        return Prompts(**{name: arrays[name] for name in _arrays()})
    lines = read_lines(workload)
    prompts = _with_ids(workload, lines, _token_ids(workload, lines, model, settings))
    if model:
        _require_known_ids(workload, prompts, vocabulary_size(model))
    buffer = io.BytesIO()
    np.savez(buffer, **{name: getattr(prompts, name) for name in _arrays()})
    write_bytes(kept, buffer.getvalue())
    return prompts


def prompts_for(launch: Launch, name: str, workload: Workload, requests: int) -> Prompts | None:
    """Returns the prompts of a workload that is read from a file, checked for a server.

    Args:
        launch: The launch slice.
        name: Name of the workload.
        workload: Any workload; of random ids the lengths are checked, and None is returned.
        requests: How many a window needs at least.

    Raises:
        LeverbenchError: Too few lines, a line that is no request, or a request that is too long.
    """
    model = Path(launch.model_path) if launch.model_path else None
    if workload.dataset != FILE:
        where = f"workloads.{name}"
        require_room(launch.engine, launch.variant, model, workload.longest, where)
        return None
    prompts = load_prompts(workload, model, launch.engine)
    require_lines(workload, len(prompts), requests)
    tokens, line = prompts.longest()
    require_room(launch.engine, launch.variant, model, tokens, f"{workload.path}:{line}")
    return prompts


def _arrays() -> list[str]:
    return [field.name for field in fields(Prompts)]


def _token_ids(
    workload: Workload, lines: Sequence[Line], model: Path | None, settings: Engine
) -> list[Sequence[int]]:
    texts = [line for line in lines if line.text is not None]
    made: dict[int, Sequence[int]] = {}
    require_model(workload, lines, model)
    if texts and model:
        try:
            found = token_ids(model, [line.text for line in texts if line.text], settings)
        except TextRefusedError as refused:
            raise LeverbenchError(
                f"the model's tokenizer does not take it ({refused.problem})",
                where=f"{workload.path}:{texts[refused.place].number}",
                cure="Correct or remove the line.",
            ) from None
        made = {line.number: ids for line, ids in zip(texts, found, strict=True)}
    return [made[line.number] if line.text else line.input_ids or () for line in lines]


def _with_ids(
    workload: Workload, lines: Sequence[Line], inputs: Sequence[Sequence[int]]
) -> Prompts:
    for line, ids in zip(lines, inputs, strict=True):
        if not ids:
            raise LeverbenchError(
                "its prompt has no tokens",
                where=f"{workload.path}:{line.number}",
                cure="Correct or remove the line.",
            )
    return Prompts(
        ids=np.array([id for ids in inputs for id in ids], dtype=np.int64),
        ends=np.cumsum([len(ids) for ids in inputs], dtype=np.int64),
        output_tokens=np.array([line.output_tokens for line in lines], dtype=np.int64),
        lines=np.array([line.number for line in lines], dtype=np.int64),
    )


def _require_known_ids(workload: Workload, prompts: Prompts, size: int) -> None:
    unknown = np.flatnonzero(prompts.ids >= size)
    if len(unknown):
        place = int(np.searchsorted(prompts.ends, unknown[0], side="right"))
        raise LeverbenchError(
            f"the model has no token id {prompts.ids[unknown[0]]}",
            where=f"{workload.path}:{prompts.lines[place]}",
            cure=f"Its ids are 0 to {size - 1}.",
        )
