"""Findings on profiles: what takes the time, why, and what changed it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverbench.analysis.ceilings import CategoryCeiling, ceiling
from leverbench.analysis.differences import Explained, ProfileDifference
from leverbench.profiling.categories import HOST_CODE
from leverbench.report.findings.finding import Finding, pooled_names, profile_name, short
from leverbench.report.profiles import (
    Profile,
    ProfileTable,
    is_matrix_work,
    told_name,
)
from leverbench.report.summary import Summary, first_line

# Rules whose sentences stand above the profiles.
STAND_OUT = (
    "dominant kernel",
    "cuda-core fallback",
    "under-filled launch",
    "communication-bound",
    "host-bound",
)
# A kernel with more than a third of the time: all the others together give less than three times.
DOMINANT = 1 / 3
# A tenth of the time gone altogether gives 1.11: of what is smaller, nobody needs to know why.
LARGE = 0.1
# A launch that leaves more than a quarter of the multiprocessors without a block. What is above is
# no worse than the last, partial wave of an ordinary launch.
FILLED = 0.75
# Communication of a quarter of the time: gone altogether it gives 1.33.
COMMUNICATION_BOUND = 0.25
# The device without work for a quarter of the time. Recording makes the host slower, which opens
# gaps that are not there without it: below, a server need not be waiting at all.
HOST_BOUND = 0.25
# An unexplained part of a change that wants a reason.
LARGE_REST = 0.1
# Parts of a change, of what they make of it, and how many.
_LEAST_PART, _PARTS = 0.05, 4
# New or vanished operations that are named: share of a decode step, and how many.
_LEAST_OPERATION, _OPERATIONS = 0.01, 3
# Further profiles in which something was seen, that are named.
_ALSO = 2

_COMMUNICATION = ("comm", "communication")


@dataclass(frozen=True)
class _Seen:
    """A kernel or a category in one profile: one of ours, or of a record of others.

    Attributes:
        name: Of the kernel; of the category where no kernel is told, or it is one.
        category: Its category.
        device: ``cpu`` or ``gpu``.
        of: Whose profile: the variant, or ``profile NAME`` in a record.
        at: Under which load, in words; empty in a record.
        profile: The profile, as evidence.
        share: Of the operations' time; of decode time in a record.
        of_step: Of a decode step, where the profile tells steps apart; else the share.
        blocks: That it is launched with, most of the time; None where that is not told.
        sms: Multiprocessors of the GPU, likewise.
        kernels: Names of kernels, of a category.
        active: Measured share of the time with any tensor instruction, of all kernels of the
            profile; None where nothing was measured.
    """

    name: str
    category: str
    device: str
    of: str
    at: str
    profile: str
    share: float
    of_step: float
    blocks: int | None = None
    sms: int | None = None
    kernels: tuple[str, ...] = ()
    active: float | None = None


def profiled(summary: Summary) -> Iterator[Finding]:
    """The largest category and operation of each profile."""
    told: dict[str, list[tuple[ProfileTable, Profile]]] = {}
    for table in summary.profiles:
        for variant, profile in table.profiles.items():
            told.setdefault(variant, []).append((table, profile))
    for variant, profiles in told.items():
        sentences = " ".join(_largest(table, profile) for table, profile in profiles)
        cpu = all(profile.device == "cpu" for _, profile in profiles)
        note = " Shares on a CPU say nothing of a GPU." if cpu else ""
        names = tuple(profile.name for _, profile in profiles)
        yield Finding("profile", f"{variant}: {sentences}{note}", names)


def profiles_told(summary: Summary) -> Iterator[Finding]:
    """What the profiles of a record say."""
    for profile in (summary.imported or {"profiles": ()})["profiles"]:
        at = f"C={profile['concurrency']}" if profile["concurrency"] else "no concurrency told"
        parts = []
        for entry in profile["entries"]:
            facts = [f"{entry['share']:.1%}"]
            if entry["blocks"] and entry["sm_count"]:
                facts.append(f"{entry['blocks']} blocks on {entry['sm_count']} SMs")
            if entry["tensor_cores"] is False:
                facts.append("no tensor cores")
            kernel = f" in {short(entry['kernel'])}" if entry["kernel"] else ""
            parts.append(f"{entry['category']}{kernel} ({', '.join(facts)})")
        text = f"Profile {profile['name']} ({at}), shares of decode: {', '.join(parts)}."
        yield Finding("profile", text, (told_name(profile["name"]),))


def _largest(table: ProfileTable, profile: Profile) -> str:
    where = f"under {table.workload} at C={table.concurrency}"
    if not (profile.shares and profile.top):
        return f"{where} the profile holds no operation."
    category, share = next(iter(profile.shares.items()))
    top = profile.top[0]
    text = (
        f"{where} the largest category is {category} with {share:.1%} of the operations' time,"
        f" the top operation {short(top['name'])} ({top['category']}) with {top['share']:.1%}."
    )
    share = profile.decode_shares.get(category, 0.0)
    if 0 < share < 1:
        text += f" Without {category}, decode would be at most {ceiling(share):.3f} times as fast."
    if profile.large_other is not None:
        text += (
            f" No category claims {profile.large_other:.1%}:"
            f" {', '.join(map(short, profile.other_top)) or 'no names'}."
        )
    if profile.truncated:
        text += f" A trace is incomplete: {profile.truncated}."
    return text


def not_profiled(summary: Summary) -> Iterator[Finding]:
    """Profiles that failed."""
    for hole in summary.profile_holes:
        if hole.kind == "failed":
            text = (
                f"{hole.variant} has no profile under {hole.workload} at C={hole.concurrency}:"
                f" {hole.reason}: {first_line(hole.detail)}"
            )
            row = f"{hole.variant}/profile/{hole.workload}/c{hole.concurrency}"
            yield Finding("profile", text, (row,))


def category_ceilings(summary: Summary) -> Iterator[Finding]:
    """What is at most to be had from each category, by the profiles of roots and of records."""
    by_profile: dict[str, list[CategoryCeiling]] = {}
    for one in summary.category_ceilings:
        variant = one.shares.variant
        if variant is None or summary.plan["variants"][variant]["parent"] is None:
            by_profile.setdefault(one.shares.name, []).append(one)
    for name, bounds in by_profile.items():
        told = ", ".join(
            f"{one.category} {one.gain:.3f}" for one in bounds if one.gain and one.gain >= 1.005
        )
        if told:
            text = (
                "With all of a category gone, decode would be at most this many times as fast, by"
                f" profile {name}: {told}."
            )
            yield Finding("category ceilings", text, (profile_name(summary, name),))


def dominant(summary: Summary) -> Iterator[Finding]:
    """A kernel that takes more than a third of the time."""
    kernels = [one for one in _kernels(summary) if one.category != HOST_CODE]
    for (name, category), seen in _grouped(kernels, DOMINANT, "name", "category").items():
        kind = "kernel" if seen[0].device == "gpu" else "operation"
        what = short(name) + (f" ({category})" if category != name else "")
        share = seen[0].of_step
        text = (
            f"{what} takes {_shares(summary, seen)}. With all the rest gone,"
            f" decode would be at most 1 / {share:.2f} = {1 / share:.2f} times as fast"
        )
        if share < 1:
            text += f", with this {kind} gone {ceiling(share):.2f}"
        yield Finding("dominant kernel", f"{text}.", _profiles(seen))


def cuda_core_fallback(summary: Summary) -> Iterator[Finding]:
    """Matrix work without tensor cores, by the names of its kernels or by what a record says."""
    source = "as the record says" if summary.imported else "inferred from the kernels' names"
    for (name,), seen in _grouped(_without_tensor_cores(summary), LARGE, "name").items():
        kernels = ", ".join(dict.fromkeys(short(kernel) for one in seen for kernel in one.kernels))
        what = f"{short(name)} ({kernels})" if kernels else short(name)
        text = (
            f"{what} takes {_shares(summary, seen)} and uses no tensor cores"
            f" ({source}), although it is matrix work."
        )
        if (active := seen[0].active) is not None:
            text += (
                f" Measured there over all kernels: a tensor instruction under way {active:.1%} of"
                " the time."
            )
        yield Finding("cuda-core fallback", text, _profiles(seen))


def under_filled(summary: Summary) -> Iterator[Finding]:
    """A launch with fewer blocks than the GPU has multiprocessors."""
    kernels = [
        one for one in _kernels(summary) if one.blocks and one.sms and one.blocks < FILLED * one.sms
    ]
    grouped = _grouped(kernels, LARGE, "name", "blocks", "sms")
    for (name, blocks, sms), seen in grouped.items():
        text = (
            f"{short(name)} has {blocks} blocks on {sms} SMs: at most"
            f" {blocks / sms:.0%} of the chip. It takes {_shares(summary, seen)}."
        )
        yield Finding("under-filled launch", text, _profiles(seen))


def _kernels(summary: Summary) -> list[_Seen]:
    """Returns the longest kernels of every profile."""
    found = [
        _kernel(table, variant, profile, top)
        for table, variant, profile in _taken(summary)
        for top in profile.top
    ]
    return found + [_told(name, entry) for name, entry in _entries(summary)]


def _kernel(table: ProfileTable, variant: str, profile: Profile, top: Mapping[str, Any]) -> _Seen:
    per_step_us, geometry = top["per_step_us"], top["geometry"] or {}
    of_step = top["share"]
    if per_step_us is not None and profile.step_us:
        of_step = min(1.0, per_step_us / profile.step_us)
    return _Seen(
        name=top["name"],
        category=top["category"],
        device="cpu" if profile.device == "cpu" else "gpu",
        of=variant,
        at=_at(table),
        profile=profile.name,
        share=top["share"],
        of_step=of_step,
        blocks=geometry.get("grid_blocks"),
        sms=geometry.get("sm_count"),
        active=profile.measured("any_tensor"),
    )


def _without_tensor_cores(summary: Summary) -> list[_Seen]:
    """Returns categories of matrix work whose kernels use none; of mixed ones, such kernels."""
    found = []
    for table, variant, profile in _taken(summary):
        for category, kind in profile.tensor_cores.items():
            own = [
                (_kernel(table, variant, profile, top), top["tensor_cores"])
                for top in profile.top
                if top["category"] == category
            ]
            if kind == "mixed":
                found += [kernel for kernel, cores in own if cores == "none"]
            if kind == "none":
                share = profile.shares[category]
                found.append(
                    _Seen(
                        name=category,
                        category=category,
                        device="gpu",
                        of=variant,
                        at=_at(table),
                        profile=profile.name,
                        share=share,
                        of_step=profile.step_shares.get(category, share),
                        kernels=tuple(kernel.name for kernel, _ in own),
                        active=profile.measured("any_tensor"),
                    )
                )
    return found + [
        _told(name, entry)
        for name, entry in _entries(summary)
        if entry["tensor_cores"] is False and is_matrix_work(entry["category"])
    ]


def _taken(summary: Summary) -> Iterator[tuple[ProfileTable, str, Profile]]:
    for table in summary.profiles:
        for variant, profile in table.profiles.items():
            yield table, variant, profile


def _entries(summary: Summary) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the categories of a record's profiles, with the name of their profile."""
    for profile in (summary.imported or {"profiles": ()})["profiles"]:
        for entry in profile["entries"]:
            yield profile["name"], entry


