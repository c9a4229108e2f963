"""A copy of the project in which a test can plan, pretend or run a campaign."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("Snakefile", "workflow", "profiles", "config", "envs/leverbench.yaml")
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
RUN_TIMEOUT_S = 1800


@dataclass(frozen=True)
class ProjectCopy:
    """A project directory of its own.

    Attributes:
        path: The directory.
        env: Environment in which its runs have their own run directory.
    """

    path: Path
    env: dict[str, str]

    def start(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts Snakemake here, in a process group of its own, with its output in a file."""
        with log.open("wb") as output:
            return subprocess.Popen(
                [SNAKEMAKE, "--cores", "8", *arguments],
                cwd=self.path,
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Snakemake here and returns how it ended, with everything it said."""
        return subprocess.run(
            [SNAKEMAKE, "--cores", "8", *arguments],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Returns the jobs of a dry run by rule, without `all`."""
        said = self.snakemake("--dry-run", *arguments)
        assert said.returncode == 0, said.stdout
        if "Nothing to be done" in said.stdout:
            return {}
        table = said.stdout.rpartition("Job stats:")[2].partition("total")[0]
        counts = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.M)}
        assert counts, said.stdout
        return {rule: count for rule, count in counts.items() if rule != "all"}

    def campaign(self) -> dict[str, Any]:
        """Returns the campaign file."""
        return yaml.safe_load((self.path / "config/campaign.yaml").read_text())

    def change(self, **changes: Any) -> None:
        """Rewrites top-level keys of the campaign file."""
        text = yaml.safe_dump({**self.campaign(), **changes}, sort_keys=False)
        (self.path / "config/campaign.yaml").write_text(text)

    def pretend(self) -> None:
        """Makes every output of the campaign as if all of it had been measured."""
        said = self.snakemake("--dry-run", "--quiet", "rules", "--detailed-summary")
        assert said.returncode == 0, said.stdout
        for line in said.stdout.splitlines():
            output = self.path / line.split("\t")[0]
            if not line.startswith(("results/", "reports/", "models/", "state/")):
                continue
            output.parent.mkdir(parents=True, exist_ok=True)
            if output.name == "figures":
                output.mkdir(exist_ok=True)
            elif output.suffix == ".json":
                outcome = "ok" if output.name == "server.json" else "measured"
                record = {"schema_version": 1, "outcome": outcome, "file": "config/campaign.yaml"}
                output.write_text(json.dumps(record))
            else:
                output.write_text("")
        said = self.snakemake("--touch", "--forceall")
        assert said.returncode == 0, said.stdout


def copy_project(directory: Path) -> ProjectCopy:
    """Copies what a project needs, with nothing measured, and gives it its own run directory."""
    path, run_dir = directory / "project", directory / "run"
    for name in COPIED:
        source, target = ROOT / name, path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    run_dir.mkdir(mode=0o700)
    return ProjectCopy(path, {**os.environ, "LEVERBENCH_RUN_DIR": str(run_dir)})
