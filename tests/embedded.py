"""What tests ask of a project in which the embedded campaign ran."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from project_copy import ProjectCopy


@dataclass(frozen=True)
class Embedded:
    """The embedded campaign after its run.

    Attributes:
        project: Where it ran.
        returncode: How Snakemake ended.
        said: All that it said.
        wall_s: How long it took.
    """

    project: ProjectCopy
    returncode: int
    said: str
    wall_s: float

    def records(self, pattern: str) -> dict[str, dict[str, Any]]:
        """Returns JSON records below results/quickstart, by path."""
        root = self.project.path / "results/quickstart"
        return {
            str(path.relative_to(root)): json.loads(path.read_text())
            for path in sorted(root.glob(pattern))
        }

    def points(self) -> dict[str, dict[str, Any]]:
        """Returns the point records."""
        return self.records("*/s*/*/c*.json")


def events(project: ProjectCopy) -> list[dict[str, Any]]:
    """Returns what the keepers of a project noted."""
    path = Path(project.env["LEVERBENCH_RUN_DIR"]) / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def left_behind(project: ProjectCopy) -> dict[int, str]:
    """Returns the live processes that belong to a project's runs, with their command lines."""
    mark = f"LEVERBENCH_RUN_DIR={project.env['LEVERBENCH_RUN_DIR']}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (process / "environ").read_bytes().split(b"\0")
            dead = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if marked and not dead:
            found[int(process.name)] = command
    return found


def snapshot(project: ProjectCopy) -> dict[str, tuple[int, bytes]]:
    """Returns modification time and content of each file under results/."""
    root = project.path / "results"
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
