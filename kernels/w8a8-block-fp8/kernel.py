"""SGLang's block-scaled FP8 GEMM: its tensors, and calls of the engine's own Triton kernel.

C = (A * As) (B * Bs)^T. A (M, K) are activations with a scale for 128 elements of a row, B (N, K)
weights with a scale for 128 x 128 elements; both are float8_e4m3fn, scales float32, C bfloat16.
Names are the engine's.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor

Dimensions = Mapping[str, int]
Config = Mapping[str, int]

# In 0.5.23, in 0.5.16 to 0.5.20, and before. Later versions have modules of earlier names, too.
_MODULES = (
    "sglang.kernels.ops.gemm.fp8_kernel",
    "sglang.kernels.ops.quantization.fp8_kernel",
    "sglang.srt.layers.quantization.fp8_kernel",
)
_KERNEL = "_w8a8_block_fp8_matmul"

_FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FP8).max
# Rows and columns that share a scale of B; a scale of A is for as many columns of one row.
_BLOCK = 128


def load(folder: Path) -> Any:
    """Returns the engine's kernel; there is nothing of it in the folder."""
    return getattr(_engine(), _KERNEL)


def make_inputs(dimensions: Dimensions, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns quantised activations and weights; scales of neighbours differ up to fourfold.

    Without the differences a scale of the wrong group or block would hardly show.
    """
    m, n, k = dimensions["M"], dimensions["N"], dimensions["K"]
    device = generator.device

    def normal(rows: int, rows_a_scale: int) -> Tensor:
        shape = triton.cdiv(rows, rows_a_scale), triton.cdiv(k, _BLOCK)
        sizes = 2 ** (2 * torch.rand(shape, generator=generator, device=device) - 1)
        values = torch.randn(rows, k, generator=generator, device=device)
        return values * _spread(sizes, rows_a_scale, values)

    a, a_scales = _quantised(normal(m, 1), 1)
    # Then results are of the order of 1.
    b, b_scales = _quantised(normal(n, _BLOCK) * k**-0.5, _BLOCK)
    return {"A": a, "B": b, "As": a_scales, "Bs": b_scales}


def make_outputs(dimensions: Dimensions, device: torch.device | str) -> dict[str, Tensor]:
    """Returns the tensor that takes the product."""
    shape = dimensions["M"], dimensions["N"]
    return {"C": torch.empty(shape, dtype=torch.bfloat16, device=device)}


def run(
    loaded: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], config: Config
) -> None:
    """Calls the kernel as ``w8a8_block_fp8_matmul_triton`` does (SGLang 0.5.23)."""
    tensors = _tensors(inputs, outputs)
    (m, k), n = inputs["A"].shape, inputs["B"].shape[0]
    blocks = triton.cdiv(m, config["BLOCK_SIZE_M"]) * triton.cdiv(n, config["BLOCK_SIZE_N"])
    loaded[(blocks,)](*tensors, *_sizes(tensors), **_constants(loaded, k, config))


def fallback(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Has the engine choose: by a file that it brings along for the shape, else its default.

    It makes its own output; a copy into ours would be timed, too.
    """
    _engine().w8a8_block_fp8_matmul_triton(
        *(inputs[name] for name in ("A", "B", "As", "Bs")),
        [_BLOCK, _BLOCK],
        output_dtype=outputs["C"].dtype,
    )


def reference(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the product of what was quantised, multiplied with its scales."""
    a, b = inputs["A"], inputs["B"]
    a = a * _spread(inputs["As"], 1, a)
    b = b * _spread(inputs["Bs"], _BLOCK, b)
    return {"C": a @ b.T}


def odd_shapes(dimensions: Dimensions) -> list[Dimensions]:
    """Returns one and odd numbers of rows, edges of tiles, and parts of a block.

    The engine quantises whole groups of 128 along K, so that only a layer's own K can be odd.
    """
    changes: list[Dimensions] = [{"M": m} for m in (1, 3, 15, 17, 63, 65)]
    changes += [{"M": 17, "N": n} for n in (100, 576)]
    changes += [{"M": 17, "K": k} for k in (128, 192, 384)]
    return [{**dimensions, **change} for change in changes]


def compile(dimensions: Dimensions, config: Config, capability: int) -> dict[str, Any]:
    """Has Triton make a candidate's code for a GPU that need not be here.

    Triton keeps it in its cache under the name by which a call with such tensors looks for it. For
    the rest of the process no kernel of Triton's can be called.

    Args:
        dimensions: Of the call.
        config: Of the kernel.
        capability: The GPU's, without the point.

    Returns:
        ``{"shared_bytes": shared memory of a block}``.
    """
    from triton.runtime import driver

    driver.set_active(_StandIn(capability))
    kernel = getattr(_engine(), _KERNEL)
    m, n, k = dimensions["M"], dimensions["N"], dimensions["K"]
    groups = triton.cdiv(k, _BLOCK)
    inputs = {
        "A": torch.empty(m, k, dtype=_FP8, device="meta"),
        "B": torch.empty(n, k, dtype=_FP8, device="meta"),
        "As": torch.empty(m, groups, device="meta"),
        "Bs": torch.empty(triton.cdiv(n, _BLOCK), groups, device="meta"),
    }
    tensors = _tensors(inputs, make_outputs(dimensions, "meta"))
    # A dtype stands for a tensor of any aligned address.
    dtypes = [tensor.dtype for tensor in tensors]
    compiled = kernel.warmup(*dtypes, *_sizes(tensors), grid=(1,), **_constants(kernel, k, config))
    return {"shared_bytes": compiled.metadata.shared}


class _StandIn:
    """Stands in for a driver of Triton's: it tells which GPU code is made for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        # Triton remembers what it compiled by device: each kind of GPU is one.
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)


def _engine() -> ModuleType:
    """Returns the module of the engine that has the kernel."""
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Not one that the engine itself lacks.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
        else:
            if hasattr(module, _KERNEL):
                return module
    raise ImportError(f"this SGLang has no {_KERNEL} where 0.5.12 to 0.5.23 have it")


def _tensors(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
    return inputs["A"], inputs["B"], outputs["C"], inputs["As"], inputs["Bs"]


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    """Returns the kernel's integers: sizes, blocks and strides."""
    a, b, c, a_scales, b_scales = tensors
    strides = [*a.stride(), *reversed(b.stride()), *c.stride()]
    strides += [*a_scales.stride(), *reversed(b_scales.stride())]
    return [a.shape[0], b.shape[0], a.shape[1], _BLOCK, _BLOCK, *strides]


def _constants(kernel: Any, k: int, config: Config) -> dict[str, Any]:
    """Returns what code is made for; whether K has a rest was no argument in older versions."""
    masks = {"needs_masking": bool(k % config["BLOCK_SIZE_K"] != 0)}
    return {**config, **(masks if "needs_masking" in kernel.arg_names else {})}


def _quantised(values: Tensor, rows_a_scale: int) -> tuple[Tensor, Tensor]:
    """Returns float8 values and their scales: the largest of those that share one is 448."""
    rows, columns = values.shape
    groups = triton.cdiv(rows, rows_a_scale), triton.cdiv(columns, _BLOCK)
    rest = groups[1] * _BLOCK - columns, groups[0] * rows_a_scale - rows
    padded = torch.nn.functional.pad(values, (0, rest[0], 0, rest[1]))
    blocks = padded.view(groups[0], rows_a_scale, groups[1], _BLOCK)
    scales = (blocks.abs().amax(dim=(1, 3)) / _LARGEST).clamp(min=1e-10)
    quotients = values / _spread(scales, rows_a_scale, values)
    return quotients.clamp(-_LARGEST, _LARGEST).to(_FP8), scales


def _spread(scales: Tensor, rows_a_scale: int, like: Tensor) -> Tensor:
    """Returns the scale of each element of a tensor."""
    rows, columns = like.shape
    each = scales.repeat_interleave(rows_a_scale, dim=0).repeat_interleave(_BLOCK, dim=1)
    return each[:rows, :columns]
