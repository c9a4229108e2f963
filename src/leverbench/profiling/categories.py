"""What the names of operations tell: a category, and whether tensor cores are likely at work."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from leverbench.errors import LeverbenchError

CATEGORIES = Path(__file__).with_name("categories.yaml")
TENSOR_CORES = Path(__file__).with_name("tensor_cores.yaml")
OTHER = "other"
# Above this share of the time, the categories say too little.
LARGE_OTHER = 0.1
# The engine's own code between operations.
HOST_CODE = "host-code"
# So many characters of a name: with some patterns the time grows with the square of them.
_LOOKED_AT = 4096
# What reading and compiling patterns can raise; the last two for too much of anything.
_UNUSABLE = (
    OSError,
    yaml.YAMLError,
    re.error,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    OverflowError,
)


@dataclass(frozen=True)
class Loop:
    """A loop that the engine's code makes around one operation, such as one call a request.

    Attributes:
        category: That its time belongs to.
        call: Finds the name of the operation.
        fence: Finds the names of operations that are never part of the loop.
    """

    category: str
    call: re.Pattern[str]
    fence: re.Pattern[str]


def category(name: str, *, annotation: bool = False) -> str:
    """Returns an operation's category: that of the first pattern that is found in its name.

    Args:
        name: The name.
        annotation: Whether it is a span that the engine's code marks: what no pattern is found in
            is that code then.
    """
    for of, pattern in _rules()[0]:
        if pattern.search(name, 0, _LOOKED_AT):
            return of
    return HOST_CODE if annotation else OTHER


def loops() -> tuple[Loop, ...]:
    """Returns the loops whose time belongs to the category of the operation in them."""
    return _rules()[1]


def tensor_cores(name: str) -> str | None:
    """Infers from a kernel's name whether it uses tensor cores.

    Only a measurement of the tensor pipe shows it; this is what the name makes likely.

    Returns:
        ``likely`` or ``none``; None where the name does not tell.
    """
    rules = _tensor_rules()
    return next((told for told, pattern in rules if pattern.search(name, 0, _LOOKED_AT)), None)


def tensor_cores_of(told: Sequence[str | None]) -> str | None:
    """Returns what several kernels have in common: ``mixed`` where they differ."""
    known = {one for one in told if one is not None}
    return known.pop() if len(known) == 1 else "mixed" if known else None


@cache
def _rules() -> tuple[tuple[tuple[str, re.Pattern[str]], ...], tuple[Loop, ...]]:
    try:
        entries = _entries(CATEGORIES, "category")
        patterns = tuple(
            (entry["category"], re.compile(pattern))
            for entry in entries
            if "loop" not in entry
            for pattern in entry["patterns"]
        )
        found = tuple(
            Loop(entry["category"], re.compile(entry["loop"]), re.compile(entry["fence"]))
            for entry in entries
            if "loop" in entry
        )
    except _UNUSABLE as error:
        raise LeverbenchError(
            f"unusable patterns ({error})",
            where=str(CATEGORIES),
            cure="Each entry has a category and its patterns, or a loop and its fence: Python"
            " regular expressions.",
        ) from None
    return patterns, found


@cache
def _tensor_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    try:
        rules = tuple(
            (entry["tensor_cores"], re.compile(pattern))
            for entry in _entries(TENSOR_CORES, "tensor_cores")
            for pattern in entry["patterns"]
        )
        if unknown := {told for told, _ in rules} - {"likely", "none"}:
            raise ValueError(f"tensor_cores: {', '.join(sorted(unknown))}")
    except _UNUSABLE as error:
        raise LeverbenchError(
            f"unusable patterns ({error})",
            where=str(TENSOR_CORES),
            cure="Each entry has tensor_cores, likely or none, and its patterns: Python regular"
            " expressions.",
        ) from None
    return rules


def _entries(path: Path, told: str) -> list[dict[str, Any]]:
    """Reads a file of patterns.

    Args:
        path: The file.
        told: The key of what an entry tells of the names that it matches.
    """
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for number, entry in enumerate(entries, start=1):
        keys = set(entry) if isinstance(entry, dict) else set()
        if keys not in ({told, "patterns"}, {told, "loop", "fence"}):
            raise ValueError(f"entry {number} has {', '.join(map(str, keys)) or 'no keys'}")
        # A text in the place of a list would be a list of letters.
        if not isinstance(entry[told], str) or not isinstance(entry.get("patterns", []), list):
            raise TypeError(f"entry {number}: {told} is a text, patterns are a list")
    return entries
