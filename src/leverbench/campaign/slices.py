"""The smallest part of a campaign that each job depends on.

A rule passes these as `params`: when a slice changes, that job is run again, and no other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from leverbench.campaign.model import (
    Agreement,
    ArgValue,
    Campaign,
    Engine,
    Limits,
    Probe,
    RecoveryStep,
    Workload,
)
from leverbench.records import digest


@dataclass(frozen=True)
class Patience:
    """How long a job waits, what it tries before it gives up, and which answers it notes.

    No part of any slice: it changes no figure of a server that starts as it was asked to.

    Attributes:
        start_s: From the launch of a server to ready.
        request_s: One request.
        recovery: By cause of a failed start, what is changed step by step.
        agreement: The prompts that a server is asked; None asks nothing.
    """

    start_s: float
    request_s: float
    recovery: Mapping[str, tuple[RecoveryStep, ...]]
    agreement: Agreement | None = None

    def as_resources(self) -> dict[str, int | str]:
        """Returns it as Snakemake's resources: whole numbers and text."""
        recovery = {cause: [asdict(s) for s in steps] for cause, steps in self.recovery.items()}
        return {
            "start_timeout_s": int(self.start_s),
            "request_timeout_s": int(self.request_s),
            "recovery": json.dumps(recovery, separators=(",", ":")),
            "agreement": json.dumps(
                asdict(self.agreement) if self.agreement else None, separators=(",", ":")
            ),
        }

    @property
    def recovery_digest(self) -> str:
        """Names the recovery steps: a failed start is tried again where they change."""
        return digest(self.as_resources()["recovery"])

    @classmethod
    def from_resources(cls, resources: Mapping[str, Any]) -> "Patience":
        """Rebuilds it inside a job."""
        recovery = json.loads(resources["recovery"])
        agreement = json.loads(resources["agreement"])
        return cls(
            resources["start_timeout_s"],
            resources["request_timeout_s"],
            {cause: tuple(RecoveryStep(**s) for s in steps) for cause, steps in recovery.items()},
            Agreement(**{**agreement, "prompts": tuple(agreement["prompts"])})
            if agreement
            else None,
        )


@dataclass(frozen=True)
class Launch:
    """All that determines one server, and how it is found ready.

    Attributes:
        campaign: Name of the campaign.
        variant: Name of the variant.
        session: Number of the session, from 1.
        engine: The server's settings.
        removed: Settings of the parent that this variant is without, as ``env.NAME``.
        model_path: Folder of the model; None where a server is attached and none is named.
        token_ids: First and last token id of prompts, where the campaign says so.
        devices: The devices that it takes.
        probe: The question it must answer.
        kernels: By name of the tunable kernels that it is given, the folders of what was
            published, relative to the project.
    """

    campaign: str
    variant: str
    session: int
    engine: Engine
    removed: tuple[str, ...]
    model_path: str | None
    token_ids: tuple[int, int] | None
    devices: tuple[str, ...]
    probe: Probe
    kernels: Mapping[str, str] = field(default_factory=dict)

    def as_params(self) -> dict[str, Any]:
        """Returns the slice as plain values; kernels only where there are any."""
        params = asdict(self)
        if not self.kernels:
            del params["kernels"]
        return params

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Launch":
        """Rebuilds the slice inside a job."""
        return cls(
            **{
                **params,
                "devices": tuple(params["devices"]),
                "removed": tuple(params["removed"]),
                "token_ids": tuple(params["token_ids"]) if params["token_ids"] else None,
                "engine": Engine.from_params(params["engine"]),
                "probe": Probe(**params["probe"]),
            }
        )

    def recovered(self, steps: Sequence[RecoveryStep]) -> "Launch":
        """Returns the launch with recovery steps taken; null removes a setting."""
        args: dict[str, ArgValue | None] = {**self.engine.args}
        env: dict[str, str | None] = {**self.engine.env}
        for step in steps:
            args |= step.args
            env |= step.env
        engine = replace(
            self.engine,
            args={name: value for name, value in sorted(args.items()) if value is not None},
            env={name: value for name, value in sorted(env.items()) if value is not None},
        )
        return replace(self, engine=engine)


