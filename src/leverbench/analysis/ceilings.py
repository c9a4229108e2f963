"""Ceilings: what a lever, or a category of operations, can give at most, from its share of time.

Amdahl (1967): who removes a share f of the time altogether makes the whole 1 / (1 - f) times as
fast, and no lever on that share does more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverbench.profiling.levers import touched_categories


@dataclass(frozen=True)
class Shares:
    """What a profile says of the time of decode steps.

    Attributes:
        name: Of the profile.
        variant: Whose it is; None where a record does not tell.
        workload: Of the load, likewise.
        concurrency: Of the load, likewise.
        categories: Share by category: of a decode step where the profile tells steps apart, else of
            the operations' time. Those of records need not be whole.
    """

    name: str
    variant: str | None
    workload: str | None
    concurrency: int | None
    categories: Mapping[str, float]


@dataclass(frozen=True)
class Ceiling:
    """The most that a lever can give at a point.

    Attributes:
        variant: The variant that pulls it.
        workload: The point's workload.
        concurrency: The point's concurrency.
        lever: The lever, or the kernel that is one; for what the campaign says of a variant as a
            whole, all its levers.
        categories: Those that it touches, of the ones in the profile.
        share: Their share of decode time in the parent.
        gain: The ceiling: old time over new.
        profile: Name of the profile.
    """

    variant: str
    workload: str
    concurrency: int
    lever: str
    categories: tuple[str, ...]
    share: float
    gain: float
    profile: str


@dataclass(frozen=True)
class CategoryCeiling:
    """What would be gained if the operations of one category were gone altogether.

    Attributes:
        shares: The profile.
        category: The category.
        share: Its share of decode time.
        gain: The ceiling: old time over new; None where nothing else took any time.
    """

    shares: Shares
    category: str
    share: float
    gain: float | None


def ceiling(share: float) -> float:
    """Returns 1 / (1 - share): old time over new where a share of the time is gone.

    Args:
        share: From 0 up to, but not including, 1.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share of {share} has no ceiling")
    return 1 / (1 - share)


def category_ceilings(profiles: Sequence[Shares]) -> list[CategoryCeiling]:
    """Returns the ceiling of each category of each profile, those of a profile by size."""
    return [
        CategoryCeiling(shares, category, share, ceiling(share) if share < 1 else None)
        for shares in profiles
        for category, share in sorted(shares.categories.items(), key=lambda entry: -entry[1])
    ]


def ceilings(
    plan: Mapping[str, Any],
    concurrencies: Sequence[int],
    profiles: Sequence[Shares],
    kernels: Mapping[str, Mapping[str, Sequence[str]]],
) -> list[Ceiling]:
    """Returns the ceilings of variants that touch categories of their parents' profiles.

    Args:
        plan: The campaign's plan.
        concurrencies: Of the points.
        profiles: Those that there are. For a point that of the parent at its workload and
            concurrency counts; of a record, which does not tell whose a profile is, the one at
            the concurrency, else one of an unknown concurrency.
        kernels: By variant, what each kernel touches that it has and its parent has not.
    """
    found = []
    for name, variant in plan["variants"].items():
        if variant["parent"] is None:
            continue
        for workload in plan["workloads"]:
            for concurrency in concurrencies:
                candidates = _candidates(profiles, variant["parent"], workload, concurrency)
                for lever, touched in _touched(variant, kernels.get(name, {})).items():
                    if one := _ceiling(candidates, touched):
                        found.append(Ceiling(name, workload, concurrency, lever, *one))
    return found


def _touched(
    variant: Mapping[str, Any], kernels: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Returns the categories that each lever of a planned variant touches, as far as known.

    What the campaign says goes before what a kernel's manifest says, and that before the lever's
    name.
    """
    told = variant.get("touches")
    if kernels:
        known = {kernel: tuple(told or touched) for kernel, touched in kernels.items()}
    elif told:
        known = {" + ".join(variant["levers"]): tuple(told)}
    else:
        known = {lever: touched_categories(lever) for lever in variant["levers"]}
    return {lever: touched for lever, touched in known.items() if touched}


def _candidates(
    profiles: Sequence[Shares], parent: str, workload: str, concurrency: int
) -> list[Shares]:
    own = [p for p in profiles if (p.variant, p.workload) == (parent, workload)]
    told = [p for p in profiles if p.variant is None]
    exact = [p for p in (*own, *told) if p.concurrency == concurrency]
    return exact + [p for p in told if p.concurrency is None]


def _ceiling(
    profiles: Sequence[Shares], touched: Sequence[str]
) -> tuple[tuple[str, ...], float, float, str] | None:
    """Returns ``(categories, share, gain, profile)`` by the first profile that knows any."""
    for profile in profiles:
        categories = tuple(name for name in touched if name in profile.categories)
        share = sum(profile.categories[name] for name in categories)
        if 0 < share < 1:
            return categories, share, ceiling(share), profile.name
    return None
