"""Reads a campaign file: schema, overrides, inheritance, one lever a variant."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from leverbench.campaign.document import Document, key_text, read_document
from leverbench.campaign.model import Campaign, Engine, Limits, Probe, Variant, Workload
from leverbench.errors import LeverbenchError
from leverbench.serving.secrets import is_secret_setting

# The package is installed from its checkout, where the user reads the schema.
SCHEMA_PATH = Path(__file__).parents[3] / "workflow" / "schemas" / "campaign.schema.yaml"

DEFAULT_LADDER = {1: 8, 8: 32, 16: 48}
DEFAULT_SESSIONS = 3
RESERVED_CAMPAIGNS = ("tuning", "kernels")
RESERVED_VARIANTS = ("launches", "analysis")

# The lever that a key of an engine belongs to: ("engine", "args.speculative-num-steps") -> name.
LeverFamily = Callable[[str, str], str]


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8")))


def load_campaign(path: Path, overrides: Mapping[str, Any], lever_family: LeverFamily) -> Campaign:
    """Reads and resolves a campaign file.

    Args:
        path: The YAML file.
        overrides: Keys changed for this run; ``sessions`` is the one allowed.
        lever_family: Maps an engine's name and a changed key (``args.NAME``, ``env.NAME``) to
            the lever that the key belongs to.

    Raises:
        LeverbenchError: What is wrong with the file, with its line and the cure.
    """
    document = read_document(path)
    # YAML reads 1 and 1.0 as numbers; names and the ladder's keys are text, counts are whole.
    document = replace(document, data=_normal(document, document.data))
    _check_schema(document)
    data = document.data
    for key, value in overrides.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LeverbenchError(f"--config {key}={value} is not a whole number above 0")
    if data["campaign"] in RESERVED_CAMPAIGNS:
        raise LeverbenchError(
            f"{data['campaign']!r} is a reserved name",
            where=document.where(("campaign",)),
            cure=f"Choose another than {', '.join(RESERVED_CAMPAIGNS)}.",
        )
    model = data["model"]
    if model.get("prepare") and not re.fullmatch(r"models/[a-z0-9][a-z0-9-]*", model["path"]):
        raise LeverbenchError(
            f"a model that the workflow makes cannot lie in {model['path']}",
            where=document.where(("model", "path")),
            cure="Say models/NAME, or remove prepare: if the model is there already.",
        )
    return Campaign(
        name=data["campaign"],
        file=str(path),
        description=data.get("description"),
        target_output_tok_per_s=data.get("target", {}).get("output_tok_per_s"),
        model_path=data["model"]["path"],
        prepare=data["model"].get("prepare"),
        gpus=data.get("topology", {}).get("gpus", 0),
        variants=_resolve_variants(document, overrides.get("sessions"), lever_family),
        workloads={name: Workload(**workload) for name, workload in data["workloads"].items()},
        ladder=_ladder(document),
        seed=data.get("seed", 1),
        probe=Probe(**data.get("probe", {})),
        limits=Limits(**data.get("limits", {})),
        overrides=dict(overrides),
    )


def _check_schema(document: Document) -> None:
    error = best_match(_validator().iter_errors(document.data))
    if error is None:
        return
    keys = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        raise LeverbenchError(
            f"unknown key {unknown!r}",
            where=document.where((*keys, unknown)),
            cure=f"Known here: {', '.join(known)}.",
        )
    if error.parent is not None and error.parent.validator == "propertyNames":
        keys = (*keys, str(error.instance))
    if error.instance is None and "object" in str(error.validator_value):
        raise LeverbenchError(
            f"{'.'.join(map(str, keys)) or 'the file'} is empty",
            where=document.where(keys),
            cure="Write {} for a variant that changes nothing."
            if keys
            else "See config/campaign.yaml.",
        )
    name = ".".join(map(str, keys))
    description = error.schema.get("description") if isinstance(error.schema, dict) else None
    raise LeverbenchError(
        f"{name}: {error.message}" if name else error.message,
        where=document.where(keys),
        cure=f"It is: {description}" if description else None,
    )


def _normal(document: Document, value: Any, at: tuple[str, ...] = ()) -> Any:
    """Makes keys text, and whole numbers integers, except among an engine's settings.

    Raises:
        LeverbenchError: Something that no record can hold, such as a date or a NaN.
    """

    def refuse(what: str) -> NoReturn:
        raise LeverbenchError(
            f"{'.'.join(at)}: {what}",
            where=document.where(at),
            cure="Text, finite numbers, true, false, null, lists and mappings can be recorded.",
        )

    if isinstance(value, dict):
        texts = {key_text(key): item for key, item in value.items()}
        return {text: _normal(document, item, (*at, text)) for text, item in texts.items()}
    if isinstance(value, list):
        return [_normal(document, item, (*at, str(n))) for n, item in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            refuse(f"{value} is no finite number")
        return int(value) if value.is_integer() and not {"args", "env"}.intersection(at) else value
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            refuse("a character that no command line can hold")
        return value
    if value is None or isinstance(value, (bool, int)):
        return value
    refuse(f"a {type(value).__name__} cannot be recorded; quote it to make it text")


def _ladder(document: Document) -> dict[int, int]:
    written = document.data.get("ladder")
    if written is None:
        return dict(DEFAULT_LADDER)
    return {int(key): written[key] for key in sorted(written, key=int)}


def _resolve_variants(
    document: Document, sessions: int | None, lever_family: LeverFamily
) -> dict[str, Variant]:
    data = document.data
    written = {name: body or {} for name, body in data["variants"].items()}
    base = _flatten(data["engine"])
    default_sessions = sessions or data.get("sessions", DEFAULT_SESSIONS)
    resolved: dict[str, Variant] = {}
    for name in _parents_first(document, written):
        body = written[name]
        where = document.where(("variants", name))
        if name in RESERVED_VARIANTS:
            raise LeverbenchError(
                f"{name!r} is a reserved name",
                where=where,
                cure=f"Choose another than {', '.join(RESERVED_VARIANTS)}.",
            )
        parent = body.get("from")
        inherited = base if parent is None else _flatten(asdict(resolved[parent].engine))
        values = _merge(inherited, _flatten({**body.get("engine", {}), **_own(body)}))
        keys = sorted({*inherited, *values})
        delta = {
            key: (inherited.get(key), values.get(key))
            for key in keys
            if inherited.get(key) != values.get(key)
        }
        families = dict.fromkeys(lever_family(data["engine"]["name"], key) for key in delta)
        levers = _levers(body, parent, delta, tuple(families), where)
        resolved[name] = Variant(
            name=name,
            parent=parent,
            levers=levers,
            confounded=len(levers) > 1,
            control=body.get("control"),
            sessions=sessions or body.get("sessions", default_sessions),
            engine=_engine(data["engine"]["name"], values, where),
            delta=delta if parent is not None else {},
        )
    return {name: resolved[name] for name in written}


def _own(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in ("args", "env") if key in body}


def _parents_first(document: Document, written: Mapping[str, Any]) -> list[str]:
    done: list[str] = []
    for name in written:
        chain: list[str] = []
        at: str | None = name
        while at is not None and at not in done:
            if at in chain:
                raise LeverbenchError(
                    f"a cycle in from: {' -> '.join([*chain[chain.index(at) :], at])}",
                    where=document.where(("variants", at, "from")),
                    cure="A variant cannot descend from itself: let one of them have no from.",
                )
            chain.append(at)
            parent = written[at].get("from")
            if parent is not None and parent not in written:
                raise LeverbenchError(
                    f"from: {parent} is not a variant",
                    where=document.where(("variants", at, "from")),
                    cure=f"Variants are: {', '.join(written)}.",
                )
            at = parent
        done += reversed(chain)
    return done


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key in ("python", "wrapper"):
        if key in settings:
            flat[key] = list(settings[key]) if key == "wrapper" else settings[key]
    for group in ("args", "env"):
        # In one order, however the file is written: the order of flags changes nothing.
        for key, value in sorted((settings.get(group) or {}).items()):
            flat[f"{group}.{key}"] = str(value) if group == "env" and value is not None else value
    return flat


def _merge(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**inherited, **own}
    return {key: value for key, value in sorted(merged.items()) if value is not None}


def _engine(name: str, values: Mapping[str, Any], where: str) -> Engine:
    for key in values:
        if is_secret_setting(key):
            raise LeverbenchError(
                f"{key} is a secret, and whatever a campaign file says is recorded",
                where=where,
                cure="Export it in the shell that runs the campaign: servers inherit it.",
            )
    args = {key[5:]: value for key, value in values.items() if key.startswith("args.")}
    for key, value in args.items():
        if value is False:
            raise LeverbenchError(
                f"args.{key}: false is no way to leave a flag out",
                where=where,
                cure="Write null: it removes what the parent set.",
            )
    return Engine(
        name=name,
        python=values.get("python"),
        wrapper=tuple(values.get("wrapper", ())),
        args=args,
        env={key[4:]: value for key, value in values.items() if key.startswith("env.")},
    )


def _levers(
    body: Mapping[str, Any],
    parent: str | None,
    delta: Mapping[str, Any],
    families: tuple[str, ...],
    where: str,
) -> tuple[str, ...]:
    """Names the variant's levers; refuses an empty delta and more than one undeclared lever."""
    if parent is None:
        for key in ("lever", "levers", "control"):
            if key in body:
                raise LeverbenchError(
                    f"{key}: without from: there is nothing to differ from",
                    where=where,
                    cure="Add from: VARIANT, or remove the key.",
                )
        return ()
    if body.get("control"):
        if delta:
            raise LeverbenchError(
                f"a control differs from {parent} in {', '.join(delta)}",
                where=where,
                cure="Remove what differs, or remove control:.",
            )
        return ()
    if not delta:
        raise LeverbenchError(
            f"nothing differs from {parent}",
            where=where,
            cure="Change a setting, or say control: a-a to measure the noise.",
        )
    if "levers" in body:
        return tuple(body["levers"])
    if len(families) > 1:
        raise LeverbenchError(
            f"{len(families)} levers in one delta: {', '.join(families)}",
            where=where,
            cure=(
                "Give each its own variant, or say "
                f"levers: [{', '.join(families)}]; its figures are then called confounded."
            ),
        )
    return (body.get("lever") or families[0],)
