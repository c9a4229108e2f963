"""Shapes from config.json and settings, and from the lines of a log."""

import pytest
from project_copy import ROOT

from leverbench.campaign.file import load_campaign
from leverbench.engines import get_engine
from leverbench.engines.sglang_config_lines import looked_up
from leverbench.engines.sglang_shapes import (
    alternatives,
    captured_sizes,
    gemm_shapes,
    has_fp4_experts,
)
from leverbench.errors import LeverbenchError
from leverbench.tuning.shapes import compare

BLOCK_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": BLOCK_FP8,
}
V32 = {
    **V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}
V4_FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "quantization_config": {**BLOCK_FP8, "scale_fmt": "ue8m0"},
}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "quantization_config": BLOCK_FP8,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "quantization_config": BLOCK_FP8,
}
# The model of the log below: V3 with other numbers.
SMALL_V3 = {
    **V3,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 6,
    "first_k_dense_replace": 1,
    "n_routed_experts": 32,
    "num_attention_heads": 32,
    "q_lora_rank": 768,
}
EAGLE = {
    "speculative-algorithm": "EAGLE",
    "speculative-num-steps": 1,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 2,
}

# Of a server of 0.5.17 on one H200, in which a plugin answered for (2048, 2048).
MISS = (
    "[2026-11-29 15:59:38] Using default W8A8 Block FP8 kernel config. Performance might be"
    " sub-optimal! Config file not found at /site/sglang/kernels/ops/quantization/configs/"
    "N={n},K={k},device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json\n"
)
MISSED = (
    *((1344, 2048), (6144, 768), (2048, 4096), (16384, 2048), (2048, 8192)),
    *((2048, 1024), (8192, 512)),
)
LOG = (
    "[2026-11-29 15:59:37] Config does not support fused shared expert(s). Shared experts fusion"
    " optimization is disabled.\n"
    "\n  0%|          | 0/6 [00:00<?, ?it/s]\n"
    + "".join(MISS.format(n=n, k=k) for n, k in MISSED[:5])
    + "[2026-11-29 15:59:38] Using default MoE kernel config. Performance might be sub-optimal!"
    " Config file not found at /site/sglang/srt/layers/moe/moe_runner/triton_utils/configs/"
    "triton_3_6_0/E=32,N=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json,"
    " you can create them with https://example.org/fused_moe_triton\n"
    "[2026-11-29 15:59:38] lb_tuned: serving tuned config for N=2048 K=2048\n"
    "Capturing batches (bs=16 avail_mem=54.15 GB):   0%|          | 0/6 [00:00<?, ?it/s]"
    + "".join(MISS.format(n=n, k=k) for n, k in MISSED[5:])
)
HIT = (
    "[2026-11-29 15:59:38 DP1 TP0 EP0] Using configuration from /my site/configs/N=1344,K=2048,"
    "device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json for W8A8 Block FP8"
    " kernel.\n"
)


def pairs(config: dict, args: dict, env: dict | None = None) -> list[tuple[int, int]]:
    return [(shape.n, shape.k) for shape in gemm_shapes(config, args, env or {})]


def layers(config: dict, args: dict, env: dict | None = None) -> dict[str, tuple[int, int]]:
    shapes = gemm_shapes(config, args, env or {})
    return {name: (shape.n, shape.k) for shape in shapes for name in shape.layers}


def differing(config: dict, args: dict, ran: tuple[dict, dict]) -> dict[tuple[int, int], str]:
    """Returns why shapes differ from those of a server that ran with other settings."""
    log = "".join(MISS.format(n=n, k=k) for n, k in pairs(config, *ran))
    found = compare(gemm_shapes(config, args, {}), looked_up(log), alternatives(config, args, {}))
    return {(each.n, each.k): each.reason for each in found}


