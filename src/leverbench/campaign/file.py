"""Reads a campaign file: schema, overrides for one run, and what must agree within it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from leverbench.campaign.document import Document, read_document
from leverbench.campaign.model import (
    DEFAULT_EQUAL_WITHIN,
    FILE,
    Agreement,
    Attach,
    Campaign,
    Goodput,
    Limits,
    Probe,
    Profile,
    RecoveryStep,
    SharedPrefix,
    Variant,
    Workload,
    shortest,
)
from leverbench.campaign.schema import check_schema, schema
from leverbench.campaign.variants import LeverFamily, check_settings, flatten, resolve_variants
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Kernel, for_campaign, read_kernel

DEFAULT_LADDER = {1: 8, 8: 32, 16: 48}
# Where kernels lie, each in a folder of its name.
KERNELS = Path("kernels")
# What `--config` may change for one run beside `sessions`: how a run goes on, not what it measures.
RUN_KEYS = ("execution", "remeasure", "on_environment_change")
RESERVED = ("tuning", "kernels")


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
    check_schema(document)
    sessions, run_settings = _sessions(overrides), _run_settings(overrides)
    data = {**document.data, **run_settings}
    if data["campaign"] in RESERVED:
        raise LeverbenchError(
            f"{data['campaign']!r} is a reserved name",
            where=document.where(("campaign",)),
            cure=f"Choose another than {', '.join(RESERVED)}.",
        )
    variants = resolve_variants(document, sessions, lever_family)
    _check_model(document)
    if any(variant.engine.attach for variant in variants.values()):
        _check_attached(document, variants)
    elif "path" not in data.get("model", {}):
        raise LeverbenchError(
            "the campaign names no model",
            where=document.where(("model",)),
            cure="Set model.path to the folder of the model.",
        )
    model, topology = data.get("model", {}), data.get("topology", {})
    token_ids = model.get("token_ids")
    kernels = _kernels(document, variants)
    shapes_from = _shapes_from(document, kernels)
    return Campaign(
        name=data["campaign"],
        file=str(path),
        description=data.get("description"),
        target_output_tok_per_s=data.get("target", {}).get("output_tok_per_s"),
        model_path=model.get("path"),
        token_ids=(token_ids[0], token_ids[1]) if token_ids else None,
        prepare=model.get("prepare"),
        model_config=model.get("config"),
        gpus=topology.get("gpus", 0),
        device=topology.get("device"),
        variants=variants,
        workloads={
            name: _workload(document, name, tuple(variants.values())) for name in data["workloads"]
        },
        ladder=_ladder(document),
        seed=data.get("seed", 1),
        probe=Probe(**data.get("probe", {})),
        agreement=_agreement(data.get("agreement", {})),
        limits=Limits(**data.get("limits", {})),
        profile=_profile(document, variants),
        until=data.get("until"),
        equal_within=data.get("equal_within", DEFAULT_EQUAL_WITHIN),
        goodput=Goodput(**data["goodput"]) if "goodput" in data else None,
        recovery=_recovery(document),
        kernels={name: kernel for name, kernel in kernels.items() if name not in shapes_from},
        unshaped={name: kernels[name] for name in shapes_from},
        shapes_from=shapes_from,
        skip={
            name: settings["skip_by"]
            for name, settings in data.get("kernels", {}).items()
            if "skip_by" in settings
        },
        execution=data.get("execution", "jobs"),
        remeasure=data.get("remeasure", "none"),
        on_environment_change=data.get("on_environment_change", "error"),
        overrides={} if sessions is None else {"sessions": sessions},
    )


def _sessions(overrides: Mapping[str, Any]) -> int | None:
    """Returns the number of sessions that the command line asks for, if it does."""
    sessions, most = overrides.get("sessions"), schema()["$defs"]["sessions"]["maximum"]
    if sessions is not None and (type(sessions) is not int or not 1 <= sessions <= most):
        raise LeverbenchError(
            f"--config sessions={sessions} is no whole number from 1 to {most}",
            cure="It is the number of launches of each variant.",
        )
    return sessions


def _run_settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides of how a run goes on, each one of the schema's words."""
    properties = schema()["properties"]
    chosen = {key: overrides[key] for key in RUN_KEYS if key in overrides}
    for key, value in chosen.items():
        if value not in properties[key]["enum"]:
            raise LeverbenchError(
                f"--config {key}={value} is unknown",
                cure=f"It is one of {', '.join(properties[key]['enum'])}.",
            )
    return chosen


