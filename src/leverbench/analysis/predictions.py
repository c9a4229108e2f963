"""Predictions: what a kernel should give, by its micro-benchmark and its share of the time.

Amdahl (1967): who makes a share f of the time s times as fast makes the whole
1 / (1 - f + f / s) times as fast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.analysis.ceilings import Ceiling
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Candidate, Dimensions
from leverbench.records import read_record


@dataclass(frozen=True)
class Call:
    """A kernel's calls of one shape and size, against what it stands in for.

    Attributes:
        dimensions: Shape and size.
        config: The kernel's parameters.
        fallback_s: Median time of what it stands in for.
        speedup: That time over the kernel's.
        low: Lower end of the speed-up's interval.
        high: Upper end.
    """

    dimensions: Dimensions
    config: Candidate
    fallback_s: float
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """The parameters that a kernel has in servers, for one shape and size.

    Attributes:
        dimensions: Shape and size.
        config: The parameters.
        published: Whether they are better ones than the default, or given.
        speedup: Time with the default over that with the best other parameters; None where no
            others were raced against it.
        low: Lower end of its interval.
        high: Upper end.
    """

    dimensions: Dimensions
    config: Candidate
    published: bool
    speedup: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Tuning:
    """How the parameters for one shape were chosen.

    Attributes:
        shape: Its name.
        skipped: Why nothing was tried; None where it was.
        choices: One a size.
        given: Where they are from, where nothing was tried since files of others are served.
    """

    shape: str
    skipped: str | None
    choices: tuple[Choice, ...]
    given: str | None = None


@dataclass(frozen=True)
class KernelResults:
    """What is known of a kernel that servers are given.

    Attributes:
        name: Its name.
        touches: Categories of a profile whose time it replaces.
        size: Name of the dimension that varies from call to call, or None.
        calls: Its micro-benchmark, against what it stands in for; empty where there is none.
        tunings: One a shape; empty where nothing is published.
    """

    name: str
    touches: tuple[str, ...]
    size: str | None
    calls: tuple[Call, ...]
    tunings: tuple[Tuning, ...]


@dataclass(frozen=True)
class Prediction:
    """What a kernel should give at a point.

    Attributes:
        kernel: Its name.
        ceiling: What it can give at most there; of its share of the time.
        size: Of the calls that were timed, the nearest to the concurrency; None where no
            dimension varies.
        speedup: Of these calls; None where none were timed.
        low: Lower end of its interval.
        high: Upper end.
        gain: Old time over new, predicted; None without a speed-up.
        alone: Whether the variant differs from its parent in no other kernel.
    """

    kernel: str
    ceiling: Ceiling
    size: int | None
    speedup: float | None
    low: float | None
    high: float | None
    gain: float | None
    alone: bool


def predicted_gain(share: float, speedup: float) -> float:
    """Returns old time over new where a share of the time is made so many times as fast.

    Args:
        share: From 0 to 1.
        speedup: Above 0; below 1 is a loss.
    """
    if not (0 <= share <= 1 and speedup > 0):
        raise ValueError(f"a share of {share} made {speedup} times as fast predicts nothing")
    return 1 / (1 - share + share / speedup)


def predictions(
    ceilings: Sequence[Ceiling], kernels: Mapping[str, Sequence[KernelResults]]
) -> list[Prediction]:
    """Returns what kernels should give, in the order of their ceilings.

    Args:
        ceilings: Of all levers; those of a kernel are named like it.
        kernels: By variant, the kernels that it has and its parent has not.
    """
    found = []
    for one in ceilings:
        given = kernels.get(one.variant, ())
        for kernel in given:
            if kernel.name == one.lever:
                size, calls = _nearest(kernel, one.concurrency)
                speedup, low, high = (_together(calls, by) for by in ("speedup", "low", "high"))
                gain = None if speedup is None else predicted_gain(one.share, speedup)
                alone = len(given) == 1
                found.append(Prediction(kernel.name, one, size, speedup, low, high, gain, alone))
    return found


def _nearest(kernel: KernelResults, concurrency: int) -> tuple[int | None, Sequence[Call]]:
    """Returns the size nearest to a concurrency, the smaller of two, and the calls of that size."""
    if kernel.size is None or not kernel.calls:
        return None, kernel.calls
    by_size: dict[int, list[Call]] = {}
    for call in kernel.calls:
        by_size.setdefault(int(call.dimensions[kernel.size]), []).append(call)
    size = min(by_size, key=lambda size: (abs(size - concurrency), size))
    return size, by_size[size]


def _together(calls: Sequence[Call], by: str) -> float | None:
    """Returns the speed-up of one call of each shape, made one after the other."""
    before_s = sum(call.fallback_s for call in calls)
    after_s = sum(call.fallback_s / getattr(call, by) for call in calls)
    return before_s / after_s if calls else None


def new_kernels(
    plan: Mapping[str, Any], results: Mapping[str, KernelResults]
) -> dict[str, list[KernelResults]]:
    """Returns, by variant, the kernels that it is given and its parent is not.

    A kernel that the parent has in another form is left out: what it is timed against is not what
    the parent does.

    Args:
        plan: The campaign's plan.
        results: By the folder of its publication, as the plan names it.
    """
    found = {}
    for name, variant in plan["variants"].items():
        above = plan["variants"][variant["parent"]] if variant["parent"] else {}
        new = [
            results[folder]
            for kernel, folder in variant.get("kernels", {}).items()
            if kernel not in above.get("kernels", {}) and folder in results
        ]
        if variant["parent"] and new:
            found[name] = new
    return found


def read_kernels(plan: Mapping[str, Any], project: Path) -> dict[str, KernelResults]:
    """Reads what is known of a plan's kernels, by the folders that they are published in.

    One of which the plan tells nothing is left out.

    Args:
        plan: The campaign's plan.
        project: The project's folder.

    Raises:
        LeverbenchError: A record is truncated, or not what it should be.
    """
    folders = {
        folder: name
        for variant in plan["variants"].values()
        for name, folder in variant.get("kernels", {}).items()
    }
    return {
        folder: _read_kernel(name, plan["kernels"][name], project, Path(folder))
        for folder, name in folders.items()
        if name in plan.get("kernels", {})
    }


def _read_kernel(
    name: str, planned: Mapping[str, Any], project: Path, folder: Path
) -> KernelResults:
    calls, tunings = [], []
    path = project / folder / "microbench.json"
    try:
        for entry in read_record(path)["calls"] if path.exists() else ():
            calls.append(_call(entry))
        path = project / folder / "published.json"
        for told in read_record(path)["tunings"] if path.exists() else ():
            path = project / told
            tunings.append(_tuning(path.stem, read_record(path)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LeverbenchError(
            f"not what is known of a kernel ({error!r})",
            where=str(path),
            cure="Delete the file and run again: it is made anew, with what depends on it.",
        ) from None
    return KernelResults(
        name=name,
        touches=tuple(planned["touches"]),
        size=planned["size"],
        calls=tuple(calls),
        tunings=tuple(tunings),
    )


def _call(entry: Mapping[str, Any]) -> Call:
    times = {name: float(entry[name]) for name in ("fallback_s", "speedup", "low", "high")}
    return Call(dict(entry["dimensions"]), dict(entry["config"]), **times)


def _tuning(shape: str, record: Mapping[str, Any]) -> Tuning:
    choices = (
        Choice(
            dict(entry["dimensions"]),
            dict(entry["config"]),
            bool(entry["published"]),
            *(None if entry[n] is None else float(entry[n]) for n in ("speedup", "low", "high")),
        )
        for entry in record["chosen"]
    )
    outcome = record["outcome"]
    skipped, given = (
        str(record["detail"]) if outcome == told else None for told in ("skipped", "given")
    )
    return Tuning(shape, skipped, tuple(choices), given)
