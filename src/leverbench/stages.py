"""What the rules of the workflow call: one function a rule, with a log and no traceback.

A mistake or a mishap that has a cure ends the job with its message; anything else is a bug and
keeps its traceback. Imports are inside the functions: a job loads only what it needs.
"""

import errno
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.slices import Launch, Patience
from leverbench.errors import LeverbenchError
from leverbench.secrets import redacted

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_MAKE_ROOM = "Make room and run again: what was measured stays, only what is missing is measured"


@contextmanager
def _stage(log: str) -> Iterator[None]:
    """Notes the end of a job in its log, and turns an error into one message."""
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    ended = "interrupted"
    try:
        yield
        ended = "done"
    except LeverbenchError as error:
        ended = str(redacted(f"leverbench: {error}"))
        sys.exit(ended)
    except KeyboardInterrupt:
        sys.exit("leverbench: interrupted")
    except OSError as error:
        if error.errno not in _NO_ROOM:
            ended = f"failed: {error!r}"
            raise
        ended = f"leverbench: {error.filename or Path.cwd()}: {error.strerror}. {_MAKE_ROOM}"
        sys.exit(ended)
    except Exception as error:
        ended = f"failed: {redacted(repr(error))}"
        raise
    finally:
        with suppress(OSError):
            path.write_text(f"{ended}\nafter {time.monotonic() - began:.1f} s\n")


def write_plan(plan: Mapping[str, Any], record: str, log: str) -> None:
    """Writes the plan's record."""
    with _stage(log):
        records.write_record(Path(record), plan)


def prepare_tiny_model(seed: int, manifest: str, log: str) -> None:
    """Trains the tiny model into the folder of its manifest."""
    with _stage(log):
        from leverbench.campaign.plan import note_history
        from leverbench.models.tiny import prepare_tiny

        began = time.monotonic()
        prepare_tiny(Path(manifest).parent, seed=seed, threads=len(os.sched_getaffinity(0)))
        seconds = round(time.monotonic() - began, 3)
        note_history("model", seconds)


def discover_shapes(
    launch: Mapping[str, Any], record: str, resources: Mapping[str, Any], log: str
) -> None:
    """Launches a server once, for the shapes that it looks tuned files up for."""
    with _stage(log):
        from leverbench.kernels.shapes import record_lookups
        from leverbench.serving.session import looked_up

        asked = Launch.from_params(launch)
        seen = looked_up(asked, Patience.from_resources(resources))
        record_lookups(asked, seen, Path(record))


def build_kernel(kernel: Mapping[str, Any], record: str, log: str) -> None:
    """Builds a kernel for this machine."""
    with _stage(log):
        from leverbench.kernels.build import build
        from leverbench.kernels.prepared import from_params

        prepared = from_params(kernel, Path(record))
        build(prepared.kernel, prepared.toolchain, Path(record).parent)


def tune_kernel(
    kernel: Mapping[str, Any], build: str, record: str, resources: Mapping[str, Any], log: str
) -> None:
    """Finds the fastest parameters of a kernel for one shape, at each size."""
    with _stage(log):
        from leverbench.kernels.prepared import from_params
        from leverbench.serving.lease import client_of_run
        from leverbench.tuning.skip import skip_of
        from leverbench.tuning.tune import tune

        prepared = from_params(kernel, Path(record))
        (shape,) = prepared.kernel.shapes
        skip = kernel["skip"]
        with client_of_run(Path.cwd(), measured=True):
            order = str(resources["order"])
            tune(
                replace(prepared.kernel, sizes=tuple(map(int, order.split(",") if order else ()))),
                shape,
                Path(build).with_name("code"),
                prepared.settings,
                prepared.torch_device,
                prepared.journal(shape),
                Path(record),
                skip and skip_of(prepared.kernel, Path(skip["profile"]), skip["floor"]),
            )


def verify_kernel(
    kernel: Mapping[str, Any],
    calls: Mapping[str, Any],
    tunings: Sequence[str],
    record: str,
    log: str,
) -> None:
    """Compares a kernel, with its default parameters and the chosen ones, with its reference."""
    with _stage(log):
        from leverbench.kernels.prepared import from_params
        from leverbench.kernels.verify import require_verified, verify
        from leverbench.serving.lease import client_of_run

        prepared = from_params({**kernel, **calls}, Path(record))
        chosen = [call["config"] for path in tunings for call in _chosen(path)]
        with client_of_run(Path.cwd(), measured=False):
            body = verify(
                prepared.kernel,
                prepared.built / "code",
                chosen,
                prepared.settings,
                prepared.torch_device,
            )
        rejected = Path("state/rejected") / prepared.kernel.name / f"{prepared.code}.json"
        require_verified(prepared.kernel, body, rejected)
        records.write_record(Path(record), body)


def _chosen(tuning: str) -> list[dict[str, Any]]:
    chosen: list[dict[str, Any]] = records.read_record(Path(tuning))["chosen"]
    return chosen


