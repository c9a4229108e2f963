"""One measured point: probe, warm up, measure, probe again, judge, record."""

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import FILE
from leverbench.campaign.plan import note_history
from leverbench.campaign.slices import Launch, Patience, Point
from leverbench.clock import Clock
from leverbench.load.client import run_window
from leverbench.load.endpoint import Request
from leverbench.load.metrics import point_metrics, steady_halves_tok_per_s
from leverbench.load.prompts import Prompts, prompts_for
from leverbench.load.requests_table import write_no_requests, write_requests
from leverbench.load.validity import INVALID, InvalidReason, judge, server_shared, unsteady
from leverbench.load.window import Window
from leverbench.load.workload import make_requests
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.serving.answers import ask_again
from leverbench.serving.calls import calls_between, files_not_used, not_used, read_calls
from leverbench.serving.failures import (
    LastingFailure,
    Outcome,
    PassingFailure,
    attempt_twice,
    require_started,
)
from leverbench.serving.gpus import capped_share, gpu_account, sampled, strangers, throttled
from leverbench.serving.session import ASK_TIMEOUT_S, Session, ask_probe, open_session
from leverbench.serving.strangers import cpu_use

# More requests than the warm-up's rate asks for: a measured window may run faster.
_WINDOW_MARGIN = 1.5
# One wave alone would be ramp-up and drain.
_WARM_UP_WAVES = 2


@dataclass(frozen=True)
class _Measured:
    """A window with everything that its record tells."""

    session: Session
    window: Window
    metrics: Mapping[str, float | None]
    warm_up: Mapping[str, Any]
    probe: Mapping[str, Any]
    agreement: Mapping[str, Any] | None
    counters: Mapping[str, Any]
    strangers_cpu_share: float | None
    halves_tok_per_s: tuple[float, float] | None
    gpus: Mapping[str, Any] | None
    gpu_strangers: Sequence[int] | None
    reasons: tuple[InvalidReason, ...]
    kernels: Sequence[Mapping[str, Any]]
    not_used: str | None
    timing_s: Mapping[str, float]


def bench(
    launch_params: Mapping[str, Any],
    point_params: Mapping[str, Any],
    patience: Patience,
    session_record: Path,
    record: Path,
    requests: Path,
) -> None:
    """Measures a point on its session's server and records it.

    The server is launched again if it is gone. A session whose server cannot serve gives a
    record that says so, and so does a window in which a rank did not use a kernel that it was
    given; a void window is tried once more where its cause is independent of the result, and else
    fails the job, with what was measured kept in ``state/attempts/``.

    Args:
        launch_params: The launch slice of the session.
        point_params: The point slice.
        patience: How long to wait.
        session_record: ``server.json`` of the session.
        record: The point's record.
        requests: The point's Parquet file, one row a request.

    Raises:
        LeverbenchError: A passing failure remains.
    """
    launch, point = Launch.from_params(launch_params), Point.from_params(point_params)
    started = records.read_record(session_record)
    about = {
        "kind": "point",
        "campaign": launch.campaign,
        "variant": launch.variant,
        "session": launch.session,
        "workload": point.workload_name,
        "concurrency": point.concurrency,
        "protocol": PROTOCOL_VERSION,
        "requests_planned": point.requests,
        "digests": {
            "launch": records.digest(dict(launch_params)),
            "workload": point.workload.digest,
        },
    }
    folder = f"{launch.campaign}/{launch.variant}/s{launch.session}/{point.workload_name}"
    account = Path("state/attempts") / folder / f"c{point.concurrency}.jsonl"
    began = time.monotonic()
    try:
        require_started(started)
        least = max(point.requests, _WARM_UP_WAVES * point.concurrency)
        prompts = prompts_for(launch, point.workload_name, point.workload, least)
        measured = attempt_twice(
            lambda: _measure(launch, point, patience, started["recovery"], about, prompts),
            account,
            about,
        )
    except LastingFailure as failure:
        write_no_requests(requests, about)
        empty = {"outcome": failure.outcome, "detail": failure.detail, "valid": False}
        records.write_record(record, {**about, **empty, "invalid_reason": failure.outcome})
        return
    # The requests first: a record that exists has its requests beside it.
    write_requests(requests, measured.window, about)
    again = measured.session.server.server_id != started["server_id"]
    row = _row(about, launch, point, measured)
    records.write_record(record, {**row, "launch_index": 2 if again else 1})
    seconds = round(time.monotonic() - began - measured.timing_s["lease"], 3)
    note_history(f"point c{point.concurrency}", seconds, launch.campaign)
    told = f", {Outcome.NOT_APPLIED}: {measured.not_used}" if measured.not_used else ""
    print(
        f"leverbench: {launch.variant} s{launch.session} {point.workload_name} "
        f"C={point.concurrency}: {measured.metrics['output_tok_per_s']:.1f} output tok/s{told}",
        file=sys.stderr,
        flush=True,
    )


