"""A model's files: its identity without reading its weights, and its vocabulary."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.errors import LeverbenchError

# Text files up to this size are part of the digest with their content, larger ones by size.
_READ_LIMIT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class ModelFacts:
    """What a measurement needs to know of a model.

    Attributes:
        digest: SHA-256 over the names and sizes of the files, the content of the JSON and text
            files, and the headers (not the tensors) of safetensors files.
        vocabulary: The token ids that ordinary text can hold: no special ones.
    """

    digest: str
    vocabulary: tuple[int, ...]


def model_facts(path: Path, token_ids: tuple[int, int] | None = None) -> ModelFacts:
    """Reads a model's folder.

    Args:
        path: The folder.
        token_ids: First and last id of the vocabulary, where the campaign narrows it.

    Raises:
        LeverbenchError: There is no folder, or no readable ``config.json`` in it, or nothing of
            the vocabulary is left.
    """
    size = vocabulary_size(path)
    special = _special_ids(path / "tokenizer.json")
    first, last = token_ids or (0, size - 1)
    ids = tuple(id for id in range(first, min(last + 1, size)) if id not in special)
    if token_ids and not ids:
        raise LeverbenchError(
            f"none of the token ids {first} to {last} is an ordinary one of this model",
            where=str(path),
            cure=f"It has {size}, from 0; correct model.token_ids, or remove it.",
        )
    return ModelFacts(_digest(path), ids)


def vocabulary_size(path: Path) -> int:
    """Returns the number of token ids of a model, special ones included; errors as above."""
    try:
        config = read_config(path)
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable(path, error) from None


def read_config(path: Path) -> dict[str, Any]:
    """Returns the content of a model's ``config.json``; errors as above."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LeverbenchError(
            "there is no model here (no config.json)",
            where=str(path),
            cure=(
                "Set model.path in the campaign to the folder of the model; one that the workflow"
                " makes comes with: .venv/bin/snakemake --cores 8 models/NAME/model.json"
            ),
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(config, dict):
        raise _unreadable(path, TypeError("not a JSON object"))
    return config


def _unreadable(path: Path, error: Exception) -> LeverbenchError:
    return LeverbenchError(
        f"unreadable model configuration ({error!r})", where=str(path / "config.json")
    )


def _special_ids(tokenizer: Path) -> set[int]:
    if not tokenizer.exists():
        return set()
    try:
        added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens") or []
        return {int(token["id"]) for token in added}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LeverbenchError(
            f"unreadable tokenizer ({error!r})",
            where=str(tokenizer),
            cure="Fetch the model's files: a pointer of Git LFS is not the file.",
        ) from None


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(path.iterdir()):
        # The manifest tells of the making, not of the model.
        if not file.is_file() or file.name == "model.json" or file.name.startswith("."):
            continue
        size = file.stat().st_size
        total.update(f"{file.name} {size}\n".encode())
        if file.suffix == ".safetensors":
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                total.update(stream.read(min(length, _READ_LIMIT_BYTES)))
        elif file.suffix in (".json", ".txt", ".jinja", ".model") and size <= _READ_LIMIT_BYTES:
            total.update(file.read_bytes())
    return total.hexdigest()
