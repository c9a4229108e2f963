"""A bundle of tuned configs for the engine's own repository: its files, the times, their origin."""

import csv
import hashlib
import io
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.engines import get_engine
from leverbench.errors import LeverbenchError
from leverbench.secrets import redacted
from leverbench.tuning.race import CONFIDENCE
from leverbench.tuning.tune import Outcome

CONFIGS = "configs"
PROVENANCE, README, TABLE = "provenance.json", "README.md", "table.csv"

# What must be the same in all records of a bundle, as they call it.
_COMMON = ("kernel", "method", "device", "digests")
_COMMON_MACHINE = ("gpus", "driver")


@dataclass(frozen=True)
class _Call:
    """What a record says of one call.

    Attributes:
        shape: The dimensions that stay the same in one server.
        dimensions: All of them.
        config: What is shipped: the winner, or the default.
        shipped: Whether it is the winner.
        default_s: Median time with the default, in seconds.
        tuned_s: With the fastest candidate, in their race; None where the default was the fastest.
        speedup: The ratio of the two, with its interval ``low`` and ``high``; likewise None.
    """

    shape: Mapping[str, Any]
    dimensions: Mapping[str, Any]
    config: Mapping[str, int]
    shipped: bool
    default_s: float
    tuned_s: float | None
    speedup: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class _Tuning:
    """A record of what was chosen for a shape.

    Attributes:
        path: The record.
        about: What times depend on, beside the call.
        shape: The shape.
        calls: Its calls; empty where it was not tuned.
        skipped: Why it was not.
    """

    path: Path
    about: Mapping[str, Any]
    shape: Mapping[str, Any]
    calls: tuple[_Call, ...]
    skipped: str | None


