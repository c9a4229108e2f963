"""The profiles of a campaign, as the report shows them."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leverbench.analysis.ceilings import Shares
from leverbench.analysis.differences import ProfileTimes, profile_times
from leverbench.errors import LeverbenchError
from leverbench.profiling.categories import OTHER
from leverbench.records import read_record
from leverbench.serving.failures import Outcome

# Above this share of operations that no category claims, the categories say too little.
LARGE_OTHER = 0.1
# Categories of matrix products, which tensor cores are made for: of ours, and of records of others.
_MATRIX_WORK = re.compile(r"attention|gemm|gemv|matmul|\bmoe(?!-routing)")
# What a report shows of a GPU's activity.
_MEASURED = ("any_tensor", "dram_bandwidth")
# Beside a profile's record, by the same job.
_OPERATIONS = "kernels.parquet"


@dataclass(frozen=True)
class Profile:
    """One profile that was taken.

    Profiles of before know of no steps, gaps, launches and tensor cores: what they do not tell is
    None or empty.

    Attributes:
        name: Its record's folder below ``results/{campaign}``.
        device: What it ran on, such as ``cpu``.
        machine: The fingerprint of that machine.
        decode_steps: Decode steps in it, None where it does not tell.
        in_flight: Requests that were in flight.
        total_us: Time of all operations, in microseconds.
        shares: Share of that time by category, the largest first.
        step_shares: Share of a decode step by category: what it would lose without the category,
            the gaps before its operations included. Of the recording where no steps were found,
            and so are idle time and gaps.
        step_us: Mean duration of a decode step.
        steps: How these were found, how many were kept, how many left out at the edges; None
            without steps.
        idle_share: Part of the steps in which the device had nothing to do.
        gaps: Number and median of the times without any operation.
        communication: Time of collectives: the transfer, and waiting for other ranks.
        tensor_cores: By category of matrix work, whether its operations use them, as their names
            tell.
        tensor_activity: What the machine measured of them.
        truncated: What is missing of a trace.
        in_loops: The part of these shares that is there by inference, in loops around operations.
        top: The longest operations, the longest first.
        other_top: Names of the longest ones that no category claims.
        files: The trace files.
        times: What a difference to another profile needs.
    """

    name: str
    device: str | None
    machine: Mapping[str, Any]
    decode_steps: int | None
    in_flight: Any
    total_us: float | None
    shares: Mapping[str, float]
    step_shares: Mapping[str, float]
    step_us: float | None
    steps: Mapping[str, Any] | None
    idle_share: float | None
    gaps: Mapping[str, Any] | None
    communication: Mapping[str, float] | None
    tensor_cores: Mapping[str, str]
    tensor_activity: Mapping[str, Any] | None
    truncated: str | None
    in_loops: Mapping[str, float]
    top: Sequence[Mapping[str, Any]]
    other_top: Sequence[str]
    files: Sequence[Mapping[str, Any]]
    times: ProfileTimes

    @property
    def large_other(self) -> float | None:
        """The share of operations that no category claims, where it is large."""
        share = self.shares.get(OTHER, 0.0)
        return share if share > LARGE_OTHER else None

    def measured(self, figure: str) -> float | None:
        """Returns a measured figure of the GPUs' activity, their mean; None where there is none."""
        gpus = (self.tensor_activity or {}).get("gpus") or ()
        told = [gpu[figure] for gpu in gpus if gpu.get(figure) is not None]
        return statistics.fmean(told) if told else None

    @property
    def decode_shares(self) -> Mapping[str, float]:
        """Share of decode time by category: of a step where steps were found."""
        return self.step_shares or self.shares


@dataclass(frozen=True)
class ProfileHole:
    """A planned profile that there is not.

    Attributes:
        variant: Its variant.
        workload: Its workload.
        concurrency: Its concurrency.
        kind: ``failed`` (lasting) or ``missing``.
        reason: The outcome in one word; empty where missing.
        detail: The message that was recorded; empty where there is none.
    """

    variant: str
    workload: str
    concurrency: int
    kind: str
    reason: str
    detail: str


