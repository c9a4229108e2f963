"""The engines: the only place that knows how a serving engine is started, asked and stopped."""

from leverbench.engines.base import Address, AppliedLever, Engine, EngineIdentity, NoAnswer
from leverbench.engines.sglang import SGLang

_ENGINES: dict[str, Engine] = {"sglang": SGLang()}


def get_engine(name: str) -> Engine:
    """Returns the implementation of an engine that the schema allows."""
    return _ENGINES[name]


__all__ = ["Address", "AppliedLever", "Engine", "EngineIdentity", "NoAnswer", "get_engine"]
