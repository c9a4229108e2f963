"""The plan: what a campaign will do, as a record and as text."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Campaign, RecoveryStep
from leverbench.campaign.order import Session, session_order
from leverbench.errors import LeverbenchError
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.records import append_line, read_record

# How long launches and points took in this project, one JSON line each.
HISTORY = Path("state/history.jsonl")


def note_history(what: str, seconds: float, campaign: str | None = None) -> None:
    """Notes how long something took; estimates rest on it, results do not."""
    # Where there is no room for this line, what was measured must not be lost for it.
    with suppress(OSError):
        append_line(HISTORY, {"campaign": campaign, "what": what, "seconds": seconds})


def planned_order(campaign: Campaign, results: Path) -> list[Session]:
    """Returns the campaign's sessions in the order they are run.

    What an earlier plan of the same file had begun keeps its place, and so does what was measured
    outside of it, such as a variant that was taken out for a while: see `session_order`.

    Args:
        campaign: The resolved campaign.
        results: The campaign's folder of results, which need not exist.

    Raises:
        LeverbenchError: The earlier plan is damaged, or an import's.
    """
    sessions = {name: variant.sessions for name, variant in campaign.variants.items()}
    parents = {name: variant.parent for name, variant in campaign.variants.items()}
    # Without an earlier plan: what it would have been.
    planned = session_order(sessions, parents, campaign.seed)
    begun = _begun(campaign, results, planned)
    return session_order(sessions, parents, campaign.seed, begun)


def _begun(campaign: Campaign, results: Path, planned: Sequence[Session]) -> list[Session]:
    """Returns the sessions of blocks that were begun, in the order in which they were planned."""
    path = results / "plan.json"
    if path.exists():
        plan = read_record(path)
        if plan.get("imported"):
            raise LeverbenchError(
                f"an import of the name {campaign.name} is here",
                where=str(path),
                cure="Give the campaign another name, or delete the import's folder.",
            )
        if plan.get("file") != campaign.file:
            return []
        try:
            planned = [(str(variant), int(number)) for variant, number in plan["order"]]
        except (LookupError, TypeError, ValueError):
            raise LeverbenchError(
                "the plan has no readable order of sessions",
                where=str(path),
                cure="Delete the file: it is made anew, and what was measured stays.",
            ) from None
    measured = [
        (name, int(record.parent.name[1:]))
        for name in campaign.variants
        for record in sorted((results / name).glob("s[1-9]*/server.json"))
        if record.parent.name[1:].isdigit()
    ]
    last = max((number for _, number in measured), default=0)
    begun = dict.fromkeys(session for session in planned if session[1] <= last)
    return list(begun | dict.fromkeys(measured))


def plan_record(
    campaign: Campaign,
    order: Sequence[Session],
    kernels: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Returns `plan.json`: the resolved campaign, without estimates or narrowed targets.

    Args:
        campaign: The resolved campaign.
        order: Its sessions in the order they are run.
        kernels: By variant and kernel, the folder that the kernel is published in; None where
            there are none.
    """
    given = kernels or {}
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
        "model": {
            "path": campaign.model_path,
            "prepare": campaign.prepare,
            "token_ids": list(campaign.token_ids) if campaign.token_ids else None,
        },
        "devices": ["attached"] if campaign.attached else list(campaign.devices),
        "device": campaign.device,
        "protocol": PROTOCOL_VERSION,
        "seed": campaign.seed,
        "probe": asdict(campaign.probe),
        "agreement": (
            {**asdict(campaign.agreement), "prompts": list(campaign.agreement.prompts)}
            if campaign.agreement
            else None
        ),
        "limits": asdict(campaign.limits),
        "profile": {**asdict(campaign.profile), "concurrency": list(campaign.profile.concurrency)},
        "until": campaign.until,
        "equal_within": campaign.equal_within,
        "goodput": asdict(campaign.goodput) if campaign.goodput else None,
        "recovery": {
            cause: [asdict(step) for step in steps] for cause, steps in campaign.recovery.items()
        },
        "workloads": {name: workload.as_params() for name, workload in campaign.workloads.items()},
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
                "cross": list(variant.cross),
                "touches": list(variant.touches),
                # The folders that its kernels are published in.
                **({"kernels": dict(given[name])} if name in given else {}),
            }
            for name, variant in campaign.variants.items()
        },
        "order": [list(session) for session in order],
        # What is known of the kernels beside what their builds are named by.
        **(
            {
                "kernels": {
                    name: {"touches": list(kernel.touches), "size": kernel.size}
                    for name, kernel in campaign.kernels.items()
                }
            }
            if campaign.kernels
            else {}
        ),
    }


