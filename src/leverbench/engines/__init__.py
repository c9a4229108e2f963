"""The engines: the only place that knows how a serving engine is started, asked and stopped."""

from collections.abc import Iterable, Mapping

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines.base import (
    Address,
    Answer,
    Api,
    AppliedLever,
    Engine,
    EngineIdentity,
    FileProof,
    NoAnswer,
    TunedFiles,
    Unread,
)
from leverbench.engines.openai import OpenAICompatible
from leverbench.engines.sglang import SGLang

_ENGINES: dict[str, Engine] = {"sglang": SGLang()}
_OPENAI_COMPATIBLE = OpenAICompatible()

ENGINES = tuple(_ENGINES)


def get_engine(name: str) -> Engine:
    """Returns the implementation of an engine that the schema allows."""
    return _ENGINES[name]


def step_marks(annotations: Iterable[str]) -> Mapping[str, bool]:
    """Returns the marks of steps in a trace of whichever engine it is: see `Engine.step_marks`."""
    names = list(annotations)
    return next(filter(None, (one.step_marks(names) for one in _ENGINES.values())), {})


def api_of(settings: EngineSettings) -> Api:
    """Returns how a server of these settings is talked to: the engine's own way, or OpenAI's."""
    if settings.attach and settings.attach.api == "openai":
        return _OPENAI_COMPATIBLE
    return get_engine(settings.name)


__all__ = [
    "ENGINES",
    "Address",
    "Answer",
    "Api",
    "AppliedLever",
    "Engine",
    "EngineIdentity",
    "FileProof",
    "NoAnswer",
    "TunedFiles",
    "Unread",
    "api_of",
    "get_engine",
    "step_marks",
]