def _measure(
    launch: Launch,
    point: Point,
    patience: Patience,
    recovery: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    prompts: Prompts | None,
) -> _Measured:
    with open_session(launch, patience, recovery, measured=True) as session:
        clock = Clock()
        before = ask_probe(session.api, session.address, launch.probe)
        if not before["right"]:
            raise LastingFailure(Outcome.PROBE_WRONG, f"before the point: {before['answer']!r}")
        clock.lap("probe_before")
        warm_up, pace = _warm_up(session, launch, point, patience, prompts)
        clock.lap("warm_up")
        session.flush_cache()
        clock.lap("flush")
        asked = _requests(session, launch, point, pace, prompts)
        endpoint = session.api.endpoint(session.address)
        counters_before = session.api.counters(session.address, ASK_TIMEOUT_S)
        log_from = session.server.log_size()
        processes = session.server.processes()
        devices = session.evidence["devices"]
        on_gpus = strangers(devices, processes)
        calls_before = read_calls(launch, processes)
        with sampled(devices) as samples:
            clock.lap("prepare")
            cpu_before = cpu_use(processes)
            window = run_window(
                endpoint, asked, point.concurrency, request_timeout_s=patience.request_s
            )
            cpu_after = cpu_use(processes)
            clock.lap("window")
        calls_after = read_calls(launch, session.server.processes())
        # Without the server's processes, its own work would look like others'.
        others = None if session.attach else cpu_after.strangers_share(cpu_before)
        session.check_same()
        on_gpus = _either(on_gpus, strangers(devices, session.server.processes()))
        log = session.server.read_log(log_from)
        counters_after = session.api.counters(session.address, ASK_TIMEOUT_S)
        after = ask_probe(session.api, session.address, launch.probe, before["answer"])
        clock.lap("probe_after")
        agreement = _answer_again(session, launch, point, patience)
        clock.lap("agreement")
    metrics = point_metrics(window)
    reasons = list(
        judge(
            window,
            metrics,
            min_window_s=point.min_window_s,
            prefix_hits_expected=point.workload.shares_prefixes,
            cache_flushed=session.may_flush,
        )
    )
    if not warm_up["agreed"]:
        reasons.append(InvalidReason.UNSTEADY_WARM_UP)
    halves = steady_halves_tok_per_s(window)
    # Halves of unequal requests, or of misses and then hits in the cache, are unlike by themselves.
    comparable = point.workload.is_even and not point.workload.shares_prefixes
    if comparable and unsteady(halves, point.warm_up_agreement):
        reasons.append(InvalidReason.UNSTEADY_WINDOW)
    compiled = _compiled(session.engine.compile_pattern, log) if log else None
    if compiled:
        reasons.append(InvalidReason.COMPILED_IN_WINDOW)
    gpus = gpu_account(samples)
    if throttled(gpus):
        reasons.append(InvalidReason.GPU_THROTTLED)
    if capped_share(gpus) > point.max_power_capped_share:
        reasons.append(InvalidReason.GPU_CAPPED)
    if on_gpus:
        reasons.append(InvalidReason.GPU_SHARED)
    if others is not None and others > point.max_strangers_cpu_share:
        reasons.append(InvalidReason.MACHINE_SHARED)
    if server_shared(window, counters_before, counters_after):
        reasons.append(InvalidReason.SERVER_SHARED)
    if not after["right"]:
        reasons.append(InvalidReason.PROBE_FAILED_AFTER)
    kernels = calls_between(session.evidence.get("kernels", ()), calls_before, calls_after)
    ranks = session.engine.profiled_ranks(session.evidence["effective"])
    measured = _Measured(
        session=session,
        window=window,
        metrics=metrics,
        warm_up=warm_up,
        probe={"before": before, "after": after},
        agreement=agreement,
        counters={"before": counters_before, "after": counters_after},
        strangers_cpu_share=others,
        halves_tok_per_s=halves,
        gpus=gpus,
        gpu_strangers=on_gpus,
        reasons=tuple(reasons),
        kernels=kernels,
        # A void window is measured again: whether they were used is told by one that counts.
        not_used=None if reasons else not_used(kernels, ranks) or _files_not_used(session, ranks),
        timing_s={"lease": session.lease_s, **clock.laps_s},
    )
    if reasons:
        detail = "; ".join(INVALID[reason].meaning for reason in reasons)
        if compiled:
            detail += f" ({compiled})"
        if InvalidReason.WINDOW_TOO_SHORT in reasons and prompts and len(asked) == len(prompts):
            detail += f" ({point.workload.path} has no more than {len(prompts)} requests)"
        raise PassingFailure(
            cause=reasons[0],
            detail=detail,
            retry=all(INVALID[reason].retry for reason in reasons),
            row=_row(about, launch, point, measured),
        )
    return measured


