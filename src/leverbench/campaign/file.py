"""Reads a campaign file: schema, overrides, inheritance, one lever a variant."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from leverbench.campaign.document import Document, key_text, read_document
from leverbench.campaign.model import (
    Attach,
    Campaign,
    Engine,
    Limits,
    Probe,
    Profile,
    RecoveryStep,
    Variant,
    Workload,
)
from leverbench.errors import LeverbenchError
from leverbench.serving.secrets import is_secret_setting, masked

# The package is installed from its checkout, where the user reads the schema.
SCHEMA_PATH = Path(__file__).parents[3] / "workflow" / "schemas" / "campaign.schema.yaml"

DEFAULT_LADDER = {1: 8, 8: 32, 16: 48}
DEFAULT_SESSIONS = 3
# What `--config` may change for one run beside `sessions`: how a run goes on, not what it measures.
RUN_KEYS = ("execution", "remeasure", "on_environment_change")
RESERVED_CAMPAIGNS = ("tuning", "kernels")
RESERVED_VARIANTS = ("launches", "analysis")
_OWN_KEYS = ("args", "env", "tuned", "attach")

# The lever that a key of an engine belongs to: ("engine", "args.speculative-num-steps") -> name.
LeverFamily = Callable[[str, str], str]


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))
    return schema


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(_schema())


def load_campaign(path: Path, overrides: Mapping[str, Any], lever_family: LeverFamily) -> Campaign:
    """Reads and resolves a campaign file.

    Args:
        path: The YAML file.
        overrides: Keys changed for this run: ``sessions`` and `RUN_KEYS`.
        lever_family: Maps an engine's name and a changed key (``args.NAME``, ``env.NAME``) to
            the lever that the key belongs to.

    Raises:
        LeverbenchError: What is wrong with the file, with its line and the cure.
    """
    document = read_document(path)
    # YAML reads 1 and 1.0 as numbers; names and the ladder's keys are text, counts are whole.
    document = replace(document, data=_normal(document, document.data))
    _check_schema(document)
    sessions = overrides.get("sessions")
    if sessions is not None and (type(sessions) is not int or sessions < 1):
        raise LeverbenchError(f"--config sessions={sessions} is not a whole number above 0")
    data = {**document.data, **_run_settings(overrides)}
    if data["campaign"] in RESERVED_CAMPAIGNS:
        raise LeverbenchError(
            f"{data['campaign']!r} is a reserved name",
            where=document.where(("campaign",)),
            cure=f"Choose another than {', '.join(RESERVED_CAMPAIGNS)}.",
        )
    model = data.get("model", {})
    if model.get("prepare") and not re.fullmatch(
        r"models/[a-z0-9][a-z0-9-]*", model.get("path", "")
    ):
        raise LeverbenchError(
            f"a model that the workflow makes cannot lie in {model.get('path')}",
            where=document.where(("model", "prepare")),
            cure="Say path: models/NAME, or remove prepare: if the model is there already.",
        )
    variants = _resolve_variants(document, sessions, lever_family)
    if any(variant.engine.attach for variant in variants.values()):
        _check_attached(document, variants)
    elif not model.get("path"):
        raise LeverbenchError(
            "the campaign names no model",
            where=document.where(("model",)),
            cure="Set model.path to the folder of the model.",
        )
    return Campaign(
        name=data["campaign"],
        file=str(path),
        description=data.get("description"),
        target_output_tok_per_s=data.get("target", {}).get("output_tok_per_s"),
        model_path=model.get("path"),
        token_ids=_token_ids(document),
        prepare=model.get("prepare"),
        gpus=data.get("topology", {}).get("gpus", 0),
        device=data.get("topology", {}).get("device"),
        variants=variants,
        workloads={name: Workload(**workload) for name, workload in data["workloads"].items()},
        ladder=_ladder(document),
        seed=data.get("seed", 1),
        probe=Probe(**data.get("probe", {})),
        limits=Limits(**data.get("limits", {})),
        profile=_profile(document, variants),
        recovery=_recovery(document),
        execution=data.get("execution", "jobs"),
        remeasure=data.get("remeasure", "none"),
        on_environment_change=data.get("on_environment_change", "error"),
        overrides={} if sessions is None else {"sessions": sessions},
    )


def _run_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides of how a run goes on, each one of the schema's words."""
    properties = _schema()["properties"]
    chosen = {key: overrides[key] for key in RUN_KEYS if key in overrides}
    for key, value in chosen.items():
        if value not in properties[key]["enum"]:
            raise LeverbenchError(
                f"--config {key}={value} is unknown",
                cure=f"It is one of {', '.join(properties[key]['enum'])}.",
            )
    return chosen


