"""What differs between a variant's profile and its parent's, and how much of TPOT that explains.

A profile slows its server, since recording costs time at each operation. So no time of a profile
is held against a measured one: the ratio of two profiles' decode steps is held against the ratio
of the measured TPOTs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Variant, workload and concurrency.
At = tuple[str, str, int]
# Decode steps of one load differ by a few percent. A longest step of more than this many times the
# shortest was disturbed, and so is the mean.
UNEVEN = 1.5


@dataclass(frozen=True)
class ProfileTimes:
    """What a difference needs of a profile.

    Attributes:
        name: Its record's folder below ``results/{campaign}``.
        engine: Version of the engine; None where it is not told.
        machine: The fingerprint of the machine.
        in_flight: Requests that were in flight.
        shares: Of the operations' time, by category.
        step_us: Mean duration of a decode step; None without steps.
        step_range_us: The shortest and the longest; None without steps.
        idle_us: Of it, without any operation on the device; None where that is not told.
        categories_us: Time in a decode step, by category; empty without steps.
        operations_us: The same by ``(category, name)``; empty where they are not told.
        untimed: Why there are no steps; None where there are.
    """

    name: str
    engine: str | None
    machine: Mapping[str, Any]
    in_flight: Any
    shares: Mapping[str, float]
    step_us: float | None
    step_range_us: tuple[float, float] | None
    idle_us: float | None
    categories_us: Mapping[str, float]
    operations_us: Mapping[tuple[str, str], float]
    untimed: str | None

    @property
    def uneven(self) -> str | None:
        """How far the steps are apart, where they are too far; None where not."""
        if self.step_range_us is None:
            return None
        shortest, longest = self.step_range_us
        if longest <= UNEVEN * shortest:
            return None
        return f"{shortest / 1000:.3g} to {longest / 1000:.3g} ms"


@dataclass(frozen=True)
class Change:
    """One category or operation in two profiles.

    Attributes:
        name: Its name.
        category: Of an operation, its category; None of a category.
        before: Time in a decode step of the parent in microseconds, or share of the operations'
            time where a difference is untimed; None where the parent's profile does not have it.
        after: The same in the variant.
    """

    name: str
    category: str | None
    before: float | None
    after: float | None

    @property
    def change(self) -> float:
        """After minus before; what a profile does not have took no time in it."""
        return (self.after or 0.0) - (self.before or 0.0)


@dataclass(frozen=True)
class ProfileDifference:
    """A variant's profile against its parent's, at one workload and concurrency.

    Attributes:
        variant: The variant.
        parent: Its parent.
        workload: The workload of both.
        concurrency: The concurrency of both.
        profiles: Names of the two profiles, the parent's first.
        incomparable: Why there is no difference; None where there is one.
        untimed: Why it is of shares and not of time; None where it is of time.
        uneven: The profiles with decode steps of very different lengths, each with their range.
        step: The whole decode step; None without times.
        idle: Of it, the device without any operation; None where that is not told.
        categories: By the size of the change.
        operations: By the size of the change; empty where they are not told.
    """

    variant: str
    parent: str
    workload: str
    concurrency: int
    profiles: tuple[str, str]
    incomparable: str | None = None
    untimed: str | None = None
    uneven: tuple[str, ...] = ()
    step: Change | None = None
    idle: Change | None = None
    categories: tuple[Change, ...] = ()
    operations: tuple[Change, ...] = ()

    @property
    def remainder(self) -> Change | None:
        """What categories and idle time leave of the step.

        Below 0 where categories run side by side, on several streams of the device.
        """
        if self.step is None:
            return None
        parts = [*self.categories, *([self.idle] if self.idle else [])]
        before, after = (
            (getattr(self.step, side) or 0.0) - sum(getattr(part, side) or 0.0 for part in parts)
            for side in ("before", "after")
        )
        return Change("remainder", None, before, after)


@dataclass(frozen=True)
class Measured:
    """A measured TPOT, the variant's against its parent's.

    Attributes:
        before_ms: The parent's, mean over sessions.
        after_ms: The variant's.
        ratio: Estimate of the variant's over the parent's.
        low: Lower end of its interval; None where the noise is not known.
        high: Upper end.
        tokens_before: Tokens that a decode step of the parent gives a request: the accept length
            where it speculates, else 1.
        tokens_after: The same of the variant.
    """

    before_ms: float
    after_ms: float
    ratio: float
    low: float | None
    high: float | None
    tokens_before: float = 1.0
    tokens_after: float = 1.0


@dataclass(frozen=True)
class Explained:
    """How much of a measured change of TPOT two profiles explain.

    Attributes:
        measured: The measured TPOTs.
        change_ms: The measured change: below 0 is faster.
        low_ms: Lower end of its interval; None where the noise is not known.
        high_ms: Upper end.
        ratio: Time a token in the variant's profile over that in the parent's.
        explained_ms: The change of the measured TPOT that this ratio would make.
        rest_ms: What it leaves unexplained.
        rest_share: The same as a share of the measured change; None where that cannot be told
            from none.
        recording: By how much longer the profiled steps were than the measured TPOT tells, as a
            share, the parent's first.
        ms_of_us: Milliseconds of TPOT for a microsecond a token in the parent's profile.
    """

    measured: Measured
    change_ms: float
    low_ms: float | None
    high_ms: float | None
    ratio: float
    explained_ms: float
    rest_ms: float
    rest_share: float | None
    recording: tuple[float, float]
    ms_of_us: float

    def part_ms(self, change: Change) -> float:
        """Returns what a part's change makes of TPOT; those of all parts are `explained_ms`."""
        before = (change.before or 0.0) / self.measured.tokens_before
        after = (change.after or 0.0) / self.measured.tokens_after
        return self.ms_of_us * (after - before)


