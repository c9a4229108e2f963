"""Shapes of the engine's own kernels: by a model's config.json, or by what a server looks up."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import Campaign, Engine, Variant
from leverbench.campaign.slices import Launch, launch_slice
from leverbench.engines import TunedFiles, Unread, get_engine
from leverbench.engines.arguments import identify
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import Kernel
from leverbench.serving.machine import installed_gpus
from leverbench.tuning.batch_sizes import SHIPPED_SIZES, decode_sizes
from leverbench.tuning.gpu import capability_of, first_gpu
from leverbench.tuning.shapes import GemmShape, LookedUp, compare

_LOOKUPS = Path("results/tuning")


def with_shapes(campaign: Campaign) -> Campaign:
    """Returns a campaign whose kernels have their shapes and sizes, as far as these are known.

    All variants that are given a kernel are given the same: the shapes of all of them, at the
    sizes of all of them.
    """
    kernels, unshaped = dict(campaign.kernels), {}
    for name, kernel in campaign.unshaped.items():
        try:
            kernels[name] = _shaped(campaign, kernel)
        except LeverbenchError:
            unshaped[name] = kernel
    return replace(campaign, kernels=kernels, unshaped=unshaped)


def unknown_shapes(campaign: Campaign) -> Iterator[LeverbenchError]:
    """Yields why the shapes of kernels cannot be told; those that a launch will show are left out.

    Args:
        campaign: By `with_shapes`.
    """
    awaited = {Path(record).parts[-3] for record in lookups(campaign)}
    for name, kernel in campaign.unshaped.items():
        if name in awaited or not _given(campaign, kernel):
            continue
        try:
            _shaped(campaign, kernel)
        except LeverbenchError as error:
            yield error


def unread(campaign: Campaign) -> Iterator[tuple[str, Unread]]:
    """Yields ``(variant, why)`` for tuned files that a variant's server would not look at.

    Args:
        campaign: By `with_shapes`.
    """
    _, capability = _gpu(campaign)
    for name, kernel in {**campaign.kernels, **campaign.unshaped}.items():
        if kernel.configs is None:
            continue
        known = kernel.shapes if name in campaign.kernels else ()
        listed = [GemmShape(int(s["N"]), int(s["K"]), 128, 128, ()) for s in known]
        for variant in _given(campaign, kernel):
            engine = variant.engine
            problem = _files(kernel).why_not_read(
                _version(engine),
                capability,
                engine.args,
                listed,
                engine.env,
            )
            if problem:
                yield variant.name, problem
    try:
        config = _model_config(campaign) or {}
    except LeverbenchError:
        config = {}  # told where the model is checked
    for variant in campaign.variants.values():
        engine = variant.engine
        problem = get_engine(engine.name).why_files_not_read(engine, capability, config)
        if problem:
            yield variant.name, problem


def foreign_files(campaign: Campaign) -> Iterator[str]:
    """Yields, as sentences, for which variants no given file is for a shape of the model's.

    Args:
        campaign: By `with_shapes`.
    """
    for kernel in campaign.kernels.values():
        if kernel.given is None:
            continue
        for variant in _given(campaign, kernel):
            try:
                derived = [(one.n, one.k) for one in _derived(campaign, kernel, variant)]
            except LeverbenchError:
                continue  # then it is not known
            if not any((shape["N"], shape["K"]) in derived for shape in kernel.shapes):
                layers = ", ".join(f"N={n} K={k}" for n, k in dict.fromkeys(derived))
                yield (
                    f"{variant.name}: likely none of the files in {kernel.given} is read: the"
                    f" model's shapes are {layers}. Take files of these."
                )


def _gpu(campaign: Campaign) -> tuple[str | None, tuple[int, int] | None]:
    """Returns name and compute capability of the campaign's GPU, None for what is not known."""
    name = campaign.device or next((name for name, _ in installed_gpus()), None)
    gpu = first_gpu()
    capability = gpu.capability if gpu else capability_of(name or "")
    return name, None if capability is None else divmod(capability, 10)