@dataclass(frozen=True)
class ProfileTable:
    """The profiles of all variants at one workload and concurrency.

    Attributes:
        workload: Of all of them.
        concurrency: Of all of them.
        categories: In the order of the first profile's shares, which is the baseline's if it has
            one; then the others'.
        profiles: Those that were taken, by variant.
        holes: Those that were not, by variant.
    """

    workload: str
    concurrency: int
    categories: Sequence[str]
    profiles: Mapping[str, Profile]
    holes: Mapping[str, ProfileHole]

    @property
    def on_cpu(self) -> bool:
        """Whether one of them was taken on a CPU."""
        return any(profile.device == "cpu" for profile in self.profiles.values())

    @property
    def has_loops(self) -> bool:
        """Whether part of a share is there by inference, in one of them."""
        return any(share for p in self.profiles.values() for share in p.in_loops.values())

    @property
    def has_steps(self) -> bool:
        """Whether one of them tells shares of decode steps on a GPU."""
        return any(p.step_shares and p.device != "cpu" for p in self.profiles.values())

    @property
    def has_tensor_cores(self) -> bool:
        """Whether one of them has an inference on tensor cores."""
        return any(profile.tensor_cores for profile in self.profiles.values())

    @property
    def machines(self) -> int:
        """On how many different machines they were taken."""
        return len({tuple(sorted(map(str, p.machine.items()))) for p in self.profiles.values()})


