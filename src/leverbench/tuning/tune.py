"""Tuning a kernel for one shape: what is fastest for each of its calls, and is it shipped."""

import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines import get_engine
from leverbench.engines.arguments import identify
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import MANIFEST, Candidate, Dimensions, Kernel
from leverbench.serving.failures import now
from leverbench.serving.machine import machine_fingerprint, require_gpus
from leverbench.tuning.compile_ahead import Compiled, compile_ahead
from leverbench.tuning.gpu import Gpu, first_gpu
from leverbench.tuning.invalid import Invalid, InvalidCandidate
from leverbench.tuning.journal import Journal, Step
from leverbench.tuning.race import Rounds, Verdict, judge, run_race
from leverbench.tuning.search import RUNGS, halve
from leverbench.tuning.skip import Skip
from leverbench.tuning.space import make_space
from leverbench.tuning.worker import Timer, Worker

# Of how candidates are timed, searched and raced: what another version measured is not mixed in.
METHOD_VERSION = 1


class Outcome(StrEnum):
    """How tuning a shape ended, in its record."""

    TUNED = "tuned"
    SKIPPED = "skipped"
    GIVEN = "given"


@dataclass(frozen=True)
class Chosen:
    """What a kernel uses at a call's dimensions.

    Attributes:
        dimensions: Of the call.
        config: What is used: the candidate that was raced, or the default.
        default: The default.
        raced: The candidate that was raced against the default; None where none was.
        tuned_s: Median time of a call with ``config``; None where nothing was timed.
        default_s: The same with the default.
        verdict: Of the race.
        given: Whether ``config`` is from files of others, and nothing was raced.
    """

    dimensions: Dimensions
    config: Candidate
    default: Candidate
    raced: Candidate | None
    tuned_s: float | None
    default_s: float | None
    verdict: Verdict | None
    given: bool = False

    @property
    def published(self) -> bool:
        """Whether ``config`` won its race, or is given, and is shipped in the default's place."""
        return self.given or (self.verdict is not None and self.verdict.faster)

    def as_record(self) -> dict[str, Any]:
        """Returns plain values; the race's are None where there was none."""
        verdict = self.verdict
        return {
            "dimensions": dict(self.dimensions),
            "config": dict(self.config),
            "default": dict(self.default),
            "raced": None if self.raced is None else dict(self.raced),
            "tuned_s": self.tuned_s,
            "default_s": self.default_s,
            "raced_s": verdict and verdict.rival_s,
            "speedup": verdict and verdict.speedup,
            "low": verdict and verdict.low,
            "high": verdict and verdict.high,
            "published": self.published,
        }


@dataclass
class Tuned:
    """What tuning a shape came to.

    Attributes:
        chosen: For each call.
        candidates: How many there are, over all calls.
        timed: How many of them were timed.
        invalid: How many are invalid, by reason.
        restricted: How many of them were not tried, by the restriction that they do not meet.
    """

    chosen: list[Chosen]
    candidates: int = 0
    timed: int = 0
    invalid: Counter[Invalid] = field(default_factory=Counter)
    restricted: Counter[str] = field(default_factory=Counter)


def tune(
    kernel: Kernel,
    shape: Dimensions,
    code: Path,
    settings: EngineSettings,
    device: str,
    journal: Path,
    record: Path,
    skip: Skip | None = None,
) -> None:
    """Tunes a kernel for a shape, at each of its sizes, and records what was chosen.

    What the journal holds is not measured again.

    Args:
        kernel: The kernel, as a campaign asks for it.
        shape: One of its shapes.
        code: Folder of what was built.
        settings: The engine's, for its interpreter.
        device: ``cpu``, or the name of the GPU.
        journal: What is measured, as it is measured; see `Journal`.
        record: What was chosen.
        skip: What bounds the gain, where it is known.

    Raises:
        LeverbenchError: A restriction is wrong, the default cannot be used, the engine's
            interpreter cannot load the kernel, or the journal is damaged.
    """
    began, started_at = time.monotonic(), now()
    about = {**what_is_timed(kernel, code, device), "shape": dict(shape)}
    why, outcome = skip.reason if skip is not None else None, Outcome.TUNED
    incumbent = _incumbents(kernel, shape, settings, about["machine"].get("gpus"))
    if kernel.given is not None:
        outcome, why = Outcome.GIVEN, f"its files are given: {kernel.given}"
        tuned = Tuned(_from_files(kernel, shape, settings, about["machine"]["gpus"], incumbent))
    elif why is None:
        gpu = None if device == "cpu" else first_gpu()
        steps = Journal(journal, about)
        ahead = None
        if kernel.compiles_ahead and gpu is not None:
            ahead = _ahead(kernel, code, settings, gpu.capability, steps)
        with Worker(kernel, code, settings, device) as worker:
            tuned = tune_calls(kernel, shape, worker, steps, gpu, incumbent, ahead)
    else:
        outcome, calls = Outcome.SKIPPED, kernel.calls(shape)
        tuned = Tuned([_chosen(incumbent(call), call, None, None, None) for call in calls])
    records.write_record(
        record,
        {
            "kind": "tuning",
            **about,
            "device": device,
            "outcome": outcome,
            "detail": why,
            "chosen": [each.as_record() for each in tuned.chosen],
            "candidates": tuned.candidates,
            "timed": tuned.timed,
            "invalid": {str(reason): count for reason, count in sorted(tuned.invalid.items())},
            "restricted": dict(tuned.restricted),
            "started_at": started_at,
            "ended_at": now(),
            "seconds": round(time.monotonic() - began, 3),
        },
    )
    print(f"leverbench: {kernel.name}: {why or _told(tuned)}", file=sys.stderr, flush=True)


