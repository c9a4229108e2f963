"""Questions to an engine's interpreter, which may be another one than ours."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache

_TIMEOUT_S = 120

Facts = dict[str, str | None]


@cache
def facts_of(
    function: Callable[..., Facts], python: str | None, wrapper: tuple[str, ...], *arguments: str
) -> Facts | None:
    """Returns what a function returns in an engine's interpreter, asked once a process.

    Args:
        function: It stands at the top of its module, and imports all that it needs itself.
        python: The interpreter; None is ours.
        wrapper: What stands before it.
        arguments: The function's.

    Returns:
        None where the interpreter does not run: that is said where the engine is asked for.
    """
    if python is None and not wrapper:
        return function(*arguments)
    call = f"{function.__name__}{arguments!r}"
    source = f"{inspect.getsource(function)}\nimport json\nprint(json.dumps({call}))"
    try:
        done = subprocess.run(
            [*wrapper, python or sys.executable, "-c", source],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        found: Facts = json.loads(done.stdout.splitlines()[-1])
        return found
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
