"""A kernel as servers are given it: a plugin folder that needs nothing else of the project."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverbench import records
from leverbench.engines import TunedFiles, get_engine
from leverbench.errors import LeverbenchError

if TYPE_CHECKING:
    # Each measuring job looks at what was published, and none of them reads a manifest.
    from leverbench.kernels.manifest import Kernel

RECORD = "published.json"
PLUGIN = "plugin"


@dataclass(frozen=True)
class Published:
    """A kernel that a server can be given.

    Attributes:
        kernel: Its name.
        digest: Names all that a server gets: code, loader, and what was chosen.
        module: The plugin's name, which is that of its package.
        hook: Dotted path of the engine's function that it stands in for; None for tuned files of
            the engine's own kernel.
        plugin: The folder for the server's ``PYTHONPATH``, relative to the project.
        files: SHA-256 of each of these files, by (N, K).
    """

    kernel: str
    digest: str
    module: str
    hook: str | None
    plugin: Path
    files: Mapping[tuple[int, int], str]


def publish(kernel: "Kernel", code: Path, tunings: Sequence[Path], folder: Path) -> None:
    """Writes a kernel's plugin and its record, ``published.json``.

    Args:
        kernel: The kernel.
        code: The folder with ``kernel.py`` and what it loads.
        tunings: The records of what was chosen, one a shape.
        folder: Where ``plugin/`` and the record are written, whole or not at all.
    """
    module = f"leverbench_{kernel.name.replace('-', '_')}"
    engine = get_engine(kernel.engine)
    chosen: list[dict[str, Any]] = []
    devices: dict[str, None] = {}
    for path in tunings:
        record = records.read_record(path)
        try:
            entries = [_chosen(kernel, entry) for entry in record.get("chosen") or ()]
            if kernel.configs is not None:
                device = record["machine"]["gpus"]
                if not entries or not isinstance(device, str):
                    raise ValueError(f"{len(entries)} sizes on the GPU {device}")
                devices[device] = None
            chosen += entries
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LeverbenchError(
                f"no record of a tuning ({error!r})",
                where=str(path),
                cure="Delete it and run again: it is made anew.",
            ) from None
    if len(devices) > 1:
        raise LeverbenchError(
            f"its shapes were tuned on several devices: {', '.join(devices)}",
            where=str(tunings[0].parent),
            cure="Delete the records of all but one, and run again on that one.",
        )
    about: dict[str, Any] = {
        "kernel": kernel.name,
        "hook": kernel.hook,
        "chosen": chosen,
        "default": dict(kernel.default),
        "size": kernel.size,
    }
    made = folder / f".{PLUGIN}.{os.getpid()}.tmp"
    shutil.rmtree(made, ignore_errors=True)
    try:
        package = made / module
        _write_metadata(made / f"{module}-0.1.dist-info", module, engine.plugin_group)
        if kernel.configs is None:
            _write_package(package, code, engine.plugin_loader())
            about["digest"] = records.digest([about, _digests(made)])
            (package / "kernel.json").write_text(json.dumps(about, indent=2) + "\n")
        else:
            about |= _write_configs(package, engine.tuned_files, next(iter(devices), ""), chosen)
        files = _digests(made)
        # A record of before would vouch for another plugin.
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder / PLUGIN, ignore_errors=True)
        made.rename(folder / PLUGIN)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    record = {"kind": "published-kernel", **about, "module": module, "files": files}
    records.write_record(folder / RECORD, {**record, "tunings": [str(path) for path in tunings]})


def _chosen(kernel: "Kernel", entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a call is given: what is not faster beyond noise is not shipped."""
    default = kernel.default if kernel.configs is None else entry["default"]
    dimensions = entry["dimensions"]
    if kernel.configs is not None:
        dimensions = {name: int(dimensions[name]) for name in (*kernel.shapes[0], str(kernel.size))}
    return {
        "dimensions": dimensions,
        "config": entry["config"] if entry["published"] else dict(default),
        "published": entry["published"],
    }


def _write_configs(
    package: Path,
    tuned: TunedFiles,
    device: str,
    chosen: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Writes files for the engine's own kernel, and what gives them to it.

    A shape without a winner has a file too: that it is in force can be shown, and it says what the
    engine would do without it.

    Returns:
        What the record says of them: ``digest``, ``device``, and ``tuned_files``, one a shape.
    """
    configs = package / "configs"
    configs.mkdir(parents=True)
    shapes: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for call in chosen:
        shapes.setdefault((call["dimensions"]["N"], call["dimensions"]["K"]), []).append(call)
    files = []
    for (n, k), calls in shapes.items():
        (path,) = tuned.write(configs, device, calls)
        files.append({"N": n, "K": k, "name": path.name, "sha256": _sha256(path)})
    loader = tuned.loader()
    (package / "__init__.py").write_text(loader, encoding="utf-8")
    by_name = {file["name"]: file["sha256"] for file in files}
    about = {"digest": records.digest([by_name, loader]), "device": device}
    said = {**about, "device": tuned.device_part(device), "files": by_name}
    (package / "configs.json").write_text(json.dumps(said, indent=2) + "\n")
    return {**about, "tuned_files": files}


def read_published(folder: Path) -> Published:
    """Returns what a folder offers, after a look at each of its files.

    Raises:
        LeverbenchError: It is not there as it was published.
    """
    record = records.read_record(folder / RECORD)
    plugin = folder / PLUGIN
    if not {"files", "kernel", "digest", "module", "hook"} <= record.keys():
        raise LeverbenchError(
            "not the record of a published kernel",
            where=str(folder / RECORD),
            cure="Delete it and run again: it is published anew.",
        )
    for name, expected in record["files"].items():
        path = plugin / name
        if not path.is_file() or _sha256(path) != expected:
            raise LeverbenchError(
                f"the published kernel {'was changed' if path.is_file() else 'is incomplete'}",
                where=str(path),
                cure=f"Delete {folder / RECORD} and run again: it is published anew.",
            )
    return Published(
        kernel=record["kernel"],
        digest=record["digest"],
        module=record["module"],
        hook=record["hook"],
        plugin=plugin,
        files={(file["N"], file["K"]): file["sha256"] for file in record.get("tuned_files") or ()},
    )


def _write_package(package: Path, code: Path, loader: str) -> None:
    package.mkdir(parents=True)
    for path in sorted(code.iterdir()):
        # Compiled modules are the interpreter's own, hidden files the workflow's.
        if path.is_file() and not path.name.startswith("."):
            shutil.copyfile(path, package / path.name)
    (package / "__init__.py").write_text(loader, encoding="utf-8")


def _write_metadata(folder: Path, module: str, group: str) -> None:
    """Makes a folder that an interpreter with it on its path takes for an installed package."""
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}:register\n")


def _digests(folder: Path) -> Mapping[str, str]:
    """Returns the SHA-256 of each file below a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
