"""From what the file says of variants to resolved ones: sweep, cross, inheritance, one lever."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from leverbench.campaign.document import Document
from leverbench.campaign.model import TUNED, Attach, Engine, Variant
from leverbench.campaign.schema import schema
from leverbench.errors import LeverbenchError
from leverbench.secrets import is_secret_setting, masked

DEFAULT_SESSIONS = 3
RESERVED = ("launches", "analysis")

# Keys of a variant that set something of its server, beside `engine`.
_OWN_KEYS = ("args", "env", "tuned", "attach")
# Keys that a cross takes from the two variants that it is made of.
_NOT_IN_CROSS = ("from", "lever", "levers", "control", "touches", "sweep", "engine", *_OWN_KEYS)

# The lever that a key of an engine belongs to: ("engine", "args.speculative-num-steps") -> name.
LeverFamily = Callable[[str, str], str]


def resolve_variants(
    document: Document, sessions: int | None, lever_family: LeverFamily
) -> dict[str, Variant]:
    """Returns the variants by name, in the file's order, with nothing left to inherit.

    Args:
        document: A campaign file that the schema accepts.
        sessions: Number of sessions that the command line asks for, instead of the file's.
        lever_family: Maps an engine's name and a changed key to the lever it belongs to.

    Raises:
        LeverbenchError: What is wrong, with its line and the cure.
    """
    data = document.data
    engine_name = data["engine"]["name"]
    default_sessions = data.get("sessions", DEFAULT_SESSIONS)
    written = _expanded(document)
    base = flatten({**data["engine"], "attach": data.get("attach")})
    check_settings(document, ("engine",), base)
    resolved: dict[str, Variant] = {}
    left_out: set[str] = set()
    for name in _parents_first(document, written):
        declared, body = written[name]
        where = document.where(("variants", declared))
        if name in RESERVED:
            raise LeverbenchError(
                f"{name!r} is a reserved name",
                where=where,
                cure=f"Choose another than {', '.join(RESERVED)}.",
            )
        cross = tuple(body.get("cross", ()))
        if left_out.intersection(cross):
            # A cross with the parent's own value is one of the two that are crossed.
            left_out.add(name)
            continue
        parent = cross[0] if cross else body.get("from")
        if parent in left_out:
            raise LeverbenchError(
                f"from: {parent} is left out of its sweep, whose parent has that value already",
                where=document.where(("variants", declared, "from")),
                cure=f"Say from: {_made_from(written[parent][1])[0]}.",
            )
        inherited = base if parent is None else flatten(asdict(resolved[parent].engine))
        if cross:
            own = _crossed(resolved, cross[0], cross[1], where)
        else:
            settings = {key: body[key] for key in _OWN_KEYS if key in body}
            own = flatten({**body.get("engine", {}), **settings})
            check_settings(document, ("variants", declared), own)
            if "tuned" in body:
                # The list is the whole: what the parent has beside it is removed.
                own = {**{key: None for key in inherited if key.startswith(TUNED)}, **own}
        values = {k: v for k, v in sorted({**inherited, **own}.items()) if v is not None}
        delta = {
            key: (inherited.get(key), values.get(key))
            for key in sorted({*inherited, *values})
            if inherited.get(key) != values.get(key)
        }
        if not delta and "sweep" in data["variants"][declared]:
            # The swept value that the parent has already: that one is the parent itself.
            left_out.add(name)
            continue
        if cross:
            levers, touches = resolved[cross[1]].levers, resolved[cross[1]].touches
        else:
            families = dict.fromkeys(
                key.removeprefix(TUNED) if key.startswith(TUNED) else lever_family(engine_name, key)
                for key in delta
            )
            levers = _levers(body, parent, delta, tuple(families), where)
            touches = tuple(body.get("touches", ()))
        resolved[name] = Variant(
            name=name,
            parent=parent,
            levers=levers,
            confounded=len(levers) > 1,
            control=body.get("control"),
            sessions=sessions or body.get("sessions", default_sessions),
            engine=_engine(engine_name, values),
            delta=delta if parent is not None else {},
            cross=cross,
            touches=touches,
        )
    for declared in data["variants"]:
        if not any(at == declared and name in resolved for name, (at, _) in written.items()):
            raise LeverbenchError(
                f"{declared} sweeps no value that its parent does not have",
                where=document.where(("variants", declared)),
                cure="Add a value, or remove the variant.",
            )
    return {name: resolved[name] for name in written if name in resolved}


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an engine's settings by key, such as ``args.dtype``; None where one is unset."""
    flat: dict[str, Any] = {}
    for name in settings.get("tuned", ()):
        flat[f"{TUNED}{name}"] = True
    for key in ("version", "python", "wrapper", "attach"):
        if key not in settings:
            continue
        value: Any = settings[key]
        if isinstance(value, (list, tuple)):
            value = list(value) or None
        if key == "attach" and value is not None:
            written: dict[str, Any] = {"url": value} if isinstance(value, str) else dict(value)
            value = asdict(Attach(**{**written, "url": written["url"].rstrip("/")}))
        flat[key] = value
    for group in ("args", "env"):
        # In one order, however the file is written: the order of flags changes nothing.
        for key, value in sorted((settings.get(group) or {}).items()):
            flat[f"{group}.{key}"] = str(value) if group == "env" and value is not None else value
    return flat


