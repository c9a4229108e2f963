"""Which of a server's GEMMs would ever look for tuned files, by version, GPU and arguments."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from leverbench.engines.sglang_backends import why_moe_not_read, why_not_read
from leverbench.tuning.shapes import GemmShape


def shape(n: int, k: int, block: int = 128) -> GemmShape:
    return GemmShape(n, k, block, block, ("layer",))


FLASH = [shape(1536, 4096), shape(8192, 1024), shape(4096, 512)]
ODD = shape(2080, 7168)  # N is a multiple of 32, not of 64
TRITON = {"fp8-gemm-backend": "triton"}
CURE = (
    "Set args: {fp8-gemm-backend: triton} in engine:, for all variants, or do without these files."
)


@pytest.mark.parametrize(
    ("version", "capability", "args"),
    [
        ("0.5.14", (12, 0), {}),
        ("0.5.15.post1", (12, 0), {}),
        ("0.5.23", (8, 9), {}),
        ("0.5.23", (11, 0), {}),
        ("0.5.23", (12, 0), TRITON),
        ("0.5.23", (9, 0), TRITON),
        ("0.5.23", (9, 0), {"dtype": "float16"}),
        ("0.5.23", (9, 0), {"fp8-gemm-backend": "deep_gemm", "dtype": "half"}),
        (None, None, TRITON),
    ],
)
def test_triton_reads_them(version, capability, args):
    assert why_not_read(version, capability, args, FLASH) is None


@pytest.mark.parametrize(
    ("version", "capability", "args", "kernel", "certain"),
    [
        ("0.5.16", (12, 0), {}, "CUTLASS", True),
        ("0.5.23", (12, 1), {"fp8-gemm-backend": "auto"}, "CUTLASS", True),
        # A version after those that were read may choose otherwise.
        ("0.6.0", (12, 0), {}, "CUTLASS", False),
        ("0.5.14", (9, 0), {}, "DeepGEMM", False),
        ("0.5.23", (9, 0), {"dtype": "bfloat16"}, "DeepGEMM", False),
        ("0.5.23", (10, 0), {}, "DeepGEMM", False),
        ("0.5.23", (10, 3), {}, "DeepGEMM", False),
        ("0.5.20", (11, 0), {}, "DeepGEMM", False),
        (None, None, {"fp8-gemm-backend": "deep_gemm"}, "DeepGEMM", True),
        (None, None, {"fp8-gemm-backend": "flashinfer_deepgemm"}, "DeepGEMM", True),
        (None, None, {"fp8-gemm-backend": "cutlass"}, "CUTLASS", True),
        (None, None, {"fp8-gemm-backend": "flashinfer_trtllm"}, "FlashInfer", True),
        (None, None, {"fp8-gemm-backend": "flashinfer_cutlass"}, "flashinfer_cutlass", True),
        (None, None, {"fp8-gemm-backend": "aiter"}, "aiter", True),
    ],
)
def test_another_kernel_does_not(version, capability, args, kernel, certain):
    said = why_not_read(version, capability, args, FLASH)

    assert said is not None
    assert said.certain == certain
    assert said.message.startswith("these files would not be read: fp8-gemm-backend is ")
    assert kernel in said.message
    assert said.cure == CURE


@pytest.mark.parametrize(
    ("version", "capability", "kernel", "certain"),
    [
        ("0.5.16", (9, 0), None, None),
        ("0.5.15.post1", (9, 0), "CUTLASS", True),
        ("0.5.23", (10, 0), "FlashInfer", False),
    ],
)
@pytest.mark.parametrize("value", ["0", "false", "No"])
def test_where_deepgemm_is_switched_off_the_next_in_line_counts(
    version, capability, kernel, certain, value
):
    said = why_not_read(version, capability, {}, FLASH, {"SGLANG_ENABLE_JIT_DEEPGEMM": value})

    if kernel is None:
        assert said is None
    else:
        assert said is not None
        assert kernel in said.message
        assert said.certain == certain


@pytest.mark.parametrize(
    ("capability", "args", "left"),
    [
        # DeepGEMM takes multiples of 64 and 128, CUTLASS of 128 and 128, TRT-LLM K from 256 on.
        ((9, 0), {}, [shape(2080, 7168), shape(2112, 7100)]),
        ((12, 0), {}, [shape(2112, 7168), shape(2048, 4160)]),
        ((10, 0), {"fp8-gemm-backend": "flashinfer_trtllm"}, [shape(4096, 128)]),
    ],
)
def test_the_shapes_that_triton_still_does_are_named(capability, args, left):
    said = why_not_read("0.5.23", capability, args, [*FLASH, *left])

    assert said is not None
    assert "the files for (1536, 4096), (8192, 1024), (4096, 512) would not be read" in said.message
    others = ", ".join(f"({one.n}, {one.k})" for one in left)
    assert f"Triton does {others}, and reads theirs" in said.message


def test_where_triton_does_all_shapes_nothing_is_said():
    assert why_not_read("0.5.23", (9, 0), {}, [ODD]) is None


@pytest.mark.parametrize(
    ("version", "capability", "args", "read"),
    [
        ("0.5.23", (12, 0), {}, True),
        ("0.5.23", (12, 0), {"fp8-gemm-backend": "cutlass"}, True),
        ("0.5.21", (9, 0), {}, True),
        ("0.5.23", (9, 0), {}, False),
    ],
)
def test_small_blocks_are_tritons_but_on_hopper(version, capability, args, read):
    said = why_not_read(version, capability, args, [shape(1280, 5120, 32)])

    assert (said is None) == read


@pytest.mark.parametrize(
    ("version", "capability", "missing"),
    [
        (None, (12, 0), "the engine's version is not known"),
        ("main", (12, 0), "the engine's version is not known"),
        ("0.5.23", None, "the GPU's compute capability is not known"),
        ("0.4.9", (12, 0), "what 0.4.9 makes of it is not known"),
    ],
)
def test_what_is_not_known_is_said(version, capability, missing):
    said = why_not_read(version, capability, {}, FLASH)

    assert said is not None
    assert (said.certain, said.cure) == (False, CURE)
    assert missing in said.message


def test_under_torch_compile_the_default_is_likely():
    said = why_not_read("0.5.23", (12, 0), {**TRITON, "enable-torch-compile": True}, FLASH)

    assert said is not None
    assert said.certain is False


@pytest.mark.parametrize(
    ("capability", "args", "fp4", "expected"),
    [
        ((12, 0), {}, False, None),
        ((9, 0), {"moe-runner-backend": "triton"}, False, None),
        (None, {"moe-runner-backend": "triton", "moe-a2a-backend": "deepep"}, False, None),
        # A config.json does not always tell.
        ((12, 0), {"moe-runner-backend": "triton"}, True, False),
        ((9, 0), {"moe-runner-backend": "deep_gemm"}, False, True),
        ((9, 0), {"enable-deterministic-inference": True}, False, True),
        ((9, 0), {"moe-a2a-backend": "deepep"}, False, False),
        ((10, 0), {}, False, False),
        (None, {}, False, None),
        ((12, 0), {"moe-runner-backend": "flashinfer_cutlass"}, False, False),
    ],
)
def test_fused_moe_files(capability, args, fp4, expected):
    said = why_moe_not_read(capability, args, fp4_experts=fp4)

    assert (None if said is None else said.certain) == expected
    if said is not None:
        assert said.message.startswith("the files in SGLANG_MOE_CONFIG_DIR would not be read: ")


ASK = """
import json, sys
from functools import partial
from types import SimpleNamespace
import sglang.srt.layers.quantization.fp8_utils as engine
from sglang.srt.runtime_context import override_platform

