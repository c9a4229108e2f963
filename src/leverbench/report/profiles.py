"""The profiles of a campaign, as the report shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench.analysis.ceilings import Shares
from leverbench.errors import LeverbenchError
from leverbench.records import read_record
from leverbench.serving.failures import Outcome

# Operations that no category claims; above this share the categories say too little.
OTHER = "other"
LARGE_OTHER = 0.1


@dataclass(frozen=True)
class Profile:
    """One profile that was taken.

    Attributes:
        name: Its record's folder below ``results/{campaign}``.
        device: What it ran on, such as ``cpu``.
        machine: The fingerprint of that machine.
        decode_steps: Decode steps in it, None where it does not tell.
        in_flight: Requests that were in flight.
        total_us: Time of all operations, in microseconds.
        shares: Share of that time by category, the largest first.
        in_loops: The part of these shares that is there by inference, in loops around operations.
        top: The longest operations, the longest first.
        other_top: Names of the longest ones that no category claims.
        files: The trace files.
    """

    name: str
    device: str | None
    machine: Mapping[str, Any]
    decode_steps: int | None
    in_flight: Any
    total_us: float | None
    shares: Mapping[str, float]
    in_loops: Mapping[str, float]
    top: Sequence[Mapping[str, Any]]
    other_top: Sequence[str]
    files: Sequence[Mapping[str, Any]]

    @property
    def large_other(self) -> float | None:
        """The share of operations that no category claims, where it is large."""
        share = self.shares.get(OTHER, 0.0)
        return share if share > LARGE_OTHER else None


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
                profiles[at] = _profile(record, *at)
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
        Shares(profile.name, variant, table.workload, table.concurrency, profile.shares)
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


def _profile(record: Mapping[str, Any], variant: str, workload: str, concurrency: int) -> Profile:
    shares = {str(entry["category"]): float(entry["share"]) for entry in record["categories"]}
    return Profile(
        name=f"{variant}/profile/{workload}/c{concurrency}",
        device=record["machine"]["device"],
        machine=record["machine"],
        decode_steps=record["decode_steps"],
        in_flight=record["in_flight"],
        total_us=record["total_us"],
        shares=dict(sorted(shares.items(), key=lambda entry: -entry[1])),
        # Profiles of before had no loops.
        in_loops={
            str(entry["category"]): float(entry.get("in_loops", 0.0))
            for entry in record["categories"]
        },
        top=[
            {key: entry[key] for key in ("name", "category", "calls", "self_us", "share")}
            for entry in record["top"]
        ],
        other_top=[str(name) for name in record["other_top"]],
        files=[
            {key: entry[key] for key in ("name", "bytes", "sha256", "rank", "events")}
            for entry in record["files"]
        ],
    )
