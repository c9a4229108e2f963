"""What a kernel's change makes again: the jobs of that kernel, and of the variants that load it.

The campaign has a variant with a kernel beside three without: 2 sessions, 2 concurrencies.
"""

import os

import pytest
import yaml
from project_copy import ProjectCopy

from leverbench.kernels.manifest import MANIFEST, read_kernel

pytestmark = pytest.mark.plans

AFTER = {"plan": 1, "analyse": 1, "report": 1, "gate": 1}
# Of the variant that loads the kernel: 2 launches with 2 points each, and its profile.
LOADED = {"serve": 2, "bench": 4, "profile": 1}
# What is made of a choice among candidates.
CHOSEN = {"verify_kernel": 1, "publish_kernel": 1, "microbench_kernel": 1}
KERNEL = "kernels/decode-attention"


@pytest.fixture(scope="module")
def with_kernel_once(tmp_path_factory, small_project) -> ProjectCopy:
    """A project whose kernel is published, and whose variants are measured."""
    copy = small_project(tmp_path_factory.mktemp("kernel"))
    variants = copy.campaign()["variants"]
    variants["kernel"] = {"from": "float32", "tuned": ["decode-attention"]}
    copy.change(variants=variants)
    copy.pretend()
    return copy


@pytest.fixture
def with_kernel(with_kernel_once, tmp_path) -> ProjectCopy:
    return with_kernel_once.copy(tmp_path)


def change_manifest(project: ProjectCopy, **changes: object) -> None:
    path = project.path / KERNEL / MANIFEST
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_a_variant_with_a_kernel_added_later(measured):
    variants = measured.campaign()["variants"]
    variants["kernel"] = {"from": "float32", "tuned": ["decode-attention"]}
    measured.change(variants=variants)

    # Fresh launches of its parent beside its own, and the whole of the kernel.
    made = {"build_kernel": 1, "tune_kernel": 1, **CHOSEN}
    assert measured.jobs() == {**made, "serve": 4, "bench": 8, "profile": 1, **AFTER}


def test_nothing_to_do_right_after(with_kernel):
    assert with_kernel.jobs() == {}


@pytest.mark.parametrize("name", ["decode_attention.cpp", "kernel.py"])
def test_a_source(with_kernel, name):
    source = with_kernel.path / KERNEL / name
    comment = "//" if source.suffix == ".cpp" else "#"
    source.write_text(f"{source.read_text()}{comment} another\n")

    made = {"build_kernel": 1, "tune_kernel": 1, **CHOSEN}
    assert with_kernel.jobs() == {**made, **LOADED, **AFTER}


def test_a_source_that_is_touched(with_kernel):
    for path in (with_kernel.path / KERNEL).iterdir():
        os.utime(path)

    assert with_kernel.jobs() == {}


def test_a_compiler_flag(with_kernel):
    change_manifest(with_kernel, flags=["-O1"])

    made = {"build_kernel": 1, "tune_kernel": 1, **CHOSEN}
    assert with_kernel.jobs() == {**made, **LOADED, **AFTER}


def test_another_compiler(with_kernel, tmp_path):
    compiler = tmp_path / "g++-of-another-version"
    compiler.write_text("#!/bin/sh\necho 'g++ 99.0'\n")
    compiler.chmod(0o755)
    with_kernel.env["CXX"] = str(compiler)

    made = {"build_kernel": 1, "tune_kernel": 1, **CHOSEN}
    assert with_kernel.jobs() == {**made, **LOADED, **AFTER}


def test_one_shape_added(with_kernel):
    shapes = list(read_kernel(with_kernel.path / KERNEL).shapes)
    more = {**shapes[0], "head_dim": 128}
    with_kernel.change(kernels={"decode-attention": {"shapes": [*shapes, more]}})

    # The other shape's choice stays.
    assert with_kernel.jobs() == {"tune_kernel": 1, **CHOSEN, **LOADED, **AFTER}


def test_what_is_tried(with_kernel):
    kernel = read_kernel(with_kernel.path / KERNEL)
    parameters = {name: list(tried) for name, tried in kernel.parameters.items()}
    change_manifest(with_kernel, parameters={**parameters, "block": parameters["block"][:-1]})

    assert with_kernel.jobs() == {"tune_kernel": 1, **CHOSEN, **LOADED, **AFTER}


def test_a_size_added(with_kernel):
    sizes = read_kernel(with_kernel.path / KERNEL).sizes
    with_kernel.change(kernels={"decode-attention": {"sizes": [*sizes, 64]}})

    assert with_kernel.jobs() == {"tune_kernel": 1, **CHOSEN, **LOADED, **AFTER}


def test_what_the_kernel_touches(with_kernel):
    change_manifest(with_kernel, touches=["attention", "memory"])

    # Only what the report says of it changes.
    assert with_kernel.jobs() == AFTER


def test_a_record_of_a_choice_that_is_lost(with_kernel):
    (record,) = (with_kernel.path / "results/tuning").rglob("*.json")
    record.unlink()

    assert with_kernel.jobs() == {"tune_kernel": 1, **CHOSEN, **LOADED, **AFTER_ALONE}


def test_a_kernel_that_is_not_there(with_kernel):
    variants = with_kernel.campaign()["variants"]
    variants["kernel"]["tuned"] = ["gemm"]
    with_kernel.change(variants=variants)

    said = with_kernel.snakemake("--dry-run")

    assert said.returncode == 0
    assert (
        "a run would stop: config/campaign.yaml: there is no kernel gemm. Add kernels"
        in said.stdout
    )


# The plan stays what it was.
AFTER_ALONE = {rule: count for rule, count in AFTER.items() if rule != "plan"}
