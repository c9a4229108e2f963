"""The command line: what a campaign would do, without doing it, and records of others."""

import argparse
import sys
from pathlib import Path
from typing import Any

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
    _add_import(commands)
    arguments = parser.parse_args()
    directory = Path.cwd()
    try:
        if arguments.command == "import":
            _import(arguments)
            return
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


def _add_import(commands: Any) -> None:
    what = "read records of others as a campaign, and render its report"
    command = commands.add_parser("import", help=what, description=what)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files of one kind")
    command.add_argument("--campaign", required=True, metavar="NAME", help="name of the campaign")
    command.add_argument(
        "--target", type=float, metavar="TOK_PER_S", help="output tokens per second that are needed"
    )
    command.add_argument("--profile", type=Path, metavar="FILE", help="a table of profiles")
    command.add_argument(
        "--parent", metavar="TAG", help="of benchmark lines: the parent; default, the first tag"
    )
    command.add_argument(
        "--fresh-launches",
        action="store_true",
        help="of benchmark lines: each of one tag and concurrency is from a launch of its own",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for results/ and reports/; default, this one",
    )


def _import(arguments: argparse.Namespace) -> None:
    from leverbench.imports import import_records

    page = import_records(
        arguments.files,
        arguments.campaign,
        arguments.out,
        target_tok_per_s=arguments.target,
        profile=arguments.profile,
        parent=arguments.parent,
        fresh_launches=arguments.fresh_launches,
    )
    print(page)
