"""Tuned files: exact names and bytes, and one message for each way in which one can be wrong."""

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leverbench.engines.sglang_configs import (
    GemmName,
    MoeName,
    device_part,
    file_name,
    moe_file_name,
    moe_folder,
    parse_moe_name,
    parse_name,
    read_configs,
    read_folder,
    read_moe_configs,
    release,
    write_configs,
    write_moe_configs,
)
from leverbench.errors import LeverbenchError

H200 = "NVIDIA H200"
NAME = "N=1536,K=4096,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
CONFIG = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 32,
    "num_warps": 4,
    "num_stages": 3,
}
HOPPER = {**CONFIG, "SWAP_AB": True, "SPLIT_K": 8}
SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
MOE = MoeName(256, 512, "NVIDIA_H200", "fp8_w8a8", (128, 128))


def read(path: Path, **changes: Any) -> dict[int, dict[str, int]]:
    asked = {"device": H200, "block": (128, 128), "version": "0.5.23", "capability": (9, 0)}
    return read_configs(path, **(asked | changes))


def written(folder: Path, content: object, name: str = NAME) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def message(error: pytest.ExceptionInfo[LeverbenchError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert error.value.where
    assert error.value.cure
    return text


def test_names_are_the_engines_own():
    assert file_name(1536, 4096, H200, (128, 128)) == NAME
    assert parse_name(NAME) == GemmName(1536, 4096, "NVIDIA_H200", "fp8_w8a8", (128, 128))
    assert parse_name(NAME.replace(", ", ",")) == parse_name(NAME)
    assert parse_name("provenance.json") is None
    assert parse_name(f"{NAME}.tmp") is None
    assert device_part(SERVER) == "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition"


@pytest.mark.parametrize("device", ["", "../etc", "a,b", "a\nb"])
def test_what_cannot_stand_in_a_name_is_refused(device):
    with pytest.raises(LeverbenchError, match="cannot be a device"):
        file_name(1, 1, device, (128, 128))


@pytest.mark.parametrize("size", [0, -1, True, "1536", 1.5, 10**12, None])
def test_what_cannot_be_a_shape_is_refused(size):
    with pytest.raises(LeverbenchError, match="is no size of a weight"):
        file_name(1536, size, H200, (128, 128))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.16", (0, 5, 16)),
        ("0.5.12.post1", (0, 5, 12)),
        ("0.5.17rc2", (0, 5, 17)),
        ("v0.6.0", (0, 6, 0)),
        ("main", None),
        (None, None),
    ],
)
def test_versions_are_compared_by_their_numbers(version, expected):
    assert release(version) == expected


def test_what_is_written_is_read_again(tmp_path):
    configs = {(1536, 4096): {16: CONFIG, 1: {**CONFIG, "num_warps": 8}}, (8192, 1024): {8: CONFIG}}

    paths = write_configs(tmp_path, H200, (128, 128), configs)

    assert [path.name for path in paths] == [NAME, file_name(8192, 1024, H200, (128, 128))]
    assert sorted(tmp_path.iterdir()) == paths
    about = {"device": H200, "block": (128, 128), "version": "0.5.23"}
    assert read_folder(tmp_path, **about) == configs


def test_the_same_configs_give_the_same_bytes_in_the_engines_order(tmp_path):
    shuffled = dict(reversed(CONFIG.items()))

    (first,) = write_configs(
        tmp_path / "a", H200, (128, 128), {(1536, 4096): {8: CONFIG, 2: CONFIG}}
    )
    (again,) = write_configs(
        tmp_path / "b", H200, (128, 128), {(1536, 4096): {2: shuffled, 8: shuffled}}
    )

    assert first.read_bytes() == again.read_bytes()
    # Of two that are equally near the engine takes the first: the keys must ascend.
    assert list(json.loads(first.read_text())) == ["2", "8"]
    assert list(json.loads(first.read_text())["2"]) == list(CONFIG)


def test_nothing_is_written_where_one_config_is_wrong(tmp_path):
    configs = {(1536, 4096): {1: CONFIG}, (8192, 1024): {1: {**CONFIG, "time_us": 9}}}

    with pytest.raises(LeverbenchError, match='unknown key "time_us"'):
        write_configs(tmp_path / "new", H200, (128, 128), configs)

    assert not (tmp_path / "new").exists()


