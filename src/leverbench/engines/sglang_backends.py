"""Whether an SGLang server would look at tuned files at all, before anything is tuned.

The files belong to Triton kernels. Which kernel does a GEMM is chosen by the version, the GPU and
the arguments, and the other ones never ask for a file: tuning is then without effect, and without
a word in the log. Read in the sources of 0.5.12 to 0.5.23 (``quantization/fp8_utils.py``,
``deep_gemm_wrapper/configurer.py``, ``quantization/fp8.py``); what a model's own defaults choose
in place of ``auto`` is not followed, so that much is only likely.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverbench.engines.base import Unread
from leverbench.engines.sglang_configs import release
from leverbench.tuning.shapes import GemmShape

_GEMM = "fp8-gemm-backend"
_MOE = "moe-runner-backend"

_OLDEST_READ, _NEWEST_READ = (0, 5, 12), (0, 5, 23)
# ``auto`` is CUTLASS on sm_120 since then, where it was Triton; on sm_90 it is the other way round,
# where there is no DeepGEMM.
_SM120_CUTLASS_SINCE = _SM90_TRITON_SINCE = (0, 5, 16)
# Before, DeepGEMM was tried on sm_110, and blocks of 32 were Triton's everywhere.
_SM110_TRITON_SINCE = _DEEPGEMM_BLOCK32_SINCE = (0, 5, 22)

_NO_DEEPGEMM = "SGLANG_ENABLE_JIT_DEEPGEMM"
_FALSE = ("false", "0", "no", "n")
# Of the argument ``dtype``; ``auto`` is that of the model, bfloat16 in every FP8 checkpoint.
_NOT_BF16 = ("half", "float16", "float", "float32")

_DEEPGEMM, _CUTLASS, _TRTLLM = "DeepGEMM", "CUTLASS", "FlashInfer (TRT-LLM)"


@dataclass(frozen=True)
class _Route:
    """The kernel that a server prefers to Triton's.

    Attributes:
        kernel: Its name.
        takes: Whether it does a GEMM of this shape; Triton does the others.
        why: How it comes to be preferred.
        certain: Whether that is sure.
    """

    kernel: str
    takes: Callable[[GemmShape], bool]
    why: str
    certain: bool


def why_not_read(
    version: str | None,
    capability: tuple[int, int] | None,
    args: Mapping[str, Any],
    shapes: Sequence[GemmShape],
    env: Mapping[str, str] | None = None,
) -> Unread | None:
    """Tells whether a server would look for tuned files of its FP8 block GEMMs.

    Args:
        version: The engine's.
        capability: The GPU's compute capability: (12, 0).
        args: The server's arguments, as a campaign has them.
        shapes: The shapes that would be tuned.
        env: The server's environment.

    Returns:
        None where each of the files would be read.
    """
    asked = str(args.get(_GEMM) or "auto")
    bf16 = str(args.get("dtype") or "auto") not in _NOT_BF16
    if asked == "triton":
        route = None
    elif asked != "auto":
        route = _explicit(asked, bf16)
    else:
        numbers = release(version)
        if numbers is None or capability is None:
            missing = "GPU's compute capability" if numbers else "engine's version"
            return _unknown(f"the {missing} is not known")
        if numbers < _OLDEST_READ:
            return _unknown(f"what {version} makes of it is not known")
        route = _automatic(numbers, capability[0], env or {}, bf16)
    taken = tuple(shape for shape in shapes if route and route.takes(shape))
    if route and taken:
        left = tuple(shape for shape in shapes if shape not in taken)
        which = "these files" if not left else f"the files for {_listed(taken)}"
        others = f"; Triton does {_listed(left)}, and reads theirs" if left else ""
        message = f"{which} would not be read: {route.why}, and {route.kernel} has no use for them"
        return Unread(f"{message}{others}", _cure(_GEMM), route.certain)
    if args.get("enable-torch-compile"):
        message = "these files would not be read in what torch.compile compiles: there is no lookup"
        return Unread(message, "Remove enable-torch-compile.", False)
    return None


def why_moe_not_read(
    capability: tuple[int, int] | None, args: Mapping[str, Any], *, fp4_experts: bool
) -> Unread | None:
    """Tells whether a server would look for tuned files of its fused MoE kernel.

    Args:
        capability: The GPU's compute capability.
        args: The server's arguments, as a campaign has them.
        fp4_experts: Whether the routed experts are likely in FP4, as DeepSeek-V4's are.

    Returns:
        None where they would be read.
    """
    unread = "the files in SGLANG_MOE_CONFIG_DIR would not be read"
    if fp4_experts:
        cure = "Do without them; they are for FP8, INT8 and unquantized experts."
        return Unread(f"{unread}: FP4 experts never reach Triton's kernel", cure, False)
    if args.get("enable-deterministic-inference"):
        cure = "Remove enable-deterministic-inference."
        return Unread(f"{unread}: deterministic inference takes the default config", cure, True)
    runner = str(args.get(_MOE) or "auto")
    if runner not in ("auto", "triton"):
        # These two leave FP8 experts to Triton in some versions.
        certain = runner not in ("flashinfer_cutlass", "flashinfer_cutedsl")
        return Unread(f"{unread}: {_MOE} is {runner}", _cure(_MOE), certain)
    if runner == "triton":
        return None
    exchange = str(args.get("moe-a2a-backend") or "none")
    if exchange != "none":
        why = f"with moe-a2a-backend {exchange} auto is another runner, mostly DeepGEMM"
        return Unread(f"{unread}: {why}", _cure(_MOE), False)
    if capability is not None and capability[0] == 10:
        why = "on this GPU auto is FlashInfer for most models"
        return Unread(f"{unread}: {why}", _cure(_MOE), False)
    return None


def _unknown(missing: str) -> Unread:
    why = f"{_GEMM} is auto, mostly another kernel, and {missing}"
    return Unread(f"these files would not be read: {why}", _cure(_GEMM), False)


def _explicit(asked: str, bf16: bool) -> _Route:
    why = f"{_GEMM} is {asked}"
    if asked in ("deep_gemm", "flashinfer_deepgemm"):
        return _Route(_DEEPGEMM, _deepgemm(bf16, block32=asked == "deep_gemm"), why, True)
    if asked == "cutlass":
        return _Route(_CUTLASS, _cutlass, why, True)
    if asked == "flashinfer_trtllm":
        return _Route(_TRTLLM, _trtllm(bf16), why, True)
    return _Route(asked, lambda shape: shape.block_k == 128, why, True)


def _automatic(
    version: tuple[int, int, int], major: int, env: Mapping[str, str], bf16: bool
) -> _Route | None:
    # What a version after these makes of it is not known, only likely.
    certain = version <= _NEWEST_READ
    deepgemm = env.get(_NO_DEEPGEMM, "1").lower() not in _FALSE
    why = f"{_GEMM} is auto, which on sm_{major}x"
    if major == 12 and version >= _SM120_CUTLASS_SINCE:
        return _Route(_CUTLASS, _cutlass, f"{why} is CUTLASS since 0.5.16", certain)
    if major not in (9, 10, 11) or (major == 11 and version >= _SM110_TRITON_SINCE):
        return None
    if deepgemm:
        takes = _deepgemm(bf16, block32=major == 9 and version >= _DEEPGEMM_BLOCK32_SINCE)
        return _Route(_DEEPGEMM, takes, f"{why} is DeepGEMM where it is installed", False)
    if major == 9:
        if version >= _SM90_TRITON_SINCE:
            return None
        return _Route(_CUTLASS, _cutlass, f"{why} is CUTLASS up to 0.5.15", certain)
    return _Route(_TRTLLM, _trtllm(bf16), f"{why} is FlashInfer where it is installed", False)


def _deepgemm(bf16: bool, block32: bool) -> Callable[[GemmShape], bool]:
    def takes(shape: GemmShape) -> bool:
        block = (shape.block_n, shape.block_k)
        if block == (32, 32):
            return bf16 and block32 and shape.n % 8 == 0 and shape.k % 32 == 0
        return bf16 and block == (128, 128) and shape.n % 64 == 0 and shape.k % 128 == 0

    return takes


def _cutlass(shape: GemmShape) -> bool:
    return shape.block_k == 128 and shape.n % 128 == 0 and shape.k % 128 == 0


def _trtllm(bf16: bool) -> Callable[[GemmShape], bool]:
    return lambda shape: bf16 and shape.block_k == 128 and shape.k >= 256


def _cure(argument: str) -> str:
    # In the variant alone it would be a second lever.
    return (
        f"Set args: {{{argument}: triton}} in engine:, for all variants, or do without these files."
    )


def _listed(shapes: Sequence[GemmShape]) -> str:
    return ", ".join(f"({shape.n}, {shape.k})" for shape in shapes)