def read_profiles(plan: Mapping[str, Any], paths: Sequence[Path]) -> list[ProfileTable]:
    """Reads the profiles of a campaign: a table for each workload and concurrency planned.

    Args:
        plan: The campaign's plan.
        paths: The profile records that exist.

    Raises:
        LeverbenchError: A record is truncated, or not a profile of this campaign.
    """
    profiles: dict[tuple[str, str, int], Profile] = {}
    failed: dict[tuple[str, str, int], ProfileHole] = {}
    for path in paths:
        record = read_record(path)
        try:
            if record["kind"] != "profile" or record["campaign"] != plan["campaign"]:
                raise ValueError(f"a {record['kind']} of campaign {record['campaign']}")
            at = str(record["variant"]), str(record["workload"]), int(record["concurrency"])
            if record["outcome"] == Outcome.PROFILED:
                profiles[at] = _profile(record, path.with_name(_OPERATIONS), *at)
            else:
                failed[at] = ProfileHole(
                    *at, "failed", str(record["outcome"]), record["detail"] or ""
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LeverbenchError(
                f"not a profile of campaign {plan['campaign']} ({error!r})",
                where=str(path),
                cure="Delete the file and run again: it is made anew, with what depends on it.",
            ) from None
    tables = []
    for workload in plan["workloads"]:
        for concurrency in plan["profile"]["concurrency"]:
            here = {name: (name, workload, concurrency) for name in plan["variants"]}
            taken = {name: profiles[at] for name, at in here.items() if at in profiles}
            tables.append(
                ProfileTable(
                    workload=workload,
                    concurrency=concurrency,
                    categories=list(dict.fromkeys(c for p in taken.values() for c in p.shares)),
                    profiles=taken,
                    holes={
                        name: failed.get(at, ProfileHole(*at, "missing", "", ""))
                        for name, at in here.items()
                        if at not in profiles
                    },
                )
            )
    return tables


def decode_shares(plan: Mapping[str, Any], tables: Sequence[ProfileTable]) -> list[Shares]:
    """Returns the shares of every profile: those taken, and those of a record of others."""
    taken = [
        Shares(profile.name, variant, table.workload, table.concurrency, profile.decode_shares)
        for table in tables
        for variant, profile in table.profiles.items()
    ]
    told = [
        Shares(
            profile["name"],
            None,
            None,
            profile["concurrency"],
            {entry["category"]: entry["share"] for entry in profile["entries"]},
        )
        for profile in (plan.get("imported") or {"profiles": ()})["profiles"]
    ]
    return taken + told


def is_matrix_work(category: str) -> bool:
    """Returns whether a category is of matrix products, by its name."""
    return _MATRIX_WORK.search(category) is not None


def told_name(profile: str) -> str:
    """Returns how findings name a profile of a record of others, which has no folder."""
    return f"profile/{profile}"


def _profile(
    record: Mapping[str, Any], operations: Path, variant: str, workload: str, concurrency: int
) -> Profile:
    name = f"{variant}/profile/{workload}/c{concurrency}"
    categories = record["categories"]
    for entry in categories:
        if min(float(entry["share"]), float(entry.get("step_share") or 0.0)) < 0:
            raise ValueError(f"a share of {entry['category']} is below 0")
    shares = {str(entry["category"]): float(entry["share"]) for entry in categories}
    steps = record.get("steps")
    gaps, split = record.get("gaps") or {}, record.get("communication")
    activity = record.get("tensor_activity")
    for gpu in (activity or {}).get("gpus") or ():
        _figures(gpu, *(key for key in _MEASURED if gpu.get(key) is not None))
    times = profile_times(name, record, _read_operations(operations, _device(record)))
    found = times.untimed is None
    return Profile(
        name=name,
        device=record["machine"]["device"],
        machine=record["machine"],
        decode_steps=_figure(record, "decode_steps"),
        in_flight=record["in_flight"],
        total_us=_figure(record, "total_us"),
        shares=dict(sorted(shares.items(), key=lambda entry: -entry[1])),
        step_shares={
            str(entry["category"]): float(entry["step_share"])
            for entry in categories
            if entry.get("step_share") is not None
        },
        step_us=times.step_us,
        steps=steps if found else None,
        idle_share=record.get("idle_share"),
        gaps=_figures(gaps, "count", "total_us", "median_us") if gaps.get("count") else None,
        communication=_figures(split, "transfer_us", "wait_us") if split else None,
        tensor_cores={
            str(entry["category"]): str(entry["tensor_cores"])
            for entry in categories
            if entry.get("tensor_cores") is not None and is_matrix_work(entry["category"])
        },
        tensor_activity=activity,
        truncated=record.get("truncated"),
        in_loops={
            str(entry["category"]): float(entry.get("in_loops", 0.0)) for entry in categories
        },
        top=[
            {
                **{key: entry[key] for key in ("name", "category")},
                **_figures(entry, "calls", "self_us", "share"),
                **{key: entry.get(key) for key in ("per_step_us", "tensor_cores", "geometry")},
            }
            for entry in record["top"]
        ],
        other_top=[str(name) for name in record["other_top"]],
        files=[
            {key: entry[key] for key in ("name", "bytes", "sha256", "rank", "events")}
            for entry in record["files"]
        ],
        times=times,
    )


def _figures(told: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    found = {key: told[key] for key in keys}
    for key, value in found.items():
        if not isinstance(value, int | float):
            raise TypeError(f"{key}: {value!r} is no number")
    return found


def _figure(record: Mapping[str, Any], key: str) -> Any:
    return None if record[key] is None else _figures(record, key)[key]


def _device(record: Mapping[str, Any]) -> str:
    """Returns the device whose operations a record counts."""
    return str(record.get("device") or record["machine"]["device"])


def _read_operations(path: Path, device: str) -> list[dict[str, Any]]:
    """Reads the operations of a profile on its device; none where there is no such file."""
    if not path.exists():
        return []
    try:
        rows = pq.read_table(path).to_pylist()
        return [row for row in rows if row["device"] == device]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise LeverbenchError(
            f"not the operations of a profile ({error})",
            where=str(path),
            cure="Delete the profile's record and run again: both are made anew.",
        ) from None
