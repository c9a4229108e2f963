"""YAML documents whose values remember their line, for errors that name it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    return Document(str(path), data, lines)


def key_text(key: object) -> str:
    """Returns a key as text: ``1``, ``1.0`` and ``0x1`` are one key to YAML."""
    return str(int(key) if isinstance(key, float) and key.is_integer() else key)


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
        here = (*at, key_text(loader.construct_object(key, deep=True)))
        line = key.start_mark.line + 1
        if here in lines:
            raise LeverbenchError(
                f"the key {key.value!r} stands twice (first in line {lines[here]})",
                where=f"{path}:{line}",
                cure="Keep one: YAML would silently take the last.",
            )
        lines[here] = line
        _note_lines(loader, value, here, lines, path)
