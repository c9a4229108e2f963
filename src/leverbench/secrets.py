"""What of an environment or a command line may be written down."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
# Engines count tokens and have tokenizers: their arguments and fields stay readable.
_SECRET_ARGUMENT = re.compile(r"KEY|TOKEN(?!S|IZ)|SECRET|PASSWORD", re.IGNORECASE)
# Shorter values are words and numbers that stand in every record.
_MIN_SECRET_CHARACTERS = 8
# Libraries that every engine stands on read these.
_RECORDED = ("NCCL_", "CUDA_", "TRITON_", "OMP_", "PYTHONPATH")


def recorded_environment(
    environment: Mapping[str, str], own: Mapping[str, str], prefix: str
) -> dict[str, str]:
    """Returns the variables that matter to a measurement, secrets masked.

    Args:
        environment: The whole environment of a process.
        own: The variables that the campaign sets.
        prefix: What the names of the engine's own variables begin with.
    """
    return {
        key: MASK if _SECRET.search(key) else value
        for key, value in sorted(environment.items())
        if key in own or key.startswith((prefix, *_RECORDED))
    }


def is_secret_setting(key: str) -> bool:
    """Returns whether ``args.NAME`` or ``env.NAME`` holds a secret by its name."""
    group, _, name = key.partition(".")
    return bool((_SECRET if group == "env" else _SECRET_ARGUMENT).search(name))


def masked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an engine's effective arguments, the values of secret ones masked."""
    return {
        name: MASK if value is not None and _SECRET_ARGUMENT.search(name) else value
        for name, value in fields.items()
    }


def masked(argv: Sequence[str]) -> list[str]:
    """Returns a command line in which the values of secret flags are masked."""
    shown: list[str] = []
    secret = False
    for word in argv:
        # The last "=", since a wrapper may be given --env=NAME=VALUE.
        flag, equals, _ = word.rpartition("=") if "=" in word else (word, "", "")
        named = bool(_SECRET_ARGUMENT.search(flag)) and (bool(equals) or word.startswith("-"))
        if secret and not word.startswith("-"):
            shown.append(MASK)
        elif named and equals:
            shown.append(f"{flag}={MASK}")
        else:
            shown.append(word)
        secret = named and not equals
    return shown


def redacted(value: Any) -> Any:
    """Returns a JSON-able value in whose texts the secrets of this environment are masked.

    Other programs' messages are copied into records: what they say is not ours to trust.
    """
    secrets = [
        text
        for name, text in os.environ.items()
        if _SECRET.search(name) and len(text) >= _MIN_SECRET_CHARACTERS
    ]
    # The longest first: one secret may hold another.
    return _without(value, sorted(secrets, key=len, reverse=True)) if secrets else value


def _without(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, Mapping):
        return {_without(key, secrets): _without(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(item, secrets) for item in value]
    return value
