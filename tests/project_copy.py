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

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.slices import patience
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.records import write_record

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("Snakefile", "workflow", "profiles", "config", "kernels", "envs/leverbench.yaml")
# Outputs that are folders.
FOLDERS = ("figures", "code", "plugin")
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

    def leverbench(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line here."""
        return subprocess.run(
            [sys.executable, "-c", "from leverbench.cli import main; main()", *arguments],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )

    def record(self, path: str, **changes: Any) -> None:
        """Rewrites fields of a record as if it had been made so, in its time."""
        file = self.path / path
        times = file.stat().st_atime_ns, file.stat().st_mtime_ns
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        os.utime(file, ns=times)

    def pretend(self) -> None:
        """Makes every output of the campaign as if all of it had been measured.

        The plan is the real one: later plans go on from it.
        """
        name = self.campaign()["campaign"]
        campaign = load_campaign(self.path / "config/campaign.yaml", {}, lambda engine, key: key)
        plan = f"results/{name}/plan.json"
        said = self.snakemake(plan)
        assert said.returncode == 0, said.stdout
        said = self.snakemake("--dry-run", "--quiet", "rules", "--detailed-summary")
        assert said.returncode == 0, said.stdout
        for line in said.stdout.splitlines():
            output = self.path / line.split("\t")[0]
            if not line.startswith(("results/", "reports/", "models/", "state/")):
                continue
            output.parent.mkdir(parents=True, exist_ok=True)
            if output.name in FOLDERS:
                output.mkdir(exist_ok=True)
            elif output.suffix != ".json":
                output.write_text("")
            elif output != self.path / plan:
                write_record(output, pretended_record(output.name, campaign))
        said = self.snakemake("--touch", "--forceall")
        assert said.returncode == 0, said.stdout

    def copy(self, directory: Path) -> "ProjectCopy":
        """Returns a copy of this project, with what was made in it, and its own run directory."""
        shutil.copytree(self.path, directory / "project", symlinks=True)
        return _in_own_run_dir(directory)


def pretended_record(name: str, campaign: Campaign) -> dict[str, Any]:
    """Returns what stands in a record of this file name where nothing has gone wrong."""
    common = {"detail": None, "protocol": PROTOCOL_VERSION}
    if name == "server.json":
        offered = patience(campaign).recovery_digest
        return {**common, "outcome": "ok", "recovery": [], "recovery_offered": offered}
    if name == "summary.json":
        return {**common, "outcome": "profiled"}
    return {**common, "outcome": "measured", "valid": True, "machine": {}, "digests": {}}


def copy_project(directory: Path) -> ProjectCopy:
    """Copies what a project needs, with nothing measured, and gives it its own run directory."""
    path = directory / "project"
    for name in COPIED:
        source, target = ROOT / name, path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return _in_own_run_dir(directory)


def _in_own_run_dir(directory: Path) -> ProjectCopy:
    run_dir = directory / "run"
    run_dir.mkdir(mode=0o700)
    env = {**os.environ, "LEVERBENCH_RUN_DIR": str(run_dir)}
    return ProjectCopy(directory / "project", env)
