"""Kernels in a campaign: found in their folders, with the campaign's own shapes and sizes."""

from pathlib import Path

import pytest
import yaml
from unit.campaign.campaign_files import HEAD, load, refusal

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import FUNCTIONS
from leverbench.kernels.prepared import prepared_kernels

MANIFEST = {
    "kernel": "scale",
    "language": "cpp",
    "sources": ["scale.cpp"],
    "parameters": {"block": [1, 2]},
    "default": {"block": 1},
    "shapes": [{"width": 8}],
    "sizes": {"rows": [4, 1]},
    "tolerance": {"absolute": 0, "relative": 0.001},
    "load": {"engine": "sglang", "hook": "a.b"},
}
VARIANTS = """\
a: {}
b: {from: a, tuned: [scale]}
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project's kernels, with one in it."""
    monkeypatch.chdir(tmp_path)
    write_kernel(tmp_path / "kernels/scale")
    return tmp_path / "kernels"


def write_kernel(folder: Path, **changes: object) -> None:
    folder.mkdir(parents=True)
    (folder / "kernel.yaml").write_text(yaml.safe_dump({**MANIFEST, **changes}))
    (folder / "kernel.py").write_text("".join(f"def {name}(): ...\n" for name in FUNCTIONS))
    (folder / "scale.cpp").touch()


def test_a_kernel_is_found_by_its_name_and_is_a_lever(kernels):
    campaign = load(kernels.parent, VARIANTS)

    kernel = campaign.kernels["scale"]
    assert (kernel.shapes, kernel.size, kernel.sizes) == (({"width": 8},), "rows", (1, 4))
    assert campaign.variants["b"].levers == ("scale",)
    assert campaign.variants["b"].engine.tuned == ("scale",)


def test_a_campaign_has_its_own_shapes_and_sizes_and_folders(kernels):
    write_kernel(kernels.parent / "elsewhere/scale")
    settings = "{path: elsewhere/scale, shapes: [{width: 16}], sizes: [2], skip_by: p/summary.json}"
    head = HEAD + f"kernels: {{scale: {settings}}}\n"
    campaign = load(kernels.parent, VARIANTS, head)

    kernel = campaign.kernels["scale"]
    assert kernel.folder == Path("elsewhere/scale")
    assert (kernel.shapes, kernel.sizes) == (({"width": 16},), (2,))
    assert campaign.skip == {"scale": "p/summary.json"}


def test_a_kernel_whose_folder_is_missing_can_be_planned(kernels):
    assert load(kernels.parent, "a: {}\nb: {from: a, tuned: [gemm]}\n").kernels == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{gemm: {sizes: [1]}}", "kernels.gemm: no variant is given it"),
        ("{scale: {sizes: [0]}}", "kernels.scale.sizes.0: 0 is less than the minimum of 1"),
        ("{scale: {shapes: [{depth: 1}]}}", "{'depth': 1} does not have the dimensions width"),
        ("{scale: {sizes: [1, 8, 8]}}", "kernels.scale.sizes: 8 stands there twice. Name it once."),
        ("{scale: {shapes: [{width: 0}]}}", "shapes.0.width: 0 is less than the minimum of 1"),
        ("{scale: {file: x}}", "unknown key 'file'"),
        ("{scale: {path: kernels/none}}", "kernels.scale.path: kernels/none is no folder"),
    ],
)
def test_a_mistake_about_a_kernel_is_one_message(kernels, settings, said):
    assert said in refusal(kernels.parent, VARIANTS, HEAD + f"kernels: {settings}\n")


def test_a_folder_with_another_kernel_is_refused(kernels):
    write_kernel(kernels / "gemm", kernel="gemm")
    head = HEAD + "kernels: {scale: {path: kernels/gemm}}\n"

    said = refusal(kernels.parent, VARIANTS, head)

    assert "kernels/gemm has the kernel gemm for sglang, not scale for sglang" in said


def test_sizes_of_a_kernel_whose_calls_are_all_alike_are_refused(kernels):
    write_kernel(kernels.parent / "fixed/scale", sizes={})
    head = HEAD + "kernels: {scale: {path: fixed/scale, sizes: [1]}}\n"

    assert "no dimension of it varies from call to call" in refusal(kernels.parent, VARIANTS, head)


def test_two_kernels_of_a_variant_cannot_stand_in_for_one_function(kernels):
    write_kernel(kernels / "other", kernel="other")
    variants = "a: {}\nb: {from: a, levers: [scale, other], tuned: [scale, other]}\n"

    said = refusal(kernels.parent, variants)

    assert "c.yaml:7: b: two of its kernels stand in for the same function" in said


def test_shapes_that_would_share_a_record_are_refused(kernels):
    shapes = "[{width: 11}, {width: '1_1'}]"
    campaign = load(kernels.parent, VARIANTS, HEAD + f"kernels: {{scale: {{shapes: {shapes}}}}}\n")

    with pytest.raises(LeverbenchError, match="two shapes have the same name"):
        prepared_kernels(campaign)
