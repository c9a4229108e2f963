"""Records of others as campaigns: read, written in our form, and rendered as a report."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from leverbench import __version__
from leverbench.analysis import judge_rows, write_verdicts
from leverbench.analysis.measurements import COLUMNS, as_rows, write_measurements
from leverbench.campaign.file import RESERVED
from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN
from leverbench.campaign.schema import schema
from leverbench.errors import LeverbenchError
from leverbench.imports.bench_lines import looks_like_lines, read_bench_lines
from leverbench.imports.campaign_table import is_campaign_table, read_campaign_tables
from leverbench.imports.measurement_table import is_measurement_table, read_measurement_tables
from leverbench.imports.profile_table import is_profile_table, read_profile_table
from leverbench.imports.record import Record, RecordedProfile
from leverbench.imports.tables import header
from leverbench.records import read_record, write_record
from leverbench.report import render_report


def import_records(
    files: Sequence[Path],
    campaign: str,
    out: Path,
    *,
    target_tok_per_s: float | None = None,
    profile: Path | None = None,
    parent: str | None = None,
    fresh_launches: bool = False,
) -> Path:
    """Writes records of others as a campaign, with its report.

    Args:
        files: Files of one kind, which their content tells, and tables of profiles.
        campaign: Name of the campaign.
        out: The folder that has, or gets, ``results/`` and ``reports/``.
        target_tok_per_s: What is needed, in output tokens per second.
        profile: A table of profiles.
        parent: Of lines of a benchmark: the tag that the others are compared with.
        fresh_launches: Of these: each line of a tag and concurrency is from a launch of its own.

    Returns:
        The page of the report.

    Raises:
        LeverbenchError: A file or an argument is not what it should be, or a campaign of this
            name is there that is no import; nothing is written then.
    """
    _check_name(campaign)
    results, reports = out / "results" / campaign, out / "reports" / campaign
    _check_place(results, reports)
    if target_tok_per_s is not None and not 0 < target_tok_per_s < float("inf"):
        raise LeverbenchError(
            f"--target {target_tok_per_s:g}", cure="It is a number of output tok/s above 0."
        )
    kinds = {path: _kind(path) for path in files}
    tables = [path for path, kind in kinds.items() if kind == "profile"]
    tables += [] if profile is None else [profile]
    measured = [path for path, kind in kinds.items() if kind != "profile"]
    record = _read(measured, {kinds[path] for path in measured}, parent, fresh_launches)
    profiles = [found for path in tables for found in read_profile_table(path)]
    plan = _plan(record, profiles, campaign, [*measured, *tables], target_tok_per_s)

    plan_path, table = results / "plan.json", results / "analysis" / "measurements.parquet"
    write_record(plan_path, plan)
    measurements = _table(record, campaign)
    write_measurements(measurements, table.with_suffix(".csv"), table)
    verdicts = judge_rows(plan, results, as_rows(measurements))
    write_verdicts(table.with_name("verdicts.json"), verdicts)
    for figure in (reports / "figures").glob("*.svg"):
        # Of an earlier import, whose workloads may have had other names.
        figure.unlink()
    page = reports / "index.html"
    render_report(
        plan_path,
        table,
        results / "launches",
        [],
        page,
        reports / "findings.md",
        reports / "figures",
    )
    return page


def _check_name(campaign: str) -> None:
    name = schema()["$defs"]["name"]
    if not re.fullmatch(name["pattern"], campaign) or len(campaign) > name["maxLength"]:
        raise LeverbenchError(
            f"--campaign {campaign!r} is no name for a campaign",
            cure=f"Use small letters, digits and dashes, at most {name['maxLength']}.",
        )
    if campaign in RESERVED:
        raise LeverbenchError(
            f"--campaign {campaign}: a reserved name",
            cure=f"Choose another than {', '.join(RESERVED)}.",
        )


def _check_place(results: Path, reports: Path) -> None:
    """Refuses a place where something is that no import wrote."""
    plan = results / "plan.json"
    if plan.exists():
        if read_record(plan).get("imported"):
            return
        what = "a campaign of this name was planned here"
    elif results.exists() or reports.exists():
        what = "something of this name is here already"
    else:
        return
    raise LeverbenchError(
        what,
        where=str(results if results.exists() else reports),
        cure="Import under another name with --campaign, or elsewhere with --out.",
    )


def _kind(path: Path) -> str:
    if looks_like_lines(path):
        return "lines"
    columns = header(path)
    for kind, is_kind in (
        ("profile", is_profile_table),
        ("campaign", is_campaign_table),
        ("measurements", is_measurement_table),
    ):
        if is_kind(columns):
            return kind
    raise LeverbenchError(
        f"no record that is known: the first line names {', '.join(columns) or 'nothing'}",
        where=f"{path}:1",
        cure="docs/imports.md says what columns and lines are read.",
    )


def _read(
    paths: Sequence[Path], kinds: set[str], parent: str | None, fresh_launches: bool
) -> Record:
    if not kinds:
        raise LeverbenchError(
            "no file of measurements", cure="Name one beside the table of profiles."
        )
    if len(kinds) > 1:
        raise LeverbenchError(
            "files of different kinds",
            where=", ".join(map(str, paths)),
            cure="Import each kind under a name of its own.",
        )
    if kinds == {"lines"}:
        return read_bench_lines(paths, parent, fresh_launches)
    for given, option in ((parent, "--parent"), (fresh_launches, "--fresh-launches")):
        if given:
            raise LeverbenchError(
                f"{option} is for lines of a benchmark",
                where=str(paths[0]),
                cure="Remove it: a table says so itself.",
            )
    read = read_campaign_tables if kinds == {"campaign"} else read_measurement_tables
    return read(paths)


def _plan(
    record: Record,
    profiles: Sequence[RecordedProfile],
    campaign: str,
    files: Sequence[Path],
    target_tok_per_s: float | None,
) -> dict[str, Any]:
    """Returns `plan.json` of an import: what a plan has, as far as the record tells."""
    sessions = list(dict.fromkeys((row["variant"], row["session"]) for row in record.rows))
    ladder: dict[int, int | None] = {}
    for row in sorted(record.rows, key=lambda row: int(row["concurrency"])):
        requests = row.get("num_requests")
        known = ladder.setdefault(row["concurrency"], requests)
        # Where variants differ, no number stands for all.
        ladder[row["concurrency"]] = requests if known == requests else None
    return {
        "kind": "plan",
        "campaign": campaign,
        "file": str(files[0]),
        "description": None,
        "imported": {
            "kind": record.kind,
            "files": [_file(path) for path in files],
            "engine": record.engine,
            "notes": list(record.notes),
            "profiles": [asdict(profile) for profile in profiles],
            "leverbench": __version__,
        },
        "overrides": {},
        "target": None if target_tok_per_s is None else {"output_tok_per_s": target_tok_per_s},
        "model": {"path": record.model, "prepare": None, "token_ids": None},
        "devices": [],
        "device": None,
        "protocol": None,
        "seed": None,
        "profile": {"concurrency": [], "steps": None},
        "recovery": {},
        "until": None,
        "equal_within": DEFAULT_EQUAL_WITHIN,
        "goodput": None,
        "agreement": None,
        "workloads": dict(record.workloads),
        "ladder": {str(c): None if n is None else int(n) for c, n in ladder.items()},
        "variants": {
            name: {
                "parent": variant.parent,
                "levers": list(variant.levers),
                "confounded": len(variant.levers) > 1 or bool(variant.beside),
                "control": None,
                "sessions": len([one for one, _ in sessions if one == name]),
                "engine": {"args": {}, "env": {}},
                "delta": {key: list(change) for key, change in variant.delta.items()},
                "beside": {key: list(change) for key, change in variant.beside.items()},
                "cross": [],
                "touches": [],
            }
            for name, variant in record.variants.items()
        },
        "order": [list(session) for session in sessions],
    }


def _file(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"name": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _table(record: Record, campaign: str) -> pd.DataFrame:
    """Returns the rows as a table of measurements: by variant, session, workload, concurrency."""
    variants, workloads = list(record.variants), list(record.workloads)
    rows: list[Mapping[str, Any]] = [
        {**row, "campaign": campaign, "parent": record.variants[row["variant"]].parent}
        for row in record.rows
    ]
    rows.sort(
        key=lambda row: (
            variants.index(row["variant"]),
            row["session"],
            workloads.index(row["workload"]),
            row["concurrency"],
        )
    )
    machine = sorted({name for row in rows for name in row if name.startswith("machine_")})
    types = COLUMNS | dict.fromkeys(machine, "str")
    return pd.DataFrame(rows, columns=list(types)).astype(types)
