"""The journal of a search: what was measured is on disk, and is not measured again."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Candidate, Dimensions
from leverbench.records import append_line, digest
from leverbench.serving.failures import now
from leverbench.tuning.invalid import Invalid, InvalidCandidate


@dataclass(frozen=True)
class Step:
    """One thing that is measured at a time, and lost when the process is killed meanwhile.

    Attributes:
        call: Dimensions of the call.
        candidate: Which one.
        name: ``compile-sm_120``, ``rung-0``, ``rung-1``, ... or ``race``.
    """

    call: Dimensions
    candidate: Candidate
    name: str

    @property
    def fields(self) -> dict[str, Any]:
        """Its part of a line, which also tells it from all others."""
        return {"call": dict(self.call), "candidate": dict(self.candidate), "step": self.name}


# A line has one of them.
_RESULTS = {"samples_s", "incumbent_s", "compiled", "invalid"}


class Journal:
    """A file of JSON lines that only grows: a header, then a line for each step that is done.

    A line that a kill tore is cut off. A journal with another header, such as that of another
    machine, is set aside, and a fresh one begun. Several threads may do different steps.

    Args:
        path: The file; need not exist.
        header: Names all that what is measured depends on, but for the steps.

    Raises:
        LeverbenchError: The file is damaged.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        lines = _whole_lines(path)
        first = {"kind": "header", **header}
        if lines and lines[0] != first:
            aside = path.with_name(f"{path.stem}.{digest(lines[0])[:8]}{path.suffix}")
            path.replace(aside)
            print(
                f"leverbench: {path} was measured otherwise"
                f" ({', '.join(_differing(lines[0], first))}): it is kept as {aside.name}",
                file=sys.stderr,
                flush=True,
            )
            lines = []
        if not lines:
            append_line(path, first)
        self._done = {_key(line): line for line in lines[1:]}

    def do(self, step: Step, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Returns what was measured in a step, now or earlier.

        Args:
            step: Which one.
            measure: Returns fields for its line; what it raises but `InvalidCandidate` is no
                result, and leaves no line.

        Raises:
            InvalidCandidate: The step's result, now or earlier.
        """
        line = self._done.get(_key(step.fields))
        if line is None:
            try:
                result = dict(measure())
            except InvalidCandidate as problem:
                result = {"invalid": problem.reason, "detail": problem.detail}
            line = {**step.fields, "at": now(), **result}
            append_line(self._path, line)
        if "invalid" in line:
            raise InvalidCandidate(Invalid(line["invalid"]), line["detail"])
        return line


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Returns a journal's lines, and cuts off a torn last one: the next would be added to it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LeverbenchError(
            f"unreadable ({error.strerror})", where=str(path), cure="Move what is there away."
        ) from None
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    try:
        lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        for place, line in enumerate(lines):
            _ = _key(line) if place else line["kind"]
            if place and not _RESULTS & line.keys():
                raise KeyError("no result")
    except (ValueError, TypeError, KeyError) as error:
        raise LeverbenchError(
            f"the journal is damaged ({error!r})",
            where=str(path),
            cure="Move it away and run again: all of it is measured anew.",
        ) from None
    return lines


def _key(line: Mapping[str, Any]) -> str:
    return json.dumps([line["call"], line["candidate"], line["step"]], sort_keys=True)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]
