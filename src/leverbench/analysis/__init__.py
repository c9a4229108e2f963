"""From records to figures: the table of measurements, ratios, verdicts and spreads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leverbench.analysis.agreement import agreement_of
from leverbench.analysis.measurements import Row, as_rows, collect, write_measurements
from leverbench.analysis.ratios import applied_levers, ratios, read_launches
from leverbench.analysis.verdicts import Verdict, campaign_design, judge
from leverbench.records import read_record, write_bytes


def analyse(plan: Path, points: Sequence[Path], attempts: Path, out: Path) -> None:
    """Writes the measurements of a campaign and its verdicts, as far as they exist.

    Args:
        plan: The campaign's ``plan.json``, with the evidence of launches beside it.
        points: The point records that exist.
        attempts: The campaign's folder under ``state/attempts``, which need not exist.
        out: Folder for ``measurements.csv`` (the table for people), ``measurements.parquet`` (the
            same for programs) and ``verdicts.json``.

    Raises:
        LeverbenchError: A record is truncated, or not of this campaign.
    """
    planned, results = read_record(plan), plan.parent
    measurements = collect(planned, results, points, attempts)
    write_measurements(measurements, out / "measurements.csv", out / "measurements.parquet")
    verdicts = judge_rows(planned, results, as_rows(measurements))
    write_verdicts(out / "verdicts.json", verdicts)


def judge_campaign(
    plan: Mapping[str, Any], results: Path, points: Sequence[Path], attempts: Path
) -> list[Verdict]:
    """Returns the verdicts of a campaign, as far as it is measured, and writes nothing.

    Args:
        plan: The campaign's plan.
        results: The campaign's folder of results.
        points: The point records that exist.
        attempts: The campaign's folder under ``state/attempts``, which need not exist.

    Raises:
        LeverbenchError: A record is truncated, or not of this campaign.
    """
    return judge_rows(plan, results, as_rows(collect(plan, results, points, attempts)))


def judge_rows(plan: Mapping[str, Any], results: Path, rows: Sequence[Row]) -> list[Verdict]:
    """Returns the verdicts of a campaign on its measurements, with the evidence of launches.

    Args:
        plan: The campaign's plan.
        results: The campaign's folder of results.
        rows: Its measurements.
    """
    launches = read_launches(rows, results / "launches")
    applied = applied_levers(plan, rows, launches)
    found = ratios(plan, rows, applied, launches)
    return judge(rows, campaign_design(plan, applied, agreement_of(plan, launches), found))


def write_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Writes verdicts as a JSON list of objects; what is not known is null."""
    body = json.dumps([asdict(verdict) for verdict in verdicts], indent=1, allow_nan=False)
    write_bytes(path, f"{body}\n".encode())