def _told(profile: str, entry: Mapping[str, Any]) -> _Seen:
    return _Seen(
        name=entry["kernel"] or entry["category"],
        category=entry["category"],
        device="gpu",
        of=f"profile {profile}",
        at="",
        profile=told_name(profile),
        share=entry["share"],
        of_step=entry["share"],
        blocks=entry["blocks"],
        sms=entry["sm_count"],
    )


def _grouped(parts: Iterable[_Seen], least: float, *by: str) -> dict[tuple[Any, ...], list[_Seen]]:
    """Returns what takes more than a share of the time, by some attributes, the largest first."""
    groups: dict[tuple[Any, ...], list[_Seen]] = {}
    for one in sorted(parts, key=lambda one: -one.share):
        if one.share > least:
            groups.setdefault(tuple(getattr(one, name) for name in by), []).append(one)
    return groups


def _shares(summary: Summary, seen: Sequence[_Seen]) -> str:
    """Returns in which profiles something was seen, with its shares: the largest first."""
    what = "decode time" if summary.imported else "the operations' time"
    first, *also = seen
    parts = [
        f"{one.share:.1%} in {one.of}{one.at if one.at != first.at else ''}" for one in also[:_ALSO]
    ]
    if len(also) > _ALSO:
        parts.append(f"{len(also) - _ALSO} more")
    text = f"{first.share:.1%} of {what} in {first.of}{first.at}"
    return f"{text} (also {', '.join(parts)})" if parts else text


