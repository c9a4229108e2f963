"""A project directory and the campaign that a Snakemake run in it is about."""

import gc
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from leverbench import records
from leverbench.campaign.file import RUN_KEYS, load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.order import Session
from leverbench.campaign.plan import HISTORY, describe, plan_record, planned_order
from leverbench.campaign.slices import Launch, launch_slice, patience
from leverbench.engines import get_engine
from leverbench.engines.arguments import check_arguments, identify
from leverbench.errors import LeverbenchError
from leverbench.kernels.build import interpreter, lacking_compiler
from leverbench.kernels.manifest import MANIFEST
from leverbench.kernels.prepared import Prepared, prepared_kernels, published_kernels
from leverbench.kernels.shapes import (
    differences,
    foreign_files,
    lookups,
    unknown_shapes,
    unread,
    with_shapes,
)
from leverbench.load.fit import require_fit, unfit
from leverbench.models.files import model_facts
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.secrets import redacted
from leverbench.serving.attached import require_answer
from leverbench.serving.failures import RECOVERABLE, SUCCESSES
from leverbench.serving.machine import installed_gpus, machine_fingerprint, require_gpus
from leverbench.serving.owner import (
    clear_stale_lock,
    hold_owner,
    is_dry_run,
    is_inner,
    stop_now,
    take_turn,
)

DEFAULT_CAMPAIGN = "config/campaign.yaml"
# Keys of `--config` that leverbench reads; a misspelt one would be silently ignored.
_CONFIG_KEYS = ("campaign", "sessions", "only", *RUN_KEYS)

# Rules whose jobs need the engine, the model and the machine to themselves.
_MEASURING = frozenset(
    {"serve", "bench", "profile", "tune_kernel", "microbench_kernel", "discover_shapes"}
)
# What a run measures again is kept here, by path and launch.
_SUPERSEDED = Path("state/superseded")
# Where a campaign that runs until it is decided stops in any case.
MOST_SESSIONS = 10