def _check_attached(document: Document, variants: Mapping[str, Variant]) -> None:
    """Refuses what needs a launch where others started the servers."""

    def refuse(what: str, cure: str, *keys: str) -> NoReturn:
        raise LeverbenchError(what, where=document.where(keys), cure=cure)

    data = document.data
    for variant in variants.values():
        engine, at = variant.engine, ("variants", variant.name)
        if engine.attach is None:
            refuse(f"{variant.name} has no attach:, and others have", "Give each one.", *at)
        settings = _flatten(asdict(engine))
        needs = [key for key in settings if key not in ("attach", "version")]
        if needs:
            refuse(
                f"{variant.name}: {', '.join(needs)} needs a launch, and others started its server",
                "Remove it, or remove attach:, so that leverbench launches the server.",
                *at,
            )
    for key in ("topology", "recovery"):
        if data.get(key):
            refuse(f"{key}: needs a launch, and others started the server", "Remove it.", key)
    model = data.get("model", {})
    if model.get("prepare"):
        refuse("a model that the workflow makes needs a launch", "Remove prepare:.", "model")
    if not model.get("path") and not model.get("token_ids"):
        refuse(
            "neither model.path nor model.token_ids says which prompts can be drawn",
            "Say model: {token_ids: [first, last]}, ordinary token ids of the served model.",
            "model",
        )


def _token_ids(document: Document) -> tuple[int, int] | None:
    written = document.data.get("model", {}).get("token_ids")
    if written is None:
        return None
    first, last = written
    if last < first:
        raise LeverbenchError(
            f"model.token_ids: {last} is below {first}",
            where=document.where(("model", "token_ids")),
            cure="Say [first, last], both included.",
        )
    return first, last


def _profile(document: Document, variants: Mapping[str, Variant]) -> Profile:
    written = document.data.get("profile")
    openai = [v.name for v in variants.values() if v.engine.attach and v.engine.attach.api != "native"]
    if openai and written and written.get("concurrency") != []:
        raise LeverbenchError(
            f"{', '.join(openai)}: an OpenAI-compatible endpoint cannot be profiled",
            where=document.where(("profile",)),
            cure="Say profile: {concurrency: []}, or api: native.",
        )
    if openai:
        return Profile(concurrency=())
    settings = dict(written or {})
    if "concurrency" in settings:
        settings["concurrency"] = tuple(sorted(set(settings["concurrency"])))
    return Profile(**settings)


def _recovery(document: Document) -> dict[str, tuple[RecoveryStep, ...]]:
    found = {}
    for cause, steps in (document.data.get("recovery") or {}).items():
        found[cause] = tuple(
            RecoveryStep(args=dict(step.get("args", {})), env=_texts(step.get("env", {})))
            for step in steps
        )
        for number, step in enumerate(found[cause]):
            where = document.where(("recovery", cause, number))
            if not (step.args or step.env):
                raise LeverbenchError(
                    "a recovery step changes nothing", where=where, cure="Give it args: or env:."
                )
            _refuse_secrets([f"args.{k}" for k in step.args] + [f"env.{k}" for k in step.env], where)
    return found