def export(
    tunings: Sequence[Path],
    folder: Path,
    *,
    engine: str,
    versions: Mapping[str, str | None],
    command: str,
) -> None:
    """Writes a bundle: the engine's files in ``configs/``, their origin, the times, a README.

    The engine takes what is listed for the nearest size. A file with the winners alone would give a
    winner's config to sizes next to it that were tuned and kept the default: so a file lists all
    sizes that were tuned, with the default where it stays. A shape whose default stays at every
    size has no file.

    Args:
        tunings: The records of what was chosen, one a shape, by `leverbench.tuning.tune.tune`.
        folder: Where; a bundle that is there is replaced, anything else is not.
        engine: The name of the engine.
        versions: Of the engine and of what compiles the kernel, by name; None where not known.
        command: What the user ran, for the README.

    Raises:
        LeverbenchError: There is nothing to export, the records do not belong together, one is
            damaged, or the folder holds something else.
    """
    _check_replaceable(folder)
    command = str(redacted(command))
    read = [_read(path) for path in tunings]
    _check_together(read)
    about, tuned_files = read[0].about, get_engine(engine).tuned_files
    if about["kernel"] != tuned_files.kernel:
        raise LeverbenchError(
            f"{engine} reads no tuned files for the kernel {about['kernel']}, only for"
            f" {tuned_files.kernel}",
            where=str(tunings[0]),
            cure="What was chosen for it is in the plugin that is published for servers.",
        )
    calls = [call for tuning in read for call in tuning.calls]
    # A bundle is whole or absent: whoever copies it could not tell a part from the whole.
    made = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    try:
        (made / CONFIGS).mkdir(parents=True)
        won = [tuning for tuning in read if any(call.shipped for call in tuning.calls)]
        chosen = [
            {"dimensions": dict(call.dimensions), "config": dict(call.config)}
            for tuning in won
            for call in tuning.calls
        ]
        files: Sequence[Path] = ()
        if chosen:
            files = tuned_files.write(made / CONFIGS, about["machine"]["gpus"], chosen)
        provenance = {
            "kind": "tuned-configs",
            **about,
            "engine": engine,
            "versions": dict(versions),
            "command": command,
            "files": {path.name: _sha256(path) for path in files},
            "calls": [
                {
                    "dimensions": dict(call.dimensions),
                    "config": dict(call.config),
                    "shipped": call.shipped,
                    "default_s": call.default_s,
                    "tuned_s": call.tuned_s,
                    "speedup": call.speedup,
                    "low": call.low,
                    "high": call.high,
                }
                for call in calls
            ],
            "skipped": {str(tuning.path): tuning.skipped for tuning in read if tuning.skipped},
            "tunings": [str(path) for path in tunings],
        }
        records.write_record(made / PROVENANCE, provenance)
        (made / TABLE).write_text(_table(calls, about, versions), encoding="utf-8")
        readme = _readme(read, engine, versions, command, len(files))
        (made / README).write_text(readme, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_replaceable(folder: Path) -> None:
    ours = {CONFIGS, PROVENANCE, README, TABLE}
    if folder.is_dir():
        strange = sorted({path.name for path in folder.iterdir()} - ours)
        strange += sorted(path.name for path in folder.glob(f"{CONFIGS}/*") if path.is_dir())
    else:
        strange = [folder.name] if folder.exists() else []
    if strange:
        raise LeverbenchError(
            f"the folder for the bundle holds something else ({strange[0]})",
            where=str(folder),
            cure="Name a folder that is empty or not there, or an earlier bundle.",
        )


def _read(path: Path) -> _Tuning:
    record = records.read_record(path)
    try:
        if record["kind"] != "tuning":
            raise ValueError(f"its kind is {record['kind']!r}")
        about = {key: record[key] for key in _COMMON}
        about["machine"] = {key: record["machine"].get(key) for key in _COMMON_MACHINE}
        if not all(isinstance(value, str | None) for value in about["machine"].values()):
            raise ValueError(f"the machine is {about['machine']}")
        shape, outcome = dict(record["shape"]), Outcome(record["outcome"])
        calls: tuple[_Call, ...] = ()
        if outcome == Outcome.TUNED:
            calls = tuple(_call(shape, entry) for entry in record["chosen"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LeverbenchError(
            f"no record of a tuning ({error!r})",
            where=str(path),
            cure="Delete it and run again: it is made anew.",
        ) from None
    if outcome == Outcome.TUNED and not calls:
        raise LeverbenchError(
            "nothing was tuned: no size was asked for",
            where=str(path),
            cure="Give the kernel sizes: in the campaign, delete the record and run again.",
        )
    skipped = str(record.get("detail")) if outcome != Outcome.TUNED else None
    return _Tuning(path, about, shape, calls, skipped)


def _call(shape: Mapping[str, Any], entry: Mapping[str, Any]) -> _Call:
    """Returns what an entry says; raises `KeyError`, `TypeError` or `ValueError` if it is none."""
    shipped = entry["published"]
    if not isinstance(shipped, bool):
        raise ValueError(f"published is {shipped!r}")
    dimensions = dict(entry["dimensions"])
    if odd := [value for value in dimensions.values() if not isinstance(value, int | str)]:
        raise ValueError(f"a dimension is {odd[0]!r}")
    raced = [entry[name] for name in ("raced_s", "speedup", "low", "high")]
    if shipped or any(value is not None for value in raced):
        # Of a race all is known, or it was none.
        raced = [float(value) for value in raced]
    tuned_s, speedup, low, high = raced
    times = [float(entry["default_s"]), *(value for value in raced if value is not None)]
    if not all(map(math.isfinite, times)):
        raise ValueError(f"times are {times}")
    return _Call(
        shape=shape,
        dimensions=dimensions,
        config=dict(entry["config"] if shipped else entry["default"]),
        shipped=shipped,
        default_s=times[0],
        tuned_s=tuned_s,
        speedup=speedup,
        low=low,
        high=high,
    )


def _check_together(tunings: Sequence[_Tuning]) -> None:
    """Raises `LeverbenchError` unless the records make one bundle with something in it."""
    if not tunings:
        raise LeverbenchError(
            "there is no tuning to export", cure="Tune the kernel first: run its campaign."
        )
    first = tunings[0]
    for other in tunings[1:]:
        if other.about != first.about:
            told = _difference(first.about, other.about)
            raise LeverbenchError(
                f"it does not belong with {first.path}: {told}",
                where=str(other.path),
                cure="Export the tunings of each device and method on their own.",
            )
    seen: dict[str, Path] = {}
    for tuning in tunings:
        name = records.digest(tuning.shape)
        if name in seen:
            raise LeverbenchError(
                f"it is for the same shape as {seen[name]}",
                where=str(tuning.path),
                cure="Export one of the two.",
            )
        seen[name] = tuning.path
    if not any(tuning.calls for tuning in tunings):
        raise LeverbenchError(
            f"nothing was tuned: {first.skipped}",
            where=str(first.path),
            cure="Remove skip_by: or files: from the campaign to tune all the same.",
        )
    if not first.about["machine"]["gpus"]:
        raise LeverbenchError(
            f"it was tuned on the device {first.about['device']}, and these files are for a GPU",
            where=str(first.path),
            cure="Tune on the GPU that is to be served.",
        )


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Tells the first thing in which two records differ."""
    for key, value in ours.items():
        other = theirs[key]
        if isinstance(value, Mapping) and isinstance(other, Mapping) and value != other:
            return _difference(value, {**dict.fromkeys(value), **other})
        if value != other:
            return f"{key} {other}, not {value}"
    return "they differ"


def _table(
    calls: Sequence[_Call], about: Mapping[str, Any], versions: Mapping[str, str | None]
) -> str:
    """Returns the table as CSV, a row a call; what is not known is empty."""
    origin = {"device": about["machine"]["gpus"], "driver": about["machine"]["driver"], **versions}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    dimensions, parameters = list(calls[0].dimensions), list(calls[0].config)
    times = ["default_us", "tuned_us", "speedup", "speedup_low", "speedup_high", "shipped"]
    writer.writerow([*dimensions, *times, *parameters, *origin])
    for call in calls:
        writer.writerow(
            [
                *(call.dimensions.get(name) for name in dimensions),
                _number(call.default_s * 1e6, 3),
                _number(None if call.tuned_s is None else call.tuned_s * 1e6, 3),
                *(_number(value, 4) for value in (call.speedup, call.low, call.high)),
                "yes" if call.shipped else "no",
                *(call.config.get(name) for name in parameters),
                *origin.values(),
            ]
        )
    return text.getvalue()


def _readme(
    tunings: Sequence[_Tuning],
    engine: str,
    versions: Mapping[str, str | None],
    command: str,
    files: int,
) -> str:
    about = tunings[0].about
    calls = [call for tuning in tunings for call in tuning.calls]
    shipped = sum(call.shipped for call in calls)
    known = [f"{name} {version}" for name, version in versions.items() if version]
    lines = [
        f"# Tuned configs of `{about['kernel']}` for {about['machine']['gpus']}",
        "",
        f"Made by `{command}`, for {engine}. Files in `{CONFIGS}/`, in the engine's own format:"
        f" {files}. Calls that were tuned: {len(calls)}; that got another config than the default:"
        f" {shipped}.",
        "",
        f"- Device: {about['machine']['gpus']}, driver {about['machine']['driver']}.",
        f"- Versions: {', '.join(known) or 'not known'}.",
        "- A file lists every size that was tuned, with the default where it stays: the engine"
        " takes what is listed for the nearest size, so that a file with the winners alone would"
        " change sizes where they are no gain. A shape whose default stays everywhere has no file.",
        f"- Times are medians of one call. A config is shipped where the {CONFIDENCE:.0%} interval"
        " of its speed-up, in a race against the default of alternating rounds, lies above 1."
        " Where it does not, the default is shipped, and the row shows the candidate's time.",
        f"- `{TABLE}` has the same rows for programs, `{PROVENANCE}` the digests of what they were"
        " made from.",
        "",
    ]
    head = [*calls[0].dimensions, "default (us)", "tuned (us)", "speed-up", "shipped", "config"]
    lines += [_row(head), _row(["---"] * len(head))]
    for call in calls:
        interval = "" if call.low is None else f" ({call.low:.3f} to {call.high:.3f})"
        config = ", ".join(f"{name} {value}" for name, value in call.config.items())
        lines.append(
            _row(
                [
                    *map(str, call.dimensions.values()),
                    _number(call.default_s * 1e6, 2),
                    _number(None if call.tuned_s is None else call.tuned_s * 1e6, 2),
                    f"{_number(call.speedup, 3)}{interval}",
                    "yes" if call.shipped else "no: the default stays",
                    config,
                ]
            )
        )
    for tuning in tunings:
        if tuning.skipped:
            shape = ", ".join(f"{name} {value}" for name, value in tuning.shape.items())
            lines += ["", f"Not tuned: {shape}. {tuning.skipped}"]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