@dataclass(frozen=True)
class Project:
    """A campaign in its project directory; all paths it gives are relative to that.

    Attributes:
        directory: The project directory.
        campaign: The resolved campaign.
        plan: The plan's record.
        only: The variants whose points this run is narrowed to, or all.
        order: The sessions in the order they are run.
        config: What ``--config`` gave.
    """

    directory: Path
    campaign: Campaign
    plan: Mapping[str, Any]
    only: tuple[str, ...]
    order: Sequence[Session]
    config: Mapping[str, Any]

    def session_record(self, variant: str, session: int | str) -> str:
        """Returns the path of a session's record."""
        return f"results/{self.campaign.name}/{variant}/s{session}/server.json"

    def session_records(self, variants: Collection[str] = ()) -> list[str]:
        """Returns the path of each planned session's record."""
        return [self.session_record(*session) for session in self._sessions(variants)]

    def point_records(self, variants: Collection[str] = ()) -> list[str]:
        """Returns the path of each planned point's record."""
        return [path for session in self._sessions(variants) for path in self._points_of(*session)]

    def profile_records(self, variants: Collection[str] = ()) -> list[str]:
        """Returns the path of each planned profile's record."""
        return [
            f"results/{self.campaign.name}/{variant}/profile/{workload}/c{concurrency}/summary.json"
            for variant in variants or tuple(self.campaign.variants)
            for workload in self.campaign.workloads
            for concurrency in self.campaign.profile.concurrency
        ]

    def records_of(self, variant: str, session: int) -> list[str]:
        """Returns all records that a session makes: its own, its points', its profiles'."""
        points = self._points_of(variant, session)
        profiles = self.profile_records((variant,)) if self.is_profiled(variant, session) else []
        return [self.session_record(variant, session), *points, *profiles]

    def _points_of(self, variant: str, session: int) -> list[str]:
        return [
            f"results/{self.campaign.name}/{variant}/s{session}/{workload}/c{concurrency}.json"
            for workload in self.campaign.workloads
            for concurrency in self.campaign.ladder
        ]

    def markers(self) -> list[str]:
        """Returns the marker of each planned session, for runs of one job a session."""
        return [self.marker(*session) for session in self._sessions(self.only)]

    def marker(self, variant: str, session: int) -> str:
        """Returns the marker of one session, for runs of one job a session."""
        return f"state/sessions/{self.campaign.name}/{variant}/s{session}"

    def inner_config(self) -> list[str]:
        """Returns ``--config`` of a run inside a session's job, which shares a kept server."""
        keep = {key: value for key, value in self.config.items() if key != "only"}
        return [f"{key}={value}" for key, value in {**keep, "execution": "jobs"}.items()]

    def is_profiled(self, variant: str, session: int) -> bool:
        """Returns whether a variant's profiles are taken in this session: its first one."""
        return session == self.first_session(variant)

    def first_session(self, variant: str) -> int:
        """Returns the number of a variant's first session."""
        return self._first_sessions[variant]

    def measured_records(self) -> list[str]:
        """Returns the planned points, and those beside them at concurrencies outside the ladder."""
        planned = self.point_records()
        folders = dict.fromkeys(Path(record).parent for record in planned)
        found = [str(path) for folder in folders for path in sorted(folder.glob("c*.json"))]
        return list(dict.fromkeys([*planned, *found]))

    def targets(self) -> list[str]:
        """Returns the files that a whole run makes.

        With ``only`` the points and profiles of those variants; else also analysis, report and
        gate, which passes once and then has nothing to do. Where a kernel's shapes are to be
        discovered, only that: the run starts again then.
        """
        if self.lookups:
            return list(self.lookups)
        plan = f"results/{self.campaign.name}/plan.json"
        if self.campaign.execution == "session":
            finish = [] if self.only else [f"state/sessions/{self.campaign.name}.finished"]
            return [plan, *self.markers(), *finish]
        if self.only:
            made = (self.session_records, self.point_records, self.profile_records)
            return [plan, *(path for paths in made for path in paths(self.only))]
        report = f"reports/{self.campaign.name}/index.html"
        gate = f"state/gate/{self.campaign.name}"
        measured = [*self.session_records(), *self.point_records(), *self.profile_records()]
        return [plan, *self.kernel_records(), *measured, report, gate]

    @cached_property
    def due(self) -> set[str]:
        """What is made again though no input changed.

        Sessions that did not start, or needed recovery, where the campaign's recovery steps have
        changed; what ``remeasure`` and ``on_environment_change: remeasure`` name; and, where one
        job is one session, the markers of sessions that lack a record.
        """
        try:
            due = self._due_records()
        except LeverbenchError as error:
            _exit(error)
        if self.campaign.execution == "session":
            due = {
                self.marker(*session)
                for session in self.order
                if due.intersection(made := self.records_of(*session))
                or not all(Path(path).exists() for path in made)
            }
        return due

    def _due_records(self) -> set[str]:
        due: set[str] = set()
        for session in self.order:
            own, *measured = self.records_of(*session)
            if not Path(own).exists():
                continue
            record = records.read_record(Path(own))
            if self._recovers_otherwise(record) or self._is_outdated(record):
                due.add(own)
            elif self.campaign.remeasure == "protocol":
                existing = [path for path in measured if Path(path).exists()]
                due |= {p for p in existing if self._is_outdated(records.read_record(Path(p)))}
        # Where a device or an engine is missing there is nothing to compare, and a run would stop.
        remeasure = self.campaign.on_environment_change == "remeasure"
        if remeasure and next(missing(self.campaign, self.directory), None) is None:
            due |= {self.records_of(*session)[0] for session, _ in self._environment_changes()}
        return due

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
        rising concurrency, then the profiles.
        """
        workloads, ladder = list(self.campaign.workloads), list(self.campaign.ladder)
        step = 0
        if workload is not None and concurrency is not None:
            below = sum(c < concurrency for c in ladder)
            step = 1 + workloads.index(workload) * (len(ladder) + 1) + below
        return self._begin_rank(variant, session) - step

    def profile_rank(self, variant: str) -> int:
        """Returns the priority of a variant's profiles: after the points of their session."""
        first = self._begin_rank(variant, self.first_session(variant))
        return first - len(self.campaign.workloads) * (len(self.campaign.ladder) + 1) - 1

    def _begin_rank(self, variant: str, session: int) -> int:
        width = len(self.campaign.workloads) * (len(self.campaign.ladder) + 1) + 2
        place = self._ranks.get((variant, session), len(self._ranks))
        return (len(self._ranks) - place + 1) * width

    @cached_property
    def _prepared(self) -> dict[str, list[Prepared]]:
        return prepared_kernels(self.campaign)

    @property
    def _kernels(self) -> Iterator[Prepared]:
        return (prepared for kernels in self._prepared.values() for prepared in kernels)

    def prepared(self, kernel: str, code: str) -> Prepared:
        """Returns a kernel by its name and the build's, or by what is tried (``space``)."""
        for prepared in self._kernels:
            if prepared.kernel.name == kernel and code in (prepared.code, prepared.space):
                return prepared
        _exit(
            LeverbenchError(
                f"the campaign has no kernel {kernel} of build {code}",
                where=self.campaign.file,
                cure="Its files have changed since: plan.json names the present one.",
            )
        )

    @cached_property
    def lookups(self) -> Mapping[str, Launch]:
        """The launches that show shapes which are not known yet, by the path of the record."""
        return lookups(self._chosen)

    def lookup(self, kernel: str, name: str) -> Launch:
        """Returns the launch that shows shapes of a kernel, by the name of its record."""
        for path, launch in self.lookups.items():
            if Path(path).stem == name and Path(path).parts[-3] == kernel:
                return launch
        _exit(
            LeverbenchError(
                f"no server of the campaign looks up {kernel} of {name}",
                where=self.campaign.file,
                cure="Say shapes: discover; the plan names what is looked up.",
            )
        )

    def skip_params(self, kernel: str) -> dict[str, Any] | None:
        """Returns the profile that tells whether tuning a kernel can be worth it, or None."""
        profile = self.campaign.skip.get(kernel)
        if profile is None:
            return None
        return {"profile": profile, "floor": self.campaign.equal_within}

    def launch_slice(self, variant: str, session: int) -> Launch:
        """Returns what a session's server depends on."""
        kernels = self.plan["variants"][variant].get("kernels")
        return launch_slice(self.campaign, variant, session, kernels)

    def published_records(self, variant: str) -> list[str]:
        """Returns the record of each kernel that a variant's server is given."""
        kernels = self._prepared.get(variant, [])
        return [str(prepared.published / "published.json") for prepared in kernels]

    def kernel_records(self) -> list[str]:
        """Returns all that is recorded of the campaign's kernels: what is lost is made again.

        Kernels without shapes have none yet.
        """
        made = (record for kernel in self._kernels for record in kernel.records)
        return list(dict.fromkeys(map(str, made)))

    def require_shapes(self) -> list[str]:
        """Returns what shows unknown shapes; ends the run where nothing would show them."""
        for error in unknown_shapes(self._chosen):
            _exit(error)
        return list(self.lookups)

    def exports(self) -> list[str]:
        """Returns the bundle of each kernel of the engine's own."""
        own = (one for one in self._kernels if one.kernel.configs is not None)
        folder = f"reports/{self.campaign.name}/export"
        names = (f"{one.kernel.name}-{one.code}-{one.choice}" for one in own)
        return list(dict.fromkeys(f"{folder}/{name}" for name in names))

    def microbench_records(self) -> list[str]:
        """Returns the record of each kernel's micro-benchmark."""
        return list(dict.fromkeys(str(one.published / "microbench.json") for one in self._kernels))

    @property
    def _chosen(self) -> Campaign:
        """The campaign with the variants that this run is narrowed to."""
        variants = self.campaign.variants
        return replace(
            self.campaign, variants={name: variants[name] for name in self.only or variants}
        )

    @cached_property
    def _ranks(self) -> dict[Session, int]:
        return {session: place for place, session in enumerate(self.order)}

    @cached_property
    def _first_sessions(self) -> dict[str, int]:
        # A dict keeps what comes last: of the sessions in reverse, each variant's first.
        return dict(sorted(self.order, key=lambda session: session[1], reverse=True))

    def require_session(self, variant: str, session: int) -> None:
        """Ends the run with a message where a session is asked for that is not planned."""
        if (variant, session) not in self._ranks:
            numbers = ", ".join(str(number) for name, number in self.order if name == variant)
            _exit(
                LeverbenchError(
                    f"session {session} of {variant} is not planned (it has {numbers})",
                    where=self.campaign.file,
                    cure="Ask for more with --config sessions=NUMBER.",
                )
            )

    def begin(self, jobs: Mapping[str, Sequence[str]], *, cluster: bool) -> None:
        """Checks everything that can be checked, before machine time is spent.

        Then waits until no other campaign measures on this machine, and keeps a copy of what is
        measured again. A run that only renders needs neither engine nor model nor the machine's
        turn.

        Args:
            jobs: The outputs of the jobs that this run has, by rule.
            cluster: Whether the run hands its jobs to other machines.
        """
        try:
            self._require_own_results()
            if not _MEASURING.intersection(jobs):
                return
            if cluster:
                raise LeverbenchError(
                    "jobs that share a kept server cannot be spread over a cluster",
                    where=self.campaign.file,
                    cure="Add execution=session to --config: then one job is one session.",
                )
            preflight(self._chosen, self.directory)
            self._require_shapes(jobs)
            self._require_same_environment({path for made in jobs.values() for path in made})
        except LeverbenchError as error:
            _exit(error)
        print(self.describe(), *ignored(self._chosen), sep="\n", file=sys.stderr, flush=True)
        take_turn(self.directory)
        try:
            _keep_superseded([Path(path) for rule in _MEASURING for path in jobs.get(rule, ())])
        except OSError as error:
            sys.exit(f"leverbench: {error.filename or _SUPERSEDED}: {error.strerror}. Make room.")

    def describe(self) -> str:
        """Returns the plan as text, with how much of it is measured."""
        measured = sum(Path(record).exists() for record in self.point_records())
        told = describe(self.campaign, self.order, self.directory / HISTORY, measured)
        unknown = [f"leverbench: {problem}" for problem in unknown_shapes(self.campaign)]
        return "\n".join([told, *differences(self.campaign), *unknown])

    def end(self, *, failed: bool, again: Callable[[], None] | None) -> None:
        """Ends the server that this run kept, and says where the report is.

        Of a run that failed it is rendered here, from what exists. A campaign that runs until it
        is decided, and is not, goes on.

        Args:
            failed: Whether the run failed.
            again: Starts the same run again, in place of this process; None for a run that was
                to make a part of the campaign only.
        """
        stop_now(self.directory)
        if again is not None and not failed and self.lookups:
            print("leverbench: the shapes are known now", file=sys.stderr, flush=True)
            again()
        if again is None and not failed and any(Path(path).exists() for path in self.lookups):
            print("leverbench: the shapes are known now: run again", file=sys.stderr, flush=True)
        # Some variants alone make no whole block.
        settled = self.campaign.until is None or bool(self.only)
        settled = settled or (failed and not self._only_gate_failed())
        if again is not None and not settled and self._grows():
            last = max(session for _, session in self.order)
            told = f"leverbench: not decided after session {last}: session {last + 1} is next"
            print(told, file=sys.stderr, flush=True)
            again()
        page = Path("reports") / self.campaign.name / "index.html"
        if failed:
            self._report_what_exists()
        elif page.exists():
            print(f"leverbench: the report is {page}", file=sys.stderr, flush=True)

    def _grows(self) -> bool:
        """Returns whether the records of now ask for more sessions than this run planned."""
        return len(self.order) < len(read_project(self.directory, self.config).order)

    def _only_gate_failed(self) -> bool:
        """Returns whether all was made, and lasting failures among it failed the run."""
        page = Path("reports") / self.campaign.name / "index.html"
        made = [Path(path) for session in self.order for path in self.records_of(*session)]
        if not page.exists() or not all(path.exists() for path in made):
            return False
        if page.stat().st_mtime < max(path.stat().st_mtime for path in made):
            return False
        return any(records.read_record(path).get("outcome") not in SUCCESSES for path in made)

    def _report_what_exists(self) -> None:
        """Renders the report of a run that failed, from the records that exist, holes named."""
        from leverbench import analysis
        from leverbench.report import render_report

        results, report = Path("results") / self.campaign.name, Path("reports") / self.campaign.name
        plan = results / "plan.json"
        points = [path for path in map(Path, self.measured_records()) if path.exists()]
        profiles = [path for path in map(Path, self.profile_records()) if path.exists()]
        try:
            if not plan.exists():
                records.write_record(plan, self.plan)
            attempts = Path("state/attempts") / self.campaign.name
            analysis.analyse(plan, points, attempts, results / "analysis")
            parquet = results / "analysis/measurements.parquet"
            page, findings = report / "index.html", report / "findings.md"
            render_report(
                plan, parquet, results / "launches", profiles, page, findings, report / "figures"
            )
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

    def _require_shapes(self, jobs: Mapping[str, Sequence[str]]) -> None:
        """Raises where a variant's server would be launched before its kernels have shapes.

        It would be launched without them: only a run of the whole campaign discovers them first.
        """
        served = (path for rule in ("serve", "bench", "profile") for path in jobs.get(rule, ()))
        for name in dict.fromkeys(Path(path).parts[2] for path in served):
            for kernel in self.campaign.variants[name].engine.tuned:
                if kernel in self.campaign.unshaped:
                    raise LeverbenchError(
                        f"{name} is given {kernel}, whose shapes are not known yet",
                        where=self.campaign.file,
                        cure="Run snakemake without a target, or first with the target kernels.",
                    )

    def _sessions(self, variants: Collection[str] = ()) -> list[Session]:
        chosen = variants or tuple(self.campaign.variants)
        return [session for session in self.order if session[0] in chosen]

    def _recovers_otherwise(self, record: Mapping[str, Any]) -> bool:
        """Whether a session's end or settings may be others with the present recovery steps."""
        concerned = record.get("outcome") in RECOVERABLE or record.get("recovery")
        offered = patience(self.campaign).recovery_digest
        return bool(concerned) and record.get("recovery_offered") != offered

    def _is_outdated(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of an older protocol, and such are to be made again."""
        protocol = record.get("protocol")
        asked = self.campaign.remeasure == "protocol"
        return asked and isinstance(protocol, int) and protocol < PROTOCOL_VERSION

    def _environment_changes(self, made: Collection[str] = ()) -> list[tuple[Session, list[str]]]:
        """Returns what is another today than in a valid record, one entry for each of these.

        Args:
            made: Records that do not count, because this run replaces them.
        """
        if self.campaign.attached:
            return []
        present: dict[str, dict[str, Any]] = {}
        changes = []
        for variant, session in self.order:
            for path in self.records_of(variant, session):
                keeps = path not in made and Path(path).exists()
                record = records.read_record(Path(path)) if keeps else {}
                if not record.get("valid"):
                    continue
                if variant not in present:
                    present[variant] = self._environment(variant)
                then = {**(record.get("machine") or {}), **(record.get("digests") or {})}
                other = [
                    _changed(name, then[name], now)
                    for name, now in present[variant].items()
                    if name in then and then[name] != now
                ]
                if other:
                    changes.append(((variant, session), other))
        return changes

    def _environment(self, variant: str) -> dict[str, Any]:
        """Returns what of this machine must be what it was, by the names that records use."""
        engine = identify(self.campaign.variants[variant].engine).digest
        return {**self._machine_and_model, "engine": engine}

    @cached_property
    def _machine_and_model(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(machine_fingerprint(self.campaign.devices))
        model = Path(self.campaign.model_path or "")
        if (model / "config.json").exists():
            found["model"] = model_facts(model).digest
        return found

    def _require_same_environment(self, made: Collection[str]) -> None:
        """Raises where records that this run keeps were made under other conditions.

        Args:
            made: The files that this run makes.
        """
        if self.campaign.on_environment_change != "error":
            return
        changes = self._environment_changes(made)
        if changes:
            what = "; ".join(dict.fromkeys(text for _, texts in changes for text in texts))
            raise LeverbenchError(
                f"{len(changes)} records were made under other conditions: {what}",
                where=self.campaign.file,
                cure=(
                    "Choose with --config on_environment_change=remeasure (their sessions are"
                    " measured again) or =separate (they stay, and are not pooled with new ones)."
                ),
            )


def open_project(directory: Path, config: Mapping[str, Any]) -> Project:
    """Opens the campaign that a Snakemake run is about; a mistake ends it with one message.

    Holds the project's owner lock until this process dies: servers end when no live process
    holds it.

    Args:
        directory: The working directory of the run.
        config: What ``--config`` gave: ``campaign``, ``sessions``, ``only`` and `RUN_KEYS`.
    """
    # A thousand jobs are a million objects that live as long as the run: to look for garbage among
    # them less often takes 7% off a dry run (benchmarks/dag.py).
    gc.set_threshold(100_000, 50, 100)
    try:
        project = read_project(directory, config)
        hold_owner(directory)
        clear_stale_lock(directory)
    except LeverbenchError as error:
        _exit(error)
    if is_dry_run():
        for lacking in missing(project._chosen, directory):
            print(f"leverbench: a run would stop: {lacking}", file=sys.stderr, flush=True)
        for warning in doubtful(project._chosen):
            print(warning, file=sys.stderr, flush=True)
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
    overrides = {key: config[key] for key in ("sessions", *RUN_KEYS) if key in config}
    file = Path(str(config.get("campaign", DEFAULT_CAMPAIGN)))
    if file.is_absolute() and file.is_relative_to(directory.resolve()):
        # One name for a file, however it is written.
        file = file.relative_to(directory.resolve())
    campaign = with_shapes(
        load_campaign(file, overrides, lambda engine, key: get_engine(engine).lever_family(key))
    )
    only = tuple(str(config["only"]).split(",")) if "only" in config else ()
    for name in only:
        if name not in campaign.variants:
            raise LeverbenchError(
                f"--config only={name}: no such variant",
                where=campaign.file,
                cure=f"Variants are: {', '.join(campaign.variants)}.",
            )
    # Some variants alone make no whole block.
    campaign = _until_decided(campaign, directory, grow=not only)
    order = planned_order(campaign, directory / "results" / campaign.name)
    plan = plan_record(campaign, order, published_kernels(campaign))
    return Project(directory, campaign, plan, only, order, dict(config))


def _until_decided(campaign: Campaign, directory: Path, *, grow: bool) -> Campaign:
    """Returns the campaign with a session more, where it runs until it is decided and is not.

    The records alone say so: a run that was interrupted goes on where it was.

    Args:
        campaign: The resolved campaign.
        directory: The project directory.
        grow: Whether there may be a session more than those that were begun.
    """
    results = directory / "results" / campaign.name
    if campaign.until is None or not (results / "plan.json").exists():
        return campaign
    if is_inner():
        # The run that started this one has looked.
        planned = records.read_record(results / "plan.json")["variants"]
        known = {name: planned[name]["sessions"] for name in campaign.variants if name in planned}
        return _with_sessions(campaign, known)
    measured = [len(list((results / v).glob("s[1-9]*/server.json"))) for v in campaign.variants]
    asked = max(variant.sessions for variant in campaign.variants.values())
    sessions = max(asked, min(measured))
    campaign = _with_sessions(campaign, dict.fromkeys(campaign.variants, sessions))
    order = planned_order(campaign, results)
    plan = plan_record(campaign, order, published_kernels(campaign))
    project = Project(directory, campaign, plan, (), order, {})
    made = (directory / path for session in order for path in project.records_of(*session))
    if not grow or sessions >= MOST_SESSIONS or not all(path.exists() for path in made):
        return campaign
    # The libraries behind verdicts are slow to import, and few campaigns need them here.
    from leverbench import analysis
    from leverbench.analysis.verdicts import Word

    points = [directory / path for path in project.measured_records()]
    attempts = directory / "state/attempts" / campaign.name
    judged = analysis.judge_campaign(plan, results, points, attempts)
    if all(verdict.verdict != Word.UNDECIDED for verdict in judged):
        return campaign
    return _with_sessions(campaign, dict.fromkeys(campaign.variants, sessions + 1))


def _with_sessions(campaign: Campaign, sessions: Mapping[str, int]) -> Campaign:
    variants = {
        name: replace(variant, sessions=sessions.get(name, variant.sessions))
        for name, variant in campaign.variants.items()
    }
    return replace(campaign, variants=variants)


def preflight(campaign: Campaign, directory: Path) -> None:
    """Checks model, devices, engine and each variant's arguments, recovery steps included.

    Servers that others started are asked once each, and nothing else of them can be checked.

    The answers of the engine's parser are kept in ``state/arguments/``, by the engine's digest
    and the command line, so that they cost seconds once.

    Raises:
        LeverbenchError: What is missing or refused, and the cure.
    """
    lacking = next(missing(campaign, directory), None)
    if lacking is not None:
        raise lacking
    require_fit(campaign, _model(campaign, directory))
    if campaign.attached:
        engines = {
            (v.engine.attach, v.engine.version): v.engine for v in campaign.variants.values()
        }
        for engine in engines.values():
            require_answer(engine)
        return
    servers = {
        f"variant {name}{suffix}": launch.engine
        for name in campaign.variants
        for suffix, launch in _launches(campaign, name)
    }
    answers = check_arguments(list(servers.values()))
    for name, answer in zip(servers, answers, strict=True):
        if isinstance(answer, LeverbenchError):
            where = f"{campaign.file}: {name}"
            raise LeverbenchError(answer.what, where=where, cure=answer.cure)


def missing(campaign: Campaign, directory: Path) -> Iterator[LeverbenchError]:
    """Yields what a run of the campaign lacks on this machine, cheaply found."""
    try:
        require_gpus(campaign.gpus, campaign.device)
    except LeverbenchError as error:
        yield error
    try:
        if campaign.prepare is None and campaign.model_path is not None:
            model_facts(directory / campaign.model_path, campaign.token_ids)
    except LeverbenchError as error:
        yield error
    yield from unfit(campaign, _model(campaign, directory))
    if campaign.attached:
        return
    yield from _missing_kernels(campaign)
    # Each interpreter is asked once, whatever its number of variants.
    engines = {
        (engine.python, engine.wrapper, engine.version): engine
        for engine in (variant.engine for variant in campaign.variants.values())
    }
    for engine in engines.values():
        try:
            installed = identify(engine).version
        except LeverbenchError as error:
            yield error
            continue
        yield from _wrong_files(campaign, engine.name, installed)
        if engine.version not in (None, installed):
            yield LeverbenchError(
                f"the campaign is for {engine.name} {engine.version}, and {installed} is installed",
                where=campaign.file,
                cure="Name an interpreter that has it (engine.python), or change engine.version.",
            )


def _wrong_files(campaign: Campaign, name: str, version: str) -> Iterator[LeverbenchError]:
    """Yields what is wrong with files of tuned parameters that variants name in their settings."""
    device = campaign.device or next((name for name, _ in installed_gpus()), None)
    if device is None:
        return
    for variant in campaign.variants.values():
        engine = variant.engine
        triton = interpreter(engine.python, engine.wrapper)["triton"]
        try:
            get_engine(name).check_files(engine, device, version, triton)
        except LeverbenchError as error:
            where = f"{campaign.file}: variant {variant.name}: {error.where}"
            yield LeverbenchError(error.what, where=where, cure=error.cure)


def _missing_kernels(campaign: Campaign) -> Iterator[LeverbenchError]:
    for name in dict.fromkeys(n for v in campaign.variants.values() for n in v.engine.tuned):
        if name not in campaign.kernels and name not in campaign.unshaped:
            yield LeverbenchError(
                f"there is no kernel {name}",
                where=campaign.file,
                cure=f"Add kernels/{name}/{MANIFEST}, or remove it from tuned:.",
            )
    yield from unknown_shapes(campaign)
    for variant, problem in unread(campaign):
        if problem.certain:
            where = f"{campaign.file}: variant {variant}"
            yield LeverbenchError(problem.message, where=where, cure=problem.cure)
    prepared = [one for kernels in prepared_kernels(campaign).values() for one in kernels]
    for one in prepared:
        if one.toolchain.compiler is None and one.kernel.language != "triton":
            yield lacking_compiler(one.kernel)
    given = any(variant.engine.tuned for variant in campaign.variants.values())
    if given and campaign.execution == "session":
        yield LeverbenchError(
            "jobs of one session each may run where other processors are, and kernels are built"
            " and tuned for this one",
            where=campaign.file,
            cure="Run it with execution=jobs on the machine that measures, or remove tuned:.",
        )


def _model(campaign: Campaign, directory: Path) -> Path | None:
    return None if campaign.model_path is None else directory / campaign.model_path


def doubtful(campaign: Campaign) -> list[str]:
    """Returns a warning for each variant whose server is likely not to read its tuned files."""
    return [
        f"leverbench: {variant}: likely {problem.message}. {problem.cure}"
        for variant, problem in unread(campaign)
        if not problem.certain
    ] + [f"leverbench: {sentence}" for sentence in foreign_files(campaign)]


def ignored(campaign: Campaign) -> list[str]:
    """Returns a warning for each variant whose lever the engine is known, or likely, to ignore."""
    if campaign.attached:
        return []
    return doubtful(campaign) + [
        f"leverbench: {variant.name}: {variant.engine.name} {version} accepts {key} and reads it"
        " nowhere: the variant will be called not applied"
        for variant in campaign.variants.values()
        for key in variant.delta
        if key.startswith("args.")
        and not get_engine(variant.engine.name).reads(
            key.removeprefix("args."), version := identify(variant.engine).version
        )
    ]


def _launches(campaign: Campaign, variant: str) -> Iterator[tuple[str, Launch]]:
    """Yields a variant's launch, and what recovery can make of it."""
    launch = launch_slice(campaign, variant, 1)
    yield "", launch
    for cause, steps in campaign.recovery.items():
        for number in range(len(steps)):
            yield f", step {number + 1} from {cause}", launch.recovered(steps[: number + 1])


def _keep_superseded(outputs: Iterable[Path]) -> None:
    """Keeps what exists of the files that a run makes again: Snakemake removes it first."""
    for path in outputs:
        if path.is_file() and path.suffix in (".json", ".parquet"):
            when = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%SZ")
            kept = _SUPERSEDED / path.parent / f"{path.stem}.{when}{path.suffix}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, kept)


def _changed(name: str, then: Any, now: Any) -> str:
    # A digest says nothing to people.
    return f"another {name}" if name in ("engine", "model") else f"{name} {then} is now {now}"


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
    sys.exit(str(redacted(f"leverbench: {error}")))
