"""The command line: plans and checks of campaigns, verdicts on any table, records of others."""

import argparse
import errno
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN
from leverbench.engines import ENGINES, get_engine
from leverbench.errors import LeverbenchError
from leverbench.project import (
    DEFAULT_CAMPAIGN,
    doubtful,
    ignored,
    missing,
    preflight,
    read_project,
)


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
    command.add_argument(
        "--equal-within", type=float, default=DEFAULT_EQUAL_WITHIN, help="margin of equal"
    )
    _add_trace(commands)
    _add_import(commands)
    what = "check tuned files of a fused MoE kernel, and lay them out as a server looks for them"
    command = commands.add_parser("moe-configs", help=what, description=what)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files of one GPU")
    command.add_argument("--engine", required=True, choices=ENGINES, help="whose they are")
    command.add_argument("--triton", required=True, metavar="VERSION", help="that tuned them")
    command.add_argument("--into", required=True, type=Path, metavar="DIR", help="folder to fill")
    arguments = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of kernels can be of any characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if arguments.command == "analyse":
            _analyse(arguments.table, arguments.out, arguments.until, arguments.equal_within)
        elif arguments.command == "trace":
            _trace(arguments.files, arguments.device, arguments.json)
        elif arguments.command == "import":
            _import(arguments)
        elif arguments.command == "moe-configs":
            lay_out = get_engine(arguments.engine).lay_out_moe_files
            print(*lay_out(arguments.files, arguments.triton, arguments.into), sep="\n")
        else:
            _campaign(arguments.command, arguments.campaign)
        sys.stdout.flush()
    except LeverbenchError as error:
        sys.exit(f"leverbench: {error}")
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # At the exit Python would try once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Who read it, such as head, has enough.
        is_cut = error.errno == errno.EPIPE
        sys.exit(128 + signal.SIGPIPE if is_cut else f"leverbench: {error.strerror}. Make room.")


def _campaign(command: str, file: str) -> None:
    directory = Path.cwd()
    project = read_project(directory, {"campaign": file})
    if command == "plan":
        print(project.describe())
        return
    lacking = list(missing(project.campaign, directory))
    if lacking:
        told = [f"leverbench: {problem}" for problem in lacking] + doubtful(project.campaign)
        told.append("leverbench: so the variants' arguments were not checked")
        sys.exit("\n".join(told))
    preflight(project.campaign, directory)
    print(f"{file}: nothing stands against a run", *ignored(project.campaign), sep="\n")


def _analyse(table: Path, out: Path, until: bool, margin: float) -> None:
    # scipy is slow to import: the other commands do without.
    from leverbench.analysis import write_verdicts
    from leverbench.analysis.verdicts import PRIMARY, Design, judge, level, verdict_line
    from leverbench.imports.measurement_table import read_measurement_tables

    if not 0 < margin <= 0.5:
        raise LeverbenchError(
            f"--equal-within {margin:g} is no share", cure="Say one above 0, up to 0.5."
        )
    record = read_measurement_tables([table])
    parents = {name: variant.parent for name, variant in record.variants.items()}
    design = Design(parents, level=level(until=until), margin=margin)
    verdicts = judge(record.rows, design)
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


def _add_trace(commands: Any) -> None:
    what = "say where the time of a trace's decode steps goes"
    command = commands.add_parser("trace", help=what, description=what)
    command.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="traces of the torch profiler, one a rank: .json or .json.gz",
    )
    command.add_argument(
        "--device",
        choices=("gpu", "cpu"),
        help="whose operations count; default, the GPU's if there are any",
    )
    command.add_argument("--json", action="store_true", help="print it as summary.json has it")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ends in order on Ctrl-C, SIGTERM and SIGHUP: nothing goes on, and nothing is left behind."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in ends}
    for number, handler in before.items():
        # What is ignored, as SIGHUP is under nohup, stays so.
        if handler != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    sys.exit(128 + number)


def _trace(files: list[Path], device: str | None, as_json: bool) -> None:
    # numpy and pyarrow are slow to import: other commands do without.
    from leverbench.profiling.summary import summarise_traces
    from leverbench.profiling.text import summary_text

    with _interruptible():
        summary = summarise_traces(files, device)
    print(json.dumps(summary, indent=2) if as_json else summary_text(summary))


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
