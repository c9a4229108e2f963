"""The loader of tuned FP8 configs, in the engine's own plugin framework; no server is needed."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from config_plugin import file_name, gemm_config, write_config_plugin

from leverbench.campaign.model import Engine
from leverbench.engines import get_engine
from leverbench.engines.sglang_config_lines import Answer, first_uses, looked_up, tuned_file_lines
from leverbench.engines.sglang_config_plugin import find_function, read_files
from leverbench.kernels.publish import read_published

DEVICE = "Made-up GPU"
MODULE = "leverbench_w8a8_block_fp8"
TUNED = {
    (2048, 4096): {1: gemm_config(16), 16: gemm_config(32)},
    (1024, 512): {1: gemm_config(16)},
}
# What a scheduler does; the device's name is made up, since there is no GPU here.
PROGRAM = """
import json, sys, warnings
import torch
from sglang.srt.plugins import load_plugins

def run_scheduler_process():
    load_plugins()

if "launcher" in sys.argv:
    load_plugins()
    print(json.dumps("sglang.kernels.ops.gemm.fp8_kernel" in sys.modules))
    sys.exit()
run_scheduler_process()
import sglang.kernels.ops.gemm.fp8_kernel as module
look_up = module.get_w8a8_block_fp8_configs
module.get_device_name = lambda: "Made-up GPU"

def launch(m):
    configs = look_up(2048, 4096, 128, 128)
    return configs[min(configs.keys(), key=lambda key: abs(key - m))]["BLOCK_SIZE_M"]

def traced(x):
    return x + (1 if look_up(2048, 4096, 128, 128) is None else 2)