def _profiles(seen: Sequence[_Seen]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.profile for one in seen))


def _at(table: ProfileTable) -> str:
    return f" under {table.workload} at C={table.concurrency}"


def communication_bound(summary: Summary) -> Iterator[Finding]:
    """Ranks that spend their time on one another."""
    splits = {p.name: p.communication for t in summary.profiles for p in t.profiles.values()}
    for one in summary.category_ceilings:
        if one.category not in _COMMUNICATION or one.share <= COMMUNICATION_BOUND or not one.gain:
            continue
        text = (
            f"{one.category} takes {one.share:.1%} of decode time in profile"
            f" {one.shares.name} (more than {COMMUNICATION_BOUND:.0%}); gone altogether it would"
            f" give at most {one.gain:.3f}."
        )
        split = splits.get(one.shares.name)
        if split and (total := split["transfer_us"] + split["wait_us"]):
            wait = split["wait_us"] / total
            text += f" Of it {1 - wait:.0%} is transfer and {wait:.0%} waiting for other ranks"
            text += (
                ": ranks are out of step, a faster link would give little."
                if wait > 0.5
                else ": the link, or how it is used, is what is slow."
            )
        yield Finding("communication-bound", text, (profile_name(summary, one.shares.name),))


def host_bound(summary: Summary) -> Iterator[Finding]:
    """A device that waits for the host: a sentence a load, on the profile that waits most."""
    for table in summary.profiles:
        idle = {
            variant: profile.idle_share
            for variant, profile in table.profiles.items()
            if profile.device != "cpu" and (profile.idle_share or 0.0) > HOST_BOUND
        }
        if not idle:
            continue
        most, *also = sorted(idle, key=lambda variant: -(idle[variant] or 0.0))
        text = _host_bound(summary, table, most)
        if also:
            text += f" Also in {', '.join(f'{name} ({idle[name]:.1%})' for name in also)}."
        names = tuple(table.profiles[name].name for name in (most, *also))
        rows = pooled_names(summary, [most], table.workload, table.concurrency)
        yield Finding("host-bound", text, (*names, *rows))