def microbench_kernel(
    kernel: Mapping[str, Any],
    calls: Mapping[str, Any],
    tunings: Sequence[str],
    record: str,
    log: str,
) -> None:
    """Times a kernel against what it stands in for."""
    with _stage(log):
        from leverbench.kernels.prepared import from_params
        from leverbench.serving.lease import client_of_run
        from leverbench.tuning.microbench import microbench

        prepared = from_params({**kernel, **calls}, Path(record))
        with client_of_run(Path.cwd(), measured=True):
            microbench(
                prepared.kernel,
                [Path(path) for path in tunings],
                prepared.built / "code",
                prepared.settings,
                prepared.torch_device,
                Path(record),
            )


def publish_kernel(
    kernel: Mapping[str, Any],
    calls: Mapping[str, Any],
    tunings: Sequence[str],
    record: str,
    log: str,
) -> None:
    """Writes what servers load of a kernel."""
    with _stage(log):
        from leverbench.kernels.prepared import from_params
        from leverbench.kernels.publish import publish

        prepared = from_params({**kernel, **calls}, Path(record))
        paths = [Path(path) for path in tunings]
        publish(prepared.kernel, prepared.built / "code", paths, Path(record).parent)


def export_kernel(
    kernel: Mapping[str, Any],
    calls: Mapping[str, Any],
    tunings: Sequence[str],
    folder: str,
    campaign: str,
    log: str,
) -> None:
    """Writes a bundle of what was chosen for one of the engine's own kernels."""
    with _stage(log):
        from leverbench.engines.arguments import identify
        from leverbench.kernels.prepared import from_params
        from leverbench.tuning.export import export

        prepared = from_params({**kernel, **calls}, Path(tunings[0]))
        export(
            [Path(path) for path in tunings],
            Path(folder),
            engine=prepared.kernel.engine,
            versions={
                prepared.kernel.engine: identify(prepared.settings).version,
                "torch": prepared.toolchain.torch,
                "triton": prepared.toolchain.version,
            },
            command=f"snakemake --cores all export --config campaign={campaign}",
        )


def serve(launch: Mapping[str, Any], record: str, resources: Mapping[str, Any], log: str) -> None:
    """Launches a session's server and proves it."""
    with _stage(log):
        from leverbench.serving import session

        session.serve(launch, Patience.from_resources(resources), Path(record))


def bench(
    launch: Mapping[str, Any],
    point: Mapping[str, Any],
    session: str,
    record: str,
    requests: str,
    resources: Mapping[str, Any],
    log: str,
) -> None:
    """Measures one point on its session's server."""
    with _stage(log):
        from leverbench.load import point as measuring

        paths = (Path(session), Path(record), Path(requests))
        measuring.bench(launch, point, Patience.from_resources(resources), *paths)


def profile(
    launch: Mapping[str, Any],
    profile: Mapping[str, Any],
    session: str,
    summary: str,
    kernels: str,
    resources: Mapping[str, Any],
    log: str,
) -> None:
    """Profiles a session's server under load."""
    with _stage(log):
        from leverbench.profiling import capture

        paths = (Path(session), Path(summary), Path(kernels))
        capture.profile(launch, profile, Patience.from_resources(resources), *paths)


def session(records: Sequence[str], config: Sequence[str], threads: int, log: str) -> None:
    """Makes the records of a session, or without any named all that is left, by an inner run."""
    with _stage(log):
        from leverbench.inner import run

        run(records, config, threads)


def analyse(plan: str, points: Sequence[str], verdicts: str, log: str) -> None:
    """Gathers the points into one table, and judges them."""
    with _stage(log):
        from leverbench import analysis

        campaign = Path(plan).parent.name
        attempts = Path("state/attempts") / campaign
        paths = [Path(point) for point in points]
        analysis.analyse(Path(plan), paths, attempts, Path(verdicts).parent)


def report(
    plan: str,
    measurements: str,
    profiles: Sequence[str],
    html: str,
    findings: str,
    figures: str,
    log: str,
) -> None:
    """Renders the report."""
    with _stage(log):
        from leverbench.report import render_report

        render_report(
            Path(plan),
            Path(measurements),
            Path(plan).parent / "launches",
            [Path(profile) for profile in profiles],
            Path(html),
            Path(findings),
            Path(figures),
        )


def gate(planned: Sequence[str], passed: str, log: str) -> None:
    """Fails while a failure that would come again stands."""
    with _stage(log):
        from leverbench.serving.failures import SUCCESSES

        standing = []
        for path in planned:
            record = records.read_record(Path(path))
            if record.get("outcome") not in SUCCESSES:
                # The first line: a failed start brings the end of the server's log along.
                detail = str(record.get("detail")).partition("\n")[0]
                standing.append(f"{path}: {record.get('outcome')}: {detail}")
        if standing:
            listed = "\n  ".join(standing)
            raise LeverbenchError(
                f"{len(standing)} lasting failures stand\n  {listed}\n",
                cure="Mend the variants concerned, or delete their records to try again.",
            )
        Path(passed).parent.mkdir(parents=True, exist_ok=True)
        Path(passed).touch()
