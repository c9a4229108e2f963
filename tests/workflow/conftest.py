"""Copies of the project with a small campaign, with nothing measured or as if all of it was."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from project_copy import ProjectCopy, copy_project

CAMPAIGN = {
    "campaign": "small",
    "model": {"path": "models/m", "prepare": "tiny"},
    "engine": {"name": "sglang", "args": {"dtype": "bfloat16"}, "env": {"OMP_NUM_THREADS": 1}},
    "variants": {
        "baseline": {},
        "threads": {"from": "baseline", "env": {"OMP_NUM_THREADS": 2}},
        "float32": {"from": "baseline", "args": {"dtype": "float32"}},
    },
    "workloads": {"random": {"dataset": "random-ids", "input_tokens": 8, "output_tokens": 8}},
    "ladder": {1: 4, 8: 16},
    "sessions": 2,
}


@pytest.fixture(scope="session")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the engine said of command lines: asking takes seconds, the same for every test."""
    return tmp_path_factory.mktemp("arguments")


@pytest.fixture(scope="session")
def small_project(arguments: Path) -> Callable[[Path], ProjectCopy]:
    """Makes, in a folder, a copy of the project with a small campaign and nothing measured."""

    def make(directory: Path) -> ProjectCopy:
        copy = copy_project(directory)
        (copy.path / "state").mkdir()
        (copy.path / "state/arguments").symlink_to(arguments)
        (copy.path / "config/campaign.yaml").write_text(yaml.safe_dump(CAMPAIGN, sort_keys=False))
        return copy

    return make


@pytest.fixture
def project(tmp_path: Path, small_project: Callable[[Path], ProjectCopy]) -> ProjectCopy:
    """A project with a small campaign and nothing measured."""
    return small_project(tmp_path)


@pytest.fixture(scope="session")
def measured_once(
    tmp_path_factory: pytest.TempPathFactory, small_project: Callable[[Path], ProjectCopy]
) -> ProjectCopy:
    """A project in which everything has been measured; to be copied, not changed."""
    copy = small_project(tmp_path_factory.mktemp("measured"))
    copy.pretend()
    return copy


@pytest.fixture
def measured(measured_once: ProjectCopy, tmp_path: Path) -> ProjectCopy:
    """A project in which everything has been measured."""
    return measured_once.copy(tmp_path)
