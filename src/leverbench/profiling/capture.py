"""One profile: a server under load, recorded for some decode steps, and what they consist of."""

import gzip
import hashlib
import itertools
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.plan import note_history
from leverbench.campaign.slices import Launch, Patience, ProfileSlice
from leverbench.clock import Clock
from leverbench.engines import Engine, NoAnswer
from leverbench.errors import LeverbenchError
from leverbench.load.client import LoadFailed, UnderLoad, do_under_load, run_window
from leverbench.load.endpoint import Request
from leverbench.load.prompts import Prompts, prompts_for
from leverbench.load.validity import INVALID, InvalidReason
from leverbench.load.workload import make_requests
from leverbench.profiling.attribution import RankTime, attribute_ranks
from leverbench.profiling.table import Row, decode_steps, make_table, summarise, write_table
from leverbench.profiling.tensor_activity import REFRESH_S, Activity, sampled, why_not
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.serving.failures import (
    PROFILE_INCOMPLETE,
    LastingFailure,
    Outcome,
    PassingFailure,
    attempt_twice,
    now,
    require_started,
)
from leverbench.serving.session import ASK_TIMEOUT_S, Session, ask_probe, open_session

_POLL_S = 0.2
_ACTIVITY_S = 0.5
# Of the folder into which a server writes; the name is the sign of a job that was killed.
_UNFINISHED = ".unfinished-"
_TRACES = "*.trace.json.gz"


def profile(
    launch_params: Mapping[str, Any],
    profile_params: Mapping[str, Any],
    patience: Patience,
    session_record: Path,
    summary: Path,
    kernels: Path,
) -> None:
    """Profiles a session's server under load, and records what its decode steps consist of.

    The server is launched again if it is gone. A session whose server cannot serve, or a server
    that twice in a row makes no complete profile, gives a record that says so. The traces stand
    beside the record, as ``{server_id}-{rank}.trace.json.gz``.

    Args:
        launch_params: The launch slice of the session.
        profile_params: The profile slice.
        patience: How long to wait.
        session_record: ``server.json`` of the session.
        summary: The profile's record.
        kernels: The profile's Parquet file, one row an operation of a rank.

    Raises:
        LeverbenchError: A passing failure remains.
    """
    launch, asked = Launch.from_params(launch_params), ProfileSlice.from_params(profile_params)
    started = records.read_record(session_record)
    about = {
        "kind": "profile",
        "campaign": launch.campaign,
        "variant": launch.variant,
        "session": launch.session,
        "workload": asked.workload_name,
        "concurrency": asked.concurrency,
        "protocol": PROTOCOL_VERSION,
        "steps_asked": asked.steps,
        "digests": {
            "launch": records.digest(dict(launch_params)),
            "workload": asked.workload.digest,
        },
    }
    folder = summary.parent
    attempts = Path("state/attempts") / launch.campaign / launch.variant / "profile"
    began = time.monotonic()
    try:
        require_started(started)
        prompts = prompts_for(launch, asked.workload_name, asked.workload, asked.concurrency)
        captured = attempt_twice(
            lambda: _profile_once(launch, asked, patience, started["recovery"], folder, prompts),
            attempts / asked.workload_name / f"c{asked.concurrency}.jsonl",
            about,
        )
    except LastingFailure as failure:
        write_table(kernels, [], about)
        empty = {"outcome": failure.outcome, "detail": failure.detail}
        records.write_record(summary, {**about, **empty})
        return
    write_table(kernels, captured.rows, about)
    records.write_record(summary, _record(about, captured))
    seconds = round(time.monotonic() - began - captured.timing_s["lease"], 3)
    note_history("profile", seconds, launch.campaign)
    parts = [f"{part['category']} {part['share']:.0%}" for part in captured.totals["categories"]]
    print(
        f"leverbench: {launch.variant} profile {asked.workload_name} C={asked.concurrency}: "
        + ", ".join(parts[:3]),
        file=sys.stderr,
        flush=True,
    )


@dataclass(frozen=True)
class Captured:
    """A complete profile with everything that its record tells."""

    session: Session
    started_at: str
    ended_at: str
    in_flight: int
    decode_steps: int | None
    files: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    totals: Mapping[str, Any]
    activity: Activity
    probe: Mapping[str, Any]
    timing_s: Mapping[str, float]


def _profile_once(
    launch: Launch,
    asked: ProfileSlice,
    patience: Patience,
    recovery: Sequence[Mapping[str, Any]],
    folder: Path,
    prompts: Prompts | None,
) -> Captured:
    with open_session(launch, patience, recovery, measured=True) as session:
        return capture(session, launch, asked, patience, folder, prompts)