def profile_times(
    name: str, record: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]
) -> ProfileTimes:
    """Reads what a difference needs from a profile's record.

    Args:
        name: Of the profile.
        record: ``summary.json``; one of before has no steps.
        operations: Rows of its ``kernels.parquet``; none where there is no such file.
    """
    steps = record.get("steps") or {}
    found, step_us = steps.get("found_by"), steps.get("mean_us")
    untimed = None
    if "steps" not in record:
        untimed = "it was made before decode steps were told apart"
    elif found is None or not step_us:
        untimed = steps.get("reason") or "no decode steps were found in it"
    timed = untimed is None
    idle_share = record.get("idle_share")
    return ProfileTimes(
        name=name,
        engine=(record.get("versions") or {}).get("engine"),
        machine=record["machine"],
        in_flight=record["in_flight"],
        shares={entry["category"]: float(entry["share"]) for entry in record["categories"]},
        step_us=float(step_us) if timed and step_us else None,
        step_range_us=(float(steps["min_us"]), float(steps["max_us"])) if timed else None,
        idle_us=idle_share * step_us if timed and step_us and idle_share is not None else None,
        categories_us={
            entry["category"]: float(entry["per_step_us"])
            for entry in record["categories"]
            if timed and entry.get("per_step_us") is not None
        },
        operations_us=_per_step(operations) if timed else {},
        untimed=untimed,
    )