@pytest.mark.parametrize(
    ("tp_size", "wq_b", "wo_b", "gate_up", "down"),
    [
        (1, (32768, 1024), (4096, 8192), (4096, 4096), (4096, 2048)),
        (2, (16384, 1024), (4096, 4096), (2048, 4096), (4096, 1024)),
        (4, (8192, 1024), (4096, 2048), (1024, 4096), (4096, 512)),
        (8, (4096, 1024), (4096, 1024), (512, 4096), (4096, 256)),
    ],
)
def test_deepseek_v4_flash(tp_size, wq_b, wo_b, gate_up, down):
    assert layers(V4_FLASH, {"tp-size": tp_size, **EAGLE}) == {
        "wqkv_a": (1536, 4096),
        "wq_b": wq_b,
        "indexer.wq_b": (8192, 1024),
        "wo_b": wo_b,
        "shared_experts.gate_up_proj": gate_up,
        "shared_experts.down_proj": down,
        "e_proj": (4096, 4096),
        "h_proj": (4096, 4096),
    }


def test_layers_of_one_shape_are_one_lookup():
    shapes = gemm_shapes(V4_FLASH, {"tp-size": 4, **EAGLE}, {})

    assert len(shapes) == 6
    assert shapes[1].layers == ("wq_b", "indexer.wq_b")
    assert (shapes[1].block_n, shapes[1].block_k) == (128, 128)
    assert pairs(V4_FLASH, {"tp-size": 4}) == [(shape.n, shape.k) for shape in shapes[:5]]


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "eagle"])
def test_the_draft_layer_s_own_are_looked_up_where_the_server_speculates_with_it(algorithm):
    assert (4096, 4096) in pairs(V4_FLASH, {"tp-size": 4, "speculative-algorithm": algorithm})
    assert "e_proj" not in layers(V4_FLASH, {"speculative-algorithm": "DSPARK"})


def test_deepseek_v4_without_the_fused_projection():
    found = layers(V4_FLASH, {"tp-size": 4}, {"SGLANG_OPT_FUSE_WQA_WKV": "0"})

    assert (found["wq_a"], found["wkv"]) == ((1024, 4096), (512, 4096))
    assert "wqkv_a" not in found


def test_deepseek_v4_has_an_indexer_where_keys_are_compressed_to_a_quarter():
    ratios = [0, 0, *[4, 128] * 20, 4, 0]

    assert "indexer.wq_b" in layers({**V4_FLASH, "compress_ratios": ratios}, {"tp-size": 2})
    assert "indexer.wq_b" not in layers({**V4_FLASH, "compress_ratios": [0, 128] * 22}, {})


def test_deepseek_v3():
    assert layers(V3, {"tp-size": 8}) == {
        "fused_qkv_a_proj_with_mqa": (2112, 7168),
        "q_b_proj": (3072, 1536),
        "kv_b_proj": (4096, 512),
        "o_proj": (7168, 2048),
        "gate_up_proj": (4608, 7168),
        "down_proj": (7168, 2304),
    }


def test_the_draft_layer_of_deepseek_v3_has_no_shape_of_its_own():
    assert layers(V3, {"tp-size": 8, **EAGLE}) == layers(V3, {"tp-size": 8})


def test_deepseek_v3_2_has_an_indexer_and_its_shared_expert_apart():
    expected = {
        **layers(V3, {"tp-size": 8}),
        "indexer.wq_b": (8192, 1536),
        "indexer.wk": (128, 7168),
        "shared_experts.gate_up_proj": (512, 7168),
        "shared_experts.down_proj": (7168, 256),
    }

    assert layers(V32, {"tp-size": 8}) == expected
    del expected["indexer.wk"]
    assert layers({**V32, "indexer_rope_interleave": True}, {"tp-size": 8}) == expected


def test_deepseek_without_compressed_queries():
    found = layers({**V3, "q_lora_rank": None}, {"tp-size": 8})

    assert found["q_proj"] == (3072, 7168)
    assert found["kv_a_proj_with_mqa"] == (576, 7168)
    assert "q_b_proj" not in found


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({"disable-shared-experts-fusion": True}, id="switched off"),
        pytest.param({"ep-size": 2}, id="expert parallelism"),
        pytest.param({"moe-runner-backend": "flashinfer_trtllm"}, id="runner"),
        pytest.param({"enable-two-batch-overlap": True}, id="overlap"),
    ],
)
def test_deepseek_v3_s_shared_expert_is_apart_where_it_cannot_be_fused(args):
    found = layers(V3, {"tp-size": 8, **args})

    assert found["shared_experts.gate_up_proj"] == (512, 7168)
    assert found["shared_experts.down_proj"] == (7168, 256)


