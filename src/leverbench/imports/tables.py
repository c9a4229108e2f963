"""CSV files of others, line by line, with messages that name the line."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from leverbench.errors import LeverbenchError

# What is above is no count and no figure of a server, and sums of it are none of a float.
_LARGEST = 1e12


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        where: File and line, for messages.
        cells: By column, without space at the ends; what is empty is absent.
    """

    where: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str | None:
        """Returns a cell; None where it is empty."""
        return self.cells.get(column)

    def need(self, column: str) -> str:
        """Returns a cell that must be there.

        Raises:
            LeverbenchError: It is empty.
        """
        if column not in self.cells:
            raise LeverbenchError(f"no {column}", where=self.where, cure="Fill the cell.")
        return self.cells[column]

    def number(self, column: str) -> float | None:
        """Returns a cell as a finite number of at least 0; None where it is empty.

        Raises:
            LeverbenchError: It is something else.
        """
        text = self.cells.get(column)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= _LARGEST:
            raise LeverbenchError(
                f"{column} is {text!r}",
                where=self.where,
                cure=f"Write a number from 0 to {_LARGEST:g}, without a unit, or nothing.",
            )
        return value

    def whole(self, column: str) -> int | None:
        """Returns a cell as a whole number of at least 1; None where it is empty.

        Raises:
            LeverbenchError: It is something else.
        """
        value = self.number(column)
        if value is not None and (value != int(value) or value < 1):
            raise LeverbenchError(
                f"{column} is {self.cells[column]}",
                where=self.where,
                cure="Write a whole number from 1, or leave the cell empty where it is unknown.",
            )
        return None if value is None else int(value)

    def flag(self, column: str) -> bool | None:
        """Returns a cell as true or false; None where it is empty.

        Raises:
            LeverbenchError: It is something else.
        """
        text = self.cells.get(column)
        if text is not None and text.lower() not in ("true", "false"):
            raise LeverbenchError(
                f"{column} is {text!r}",
                where=self.where,
                cure="Write true or false, or leave the cell empty where it is unknown.",
            )
        return None if text is None else text.lower() == "true"


def header(path: Path) -> list[str]:
    """Returns the columns of a table.

    Raises:
        LeverbenchError: The file is not text that can be read.
    """
    lines = read_text(path).splitlines()
    return [name.strip() for name in next(_cells(csv.reader(lines[:1]), path), [])]


def _cells(reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise LeverbenchError(
            f"no table ({error})", where=str(path), cure="Write one row a line, in short cells."
        ) from None


def read_lines(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[Line]:
    """Reads a table.

    Args:
        path: The file.
        required: Columns that it must have.
        optional: Further columns that are read. Others may be there, unless their names look like
            one of these, misspelt: what they hold would be missing in the report, unsaid.

    Raises:
        LeverbenchError: It lacks one, has no line, or a line has more cells than columns.
    """
    names = header(path)
    if missing := [name for name in required if name not in names]:
        raise LeverbenchError(
            f"no column {', '.join(missing)}",
            where=f"{path}:1",
            cure=f"The first line must name {', '.join(required)}.",
        )
    absent = [name for name in optional if name not in names]
    for name in names:
        if name not in (*required, *optional) and (
            meant := get_close_matches(name, absent, 1, 0.88)
        ):
            raise LeverbenchError(
                f"there is no column {name}",
                where=f"{path}:1",
                cure=f"Call it {meant[0]}, if that is what it holds; else give it another name.",
            )
    reader = csv.reader(read_text(path).splitlines())
    next(reader)
    lines = []
    for cells in _cells(reader, path):
        where = f"{path}:{reader.line_num}"
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(names):
            raise LeverbenchError(
                f"{len(cells)} cells under {len(names)} columns",
                where=where,
                cure='Put text that holds a comma between quotes: "a, b".',
            )
        filled = zip(names, map(str.strip, cells), strict=False)
        lines.append(Line(where, {name: cell for name, cell in filled if cell}))
    if not lines:
        raise LeverbenchError("no line below the columns", where=str(path), cure="Add the rows.")
    return lines


def read_text(path: Path) -> str:
    """Reads a text file.

    Raises:
        LeverbenchError: It cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise LeverbenchError(
            "not a text file", where=str(path), cure="Give a CSV or JSONL file in UTF-8."
        ) from None
    except OSError as error:
        raise LeverbenchError(
            f"unreadable ({error.strerror})", where=str(path), cure="Give a file that exists."
        ) from None