def _texts(env: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in env.items()}


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
    default_sessions = sessions or data.get("sessions", DEFAULT_SESSIONS)
    written = _expanded(document)
    base = _flatten({**data["engine"], "attach": data.get("attach")})
    resolved: dict[str, Variant] = {}
    left_out: set[str] = set()
    for name in _parents_first(document, written):
        declared, body = written[name]
        where = document.where(("variants", declared))
        if name in RESERVED_VARIANTS:
            raise LeverbenchError(
                f"{name!r} is a reserved name",
                where=where,
                cure=f"Choose another than {', '.join(RESERVED_VARIANTS)}.",
            )
        cross = tuple(body.get("cross", ()))
        if left_out.intersection(cross):
            continue
        parent = cross[0] if cross else body.get("from")
        inherited = base if parent is None else _merge(_flatten(asdict(resolved[parent].engine)), {})
        own = _flatten({**body.get("engine", {}), **_own(body)})
        if cross:
            own = _crossed(resolved, cross[0], cross[1], where)
        values = _merge(inherited, own)
        keys = sorted({*inherited, *values})
        delta = {
            key: (inherited.get(key), values.get(key))
            for key in keys
            if inherited.get(key) != values.get(key)
        }
        if not delta and "sweep" in data["variants"][declared]:
            # The swept value that the parent has already: that one is the parent itself.
            left_out.add(name)
            continue
        families = dict.fromkeys(lever_family(data["engine"]["name"], key) for key in delta)
        levers = resolved[cross[1]].levers if cross else ()
        levers = levers or _levers(body, parent, delta, tuple(families), where)
        resolved[name] = Variant(
            name=name,
            parent=parent,
            levers=levers,
            confounded=len(levers) > 1,
            control=body.get("control"),
            sessions=sessions or body.get("sessions", default_sessions),
            engine=_engine(data["engine"]["name"], values, where),
            delta=delta if parent is not None else {},
            cross=cross,
        )
    return {name: resolved[name] for name in written if name in resolved}


def _own(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in _OWN_KEYS if key in body}


def _expanded(document: Document) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns ``{name: (name in the file, body)}``, with sweeps and crosses as ordinary variants."""
    data = document.data["variants"]
    groups = {name: _swept(document, name, body) for name, body in data.items()}
    expanded: dict[str, tuple[str, dict[str, Any]]] = {}
    for declared, body in data.items():
        where = document.where(("variants", declared))
        members = groups[declared]
        if "cross" in body:
            for key in ("from", "lever", "levers", "control", "sweep", "engine", *_OWN_KEYS):
                if key in body:
                    raise LeverbenchError(
                        f"cross and {key} exclude each other",
                        where=where,
                        cure="A cross has the first one's settings and the second one's lever.",
                    )
            for name in body["cross"]:
                if name not in groups or "cross" in data[name]:
                    raise LeverbenchError(
                        f"cross: {name} is not a variant that can be crossed",
                        where=where,
                        cure=f"Variants are: {', '.join(n for n in data if 'cross' not in data[n])}.",
                    )
            members = {}
            for pair in product(*(groups[name].items() for name in body["cross"])):
                suffix = "".join(part for part, _ in pair)
                names = [f"{name}{part}" for name, (part, _) in zip(body["cross"], pair, strict=True)]
                members[suffix] = {**body, "cross": names}
        for suffix, member in members.items():
            name = f"{declared}{suffix}"
            if name in expanded:
                raise LeverbenchError(
                    f"{name} is made by {expanded[name][0]} and by {declared}",
                    where=where,
                    cure="Rename one of them.",
                )
            if not re.fullmatch(_schema()["$defs"]["name"]["pattern"], name) or len(name) > 64:
                raise LeverbenchError(
                    f"{name!r} cannot be a variant's name", where=where, cure="Shorten it."
                )
            expanded[name] = (declared, member)
    return expanded


def _swept(document: Document, name: str, body: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the bodies that a variant stands for, by what is added to its name."""
    if "sweep" not in body:
        return {"": dict(body)}
    where = document.where(("variants", name, "sweep"))
    if "from" not in body:
        raise LeverbenchError(
            f"{name} sweeps without from:", where=where, cure="Add from: VARIANT, their parent."
        )
    ((key, values),) = body["sweep"].items()
    kind, setting = ("env", key[4:]) if key.startswith("env.") else ("args", key)
    swept: dict[str, dict[str, Any]] = {}
    for value in values:
        rest = {k: v for k, v in body.items() if k != "sweep"}
        slug = re.sub(r"[^a-z0-9]+", "-", json.dumps(value).lower()).strip("-")
        settings = {**rest.get(kind, {}), setting: value}
        if f"-{slug}" in swept or not slug:
            raise LeverbenchError(
                f"{name}: the value {value!r} gives no name of its own",
                where=where,
                cure="Write each value once; letters and digits make the name.",
            )
        swept[f"-{slug}"] = {**rest, kind: settings}
    return swept