def test_a_shared_expert_is_fused_where_that_is_enforced():
    enforced = {"tp-size": 4, "enforce-shared-experts-fusion": True}

    assert "shared_experts.down_proj" not in layers(V4_FLASH, enforced)
    assert "shared_experts.down_proj" in layers(V4_FLASH, {**enforced, "ep-size": 4})
    assert "shared_experts.down_proj" not in layers(SMALL_V3, enforced)


@pytest.mark.parametrize(
    ("args", "env"),
    [
        ({"moe-a2a-backend": "deepep"}, {}),
        ({}, {"SGLANG_SHARED_EXPERT_TP1": "true"}),
    ],
)
def test_shared_experts_are_whole_on_each_rank(args, env):
    found = layers(V4_FLASH, {"tp-size": 4, **args}, env)

    assert found["shared_experts.gate_up_proj"] == (4096, 4096)
    assert found["shared_experts.down_proj"] == (4096, 2048)
    assert found["wq_b"] == (8192, 1024)


@pytest.mark.parametrize(
    "args",
    [
        {"attn-dp-size": 4},
        {"attention-data-parallel-size": 4},
        {"enable-dp-attention": True, "dp-size": 4},
        {"attn-cp-size": 4},
    ],
)
def test_attention_is_split_over_fewer_ranks_than_the_rest(args):
    found = layers(V3, {"tp-size": 8, **args})

    assert found["q_b_proj"] == (12288, 1536)
    assert found["o_proj"] == (7168, 8192)
    assert found["gate_up_proj"] == (4608, 7168)


def test_dense_mlps_can_be_whole_on_each_rank():
    found = layers(V3, {"tp-size": 8, "moe-dense-tp-size": 1})

    assert found["gate_up_proj"] == (36864, 7168)
    assert found["down_proj"] == (7168, 18432)


@pytest.mark.parametrize("name", ["tp-size", "tp_size", "tp", "tensor-parallel-size"])
def test_every_spelling_of_the_tensor_parallel_size(name):
    assert layers(V4_FLASH, {name: 2})["wq_b"] == (16384, 1024)


@pytest.mark.parametrize(
    ("tp_size", "expected"),
    [
        (1, [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]),
        (4, [(1536, 4096), (4096, 1024), (6144, 4096), (4096, 3072)]),
        # 8 key heads, 16 ranks: each rank has 2 heads and one of each of key and value.
        (16, [(512, 4096), (4096, 256), (1536, 4096), (4096, 768)]),
    ],
)
def test_qwen3_dense(tp_size, expected):
    assert pairs(QWEN3_8B, {"tp-size": tp_size}) == expected


def test_qwen3_moe_has_attention_alone():
    assert layers(QWEN3_30B_A3B, {"tp-size": 4}) == {
        "qkv_proj": (1280, 2048),
        "o_proj": (2048, 1024),
    }


