"""The process that calls a kernel, in the engine's interpreter."""

from pathlib import Path
from typing import Protocol

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.kernels.manifest import Candidate, Dimensions, Kernel
from leverbench.tuning.interpreter import LIMIT_S, Interpreter
from leverbench.tuning.invalid import Invalid, InvalidCandidate


class Timer(Protocol):
    """What times a kernel's calls."""

    def time(
        self,
        dimensions: Dimensions,
        candidate: Candidate | None,
        samples: int,
        *,
        check: bool = False,
    ) -> list[float]:
        """Returns times of calls in seconds.

        Args:
            dimensions: Of the call.
            candidate: Which one, or None for what the kernel stands in for.
            samples: How many.
            check: Whether the result is compared with the float64 reference first.

        Raises:
            InvalidCandidate: It cannot be used.
        """
        ...


class Worker:
    """A `Timer` whose calls are made in the engine's interpreter; a context manager.

    Args:
        kernel: The kernel.
        code: Folder of what was built.
        settings: The engine's, for its interpreter.
        device: ``cpu``; anything else is the name of a GPU, of which the first visible is used.
        limit_s: How long a request may take.
    """

    def __init__(
        self,
        kernel: Kernel,
        code: Path,
        settings: EngineSettings,
        device: str,
        limit_s: float = LIMIT_S,
    ) -> None:
        setup = {
            "device": "cpu" if device == "cpu" else "cuda",
            "tolerance": [kernel.tolerance.absolute, kernel.tolerance.relative],
        }
        self._interpreter = Interpreter("timing_script.py", code, setup, settings, limit_s)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._interpreter.close()

    def time(
        self,
        dimensions: Dimensions,
        candidate: Candidate | None,
        samples: int,
        *,
        check: bool = False,
    ) -> list[float]:
        """Returns times of calls in seconds; see `Timer`.

        Raises:
            InvalidCandidate: It cannot be used.
            LeverbenchError: No process could be started.
        """
        config = None if candidate is None else dict(candidate)
        request = {"dimensions": dict(dimensions), "config": config}
        answer = self._interpreter.ask({**request, "samples": samples, "check": check})
        samples_s: list[float] = answer["samples_s"]
        if min(samples_s) <= 0:
            raise InvalidCandidate(Invalid.RAISED, "its calls took no time: is the clock changed?")
        return samples_s