def _crossed(
    resolved: Mapping[str, Variant], first: str, second: str, where: str
) -> dict[str, Any]:
    """Returns the second variant's delta, to be applied to the first one."""
    one, other = resolved[first], resolved[second]
    line: list[str | None] = [first]
    while line[-1] is not None:
        line.append(resolved[line[-1]].parent)
    if other.parent is None or other.parent not in line:
        raise LeverbenchError(
            f"cross: {second} descends from {other.parent}, and {first} does not",
            where=where,
            cure="Cross two variants of which the second one's parent stands in the first one's line.",
        )
    has, had = _flatten(asdict(one.engine)), _flatten(asdict(resolved[other.parent].engine))
    for key in other.delta:
        if has.get(key) != had.get(key):
            raise LeverbenchError(
                f"cross: {first} and {second} both set {key}",
                where=where,
                cure="Cross variants that change different settings.",
            )
    return {key: new for key, (_, new) in other.delta.items()}


def _parents_first(
    document: Document, written: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> list[str]:
    """Returns the variants so that each comes after those that it is made from."""
    done: list[str] = []

    def visit(name: str, chain: tuple[str, ...]) -> None:
        declared, body = written[name]
        if name in chain:
            raise LeverbenchError(
                f"a cycle in from: {' -> '.join([*chain[chain.index(name) :], name])}",
                where=document.where(("variants", declared, "from")),
                cure="A variant cannot descend from itself: let one of them have no from.",
            )
        for parent in body.get("cross", [body["from"]] if body.get("from") else []):
            if parent not in written:
                swept = [n for n, (at, _) in written.items() if at == parent]
                raise LeverbenchError(
                    f"from: {parent} is not a variant"
                    if not swept
                    else f"from: {parent} is a sweep or a cross",
                    where=document.where(("variants", declared, "from")),
                    cure=f"Variants are: {', '.join(swept or written)}.",
                )
            if parent not in done:
                visit(parent, (*chain, name))
        if name not in done:
            done.append(name)

    for name in written:
        visit(name, ())
    return done


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an engine's settings by key, unset ones left out, in one order."""
    flat: dict[str, Any] = {}
    for key in ("version", "python", "wrapper", "tuned", "attach"):
        value: Any = settings.get(key)
        if isinstance(value, (list, tuple)):
            value = list(value) or ([] if key == "tuned" else None)
        if key == "attach" and value is not None:
            written: dict[str, Any] = {"url": value} if isinstance(value, str) else dict(value)
            value = asdict(Attach(**{**written, "url": written["url"].rstrip("/")}))
        if key in settings:
            flat[key] = value
    for group in ("args", "env"):
        # In one order, however the file is written: the order of flags changes nothing.
        for key, value in sorted((settings.get(group) or {}).items()):
            flat[f"{group}.{key}"] = str(value) if group == "env" and value is not None else value
    return flat


def _merge(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**inherited, **own}
    return {key: value for key, value in sorted(merged.items()) if value not in (None, [])}


def _refuse_secrets(keys: Sequence[str], where: str) -> None:
    for key in keys:
        if is_secret_setting(key):
            raise LeverbenchError(
                f"{key} is a secret, and whatever a campaign file says is recorded",
                where=where,
                cure="Export it in the shell that runs the campaign: servers inherit it.",
            )


def _engine(name: str, values: Mapping[str, Any], where: str) -> Engine:
    _refuse_secrets(list(values), where)
    wrapper = values.get("wrapper", ())
    if masked(wrapper) != list(wrapper):
        raise LeverbenchError(
            "the wrapper holds a secret, and whatever a campaign file says is recorded",
            where=where,
            cure="Export it in the shell that runs the campaign, and name the variable alone.",
        )
    args = {key[5:]: value for key, value in values.items() if key.startswith("args.")}
    for key, value in args.items():
        if value is False:
            raise LeverbenchError(
                f"args.{key}: false is no way to leave a flag out",
                where=where,
                cure="Write null: it removes what the parent set.",
            )
    attach = values.get("attach")
    return Engine(
        name=name,
        version=values.get("version"),
        python=values.get("python"),
        wrapper=tuple(wrapper),
        args=args,
        env={key[4:]: value for key, value in values.items() if key.startswith("env.")},
        tuned=tuple(values.get("tuned", ())),
        attach=Attach(**attach) if attach else None,
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
