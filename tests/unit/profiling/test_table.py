"""The table: categories of real names, shares that add up, a summary of the device that counts."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from leverbench.errors import LeverbenchError
from leverbench.profiling import table
from leverbench.profiling.table import category, loops, make_table, summarise, write_table
from leverbench.profiling.trace import Operation, Trace, read_trace

# As they stand in traces; the long ones cut.
NAMES = {
    "comm": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<",
        "c10d::allreduce_",
        "gloo:all_reduce",
    ],
    "memcpy": ["Memcpy DtoH (Device -> Pinned)", "Memset (Device)"],
    "moe-gemm": [
        "fused_moe_kernel",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906842624l, 256, 1, 8, 8>",
        "void deep_gemm::sm90_fp8_m_grouped_gemm_contiguous_1d2d_impl<",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<"
        "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >",
    ],
    "moe-routing": [
        "void moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*, int*, int*",
        "void tensorrt_llm::kernels::deepseek_v3_topk_kernel<float, float, float, int, 256, true>",
        "void topkGatingSoftmax<8, 256, 4, 16, 32, int>(float const*, bool const*, float*, int",
        "count_and_sort_expert_tokens_kernel",
    ],
    "fp8-gemm": [
        "_w8a8_block_fp8_matmul",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u, 64u, 128u, 128u>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::Sm120BlockwiseScaledGemm<",
        "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1",
    ],
    "gemm": [
        "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align8>",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>",
        "void marlin::Marlin<__nv_bfloat16, 1125899906843648l, 256, 1, 8, 8, false, 4>",
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
        "aten::linear",
        "mkldnn::_linear_pointwise",
    ],
    "attention": [
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
        "flash::CollectiveMainloopFwdSm90<2, cute::tuple<>, cutlass::gemm::float_e4m3_t>",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u>",
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>",
        "void sm100::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<",
        "flash_mla_splitkv_kernel",
        "topk_transform_decode_kernel",
        "sm90_fp8_paged_mqa_logits",
        "aten::scaled_dot_product_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "sgl_kernel::decode_attention_cpu",
    ],
    "quant": [
        "void (anonymous namespace)::per_token_group_quant_flat_kernel<(anonymous namespace)::"
        "QuantTrait<__nv_bfloat16, __nv_fp8_e4m3, 128u, false, true, true, false>",
        "void cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*, float const*",
    ],
    "norm": [
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "aten::rms_norm",
    ],
    "rope": [
        "void (anonymous namespace)::fused_rope_kernel<false, 64l, true, __nv_bfloat16>",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedRopeKernel<true>",
        "sgl_kernel::rotary_embedding_cpu",
    ],
    "activation": [
        "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, 0, true, false>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel<float>>",
        "aten::silu",
    ],
    "sampling": [
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, int>(float*, int*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >",
        "aten::argmax",
    ],
    "kv": [
        "set_mla_kv_buffer_kernel",
        "create_flashinfer_kv_indices_triton",
        "get_num_kv_splits_triton",
        "write_req_to_token_pool_triton",
    ],
    "memory": [
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>",
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long>",
        "aten::copy_",
        "aten::to",
        "aten::t",
        "aten::index",
        "aten::as_strided",
        "aten::empty_like",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<int>",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "triton_per_fused_copy__mul_sum_0",
        "aten::add",
        "aten::mul_",
    ],
    "other": ["void (anonymous namespace)::clamp_position_kernel<long>(long*, long const*)"],
}


def operation(name: str, self_us: float = 1.0, device: str = "gpu", **more: object) -> Operation:
    return Operation(
        **{"device": device, "name": name, "annotation": False, "loop": None, "calls": 1}
        | {"self_us": self_us}
        | more
    )


@pytest.mark.parametrize(
    ("name", "expected"), [(name, of) for of, names in NAMES.items() for name in names]
)
def test_names_belong_to_categories(name, expected):
    assert category(operation(name)) == expected


def test_every_category_is_shown_by_a_name():
    entries = yaml.safe_load(table.CATEGORIES.read_text())

    assert {entry["category"] for entry in entries} | {"other"} == set(NAMES)


def test_what_is_left_of_an_annotation_is_the_engines_own_code():
    marked = operation("step[DECODE bs=16]", device="cpu", annotation=True)

    assert category(marked) == "host-code"
    assert category(operation("gloo:all_reduce", annotation=True)) == "comm"


def test_what_is_in_a_loop_belongs_to_the_loops_category():
    assert category(operation("aten::copy_", loop="attention")) == "attention"
    assert category(operation("aten::copy_")) == "memory"


@pytest.mark.parametrize(
    "text",
    [
        "- category: a\n  patterns: ['(']\n",
        "a: [",
        "- patterns: [a]",
        "- {category: a, loop: x}",
        "- {category: a, loop: '(', fence: x}",
    ],
)
def test_patterns_that_cannot_be_used_are_one_message(tmp_path, monkeypatch, text):
    (tmp_path / "categories.yaml").write_text(text)
    monkeypatch.setattr(table, "CATEGORIES", tmp_path / "categories.yaml")
    table._rules.cache_clear()
    try:
        with pytest.raises(LeverbenchError, match=r"categories\.yaml: unusable patterns"):
            category(operation("x"))
    finally:
        table._rules.cache_clear()


def rank(*operations: Operation) -> Trace:
    return Trace(operations, {}, len(operations))


def two_ranks() -> dict[str, Trace]:
    cpu = operation("aten::mm", 900.0, device="cpu")
    return {
        "TP-1": rank(operation("nvjet_a", 30.0), operation("odd", 10.0), cpu),
        "TP-0": rank(operation("odd", 10.0), operation("nvjet_a", 50.0, calls=3), cpu),
    }


def test_shares_are_of_a_ranks_time_on_one_device():
    rows = make_table(two_ranks())

    assert [(row.rank, row.device, row.name) for row in rows] == [
        ("TP-0", "cpu", "aten::mm"),
        ("TP-0", "gpu", "nvjet_a"),
        ("TP-0", "gpu", "odd"),
        ("TP-1", "cpu", "aten::mm"),
        ("TP-1", "gpu", "nvjet_a"),
        ("TP-1", "gpu", "odd"),
    ]
    assert [row.share for row in rows] == pytest.approx([1, 50 / 60, 10 / 60, 1, 0.75, 0.25])


def test_the_summary_counts_one_device_over_all_ranks():
    summary = summarise(make_table(two_ranks()), "gpu")

    assert summary == {
        "total_us": 100.0,
        "categories": [
            {"category": "gemm", "share": 0.8, "in_loops": 0.0, "self_us": 80.0},
            {"category": "other", "share": 0.2, "in_loops": 0.0, "self_us": 20.0},
        ],
        "top": [
            {"name": "nvjet_a", "category": "gemm", "calls": 4, "self_us": 80.0, "share": 0.8},
            {"name": "odd", "category": "other", "calls": 2, "self_us": 20.0, "share": 0.2},
        ],
        "other_top": ["odd"],
    }


def test_the_summary_names_the_ten_longest():
    rows = make_table({"TP-0": rank(*(operation(f"odd-{i}", i + 1.0) for i in range(12)))})
    summary = summarise(rows, "gpu")

    assert [top["name"] for top in summary["top"]] == [f"odd-{i}" for i in range(11, 1, -1)]
    assert summary["other_top"] == [top["name"] for top in summary["top"]]


def test_a_table_with_and_without_rows_has_the_same_columns(tmp_path):
    rows = make_table(two_ranks())
    write_table(tmp_path / "full.parquet", rows, {"variant": "a"})
    write_table(tmp_path / "empty.parquet", [], {"variant": "a"})
    full, empty = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("full", "empty"))

    assert full.to_pylist() == [vars(row) for row in rows]
    assert (empty.num_rows, empty.schema) == (0, full.schema)


# What one decode step calls in a layer with a fallback attention, as in a real trace: before the
# requests, for each of them, and after.
BEFORE = ["linear", "split", "index_select", "mul", "sub", "cat", "index_put_", "index_put_"]
BEFORE += ["view", "view", "movedim"]
REQUEST = [
    "select",
    "add",
    "slice",
    "select",
    "item",
    "select",
    "item",
    "slice",
    "index",
    "movedim",
]
REQUEST += ["index", "movedim", "unsqueeze", "unsqueeze", "unsqueeze"]
REQUEST += ["scaled_dot_product_attention", "squeeze", "movedim", "slice", "copy_"]
AFTER = ["view", "linear", "add", "rms_norm"]


@pytest.mark.parametrize("requests", [1, 2, 16])
def test_a_fallback_attention_over_requests_is_counted_whole(tmp_path, requests):
    names = 2 * [*BEFORE, *requests * REQUEST, *AFTER]
    # Each operation takes 1 us, and the engine's code before it another one.
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", "pid": 1, "tid": 1}
        | {"ts": 2 * i + 1, "dur": 1}
        for i, name in enumerate(names)
    ]
    step = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=1]", "pid": 1, "tid": 1}
    events.append({**step, "ts": 0, "dur": 2 * len(names)})
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    summary = summarise(make_table({"TP-0": read_trace(tmp_path / "t.json", loops())}), "cpu")
    found = {entry["category"]: entry for entry in summary["categories"]}

    # From the first view behind the writes to the view before the projection, in both layers.
    operations = 2 * (3 + requests * len(REQUEST) + 1)
    assert summary["total_us"] == 2 * len(names)
    assert found["attention"]["self_us"] == 2 * operations - 2
    assert found["attention"]["in_loops"] == found["attention"]["share"]
    assert found["gemm"]["self_us"] == 4
    # Split, the lookup of rope, its cat, and the two writes.
    assert found["memory"]["self_us"] == 2 * 5
    assert found["memory"]["in_loops"] == 0
    (between,) = (top for top in summary["top"] if top["name"].startswith("loop of"))
    assert (between["category"], between["calls"]) == ("attention", 2)
