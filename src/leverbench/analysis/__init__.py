"""From records to figures: the table of measurements, ratios and spreads."""

from collections.abc import Sequence
from pathlib import Path

from leverbench.analysis.measurements import collect, write_measurements


def analyse(
    plan: Path, points: Sequence[Path], attempts: Path, out_csv: Path, out_parquet: Path
) -> None:
    """Writes the measurements of a campaign, as far as they exist.

    Args:
        plan: The campaign's ``plan.json``.
        points: The point records that exist.
        attempts: The campaign's folder under ``state/attempts``, which need not exist.
        out_csv: The table for people.
        out_parquet: The same table for programs.

    Raises:
        LeverbenchError: A record is truncated, or not of this campaign.
    """
    write_measurements(collect(plan, points, attempts), out_csv, out_parquet)
