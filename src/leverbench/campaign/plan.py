"""The plan: what a campaign will do, as a record and as text."""

import json
import statistics
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Campaign
from leverbench.campaign.order import session_order
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.records import append_line

# How long launches and points took in this project, one JSON line each.
HISTORY = Path("state/history.jsonl")


def note_history(what: str, seconds: float) -> None:
    """Notes how long something took; estimates rest on it, results do not."""
    # Where there is no room for this line, what was measured must not be lost for it.
    with suppress(OSError):
        append_line(HISTORY, {"what": what, "seconds": seconds})


def order_of(campaign: Campaign) -> list[tuple[str, int]]:
    """Returns the campaign's sessions in the order they are run."""
    sessions = {name: variant.sessions for name, variant in campaign.variants.items()}
    return session_order(sessions, campaign.seed)


def plan_record(campaign: Campaign) -> dict[str, Any]:
    """Returns `plan.json`: the resolved campaign, without estimates or narrowed targets."""
    return {
        "kind": "plan",
        "campaign": campaign.name,
        "file": campaign.file,
        "description": campaign.description,
        "overrides": dict(campaign.overrides),
        "target": (
            None
            if campaign.target_output_tok_per_s is None
            else {"output_tok_per_s": campaign.target_output_tok_per_s}
        ),
        "model": {"path": campaign.model_path, "prepare": campaign.prepare},
        "devices": list(campaign.devices),
        "protocol": PROTOCOL_VERSION,
        "seed": campaign.seed,
        "probe": asdict(campaign.probe),
        "limits": asdict(campaign.limits),
        "workloads": {name: asdict(workload) for name, workload in campaign.workloads.items()},
        "ladder": {str(c): requests for c, requests in campaign.ladder.items()},
        "variants": {
            name: {
                "parent": variant.parent,
                "levers": list(variant.levers),
                "confounded": variant.confounded,
                "control": variant.control,
                "sessions": variant.sessions,
                "engine": asdict(variant.engine),
                "delta": {key: list(change) for key, change in variant.delta.items()},
            }
            for name, variant in campaign.variants.items()
        },
        "order": [list(session) for session in order_of(campaign)],
    }


def estimate_s(campaign: Campaign, history: Path) -> float | None:
    """Estimates a whole campaign from this project's own history, in seconds.

    Medians of earlier launches and, by concurrency, of earlier points; None where the history
    lacks one of them.
    """
    seconds: dict[str, list[float]] = {}
    with suppress(OSError):
        for line in history.read_bytes().splitlines():
            # A line may be torn, by a full disk or a kill.
            with suppress(ValueError, LookupError, TypeError):
                entry = json.loads(line)
                seconds.setdefault(entry["what"], []).append(float(entry["seconds"]))
    needed = ["launch", *(f"point c{c}" for c in campaign.ladder)]
    if any(what not in seconds for what in needed):
        return None
    median = {what: statistics.median(values) for what, values in seconds.items()}
    points = sum(median[f"point c{c}"] for c in campaign.ladder) * len(campaign.workloads)
    return len(order_of(campaign)) * (median["launch"] + points)


def describe(campaign: Campaign, history: Path, measured: int) -> str:
    """Returns the plan as text: variants, deltas, order, jobs and estimated time.

    Args:
        campaign: The resolved campaign.
        history: This project's history.
        measured: How many of the planned points have a record.
    """
    lines = [f"campaign {campaign.name} ({campaign.file})"]
    if campaign.overrides:
        changed = ", ".join(f"{key}={value}" for key, value in campaign.overrides.items())
        lines.append(f"  changed for this run: {changed}")
    lines.append(f"  model {campaign.model_path}, on {' '.join(campaign.devices)}")
    lines.append("variants")
    width = max(map(len, campaign.variants))
    for name, variant in campaign.variants.items():
        if variant.parent is None:
            change = "root"
        elif variant.control:
            change = f"control of {variant.parent}"
        else:
            delta = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in variant.delta.items())
            lever = "+".join(variant.levers) + (" (confounded)" if variant.confounded else "")
            change = f"from {variant.parent}, {lever}: {delta}"
        lines.append(f"  {name:<{width}}  {change}")
    lines.append("order")
    blocks: dict[int, list[str]] = {}
    for name, session in order_of(campaign):
        blocks.setdefault(session, []).append(name)
    lines += [f"  session {session}: {', '.join(names)}" for session, names in blocks.items()]
    launches = len(order_of(campaign))
    points = launches * len(campaign.workloads) * len(campaign.ladder)
    ladder = ", ".join(f"C={c}: {n} requests" for c, n in campaign.ladder.items())
    lines.append("ladder")
    lines.append(f"  {ladder}")
    lines += [
        f"  C={c}: fewer requests than 2C, so that ramp-up and drain weigh heavily"
        for c, requests in campaign.ladder.items()
        if requests < 2 * c
    ]
    estimate = estimate_s(campaign, history)
    lines.append(f"jobs: {launches} launches, {points} points, {measured} of them measured")
    lines.append(
        "estimated time: unknown until this project has measured once"
        if estimate is None
        else f"estimated time: {estimate / 60:.0f} min for all, from this project's own history"
    )
    return "\n".join(lines)