said = []
engine.is_flashinfer_available = lambda: True
for sm, asked, deepgemm, block in json.load(sys.stdin):
    engine.deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM = deepgemm
    chosen = SimpleNamespace(kernel=SimpleNamespace(fp8_gemm_runner_backend=asked))
    engine.get_exec = lambda: chosen
    engine.FP8_GEMM_RUNNER_BACKEND = None
    with override_platform(**{f"is_sm{sm}": True, "is_blackwell": sm >= 100}):
        engine.initialize_fp8_gemm_config()
        kernel = engine.dispatch_w8a8_block_fp8_linear([block, block])
    said.append(kernel.func.__name__ if isinstance(kernel, partial) else kernel.__name__)
print(json.dumps(said))
"""


@pytest.mark.engine
def test_the_engine_itself_chooses_the_same():
    cases = [
        (sm, "auto", deepgemm, block)
        for sm in (90, 100, 110, 120)
        for deepgemm in (True, False)
        for block in (128, 32)
    ]
    cases += [(90, "deep_gemm", True, 32), (90, "flashinfer_deepgemm", True, 32)]
    cases += [(120, "cutlass", False, 128), (120, "triton", False, 128)]
    cases += [(100, "flashinfer_trtllm", True, 128), (120, "flashinfer_cutlass", False, 128)]

    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
    )

    assert done.returncode == 0, done.stderr
    chosen = json.loads(done.stdout.splitlines()[-1])
    version = importlib.metadata.version("sglang")
    for (sm, asked, deepgemm, block), kernel in zip(cases, chosen, strict=True):
        env = {"SGLANG_ENABLE_JIT_DEEPGEMM": "1" if deepgemm else "0"}
        args = {"fp8-gemm-backend": asked}
        said = why_not_read(version, divmod(sm, 10), args, [shape(4096, 4096, block)], env)
        assert (said is None) == (kernel == "triton_w8a8_block_fp8_linear"), (sm, asked, kernel)
