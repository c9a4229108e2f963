"""Settings: what a variant changes, what recovery changed on top, and the control for that."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

# Settings whose change can be a change of the engine.
_OTHER_ENGINE = {"version", "python", "wrapper", "attach"}
# The longest name that the campaign's schema takes.
_LONGEST_NAME = 64

# Steps as records list them: ``{"cause": why, "args": settings, "env": settings}``.
Steps = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MatchedControl:
    """A variant that has the recovery steps of one side of a comparison, and not its lever.

    Attributes:
        name: Its name.
        yaml: Its entry below ``variants:`` of the campaign file.
        planned: Whether the campaign has it already.
        compare: What to do with its ratio.
    """

    name: str
    yaml: str
    planned: bool
    compare: str


def as_text(value: Any) -> str:
    """Returns a setting as a person would write it; None is ``unset``."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def changes(variant: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns a planned variant's delta as ``{"args.dtype": (old, new)}``; None is unset."""
    return {key: (old, new) for key, (old, new) in variant["delta"].items()}


def free_conditions(variant: Mapping[str, Any]) -> frozenset[str]:
    """Returns which conditions of a planned variant may be others than its parent's.

    Where the engine is the lever, it is another one. Another server of others is another one
    altogether, and need not be on this machine.
    """
    free = {"engine"} if _OTHER_ENGINE & variant["delta"].keys() else set()
    return frozenset(free | ({"machine"} if "attach" in variant["delta"] else set()))


def planned_settings(variant: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments and variables of a planned variant, as ``args.NAME``, ``env.NAME``."""
    return _by_key(variant["engine"])


def changed_settings(steps: Steps) -> dict[str, Any]:
    """Returns what steps come to, by ``args.NAME`` and ``env.NAME``; None removes a setting."""
    return {key: value for step in steps for key, value in _by_key(step).items()}


def steps_text(steps: Steps) -> str:
    """Returns recovery steps in the order they were taken; empty where there was none."""
    return "; ".join(
        f"{step['cause']}: "
        + ", ".join(f"{key}={as_text(value)}" for key, value in _by_key(step).items())
        for step in steps
    )


def beside_the_lever(
    plan: Mapping[str, Any], variant: str, own: Steps, parents: Steps
) -> dict[str, tuple[Any, Any]]:
    """Returns the settings in which recovery made a variant and its parent differ.

    Args:
        plan: The campaign's plan.
        variant: A variant with a parent.
        own: The steps that a launch of the variant took.
        parents: The steps that a launch of its parent took.

    Returns:
        ``{key: (parent's value, variant's value)}``, without what the lever changes as planned.
    """
    variants = plan["variants"]
    below = planned_settings(variants[variants[variant]["parent"]]) | changed_settings(parents)
    above = planned_settings(variants[variant]) | changed_settings(own)
    lever = changes(variants[variant])
    found = {}
    for key in sorted({*changed_settings(own), *changed_settings(parents)}):
        pair = (below.get(key), above.get(key))
        if pair != lever[key] if key in lever else pair[0] != pair[1]:
            found[key] = pair
    return found


def matched_control(
    plan: Mapping[str, Any], variant: str, own: Steps, parents: Steps
) -> MatchedControl | None:
    """Returns the variant that tells the lever from the recovery steps.

    It is the parent with the variant's steps; where only the parent's launches took any, the
    variant with the parent's. None where these steps change what the lever changes: then no
    control leaves the lever in force.

    Args:
        plan: The campaign's plan.
        variant: A variant with a parent, compared with it.
        own: The steps that a launch of the variant took.
        parents: The steps that a launch of its parent took.
    """
    variants = plan["variants"]
    parent = variants[variant]["parent"]
    base, needed = parent, _effect(variants[variant], own)
    if not needed:
        base, needed = variant, _effect(variants[parent], parents)
    has = planned_settings(variants[base])
    wanted = {key: (has.get(key), new) for key, new in needed.items() if has.get(key) != new}
    if not wanted or wanted.keys() & changes(variants[variant]).keys():
        return None
    for name, other in variants.items():
        if other["parent"] == base and changes(other) == wanted:
            return MatchedControl(name, "", True, _comparison(variants, variant, name, base))
    like = variant if base == parent else parent
    name = f"{base}-as-{like}"[:_LONGEST_NAME].rstrip("-")
    names = [key.partition(".")[2] for key in wanted]
    body: dict[str, Any] = {"from": base}
    body |= {"lever": "recovery"} if len(names) == 1 else {"levers": names}
    for key, (_, new) in wanted.items():
        group, _, setting = key.partition(".")
        body.setdefault(group, {})[setting] = new
    text = yaml.safe_dump(
        {name: body}, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100_000
    )
    return MatchedControl(name, text, False, _comparison(variants, variant, name, base))


def _effect(variant: Mapping[str, Any], steps: Steps) -> dict[str, Any]:
    """Returns what steps changed of a variant's own settings."""
    planned = planned_settings(variant)
    return {key: new for key, new in changed_settings(steps).items() if planned.get(key) != new}


def _comparison(variants: Mapping[str, Any], variant: str, control: str, base: str) -> str:
    parent = variants[variant]["parent"]
    levers = " and ".join(variants[variant]["levers"]) or "nothing"
    if base == parent:
        return (
            f"{variant} and {control} differ in {levers} alone: divide the ratio of {variant} to"
            f" {parent} by that of {control} to {parent}."
        )
    return (
        f"{control} and {parent} differ in {levers} alone: multiply the ratio of {control} to"
        f" {variant} by that of {variant} to {parent}."
    )


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{group}.{name}": value
        for group in ("args", "env")
        for name, value in (settings[group] or {}).items()
    }