def check_settings(document: Document, at: tuple[str | int, ...], flat: Mapping[str, Any]) -> None:
    """Refuses secrets, which would be recorded, and ``false``, which no flag can be given.

    Args:
        document: The campaign file.
        at: Where in it the settings stand.
        flat: The settings, as `flatten` gives them.
    """
    for key, value in flat.items():
        where = document.where((*at, *key.split(".", 1)))
        wrapper = value if key == "wrapper" and value else []
        if is_secret_setting(key) or masked(wrapper) != wrapper:
            raise LeverbenchError(
                f"{key} {'holds' if wrapper else 'is'} a secret,"
                " and whatever a campaign file says is recorded",
                where=where,
                cure="Export it in the shell that runs the campaign: servers inherit it.",
            )
        if value is False and key.startswith("args."):
            raise LeverbenchError(
                f"{key}: false is no way to leave a flag out",
                where=where,
                cure="Write null: it removes what the parent set.",
            )


def _expanded(document: Document) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns ``{name: (name in the file, body)}``, with sweeps and crosses as single variants."""
    data = document.data["variants"]
    groups = {n: _swept(document, n, body) for n, body in data.items() if "cross" not in body}
    expanded: dict[str, tuple[str, dict[str, Any]]] = {}
    for declared, body in data.items():
        where = document.where(("variants", declared))
        members = _members(document, declared, groups) if "cross" in body else groups[declared]
        for suffix, member in members.items():
            name = f"{declared}{suffix}"
            if name in expanded:
                raise LeverbenchError(
                    f"{name} is made by {expanded[name][0]} and by {declared}",
                    where=where,
                    cure="Rename one of them.",
                )
            limits = schema()["$defs"]["name"]
            if not re.fullmatch(limits["pattern"], name) or len(name) > limits["maxLength"]:
                raise LeverbenchError(
                    f"{name!r} is too long a name for a variant",
                    where=where,
                    cure=f"Shorten {declared} or its values: {limits['maxLength']} characters.",
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
    group, setting = ("env", key[4:]) if key.startswith("env.") else ("args", key)
    rest = {k: v for k, v in body.items() if k != "sweep"}
    if setting in rest.get(group, {}):
        raise LeverbenchError(
            f"{name}: {key} is set and swept", where=where, cure="Keep it in one of the two."
        )
    swept: dict[str, dict[str, Any]] = {}
    for value in values:
        if group == "env" and isinstance(value, (bool, list, dict)):
            raise LeverbenchError(
                f"{name}: {key} cannot be {json.dumps(value)}",
                where=where,
                cure="A variable is text or a number, or null to remove it.",
            )
        slug = re.sub(r"[^a-z0-9]+", "-", json.dumps(value).lower()).strip("-")
        if not slug or f"-{slug}" in swept:
            raise LeverbenchError(
                f"{name}: the value {json.dumps(value)} gives no name of its own",
                where=where,
                cure="Write each value once; its letters and digits make the name.",
            )
        swept[f"-{slug}"] = {**rest, group: {**rest.get(group, {}), setting: value}}
    return swept


def _made_from(body: Mapping[str, Any]) -> list[str]:
    """Returns the variants whose settings a variant has."""
    return list(body.get("cross", [body["from"]] if "from" in body else []))


def _members(
    document: Document, declared: str, groups: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Returns the crosses that one stands for: of each member of the first with each of the second.

    Args:
        document: The campaign file.
        declared: Name of the cross.
        groups: What each name in the file stands for, by what is added to the name.
    """
    data = document.data["variants"]
    body, where = data[declared], document.where(("variants", declared))
    for key in _NOT_IN_CROSS:
        if key in body:
            raise LeverbenchError(
                f"cross and {key} exclude each other",
                where=where,
                cure="A cross has the first one's settings and the second one's lever.",
            )
    for name in body["cross"]:
        if name not in groups:
            raise LeverbenchError(
                f"cross: {name} is not a variant that can be crossed",
                where=document.where(("variants", declared, "cross")),
                cure=f"These can: {', '.join(groups)}.",
            )
    first, second = body["cross"]
    return {
        f"{one}{other}": {**body, "cross": [f"{first}{one}", f"{second}{other}"]}
        for one, other in product(groups[first], groups[second])
    }