def capture(
    session: Session,
    launch: Launch,
    asked: ProfileSlice,
    patience: Patience,
    folder: Path,
    prompts: Prompts | None = None,
) -> Captured:
    """Profiles a running server and puts its traces into a folder, in the place of older ones.

    Raises:
        PassingFailure: The profile is incomplete, a request failed, or the probe is answered
            wrongly afterwards.
        LastingFailure: The probe is answered wrongly before.
    """
    engine, clock = session.engine, Clock()
    with _unfinished(folder) as (output, left_over):
        if left_over:
            # A killed job's recording would go on, and end in the middle of this one.
            with suppress(NoAnswer):
                engine.stop_profile(session.address, patience.request_s)
        before = ask_probe(engine, session.address, launch.probe)
        if not before["right"]:
            raise LastingFailure(Outcome.PROBE_WRONG, f"before the profile: {before['answer']!r}")
        clock.lap("probe_before")
        _warm_up(session, launch, asked, patience, prompts)
        clock.lap("warm_up")
        activity = _measure_activity(session, launch, asked, patience, prompts)
        clock.lap("tensor_activity")
        recorded = _record_steps(session, launch, asked, patience, output, prompts)
        session.server.check_alive()
        clock.lap("recording")
        ranks = _read(recorded.result.paths, output, engine)
        device = _device(session)
        totals = summarise(ranks, device)
        if not totals["total_us"]:
            raise _incomplete(f"the traces show no time on the {device}")
        clock.lap("reading")
        after = ask_probe(engine, session.address, launch.probe, before["answer"])
        if not after["right"]:
            reason = InvalidReason.PROBE_FAILED_AFTER
            raise PassingFailure(reason, f"after the profile: {after['answer']!r}", retry=False)
        clock.lap("probe_after")
        files = _publish(recorded.result.paths, ranks, session.server.server_id, folder)
    return Captured(
        session=session,
        started_at=recorded.result.started_at,
        ended_at=recorded.result.ended_at,
        in_flight=recorded.in_flight,
        decode_steps=decode_steps(ranks, device),
        files=files,
        rows=make_table(ranks),
        totals=totals,
        activity=activity,
        probe={"before": before, "after": after},
        timing_s={"lease": session.lease_s, **clock.laps_s},
    )


@contextmanager
def _unfinished(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yields an empty folder inside another, and whether a killed job had left one there.

    The absolute path: the server has another working directory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left_over = list(folder.glob(f"{_UNFINISHED}*"))
    for path in left_over:
        shutil.rmtree(path, ignore_errors=True)
    output = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder)).resolve()
    try:
        yield output, bool(left_over)
    finally:
        shutil.rmtree(output, ignore_errors=True)


def _device(session: Session) -> str:
    """Returns where the kernels run; the recording of a GPU has the CPU's part too."""
    return session.device or "gpu"


def _seed(session: Session, launch: Launch, asked: ProfileSlice, phase: str) -> list[object]:
    window = [asked.seed, launch.session, asked.workload_name, asked.concurrency, phase]
    return [*window, *session.nonce]


def _warm_up(
    session: Session,
    launch: Launch,
    asked: ProfileSlice,
    patience: Patience,
    prompts: Prompts | None,
) -> None:
    """Runs one wave: what is compiled at the first use is not to be in the profile."""
    vocabulary = session.facts.vocabulary
    seed = _seed(session, launch, asked, "profile-warm-up")
    window = run_window(
        session.engine.endpoint(session.address),
        make_requests(asked.workload, asked.concurrency, vocabulary, seed, prompts),
        asked.concurrency,
        request_timeout_s=patience.request_s,
    )
    session.server.check_alive()
    if errors := [row.error for row in window.rows if row.failure]:
        raise _failed_requests(f"in warm-up: {errors[0]}")


def _measure_activity(
    session: Session,
    launch: Launch,
    asked: ProfileSlice,
    patience: Patience,
    prompts: Prompts | None,
) -> Activity:
    """Measures the server's GPUs under the load of the recording, before it.

    Not in the recording, which slows the server down; nor in its load, since it is to begin when
    every slot has just had its first token.
    """
    devices = session.evidence["devices"]
    if absent := why_not(devices):
        return Activity(reason=absent)

    def measure() -> Activity:
        time.sleep(REFRESH_S)  # else the first sample might be of before
        with sampled(devices) as activity:
            time.sleep(_ACTIVITY_S)
        return activity

    try:
        measured = do_under_load(
            session.engine.endpoint(session.address),
            _requests_without_end(session, launch, asked, "profile-activity", prompts),
            asked.concurrency,
            measure,
            request_timeout_s=patience.request_s,
        )
    except LoadFailed as error:
        session.server.check_alive()
        raise _failed_requests(f"before the profile: {error}") from None
    # A server goes on for seconds with requests that were broken off, and empties its cache only
    # when they have ended: they are not to run beside those of the recording.
    session.flush_cache()
    return measured.result


@dataclass(frozen=True)
class _Recorded:
    """The traces of all ranks, as the server wrote them."""

    paths: Mapping[str, Path]
    started_at: str
    ended_at: str