def what_is_timed(kernel: Kernel, code: Path, device: str) -> dict[str, Any]:
    """Returns what times of a kernel's calls depend on, beside dimensions and parameters.

    Args:
        kernel: The kernel.
        code: Folder of what was built; the folder that holds it is named after the build.
        device: ``cpu``, or the name of the GPU.

    Raises:
        LeverbenchError: There is no GPU.
    """
    if device != "cpu":
        require_gpus(1, None)
    return {
        "method": METHOD_VERSION,
        "kernel": kernel.name,
        "digests": {
            "code": kernel.code_digest,
            "build": code.resolve().parent.name,
            "space": kernel.space_digest,
        },
        "machine": machine_fingerprint(("cpu" if device == "cpu" else "gpu0",)),
    }


# Gives what a call has without tuning.
Incumbent = Callable[[Dimensions], Candidate]
# Compiles candidates of a call ahead of their timing, and tells which are invalid.
Ahead = Callable[[Dimensions, Sequence[Candidate]], Sequence[Compiled | InvalidCandidate]]


def _ahead(
    kernel: Kernel, code: Path, settings: EngineSettings, capability: int, journal: Journal
) -> Ahead:
    """Returns what compiles candidates on all cores, so that none is compiled while it is timed."""
    compiling = partial(
        compile_ahead,
        code=code,
        settings=settings,
        capability=capability,
        workers=len(os.sched_getaffinity(0)),
        journal=journal,
    )

    def compiled(
        dimensions: Dimensions, candidates: Sequence[Candidate]
    ) -> list[Compiled | InvalidCandidate]:
        # What one of those that share its resources cannot have, none of them is compiled for.
        of_all = compiling(kernel, dimensions=dimensions, candidates=candidates)
        fit = [
            candidate
            for candidate, result in zip(candidates, of_all, strict=True)
            if isinstance(result, Compiled)
        ]
        every = replace(kernel, compile_shares=())
        own = iter(compiling(every, dimensions=dimensions, candidates=fit))
        return [next(own) if isinstance(result, Compiled) else result for result in of_all]

    return compiled


def _incumbents(
    kernel: Kernel, shape: Dimensions, settings: EngineSettings, device: str | None
) -> Incumbent:
    """Returns what calls of a shape have without tuning.

    Of the engine's own kernel that is what the engine brings along for the nearest size.
    """
    shipped: Mapping[int, Candidate] = {}
    size = kernel.size
    if kernel.configs is not None and device is not None:
        files = get_engine(kernel.engine).tuned_files
        shipped = files.shipped(settings, int(shape["N"]), int(shape["K"]), device)
    if not shipped or size is None:
        return lambda dimensions: kernel.default

    def nearest(dimensions: Dimensions) -> Candidate:
        wanted = int(dimensions[size])
        return shipped[min(shipped, key=lambda m: abs(m - wanted))]

    return nearest


def _from_files(
    kernel: Kernel, shape: Dimensions, settings: EngineSettings, device: str, incumbent: Incumbent
) -> list[Chosen]:
    assert kernel.given is not None
    assert kernel.size is not None
    gpu = first_gpu()
    capability = None if gpu is None else divmod(gpu.capability, 10)
    version = identify(settings).version
    read = get_engine(kernel.engine).tuned_files.read(kernel.given, device, version, capability)
    chosen = []
    for m, config in sorted(read[int(shape["N"]), int(shape["K"])].items()):
        call = {**shape, kernel.size: m}
        chosen.append(Chosen(call, config, incumbent(call), None, None, None, None, given=True))
    return chosen