compiled = torch.compile(traced, backend="eager", fullgraph=True)
said = {
    "launched": [launch(1), launch(2), launch(64), launch(64)],
    "same": look_up(2048, 4096, 128, 128) is look_up(N=2048, K=4096, block_n=128, block_k=128),
    "absent": look_up(8, 8, 128, 128),
    "other block": look_up(2048, 4096, 64, 128),
    "traced": compiled(torch.zeros(1)).item(),
}
module.get_device_name = lambda: "Other GPU"
said["other device"] = look_up(1024, 512, 128, 128)
print(json.dumps(said))
"""


def run_program(folder: Path, plugins: list[Path], *arguments: str) -> tuple[Any, str]:
    """Returns what the program says with plugins on its path, and its log."""
    env = get_engine("sglang").environment(Engine("sglang", None, None, (), {}, {}), plugins)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, **env, "LEVERBENCH_CALLS": str(folder / "calls")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@dataclass(frozen=True)
class Loaded:
    """A process with the plugin: what its lookups gave, its log and its counters."""

    said: dict[str, Any]
    log: str
    calls: dict[str, tuple[int, int]]
    digests: dict[tuple[int, int], str]
    digest: str


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("configs")
    digests = write_config_plugin(folder, TUNED, DEVICE)
    said, log = run_program(folder, [folder / "plugin"])
    return Loaded(
        said=said,
        log=log,
        calls={
            path.name: struct.unpack("<qq", path.read_bytes())
            for path in (folder / "calls").iterdir()
        },
        digests=digests,
        digest=read_published(folder).digest,
    )


@pytest.mark.engine
def test_a_shape_that_is_there_gets_its_configs_and_the_engine_picks_the_nearest(loaded):
    assert loaded.said["launched"] == [16, 16, 32, 32]
    assert loaded.said["same"]


@pytest.mark.engine
def test_a_shape_that_is_not_there_is_looked_up_by_the_engine(loaded):
    assert (loaded.said["absent"], loaded.said["other block"]) == (None, None)
    missed = [(line.n, line.k, line.block_n, line.block_k) for line in looked_up(loaded.log)]
    assert missed[:2] == [(8, 8, 128, 128), (2048, 4096, 64, 128)]


@pytest.mark.engine
def test_another_device_does_not_get_the_file(loaded):
    assert loaded.said["other device"] is None
    (refused,) = [line for line in tuned_file_lines(loaded.log) if line.answer == Answer.REFUSED]
    assert (refused.n, refused.k) == (1024, 512)
    assert refused.detail == "made for Made-up_GPU and this is Other_GPU"
    assert (looked_up(loaded.log)[-1].n, looked_up(loaded.log)[-1].device) == (1024, "Other_GPU")


@pytest.mark.engine
def test_a_traced_lookup_finds_none_as_without_the_plugin(loaded):
    assert loaded.said["traced"] == 1


@pytest.mark.engine
def test_each_shape_and_each_config_is_told_once(loaded):
    lines = tuned_file_lines(loaded.log)

    assert [(line.n, line.k, line.answer) for line in lines] == [
        (2048, 4096, Answer.SERVED),
        (8, 8, Answer.LEFT),
        (2048, 4096, Answer.LEFT),
        (1024, 512, Answer.REFUSED),
    ]
    assert lines[0].digest == loaded.digests[2048, 4096][:16]
    assert [(use.n, use.k, use.m) for use in first_uses(loaded.log)] == [
        (2048, 4096, 1),
        (2048, 4096, 16),
    ]


@pytest.mark.engine
def test_lookups_are_counted_in_a_file_of_the_process(loaded):
    ((name, counts),) = loaded.calls.items()
    kernel, pid, start, suffix = name.split(".")

    assert (kernel, suffix) == ("w8a8-block-fp8", "calls")
    assert int(start) > 0
    # A traced one is no call.
    assert counts == (6, 3)
    assert {str(line.pid) for line in tuned_file_lines(loaded.log)} == {pid}
    path = "sglang.kernels.ops.gemm.fp8_kernel.get_w8a8_block_fp8_configs"
    registered = (
        f"leverbench: kernel w8a8-block-fp8 {loaded.digest[:16]} for {path} in process {pid}"
    )
    assert loaded.log.splitlines().count(registered) == 1


@pytest.mark.engine
def test_a_process_that_runs_no_model_imports_nothing_for_it(tmp_path):
    write_config_plugin(tmp_path, TUNED, DEVICE)

    imported, log = run_program(tmp_path, [tmp_path / "plugin"], "launcher")

    assert imported is False
    assert "leverbench:" not in log
    assert not (tmp_path / "calls").exists()


@pytest.mark.engine
def test_what_keeps_files_from_being_served_is_found_in_the_engine_s_log(tmp_path):
    plugins = {
        name: tmp_path / name / "plugin"
        for name in ("changed", "cut", "missing", "gone", "foreign")
    }
    packages = {}
    for name, plugin in plugins.items():
        write_config_plugin(plugin.parent, TUNED, DEVICE, name)
        packages[name] = plugin / f"leverbench_{name}"
    at = f"configs/{file_name(2048, 4096, DEVICE)}"
    (packages["changed"] / at).write_text(json.dumps({"1": gemm_config(64)}))
    (packages["cut"] / "configs.json").write_text('{"digest": "dd')
    (packages["missing"] / at).unlink()
    loader = packages["gone"] / "__init__.py"
    loader.write_text(loader.read_text().replace("get_w8a8_block_fp8_configs", "get_of_before"))
    about = json.loads((packages["foreign"] / "configs.json").read_text())
    (packages["foreign"] / "configs.json").write_text(json.dumps({**about, "device": "Other_GPU"}))

    _, log = run_program(tmp_path, list(plugins.values()), "launcher")

    for name, problem in {
        "changed": f"ValueError: {packages['changed'] / at} is not the file that was published",
        "cut": "json.decoder.JSONDecodeError: Unterminated string",
        "missing": "FileNotFoundError: ",
        "gone": "LookupError: this version of the engine has no get_of_before in kernels.ops",
        "foreign": f"ValueError: {file_name(2048, 4096, DEVICE)} is no file of FP8 block GEMM",
    }.items():
        told = get_engine("sglang").plugin_problem(log, f"leverbench_{name}")
        assert told is not None
        assert told.startswith(f"Failed to execute general plugin: leverbench_{name}: {problem}"), (
            told
        )


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"srt/layers/quantization": True}, "srt.layers.quantization"),
        ({"kernels/ops/quantization": True}, "kernels.ops.quantization"),
        # In 0.5.23 both have a module of this name.
        (
            {"kernels/ops/gemm": True, "kernels/ops/quantization": False},
            "kernels.ops.gemm",
        ),
        # Left in its old place as a name for the new one, it is not defined there.
        (
            {"kernels/ops/quantization": True, "srt/layers/quantization": False},
            "kernels.ops.quantization",
        ),
    ],
)
def test_the_function_is_hooked_where_the_installed_version_defines_it(tmp_path, sources, expected):
    for folder, defines in sources.items():
        (tmp_path / folder).mkdir(parents=True)
        text = "import x\n\ndef get_w8a8_block_fp8_configs(\n" if defines else "import torch\n"
        (tmp_path / folder / "fp8_kernel.py").write_text(text)

    assert find_function([tmp_path]) == f"sglang.{expected}.fp8_kernel.get_w8a8_block_fp8_configs"


def test_a_version_without_the_function_is_refused(tmp_path):
    with pytest.raises(LookupError, match=r"no get_w8a8_block_fp8_configs in kernels\.ops\.gemm"):
        find_function([tmp_path])


def test_files_are_read_by_shape_with_whole_numbers_for_m(tmp_path):
    write_config_plugin(tmp_path, TUNED, DEVICE)
    package = tmp_path / "plugin" / MODULE
    about = json.loads((package / "configs.json").read_text())

    files = read_files(package / "configs", about["device"], about["files"])

    assert {shape: list(file.configs) for shape, file in files.items()} == {
        (2048, 4096, 128, 128): [1, 16],
        (1024, 512, 128, 128): [1],
    }


def test_a_file_without_configs_is_refused(tmp_path):
    path = tmp_path / file_name(8, 8, DEVICE)
    path.write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()

    with pytest.raises(ValueError, match="has no config"):
        read_files(tmp_path, "Made-up_GPU", {path.name: digest})
