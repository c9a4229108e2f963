"""What the parts of the project may know of one another, and what stays in step with what."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from leverbench.load.validity import INVALID, InvalidReason
from leverbench.profiling.categories import HOST_CODE
from leverbench.serving.failures import PROFILE_INCOMPLETE, SUCCESSES, Outcome
from leverbench.serving.spec import Cause

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/leverbench"
SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".html", ".md"})


def test_only_the_engines_name_an_engine():
    naming = [
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if re.search("sglang", path.read_text(), re.IGNORECASE)
    ]

    assert naming
    assert all(name.startswith("engines/") for name in naming)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".py"], ids=lambda p: p.stem)
def test_the_package_does_not_see_snakemake(path):
    assert not {name for name in imports(path) if name.split(".")[0] == "snakemake"}


@pytest.mark.parametrize("name", ["keeper", "processes", "locks", "devices"])
def test_the_keeper_imports_the_standard_library_alone(name):
    outside = {
        module
        for module in imports(PACKAGE / f"serving/{name}.py")
        if module.split(".")[0] in {"numpy", "aiohttp", "psutil", "yaml", "torch"}
    }

    assert outside == set()


def test_scripts_are_short_and_the_snakefile_too():
    scripts = list((ROOT / "workflow/scripts").glob("*.py"))

    assert scripts
    assert all(len(path.read_text().splitlines()) <= 15 for path in scripts)
    assert len((ROOT / "Snakefile").read_text().splitlines()) < 40


def test_nothing_ends_processes_by_name():
    for path in [*SOURCES, ROOT / "Makefile", *(ROOT / "workflow").rglob("*.smk")]:
        assert not re.search(r"\b(pkill|killall)\b", path.read_text()), path


def failure_table() -> dict[str, tuple[str, str]]:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| ([^|]+) \| ([^|]+) \|",
        (ROOT / "docs/failures.md").read_text(),
        re.MULTILINE,
    )
    return {reason: (kind.strip(), again.strip()) for reason, kind, again in rows}


def test_the_table_of_failures_is_complete():
    reasons = {*Cause, *InvalidReason, *Outcome, PROFILE_INCOMPLETE} - {*SUCCESSES}

    assert set(failure_table()) == {str(reason) for reason in reasons}


@pytest.mark.parametrize("reason", list(InvalidReason))
def test_the_table_of_failures_says_what_is_tried_again(reason):
    expected = ("passing", "yes" if INVALID[reason].retry else "no")

    assert failure_table()[reason] == expected


def keys_without_description(schema: object, at: str = "") -> list[str]:
    if not isinstance(schema, dict):
        return []
    missing = []
    for key, value in schema.get("properties", {}).items():
        if "description" not in value and "$ref" not in value:
            missing.append(f"{at}.{key}")
        missing += keys_without_description(value, f"{at}.{key}")
    more = schema.get("additionalProperties")
    return missing + keys_without_description(more, f"{at}.*")


def test_every_key_of_the_files_that_people_write_is_described():
    for name in ("campaign", "kernel"):
        schema = yaml.safe_load((ROOT / f"workflow/schemas/{name}.schema.yaml").read_text())

        assert keys_without_description(schema) == []


def test_a_lever_may_touch_every_category_of_a_profile_and_no_other():
    schema = yaml.safe_load((ROOT / "workflow/schemas/campaign.schema.yaml").read_text())
    variant = schema["properties"]["variants"]["additionalProperties"]["properties"]
    categories = yaml.safe_load((PACKAGE / "profiling/categories.yaml").read_text())

    expected = {entry["category"] for entry in categories} | {HOST_CODE}
    assert set(variant["touches"]["items"]["enum"]) == expected
    kernel = yaml.safe_load((ROOT / "workflow/schemas/kernel.schema.yaml").read_text())
    assert set(kernel["properties"]["touches"]["items"]["enum"]) == expected


def test_the_readme_names_the_two_commands():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("campaign", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)