WRONG_CONTENT = [
    ("", "is empty"),
    (" \n", "is empty"),
    ('{"1": {"BLOCK_SIZE_M": 16, "BLOCK', "truncated"),
    (json.dumps({"1": CONFIG})[:-1], "truncated"),
    (json.dumps({"1": CONFIG}) + "}", "not JSON"),
    ("BLOCK_SIZE_M: 16", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("9" * 10_000, "not JSON"),
    ("\ufeff{}", "not JSON"),
    ([CONFIG], "no object of configs by M"),
    ("null", "no object of configs by M"),
    ({}, "has no configs"),
    ({"0": CONFIG}, 'the key "0" is no M'),
    ({"-1": CONFIG}, 'the key "-1" is no M'),
    ({"1.0": CONFIG}, 'the key "1.0" is no M'),
    ({" 1": CONFIG}, 'the key " 1" is no M'),
    ({"01": CONFIG}, 'the key "01" is no M'),
    ({"1_6": CONFIG}, 'the key "1_6" is no M'),
    ({"batch": CONFIG}, 'the key "batch" is no M'),
    (f'{{"1": {json.dumps(CONFIG)}, "1": {json.dumps(CONFIG)}}}', "M=1 is given twice"),
    ({"1": None}, "M=1: a config is an object of keys and numbers, not null"),
    ({"1": [16, 64]}, "M=1: a config is an object"),
    ({"1": {}}, "lacks BLOCK_SIZE_M, BLOCK_SIZE_N"),
    ({"1": {key: CONFIG[key] for key in list(CONFIG)[:-1]}}, "lacks num_stages"),
    ({"1": {**CONFIG, "waves_per_eu": 0}}, "option of AMD GPUs"),
    ({"1": {**CONFIG, "time_us": 10.5}}, 'unknown key "time_us"'),
    ('{"1": {"num_warps": 4, "num_warps": 4}}', '"num_warps" is given twice'),
    ({"1": {**CONFIG, "num_warps": True}}, "num_warps is a whole number, not true"),
    ({"1": {**CONFIG, "num_warps": 4.0}}, "num_warps is a whole number, not 4.0"),
    ({"1": {**CONFIG, "num_warps": "4"}}, 'num_warps is a whole number, not "4"'),
    ({"1": {**CONFIG, "num_warps": float("nan")}}, "num_warps is a whole number, not NaN"),
    ({"1": {**CONFIG, "num_warps": {"a": 1}}}, "num_warps is a whole number, not an object"),
    ({"1": {**CONFIG, "num_warps": 6}}, "num_warps is a power of two from 1 to 32, not 6"),
    ({"1": {**CONFIG, "num_warps": 64}}, "num_warps is a power of two from 1 to 32, not 64"),
    ({"1": {**CONFIG, "BLOCK_SIZE_M": 8}}, "BLOCK_SIZE_M is a power of two from 16"),
    ({"1": {**CONFIG, "BLOCK_SIZE_N": 96}}, "BLOCK_SIZE_N is a power of two"),
    ({"1": {**CONFIG, "BLOCK_SIZE_K": 256}}, "256 does not divide the weights' block of 128"),
    ({"1": {**CONFIG, "GROUP_SIZE_M": 0}}, "GROUP_SIZE_M is a whole number from 1"),
    ({"1": {**CONFIG, "num_stages": -3}}, "num_stages is a whole number from 1"),
    ({"1": {**CONFIG, "SPLIT_K": 1, "SWAP_AB": False}}, "mean the common kernel"),
    ({"1": {**CONFIG, "SPLIT_K": 3}}, "SPLIT_K is a power of two"),
    ({"1": {**CONFIG, "SWAP_AB": 1}}, "SWAP_AB is true or false, not 1"),
]


@pytest.mark.parametrize(("content", "said"), WRONG_CONTENT)
def test_wrong_content_has_one_message(tmp_path, content, said):
    path = written(tmp_path, content)

    with pytest.raises(LeverbenchError) as error:
        read(path)

    assert said in message(error)
    assert message(error).startswith(str(path))


def test_a_file_that_is_not_text_has_one_message(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b"\xff\xfe\x00{")

    with pytest.raises(LeverbenchError) as error:
        read(path)

    assert "not JSON" in message(error)


@pytest.mark.parametrize("made", [lambda path: None, Path.mkdir], ids=["missing", "folder"])
def test_a_file_that_cannot_be_read_has_one_message(tmp_path, made):
    path = tmp_path / NAME
    made(path)

    with pytest.raises(LeverbenchError) as error:
        read(path)

    assert "cannot be read" in message(error)


WRONG_NAMES = [
    (NAME.replace("NVIDIA_H200", "NVIDIA_B200"), "for NVIDIA_B200, and the server's GPU is"),
    (
        NAME.replace("NVIDIA_H200", "NVIDIA_H200_NVL"),
        "for NVIDIA_H200_NVL, another card of the same family (NVIDIA H200), and the server's",
    ),
    (NAME.replace("128, 128", "32, 32"), "for blocks of [32, 32], and the model's are [128, 128]"),
    (NAME.replace("fp8_w8a8", "int8_w8a8"), "another kernel (int8_w8a8)"),
    (
        "N=1536,K=4096,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json",
        "another kernel (fp8_w8a8_channelwise without blocks)",
    ),
    (NAME.replace(", ", ","), f"Rename it to {NAME}"),
    (moe_file_name(MOE), "a fused MoE kernel's file name"),
    (f"copy of {NAME}", "no file name"),
    ("N=0,K=4096,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json", "no file"),
]


@pytest.mark.parametrize(("name", "said"), WRONG_NAMES)
def test_a_file_for_something_else_has_one_message(tmp_path, name, said):
    path = written(tmp_path, {"1": CONFIG}, name)

    with pytest.raises(LeverbenchError) as error:
        read(path)

    assert said in message(error)


def test_the_editions_of_one_card_are_told_apart(tmp_path):
    (path,) = write_configs(tmp_path, SERVER, (128, 128), {(1536, 4096): {1: CONFIG}})

    with pytest.raises(LeverbenchError) as error:
        read(path, device=WORKSTATION)

    assert "another card of the same family (NVIDIA RTX PRO 6000)" in message(error)
    assert "Workstation_Edition" in message(error)


def test_the_keys_of_hopper_are_read_on_hopper_alone(tmp_path):
    path = written(tmp_path, {"1": HOPPER, "2": CONFIG})

    assert read(path) == {1: HOPPER, 2: CONFIG}
    for changes in (
        {"capability": (12, 0)},
        {"capability": None},
        {"version": "0.5.20"},
        {"version": None},
    ):
        with pytest.raises(LeverbenchError, match=r"sm_90 and SGLang 0\.5\.21 or newer"):
            read(path, **changes)


def test_two_files_for_one_shape_are_refused(tmp_path):
    written(tmp_path, {"1": CONFIG})
    written(tmp_path, {"1": CONFIG}, NAME.replace(", ", ","))

    with pytest.raises(LeverbenchError) as error:
        read_folder(tmp_path, device=H200, block=(128, 128), version="0.5.23")

    assert "two files for one shape" in message(error)


def test_a_folder_may_hold_our_account_and_other_kinds_of_files(tmp_path):
    written(tmp_path, {"1": CONFIG})
    for name in ("provenance.json", "README.md", ".hidden.json"):
        (tmp_path / name).write_text("{}")

    about = {"device": H200, "block": (128, 128), "version": "0.5.23"}
    assert read_folder(tmp_path, **about) == {(1536, 4096): {1: CONFIG}}


@pytest.mark.parametrize("make", [lambda folder: None, Path.mkdir], ids=["missing", "empty"])
def test_a_folder_without_files_has_one_message(tmp_path, make):
    make(tmp_path / "configs")

    with pytest.raises(LeverbenchError) as error:
        read_folder(tmp_path / "configs", device=H200, block=(128, 128), version="0.5.23")

    assert message(error).startswith(str(tmp_path / "configs"))


def garbage(rng: random.Random) -> Any:
    """Returns something that JSON can hold, often nearly a config."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice([None, True, False, "", "16", 1.5, float("inf"), -1, 0, 10**30])
    if kind == 1:
        return [garbage(rng) for _ in range(rng.randrange(3))]
    keys = [*CONFIG, "SWAP_AB", "SPLIT_K", "waves_per_eu", "\ud800", "", "1", "016", "-2", "x" * 99]
    if kind == 2:
        return {rng.choice(keys): garbage(rng) for _ in range(rng.randrange(4))}
    config: dict[str, Any] = dict(CONFIG)
    for _ in range(rng.randrange(3)):
        config[rng.choice(keys)] = rng.choice([garbage(rng), 2 ** rng.randrange(12)])
    return {rng.choice(["1", "2", "16", "0", "a"]): rng.choice([CONFIG, config]) for _ in range(3)}


def damaged(rng: random.Random, text: bytes) -> bytes:
    """Returns a file's bytes with some of them cut off, doubled or changed."""
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = rng.randrange(len(text) + 1)
        upto = at + rng.randrange(12)
        text = (
            text[:at]
            + rng.choice([b"", bytes([rng.randrange(256)]), text[at:upto] * 2])
            + (text[upto:] if rng.random() < 0.8 else b"")
        )
    return text


def test_no_content_ends_in_anything_but_one_message(tmp_path):
    rng = random.Random(6)
    path = tmp_path / NAME
    messages, read_ones = [], []
    for _ in range(1500):
        path.write_bytes(damaged(rng, json.dumps(garbage(rng)).encode()))
        try:
            read_ones.append(read(path))
        except LeverbenchError as error:
            messages.append(str(error))
    assert min(len(messages), len(read_ones)) > 50
    assert not [text for text in messages if "\n" in text]
    assert len({text.partition(": ")[2] for text in messages}) > 20
    assert all(CONFIG.keys() <= config.keys() for by_m in read_ones for config in by_m.values())


def test_no_name_ends_in_anything_but_one_message(tmp_path):
    rng = random.Random(7)
    refused = 0
    for _ in range(500):
        name = damaged(rng, rng.choice([NAME, moe_file_name(MOE)]).encode()).decode("latin-1")
        name = name.replace("/", "").replace("\0", "")[:200] or "x"
        parse_moe_name(name)
        try:
            read(tmp_path / name)
        except LeverbenchError:
            refused += 1
    assert refused == 500


MOE_NAMES = [
    (MOE, "E=256,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"),
    (
        MoeName(256, 512, "NVIDIA_H200", "fp8_w8a8", (128, 128), down=True),
        "E=256,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]_down.json",
    ),
    (MoeName(8, 3584, "NVIDIA_L40S"), "E=8,N=3584,device_name=NVIDIA_L40S.json"),
    (MoeName(8, 3584, "NVIDIA_L40S", down=True), "E=8,N=3584,device_name=NVIDIA_L40S_down.json"),
    (
        MoeName(8, 64, "NVIDIA_H200", "fp8_w8a8", per_channel_quant=True),
        "E=8,N=64,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json",
    ),
    (
        MoeName(8, 64, "NVIDIA_H200", "float32", down=True),
        "E=8,N=64,device_name=NVIDIA_H200,dtype=float32_down.json",
    ),
]


@pytest.mark.parametrize(("name", "file"), MOE_NAMES)
def test_names_of_fused_moe_files_are_the_engines_own(name, file):
    assert moe_file_name(name) == file
    assert parse_moe_name(file) == name


def test_moe_files_lie_in_the_folder_of_their_triton(tmp_path):
    down = MoeName(256, 512, "NVIDIA_H200", "fp8_w8a8", (128, 128), down=True)
    configs = {MOE: {1: CONFIG}, down: {1: {**CONFIG, "USE_TMA": True}}}

    paths = write_moe_configs(tmp_path, "3.6.0", configs)

    assert {path.parent for path in paths} == {tmp_path / "configs/triton_3_6_0"}
    assert {path.name for path in paths} == {moe_file_name(MOE), moe_file_name(down)}
    assert read_moe_configs(tmp_path, "3.6.0", device=H200, version=None) == configs


def test_tma_in_a_file_of_the_first_gemm_needs_a_version_that_knows_it(tmp_path):
    configs = {MOE: {1: {**CONFIG, "USE_TMA": True}}}
    write_moe_configs(tmp_path, "3.6.0", configs, version="0.5.18")

    assert read_moe_configs(tmp_path, "3.6.0", device=H200, version="0.5.18") == configs
    with pytest.raises(LeverbenchError, match=r"USE_TMA needs SGLang 0\.5\.18 or newer"):
        read_moe_configs(tmp_path, "3.6.0", device=H200, version="0.5.17")
    with pytest.raises(LeverbenchError, match="unknown key"):
        write_moe_configs(tmp_path, "3.6.0", configs)


@pytest.mark.parametrize(
    ("made", "root", "said"),
    [
        ((), ".", "it has no folder configs"),
        (("configs/triton_3_6_0",), "configs", "name {tmp_path} in it"),
        (("configs",), ".", "there is no folder triton_3_6_0. The engine looks into"),
        (("configs/triton_3_5_1",), ".", "only triton_3_5_1, tuned for another Triton"),
        (("configs/triton_3_6_0+git", "configs/triton_3_6_0"), ".", "a server would fail here"),
        (("configs/triton_3_6_0",), ".", "there is no file of tuned configs"),
    ],
)
def test_a_wrong_layout_is_explained(tmp_path, made, root, said):
    for folder in made:
        (tmp_path / folder).mkdir(parents=True)

    with pytest.raises(LeverbenchError) as error:
        read_moe_configs(tmp_path / root, "3.6.0", device=H200, version="0.5.23")

    assert said.format(tmp_path=tmp_path) in message(error)


def test_moe_files_beside_the_folders_are_not_read(tmp_path):
    (tmp_path / "configs").mkdir()
    written(tmp_path / "configs", {"1": CONFIG}, moe_file_name(MOE))

    with pytest.raises(LeverbenchError, match="files that lie beside the folders are not read"):
        moe_folder(tmp_path, "3.6.0")


def test_a_triton_that_no_folder_can_be_named_after_is_refused(tmp_path):
    with pytest.raises(LeverbenchError, match="cannot name a folder"):
        write_moe_configs(tmp_path, "3.6.0+git1234", {MOE: {1: CONFIG}})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (moe_file_name(MOE).replace("H200", "H100"), {"1": CONFIG}, "for NVIDIA_H100, and"),
        (NAME, {"1": CONFIG}, "a GEMM's file name"),
        (moe_file_name(MOE).replace(", ", ","), {"1": CONFIG}, "Rename it to"),
        (moe_file_name(MOE), {"1": {**CONFIG, "SPLIT_K": 8}}, 'unknown key "SPLIT_K"'),
        (moe_file_name(MOE), {"1": {**CONFIG, "BLOCK_SIZE_K": 256}}, "256 does not divide"),
        (moe_file_name(MOE), '{"1": ', "truncated"),
    ],
)
def test_a_wrong_moe_file_has_one_message(tmp_path, name, content, said):
    folder = tmp_path / "configs/triton_3_6_0"
    folder.mkdir(parents=True)
    written(folder, content, name)

    with pytest.raises(LeverbenchError) as error:
        read_moe_configs(tmp_path, "3.6.0", device=H200, version="0.5.23")

    assert said in message(error)


