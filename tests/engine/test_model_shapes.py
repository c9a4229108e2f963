"""The derived shapes against SGLang's own model classes, built without weights."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from project_copy import ROOT
from unit.engines.test_sglang_shapes import EAGLE, QWEN3_8B, QWEN3_30B_A3B, V3, V4_FLASH, V32

from leverbench.engines.sglang_shapes import gemm_shapes

# What no shape depends on, and the classes ask for.
COMMON = {
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
}
DEEPSEEK = {
    **COMMON,
    "num_key_value_heads": 128,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
DEEPSEEK_V4 = {
    **DEEPSEEK,
    "num_key_value_heads": 1,
    "qk_rope_head_dim": 64,
    "compress_ratios": [0, 4, 128, 4, 0],
    "compress_rope_theta": 40000,
    "sliding_window": 128,
    "index_topk": 512,
    "scoring_func": "sqrtsoftplus",
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "hc_pre_from_prev_sublayer": False,
    "q_head_norm": True,
    "num_hash_layers": 0,
}
# On a CPU the engine never fuses it.
APART = {"disable-shared-experts-fusion": True}
FP8_EXPERTS = {"SGLANG_DSV4_FP4_EXPERTS": "0"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "v3": ({**V3, **DEEPSEEK}, {"tp-size": 8, **APART}, False),
    "v3 attention on fewer": (
        {**V3, **DEEPSEEK},
        {"tp-size": 8, "attn-dp-size": 4, **APART},
        False,
    ),
    "v3 without compressed queries": (
        {**V3, **DEEPSEEK, "q_lora_rank": None},
        {"tp-size": 2, "ep-size": 2, **APART},
        False,
    ),
    "v3.2": ({**V32, **DEEPSEEK}, {"tp-size": 8}, False),
    "v4": ({**V4_FLASH, **DEEPSEEK_V4}, {"tp-size": 4}, False),
    "v4 draft": ({**V4_FLASH, **DEEPSEEK_V4}, {"tp-size": 4, **EAGLE}, True),
    "qwen3": ({**QWEN3_8B, **COMMON}, {"tp-size": 4}, False),
    "qwen3 key heads copied": ({**QWEN3_8B, **COMMON}, {"tp-size": 16}, False),
    "qwen3 moe": ({**QWEN3_30B_A3B, **COMMON}, {"tp-size": 4, "ep-size": 4}, False),
}


def words(args: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in args.items()
        for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
    ]


@pytest.fixture(scope="module")
def built() -> dict[str, dict[str, list[int]]]:
    """What the engine's classes make of each case."""
    questions = [[config, words(args), draft] for config, args, draft in CASES.values()]
    # A queue between ranks would wait for the others.
    env = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "false"}
    said = subprocess.run(
        [sys.executable, str(ROOT / "tests/engine_models.py")],
        input=json.dumps(questions),
        env={**os.environ, **env, **FP8_EXPERTS},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-4000:]
    answers = [json.loads(line) for line in said.stdout.splitlines() if line.startswith('{"')]
    return dict(zip(CASES, answers, strict=True))


def derived(case: str) -> dict[str, list[int]]:
    config, args, _ = CASES[case]
    shapes = gemm_shapes(config, args, {})
    return {name: [shape.n, shape.k] for shape in shapes for name in shape.layers}


def inside(name: str) -> str:
    """Returns a layer's name without the attention or MLP that it stands in."""
    return name.removeprefix("self_attn.").removeprefix("mlp.").removeprefix("model.")


@pytest.mark.parametrize("case", [case for case in CASES if "draft" not in case])
def test_the_engine_s_own_classes_have_the_derived_shapes(built, case):
    seen = {inside(name): shape for name, shape in built[case].items()}
    # Quantised, and multiplied by a kernel of its own.
    seen.pop("wo_a", None)

    assert seen == derived(case)


def test_a_draft_layer_has_the_derived_shapes_and_no_indexer(built):
    seen = {inside(name): shape for name, shape in built["v4 draft"].items()}
    del seen["wo_a"]
    expected = derived("v4 draft")
    del expected["indexer.wq_b"]

    assert seen == expected
