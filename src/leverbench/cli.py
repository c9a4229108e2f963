"""The command line: what a campaign would do, without doing it."""

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
    arguments = parser.parse_args()
    directory = Path.cwd()
    try:
        project = read_project(directory, {"campaign": arguments.campaign})
        if arguments.command == "check":
            preflight(project.campaign, directory)
            print(
                f"{arguments.campaign}: nothing stands against a run",
                *ignored(project.campaign),
                sep="\n",
            )
        else:
            print(project.describe())
    except LeverbenchError as error:
        sys.exit(f"leverbench: {error}")
