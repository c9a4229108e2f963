"""Batched decode attention: its tensors, what it stands in for, and calls from SGLang.

The engine's CPU backend goes through the requests of a decode step in Python; here one call does
all of them. Inputs are the arguments of the engine's function, by their names.
"""

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Dimensions = Mapping[str, int]
Config = Mapping[str, int]

_POINTERS, _SIZES = 7, 13


def load(folder: Path) -> Any:
    """Returns the library's entry point."""
    # The OpenMP that it brings along reads this when it is loaded. A thread that waits for the next
    # call must not spin: in a server the other cores have work to do.
    before = os.environ.get("GOMP_SPINCOUNT")
    os.environ["GOMP_SPINCOUNT"] = before or "0"
    function = ctypes.CDLL(str(folder / "libkernel.so")).decode_attention
    if before is None:
        del os.environ["GOMP_SPINCOUNT"]
    function.argtypes = [
        *[ctypes.c_void_p] * _POINTERS,
        *[ctypes.c_int64] * _SIZES,
        ctypes.c_float,
        ctypes.c_int,
        ctypes.c_int,
    ]
    function.restype = ctypes.c_int
    return function


def make_inputs(dimensions: Dimensions, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns a decode step: one query a request, and a pool in which tokens lie anywhere.

    Sequences have from half of ``context`` tokens to all of them; one has all.
    """
    d = dimensions
    device = generator.device
    rows, slots = 2 * d["batch"] + 1, 2 * d["batch"] * d["context"] + 1

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def permutation(n: int) -> Tensor:
        return torch.randperm(n, generator=generator, device=device)

    seq_lens = torch.randint(
        (d["context"] + 1) // 2,
        d["context"] + 1,
        (d["batch"],),
        generator=generator,
        device=device,
    )
    seq_lens[permutation(d["batch"])[0]] = d["context"]
    req_pool_indices = permutation(rows)[: d["batch"]]
    # Rows of other requests, and what lies behind a sequence's end, point to tokens too.
    req_to_token = torch.randint(
        slots, (rows, d["context"] + 8), generator=generator, device=device, dtype=torch.int32
    )
    own = permutation(slots)[: d["batch"] * d["context"]].view(d["batch"], d["context"])
    req_to_token[req_pool_indices, : d["context"]] = own.int()
    return {
        "query": normal(d["batch"], d["heads"], d["head_dim"]),
        "k_cache": normal(slots, d["kv_heads"], d["head_dim"]),
        "v_cache": normal(slots, d["kv_heads"], d["head_dim"]),
        "req_to_token": req_to_token,
        "req_pool_indices": req_pool_indices,
        "seq_lens": seq_lens,
    }


def make_outputs(dimensions: Dimensions, device: torch.device | str) -> dict[str, Tensor]:
    """Returns the tensor that takes a result a head of each request."""
    shape = (dimensions["batch"], dimensions["heads"], dimensions["head_dim"])
    return {"output": torch.empty(shape, device=device)}


def run(
    loaded: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], config: Config
) -> None:
    """Calls the kernel."""
    scaling = inputs["query"].shape[2] ** -0.5
    _call(loaded, output=outputs["output"], **inputs, scaling=scaling, config=config)


@torch.inference_mode()
def fallback(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Does what ``TorchNativeAttnBackend._run_sdpa_forward_decode`` does (SGLang 0.5.23)."""
    query, output = inputs["query"], outputs["output"]
    k_cache, v_cache, seq_lens = inputs["k_cache"], inputs["v_cache"], inputs["seq_lens"]
    enable_gqa = query.shape[1] != k_cache.shape[1]
    scaling = query.shape[2] ** -0.5
    query = query.movedim(0, query.dim() - 2)
    start_q = 0
    for seq_idx in range(seq_lens.shape[0]):
        end_q = start_q + 1
        end_kv = 0 + seq_lens[seq_idx]
        per_req_query = query[:, start_q:end_q, :]
        req_pool_idx = inputs["req_pool_indices"][seq_idx]
        per_req_tokens = inputs["req_to_token"][req_pool_idx, 0:end_kv]
        per_req_key = k_cache[per_req_tokens].movedim(0, query.dim() - 2)
        per_req_value = v_cache[per_req_tokens].movedim(0, query.dim() - 2)
        per_req_out = (
            scaled_dot_product_attention(
                per_req_query.unsqueeze(0),
                per_req_key.unsqueeze(0),
                per_req_value.unsqueeze(0),
                attn_mask=None,
                enable_gqa=enable_gqa,
                scale=scaling,
                is_causal=False,
            )
            .squeeze(0)
            .movedim(query.dim() - 2, 0)
        )
        output[start_q:end_q, :, :] = per_req_out
        start_q = end_q


def reference(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns softmax(scaling * query . keys) . values, by its definition."""
    query, table = inputs["query"], inputs["req_to_token"]
    group = query.shape[1] // inputs["k_cache"].shape[1]
    output = torch.empty_like(query)
    for request, length in enumerate(inputs["seq_lens"].tolist()):
        tokens = table[inputs["req_pool_indices"][request], :length].long()
        keys = inputs["k_cache"][tokens].repeat_interleave(group, dim=1)
        values = inputs["v_cache"][tokens].repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query[request], keys) * query.shape[2] ** -0.5
        output[request] = torch.einsum("ht,thd->hd", scores.softmax(dim=1), values)
    return {"output": output}


def odd_shapes(dimensions: Dimensions) -> list[Dimensions]:
    """Returns one and odd numbers of requests, edges of blocks, and other heads."""
    changes = [{"batch": batch} for batch in (1, 3, 17)]
    changes += [{"context": context} for context in (1, 15, 16, 17, 33, 64, 65, 129)]
    changes += [{"heads": dimensions["kv_heads"]}, {"head_dim": 32}, {"head_dim": 80}]
    return [{**dimensions, **change} for change in changes]


def serve(
    loaded: Any,
    choose: Callable[[Dimensions], Config],
    backend: Any,
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    encoder_lens: Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> Any:
    """Takes a call of the engine's function, and fills and returns ``output`` as that does."""
    batch, heads, head_dim = query.shape
    kv_heads = k_cache.shape[1]
    if (
        encoder_lens is not None
        or causal
        or is_cross_attn
        or (sliding_window_size is not None and sliding_window_size > -1)
        or not (enable_gqa or heads == kv_heads)
        or k_cache.shape[2:] != query.shape[2:]
        or v_cache.shape != k_cache.shape
        or not query.is_cpu
        # Written out: loops over the tensors would take as long as the smallest call.
        or not query.dtype == output.dtype == k_cache.dtype == v_cache.dtype == torch.float32
        or not query.stride(2) == output.stride(2) == k_cache.stride(2) == v_cache.stride(2) == 1
        or req_to_token.dtype != torch.int32
        or req_to_token.stride(1) != 1
        or not req_pool_indices.dtype == seq_lens.dtype == torch.int64
        or not req_pool_indices.is_contiguous()
        or not seq_lens.is_contiguous()
    ):
        return NotImplemented
    _call(
        loaded,
        query,
        k_cache,
        v_cache,
        req_to_token,
        req_pool_indices,
        seq_lens,
        output,
        head_dim**-0.5 if scaling is None else scaling,
        _chosen(choose, batch, heads, kv_heads, head_dim),
    )
    return output


@cache
def _chosen(
    choose: Callable[[Dimensions], Config], batch: int, heads: int, kv_heads: int, head_dim: int
) -> Config:
    return choose({"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim})


def _call(
    loaded: Any,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    scaling: float,
    config: Config,
) -> None:
    batch, heads, head_dim = query.shape
    failed = loaded(
        query.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        req_to_token.data_ptr(),
        req_pool_indices.data_ptr(),
        seq_lens.data_ptr(),
        output.data_ptr(),
        batch,
        heads,
        k_cache.shape[1],
        head_dim,
        *query.stride()[:2],
        *k_cache.stride()[:2],
        *v_cache.stride()[:2],
        req_to_token.stride(0),
        *output.stride()[:2],
        scaling,
        config["block"],
        config["threads"],
    )
    if failed:
        raise ValueError(f"no code was compiled for {config}")