def _version(engine: Engine) -> str | None:
    if engine.version is not None:
        return engine.version
    try:
        return identify(engine).version
    except LeverbenchError:
        return None


def lookups(campaign: Campaign) -> dict[str, Launch]:
    """Returns the launches that show shapes which are not known yet, by the path of the record.

    Args:
        campaign: By `with_shapes`.
    """
    return {
        str(record): launch
        for name, kernel in campaign.unshaped.items()
        if campaign.shapes_from[name] == "discover"
        for record, launch in (_lookup(campaign, kernel, one) for one in _given(campaign, kernel))
        if not record.exists()
    }


def differences(campaign: Campaign) -> list[str]:
    """Returns, as sentences, which shapes servers looked up otherwise than the model has them.

    Args:
        campaign: By `with_shapes`.
    """
    told = []
    for name, source in campaign.shapes_from.items():
        if source != "discover" or name not in campaign.kernels:
            continue
        kernel = campaign.kernels[name]
        for variant in _given(campaign, kernel):
            record, _ = _lookup(campaign, kernel, variant)
            try:
                derived, seen = _derived(campaign, kernel, variant), _read(record)
                others = _files(kernel).alternatives(
                    _config(campaign, kernel), variant.engine.args, variant.engine.env
                )
            except LeverbenchError as error:
                told.append(f"{name}: nothing to compare what was looked up with: {error.what}")
                continue
            told += [
                f"{name}: N={one.n}, K={one.k} is only"
                f" {'derived' if one.derived else 'looked up'}. {one.reason}"
                for one in compare(derived, seen, others)
            ]
    return list(dict.fromkeys(told))


def record_lookups(launch: Launch, seen: Sequence[LookedUp], record: Path) -> None:
    """Records the shapes that a server looked up.

    Args:
        launch: The server's.
        seen: What its log tells.
        record: Where.

    Raises:
        LeverbenchError: It tells of none.
    """
    if not seen:
        raise LeverbenchError(
            "the server looked no tuned file up",
            where=f"variant {launch.variant}",
            cure="Another backend serves its GEMMs, its weights have scales for other blocks than"
            " the kernel is for, or nothing is logged at its log level. Or say shapes: model in the"
            " campaign.",
        )
    about = {"kind": "lookups", "launch": launch.as_params()}
    records.write_record(record, {**about, "looked_up": [asdict(one) for one in seen]})


def _shaped(campaign: Campaign, kernel: Kernel) -> Kernel:
    """Returns a kernel with the shapes and sizes of all variants that are given it.

    Raises:
        LeverbenchError: They are not known.
    """
    files = _files(kernel)
    shapes: dict[tuple[int, int], None] = {}
    sizes: dict[int, None] = {}
    if kernel.given is not None:
        device, capability = _gpu(campaign)
        version = _version(_given(campaign, kernel)[0].engine)
        if device is None:
            raise LeverbenchError(
                f"the files of {kernel.name} are for a GPU, and it is not known for which",
                where=campaign.file,
                cure="Name it in topology: device:, or run on the machine that has it.",
            )
        given = files.read(kernel.given, device, version, capability)
        sizes = {m: None for by_m in given.values() for m in sorted(by_m)}
        named = tuple({"N": n, "K": k} for n, k in given)
        return replace(kernel, shapes=named, sizes=tuple(sizes))
    for variant in _given(campaign, kernel):
        shapes |= dict.fromkeys((one.n, one.k) for one in _shapes_of(campaign, kernel, variant))
        args = variant.engine.args
        drafts, captured = files.draft_tokens(args), files.captured_sizes(args)
        sizes |= dict.fromkeys(decode_sizes(campaign.ladder, drafts, captured))
    return replace(
        kernel,
        shapes=tuple({"N": n, "K": k} for n, k in shapes) or kernel.shapes,
        # What is run comes first: a search that is stopped early has that.
        sizes=kernel.sizes or tuple(sizes | dict.fromkeys(SHIPPED_SIZES)),
    )


