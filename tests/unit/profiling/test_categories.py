"""What names tell: real names of each family of kernels and operations."""

import time

import pytest
import yaml

from leverbench.errors import LeverbenchError
from leverbench.profiling import categories, levers
from leverbench.profiling.categories import category, tensor_cores, tensor_cores_of

# As they stand in traces; the long ones cut.
NAMES = {
    "comm": [
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void mscclpp::allreduce_kernel<__nv_bfloat16>(mscclpp::MemoryChannel*)",
        "void deep_ep::internode_ll::dispatch<true, 7168>(void*, float*)",
        "nvshmemi_transfer_rma_kernel",
        "inkling_two_shot_all_reduce_fused_kernel",
        "void all_reduce_push_res_kernel<__nv_bfloat16, 8>(void*)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<",
        "c10d::allreduce_",
        "gloo:all_reduce",
    ],
    "memcpy": ["Memcpy DtoH (Device -> Pinned)", "Memset (Device)"],
    "moe-gemm": [
        "bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x128u2_s6_et64x16_m64x16x32_c1x1x1_rM_TN_transOut",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512u2_s5_et128x8_m128x8x64_c1x1x1_16dp256b_rM_TN",
        "fused_moe_kernel",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906842624l, 256, 1, 8, 8>",
        "void deep_gemm::sm90_fp8_m_grouped_gemm_contiguous_1d2d_impl<",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<"
        "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >",
    ],
    "moe-routing": [
        "void moe_fused_gate_kernel<__nv_bfloat16, cutlass::bfloat16_t>(void*, void*, float*)",
        "void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<cutlass::bf",
        "void moe::dev::routing::routingDeepSeek::routingMainKernel<moe::dev::routing::",
        "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16>",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16>",
        "_hash_topk_triton_kernel",
        "moe_sum_reduce_kernel",
        "_fwd_kernel_ep_scatter_2",
        "compute_expert_offsets",
        "void moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*, int*, int*",
        "void tensorrt_llm::kernels::deepseek_v3_topk_kernel<float, float, float, int, 256, true>",
        "void topkGatingSoftmax<8, 256, 4, 16, 32, int>(float const*, bool const*, float*, int",
        "count_and_sort_expert_tokens_kernel",
    ],
    "fp8-gemm": [
        "void deep_gemm::sm100_fp8_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0>",
        "_w8a8_block_fp8_matmul",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u, 64u, 128u, 128u>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::Sm120BlockwiseScaledGemm<",
        "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1",
    ],
    "gemm": [
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>",
        "void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false>",
        "ampere_sgemm_128x64_nn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma",
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
        "void flash::flash_fwd_splitkv_mla_combine_kernel<cutlass::bfloat16_t, float>",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u, __half>",
        "merge_state_kernel",
        "void flash_c128_online_decode_v2<128>(Params)",
        "plan_compress_decode_kernel",
        "online_c128_mtp_clear_all_pending_kernel",
        "void flash_index_k_split_kernel<true>(IndexParams)",
        "_fwd_kernel",
        "void fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128Persistent",
        "void causal_conv1d_update_kernel<Causal_conv1d_update_kernel_traits<128, 4>",
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
        "void mxfp8_group_quant<__nv_bfloat16>(void const*, void*, unsigned char*)",
        "void cvt_fp8_e4m3_kernel<__nv_bfloat16>(float const*, void*)",
        "void flashinfer::mxfp8_quantize_kernel<__nv_bfloat16>(void*)",
        "void (anonymous namespace)::per_token_group_quant_flat_kernel<(anonymous namespace)::"
        "QuantTrait<__nv_bfloat16, __nv_fp8_e4m3, 128u, false, true, true, false>",
        "void cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*, float const*",
    ],
    "norm": [
        "void rmsnorm_warp<__nv_bfloat16, 7168>(void*)",
        "_hc_combine_norm_prefill",
        "void mhc_post_combine_norm_prefill_kernel<4>(void*)",
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
        "void TreeSpeculativeSamplingTargetOnly<1024u, (cub::BlockScanAlgorithm)2>(int*)",
        "void VerifyTreeGreedy<int, long>(int*, int*)",
        "build_tree_efficient",
        "void flashinfer::sampling::RadixTopKMaskLogitsKernel_MultiCTA<4u, float, int>",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, int>(float*, int*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >",
        "aten::argmax",
    ],
    "kv": [
        "void fused_store_flashmla_cache<__nv_bfloat16, 64>(void*)",
        "void store_kvcache_kernel<1024l, 1l, false, long>(StoreKVCacheParams)",
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


@pytest.mark.parametrize(
    ("name", "expected"), [(name, of) for of, names in NAMES.items() for name in names]
)
def test_names_belong_to_categories(name, expected):
    assert category(name) == expected


def test_every_category_is_shown_by_a_name():
    entries = yaml.safe_load(categories.CATEGORIES.read_text())

    assert {entry["category"] for entry in entries} | {"other"} == set(NAMES)


def test_what_is_left_of_an_annotation_is_the_engines_own_code():
    assert category("step[DECODE bs=16]", annotation=True) == "host-code"
    assert category("gloo:all_reduce", annotation=True) == "comm"


TENSOR_CORES = {
    "likely": [
        "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align8>",
        "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn",
        "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1",
        "void cutlass::device_kernel<cutlass::gemm::kernel::Sm120BlockwiseScaledGemm<",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, "
        "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpec",
        "void deep_gemm::sm90_fp8_m_grouped_gemm_contiguous_1d2d_impl<",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906842624l, 256, 1, 8, 8>",
        "_w8a8_block_fp8_matmul",
        "fused_moe_kernel",
        "_fwd_grouped_kernel_stage1",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN",
        "void sm100::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<",
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>",
    ],
    "none": [
        "Memcpy DtoH (Device -> Pinned)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float>",
        "void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false>",
        "ampere_sgemm_128x64_nn",
        "cutlass_80_simt_sgemm_128x64_8x5_nn_align1",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>",
        "_fwd_kernel_stage1",
        "_fwd_kernel_stage2",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*",
        "void (anonymous namespace)::per_token_group_quant_flat_kernel<(anonymous namespace)::",
        "void (anonymous namespace)::fused_rope_kernel<false, 64l, true, __nv_bfloat16>",
        "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, 0, true, false>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<int>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ",
        "void moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*, int*, int*",
        "triton_per_fused_copy__mul_sum_0",
        "set_mla_kv_buffer_kernel",
    ],
    None: [
        "_tiled_sparse_decode_kernel",
        "void (anonymous namespace)::clamp_position_kernel<long>(long*, long const*)",
    ],
}


@pytest.mark.parametrize(
    ("name", "expected"), [(name, told) for told, names in TENSOR_CORES.items() for name in names]
)
def test_tensor_cores_are_inferred_from_names(name, expected):
    assert tensor_cores(name) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (["likely", "likely", None], "likely"),
        (["none"], "none"),
        (["none", "likely"], "mixed"),
        ([None], None),
        ([], None),
    ],
)
def test_what_several_kernels_have_in_common(told, expected):
    assert tensor_cores_of(told) == expected


@pytest.mark.parametrize(
    "text",
    [
        "- category: a\n  patterns: ['(']\n",
        "a: [",
        "- patterns: [a]",
        "- {category: a, loop: x}",
        "- {category: a, loop: '(', fence: x}",
        "- {category: a, patterns: [{x: y}]}",
    ],
)
def test_patterns_that_cannot_be_used_are_one_message(tmp_path, monkeypatch, text):
    (tmp_path / "categories.yaml").write_text(text)
    monkeypatch.setattr(categories, "CATEGORIES", tmp_path / "categories.yaml")
    categories._rules.cache_clear()
    try:
        with pytest.raises(LeverbenchError, match=r"categories\.yaml: unusable patterns"):
            category("x")
    finally:
        categories._rules.cache_clear()


@pytest.mark.parametrize(
    "text", ["- tensor_cores: perhaps\n  patterns: [a]\n", "- {tensor_cores: none}", "["]
)
def test_the_patterns_of_tensor_cores_too(tmp_path, monkeypatch, text):
    (tmp_path / "tensor_cores.yaml").write_text(text)
    monkeypatch.setattr(categories, "TENSOR_CORES", tmp_path / "tensor_cores.yaml")
    categories._tensor_rules.cache_clear()
    try:
        with pytest.raises(LeverbenchError, match=r"tensor_cores\.yaml: unusable patterns"):
            tensor_cores("x")
    finally:
        categories._tensor_rules.cache_clear()


@pytest.mark.parametrize("look", [category, tensor_cores])
def test_a_name_of_any_length_is_soon_looked_at(look):
    began = time.monotonic()
    look("cutlass" * 14_000)

    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        "- {category: x, patterns: gemm}",
        "- {category: x, pattern: [gemm]}",
        "- {category: x, patterns: [gemm], color: red}",
        "- {category: , patterns: [gemm]}",
        "- {category: x, patterns: ['a{99999999999}']}",
        "- {category: x, patterns: ['" + "(" * 3000 + ")" * 3000 + "']}",
        "[" * 5000,
        "- {category: \udcff}",
        "",
    ],
)
@pytest.mark.parametrize("told", ["category", "tensor_cores"])
def test_a_file_of_patterns_that_says_something_else_is_one_message(
    tmp_path, monkeypatch, text, told
):
    path = tmp_path / "patterns.yaml"
    path.write_text(text.replace("category: x", f"{told}: none"), errors="surrogateescape")
    constant, look, rules = {
        "category": ("CATEGORIES", category, categories._rules),
        "tensor_cores": ("TENSOR_CORES", tensor_cores, categories._tensor_rules),
    }[told]
    monkeypatch.setattr(categories, constant, path)
    rules.cache_clear()
    try:
        with pytest.raises(LeverbenchError, match="unusable patterns"):
            look("gemm")
    finally:
        rules.cache_clear()


@pytest.mark.parametrize("text", ["quantization: gemm", "quantization:", "- a", "{a: \udcff}"])
def test_levers_whose_categories_are_no_list_are_one_message(tmp_path, monkeypatch, text):
    path = tmp_path / "levers.yaml"
    path.write_text(text, errors="surrogateescape")
    monkeypatch.setattr(levers, "LEVERS", path)
    levers._table.cache_clear()
    try:
        with pytest.raises(LeverbenchError, match="unusable table of levers"):
            levers.touched_categories("quantization")
    finally:
        levers._table.cache_clear()
