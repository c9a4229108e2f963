"""Kernels in CUDA and Triton, on a real GPU: built, tuned, verified and timed."""

import pytest
import torch
from gpu_kernels import LANGUAGES, write_kernel

from leverbench.campaign.model import Engine
from leverbench.kernels.build import build, toolchain
from leverbench.kernels.verify import verify
from leverbench.records import read_record
from leverbench.tuning.microbench import microbench
from leverbench.tuning.tune import tune

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
SETTINGS = Engine("sglang", None, None, (), {}, {})


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kernel_goes_the_whole_way(tmp_path, language, capsys):
    kernel = write_kernel(tmp_path, language)
    built, record = tmp_path / "built", tmp_path / "tuned.json"

    build(kernel, toolchain(kernel, SETTINGS), built)
    code = built / "code"
    journal = tmp_path / "journal.jsonl"
    tune(kernel, kernel.shapes[0], code, SETTINGS, "cuda", journal, record)
    tuned = read_record(record)
    microbench(kernel, [record], code, SETTINGS, "cuda", tmp_path / "bench.json")
    benched = read_record(tmp_path / "bench.json")
    body = verify(kernel, code, [c["config"] for c in tuned["chosen"]], SETTINGS, "cuda")

    assert (body["outcome"], body["detail"]) == ("verified", None)
    small, large = tuned["chosen"]
    # A launch of few thousand elements takes microseconds; 32 threads a block keep a GPU waiting.
    assert 1e-7 < small["tuned_s"] < 1e-4
    assert large["config"]["block"] > 32
    assert large["published"]
    assert sum(tuned["invalid"].values()) == (2 if language == "cuda" else 0)
    # Two kernels of torch, and a tensor between them.
    assert all(call["speedup"] > 1 for call in benched["calls"])
    with capsys.disabled():
        for call, bench in zip(tuned["chosen"], benched["calls"], strict=True):
            print(language, {**call, "fallback_s": bench["fallback_s"], "x": bench["speedup"]})
        print(tuned["invalid"])