def _check_model(document: Document) -> None:
    model = document.data.get("model", {})
    if model.get("prepare") and not re.fullmatch(
        r"models/[a-z0-9][a-z0-9-]*", model.get("path", "")
    ):
        raise LeverbenchError(
            f"a model that the workflow makes cannot lie in {model.get('path')}",
            where=document.where(("model", "prepare")),
            cure="Say path: models/NAME, or remove prepare: if the model is there already.",
        )
    first, last = model.get("token_ids", (0, 0))
    if last < first:
        raise LeverbenchError(
            f"model.token_ids: {last} is below {first}",
            where=document.where(("model", "token_ids")),
            cure="Say [first, last], both included.",
        )


def _check_attached(document: Document, variants: Mapping[str, Variant]) -> None:
    """Refuses what needs a launch where others started the servers."""

    def refuse(what: str, cure: str, *keys: str) -> NoReturn:
        raise LeverbenchError(what, where=document.where(keys), cure=cure)

    data = document.data
    for name, variant in variants.items():
        # The line of a swept or crossed variant is that of the one which stands for it.
        at = max((n for n in data["variants"] if name.startswith(n)), key=len)
        if variant.engine.attach is None:
            refuse(
                f"{name} has no attach:, and others have",
                "Give each variant the address of its server.",
                "variants",
                at,
            )
        _check_address(variant.engine.attach, name, document.where(("variants", at)))
        settings = flatten(asdict(variant.engine))
        launched = [
            key
            for key, value in settings.items()
            if value is not None and key not in ("attach", "version")
        ]
        if launched:
            refuse(
                f"{name}: {', '.join(launched)} needs a launch, and others started its server",
                "Remove it, or remove attach:, so that leverbench launches the server.",
                "variants",
                at,
            )
    for key in ("topology", "recovery"):
        if data.get(key):
            refuse(f"{key}: needs a launch, and others started the servers", "Remove it.", key)
    model = data.get("model", {})
    if "prepare" in model:
        refuse("a model that the workflow makes needs a launch", "Remove prepare:.", "model")
    if "path" not in model and "token_ids" not in model:
        refuse(
            "neither model.path nor model.token_ids says which prompts can be drawn",
            "Say model: {token_ids: [first, last]}, ordinary token ids of the served model.",
            "model",
        )