def tune_calls(
    kernel: Kernel,
    shape: Dimensions,
    timer: Timer,
    journal: Journal,
    gpu: Gpu | None = None,
    incumbent: Incumbent | None = None,
    ahead: Ahead | None = None,
) -> Tuned:
    """Returns what is chosen for each call of a shape.

    Args:
        kernel: The kernel.
        shape: One of its shapes.
        timer: Times its calls.
        journal: What is measured, as it is measured.
        gpu: The GPU that it is called on; None for the CPU, or where it is not known.
        incumbent: What a call has without tuning; None is the kernel's default.
        ahead: Compiles candidates ahead; None where they are not.

    Raises:
        LeverbenchError: A restriction is wrong, or the default cannot be used.
    """
    tuned = Tuned([])
    for dimensions in kernel.calls(shape):
        default = kernel.default if incumbent is None else incumbent(dimensions)
        call = _Call(kernel, default, dimensions, timer, journal)
        space = make_space(kernel, dimensions, gpu)
        candidates = [default, *(each for each in space.candidates if each != default)]
        refused = sum(space.restricted.values())
        tuned.candidates += len(candidates) + refused
        if ahead is not None:
            compiled = ahead(dimensions, candidates)
            candidates = call.compiled(candidates, compiled, tuned.invalid)
        found = halve(candidates, call.measure)
        tuned.timed += sum(median is not None for median in found.medians_s)
        tuned.restricted.update(space.restricted)
        if refused:
            tuned.invalid[Invalid.RESTRICTED] += refused
        tuned.invalid += found.invalid
        raced, verdict = None, None
        # The default comes first among the candidates: who is slower than it is not raced.
        for place in itertools.takewhile(bool, found.ranking):
            try:
                verdict = call.race(candidates[place])
            except InvalidCandidate as problem:
                tuned.invalid[problem.reason] += 1
            else:
                raced = candidates[place]
                break
        tuned.chosen.append(_chosen(default, dimensions, raced, verdict, found.medians_s[0]))
    return tuned


@dataclass(frozen=True)
class _Call:
    """Measures candidates at a call's dimensions, each step once."""

    kernel: Kernel
    default: Candidate
    dimensions: Dimensions
    timer: Timer
    journal: Journal

    def compiled(
        self,
        candidates: Sequence[Candidate],
        results: Sequence[Compiled | InvalidCandidate],
        invalid: Counter[Invalid],
    ) -> list[Candidate]:
        """Returns the candidates that compile, and counts the others."""
        kept = []
        for candidate, result in zip(candidates, results, strict=True):
            # That its compiler was killed stays in the journal. Of the default, which a search
            # needs, its first call tells, and is tried again.
            if isinstance(result, Compiled) or candidate == self.default:
                kept.append(candidate)
            else:
                invalid[result.reason] += 1
        return kept

    def measure(self, candidate: Candidate, rung: int) -> Sequence[float]:
        def timed() -> dict[str, Any]:
            return {"samples_s": self._time(candidate, RUNGS[rung], check=rung == 0)}

        samples_s: Sequence[float] = self.journal.do(
            Step(self.dimensions, candidate, f"rung-{rung}"), timed
        )["samples_s"]
        return samples_s

    def race(self, rival: Candidate) -> Verdict:
        def raced() -> dict[str, Any]:
            return asdict(
                run_race(
                    lambda samples: self._time(self.default, samples),
                    lambda samples: self._time(rival, samples),
                )
            )

        line = self.journal.do(Step(self.dimensions, rival, "race"), raced)
        return judge(Rounds(line["incumbent_s"], line["rival_s"]))

    def _time(self, candidate: Candidate, samples: int, check: bool = False) -> list[float]:
        try:
            return self.timer.time(self.dimensions, candidate, samples, check=check)
        except InvalidCandidate as problem:
            if candidate != self.default:
                raise
            # No result of a search, which needs it: the next run tries again.
            raise self._unusable(problem) from None

    def _unusable(self, problem: InvalidCandidate) -> LeverbenchError:
        return LeverbenchError(
            f"the default cannot be used at {dict(self.dimensions)}:"
            f" {problem.reason}, {problem.detail}",
            where=str(self.kernel.folder / MANIFEST),
            cure="Correct the kernel or its tolerance, or choose another default.",
        )


def _chosen(
    default: Candidate,
    dimensions: Dimensions,
    raced: Candidate | None,
    verdict: Verdict | None,
    default_s: float | None,
) -> Chosen:
    """Returns the candidate that was raced, where it was faster beyond noise, else the default.

    Args:
        default: What the call has without tuning.
        dimensions: Of the call.
        raced: The candidate that was raced.
        verdict: Of its race.
        default_s: The default's median in the search; the race's counts where there was one.
    """
    config, tuned_s = default, default_s
    if raced is not None and verdict is not None:
        default_s = tuned_s = verdict.incumbent_s
        if verdict.faster:
            config, tuned_s = raced, verdict.rival_s
    return Chosen(dimensions, config, default, raced, tuned_s, default_s, verdict)


def _told(tuned: Tuned) -> str:
    shipped = [each for each in tuned.chosen if each.published]
    gains = [each.verdict.speedup for each in shipped if each.verdict]
    return (
        f"{tuned.timed} of {tuned.candidates} candidates timed; {len(shipped)} of"
        f" {len(tuned.chosen)} calls get other values than the default"
        + (f", up to {max(gains):.2f} times as fast" if gains else "")
    )
