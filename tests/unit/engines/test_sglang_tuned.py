"""What the engine brings along for a shape, asked in an interpreter that may be a strange one."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from leverbench.campaign.model import Engine
from leverbench.engines.sglang_configs import file_name
from leverbench.engines.sglang_tuned import BlockGemmFiles
from leverbench.errors import LeverbenchError

CONFIG = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}


def engine(folder: Path, text: str | None, *, before: str = "", after: str = "") -> Engine:
    """Returns an engine that has a file for (256, 512) on a GPU, behind a wrapper that speaks."""
    module = folder / "sglang/kernels/ops/gemm"
    (module / "configs").mkdir(parents=True)
    (folder / "sglang/__init__.py").touch()
    (module / "fp8_kernel.py").write_text("\ndef get_w8a8_block_fp8_configs(N, K): ...\n")
    if text is not None:
        (module / "configs" / file_name(256, 512, "GPU", (128, 128))).write_text(text)
    script = f'{before}\nPYTHONPATH={shlex.quote(str(folder))} "$@" || exit\n{after}'
    return Engine("sglang", None, sys.executable, ("sh", "-c", script, "sh"), {}, {})


def shipped(settings: Engine, n: int = 256) -> dict[int, dict[str, int]]:
    return BlockGemmFiles().shipped(settings, n, 512, "GPU")


def test_what_it_brings_along_is_told_in_its_order(tmp_path):
    text = json.dumps({"16": CONFIG, "1": CONFIG})
    settings = engine(tmp_path, text, before="echo a warning; echo another >&2")

    assert list(shipped(settings).items()) == [(16, CONFIG), (1, CONFIG)]
    assert shipped(settings, n=128) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "ends in the middle"),
        ("{}", "it has no configs"),
        (json.dumps({"many": CONFIG}), "is no M"),
        (json.dumps({"1": {"num_warps": 4}}), "it lacks BLOCK_SIZE_M"),
        (json.dumps({"1": {**CONFIG, "SWAP_AB": True}}), "unknown key"),
    ],
)
def test_a_file_of_the_engine_s_that_cannot_be_raced_is_told(tmp_path, text, said):
    with pytest.raises(LeverbenchError, match=f"that the engine brings along: .*{said}"):
        shipped(engine(tmp_path, text))


@pytest.mark.parametrize("after", ["exit 1", "echo and goodbye"])
def test_what_cannot_be_asked_is_not_taken_for_nothing(tmp_path, after):
    settings = engine(tmp_path, None, after=after)

    with pytest.raises(LeverbenchError, match="cannot be told"):
        shipped(settings)