def test_layers_that_are_not_quantised_have_no_shape():
    listed = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(36)]
    listed += [f"model.layers.{layer}.mlp.gate" for layer in range(36)]
    listed += ["lm_head", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj"]

    for key in ("modules_to_not_convert", "ignored_layers"):
        config = {**QWEN3_8B, "quantization_config": {**BLOCK_FP8, key: listed}}
        assert list(layers(config, {})) == ["qkv_proj", "gate_up_proj", "down_proj"]


def test_what_the_engine_is_told_to_leave_as_it_is_has_no_shape():
    env = {
        "SGLANG_FP8_IGNORED_LAYERS": "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj,lm_head"
    }

    assert list(layers(QWEN3_8B, {}, env)) == ["o_proj", "gate_up_proj", "down_proj"]


def test_the_reference_campaign_s_shapes():
    path = ROOT / "config/campaigns/deepseek-v4-flash.yaml"
    campaign = load_campaign(path, {}, lambda name, key: get_engine(name).lever_family(key))
    counts = {
        name: len(gemm_shapes(V4_FLASH, variant.engine.args, variant.engine.env))
        for name, variant in campaign.variants.items()
    }

    assert counts["baseline"] == counts["expert-parallel"] == counts["fp8-tuned"] == 5
    assert counts["mtp-1"] == counts["mtp-3"] == counts["mtp-1-fp8-tuned"] == 6
    assert captured_sizes(campaign.variants["mtp-3"].engine.args) == (1, 2, 4, 8, 16, 32)


def test_what_a_server_looked_up_is_what_is_derived_and_the_one_a_plugin_served_is_unknown():
    derived = gemm_shapes(SMALL_V3, {}, {})
    (difference,) = compare(derived, looked_up(LOG), alternatives(SMALL_V3, {}, {}))

    assert {(shape.n, shape.k) for shape in derived} == {*MISSED, (2048, 2048)}
    assert (difference.n, difference.k, difference.derived) == (2048, 2048, True)
    assert difference.layers == ("shared_experts.gate_up_proj",)
    assert difference.reason.startswith("Unknown.")
    assert "a plugin may have answered" in difference.reason


def test_a_log_from_before_the_first_prompt_lacks_what_only_prefill_uses():
    derived = gemm_shapes(SMALL_V3, {}, {})
    log = "".join(MISS.format(n=shape.n, k=shape.k) for shape in derived if shape.n != 8192)
    (difference,) = compare(derived, looked_up(log), alternatives(SMALL_V3, {}, {}))

    assert difference.layers == ("kv_b_proj",)
    assert difference.reason == (
        "Likely because no prompt had been prefilled in the way that uses kv_b_proj."
    )


def test_a_server_that_speculated():
    assert differing(V4_FLASH, {"tp-size": 4}, ({"tp-size": 4, **EAGLE}, {})) == {
        (4096, 4096): "Likely e_proj and h_proj, because the server speculates with the model's"
        " draft layer (MTP)."
    }


def test_a_draft_layer_that_had_not_run():
    assert differing(V4_FLASH, {"tp-size": 4, **EAGLE}, ({"tp-size": 4}, {})) == {
        (4096, 4096): "Likely because no draft layer (MTP) had run."
    }


def test_a_server_that_ran_unfused():
    because = "because the server ran with SGLANG_OPT_FUSE_WQA_WKV=0."
    ran = ({"tp-size": 2}, {"SGLANG_OPT_FUSE_WQA_WKV": "0"})

    assert differing(V4_FLASH, {"tp-size": 2}, ran) == {
        (1536, 4096): f"Likely {because}",
        (1024, 4096): f"Likely wq_a, {because}",
        (512, 4096): f"Likely wkv, {because}",
    }


def test_a_server_that_ran_on_fewer_ranks():
    reasons = differing(V4_FLASH, {"tp-size": 4}, ({"tp-size": 2}, {}))

    assert reasons[(16384, 1024)] == "Likely wq_b, because the server ran with tp-size 2."
    assert reasons[(4096, 2048)] == "Likely because the server ran with tp-size 2."
    assert len(reasons) == 7
    assert not any(reason.startswith("Unknown") for reason in reasons.values())


@pytest.mark.parametrize("args", [{"attn-dp-size": 4}, {"enable-dp-attention": True, "dp-size": 4}])
def test_a_server_that_split_attention_over_all_ranks(args):
    reasons = differing(QWEN3_8B, {"tp-size": 4, **args}, ({"tp-size": 4}, {}))

    because = "because the server ran with attn-dp-size 1."
    # The whole qkv_proj has the shape of a rank's gate_up_proj: that one stays.
    assert reasons == {
        (4096, 4096): f"Likely {because}",
        (1536, 4096): f"Likely qkv_proj, {because}",
        (4096, 1024): f"Likely o_proj, {because}",
    }


def test_a_server_that_fused_its_shared_expert():
    fused = {"tp-size": 8, "enforce-shared-experts-fusion": True}

    assert set(differing(V32, {"tp-size": 8}, (fused, {})).values()) == {
        "Likely because the shared experts were fused into the MoE."
    }


def test_a_server_of_which_triton_has_only_what_another_backend_leaves():
    log = MISS.format(n=2112, k=7168)
    derived = gemm_shapes(V3, {"tp-size": 8}, {})
    differences = compare(derived, looked_up(log), alternatives(V3, {"tp-size": 8}, {}))

    assert len(differences) == 5
    assert {difference.reason for difference in differences} == {
        "Likely because another backend serves the shapes that are multiples of 128, and Triton"
        " the others."
    }


@pytest.mark.parametrize(
    ("config", "env", "expected"),
    [
        (V4_FLASH, {}, True),
        (V4_FLASH, {"SGLANG_DSV4_FP4_EXPERTS": "0"}, False),
        # What the configuration says goes before the variable.
        (
            {**V4_FLASH, "quantization_config": {"routed_experts_quant_method": "mxfp4"}},
            {"SGLANG_DSV4_FP4_EXPERTS": "0"},
            True,
        ),
        (V3, {}, False),
        ({}, {}, False),
    ],
)
def test_experts_in_fp4(config, env, expected):
    assert has_fp4_experts(config, env) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"cuda-graph-bs-decode": [8, 1, 16, 8]}, (1, 8, 16)),
        ({"cuda-graph-bs": [4, 2]}, (2, 4)),
        ({}, None),
        ({"cuda-graph-bs-decode": [1], "disable-cuda-graph": True}, ()),
        ({"cuda-graph-backend-decode": "disabled"}, ()),
    ],
)
def test_captured_batches(args, expected):
    assert captured_sizes(args) == expected


