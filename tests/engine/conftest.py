"""The embedded campaign, run once on the real engine for all tests that look at its results."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded import Embedded, left_behind
from project_copy import ProjectCopy, copy_project


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    """Runs the embedded campaign from nothing."""
    project = copy_project(tmp_path_factory.mktemp("embedded"))
    began = time.monotonic()
    said = project.snakemake()
    if said.returncode != 0 and list(project.path.glob("state/attempts/**/*.jsonl")):
        # A shared machine can void a point twice; then the next run measures it.
        said = project.snakemake()
    return Embedded(project, said.returncode, said.stdout, time.monotonic() - began)


SMALL = {"sessions": 1, "ladder": {1: 2, 8: 16}}


@pytest.fixture
def small(embedded: Embedded, tmp_path: Path) -> Iterator[ProjectCopy]:
    """A project with one session of the baseline to measure, and the model already made."""
    project = copy_project(tmp_path)
    for name in ("models", "state/arguments"):
        shutil.copytree(embedded.project.path / name, project.path / name)
    limits = {**project.campaign()["limits"], "min_window_s": 1.5}
    project.change(variants={"baseline": {}}, limits=limits, **SMALL)
    yield project
    assert left_behind(project) == {}
