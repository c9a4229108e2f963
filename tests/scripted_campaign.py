"""Campaigns whose servers are scripted ones."""

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from project_copy import ProjectCopy
from scripted_gpu import Gpu, install

LIMITS: Mapping[str, Any] = {
    "min_window_s": 0.2,
    "warm_up_agreement": 1.0,
    "start_timeout_s": 60,
    # What is tested is not how busy this machine is.
    "max_strangers_cpu_share": 1.0,
}


def use_scripted_servers(project: ProjectCopy, script: Mapping[str, Any], **changes: Any) -> None:
    """Makes a project's campaign one of a single variant on scripted servers, and changes it."""
    model = project.path / "models/m"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    launch = Path(__file__).with_name("scripted_launch.py")
    engine = {
        "name": "sglang",
        "wrapper": [sys.executable, str(launch)],
        "args": {"mem-fraction-static": 0.4, "enable-metrics": True},
        "env": {"SCRIPT": json.dumps(script)},
    }
    plain: dict[str, Any] = {
        "model": {"path": "models/m"},
        "engine": engine,
        "variants": {"baseline": {}},
        "ladder": {1: 4, 2: 8},
        "sessions": 1,
        "limits": LIMITS,
    }
    project.change(**plain | changes)


def use_scripted_gpu(project: ProjectCopy, by_label: Mapping[str, Gpu]) -> None:
    """Gives a project's machine one GPU, which may tell otherwise under a variant's servers."""
    folder = project.path.parent / "bin"
    install(folder, Gpu(), by_label)
    project.env["PATH"] = f"{folder}:{project.env['PATH']}"
    project.change(topology={"gpus": 1})


def measurements(project: ProjectCopy) -> list[dict[str, str]]:
    """Returns the rows of a campaign's ``measurements.csv``."""
    path = project.path / f"results/{project.campaign()['campaign']}/analysis/measurements.csv"
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
