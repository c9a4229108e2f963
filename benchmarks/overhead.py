"""What the pipeline itself costs: wall time over the time that the measurement needs.

Runs the embedded campaign from nothing in a copy of the project, on the real engine, and divides
its wall time by the sum of what no tool could save: training the model, timing the kernel (tuning
and micro-benchmark), starting and stopping the servers, warm-up with the emptying of the prefix
cache that ends it (the engine collects garbage then), and measured windows. The answers that are
compared and the recording of profiles are told, too, and are not part of that sum. Beside it, every
half second, the proportional set size (PSS) of all processes of the run that are neither the
engine's (servers, and what runs in its interpreter beside them) nor training.

    python benchmarks/overhead.py            # the whole campaign, about ten minutes
    python benchmarks/overhead.py --quick    # one session of two variants

The last line of the output is the figures as JSON: ``wall_ratio``, ``wall_s``, ``peak_pss_mb``, the
parts in seconds, and how many windows were void: the machine was disturbed, and they were measured
twice. Both windows count. Void twice, a point makes the campaign's exit code 1; that is told too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

from leverbench.serving.processes import KEEPER_MARK, SERVER_MARK, descendants, marked

PROJECT = Path(__file__).resolve().parents[1]
COPIED = ("Snakefile", "workflow", "config", "kernels", "profiles", "envs")
QUICK = ["--config", "sessions=1", "only=baseline,float32"]
NECESSARY = ("training_s", "tuning_s", "start_s", "stop_s", "warm_up_s", "windows_s")


def main() -> None:
    """Runs the campaign and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one session of two variants")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="leverbench-overhead-") as directory:
        print(json.dumps(measure(Path(directory), QUICK if quick else [])))


def measure(directory: Path, arguments: list[str]) -> dict[str, float]:
    """Runs the campaign in a fresh copy of the project and accounts for its wall time."""
    project, run_dir = directory / "project", directory / "run"
    for name in COPIED:
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        copy(source, project / name)
    run_dir.mkdir(mode=0o700)
    snakemake = Path(sys.executable).with_name("snakemake")
    began = time.monotonic()
    with (directory / "log").open("w") as log:
        run = subprocess.Popen(
            [snakemake, "--cores", "8", *arguments],
            cwd=project,
            env={**os.environ, "LEVERBENCH_RUN_DIR": str(run_dir)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        peak_bytes = 0
        while run.poll() is None:
            peak_bytes = max(peak_bytes, pipeline_pss_bytes(run.pid, run_dir))
            time.sleep(0.5)
    wall_s = time.monotonic() - began
    void = len(void_rows(project))
    # Void twice, a point stays unmeasured until the next run; its windows count all the same.
    if run.returncode != 0 and not void:
        sys.exit((directory / "log").read_text()[-4000:])
    parts_s = spent_s(project, run_dir)
    return {
        "wall_ratio": round(wall_s / sum(parts_s[part] for part in NECESSARY), 4),
        "wall_s": round(wall_s, 1),
        "peak_pss_mb": round(peak_bytes / 1e6, 1),
        **{name: round(seconds, 1) for name, seconds in parts_s.items()},
        "void_windows": void,
        "exit_code": run.returncode,
    }


def spent_s(project: Path, run_dir: Path) -> dict[str, float]:
    """Sums up what the campaign's parts took, from its own records."""
    parts: dict[str, float] = defaultdict(float)
    for line in (project / "state/history.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["what"] == "model":
            parts["training_s"] += entry["seconds"]
    at: dict[tuple[str, str], float] = {}
    for line in (run_dir / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if "server_id" in event:
            at[event["server_id"], event["what"]] = event["t_mono_s"]
    for server_id in {server_id for server_id, _ in at}:
        parts["start_s"] += at[server_id, "ready"] - at[server_id, "launch"]
        parts["stop_s"] += at[server_id, "stopped"] - at[server_id, "stop"]
    points = [json.loads(path.read_text()) for path in project.glob("results/*/*/s*/*/c*.json")]
    for timing_s in (row["timing_s"] for row in [*points, *void_rows(project)]):
        parts["warm_up_s"] += timing_s["warm_up"] + timing_s["flush"]
        parts["windows_s"] += timing_s["window"]
        parts["answers_s"] += timing_s["agreement"]
    timed = [
        *project.glob("results/tuning/**/*.json"),
        *project.glob("results/kernels/**/microbench.json"),
    ]
    for record in map(json.loads, map(Path.read_text, timed)):
        began, ended = (datetime.fromisoformat(record[f"{at}_at"]) for at in ("started", "ended"))
        parts["tuning_s"] += (ended - began).total_seconds()
    for record in project.glob("results/*/launches/*.json"):
        answers = json.loads(record.read_text())["answers"]
        parts["answers_s"] += sum(answer["seconds"] for answer in answers)
    for record in project.glob("results/*/*/profile/*/*/summary.json"):
        timing_s = json.loads(record.read_text())["timing_s"]
        parts["warm_up_s"] += timing_s["warm_up"]
        parts["profiles_s"] += timing_s["recording"]
    return dict(parts)


def void_rows(project: Path) -> list[dict[str, Any]]:
    """Returns what was measured in vain, because others disturbed the machine."""
    accounts = project.glob("state/attempts/**/*.jsonl")
    lines = [line for path in accounts for line in path.read_text().splitlines()]
    return [row for line in lines if (row := json.loads(line)["row"])]


def pipeline_pss_bytes(root: int, run_dir: Path) -> int:
    """Returns the PSS of the run's processes, without engine and training."""
    total = 0
    # A keeper is below the job that launched it until that ends: each process counts once.
    kept = [process.pid for found in marked(KEEPER_MARK, run_dir).values() for process in found]
    for pid in {root, *(process.pid for process in descendants(root)), *kept}:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if f"{SERVER_MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes() or any(
                part in command
                for part in (b"prepare_tiny_model", b"Runs in the engine's interpreter")
            ):
                continue
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (OSError, ValueError):
            continue
    return total


if __name__ == "__main__":
    main()
