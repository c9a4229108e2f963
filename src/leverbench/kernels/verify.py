"""Verification of a built kernel: it is right at every shape, and does nothing else, or why not."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Candidate, Dimensions, Kernel

# Until torch is imported; a cold import takes minutes.
_START_LIMIT_S = 900.0
# A few calls of one case; the first may compile.
CALL_LIMIT_S = 300.0


class Rejection(StrEnum):
    """Why a kernel is rejected: of what was seen, the most specific, in this order."""

    NO_REFERENCE = "no-reference"
    WRITES_OUT_OF_BOUNDS = "writes-out-of-bounds"
    READS_OUT_OF_BOUNDS = "reads-out-of-bounds"
    CHANGES_INPUT = "changes-input"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    RAISED = "raised"
    READS_OUTPUT = "reads-output"
    WRITES_PART = "writes-part"
    WRITES_NOTHING = "writes-nothing"
    STALE = "stale"
    NOT_DETERMINISTIC = "not-deterministic"
    NOT_A_NUMBER = "not-a-number"
    ZEROS_ONLY = "zeros-only"
    WRONG_SHAPE = "wrong-shape"
    WRONG = "wrong"


MEANINGS: Mapping[Rejection, str] = {
    Rejection.NO_REFERENCE: "kernel.py gives no inputs, or no reference to judge by",
    Rejection.WRITES_OUT_OF_BOUNDS: "it changes memory outside of its outputs",
    Rejection.READS_OUT_OF_BOUNDS: "it reads memory outside of its inputs",
    Rejection.CHANGES_INPUT: "it changes an input",
    Rejection.TIMED_OUT: "it does not come to an end",
    Rejection.CRASHED: "it ends the process",
    Rejection.RAISED: "it raises an error",
    Rejection.READS_OUTPUT: "its results depend on what the outputs held before",
    Rejection.WRITES_PART: "it leaves elements of its outputs unwritten",
    Rejection.WRITES_NOTHING: "it writes no output at all",
    Rejection.STALE: "it returns the result of an earlier call",
    Rejection.NOT_DETERMINISTIC: "called again with the same inputs, it gives another result",
    Rejection.NOT_A_NUMBER: "it gives NaN where the reference does not",
    Rejection.ZEROS_ONLY: "it is right where all inputs are zero, and nowhere else",
    Rejection.WRONG_SHAPE: "it is right at some dimensions and wrong at others",
    Rejection.WRONG: "its results are not within tolerance of the reference",
}

# The death of the process, by the phase in flight.
_DEATHS = {
    "load": Rejection.CRASHED,
    "inputs": Rejection.NO_REFERENCE,
    "reference": Rejection.NO_REFERENCE,
    "call": Rejection.CRASHED,
    "unaligned": Rejection.CRASHED,
    "inputs-guarded": Rejection.READS_OUT_OF_BOUNDS,
    "outputs-guarded": Rejection.WRITES_OUT_OF_BOUNDS,
}
_PHASES = {
    "load": "when it was loaded",
    "inputs": "in make_inputs or make_outputs",
    "reference": "in reference",
    "call": "in a call",
    "unaligned": "in a call with tensors that are aligned to their elements alone",
    "inputs-guarded": "in a call with nothing readable beyond the {side} of the inputs",
    "outputs-guarded": "in a call with nothing writable beyond the {side} of the outputs",
}

# No kernel does this to itself; the machine does, when memory runs out.
_ENDED_BY_OTHERS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """What was seen of a kernel in a few calls with the same inputs.

    Attributes:
        dimensions: Of the call.
        config: A value of each parameter.
        data: ``random``, ``other`` (random, at the same addresses), ``zeros`` (each floating
            input), ``large`` (times 8), ``small`` (divided by 8), or where the tensors lay.
        seed: Of the inputs.
        faults: A detail for each `Rejection` seen; empty where all is right.
        largest_error: The largest ``|result - reference|``; None where it is not finite.
    """

    dimensions: Dimensions
    config: Candidate
    data: str
    seed: int
    faults: Mapping[str, str]
    largest_error: float | None


def verify(
    kernel: Kernel,
    code: Path,
    configs: Sequence[Candidate],
    settings: EngineSettings,
    device: str,
    *,
    seed: int | None = None,
    call_limit_s: float = CALL_LIMIT_S,
) -> dict[str, Any]:
    """Calls a kernel in the engine's interpreter and returns the body of its record.

    Each config is tried at the dimensions of each shape and size and at the kernel's odd shapes:
    a server may give any call the config that was chosen for the nearest size.

    Args:
        kernel: As the campaign asks for it.
        code: Folder with what was built.
        configs: To try beside the default.
        settings: The engine's, for its interpreter and environment.
        device: ``cpu`` or ``cuda``.
        seed: Of an earlier record, to see the same inputs again; None for fresh ones.
        call_limit_s: Longest time without a sign of life once the kernel is loaded.

    Returns:
        ``{"kind", "kernel", "device", "outcome": "verified" or "rejected", "rejection", "detail",
        "also": other rejections seen, "tolerance", "configs", "seed", "cases"}``.

    Raises:
        LeverbenchError: The interpreter cannot try it, or there is nothing to try it at.
    """
    calls = [dict(call) for shape in kernel.shapes for call in kernel.calls(shape)]
    if not calls:
        raise LeverbenchError(
            "there are no sizes to verify the kernel at",
            where=str(kernel.folder),
            cure="Name sizes: in kernel.yaml.",
        )
    seed = int.from_bytes(os.urandom(6), "little") if seed is None else seed
    tried = [dict(kernel.default)]
    tried += [dict(config) for config in configs if config != kernel.default]
    question = {
        "code": str(code.resolve()),
        "calls": calls,
        "configs": tried,
        "tolerance": asdict(kernel.tolerance),
        "device": device,
        "guard_pages": device == "cpu",
        "seed": seed,
    }
    return {
        "kind": "kernel-verification",
        "kernel": kernel.name,
        "device": device,
        "tolerance": question["tolerance"],
        "configs": tried,
        "seed": seed,
        **verdict(_answer(question, settings, call_limit_s)),
    }


def require_verified(kernel: Kernel, body: Mapping[str, Any], kept: Path) -> None:
    """Raises `LeverbenchError` for a kernel that was rejected, whose cases are kept.

    Args:
        kernel: The kernel.
        body: What `verify` returned.
        kept: Where a rejection is written: the job that fails leaves nothing else.
    """
    if body["rejection"] is None:
        return
    records.write_record(kept, body)
    rejection = Rejection(body["rejection"])
    raise LeverbenchError(
        f"the kernel {kernel.name} is rejected: {rejection}: {MEANINGS[rejection]}."
        f" {body['detail']}",
        where=str(kernel.folder),
        cure=f"Correct it, and run again. All cases that were tried are in {kept}",
    )


def verdict(lines: Iterable[Line]) -> dict[str, Any]:
    """Returns the outcome, by the lines of `verify_script.py`."""
    cases: list[Case] = []
    end: Rejection | None = None
    detail: str | None = None
    phase: Line = {}
    for line in lines:
        if "phase" in line:
            phase = line
        elif "case" in line:
            cases.append(Case(**line["case"]))
        elif line["end"] is not None:
            end = Rejection(line["end"])
            detail = f"{line['detail']}{_where(phase)}"
    reasons = decide(cases, end)
    rejection = reasons[0] if reasons else None
    if rejection is not None and rejection != end:
        detail = _detail(cases, rejection)
    return {
        "outcome": "rejected" if reasons else "verified",
        "rejection": rejection,
        "detail": detail,
        "also": reasons[1:],
        "cases": [asdict(case) for case in cases],
    }


def decide(cases: Sequence[Case], end: Rejection | None = None) -> list[Rejection]:
    """Returns why a kernel is rejected, the most specific reason first; empty if it is right.

    Args:
        cases: What was seen.
        end: Why no more cases could be tried, or None.
    """
    seen = {Rejection(fault) for case in cases for fault in case.faults}
    if end is not None:
        seen.add(end)
    if Rejection.WRONG in seen:
        right = [case for case in cases if not case.faults]
        zeros = [case for case in cases if case.data == "zeros"]
        if zeros and right == zeros:
            seen.add(Rejection.ZEROS_ONLY)
        faulty = [case.dimensions for case in cases if case.faults]
        if any(case.dimensions not in faulty for case in cases):
            seen.add(Rejection.WRONG_SHAPE)
    return [rejection for rejection in Rejection if rejection in seen]


def _detail(cases: Sequence[Case], rejection: Rejection) -> str:
    """Returns what was seen first of a rejection, or of the wrong result that it explains."""
    for fault in (rejection, Rejection.WRONG):
        for case in cases:
            if fault in case.faults:
                return f"{case.faults[fault]}{_where(asdict(case))}"
    raise KeyError(rejection)


def _where(line: Line) -> str:
    """Returns the dimensions, config and inputs that a line names, in brackets."""
    words = [f"{key}={value}" for key, value in line.get("dimensions", {}).items()]
    words += [f"{key}={value}" for key, value in line.get("config", {}).items()]
    if "data" in line:
        words.append(f"data {line['data']}")
    if "seed" in line:
        words.append(f"seed {line['seed']}")
    return f" ({', '.join(words)})" if words else ""


def _answer(
    question: Mapping[str, Any], settings: EngineSettings, call_limit_s: float
) -> Iterator[Line]:
    """Yields the lines of the script; a death or a hang is told by a last line like its own."""
    command = [*settings.wrapper, settings.python or sys.executable]
    # As text, since a container does not see this file.
    script = Path(__file__).with_name("verify_script.py").read_text(encoding="utf-8")
    phase: Line | None = None
    with tempfile.TemporaryFile() as messages:
        try:
            process = subprocess.Popen(
                [*command, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                env={**os.environ, **settings.env},
                start_new_session=True,
            )
        except OSError as error:
            raise _not_tried(command, str(error)) from None
        try:
            for line in _lines(process, json.dumps(question), call_limit_s):
                if "failed" in line:
                    raise _not_tried(command, line["failed"])
                yield line
                if "end" in line:
                    return
                phase = line if "phase" in line else phase
            died, hangs = _death(process.wait(call_limit_s)), False
        except (TimeoutError, subprocess.TimeoutExpired):
            died, hangs = "no sign of life", True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            # Closes the pipes, and waits.
            process.__exit__(None, None, None)
        messages.seek(0)
        said = messages.read().decode(errors="replace").strip().splitlines()[-1:]
    if phase is None:
        raise _not_tried(command, said[0] if said else died)
    if died in _ENDED_BY_OTHERS:
        raise _not_tried(command, f"it was ended by {died}")
    reason = _DEATHS[phase["phase"]]
    if hangs:
        died += f" for {call_limit_s:g} s"
        reason = reason if reason == Rejection.NO_REFERENCE else Rejection.TIMED_OUT
    at = _PHASES[phase["phase"]].format(side=phase.get("side"))
    yield {"end": reason, "detail": ": ".join([f"{died} {at}", *said])}


def _lines(process: subprocess.Popen[bytes], question: str, call_limit_s: float) -> Iterator[Line]:
    """Asks, and yields the answer's lines as they come; `TimeoutError` when none does."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("it has no pipes")
    # One that has ended takes no question; its exit tells more.
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(question.encode())
    pending, limit_s = b"", _START_LIMIT_S
    while select.select([process.stdout], [], [], limit_s)[0]:
        received = os.read(process.stdout.fileno(), 1 << 16)
        if not received:
            return
        *whole, pending = (pending + received).split(b"\n")
        for text in whole:
            # A wrapper may print lines of its own before.
            if text.startswith(b"{"):
                limit_s = call_limit_s
                yield json.loads(text)
    raise TimeoutError


def _death(returncode: int) -> str:
    """Names the end of a process; a wrapper tells its child's signal as 128 and its number."""
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit status {returncode}"


def _not_tried(command: Sequence[str], problem: str) -> LeverbenchError:
    return LeverbenchError(
        f"the engine's interpreter cannot try the kernel: {problem}",
        where=" ".join(command),
        cure="It needs memory, torch and, for a GPU, a build of torch that sees the GPU.",
    )
