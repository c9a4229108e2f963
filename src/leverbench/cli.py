"""The command line: what a campaign would do, without doing it; and verdicts on any table."""

import argparse
import sys
from pathlib import Path

from leverbench.errors import LeverbenchError
from leverbench.project import DEFAULT_CAMPAIGN, ignored, preflight, read_project


def main() -> None:
    """Runs ``leverbench COMMAND``."""
    parser = argparse.ArgumentParser(prog="leverbench", description=(__doc__ or "").strip())
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("plan", "print variants, deltas, order, jobs and estimated time"),
        ("check", "check model, devices and every variant's arguments, as a run does first"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("campaign", nargs="?", default=DEFAULT_CAMPAIGN, help="campaign file")
    what = "judge a table of measurements: docs/verdicts.md says which columns it needs"
    command = commands.add_parser("analyse", help=what, description=what)
    command.add_argument("table", type=Path, help="CSV file, one row a measured point")
    command.add_argument("--out", type=Path, default=Path("verdicts.json"), help="file to write")
    command.add_argument("--until", action="store_true", help="one of several looks: judge at 1%%")
    command.add_argument("--equal-within", type=float, default=0.03, help="margin of equal (0.03)")
    arguments = parser.parse_args()
    try:
        if arguments.command == "analyse":
            _analyse(arguments.table, arguments.out, arguments.until, arguments.equal_within)
        else:
            _campaign(arguments.command, arguments.campaign)
    except LeverbenchError as error:
        sys.exit(f"leverbench: {error}")


def _campaign(command: str, file: str) -> None:
    directory = Path.cwd()
    project = read_project(directory, {"campaign": file})
    if command == "plan":
        print(project.describe())
        return
    preflight(project.campaign, directory)
    print(f"{file}: nothing stands against a run", *ignored(project.campaign), sep="\n")


def _analyse(table: Path, out: Path, until: bool, margin: float) -> None:
    # scipy is slow to import: the other commands do without.
    from leverbench.analysis import write_verdicts
    from leverbench.analysis.measurements import read_rows
    from leverbench.analysis.verdicts import PRIMARY, judge, table_design, verdict_line

    if not 0 < margin <= 0.5:
        raise LeverbenchError(
            f"--equal-within {margin:g} is no share", cure="Say one above 0, up to 0.5."
        )
    rows = read_rows(table)
    verdicts = judge(rows, table_design(rows, until=until, margin=margin))
    try:
        write_verdicts(out, verdicts)
    except OSError as error:
        raise LeverbenchError(
            f"cannot be written: {error.strerror}", where=str(out), cure="Name another with --out."
        ) from None
    for verdict in verdicts:
        if verdict.metric == PRIMARY:
            print(verdict_line(verdict))
    print(f"{out}: {len(verdicts)} comparisons")