def _host_bound(summary: Summary, table: ProfileTable, variant: str) -> str:
    profile = table.profiles[variant]
    share, step_ms = profile.idle_share or 0.0, (profile.step_us or 0.0) / 1000
    text = (
        f"In the {'decode steps' if profile.steps else 'recording'} of {variant}{_at(table)} the"
        f" GPU has nothing to do for {share:.1%} of the time (more than {HOST_BOUND:.0%}): it waits"
        " for the host."
    )
    if profile.gaps and profile.gaps["count"]:
        gaps = profile.gaps
        text += (
            f" {gaps['count']:,} gaps between operations, of {gaps['median_us']:.1f} us (median)"
            f" and {gaps['total_us'] / gaps['count']:.1f} us (mean)."
        )
    if share < 1:
        text += f" Without any, decode would be at most {ceiling(share):.2f} times as fast."
    at = (variant, table.workload, table.concurrency)
    tpot_ms = summary.mean("mean_tpot_ms", *at)
    if tpot_ms and step_ms:
        measured_ms = tpot_ms * (summary.mean("accept_length", *at) or 1.0)
        left = max(0.0, 1 - step_ms * (1 - share) / measured_ms)
        text += (
            f" Recording slows the host: a recorded step takes {step_ms:.3g} ms, by the measured"
            f" TPOT it is {measured_ms:.3g} ms, in which the same work leaves {left:.0%} idle."
        )
        if left <= HOST_BOUND:
            text += " That is below the limit: it is the recording that makes the server wait."
    return text


