"""Compiling candidates ahead of their timing: on all cores, and without a GPU.

A just-in-time compiler makes a candidate's code at its first call, one at a time, while the GPU
waits. What is compiled here is found in the compiler's own cache then, and what needs more shared
memory than a block can have is never called.
"""

import os
import queue
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import COMPILE, MODULE, Candidate, Dimensions, Kernel
from leverbench.tuning.gpu import shared_bytes_of
from leverbench.tuning.interpreter import Interpreter
from leverbench.tuning.invalid import Invalid, InvalidCandidate
from leverbench.tuning.journal import Journal, Step

# Of one candidate; the largest take half a minute on a busy core.
LIMIT_S = 300.0


@dataclass(frozen=True)
class Compiled:
    """A candidate that compiles, and whose shared memory a block can have.

    Attributes:
        shared_bytes: Shared memory of a block.
    """

    shared_bytes: int


def compile_ahead(
    kernel: Kernel,
    code: Path,
    settings: EngineSettings,
    dimensions: Dimensions,
    candidates: Sequence[Candidate],
    capability: int,
    workers: int,
    journal: Journal,
    limit_s: float = LIMIT_S,
) -> list[Compiled | InvalidCandidate]:
    """Returns what compiling each candidate comes to, in their order.

    Of candidates that differ in ``kernel.compile_shares`` alone, the first is compiled. Which
    dimensions have code in common is the compiler's to know: what it has in its cache takes
    milliseconds.

    Args:
        kernel: The kernel; its ``kernel.py`` defines ``compile``.
        code: Folder of what was built.
        settings: The engine's, for its interpreter.
        dimensions: Of the call.
        candidates: What is compiled.
        capability: Compute capability of the GPU, without the point; it need not be here.
        workers: How many processes at most; there are never more than cores.
        journal: What it holds is not compiled again; what is compiled is added as it is done.
        limit_s: How long one may take.

    Raises:
        LeverbenchError: It cannot be compiled ahead, no process could be started, or the shared
            memory of such a GPU is not known.
    """
    limit_bytes = _limit_bytes(kernel, capability)
    own = [_own(kernel, candidate) for candidate in candidates]
    distinct: dict[tuple[int, ...], Candidate] = {}
    for key, candidate in zip(own, candidates, strict=True):
        distinct.setdefault(tuple(key.values()), candidate)
    # One for each thread: an idle one starts no process.
    count = max(1, min(workers, len(os.sched_getaffinity(0)), len(distinct)))
    pool = [Interpreter("compile_script.py", code, {}, settings, limit_s) for _ in range(count)]
    idle: queue.SimpleQueue[Interpreter] = queue.SimpleQueue()
    for interpreter in pool:
        idle.put(interpreter)

    def compiled(candidate: Candidate) -> Compiled | InvalidCandidate:
        step = Step(dimensions, _own(kernel, candidate), f"compile-sm_{capability}")
        request = {"dimensions": dict(dimensions), "config": dict(candidate)}
        interpreter = idle.get()
        try:
            line = journal.do(step, lambda: _answer(interpreter, request, capability))
        except InvalidCandidate as problem:
            return problem
        finally:
            idle.put(interpreter)
        return _judged(line["compiled"], capability, limit_bytes)

    with ThreadPoolExecutor(count) as threads:
        try:
            futures = {key: threads.submit(compiled, each) for key, each in distinct.items()}
            # The first that fails ends the others, which may be long.
            for done in wait(futures.values(), return_when=FIRST_EXCEPTION).done:
                done.result()
            results = {key: future.result() for key, future in futures.items()}
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for interpreter in pool:
                interpreter.cancel()
            raise
        finally:
            threads.shutdown()
            for interpreter in pool:
                interpreter.close()
    return [results[tuple(key.values())] for key in own]


def _own(kernel: Kernel, candidate: Candidate) -> Candidate:
    """Returns the parameters of a candidate that make its code another than that of others."""
    return {
        name: candidate[name] for name in kernel.parameters if name not in kernel.compile_shares
    }


def _answer(interpreter: Interpreter, request: dict[str, Any], capability: int) -> dict[str, Any]:
    return {"compiled": interpreter.ask({**request, "capability": capability})["compiled"]}


def _judged(
    compiled: dict[str, Any], capability: int, limit_bytes: int
) -> Compiled | InvalidCandidate:
    shared_bytes = compiled["shared_bytes"]
    if shared_bytes <= limit_bytes:
        return Compiled(shared_bytes)
    return InvalidCandidate(
        Invalid.OUT_OF_RESOURCES,
        f"it needs {shared_bytes} bytes of shared memory, and a block of sm_{capability} has at"
        f" most {limit_bytes}",
    )


def _limit_bytes(kernel: Kernel, capability: int) -> int:
    module = str(kernel.folder / MODULE)
    if not kernel.compiles_ahead:
        raise LeverbenchError(
            f"it defines no function {COMPILE}",
            where=module,
            cure="docs/kernels.md tells what it does.",
        )
    limit_bytes = shared_bytes_of(capability)
    if limit_bytes is None:
        raise LeverbenchError(
            f"the shared memory of a block is not known of sm_{capability}",
            where=module,
            cure="Name a compute capability that is in tuning/gpu.py.",
        )
    return limit_bytes
