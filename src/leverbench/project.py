"""A project directory and the campaign that a Snakemake run in it is about."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from leverbench import records
from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.plan import HISTORY, describe, order_of, plan_record
from leverbench.engines import get_engine
from leverbench.engines.arguments import check_arguments
from leverbench.errors import LeverbenchError
from leverbench.models.files import model_facts
from leverbench.serving.machine import require_gpus
from leverbench.serving.owner import clear_stale_lock, hold_owner, stop_now, take_turn

DEFAULT_CAMPAIGN = "config/campaign.yaml"
# Keys of `--config` that leverbench reads; a misspelt one would be silently ignored.
_CONFIG_KEYS = ("campaign", "sessions", "only")


# Rules whose jobs need the engine, the model and the machine to themselves.
_MEASURING = frozenset({"serve", "bench"})


@dataclass(frozen=True)
class Project:
    """A campaign in its project directory; all paths it gives are relative to that.

    Attributes:
        directory: The project directory.
        campaign: The resolved campaign.
        plan: The plan's record.
        only: The variants whose points this run is narrowed to, or all.
    """

    directory: Path
    campaign: Campaign
    plan: Mapping[str, Any]
    only: tuple[str, ...]
    _ranks: dict[tuple[str, int], int] = field(repr=False)

    def session_records(self, variants: tuple[str, ...] | None = None) -> list[str]:
        """Returns the path of each planned session's record."""
        return [
            f"results/{self.campaign.name}/{variant}/s{session}/server.json"
            for variant, session in self._sessions(variants)
        ]

    def point_records(self, variants: tuple[str, ...] | None = None) -> list[str]:
        """Returns the path of each planned point's record."""
        return [
            f"results/{self.campaign.name}/{variant}/s{session}/{workload}/c{concurrency}.json"
            for variant, session in self._sessions(variants)
            for workload in self.campaign.workloads
            for concurrency in self.campaign.ladder
        ]

    def measured_records(self) -> list[str]:
        """Returns the planned points, and those beside them at concurrencies outside the ladder."""
        planned = self.point_records()
        folders = dict.fromkeys(Path(record).parent for record in planned)
        found = [str(path) for folder in folders for path in sorted(folder.glob("c*.json"))]
        return list(dict.fromkeys([*planned, *found]))

    def targets(self) -> list[str]:
        """Returns the files that a whole run makes.

        With ``only`` the points of those variants; else also analysis, report and gate, which
        passes once and then has nothing to do.
        """
        plan = f"results/{self.campaign.name}/plan.json"
        if self.only:
            return [plan, *self.point_records(self.only)]
        report = f"reports/{self.campaign.name}/index.html"
        return [plan, *self.point_records(), report, f"state/gate/{self.campaign.name}"]

    def model_manifest(self) -> list[str]:
        """Returns the manifest of a model that the workflow makes, or nothing."""
        return [f"{self.campaign.model_path}/model.json"] if self.campaign.prepare else []

    def rank(
        self,
        variant: str,
        session: int,
        workload: str | None = None,
        concurrency: int | None = None,
    ) -> int:
        """Returns a job's priority: session by session in the plan's order.

        Inside a session the launch comes first (no workload), then the points by workload and
        rising concurrency.
        """
        workloads, ladder = list(self.campaign.workloads), list(self.campaign.ladder)
        width = len(workloads) * (len(ladder) + 1) + 1
        step = 0
        if workload is not None and concurrency is not None:
            below = sum(c < concurrency for c in ladder)
            step = 1 + workloads.index(workload) * (len(ladder) + 1) + below
        place = self._ranks.get((variant, session), len(self._ranks))
        return (len(self._ranks) - place + 1) * width - step

    def require_session(self, variant: str, session: int) -> None:
        """Ends the run with a message where a session is asked for that is not planned."""
        planned = self.campaign.variants[variant].sessions
        if session > planned:
            _exit(
                LeverbenchError(
                    f"session {session} of {variant} is not planned (it has {planned})",
                    where=self.campaign.file,
                    cure=f"Ask for it with --config sessions={session}.",
                )
            )

    def begin(self, jobs: Collection[str]) -> None:
        """Checks everything that can be checked, before machine time is spent.

        Then waits until no other campaign measures on this machine. A run that only renders
        needs neither engine nor model nor the machine's turn.

        Args:
            jobs: Names of the rules that this run has jobs of.
        """
        if not _MEASURING.intersection(jobs):
            return
        try:
            self._require_own_results()
            preflight(self.campaign, self.directory)
        except LeverbenchError as error:
            _exit(error)
        print(self.describe(), file=sys.stderr, flush=True)
        take_turn(self.directory)

    def describe(self) -> str:
        """Returns the plan as text, with how much of it is measured."""
        measured = sum(Path(record).exists() for record in self.point_records())
        return describe(self.campaign, self.directory / HISTORY, measured)

    def end(self) -> None:
        """Ends the server that this run kept."""
        stop_now(self.directory)

    def report_what_exists(self) -> None:
        """Renders the report of a run that failed, from the records that exist, holes named."""
        from leverbench import analysis
        from leverbench.report import render_report

        results, report = Path("results") / self.campaign.name, Path("reports") / self.campaign.name
        plan, csv = results / "plan.json", results / "analysis/measurements.csv"
        points = [path for path in map(Path, self.measured_records()) if path.exists()]
        try:
            if not plan.exists():
                records.write_record(plan, self.plan)
            attempts, parquet = (
                Path("state/attempts") / self.campaign.name,
                csv.with_suffix(".parquet"),
            )
            analysis.analyse(plan, points, attempts, csv, parquet)
            page, findings = report / "index.html", report / "findings.md"
            render_report(plan, parquet, results / "launches", page, findings, report / "figures")
        except (LeverbenchError, OSError) as error:
            print(f"leverbench: no report of what exists: {error}", file=sys.stderr, flush=True)
            return
        print(f"leverbench: {page} shows what exists", file=sys.stderr, flush=True)

    def _require_own_results(self) -> None:
        """Raises where the results under this campaign's name were planned by another file."""
        path = Path("results") / self.campaign.name / "plan.json"
        if not path.exists():
            return
        other = records.read_record(path).get("file")
        if other != self.campaign.file:
            raise LeverbenchError(
                f"{path} was made by {other}, a campaign of the same name",
                where=self.campaign.file,
                cure=f"Rename one of them, or remove {path} if {other} was moved here.",
            )

    def _sessions(self, variants: tuple[str, ...] | None) -> list[tuple[str, int]]:
        chosen = variants or tuple(self.campaign.variants)
        return [session for session in self._ranks if session[0] in chosen]


