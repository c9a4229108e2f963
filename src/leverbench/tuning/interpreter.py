"""A process in the engine's interpreter that answers requests, replaced when it dies."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.tuning.invalid import Invalid, InvalidCandidate

# Of one request; compiling a candidate is part of its first.
LIMIT_S = 120.0
# A cold import of torch takes minutes on a busy disk.
_START_LIMIT_S = 600.0
_END_LIMIT_S = 5.0
_LOOK_S = 0.5
# An answer has one of them.
_ANSWERS = {"ready", "invalid", "samples_s", "compiled"}


class CancelledError(Exception):
    """A request was not done, since nobody wants to know its answer any more."""


class Interpreter:
    """Runs a script of this folder, which answers a request a line.

    The process starts when it is first needed, and ends with this one, however this one ends: when
    its standard input does. One thread asks, and closes in the end; any may cancel.

    Args:
        script: Name of the script's file.
        code: Folder of what was built.
        setup: What the script is told first, with that folder.
        settings: The engine's, for its interpreter.
        limit_s: How long a request may take.
    """

    def __init__(
        self,
        script: str,
        code: Path,
        setup: Mapping[str, Any],
        settings: EngineSettings,
        limit_s: float,
    ) -> None:
        self._command = [*settings.wrapper, settings.python or sys.executable]
        self._script = Path(__file__).with_name(script)
        self._code = str(code.resolve())
        self._setup = {"code": self._code, **setup}
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        # The script's messages: a pipe would have to be emptied meanwhile.
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)

    def close(self) -> None:
        """Ends the process."""
        self._stop()
        self._messages.close()

    def cancel(self) -> None:
        """Ends the process; a request that waits for it raises `CancelledError`, as later ones.

        That a candidate was not done is nothing that is known of it.
        """
        self._cancelled = True
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request.

        Args:
            request: What the script takes.

        Raises:
            InvalidCandidate: So the script says, or its process ends or gives no answer in time.
            LeverbenchError: No process could be started.
            CancelledError: It was cancelled.
        """
        process = self._running()
        try:
            answer = _ask(process, request, self._limit_s)
        except TimeoutError:
            self._stop()
            detail = f"no answer within {self._limit_s:g} s"
            raise InvalidCandidate(Invalid.TIMED_OUT, detail) from None
        except ValueError as error:
            self._stop()
            detail = f"it writes among the answers of its process ({error})"
            raise InvalidCandidate(Invalid.RAISED, detail) from None
        if answer is None:
            words = self._last_words(process)
            if self._cancelled:
                raise CancelledError(words)
            raise InvalidCandidate(Invalid.CRASHED, words)
        if "ended" in answer:
            self._stop()
        if "invalid" in answer:
            raise InvalidCandidate(Invalid(answer["invalid"]), answer["detail"])
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        self._messages.seek(0)
        self._messages.truncate()
        # As text, since a container does not see this file.
        script = self._script.read_text(encoding="utf-8")
        try:
            process = self._process = subprocess.Popen(
                [*self._command, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                bufsize=0,
                start_new_session=True,  # so that what a kernel forks ends with it
            )
            # Whoever cancels looks for a process after this is set, and this for that.
            if self._cancelled:
                self._stop()
                raise CancelledError
            if _ask(process, self._setup, _START_LIMIT_S) is not None:
                return process
            problem = self._last_words(process)
            if self._cancelled:
                raise CancelledError(problem)
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
    process: subprocess.Popen[bytes], request: Mapping[str, Any], limit_s: float
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
    if not isinstance(answer, dict) or not _ANSWERS & answer.keys():
        raise ValueError(line[:80])
    return answer