def _per_step(operations: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Returns the time in a step by category and name, as the mean of the ranks."""
    rows = [row for row in operations if row.get("per_step_us") is not None]
    ranks = len({row["rank"] for row in rows})
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (str(row["category"]), str(row["name"]))
        found[key] = found.get(key, 0.0) + float(row["per_step_us"]) / ranks
    return found


def profile_differences(
    plan: Mapping[str, Any], profiles: Mapping[At, ProfileTimes]
) -> list[ProfileDifference]:
    """Returns each variant's profile against its parent's, where both were taken.

    Args:
        plan: The campaign's plan.
        profiles: Those that were taken.

    Returns:
        By workload, concurrency and variant, in the order of the profiles and of the plan.
    """
    cells = dict.fromkeys((workload, concurrency) for _, workload, concurrency in profiles)
    found = []
    for workload, concurrency in cells:
        for name, variant in plan["variants"].items():
            own = profiles.get((name, workload, concurrency))
            above = profiles.get((variant["parent"], workload, concurrency))
            if own is not None and above is not None:
                found.append(
                    _difference(name, variant["parent"], workload, concurrency, own, above)
                )
    return found


def _difference(
    variant: str,
    parent: str,
    workload: str,
    concurrency: int,
    own: ProfileTimes,
    above: ProfileTimes,
) -> ProfileDifference:
    about = (variant, parent, workload, concurrency, (above.name, own.name))
    if unlike := _unlike(above, own):
        return ProfileDifference(*about, incomparable=unlike)
    untimed = [one for one in (above, own) if one.untimed is not None]
    if untimed:
        why = "; ".join(f"{one.name}: {one.untimed}" for one in untimed)
        return ProfileDifference(*about, untimed=why, categories=_changes(above.shares, own.shares))
    idle = None
    if above.idle_us is not None and own.idle_us is not None:
        idle = Change("idle", None, above.idle_us, own.idle_us)
    operations: tuple[Change, ...] = ()
    if above.operations_us and own.operations_us:
        operations = tuple(
            Change(name, category, before, after)
            for (category, name), before, after in _both(above.operations_us, own.operations_us)
        )
    return ProfileDifference(
        *about,
        uneven=tuple(f"{one.name} ({one.uneven})" for one in (above, own) if one.uneven),
        step=Change("decode step", None, above.step_us, own.step_us),
        idle=idle,
        categories=_changes(above.categories_us, own.categories_us),
        operations=_by_size(operations),
    )


def _unlike(above: ProfileTimes, own: ProfileTimes) -> str | None:
    """Returns in which conditions two profiles differ; None where in none."""
    found = []
    if above.engine != own.engine:
        found.append(f"engine versions {above.engine or 'not told'} and {own.engine or 'not told'}")
    machine = [
        key
        for key in {**above.machine, **own.machine}
        if above.machine.get(key) != own.machine.get(key)
    ]
    if machine:
        found.append(f"different machines ({', '.join(machine)})")
    if above.in_flight != own.in_flight:
        found.append(f"{above.in_flight} and {own.in_flight} requests in flight")
    return "; ".join(found) or None


def _changes(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Change, ...]:
    return _by_size(Change(name, None, *sides) for name, *sides in _both(before, after))


def _both(before: Mapping[Any, float], after: Mapping[Any, float]) -> list[tuple[Any, ...]]:
    return [(key, before.get(key), after.get(key)) for key in {**before, **after}]


def _by_size(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda one: -abs(one.change)))


def explain(difference: ProfileDifference, measured: Measured) -> Explained | None:
    """Returns what a difference explains of a measured TPOT; None where it has no times."""
    step = difference.step
    if step is None or not (step.before and step.after):
        return None
    before_us = step.before / measured.tokens_before
    after_us = step.after / measured.tokens_after
    change_ms = measured.before_ms * (measured.ratio - 1)
    explained_ms = measured.before_ms * (after_us / before_us - 1)
    rest_ms = change_ms - explained_ms
    low_ms, high_ms = (
        None if end is None else measured.before_ms * (end - 1)
        for end in (measured.low, measured.high)
    )
    none = low_ms is not None and high_ms is not None and low_ms <= 0 <= high_ms
    return Explained(
        measured=measured,
        change_ms=change_ms,
        low_ms=low_ms,
        high_ms=high_ms,
        ratio=after_us / before_us,
        explained_ms=explained_ms,
        rest_ms=rest_ms,
        rest_share=None if none or not change_ms else rest_ms / change_ms,
        recording=(
            before_us / 1000 / measured.before_ms - 1,
            after_us / 1000 / measured.after_ms - 1,
        ),
        ms_of_us=measured.before_ms / before_us,
    )