def _record_steps(
    session: Session,
    launch: Launch,
    asked: ProfileSlice,
    patience: Patience,
    output: Path,
    prompts: Prompts | None,
) -> UnderLoad[_Recorded]:
    """Has a server record decode steps while its slots are busy, and waits for the traces."""
    engine, address, devices = session.engine, session.address, (_device(session),)
    log_from = session.server.log_size()

    def record() -> _Recorded:
        started_at = now()
        try:
            engine.start_profile(address, output, asked.steps, devices, ASK_TIMEOUT_S)
        except NoAnswer as error:
            if error.status is None:
                raise
            raise _incomplete(f"the server refuses to record: {error}") from None
        paths = _await_traces(session, output, log_from, patience)
        return _Recorded(paths, started_at, ended_at=now())

    try:
        return do_under_load(
            engine.endpoint(address),
            _requests_without_end(session, launch, asked, "profile", prompts),
            asked.concurrency,
            record,
            request_timeout_s=patience.request_s,
        )
    except PassingFailure:
        # Else the next attempt would be refused.
        with suppress(NoAnswer):
            engine.stop_profile(address, patience.request_s)
        raise
    except LoadFailed as error:
        session.server.check_alive()
        raise _failed_requests(f"under the profile: {error}") from None


def _requests_without_end(
    session: Session, launch: Launch, asked: ProfileSlice, phase: str, prompts: Prompts | None
) -> Iterator[Request]:
    for wave in itertools.count(1):
        seed = _seed(session, launch, asked, f"{phase}-{wave}")
        vocabulary = session.facts.vocabulary
        yield from make_requests(asked.workload, asked.concurrency, vocabulary, seed, prompts)


def _await_traces(
    session: Session, output: Path, log_from: int, patience: Patience
) -> dict[str, Path]:
    """Waits until each rank has written its trace.

    A trace can be seen before it is whole: the server's log tells, or else the file's own end.
    """
    engine = session.engine
    expected = engine.profiled_ranks(session.evidence["effective"])
    limit_s = time.monotonic() + patience.request_s
    while True:
        session.server.check_alive()
        log = session.server.read_log(log_from) or ""
        told = engine.profile_begun_pattern.search(log) is not None
        done = len(engine.profile_done_pattern.findall(log))
        traces = engine.traces(output)
        if done >= expected or (
            not told and len(traces) >= expected and all(map(is_whole, traces.values()))
        ):
            break
        if time.monotonic() > limit_s:
            raise _incomplete(
                f"after {patience.request_s:g} s, {len(traces)} of {expected} traces are there,"
                f" and {done} are said to be done"
            )
        time.sleep(_POLL_S)
    if len(traces) < expected:
        raise _incomplete(f"done by the log, but {len(traces)} of {expected} traces are there")
    return traces


def is_whole(path: Path) -> bool:
    """Tells whether a gzipped file has been written to its end."""
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error):
        return False
    return path.stat().st_size > 0


def _read(paths: Mapping[str, Path], folder: Path, engine: Engine) -> dict[str, RankTime]:
    """Reads the traces of all ranks; what they are read into goes with the folder."""
    try:
        ranks = attribute_ranks(paths, folder / "events", engine.step_marks)
    except LeverbenchError as error:
        rank = next((rank for rank, path in paths.items() if str(path) == error.where), error.where)
        raise _incomplete(f"{rank}: {error.what}") from None
    for rank, time_of in ranks.items():
        if time_of.truncated:
            raise _incomplete(f"{rank}: the trace is truncated: {time_of.truncated}")
    return ranks


def _publish(
    paths: Mapping[str, Path], ranks: Mapping[str, RankTime], server_id: str, folder: Path
) -> list[dict[str, Any]]:
    """Moves traces into the profile's folder, then removes those of earlier profiles."""
    files = []
    for rank, path in paths.items():
        content = path.read_bytes()
        name = f"{server_id}-{rank}.trace.json.gz"
        path.replace(folder / name)
        files.append(
            {
                "name": name,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "rank": rank,
                "events": ranks[rank].events,
            }
        )
    kept = {file["name"] for file in files}
    for path in folder.glob(_TRACES):
        if path.name not in kept:
            path.unlink()
    return files


def _incomplete(detail: str) -> PassingFailure:
    return PassingFailure(PROFILE_INCOMPLETE, detail, retry=True, lasting=Outcome.PROFILE_FAILED)


def _failed_requests(detail: str) -> PassingFailure:
    reason = InvalidReason.FAILED_REQUESTS
    return PassingFailure(reason, detail, retry=INVALID[reason].retry)


def _record(about: Mapping[str, Any], captured: Captured) -> dict[str, Any]:
    evidence = captured.session.evidence
    return {
        **about,
        "outcome": Outcome.PROFILED,
        "detail": None,
        "server_id": captured.session.server.server_id,
        "digests": {**about["digests"], **evidence["digests"]},
        "machine": evidence["machine"],
        "versions": {**evidence["versions"], "engine": evidence["engine"]["version"]},
        "placement": evidence["placement"],
        "recovery": evidence["recovery"],
        "device": _device(captured.session),
        "decode_steps": captured.decode_steps,
        "in_flight": captured.in_flight,
        "started_at": captured.started_at,
        "ended_at": captured.ended_at,
        "files": list(captured.files),
        **captured.totals,
        **captured.activity.as_record(),
        "probe": dict(captured.probe),
        "timing_s": dict(captured.timing_s),
    }