def _parents_first(
    document: Document, written: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> list[str]:
    """Returns the variants so that each comes after those that it is made from."""
    done: dict[str, None] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        declared, body = written[name]
        where = document.where(("variants", declared, "from"))
        if name in chain:
            raise LeverbenchError(
                f"a cycle in from: {' -> '.join([*chain[chain.index(name) :], name])}",
                where=where,
                cure="A variant cannot descend from itself: let one of them have no from.",
            )
        for parent in _made_from(body):
            if parent not in written:
                members = [n for n, (at, _) in written.items() if at == parent]
                raise LeverbenchError(
                    f"from: {parent} is several variants"
                    if members
                    else f"from: {parent} is not a variant",
                    where=where,
                    cure=f"Name one of its own: {', '.join(members)}."
                    if members
                    else f"Variants are: {', '.join(written)}.",
                )
            if parent not in done:
                visit(parent, (*chain, name))
        done[name] = None

    for name in written:
        if name not in done:
            visit(name, ())
    return list(done)


def _crossed(
    resolved: Mapping[str, Variant], first: str, second: str, where: str
) -> dict[str, Any]:
    """Returns what the second variant changes, to be applied to the first one."""
    one, other = resolved[first], resolved[second]
    if not other.delta:
        raise LeverbenchError(
            f"cross: {second} changes nothing",
            where=where,
            cure="Let the second one be a variant that pulls a lever.",
        )
    line: list[str | None] = [first]
    while line[-1] is not None:
        line.append(resolved[line[-1]].parent)
    if other.parent not in line:
        raise LeverbenchError(
            f"cross: {second} descends from {other.parent}, and {first} does not",
            where=where,
            cure="Cross variants of which the second one's parent stands in the first one's line.",
        )
    has = flatten(asdict(one.engine))
    for key, (old, _) in other.delta.items():
        if has.get(key) != old:
            raise LeverbenchError(
                f"cross: {first} and {second} both set {key}",
                where=where,
                cure="Cross variants that change different settings.",
            )
    return {key: new for key, (_, new) in other.delta.items()}


def _engine(name: str, values: Mapping[str, Any]) -> Engine:
    attach = values.get("attach")
    return Engine(
        name=name,
        version=values.get("version"),
        python=values.get("python"),
        wrapper=tuple(values.get("wrapper", ())),
        args={key[5:]: value for key, value in values.items() if key.startswith("args.")},
        env={key[4:]: value for key, value in values.items() if key.startswith("env.")},
        tuned=tuple(key[len(TUNED) :] for key in values if key.startswith(TUNED)),
        attach=Attach(**attach) if attach else None,
    )


def _levers(
    body: Mapping[str, Any],
    parent: str | None,
    delta: Mapping[str, Any],
    families: Sequence[str],
    where: str,
) -> tuple[str, ...]:
    """Names the variant's levers; refuses an empty delta and more than one undeclared lever."""
    if parent is None:
        for key in ("lever", "levers", "control", "touches"):
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
