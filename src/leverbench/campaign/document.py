"""YAML documents whose values remember their line, for errors that name it."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from leverbench.errors import LeverbenchError


@dataclass(frozen=True)
class Document:
    """A parsed YAML file.

    Attributes:
        path: The file, as the user named it.
        data: The document's content.
        lines: The 1-based line of each key, by its path from the root.
    """

    path: str
    data: Any
    lines: dict[tuple[str, ...], int]

    def where(self, keys: tuple[str | int, ...] = ()) -> str:
        """Returns ``file:line`` of a key, or of its nearest ancestor that has a line."""
        path = tuple(str(key) for key in keys)
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines[path]}" if path else self.path


def read_document(path: Path) -> Document:
    """Reads a YAML file.

    Raises:
        LeverbenchError: The file is missing, not UTF-8, not YAML, or says a key twice.
    """
    try:
        if path.exists() and not path.is_file():
            raise LeverbenchError("not a file", where=str(path), cure="Name a YAML file.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LeverbenchError(
            "there is no such campaign file",
            where=str(path),
            cure="Name one with --config campaign=FILE; config/campaign.yaml is the default.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LeverbenchError(f"unreadable ({error})", where=str(path)) from None
    lines: dict[tuple[str, ...], int] = {}
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _note_lines(loader, root, (), lines, str(path))
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        line = f":{mark.line + 1}" if mark else ""
        problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
        raise LeverbenchError(f"not YAML: {problem}", where=f"{path}{line}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # A tag whose value is not of its kind, or a structure that holds itself.
        raise LeverbenchError(f"not plain YAML: {error}", where=str(path)) from None
    document = Document(str(path), data, lines)
    return replace(document, data=_normal(document, data))


def _key_text(key: object) -> str:
    """Returns a key as text: ``1``, ``1.0`` and ``0x1`` are one key to YAML."""
    return str(int(key) if isinstance(key, float) and key.is_integer() else key)


def _normal(document: Document, value: Any, at: tuple[str, ...] = ()) -> Any:
    """Makes keys text, and whole numbers integers, except among an engine's settings.

    YAML reads 1 and 1.0 as numbers; names and the ladder's keys are text, counts are whole.

    Raises:
        LeverbenchError: Something that no record can hold, such as a date or a NaN.
    """

    def refuse(what: str) -> NoReturn:
        raise LeverbenchError(
            f"{'.'.join(at)}: {what}",
            where=document.where(at),
            cure="Text, finite numbers, true, false, null, lists and mappings can be recorded.",
        )

    if isinstance(value, dict):
        texts = {_key_text(key): item for key, item in value.items()}
        return {text: _normal(document, item, (*at, text)) for text, item in texts.items()}
    if isinstance(value, list):
        return [_normal(document, item, (*at, str(n))) for n, item in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            refuse(f"{value} is no finite number")
        return int(value) if value.is_integer() and not _is_setting(at) else value
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            refuse("a character that no command line can hold")
        return value
    if value is None or isinstance(value, (bool, int)):
        return value
    refuse(f"a {type(value).__name__} cannot be recorded; quote it to make it text")


def _is_setting(at: tuple[str, ...]) -> bool:
    """Whether a path leads into an engine's settings, whatever the variants are called."""
    named = at[:1] in (("variants",), ("workloads",))
    keys = at[2:] if named else at
    return not {"args", "env", "sweep"}.isdisjoint(keys)


def _note_lines(
    loader: yaml.SafeLoader,
    node: yaml.Node,
    at: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    path: str,
) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, str(index))] = item.start_mark.line + 1
            _note_lines(loader, item, (*at, str(index)), lines, path)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*at, _key_text(loader.construct_object(key, deep=True)))
        line = key.start_mark.line + 1
        if here in lines:
            raise LeverbenchError(
                f"the key {key.value!r} stands twice (first in line {lines[here]})",
                where=f"{path}:{line}",
                cure="Keep one: YAML would silently take the last.",
            )
        lines[here] = line
        _note_lines(loader, value, here, lines, path)