def _shapes_of(
    campaign: Campaign, kernel: Kernel, variant: Variant
) -> Sequence[GemmShape | LookedUp]:
    """Returns the shapes of a variant's server; none where the campaign lists them."""
    source = campaign.shapes_from[kernel.name]
    if source == "list":
        return ()
    if source == "model":
        return _derived(campaign, kernel, variant)
    return _read(_lookup(campaign, kernel, variant)[0])


def _derived(campaign: Campaign, kernel: Kernel, variant: Variant) -> tuple[GemmShape, ...]:
    engine = variant.engine
    try:
        return _files(kernel).shapes(_config(campaign, kernel), engine.args, engine.env)
    except LeverbenchError as error:
        where = f"{campaign.file}: variant {variant.name}: {error.where or 'its arguments'}"
        raise LeverbenchError(error.what, where=where, cure=error.cure) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise LeverbenchError(
            f"the model's config.json and these arguments make no shapes ({error!r})",
            where=f"{campaign.file}: variant {variant.name}",
            cure="Take the file that belongs to the model's weights, and look at the arguments.",
        ) from None


def _config(campaign: Campaign, kernel: Kernel) -> dict[str, Any]:
    config = _model_config(campaign)
    if config is None:
        raise LeverbenchError(
            f"the shapes of {kernel.name} come from the model's config.json, and there is none",
            where=" or ".join(map(str, _config_places(campaign))),
            cure="Name a copy of it in model: config:, or list them in kernels:"
            f" {kernel.name}: shapes:.",
        )
    return config


def _model_config(campaign: Campaign) -> dict[str, Any] | None:
    """Returns the model's config.json: the model's own, else the one that the campaign names."""
    for path in filter(Path.exists, _config_places(campaign)):
        try:
            return dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise LeverbenchError(
                f"not a model's configuration ({error})", where=str(path), cure="Fetch it anew."
            ) from None
    return None


def _config_places(campaign: Campaign) -> list[Path]:
    places = [Path(campaign.model_path, "config.json")] if campaign.model_path else []
    return places + ([Path(campaign.model_config)] if campaign.model_config else [])


def _lookup(campaign: Campaign, kernel: Kernel, variant: Variant) -> tuple[Path, Launch]:
    """Returns the launch that shows a variant's shapes, and the path of its record."""
    bare = replace(variant, engine=replace(variant.engine, tuned=()), delta={})
    launch = launch_slice(replace(campaign, variants={bare.name: bare}), bare.name, 1)
    # What is looked up depends on the server alone: its settings, its model and its engine.
    params = launch.as_params() | dict.fromkeys(("campaign", "variant", "probe"))
    with suppress(LeverbenchError):
        params["model_config"] = _model_config(campaign)
        params["engine_digest"] = identify(variant.engine).digest
    digest = records.digest(params)[:16]
    return _LOOKUPS / kernel.name / "shapes" / f"{digest}.json", launch


def _read(record: Path) -> list[LookedUp]:
    try:
        seen = [LookedUp(**entry) for entry in records.read_record(record)["looked_up"]]
        if not seen or not all(type(size) is int for one in seen for size in one.key):
            raise ValueError("no shapes")
        return seen
    except (KeyError, TypeError, ValueError) as error:
        raise LeverbenchError(
            f"not what a server looked up ({error!r})",
            where=str(record),
            cure="Delete it and run again.",
        ) from None


def _given(campaign: Campaign, kernel: Kernel) -> list[Variant]:
    return [v for v in campaign.variants.values() if kernel.name in v.engine.tuned]


def _files(kernel: Kernel) -> TunedFiles:
    files = get_engine(kernel.engine).tuned_files
    if files.kernel != kernel.configs:
        raise LeverbenchError(
            f"{kernel.engine} reads no tuned files of {kernel.configs}",
            where=str(kernel.folder),
            cure=f"It reads those of {files.kernel}: see load: configs: in kernel.yaml.",
        )
    return files
