"""The engine's own word on a command line, asked once and kept."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines import EngineIdentity, get_engine
from leverbench.errors import LeverbenchError

# Relative to the project directory, like everything that a run keeps.
CACHE = Path("state/arguments")


@cache
def _identify(name: str, python: str | None, wrapper: tuple[str, ...]) -> EngineIdentity:
    return get_engine(name).identify(EngineSettings(name, None, python, wrapper, {}, {}))


def identify(settings: EngineSettings) -> EngineIdentity:
    """Returns the installed engine; asked once a process, since it starts an interpreter."""
    return _identify(settings.name, settings.python, settings.wrapper)


def parsed_arguments(settings: EngineSettings) -> dict[str, Any]:
    """Returns each argument's ``[field, value]`` as the installed engine parses it.

    Raises:
        LeverbenchError: The engine refuses an argument, or is not installed.
    """
    (answer,) = check_arguments([settings])
    if isinstance(answer, LeverbenchError):
        raise answer
    return answer


def check_arguments(several: Sequence[EngineSettings]) -> list[dict[str, Any] | LeverbenchError]:
    """Returns what the installed engines say of several servers' arguments.

    What an engine accepted is kept, by its digest and the settings: its parser's import takes
    seconds, and is paid once for all servers of one interpreter.

    Raises:
        LeverbenchError: An engine is not installed, or does not import.
    """
    answers: dict[int, dict[str, Any] | LeverbenchError] = {}
    open_questions: dict[tuple[Any, ...], list[int]] = {}
    for index, settings in enumerate(several):
        # What is damaged is asked again: it is only a memory.
        with suppress(LeverbenchError, KeyError):
            answers[index] = records.read_record(_kept(settings))["fields"]
        if index not in answers:
            interpreter = (settings.name, settings.python, settings.wrapper)
            open_questions.setdefault(interpreter, []).append(index)
    for indices in open_questions.values():
        asked = [several[index] for index in indices]
        said = get_engine(asked[0].name).check_arguments(asked, identify(asked[0]))
        for index, answer in zip(indices, said, strict=True):
            answers[index] = answer
            if not isinstance(answer, LeverbenchError):
                record = {"kind": "arguments", "fields": answer}
                records.write_record(_kept(several[index]), record)
    return [answers[index] for index in range(len(several))]


def _kept(settings: EngineSettings) -> Path:
    key = [identify(settings).digest, dict(settings.args), dict(settings.env)]
    return CACHE / f"{records.digest(key)[:16]}.json"