def differences(summary: Summary) -> Iterator[Finding]:
    """What profiles explain of a TPOT that changed."""
    for one in summary.profile_differences:
        about = f"{one.variant} against {one.parent} under {one.workload} at C={one.concurrency}"
        if one.incomparable:
            text = f"{about}: their profiles are not compared: {one.incomparable}."
            yield Finding("difference", text, one.profiles)
            continue
        found = summary.explained(one)
        if found is None or found.rest_share is None:
            continue
        text = (
            f"{about}: TPOT {found.measured.before_ms:.4g} to {found.measured.after_ms:.4g} ms,"
            f" {found.change_ms:+.3g} ms ({_interval(found)}). A decode step of its profile takes"
            f" {found.ratio:.3f} times as long as its parent's, which explains"
            f" {found.explained_ms:+.3g} ms{_parts(one, found)}. Unexplained:"
            f" {found.rest_ms:+.3g} ms, {abs(found.rest_share):.0%} of the change."
            f"{_reason(one, found)}{_new_and_gone(one)}"
        )
        sides = (one.parent, one.variant)
        rows = pooled_names(summary, sides, one.workload, one.concurrency)
        yield Finding("difference", text, (*one.profiles, *rows))


def _interval(found: Explained) -> str:
    if found.low_ms is None or found.high_ms is None:
        return "unreplicated"
    return f"{found.low_ms:+.3g} to {found.high_ms:+.3g}"


def _parts(one: ProfileDifference, found: Explained) -> str:
    """Returns what the largest changes make of TPOT: ``: attention -9.8 ms, norm -0.4 ms``."""
    changes = [*one.categories, *([one.idle] if one.idle else [])]
    parts = {change.name: found.part_ms(change) for change in changes}
    told = sorted(parts.items(), key=lambda part: -abs(part[1]))[:_PARTS]
    least_ms = _LEAST_PART * abs(found.explained_ms)
    named = [f"{name} {ms:+.3g} ms" for name, ms in told if abs(ms) >= max(least_ms, 1e-9)]
    return f": {', '.join(named)}" if named else ""


def _reason(one: ProfileDifference, found: Explained) -> str:
    """Returns what can be said of a large unexplained part."""
    text = ""
    if one.uneven:
        text = (
            f" Something disturbed a recording: decode steps differ in {' and '.join(one.uneven)}."
        )
    if abs(found.rest_share or 0.0) <= LARGE_REST:
        return text
    low_ms, high_ms = found.low_ms, found.high_ms
    if low_ms is not None and high_ms is not None and low_ms <= found.explained_ms <= high_ms:
        return f"{text} What is explained lies inside the measured interval."
    before, after = found.recording
    return (
        f"{text} Recorded steps are {before:+.0%} and {after:+.0%} against what TPOT tells:"
        " recording does not cost both the same, and TPOT holds prefills between the steps."
    )


def _new_and_gone(one: ProfileDifference) -> str:
    if one.step is None:
        return ""
    text = ""
    for word, side, other in (("New", "after", "before"), ("Gone", "before", "after")):
        least_us = _LEAST_OPERATION * (getattr(one.step, side) or 0.0)
        named = [
            short(change.name)
            for change in one.operations
            if getattr(change, other) is None and (getattr(change, side) or 0.0) >= least_us
        ]
        if named:
            more = f" and {len(named) - _OPERATIONS} more" if len(named) > _OPERATIONS else ""
            text += f" {word}: {', '.join(named[:_OPERATIONS])}{more}."
    return text
