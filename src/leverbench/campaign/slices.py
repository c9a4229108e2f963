"""The smallest part of a campaign that each job depends on.

A rule passes these as `params`: when a slice changes, that job is run again, and no other.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from leverbench.campaign.model import Campaign, Engine, Probe, Workload


@dataclass(frozen=True)
class Timeouts:
    """How long a job waits; no part of any slice, since patience changes no figure.

    Attributes:
        start_s: From the launch of a server to ready.
        request_s: One request.
    """

    start_s: float
    request_s: float


@dataclass(frozen=True)
class Launch:
    """All that determines one server, and how it is found ready.

    Attributes:
        campaign: Name of the campaign.
        variant: Name of the variant.
        session: Number of the session, from 1.
        engine: The server's settings.
        removed: Settings of the parent that this variant is without, as ``env.NAME``.
        model_path: Folder of the model.
        devices: The devices that it takes.
        probe: The question it must answer.
    """

    campaign: str
    variant: str
    session: int
    engine: Engine
    removed: tuple[str, ...]
    model_path: str
    devices: tuple[str, ...]
    probe: Probe

    def as_params(self) -> dict[str, Any]:
        """Returns the slice as plain values."""
        return asdict(self)

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Launch":
        """Rebuilds the slice inside a job."""
        engine = {**params["engine"], "wrapper": tuple(params["engine"]["wrapper"])}
        return cls(
            **{
                **params,
                "devices": tuple(params["devices"]),
                "removed": tuple(params["removed"]),
                "engine": Engine(**engine),
                "probe": Probe(**params["probe"]),
            }
        )


@dataclass(frozen=True)
class Point:
    """What one measured point asks of a session's server.

    Attributes:
        workload_name: Name of the workload.
        workload: Its lengths.
        concurrency: Requests in flight.
        requests: Requests planned.
        seed: Seed of the campaign.
        min_window_s: A shorter window gets more requests.
        warm_up_agreement: Largest difference of two windows that agree, as a share.
        max_warm_up_windows: Windows before an unsteady warm-up is given up.
    """

    workload_name: str
    workload: Workload
    concurrency: int
    requests: int
    seed: int
    min_window_s: float
    warm_up_agreement: float
    max_warm_up_windows: int

    def as_params(self) -> dict[str, Any]:
        """Returns the slice as plain values."""
        return asdict(self)

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Point":
        """Rebuilds the slice inside a job."""
        return cls(**{**params, "workload": Workload(**params["workload"])})


def launch_slice(campaign: Campaign, variant: str, session: int) -> Launch:
    """Returns what a session's server depends on."""
    return Launch(
        campaign=campaign.name,
        variant=variant,
        session=session,
        engine=campaign.variants[variant].engine,
        removed=tuple(
            key for key, (_, new) in campaign.variants[variant].delta.items() if new is None
        ),
        model_path=campaign.model_path,
        devices=campaign.devices,
        probe=campaign.probe,
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
    )
