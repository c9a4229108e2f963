"""What leverbench adds to a dry run: its wall time over that of a bare Snakemake workflow.

Generates a campaign of 1,000 points (25 variants in 10 sessions at 4 concurrencies) in a copy of
the project, with a model that the workflow would make, so that nothing is asked of GPUs. Beside it,
a workflow of as many jobs with the same files and the same dependencies (model -> launches ->
points and profiles -> table -> report -> gate), written with wildcards and `expand` alone: no
campaign file, no params, resources or priorities. Both are planned with ``snakemake --dry-run``
from nothing, in turns, after one unmeasured run each; the figures are medians.

    python benchmarks/dag.py            # 7 runs each, two to three minutes
    python benchmarks/dag.py --quick    # 3 runs each

The last line of the output is the figures as JSON: ``dry_run_ratio`` (wall time), ``cpu_ratio``
(user + system time), the seconds of each, and lowest and highest ratio of two runs beside each
other.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import yaml

PROJECT = Path(__file__).resolve().parents[1]
COPIED = ("Snakefile", "workflow", "config", "profiles", "envs")
VARIANTS, SESSIONS, LADDER = 25, 10, {1: 8, 4: 16, 8: 32, 16: 48}

BARE = """\
VARIANTS = {variants}
SESSIONS = range(1, {sessions} + 1)
LADDER = {ladder}
SERVERS = expand("results/dag/{{v}}/s{{s}}/server.json", v=VARIANTS, s=SESSIONS)
POINTS = expand("results/dag/{{v}}/s{{s}}/random/c{{c}}.json", v=VARIANTS, s=SESSIONS, c=LADDER)
PROFILES = expand("results/dag/{{v}}/profile/random/c16/summary.json", v=VARIANTS)

rule all:
    input: "results/dag/plan.json", POINTS, PROFILES, "reports/dag/index.html", "state/gate/dag"

rule plan:
    output: "results/dag/plan.json"
    shell: "touch {{output}}"

rule model:
    output: "models/tiny/model.json"
    shell: "touch {{output}}"

rule serve:
    input: "models/tiny/model.json"
    output: "results/dag/{{variant}}/s{{session}}/server.json"
    shell: "touch {{output}}"

rule bench:
    input: "results/dag/{{variant}}/s{{session}}/server.json"
    output:
        "results/dag/{{variant}}/s{{session}}/{{workload}}/c{{concurrency}}.json",
        "results/dag/{{variant}}/s{{session}}/{{workload}}/c{{concurrency}}.parquet",
    shell: "touch {{output}}"

rule profile:
    input: "results/dag/{{variant}}/s1/server.json"
    output:
        "results/dag/{{variant}}/profile/{{workload}}/c{{concurrency}}/summary.json",
        "results/dag/{{variant}}/profile/{{workload}}/c{{concurrency}}/kernels.parquet",
    shell: "touch {{output}}"

rule analyse:
    input: "results/dag/plan.json", SERVERS, POINTS
    output:
        "results/dag/analysis/measurements.csv",
        "results/dag/analysis/measurements.parquet",
    shell: "touch {{output}}"

rule report:
    input:
        "results/dag/plan.json", "results/dag/analysis/measurements.parquet", PROFILES,
    output: "reports/dag/index.html"
    shell: "touch {{output}}"

rule gate:
    input: "reports/dag/index.html"
    output: "state/gate/dag"
    shell: "touch {{output}}"
"""


def main() -> None:
    """Plans both in turns and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 runs each")
    rounds = 3 if parser.parse_args().quick else 7
    with tempfile.TemporaryDirectory(prefix="leverbench-dag-") as directory:
        print(json.dumps(compare(Path(directory), rounds)))


def compare(directory: Path, rounds: int) -> dict[str, float]:
    """Returns the figures of dry runs of both, measured in turns."""
    folders = [make_campaign(directory), make_bare(directory)]
    jobs = {dry_run(folder, directory)[2] for folder in folders}
    if len(jobs) != 1:
        sys.exit(f"the two workflows are not of one size: {jobs} jobs")
    runs = [[dry_run(folder, directory) for folder in folders] for _ in range(rounds)]
    wall_s = [median(run[which][0] for run in runs) for which in (0, 1)]
    cpu_s = [median(run[which][1] for run in runs) for which in (0, 1)]
    ratios = sorted(ours[0] / bare[0] for ours, bare in runs)
    return {
        "dry_run_ratio": round(wall_s[0] / wall_s[1], 3),
        "cpu_ratio": round(cpu_s[0] / cpu_s[1], 3),
        "lowest_ratio": round(ratios[0], 3),
        "highest_ratio": round(ratios[-1], 3),
        "leverbench_s": round(wall_s[0], 2),
        "bare_s": round(wall_s[1], 2),
        "jobs": jobs.pop(),
        "rounds": rounds,
    }


def make_campaign(directory: Path) -> Path:
    """Copies the project and gives it the campaign."""
    project = directory / "project"
    for name in COPIED:
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        copy(source, project / name)
    variants: dict[str, object] = {"baseline": {}}
    for number in range(1, VARIANTS):
        variants[f"variant-{number}"] = {"from": "baseline", "args": {"random-seed": number}}
    campaign = {
        "campaign": "dag",
        "model": {"path": "models/tiny", "prepare": "tiny"},
        "engine": {"name": "sglang", "args": {"device": "cpu", "dtype": "bfloat16"}},
        "variants": variants,
        "workloads": {"random": {"dataset": "random-ids", "input_tokens": 8, "output_tokens": 8}},
        "ladder": LADDER,
        "sessions": SESSIONS,
    }
    (project / "config/campaign.yaml").write_text(yaml.safe_dump(campaign, sort_keys=False))
    return project


def make_bare(directory: Path) -> Path:
    """Writes the workflow that is compared with."""
    bare = directory / "bare"
    bare.mkdir()
    names = ["baseline", *(f"variant-{number}" for number in range(1, VARIANTS))]
    text = BARE.format(variants=names, sessions=SESSIONS, ladder=list(LADDER))
    (bare / "Snakefile").write_text(text)
    return bare


def dry_run(folder: Path, directory: Path) -> tuple[float, float, int]:
    """Returns wall time and CPU time of a dry run in seconds, and its number of jobs."""
    run_dir = directory / "run"
    run_dir.mkdir(mode=0o700, exist_ok=True)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).with_name("snakemake"), "--cores", "8", "--dry-run"],
        cwd=folder,
        env={**os.environ, "LEVERBENCH_RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(r"^total +(\d+)$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not found:
        sys.exit(done.stdout[-4000:])
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, int(found[1])


if __name__ == "__main__":
    main()