def _answer_again(
    session: Session, launch: Launch, point: Point, patience: Patience
) -> dict[str, Any] | None:
    """Asks the server one prompt of its launch again, after the load.

    Another answer voids nothing: the window measured the same server in the same settings, as the
    probe tells, and rows that were chosen by their numerics would be a selection.
    """
    if patience.agreement is None:
        return None
    answers = session.evidence.get("answers") or ()
    # Ladders double: successive steps ask for successive prompts, sessions for others.
    place = launch.session + point.concurrency.bit_length()
    return ask_again(session.api, session.address, answers, place, ASK_TIMEOUT_S)


def _seed(session: Session, launch: Launch, point: Point, phase: str) -> list[object]:
    """Names a window: variants share its prompts, sessions and phases do not.

    On a server whose cache may not be flushed nobody shares them, not even another try.
    """
    window = [point.seed, launch.session, point.workload_name, point.concurrency, phase]
    return [*window, *session.nonce]


def _warm_up(
    session: Session, launch: Launch, point: Point, patience: Patience, prompts: Prompts | None
) -> tuple[dict[str, Any], Window]:
    """Runs windows at the measured shape until two successive ones agree.

    Returns:
        The record of the warm-up, and its last window.
    """
    rates: list[float] = []
    tok_per_s: list[float] = []
    agreed = False
    count = _WARM_UP_WAVES * point.concurrency
    # Windows of other lengths, or of other lines of a file, could not be expected to agree.
    shape = _seed(session, launch, point, "warm-up")
    endpoint = session.api.endpoint(session.address)
    while not agreed and len(rates) < point.max_warm_up_windows:
        phase = f"warm-up-{len(rates) + 1}"
        seed = _seed(session, launch, point, phase)
        if point.workload.dataset == FILE:
            # The same prompts in each window.
            session.flush_cache()
        window = run_window(
            endpoint,
            make_requests(
                point.workload,
                count,
                session.facts.vocabulary,
                seed,
                prompts,
                shape_parts=shape,
            ),
            point.concurrency,
            request_timeout_s=patience.request_s,
        )
        session.server.check_alive()
        done = window.successful
        if len(done) < count:
            errors = [row.error for row in window.rows if row.error]
            raise PassingFailure(
                InvalidReason.FAILED_REQUESTS, f"in warm-up: {errors[0]}", retry=False
            )
        rates.append(len(done) / window.duration_s)
        tok_per_s.append(sum(row.output_tokens_asked for row in done) / window.duration_s)
        if len(rates) > 1:
            agreed = abs(rates[-1] / rates[-2] - 1) < point.warm_up_agreement
    return {"windows_tok_per_s": tok_per_s, "agreed": agreed}, window


