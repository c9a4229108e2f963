"""Tuned files of a fused MoE kernel, laid out by the command line as a server looks for them."""

import json
import subprocess
import sys
from pathlib import Path

NAME = "E=8,N=128,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}


def lay_out(tmp_path: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    code = "from leverbench.cli import main; main()"
    words = ["moe-configs", *files, "--engine", "sglang", "--triton", "3.6.0", "--into", tmp_path]
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True
    )


def test_they_lie_where_the_engine_looks(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"16": CONFIG, "1": CONFIG}))

    said = lay_out(tmp_path / "moe", tmp_path / NAME)

    made = tmp_path / "moe/configs/triton_3_6_0" / NAME
    assert said.stdout.strip() == str(made)
    assert list(json.loads(made.read_text())) == ["1", "16"]


def test_one_that_is_no_good_is_one_message(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"1": {**CONFIG, "time_us": 3}}))
    other = tmp_path / NAME.replace("NVIDIA_H200", "NVIDIA_H100")
    other.write_text(json.dumps({"1": CONFIG}))

    said = lay_out(tmp_path / "moe", tmp_path / NAME)
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert "time_us" in said.stderr
    (tmp_path / NAME).write_text(json.dumps({"1": CONFIG}))
    said = lay_out(tmp_path / "moe", tmp_path / NAME, other)
    assert "the files are for NVIDIA_H100 and NVIDIA_H200" in said.stderr
    assert not (tmp_path / "moe").exists()
    said = lay_out(tmp_path / "moe", tmp_path / "none.json")
    assert f"{tmp_path / 'none.json'}: there is no such file. Name files" in said.stderr


def test_a_place_that_is_no_folder_is_one_message(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"1": CONFIG}))

    said = lay_out(tmp_path / NAME, tmp_path / NAME)

    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert f"{tmp_path / NAME}: the files cannot be written" in said.stderr