def estimate_s(campaign: Campaign, order: Sequence[Session], history: Path) -> float | None:
    """Estimates a whole campaign from what it took before, in seconds.

    Medians of its earlier launches, of its points by concurrency, and of its profiles; None where
    the history lacks one of them. Other campaigns have other models and machines.
    """
    seconds: dict[str, list[float]] = {}
    with suppress(OSError):
        for line in history.read_bytes().splitlines():
            # A line may be torn, by a full disk or a kill.
            with suppress(ValueError, LookupError, TypeError):
                entry = json.loads(line)
                if entry["campaign"] == campaign.name:
                    seconds.setdefault(entry["what"], []).append(float(entry["seconds"]))
    profiles = len(campaign.variants) * len(campaign.workloads) * len(campaign.profile.concurrency)
    needed = [f"point c{c}" for c in campaign.ladder] + ["profile"] * bool(profiles)
    needed += [] if campaign.attached else ["launch"]
    if any(what not in seconds for what in needed):
        return None
    median = {what: statistics.median(values) for what, values in seconds.items()}
    points = sum(median[f"point c{c}"] for c in campaign.ladder) * len(campaign.workloads)
    launch = 0.0 if campaign.attached else median["launch"]
    return len(order) * (launch + points) + profiles * median.get("profile", 0.0)


def describe(campaign: Campaign, order: Sequence[Session], history: Path, measured: int) -> str:
    """Returns the plan as text: variants, deltas, order, jobs and estimated time.

    Args:
        campaign: The resolved campaign.
        order: Its sessions in the order they are run.
        history: This project's history.
        measured: How many of the planned points have a record.
    """
    lines = [f"campaign {campaign.name} ({campaign.file})"]
    if campaign.overrides:
        changed = ", ".join(f"{key}={value}" for key, value in campaign.overrides.items())
        lines.append(f"  changed for this run: {changed}")
    where = "servers that others started" if campaign.attached else " ".join(campaign.devices)
    device = f" ({campaign.device})" if campaign.device else ""
    lines.append(f"  model {campaign.model_path or 'of the server'}, on {where}{device}")
    lines.append("variants")
    width = max(map(len, campaign.variants))
    for name, variant in campaign.variants.items():
        if variant.parent is None:
            change = "root"
        elif variant.control:
            change = f"control of {variant.parent}"
        else:
            delta = ", ".join(
                f"{key}: {_shown(old)} -> {_shown(new)}"
                for key, (old, new) in variant.delta.items()
            )
            lever = "+".join(variant.levers) + (" (confounded)" if variant.confounded else "")
            change = f"from {variant.parent}, {lever}: {delta}"
        lines.append(f"  {name:<{width}}  {change}")
    if any(variant.engine.tuned for variant in campaign.variants.values()):
        lines.append("kernels")
    for kernel in campaign.kernels.values():
        tried = f"{math.prod(map(len, kernel.parameters.values()))} candidates"
        source = f"files of {kernel.given}" if kernel.given else tried
        at = f" at {kernel.size} {', '.join(map(str, kernel.sizes))}" if kernel.size else ""
        shapes = "1 shape" if len(kernel.shapes) == 1 else f"{len(kernel.shapes)} shapes"
        lines.append(f"  {kernel.name}: {source}, {shapes}{at}")
        named = (" ".join(f"{n}={value}" for n, value in shape.items()) for shape in kernel.shapes)
        lines.append(f"    {', '.join(named)}")
    for name in campaign.unshaped:
        seen = campaign.shapes_from[name] == "discover"
        lines.append(
            f"  {name}: its shapes are not known yet" + (": a launch will tell" if seen else "")
        )
    known = {**campaign.kernels, **campaign.unshaped}
    asked = dict.fromkeys(n for v in campaign.variants.values() for n in v.engine.tuned)
    lines += [f"  {name}: there is no such kernel" for name in asked if name not in known]
    lines.append("order")
    blocks: dict[int, list[str]] = {}
    for name, session in order:
        blocks.setdefault(session, []).append(name)
    lines += [f"  session {session}: {', '.join(names)}" for session, names in blocks.items()]
    launches, kind = len(order), "sessions" if campaign.attached else "launches"
    points = launches * len(campaign.workloads) * len(campaign.ladder)
    profiles = len(campaign.variants) * len(campaign.workloads) * len(campaign.profile.concurrency)
    ladder = ", ".join(f"C={c}: {n} requests" for c, n in campaign.ladder.items())
    lines.append("ladder")
    lines.append(f"  {ladder}")
    lines += [
        f"  C={c}: fewer requests than 2C, so that ramp-up and drain weigh heavily"
        for c, requests in campaign.ladder.items()
        if requests < 2 * c
    ]
    for cause, steps in campaign.recovery.items():
        tried = "; then ".join(_settings(step) for step in steps)
        lines.append(f"recovery from {cause}: {tried} (the variant is confounded then)")
    estimate = estimate_s(campaign, order, history)
    lines.append(
        f"jobs: {launches} {kind}, {points} points ({measured} of them measured),"
        f" {profiles} profiles"
    )
    lines.append(
        "estimated time: unknown until this campaign has measured once"
        if estimate is None
        else f"estimated time: {estimate / 60:.0f} min for all, from its own history"
    )
    return "\n".join(lines)


def _settings(step: RecoveryStep) -> str:
    changed = {**{f"args.{k}": v for k, v in step.args.items()}, **step.env}
    return ", ".join(f"{key}: {_shown(value)}" for key, value in changed.items())


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)