def _requests(
    session: Session, launch: Launch, point: Point, warm_up: Window, prompts: Prompts | None
) -> list[Request]:
    """Draws the requests of the measured window: enough to fill the shortest one that counts.

    At the pace of the last warm-up window, in waves of C; of a file, at most all.
    """
    seed = _seed(session, launch, point, "measured")
    rate = len(warm_up.rows) / warm_up.duration_s
    needed = rate * point.min_window_s * _WINDOW_MARGIN
    count = max(point.requests, point.concurrency * _waves(needed, point))
    while True:
        count = min(count, len(prompts)) if prompts else count
        asked = make_requests(point.workload, count, session.facts.vocabulary, seed, prompts)
        share = _expected_s(asked, warm_up) / (point.min_window_s * _WINDOW_MARGIN)
        if point.workload.is_even or share >= 1 or (prompts and count == len(prompts)):
            return asked
        # These happen to be shorter than the warm-up's.
        count = point.concurrency * _waves(max(count + 1, count / share), point)


def _waves(requests: float, point: Point) -> int:
    return math.ceil(requests / point.concurrency)


def _expected_s(asked: Sequence[Request], warm_up: Window) -> float:
    """Returns how long requests of any lengths take at least, at the pace of another window.

    Whether time goes with the prompts' tokens or with the answers', it is the smaller share.
    """
    inputs = sum(len(request.input_ids) for request in asked)
    outputs = sum(request.output_tokens for request in asked)
    then_inputs = sum(row.input_tokens for row in warm_up.rows)
    then_outputs = sum(row.output_tokens_asked for row in warm_up.rows)
    return min(inputs / then_inputs, outputs / then_outputs) * warm_up.duration_s


def _either(before: list[int] | None, after: list[int] | None) -> list[int] | None:
    """Returns who was there before or after; None where nobody was seen and one look failed."""
    seen = sorted({*(before or ()), *(after or ())})
    return None if not seen and None in (before, after) else seen


def _files_not_used(session: Session, ranks: int) -> str | None:
    proofs = session.evidence.get("kernels", ())
    if not any("files" in proof for proof in proofs):
        return None
    log = session.server.read_log() or ""
    return files_not_used(proofs, log, session.engine.tuned_files, ranks)


def _compiled(pattern: re.Pattern[str], log: str) -> str | None:
    return next((line.strip()[:200] for line in log.splitlines() if pattern.search(line)), None)


def _row(
    about: Mapping[str, Any], launch: Launch, point: Point, measured: _Measured
) -> dict[str, Any]:
    window, evidence = measured.window, measured.session.evidence
    cached = [row.cached_tokens for row in window.rows if row.cached_tokens is not None]
    errors = [row.error for row in window.rows if row.error is not None]
    ended = window.started_at_unix_s + window.duration_s
    missed = [Outcome.NOT_APPLIED] if measured.not_used else []
    reasons = [*measured.reasons, *missed]
    return {
        **about,
        "outcome": missed[0] if missed else Outcome.MEASURED,
        "detail": measured.not_used,
        "valid": not reasons,
        "invalid_reason": reasons[0] if reasons else None,
        "server_id": measured.session.server.server_id,
        "attached": measured.session.attach is not None,
        "digests": {**about["digests"], **evidence["digests"]},
        "machine": evidence["machine"],
        "versions": {**evidence["versions"], "engine": evidence["engine"]["version"]},
        "placement": evidence["placement"],
        "recovery": evidence["recovery"],
        "seed": _seed(measured.session, launch, point, "measured"),
        "num_requests": len(window.rows),
        "failures": len(window.rows) - len(window.successful),
        "failure_messages": list(dict.fromkeys(errors))[:10],
        "started_at": _iso(window.started_at_unix_s),
        "ended_at": _iso(ended),
        "duration_s": window.duration_s,
        "metrics": dict(measured.metrics),
        "warm_up": dict(measured.warm_up),
        "cached_tokens": sum(cached) if cached else None,
        "client": asdict(window.audit),
        "probe": dict(measured.probe),
        "agreement": measured.agreement,
        "counters": dict(measured.counters),
        "strangers_cpu_share": measured.strangers_cpu_share,
        "halves_tok_per_s": measured.halves_tok_per_s,
        "gpus": measured.gpus,
        "gpu_strangers": measured.gpu_strangers,
        **({"kernels": list(measured.kernels)} if launch.kernels else {}),
        "timing_s": dict(measured.timing_s),
    }


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
