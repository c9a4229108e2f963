"""What analysis and report of a large campaign cost.

Plans a campaign of 1,000 points (25 variants in 10 sessions at 4 concurrencies) with leverbench's
own planner, writes made-up records for all of it, and runs analysis (measurements and verdicts)
and report, each in a process of its own.

    python benchmarks/analysis.py            # 1,000 points
    python benchmarks/analysis.py --quick    # 200 points

The last line of the output is the figures as JSON: wall time and peak memory of each, and the
number of verdicts.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from leverbench.records import write_record

LADDER, VARIANTS = {1: 8, 4: 16, 8: 32, 16: 48}, 25
SEED = 1
ANALYSE = """
import sys
from pathlib import Path
from leverbench.analysis import analyse
results = Path(sys.argv[1])
analyse(results / "plan.json", sorted(results.glob("*/s*/*/c*.json")), results / "none",
        results / "analysis")
"""
REPORT = """
import sys
from pathlib import Path
from leverbench.report import render_report
results, out = Path(sys.argv[1]), Path(sys.argv[2])
render_report(results / "plan.json", results / "analysis/measurements.parquet",
              results / "launches", [], out / "index.html", out / "findings.md", out / "figures")
"""
PLAN = """
import sys
from pathlib import Path
from leverbench.project import read_project
from leverbench.records import write_record
project = read_project(Path.cwd(), {"campaign": "campaign.yaml"})
write_record(Path("results/large/plan.json"), project.plan)
"""


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 sessions in place of 10")
    sessions = 2 if parser.parse_args().quick else 10
    with tempfile.TemporaryDirectory(prefix="leverbench-analysis-") as directory:
        project = Path(directory)
        results = project / "results/large"
        (project / "campaign.yaml").write_text(yaml.safe_dump(campaign(sessions)))
        run(PLAN, project)
        points = write_records(results)
        figures = {"points": points}
        for name, program in (("analysis", ANALYSE), ("report", REPORT)):
            wall_s, peak_mb = run(program, project, str(results), str(project / "reports"))
            figures |= {f"{name}_s": round(wall_s, 2), f"{name}_peak_mb": round(peak_mb, 1)}
        verdicts = json.loads((results / "analysis/verdicts.json").read_text())
        figures["verdicts"] = sum(verdict["verdict"] is not None for verdict in verdicts)
    print(json.dumps(figures))


def campaign(sessions: int) -> dict[str, Any]:
    """Returns a campaign file of one baseline and 24 levers."""
    levers = {
        f"lever-{number}": {"from": "baseline", "env": {f"LEVER_{number}": 1}}
        for number in range(1, VARIANTS)
    }
    return {
        "campaign": "large",
        "model": {"path": "models/tiny", "prepare": "tiny"},
        "engine": {"name": "sglang"},
        "variants": {"baseline": {}, **levers},
        "workloads": {"random": {"dataset": "random-ids", "input_tokens": 64, "output_tokens": 64}},
        "ladder": LADDER,
        "sessions": sessions,
    }


def write_records(results: Path) -> int:
    """Writes launches and points of the plan, in its order, and returns the number of points."""
    plan = json.loads((results / "plan.json").read_text())
    rng = np.random.default_rng(SEED)
    clock, points = datetime(2026, 1, 1, tzinfo=UTC), 0
    for variant, session in plan["order"]:
        server_id = f"{variant}-{session}"
        levers = [
            {"key": key, "asked": new, "seen": new, "applied": True, "evidence": "made up"}
            for key, (_, new) in plan["variants"][variant]["delta"].items()
        ]
        launch = {
            "kind": "launch",
            "variant": variant,
            "session": session,
            "outcome": "ok",
            "levers_applied": levers,
            "engine": {"name": "made-up", "version": "1"},
            "recorded_at": clock.isoformat(),
            "start_s": 20.0,
        }
        write_record(results / "launches" / f"{server_id}.json", launch)
        for concurrency in LADDER:
            clock += timedelta(minutes=1)
            tok_per_s = 50 * concurrency * float(np.exp(rng.normal(0, 0.015)))
            point = {
                "kind": "point",
                "campaign": "large",
                "variant": variant,
                "session": session,
                "workload": "random",
                "concurrency": concurrency,
                "protocol": 1,
                "outcome": "measured",
                "valid": True,
                "server_id": server_id,
                "digests": {},
                "machine": {"device": "cpu"},
                "num_requests": LADDER[concurrency],
                "failures": 0,
                "started_at": clock.isoformat(),
                "duration_s": 10.0,
                "metrics": {
                    "output_tok_per_s": tok_per_s,
                    "request_per_s": tok_per_s / 64,
                    "mean_tpot_ms": 1e3 * concurrency / tok_per_s,
                    "mean_ttft_ms": 40.0 * float(np.exp(rng.normal(0, 0.015))),
                },
            }
            name = f"{variant}/s{session}/random/c{concurrency}.json"
            write_record(results / name, point)
            points += 1
    return points


def run(program: str, directory: Path, *arguments: str) -> tuple[float, float]:
    """Runs a program in a process of its own; returns its seconds and its peak memory in MB."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=directory)
    wall_s = time.monotonic() - began
    if done.returncode:
        sys.exit(done.returncode)
    # Of the largest child so far: those before it are smaller.
    return wall_s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