def _check_address(attach: Attach, variant: str, where: str) -> None:
    try:
        parts = urlsplit(attach.url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise LeverbenchError(
            f"{variant}: attach: is no address that can be used",
            where=where,
            cure="Say http://HOST:PORT.",
        )
    if attach.flush_cache and attach.api != "native":
        raise LeverbenchError(
            f"{variant}: the OpenAI protocol has no way to empty a cache",
            where=where,
            cure="Remove flush_cache:, and prompts will differ from window to window; or api:.",
        )


def _profile(document: Document, variants: Mapping[str, Variant]) -> Profile:
    written = document.data.get("profile")
    attached = {name: v.engine.attach for name, v in variants.items() if v.engine.attach}
    openai = [name for name, attach in attached.items() if attach.api != "native"]
    elsewhere = [name for name, attach in attached.items() if not attach.on_this_host]
    if openai or elsewhere:
        if written is not None and written.get("concurrency") != []:
            what, cure = (
                ("an OpenAI-compatible endpoint", ", or api: native.")
                if openai
                else ("a server of another host, where its traces are written,", ".")
            )
            raise LeverbenchError(
                f"{', '.join(openai or elsewhere)}: {what} cannot be profiled",
                where=document.where(("profile",)),
                cure=f"Say profile: {{concurrency: []}}{cure}",
            )
        return Profile(concurrency=())
    settings = dict(written or {})
    if "concurrency" in settings:
        settings["concurrency"] = tuple(sorted(set(settings["concurrency"])))
    return Profile(**settings)


def _agreement(written: Mapping[str, Any] | None) -> Agreement | None:
    if written is None:
        return None
    settings = dict(written)
    if "prompts" in settings:
        settings["prompts"] = tuple(settings["prompts"])
    return Agreement(**settings)


def _workload(document: Document, name: str, variants: Sequence[Variant]) -> Workload:
    """Returns a workload; of one that is read from a file, with the digest of the file."""
    written = document.data["workloads"][name]

    def refuse(what: str, cure: str, *keys: str) -> NoReturn:
        where = document.where(("workloads", name, *keys))
        raise LeverbenchError(f"workloads.{name}: {what}", where=where, cure=cure)

    lengths = ("input_tokens", "output_tokens")
    if written["dataset"] == FILE:
        for key in (*lengths, "shared_prefix"):
            if key in written:
                refuse(f"{key} is for random ids", "Remove it: a file has its own prompts.", key)
        if "path" not in written:
            refuse("a file needs a path", "Say path: FILE.jsonl, one request a line.")
        for variant in variants:
            if variant.engine.attach and not variant.engine.attach.flush_cache:
                refuse(
                    "the prompts of a file come again in each session, and the server of"
                    f" {variant.name} may still have them in its cache",
                    "Say flush_cache: true in attach: (native only), or measure random ids.",
                )
        return Workload(FILE, path=written["path"], content=_content(document, name))
    if "path" in written:
        refuse("random ids come from no file", f"Remove it, or say dataset: {FILE}.", "path")
    drawn: dict[str, Any] = {}
    for key in lengths:
        if key not in written:
            refuse(f"{key} is missing", "Say a number of tokens, or [shortest, longest].")
        drawn[key] = tuple(written[key]) if isinstance(written[key], list) else written[key]
        if isinstance(drawn[key], tuple) and drawn[key][1] <= drawn[key][0]:
            refuse(f"{key}: {drawn[key][1]} is not above {drawn[key][0]}", "Say [low, high].", key)
    shared = SharedPrefix(**written["shared_prefix"]) if "shared_prefix" in written else None
    if shared and shared.tokens >= shortest(drawn["input_tokens"]):
        refuse(
            f"a prompt of {shortest(drawn['input_tokens'])} tokens has no room for a prefix of"
            f" {shared.tokens} and a token of its own",
            "input_tokens counts the prefix too.",
            "shared_prefix",
        )
    return Workload(written["dataset"], **drawn, shared_prefix=shared)


def _content(document: Document, name: str) -> str:
    path = Path(document.data["workloads"][name]["path"])
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LeverbenchError(
            f"workloads.{name}: {path} cannot be read ({error.strerror})",
            where=document.where(("workloads", name, "path")),
            cure="Paths are absolute or relative to the project's folder.",
        ) from None


def _kernels(document: Document, variants: Mapping[str, Variant]) -> dict[str, Kernel]:
    """Returns the kernels that variants name, as this campaign asks for them.

    One whose folder is not there is left out: a plan of it can be made, and a run would stop.
    """
    written = document.data.get("kernels", {})
    named = {name: v.engine.name for v in variants.values() for name in v.engine.tuned}
    for name in written:
        if name not in named:
            raise LeverbenchError(
                f"kernels.{name}: no variant is given it",
                where=document.where(("kernels", name)),
                cure=f"Say tuned: [{name}] in a variant, or remove it here.",
            )
    found = {}
    for name, engine in named.items():
        settings = written.get(name, {})
        folder = Path(settings.get("path", KERNELS / name))
        if not folder.is_dir():
            if "path" in settings:
                raise LeverbenchError(
                    f"kernels.{name}.path: {folder} is no folder",
                    where=document.where(("kernels", name, "path")),
                    cure=f"Without path: it is {KERNELS / name}.",
                )
            continue
        kernel = read_kernel(folder)
        where = document.where(("kernels", name))
        if (kernel.name, kernel.engine) != (name, engine):
            raise LeverbenchError(
                f"{folder} has the kernel {kernel.name} for {kernel.engine}, not {name} for"
                f" {engine}",
                where=where,
                cure="Name another path: there, or another kernel in tuned:.",
            )
        if "sizes" in settings and kernel.size is None:
            raise LeverbenchError(
                f"kernels.{name}.sizes: no dimension of it varies from call to call",
                where=where,
                cure=f"Remove it: {folder}/kernel.yaml names no sizes.",
            )
        shapes = settings.get("shapes", ())
        own = {"files": "files" in settings, "shapes": isinstance(shapes, str)}
        if kernel.configs is None and (keys := [key for key, asked in own.items() if asked]):
            raise LeverbenchError(
                f"kernels.{name}.{keys[0]}: {settings[keys[0]]} is for kernels of the engine's own",
                where=where,
                cure="List shapes, or leave them to the kernel's manifest.",
            )
        if "files" in settings and {"shapes", "sizes", "skip_by"} & settings.keys():
            raise LeverbenchError(
                f"kernels.{name}: files say themselves what they are for, and nothing is tuned",
                where=where,
                cure="Remove shapes:, sizes: and skip_by:, or files:.",
            )
        if isinstance(shapes, str):
            settings = {key: value for key, value in settings.items() if key != "shapes"}
            shapes = ()
        for shape in shapes:
            if shape.keys() != kernel.shapes[0].keys():
                raise LeverbenchError(
                    f"kernels.{name}.shapes: {shape} does not have the dimensions"
                    f" {', '.join(kernel.shapes[0])}",
                    where=where,
                    cure=f"Those are what {folder}/kernel.yaml names.",
                )
            if kernel.configs is not None and any(isinstance(v, str) for v in shape.values()):
                raise LeverbenchError(
                    f"kernels.{name}.shapes: {shape} has a dimension that is no number",
                    where=where,
                    cure="Say each as a whole number.",
                )
        found[name] = for_campaign(kernel, settings)
        if kernel.configs is not None and "sizes" not in settings:
            given = Path(settings["files"]) if "files" in settings else None
            found[name] = replace(found[name], sizes=(), given=given)
    for name, variant in variants.items():
        replaced = [found[kernel].replaces for kernel in variant.engine.tuned if kernel in found]
        if len(set(replaced)) < len(replaced):
            raise LeverbenchError(
                f"{name}: two of its kernels stand in for the same function of the engine",
                where=document.where(("variants", name, "tuned")),
                cure="Give each its own variant.",
            )
    return found


def _shapes_from(document: Document, kernels: Mapping[str, Kernel]) -> dict[str, str]:
    """Returns where the shapes of the engine's own kernels come from."""
    found = {}
    for name, kernel in kernels.items():
        if kernel.configs is not None:
            asked = document.data.get("kernels", {}).get(name, {}).get("shapes", "model")
            found[name] = asked if isinstance(asked, str) else "list"
            if kernel.given is not None:
                found[name] = "files"
    return found


def _recovery(document: Document) -> dict[str, tuple[RecoveryStep, ...]]:
    found: dict[str, tuple[RecoveryStep, ...]] = {}
    for cause, steps in document.data.get("recovery", {}).items():
        for number, step in enumerate(steps):
            at = ("recovery", cause, number)
            settings = flatten(step)
            if not settings:
                raise LeverbenchError(
                    "a recovery step changes nothing",
                    where=document.where(at),
                    cure="Give it args: or env:.",
                )
            check_settings(document, at, settings)
            taken = RecoveryStep(
                args={key[5:]: v for key, v in settings.items() if key.startswith("args.")},
                env={key[4:]: v for key, v in settings.items() if key.startswith("env.")},
            )
            found[cause] = (*found.get(cause, ()), taken)
    return found


def _ladder(document: Document) -> dict[int, int]:
    written = document.data.get("ladder")
    if written is None:
        return dict(DEFAULT_LADDER)
    return {int(key): written[key] for key in sorted(written, key=int)}
