"""The campaign of this run, and the functions that rules take their inputs and params from."""

import os
import sys
from functools import cache
from pathlib import Path

from leverbench import project
from leverbench.campaign.slices import (
    patience,
    point_slice,
    profile_slice,
)

RUN = project.open_project(Path.cwd(), config)
CAMPAIGN = RUN.campaign
# Not params: patience changes no figure, so that more of it, or other prompts whose answers are
# noted beside the figures, measure nothing again.
PATIENCE = patience(CAMPAIGN).as_resources()


wildcard_constraints:
    campaign=CAMPAIGN.name,
    variant="|".join(CAMPAIGN.variants),
    workload="|".join(CAMPAIGN.workloads),
    session=r"[1-9]\d*",
    concurrency=r"[1-9]\d*",
    kernel="[a-z0-9][a-z0-9-]*",
    code="[0-9a-f]{16}",
    choice="[0-9a-f]{16}",
    lookup="[0-9a-f]{16}",
    space="[0-9a-f]{16}-[0-9a-f]{8}",
    device="[a-z0-9-]+",
    shape="[a-z0-9-]+",


def campaign_targets():
    """Returns what `rule all` asks for."""
    return RUN.targets()


@cache
def launch_of(variant, session):
    """Returns what one session's server depends on: the same for all its points."""
    RUN.require_session(variant, session)
    return RUN.launch_slice(variant, session).as_params()


@cache
def point_of(workload, concurrency):
    """Returns what a point depends on besides its server: the same in all sessions."""
    return point_slice(CAMPAIGN, workload, concurrency).as_params()


def launch_params(wildcards):
    """Returns what one session's server depends on."""
    return launch_of(wildcards.variant, int(wildcards.session))


def point_params(wildcards):
    """Returns what one point depends on besides its server."""
    return point_of(wildcards.workload, int(wildcards.concurrency))


def profile_params(wildcards):
    """Returns what one profile depends on besides its server."""
    return profile_slice(
        CAMPAIGN, wildcards.workload, int(wildcards.concurrency)
    ).as_params()


def first_session_params(wildcards):
    """Returns what the server of a variant's first session depends on."""
    return launch_of(wildcards.variant, RUN.first_session(wildcards.variant))


def first_session(wildcards):
    """Returns the record of a variant's first session."""
    return RUN.session_record(wildcards.variant, RUN.first_session(wildcards.variant))


def kernel_params(wildcards):
    """Returns what a kernel's job needs to find the kernel."""
    return RUN.prepared(wildcards.kernel, wildcards.code).as_params()


def kernel_calls(wildcards):
    """Returns the shapes and sizes that a kernel is made for."""
    return RUN.prepared(wildcards.kernel, wildcards.code).calls_as_params()


def kernel_tunings(wildcards):
    """Returns the records of what was chosen for a kernel, one a shape."""
    return list(map(str, RUN.prepared(wildcards.kernel, wildcards.code).tunings))


def tuning_build(wildcards):
    """Returns the record of the build that a tuning is about."""
    return str(RUN.prepared(wildcards.kernel, wildcards.space).built / "build.json")


def tuning_params(wildcards):
    """Returns what the tuning of one shape depends on, besides the build."""
    prepared = RUN.prepared(wildcards.kernel, wildcards.space)
    return {
        **prepared.as_params(),
        **prepared.calls_as_params(wildcards.shape),
        "skip": RUN.skip_params(wildcards.kernel),
    }


def lookup_params(wildcards):
    """Returns the server whose log shows a kernel's shapes."""
    return RUN.lookup(wildcards.kernel, wildcards.lookup).as_params()


def tuning_order(wildcards):
    """Returns the sizes in the order in which they are tuned: what the ladder runs comes first.

    Not params: the order changes nothing of what is found.
    """
    sizes = RUN.prepared(wildcards.kernel, wildcards.space).kernel.sizes
    return ",".join(map(str, sizes))


def kernel_records(wildcards):
    """Returns all records of the campaign's kernels, or first what shows their shapes."""
    return RUN.require_shapes() or RUN.kernel_records()


def kernel_bundles(wildcards):
    """Returns the bundle of each kernel of the engine's own, or first what shows their shapes."""
    return RUN.require_shapes() or RUN.exports()


def published_kernels(wildcards):
    """Returns the record of each kernel that a variant's server is given."""
    return RUN.published_records(wildcards.variant)


def profile_rank(wildcards):
    """Returns a profile's priority: after the points of its session."""
    return RUN.profile_rank(wildcards.variant)


def session_params(wildcards):
    """Returns all that one session's records depend on."""
    variant, session = wildcards.variant, int(wildcards.session)
    profiled = CAMPAIGN.profile.concurrency if RUN.is_profiled(variant, session) else ()
    return {
        "launch": launch_params(wildcards),
        "points": [
            point_of(workload, concurrency)
            for workload in CAMPAIGN.workloads
            for concurrency in CAMPAIGN.ladder
        ],
        "profiles": [
            profile_slice(CAMPAIGN, workload, concurrency).as_params()
            for workload in CAMPAIGN.workloads
            for concurrency in profiled
        ],
    }


def session_records(wildcards):
    """Returns the records that one session makes."""
    return RUN.records_of(wildcards.variant, int(wildcards.session))


def session_resources():
    """Returns what a cluster job of one session asks for."""
    return {"gpu": CAMPAIGN.gpus} if CAMPAIGN.gpus else {}


def serve_input(wildcards):
    """Returns the manifest of a model that the workflow makes.

    Here the run's jobs are being found, so it is the moment to name what is made again although
    its inputs are what they were. A job's own process has its one target already.
    """
    if not workflow.dag_settings.target_jobs:
        workflow.dag.forcefiles.update(RUN.due)
    return RUN.model_manifest()


def serve_rank(wildcards):
    """Returns a session's priority: whole sessions, in the plan's order."""
    return RUN.rank(wildcards.variant, int(wildcards.session))


def bench_rank(wildcards):
    """Returns a point's priority: inside its session, after the launch, by rising concurrency."""
    return RUN.rank(
        wildcards.variant,
        int(wildcards.session),
        wildcards.workload,
        int(wildcards.concurrency),
    )


def package_sources(*modules):
    """Returns source files whose change remakes what they compute, where that costs seconds."""
    return project.package_sources(*modules)


def begin_run():
    """Checks what can be checked before machine time is spent, and waits for the machine."""
    jobs = {}
    for job in workflow.dag.needrun_jobs():
        jobs.setdefault(job.rule.name, []).extend(map(str, job.output))
    RUN.begin(jobs, cluster=not workflow.local_exec)


def end_run(failed=False):
    """Ends the server that this run kept, and says where the report is."""
    asked = workflow.dag_settings
    part = asked.targets or asked.until or asked.omit_from or asked.batch
    # Forced or touched jobs would be so again and again.
    part = part or asked.forceall or asked.forcerun or workflow.touch
    RUN.end(failed=failed, again=None if part else start_again)


def start_again():
    """Starts this very command again, in place of this process."""
    # Its own locks end with the process image. Snakemake's are files.
    workflow.persistence.unlock()
    # The last of an option counts, and this process may have changed its directory.
    here = ["--directory", str(Path.cwd()), "--snakefile", workflow.main_snakefile]
    words = [sys.executable, "-m", "snakemake", *sys.argv[1:], *here]
    os.execv(sys.executable, words)
