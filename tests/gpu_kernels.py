"""Tunable kernels for a GPU, in CUDA and in Triton: y = a x + x, with a block size that matters."""

from pathlib import Path
from typing import Any

import yaml

from leverbench.kernels.manifest import Kernel, read_kernel

TENSORS = """
import torch

def make_inputs(dimensions, generator):
    shape = dimensions["rows"], dimensions["width"]
    return {"x": torch.randn(shape, generator=generator, device=generator.device)}

def make_outputs(dimensions, device):
    return {"y": torch.empty(dimensions["rows"], dimensions["width"], device=device)}

def fallback(inputs, outputs):
    outputs["y"].copy_(inputs["x"] * 2 + inputs["x"])

def reference(inputs):
    return {"y": 3 * inputs["x"]}

def odd_shapes(dimensions):
    return [{**dimensions, "rows": 1, "width": 1}, {**dimensions, "width": 257}]

def serve(loaded, choose, *args, **kwargs):
    return NotImplemented
"""

CUDA = """
#include <cstdint>
#include <cuda_runtime.h>
namespace {
__global__ void add(const float* x, float* y, std::int64_t count) {
    const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
    if (i < count) y[i] = 2 * x[i] + x[i];
}
}  // namespace
extern "C" int thrice(const float* x, float* y, std::int64_t count, int block, void* stream) {
    const auto blocks = static_cast<unsigned>((count + block - 1) / block);
    add<<<blocks, block, 0, static_cast<cudaStream_t>(stream)>>>(x, y, count);
    return static_cast<int>(cudaGetLastError());
}
"""
CUDA_MODULE = (
    """
import ctypes
"""
    + TENSORS
    + """
def load(folder):
    function = ctypes.CDLL(str(folder / "libkernel.so")).thrice
    pointer = ctypes.c_void_p
    function.argtypes = [pointer, pointer, ctypes.c_int64, ctypes.c_int, pointer]
    return function

def run(loaded, inputs, outputs, config):
    x, y = inputs["x"], outputs["y"]
    stream = torch.cuda.current_stream().cuda_stream
    failed = loaded(x.data_ptr(), y.data_ptr(), x.numel(), config["block"], stream)
    if failed:
        raise RuntimeError(f"CUDA error {failed}")
"""
)

TRITON = """
import triton
import triton.language as tl

@triton.jit
def thrice(x, y, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < count)
    tl.store(y + at, 2 * value + value, mask=at < count)
"""
TRITON_MODULE = (
    """
import importlib.util
import triton
"""
    + TENSORS
    + """
def load(folder):
    spec = importlib.util.spec_from_file_location("thrice_kernel", folder / "thrice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.thrice

def run(loaded, inputs, outputs, config):
    x, y = inputs["x"], outputs["y"]
    loaded[(triton.cdiv(x.numel(), config["block"]),)](x, y, x.numel(), block=config["block"])
"""
)

LANGUAGES = {
    "cuda": ("thrice.cu", CUDA, CUDA_MODULE),
    "triton": ("thrice.py", TRITON, TRITON_MODULE),
}


def write_kernel(parent: Path, language: str) -> Kernel:
    """Writes the folder of the kernel in a language, and returns the kernel."""
    name, source, module = LANGUAGES[language]
    folder = parent / "thrice"
    folder.mkdir()
    manifest: dict[str, Any] = {
        "kernel": "thrice",
        "language": language,
        "sources": [name],
        # A block of 2,048 threads is more than a GPU takes: for CUDA that candidate is invalid.
        "parameters": {"block": [32, 128, 512, 2048]},
        "default": {"block": 32},
        "shapes": [{"width": 4096}],
        "sizes": {"rows": [1, 1024]},
        "tolerance": {"absolute": 0, "relative": 1e-6},
        "load": {"engine": "sglang", "hook": "some.module.thrice"},
    }
    (folder / "kernel.yaml").write_text(yaml.safe_dump(manifest))
    (folder / "kernel.py").write_text(module)
    (folder / name).write_text(source)
    return read_kernel(folder)