def installed() -> Path:
    found = importlib.util.find_spec("sglang")
    assert found is not None
    return Path((found.submodule_search_locations or [""])[0])


@pytest.mark.engine
def test_the_files_that_the_engine_comes_with_are_read():
    folder = installed() / "kernels/ops/gemm/configs"
    count = 0
    for path in sorted(folder.glob("N=*,device_name=NVIDIA_*,dtype=fp8_w8a8,block_shape=*.json")):
        name = parse_name(path.name)
        assert name is not None
        capability = (9, 0) if name.device == "NVIDIA_H200" else (8, 9)
        configs = read(path, device=name.device, block=name.block, capability=capability)
        assert list(configs) == [int(key) for key in json.loads(path.read_text())]
        count += 1
    assert count > 50


ASK = """
import json, sys
import sglang.kernels.ops.gemm.fp8_kernel as gemm
import sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config as moe
from types import SimpleNamespace
import triton

question = json.load(sys.stdin)
gemm.get_device_name = moe.get_device_name = lambda: question["device"]
# The engine looks beside its own module.
gemm.__file__ = question["beside"]
none = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
moe.get_exec = lambda: none
said = {
    "gemm": [gemm.get_w8a8_block_fp8_configs(*shape) for shape in question["gemm"]],
    "moe": [moe.get_moe_configs(*shape) for shape in question["moe"]],
    "triton": triton.__version__,
}
print(json.dumps(said))
"""


@pytest.mark.engine
def test_the_engine_itself_finds_what_is_written(tmp_path, monkeypatch):
    other = {**CONFIG, "num_warps": 8}
    write_configs(tmp_path / "configs", SERVER, (128, 128), {(1536, 4096): {16: CONFIG, 2: other}})
    triton = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m; print(m.version('triton'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    name = MoeName(256, 512, device_part(SERVER), "fp8_w8a8", (128, 128))
    write_moe_configs(tmp_path / "moe", triton, {name: {4: other}})
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path / "moe"))
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    question = {
        "device": SERVER,
        "beside": str(tmp_path / "module.py"),
        "gemm": [(1536, 4096, 128, 128), (1536, 4097, 128, 128), (1536, 4096, 32, 32)],
        "moe": [(256, 512, "fp8_w8a8", 128, 128), (256, 513, "fp8_w8a8", 128, 128)],
    }

    done = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(question), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["triton"] == triton
    assert said["gemm"] == [{"2": other, "16": CONFIG}, None, None]
    assert said["moe"] == [{"4": other}, None]