@pytest.mark.parametrize("sizes", ["1 2 4", [1, "2"], [0], 8])
def test_captured_batches_that_are_no_list_of_numbers(sizes):
    with pytest.raises(LeverbenchError, match=r"args\.cuda-graph-bs-decode: .* is no list"):
        captured_sizes({"cuda-graph-bs-decode": sizes})


@pytest.mark.parametrize(
    ("config", "args", "env", "message"),
    [
        pytest.param(
            {**V3, "model_type": "llama"}, {}, {}, "model_type: the shapes .* 'llama'", id="type"
        ),
        pytest.param(
            {**V3, "quantization_config": None},
            {},
            {},
            "quantization_config: .* not FP8",
            id="bf16",
        ),
        pytest.param(
            {**V3, "quantization_config": {"quant_method": "fp8"}}, {}, {}, "blocks", id="no block"
        ),
        pytest.param({**V3, "hidden_size": None}, {}, {}, "hidden_size: None is no", id="missing"),
        pytest.param(
            V3,
            {"tp-size": 3},
            {},
            "num_attention_heads: 128 cannot be split over 3 ranks.*attn-dp-size",
            id="heads",
        ),
        pytest.param(
            V3,
            {"tp-size": 32},
            {},
            "intermediate_size: 18432 .* over 32 ranks in whole blocks of 128.*moe-dense-tp-size 1",
            id="dense",
        ),
        pytest.param(
            V4_FLASH, {"tp-size": 16}, {}, "o_groups: 8 cannot be split over 16 ranks", id="groups"
        ),
        pytest.param(
            V4_FLASH,
            {"tp-size": 32, "attn-dp-size": 8},
            {},
            "moe_intermediate_size: 2048 .* 32 ranks in whole blocks of 128.*SHARED_EXPERT_TP1=1",
            id="shared",
        ),
        pytest.param(
            {**QWEN3_8B, "num_key_value_heads": 3},
            {"tp-size": 4},
            {},
            "num_key_value_heads: 3 cannot be split over 4 ranks",
            id="copies of key heads",
        ),
        pytest.param(V3, {"tp-size": 8, "attn-dp-size": 3}, {}, "args.attn-dp-size: 8", id="dp"),
        pytest.param(V3, {"tp-size": 8, "ep-size": 3}, {}, "args.ep-size: 8 ranks", id="ep"),
        pytest.param(V3, {"tp-size": "many"}, {}, "args.tp-size: 'many' is no number", id="word"),
        pytest.param(V3, {"enable-prefill-cp": True}, {}, "args.enable-prefill-cp: ", id="cp"),
        pytest.param(
            V4_FLASH,
            {},
            {"SGLANG_OPT_FUSE_WQA_WKV": "maybe"},
            "env.SGLANG_OPT_FUSE_WQA_WKV: 'maybe' is no switch",
            id="switch",
        ),
    ],
)
def test_what_has_no_shapes_is_told_with_place_and_cure(config, args, env, message):
    with pytest.raises(LeverbenchError, match=message) as told:
        gemm_shapes(config, args, env)

    assert told.value.where
    assert told.value.cure
