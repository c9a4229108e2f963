"""What of an environment or a command line may be written down."""

import re
from collections.abc import Mapping, Sequence

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_RECORDED = ("SGLANG_", "NCCL_", "CUDA_", "TRITON_", "OMP_")
MASK = "***"


def recorded_environment(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that matter to a measurement, secrets masked.

    Args:
        environment: The whole environment of a process.
        own: The variables that the campaign sets.
    """
    return {
        key: MASK if _SECRET.search(key) else value
        for key, value in sorted(environment.items())
        if key in own or key.startswith(_RECORDED) or key == "PYTHONPATH"
    }


def masked(argv: Sequence[str]) -> list[str]:
    """Returns a command line in which the values of secret flags are masked."""
    shown: list[str] = []
    for word in argv:
        flag, equals, _ = word.partition("=")
        if equals and flag.startswith("-") and _SECRET.search(flag):
            shown.append(f"{flag}={MASK}")
        elif (
            shown
            and shown[-1].startswith("--")
            and _SECRET.search(shown[-1])
            and "=" not in shown[-1]
            and not word.startswith("-")
        ):
            shown.append(MASK)
        else:
            shown.append(word)
    return shown
