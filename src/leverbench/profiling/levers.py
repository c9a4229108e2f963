"""Which categories of a profile a lever touches."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from leverbench.errors import LeverbenchError

LEVERS = Path(__file__).with_name("levers.yaml")


def touched_categories(lever: str) -> tuple[str, ...]:
    """Returns the categories that a lever of this name touches; empty where it is not known."""
    return _table().get(lever, ())


@cache
def _table() -> Mapping[str, tuple[str, ...]]:
    try:
        table = yaml.safe_load(LEVERS.read_text(encoding="utf-8"))
        if unlisted := [lever for lever, names in table.items() if not isinstance(names, list)]:
            raise TypeError(f"{unlisted[0]} has no list")
        return {str(lever): tuple(map(str, names)) for lever, names in table.items()}
    except (
        OSError,
        yaml.YAMLError,
        AttributeError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise LeverbenchError(
            f"unusable table of levers ({error})",
            where=str(LEVERS),
            cure="Each entry is LEVER: [CATEGORY, ...].",
        ) from None