@dataclass(frozen=True)
class Point:
    """What one measured point asks of a session's server.

    Attributes:
        workload_name: Name of the workload.
        workload: Where its prompts come from, and their lengths.
        concurrency: Requests in flight.
        requests: Requests planned.
        seed: Seed of the campaign.
        min_window_s: A shorter window gets more requests.
        warm_up_agreement: Largest difference of two windows that agree, as a share.
        max_warm_up_windows: Windows before an unsteady warm-up is given up.
        max_strangers_cpu_share: Share of the machine's CPU time that others may take.
        max_power_capped_share: Share of the samples in which a GPU may run at its power limit.
    """

    workload_name: str
    workload: Workload
    concurrency: int
    requests: int
    seed: int
    min_window_s: float
    warm_up_agreement: float
    max_warm_up_windows: int
    max_strangers_cpu_share: float
    max_power_capped_share: float = Limits.max_power_capped_share

    def as_params(self) -> dict[str, Any]:
        """Returns the slice as plain values; a limit that came later only where it is set."""
        params = {**asdict(self), "workload": self.workload.as_params()}
        if self.max_power_capped_share == Limits.max_power_capped_share:
            del params["max_power_capped_share"]
        return params

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Point":
        """Rebuilds the slice inside a job."""
        return cls(**{**params, "workload": Workload.from_params(params["workload"])})


@dataclass(frozen=True)
class ProfileSlice:
    """What one profile asks of a session's server.

    Attributes:
        workload_name: Name of the workload.
        workload: Where its prompts come from, and their lengths.
        concurrency: Requests in flight.
        steps: Decode steps.
        seed: Seed of the campaign.
    """

    workload_name: str
    workload: Workload
    concurrency: int
    steps: int
    seed: int

    def as_params(self) -> dict[str, Any]:
        """Returns the slice as plain values."""
        return {**asdict(self), "workload": self.workload.as_params()}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "ProfileSlice":
        """Rebuilds the slice inside a job."""
        return cls(**{**params, "workload": Workload.from_params(params["workload"])})


def launch_slice(
    campaign: Campaign, variant: str, session: int, kernels: Mapping[str, str] | None = None
) -> Launch:
    """Returns what a session's server depends on.

    Args:
        campaign: The resolved campaign.
        variant: Name of the variant.
        session: Number of the session.
        kernels: The kernels that the variant's server is given, and where each is published; None
            where there are none.
    """
    return Launch(
        campaign=campaign.name,
        variant=variant,
        session=session,
        engine=campaign.variants[variant].engine,
        removed=tuple(
            key for key, (_, new) in campaign.variants[variant].delta.items() if new is None
        ),
        model_path=campaign.model_path,
        token_ids=campaign.token_ids,
        devices=campaign.devices,
        probe=campaign.probe,
        kernels=kernels or {},
    )


def point_slice(campaign: Campaign, workload: str, concurrency: int) -> Point:
    """Returns what a point depends on besides its server."""
    return Point(
        workload_name=workload,
        workload=campaign.workloads[workload],
        concurrency=concurrency,
        requests=campaign.requests(concurrency),
        seed=campaign.seed,
        min_window_s=campaign.limits.min_window_s,
        warm_up_agreement=campaign.limits.warm_up_agreement,
        max_warm_up_windows=campaign.limits.max_warm_up_windows,
        max_strangers_cpu_share=campaign.limits.max_strangers_cpu_share,
        max_power_capped_share=campaign.limits.max_power_capped_share,
    )


def profile_slice(campaign: Campaign, workload: str, concurrency: int) -> ProfileSlice:
    """Returns what a profile depends on besides its server."""
    return ProfileSlice(
        workload_name=workload,
        workload=campaign.workloads[workload],
        concurrency=concurrency,
        steps=campaign.profile.steps,
        seed=campaign.seed,
    )


def patience(campaign: Campaign) -> Patience:
    """Returns how long the campaign's jobs wait, and what they try."""
    limits = campaign.limits
    return Patience(
        limits.start_timeout_s, limits.request_timeout_s, campaign.recovery, campaign.agreement
    )
