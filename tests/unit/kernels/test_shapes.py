"""Shapes of the engine's own kernel, as a campaign's model and servers have them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from unit.campaign.campaign_files import load

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.campaign.plan import describe
from leverbench.engines import get_engine
from leverbench.engines.sglang_configs import file_name
from leverbench.errors import LeverbenchError
from leverbench.kernels.shapes import (
    differences,
    foreign_files,
    lookups,
    record_lookups,
    unknown_shapes,
    unread,
    with_shapes,
)
from leverbench.project import read_project
from leverbench.tuning.shapes import LookedUp

ROOT = Path(__file__).resolve().parents[3]
HEAD = """\
campaign: small
model: {path: models/m, config: m.json}
engine: {name: sglang, version: "0.5.23", args: {fp8-gemm-backend: triton}}
topology: {gpus: 1, device: NVIDIA RTX PRO 6000 Blackwell Workstation Edition}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
ladder: {1: 8, 3: 8, 16: 48}
"""
VARIANTS = """\
a: {}
b: {from: a, tuned: [w8a8-block-fp8]}
"""
# Queries, keys and values: (8 + 2 x 2) x 128 = 1536; output 1024; gate and up 2 x 2048.
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
SHAPES = (
    {"N": 1536, "K": 512},
    {"N": 512, "K": 1024},
    {"N": 4096, "K": 512},
    {"N": 512, "K": 2048},
)
KERNEL = "w8a8-block-fp8"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the engine's own kernel, and a model's configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels").symlink_to(ROOT / "kernels")
    (tmp_path / "m.json").write_text(json.dumps(CONFIG))
    return tmp_path


def campaign(
    project: Path, settings: str = "", variants: str = VARIANTS, **changes: str
) -> Campaign:
    head = HEAD
    for old, new in changes.values():
        head = head.replace(old, new)
    kernels = f"kernels: {{{KERNEL}: {{{settings}}}}}\n" if settings else ""
    return with_shapes(load(project, variants, head + kernels))


def test_they_come_from_the_model_and_the_sizes_from_the_ladder(project):
    kernel = campaign(project).kernels[KERNEL]

    assert kernel.shapes == SHAPES
    # What the ladder runs, and then the list of the engine's own files.
    assert kernel.sizes[:5] == (1, 3, 16, 2, 4)
    assert len(kernel.sizes) == 19


def test_those_of_all_variants_that_are_given_the_kernel(project):
    variants = VARIANTS + (
        "c: {from: b, lever: tp, args: {tp-size: 2}}\n"
        "d: {from: b, lever: s, args: {speculative-algorithm: EAGLE,"
        " speculative-num-draft-tokens: 4}}\n"
    )
    kernel = campaign(project, variants=variants).kernels[KERNEL]

    halves = ({"N": 768, "K": 512}, {"N": 512, "K": 512}, {"N": 2048, "K": 512})
    assert kernel.shapes[:7] == (*SHAPES, *halves)
    assert {4, 12, 64} <= set(kernel.sizes)


def test_a_captured_graph_pads_the_size(project):
    engine = (
        "fp8-gemm-backend: triton",
        "fp8-gemm-backend: triton, cuda-graph-bs-decode: [1, 4, 16]",
    )
    kernel = campaign(project, engine=engine).kernels[KERNEL]

    assert kernel.sizes[:3] == (1, 4, 16)


def test_the_model_s_own_configuration_goes_before_a_copy(project):
    (project / "models/m").mkdir(parents=True)
    (project / "models/m/config.json").write_text(json.dumps({**CONFIG, "hidden_size": 1024}))

    assert campaign(project).kernels[KERNEL].shapes[0] == {"N": 1536, "K": 1024}


def test_listed_ones_and_listed_sizes_are_taken_as_they_are(project):
    kernel = campaign(project, "shapes: [{N: 256, K: 128}], sizes: [8, 2]").kernels[KERNEL]

    assert (kernel.shapes, kernel.sizes) == (({"N": 256, "K": 128},), (2, 8))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is none"),
        ("{", "not a model's configuration"),
        ("[1]", "not a model's configuration"),
        (json.dumps({**CONFIG, "model_type": "mystery"}), "mystery"),
        (
            json.dumps(
                {
                    **CONFIG,
                    "quantization_config": {"weight_block_size": [32, 32], "quant_method": "fp8"},
                }
            ),
            "blocks of 32 x 32",
        ),
        (json.dumps({**CONFIG, "quantization_config": [1]}), "make no shapes"),
        (json.dumps({**CONFIG, "model_type": []}), "make no shapes"),
        (json.dumps({**CONFIG, "num_key_value_heads": 0}), "make no shapes"),
        (json.dumps({**CONFIG, "head_dim": "x"}), "make no shapes"),
    ],
)
def test_a_configuration_that_does_not_tell_them_leaves_them_unknown(project, content, said):
    if content is None:
        (project / "m.json").unlink()
    else:
        (project / "m.json").write_text(content)
    found = campaign(project)

    assert list(found.unshaped) == [KERNEL]
    (problem,) = unknown_shapes(found)
    assert said in str(problem)


def looked_up(n: int, k: int) -> LookedUp:
    return LookedUp(n, k, 128, 128, "GPU", "fp8_w8a8", False, "path", None)


def test_what_is_discovered_is_known_when_its_record_is_there(project):
    before = campaign(project, "shapes: discover")
    ((path, launch),) = lookups(before).items()
    assert (launch.engine.tuned, list(unknown_shapes(before))) == ((), [])

    record_lookups(launch, [looked_up(1536, 512), looked_up(640, 512)], Path(path))
    after = campaign(project, "shapes: discover")

    assert lookups(after) == {}
    assert after.kernels[KERNEL].shapes == ({"N": 1536, "K": 512}, {"N": 640, "K": 512})
    told = differences(after)
    assert f"{KERNEL}: N=640, K=512 is only looked up." in told[-1]
    assert sum("is only derived" in line for line in told) == 3


def test_a_plan_tells_why_shapes_are_not_known(project):
    (project / "m.json").unlink()
    (project / "c.yaml").write_text(HEAD + "variants:\n  a: {}\n  b: {tuned: [w8a8-block-fp8]}\n")

    text = read_project(project, {"campaign": "c.yaml"}).describe()

    assert f"{KERNEL}: its shapes are not known yet" in text
    assert "models/m/config.json or m.json: the shapes of w8a8-block-fp8 come from" in text
    kernels = f"kernels: {{{KERNEL}: {{shapes: discover}}}}\n"
    (project / "c.yaml").write_text((project / "c.yaml").read_text() + kernels)
    text = read_project(project, {"campaign": "c.yaml"}).describe()
    assert text.count("shapes") == 1
    assert f"{KERNEL}: its shapes are not known yet: a launch will tell" in text


def test_no_point_is_measured_while_its_kernel_lacks_shapes(project):
    text = HEAD + f"kernels: {{{KERNEL}: {{shapes: discover}}}}\n"
    (project / "c.yaml").write_text(text + "variants:\n  a: {}\n  b: {tuned: [w8a8-block-fp8]}\n")
    found = read_project(project, {"campaign": "c.yaml"})

    found._require_shapes({"serve": ["results/small/a/s1/server.json"]})
    with pytest.raises(
        LeverbenchError, match="b is given w8a8-block-fp8, whose shapes are not known yet"
    ):
        found._require_shapes({"bench": ["results/small/b/s1/random/c1.json"]})


def test_listed_dimensions_are_numbers(project):
    with pytest.raises(LeverbenchError, match="N cannot be 'a'"):
        campaign(project, "shapes: [{N: a, K: 512}]")


def test_servers_that_differ_in_nothing_else_are_launched_once(project):
    variants = (
        VARIANTS + "c: {from: b, lever: seed, args: {random-seed: 2}}\nd: {from: b, control: a-a}\n"
    )

    assert len(lookups(campaign(project, "shapes: discover", variants))) == 2


def test_another_model_is_another_launch(project):
    before = set(lookups(campaign(project, "shapes: discover")))
    (project / "m.json").write_text(json.dumps({**CONFIG, "hidden_size": 1024}))

    assert before.isdisjoint(lookups(campaign(project, "shapes: discover")))


def test_a_server_that_looks_nothing_up_is_an_error(project):
    ((path, launch),) = lookups(campaign(project, "shapes: discover")).items()

    with pytest.raises(LeverbenchError, match="looked no tuned file up"):
        record_lookups(launch, [], Path(path))


def test_files_that_the_chosen_backend_never_reads_are_told(project):
    assert list(unread(campaign(project))) == []
    without = ("args: {fp8-gemm-backend: triton}", "args: {}")
    ((variant, problem),) = unread(campaign(project, engine=without))
    assert (variant, problem.certain) == ("b", True)
    assert "would not be read" in problem.message
    hopper = ("RTX PRO 6000 Blackwell Workstation Edition", "H200")
    ((_, problem),) = unread(campaign(project, engine=without, device=hopper))
    assert (problem.certain, "DeepGEMM" in problem.message) == (False, True)


def test_moe_files_that_the_chosen_runner_never_reads_are_told(project):
    variants = (
        "a: {args: {moe-runner-backend: deep_gemm}}\n"
        "b: {from: a, lever: moe, env: {SGLANG_MOE_CONFIG_DIR: moe}}\n"
        "c: {from: b, lever: triton, args: {moe-runner-backend: triton}}\n"
    )
    ((variant, problem),) = unread(campaign(project, variants=variants))
    assert (variant, problem.certain) == ("b", True)
    assert problem.message.endswith("would not be read: moe-runner-backend is deep_gemm")

    # DeepSeek-V4's experts are FP4, as far as its configuration tells.
    (project / "m.json").write_text(json.dumps({"model_type": "deepseek_v4"}))
    found = dict(unread(campaign(project, variants=variants)))
    assert {name: problem.certain for name, problem in found.items()} == {"b": False, "c": False}


def test_the_reference_campaign_tunes_six_shapes(monkeypatch):
    monkeypatch.chdir(ROOT)
    file = Path("config/campaigns/deepseek-v4-flash.yaml")
    found = with_shapes(
        load_campaign(file, {}, lambda engine, key: get_engine(engine).lever_family(key))
    )
    kernel = found.kernels[KERNEL]

    five = [(1536, 4096), (8192, 1024), (4096, 2048), (1024, 4096), (4096, 512)]
    # The draft layer's own comes with speculation.
    assert [(shape["N"], shape["K"]) for shape in kernel.shapes] == [*five, (4096, 4096)]
    assert kernel.sizes[:3] == (1, 8, 16)
    # Twice as many rows in the variant that verifies two tokens a request.
    assert {2, 16, 32} <= set(kernel.sizes)
    assert list(unread(found)) == []


def test_given_files_say_what_they_are_for(project):
    files = get_engine("sglang").tuned_files
    device = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    config = dict(
        zip(
            ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"),
            (16, 64, 128, 1),
            strict=True,
        )
    )
    config |= {"num_warps": 4, "num_stages": 3}
    calls = [{"dimensions": {"N": 256, "K": 512, "M": m}, "config": config} for m in (1, 24)]
    files.write(project / "tuned", device, calls)
    own = [{**calls[0], "dimensions": {"N": 1536, "K": 512, "M": 1}}]
    files.write(project / "own", device, own)
    assert list(foreign_files(campaign(project, "files: own"))) == []

    kernel = campaign(project, "files: tuned").kernels[KERNEL]
    assert (kernel.shapes, kernel.sizes) == (({"N": 256, "K": 512},), (1, 24))
    (file,) = (project / "tuned").iterdir()
    (told,) = foreign_files(campaign(project, "files: tuned"))
    assert "b: likely none of the files in tuned is read: the model's shapes are N=1536 K=5" in told
    text = describe(campaign(project, "files: tuned"), [], project / "none.jsonl", 0)
    assert f"{KERNEL}: files of tuned, 1 shape at M 1, 24" in text
    before = kernel.space_digest
    file.write_text(file.read_text().replace('"num_stages": 3', '"num_stages": 4'))
    assert campaign(project, "files: tuned").kernels[KERNEL].space_digest != before

    file.write_text(file.read_text().replace("num_stages", "stages"))
    (problem,) = unknown_shapes(campaign(project, "files: tuned"))
    assert "stages" in str(problem)
    with pytest.raises(LeverbenchError, match="files say themselves what they are for"):
        campaign(project, "files: tuned, sizes: [1]")
    other = ("RTX PRO 6000 Blackwell Workstation Edition", "H200")
    (problem,) = unknown_shapes(campaign(project, "files: tuned", device=other))
    assert "H200" in str(problem)


@pytest.mark.parametrize("size", ["x", "-5", "1.5", "[1]", "0"])
def test_a_listed_shape_has_dimensions_like_the_manifest_s(project, size):
    with pytest.raises(LeverbenchError, match=r"c\.yaml.*kernels"):
        campaign(project, f"shapes: [{{N: {size}, K: 128}}]")


def test_a_number_of_draft_tokens_that_is_none_leaves_the_sizes_unknown(project):
    engine = ("triton}", "triton, speculative-algorithm: EAGLE, speculative-num-draft-tokens: x}")

    (problem,) = unknown_shapes(campaign(project, engine=engine))
    assert "is no number of tokens" in str(problem)


@pytest.mark.parametrize("content", ["{", "{}", '{"schema_version": 1, "looked_up": []}'])
def test_a_record_that_shows_no_shapes_is_no_reason_to_launch_or_to_tune(project, content):
    ((path, _),) = lookups(campaign(project, "shapes: discover")).items()
    Path(path).parent.mkdir(parents=True)
    Path(path).write_text(content)

    found = campaign(project, "shapes: discover")
    assert (lookups(found), list(found.unshaped)) == ({}, [KERNEL])
    (problem,) = unknown_shapes(found)
    assert path in str(problem)


def test_a_lookup_of_other_blocks_is_none_of_the_kernel_s():
    name = "N=512,K={k},device_name=GPU,dtype=fp8_w8a8,block_shape=[{b}, {b}].json"
    miss = "Using default W8A8 Block FP8 kernel config. Config file not found at /x/"
    log = "".join(f"{miss}{name.format(k=k, b=b)}\n" for k, b in ((256, 32), (512, 128)))

    seen = get_engine("sglang").tuned_files.looked_up(log)
    assert [(one.k, one.block_k) for one in seen] == [(512, 128)]


def test_variants_that_are_not_given_a_kernel_lack_nothing_of_it(project):
    found = campaign(project, "files: nowhere")
    assert len(list(unknown_shapes(found))) == 1

    alone = replace(found, variants={"a": found.variants["a"]})
    assert (list(unknown_shapes(alone)), list(unread(alone))) == ([], [])


def test_what_is_no_tuned_file_is_no_part_of_given_ones(project):
    folder = given(project, {"num_stages": 3})
    before = campaign(project, "files: tuned").kernels[KERNEL].space_digest
    (folder / "provenance.json").write_text("{}")
    (folder / ".hidden.json").mkdir()

    assert campaign(project, "files: tuned").kernels[KERNEL].space_digest == before


def test_given_files_for_another_kernel_of_the_engine_are_refused_at_once(project):
    device = ("RTX PRO 6000 Blackwell Workstation Edition", "H200")
    folder = given(project, {"num_stages": 3, "SWAP_AB": True}, "NVIDIA H200")

    (problem,) = unknown_shapes(campaign(project, "files: tuned", device=device))
    assert "SWAP_AB: it is for the engine's kernel for Hopper" in str(problem)
    assert str(folder) in str(project / str(problem))


def given(
    project: Path,
    values: Mapping[str, int],
    device: str = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
) -> Path:
    """Writes a folder with a file for (256, 512) at M = 1."""
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    folder = project / "tuned"
    folder.mkdir()
    path = folder / file_name(256, 512, device, (128, 128))
    path.write_text(json.dumps({"1": {**tile, "num_warps": 4, **values}}))
    return folder
