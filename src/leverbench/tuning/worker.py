"""The process that calls a kernel: in the engine's interpreter, replaced when it dies."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Candidate, Dimensions, Kernel
from leverbench.tuning.invalid import Invalid, InvalidCandidate

# Of one request; compiling a candidate is part of its first.
LIMIT_S = 120.0
# A cold import of torch takes minutes on a busy disk.
_START_LIMIT_S = 600.0
_END_LIMIT_S = 5.0
_LOOK_S = 0.5


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
    """A `Timer` whose calls are made in the engine's interpreter.

    The process starts when it is first needed, and ends with this one, however this one ends: when
    its standard input does. A context manager.

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
        self._command = [*settings.wrapper, settings.python or sys.executable]
        self._code = str(code.resolve())
        self._setup = {
            "code": self._code,
            "device": "cpu" if device == "cpu" else "cuda",
            "tolerance": [kernel.tolerance.absolute, kernel.tolerance.relative],
        }
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        # The worker's messages: a pipe would have to be emptied meanwhile.
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._messages.close()

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
        process = self._running()
        config = None if candidate is None else dict(candidate)
        request = {"dimensions": dict(dimensions), "config": config}
        try:
            answer = _ask(process, {**request, "samples": samples, "check": check}, self._limit_s)
        except TimeoutError:
            self._stop()
            detail = f"no answer within {self._limit_s:g} s"
            raise InvalidCandidate(Invalid.TIMED_OUT, detail) from None
        except ValueError as error:
            self._stop()
            detail = f"it writes among the answers of its process ({error})"
            raise InvalidCandidate(Invalid.RAISED, detail) from None
        if answer is None:
            raise InvalidCandidate(Invalid.CRASHED, self._last_words(process))
        if "ended" in answer:
            self._stop()
        if "invalid" in answer:
            raise InvalidCandidate(Invalid(answer["invalid"]), answer["detail"])
        samples_s: list[float] = answer["samples_s"]
        if min(samples_s) <= 0:
            raise InvalidCandidate(Invalid.RAISED, "its calls took no time: is the clock changed?")
        return samples_s

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        self._messages.seek(0)
        self._messages.truncate()
        # As text, since a container does not see this file.
        script = Path(__file__).with_name("timing_script.py").read_text(encoding="utf-8")
        try:
            process = self._process = subprocess.Popen(
                [*self._command, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                bufsize=0,
                start_new_session=True,  # so that what a kernel forks ends with it
            )
            if _ask(process, self._setup, _START_LIMIT_S) is not None:
                return process
            problem = self._last_words(process)
        except TimeoutError:
            problem = f"no answer within {_START_LIMIT_S:g} s"
        except OSError as error:
            problem = str(error)
        raise LeverbenchError(
            f"{' '.join(self._command)} cannot load the kernel: {problem}",
            where=self._code,
            cure="It needs torch and what kernel.py imports; see engine.python.",
        )

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        """Returns how a process ended that will answer nothing more."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT_S)
        self._stop()
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").split("\n")
        return ": ".join([how, *[line.strip() for line in said if line.strip()][-1:]])

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with process:  # closes the pipes: behind a wrapper, that is what the process sees
                pass


def _ask(
    process: subprocess.Popen[bytes], request: dict[str, Any], limit_s: float
) -> dict[str, Any] | None:
    """Returns the answer, or None where the process ends without one.

    Raises:
        TimeoutError: There is none in time.
        ValueError: It is none.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has ended: that is seen below
        process.stdin.write(json.dumps(request).encode() + b"\n")
    line, until = b"", time.monotonic() + limit_s
    while not line.endswith(b"\n"):
        # What it has forked may hold the pipe open.
        if not select.select([process.stdout], [], [], _LOOK_S)[0]:
            if process.poll() is not None:
                return None
            if time.monotonic() > until:
                raise TimeoutError
            continue
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            return None
        line += part
    answer: dict[str, Any] = json.loads(line)
    if not isinstance(answer, dict) or not {"ready", "invalid", "samples_s"} & answer.keys():
        raise ValueError(line[:80])
    return answer