def open_project(directory: Path, config: Mapping[str, Any]) -> Project:
    """Opens the campaign that a Snakemake run is about; a mistake ends it with one message.

    Holds the project's owner lock until this process dies: servers end when no live process
    holds it.

    Args:
        directory: The working directory of the run.
        config: What ``--config`` gave: ``campaign``, ``sessions``, ``only``.
    """
    try:
        project = read_project(directory, config)
        hold_owner(directory)
        clear_stale_lock(directory)
    except LeverbenchError as error:
        _exit(error)
    return project


def read_project(directory: Path, config: Mapping[str, Any]) -> Project:
    """Reads the campaign without taking any lock.

    Raises:
        LeverbenchError: The campaign, or an override, is wrong.
    """
    for key, value in config.items():
        if value is None or value == "":
            raise LeverbenchError(f"--config {key}= has no value")
        if key not in _CONFIG_KEYS:
            raise LeverbenchError(
                f"--config {key}=... is unknown", cure=f"Known: {', '.join(_CONFIG_KEYS)}."
            )
    overrides = {key: config[key] for key in ("sessions",) if key in config}
    file = Path(str(config.get("campaign", DEFAULT_CAMPAIGN)))
    campaign = load_campaign(
        file, overrides, lambda engine, key: get_engine(engine).lever_family(key)
    )
    only = tuple(str(config["only"]).split(",")) if "only" in config else ()
    for name in only:
        if name not in campaign.variants:
            raise LeverbenchError(
                f"--config only={name}: no such variant",
                where=campaign.file,
                cure=f"Variants are: {', '.join(campaign.variants)}.",
            )
    ranks = {session: place for place, session in enumerate(order_of(campaign))}
    return Project(directory, campaign, plan_record(campaign), only, ranks)


def preflight(campaign: Campaign, directory: Path) -> None:
    """Checks model, devices and each variant's arguments.

    The answers of the engine's parser are kept in ``state/arguments/``, by the engine's digest
    and the command line, so that they cost seconds once.

    Raises:
        LeverbenchError: What is missing or refused, and the cure.
    """
    if campaign.prepare is None:
        model_facts(directory / campaign.model_path)
    require_gpus(campaign.gpus)
    variants = list(campaign.variants.values())
    answers = check_arguments([variant.engine for variant in variants])
    for variant, answer in zip(variants, answers, strict=True):
        if isinstance(answer, LeverbenchError):
            where = f"{campaign.file}: variant {variant.name}"
            raise LeverbenchError(answer.what, where=where, cure=answer.cure)


def package_sources(*folders: str) -> list[str]:
    """Returns the source files of some folders of the package."""
    root = Path(__file__).parent
    return sorted(
        str(path)
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )


def _exit(error: LeverbenchError) -> NoReturn:
    sys.exit(f"leverbench: {error}")
