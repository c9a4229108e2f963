"""Profiles as a table: a category a line, with its share of decode."""

import re
from collections.abc import Sequence
from pathlib import Path

from leverbench.errors import LeverbenchError
from leverbench.imports.record import RecordedCategory, RecordedProfile
from leverbench.imports.tables import Line, read_lines

COLUMNS = ("profile", "category", "share_of_decode")
_OPTIONAL = ("kernel", "grid_blocks", "sm_count", "uses_tensor_cores")
# Shares are written with two digits or so: their sum may pass 1 by rounding.
_MOST = 1.01
_CONCURRENCY = re.compile(r"(?<![a-z0-9])c([1-9][0-9]*)(?![0-9])", re.IGNORECASE)


def read_profile_table(path: Path) -> list[RecordedProfile]:
    """Reads the columns of `COLUMNS` and, where there are, kernel, blocks, SMs and tensor cores.

    Returns:
        Profiles in the order of their first lines.

    Raises:
        LeverbenchError: A line is not what it should be; with the cure.
    """
    profiles: dict[str, list[RecordedCategory]] = {}
    for line in read_lines(path, COLUMNS, _OPTIONAL):
        entries = profiles.setdefault(line.need("profile"), [])
        entry = _entry(line)
        if entry.category in [other.category for other in entries]:
            raise LeverbenchError(
                f"a second {entry.category} in profile {line.need('profile')}",
                where=line.where,
                cure="Add the two up in one line.",
            )
        entries.append(entry)
        if sum(other.share for other in entries) > _MOST:
            raise LeverbenchError(
                f"the shares of profile {line.need('profile')} add up to more than 1",
                where=line.where,
                cure="A share is a part of all decode time; what is inside another is not counted.",
            )
    return [
        RecordedProfile(
            name=name,
            concurrency=int(found[1]) if (found := _CONCURRENCY.search(name)) else None,
            entries=tuple(sorted(entries, key=lambda entry: -entry.share)),
        )
        for name, entries in profiles.items()
    ]


def _entry(line: Line) -> RecordedCategory:
    line.need("share_of_decode")
    share = line.number("share_of_decode")
    if share is None or share > 1:
        raise LeverbenchError(
            f"a share of {line.text('share_of_decode')}",
            where=line.where,
            cure="Write it as a part of 1: 0.39 for 39%.",
        )
    return RecordedCategory(
        category=line.need("category"),
        share=share,
        kernel=line.text("kernel"),
        blocks=line.whole("grid_blocks"),
        sm_count=line.whole("sm_count"),
        tensor_cores=line.flag("uses_tensor_cores"),
    )


def is_profile_table(columns: Sequence[str]) -> bool:
    """Returns whether a table with these columns holds profiles."""
    return set(COLUMNS) <= set(columns)
