"""The shapes that SGLang looks tuned files up for: from a model's config.json, and from a log.

Read from the model sources of 0.5.23. Each linear layer whose weight is FP8 in blocks is one
lookup for its (N, K) on a rank, as long as the Triton backend serves it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.errors import LeverbenchError
from leverbench.tuning.shapes import Alternative, GemmShape

_CONFIG = "config.json"

# Other spellings of arguments that shapes depend on.
_ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "attention-data-parallel-size": "attn-dp-size",
    "attention-context-parallel-size": "attn-cp-size",
    "moe-data-parallel-size": "moe-dp-size",
    "cuda-graph-bs": "cuda-graph-bs-decode",
}

# They turn several sizes of the topology at once.
_NOT_DERIVED = (
    "dwdp-size",
    "enable-prefill-cp",
    "enable-prefill-context-parallel",
    "enable-dsa-prefill-context-parallel",
)

# All-to-all backends: experts are spread over all ranks, and each has whole shared experts.
_ALL_TO_ALL = frozenset(
    {
        *("ascend_fuseep", "deepep", "deepep_v2", "flashinfer", "flashinfer_megamoe"),
        *("megamoe", "mooncake", "mori", "nixl", "pplx"),
    }
)
# Those of them that `enforce-shared-experts-fusion` does not overrule.
_NEVER_FUSED = frozenset({"deepep_v2", "flashinfer", "flashinfer_megamoe"})
# Those with a place for a shared expert on each rank.
_SHARED_SLOTS = frozenset({"deepep", "megamoe"})

# Runners of MoE layers that keep the shared expert apart.
_UNFUSED_RUNNERS = frozenset(
    {
        *("experimental_sgl_trtllm", "flashinfer_cutedsl", "flashinfer_trtllm"),
        *("flashinfer_trtllm_routed", "lora_cutedsl", "lora_marlin", "lora_triton"),
    }
)

# Layers that the engine fuses, and what they are called in a checkpoint.
_PARTS = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
}

_PREFILL_ONLY = "kv_b_proj"
_FUSE_WQA_WKV = "SGLANG_OPT_FUSE_WQA_WKV"
_SHARED_EXPERT_TP1 = "SGLANG_SHARED_EXPERT_TP1"
_FP4_EXPERTS = "SGLANG_DSV4_FP4_EXPERTS"


@dataclass(frozen=True)
class _Split:
    """Over how many ranks a weight is split, and what to do where it does not split."""

    ranks: int
    cure: str


@dataclass(frozen=True)
class _Settings:
    """What shapes depend on, besides the model.

    Attributes:
        args: Arguments by their usual spelling.
        env: The server's variables.
        block: Outputs and inputs that share a scale.
        attention: How attention is split.
        dense: How MLPs that are no experts are split.
        shared: How shared experts are split.
        expert_groups: Over how many groups of ranks routed experts are spread.
    """

    args: Mapping[str, Any]
    env: Mapping[str, str]
    block: tuple[int, int]
    attention: _Split
    dense: _Split
    shared: _Split
    expert_groups: int

    def flag(self, name: str) -> bool:
        """Whether a flag is given."""
        return self.args.get(name) not in (None, False)

    @property
    def all_to_all(self) -> str:
        """The all-to-all backend."""
        return _all_to_all(self.args)


@dataclass(frozen=True)
class _Layer:
    """A linear layer: its shape on a rank, and its modules in the engine's model."""

    name: str
    n: int
    k: int
    modules: tuple[str, ...]


def gemm_shapes(
    config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[GemmShape, ...]:
    """Returns the shapes for which a server looks up tuned FP8 block-GEMM files.

    The draft model is the model's own MTP layer; one from another folder is not known here.
    Nor is what ``moe-runner-backend: auto`` becomes: on some devices it keeps a shared expert
    apart that is taken for fused here. A log shows it.

    Args:
        config: The model's config.json.
        args: The server's arguments, without dashes before them.
        env: The server's variables.

    Returns:
        Each (N, K) once, in the order of the layers.

    Raises:
        LeverbenchError: The model is of another type, its weights are not FP8 in blocks, or they
            cannot be split in this way.
    """
    settings = _settings(config, args, env)
    ignored = _ignored(config, env)
    layers: dict[tuple[int, int], list[str]] = {}
    for layer in _MODELS[config["model_type"]](config, settings):
        if not all(_is_ignored(module, ignored) for module in layer.modules):
            layers.setdefault((layer.n, layer.k), []).append(layer.name)
    return tuple(GemmShape(n, k, *settings.block, tuple(names)) for (n, k), names in layers.items())


def alternatives(
    config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[Alternative, ...]:
    """Returns what a server would look up if it were otherwise than config and settings say.

    They explain what `leverbench.tuning.shapes.compare` finds; arguments and errors as above.
    """
    given = _canonical(args)
    shapes = gemm_shapes(config, args, env)
    settings = _settings(config, args, env)
    tp_size = _count(given, "tp-size")
    fused = _shared_is_fused(config, settings)
    fuse_wqa_wkv = _is_on(env, _FUSE_WQA_WKV, True)
    whole_shared = _is_on(env, _SHARED_EXPERT_TP1, False)
    undrafted = {key: value for key, value in given.items() if key != "speculative-algorithm"}
    changes: list[tuple[str, Mapping[str, Any], Mapping[str, str]]] = [
        ("no draft layer (MTP) had run", undrafted, env),
        (
            "the server speculates with the model's draft layer (MTP)",
            {**given, "speculative-algorithm": "EAGLE"},
            env,
        ),
        (
            f"the server ran with {_FUSE_WQA_WKV}={int(not fuse_wqa_wkv)}",
            given,
            {**env, _FUSE_WQA_WKV: str(int(not fuse_wqa_wkv))},
        ),
        (
            "the shared experts were " + ("not fused" if fused else "fused") + " into the MoE",
            {
                **given,
                "disable-shared-experts-fusion": fused,
                "enforce-shared-experts-fusion": not fused,
            },
            env,
        ),
        (
            f"the server ran with {_SHARED_EXPERT_TP1}={int(not whole_shared)}",
            given,
            {**env, _SHARED_EXPERT_TP1: str(int(not whole_shared))},
        ),
    ]
    joined = {key: value for key, value in given.items() if key != "enable-dp-attention"}
    for size in dict.fromkeys((1, tp_size)):
        changes.append(
            (f"the server ran with attn-dp-size {size}", {**joined, "attn-dp-size": size}, env)
        )
    for size in (1, 2, 4, 8, 16):
        changes.append((f"the server ran with tp-size {size}", {**given, "tp-size": size}, env))
    found = [
        Alternative(
            f"no prompt had been prefilled in the way that uses {_PREFILL_ONLY}",
            tuple(shape for shape in shapes if shape.layers != (_PREFILL_ONLY,)),
        ),
        *_derivable(config, changes),
        Alternative(
            "another backend serves the shapes that are multiples of 128, and Triton the others",
            tuple(shape for shape in shapes if shape.n % 128 or shape.k % 128),
        ),
    ]
    return tuple(each for each in found if each.shapes != shapes)


def _derivable(
    config: Mapping[str, Any],
    changes: Iterable[tuple[str, Mapping[str, Any], Mapping[str, str]]],
) -> Iterator[Alternative]:
    for because, args, env in changes:
        try:
            yield Alternative(because, gemm_shapes(config, args, env))
        except LeverbenchError:
            continue  # no server runs like that


def captured_sizes(args: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Returns the batches, in requests, that decode graphs are captured for.

    Returns:
        Ascending; empty where nothing is captured; None where the arguments leave it to the
        engine.

    Raises:
        LeverbenchError: It is no list of numbers.
    """
    given = _canonical(args)
    switches = ("disable-cuda-graph", "disable-decode-cuda-graph")
    if (
        any(given.get(name) not in (None, False) for name in switches)
        or given.get("cuda-graph-backend-decode") == "disabled"
    ):
        return ()
    sizes = given.get("cuda-graph-bs-decode")
    if sizes is None:
        return None
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        raise LeverbenchError(
            f"{sizes!r} is no list of batch sizes",
            where="args.cuda-graph-bs-decode",
            cure="Write it as a list, such as [1, 2, 4, 8, 16].",
        )
    return tuple(sorted(set(sizes)))


def _deepseek(config: Mapping[str, Any], settings: _Settings) -> Iterator[_Layer]:
    """Yields the layers of V2, V3 and V3.2. Their MTP layer has no shape of its own.

    Its ``eh_proj`` is not quantised, and its decoder is that of the model.
    """
    hidden = _number(config, "hidden_size")
    latent = _number(config, "kv_lora_rank")
    rope, nope = _number(config, "qk_rope_head_dim"), _number(config, "qk_nope_head_dim")
    value = _number(config, "v_head_dim")
    total = _number(config, "num_attention_heads")
    heads = _part("num_attention_heads", total, settings.attention, 1)
    layers = range(_number(config, "num_hidden_layers"))
    queries = config.get("q_lora_rank")

    def attention(name: str, n: int, k: int) -> _Layer:
        return _Layer(name, n, k, _modules(layers, f"self_attn.{name}"))

    def split(name: str, width: int, k: int) -> _Layer:
        _part("num_attention_heads", total * width, settings.attention, settings.block[0])
        return attention(name, heads * width, k)

    if queries:
        yield attention("fused_qkv_a_proj_with_mqa", queries + latent + rope, hidden)
        yield split("q_b_proj", nope + rope, queries)
    else:
        yield split("q_proj", nope + rope, hidden)
        yield attention("kv_a_proj_with_mqa", latent + rope, hidden)
    yield split(_PREFILL_ONLY, nope + value, latent)
    inputs = _part("num_attention_heads", total * value, settings.attention, settings.block[1])
    yield attention("o_proj", hidden, inputs)
    if config.get("index_topk"):
        index = _number(config, "index_head_dim")
        outputs = _number(config, "index_n_heads") * index
        yield attention("indexer.wq_b", outputs, _number(config, "q_lora_rank"))
        # With an interleaved rope it is part of a weight in bfloat16.
        if not config.get("indexer_rope_interleave") or _is_on(
            settings.env, "SGLANG_DISABLE_DSA_INDEXER_FUSION", False
        ):
            yield attention("indexer.wk", index, hidden)
    sparse = [layer for layer in layers if _is_sparse(config, layer)]
    dense = [layer for layer in layers if layer not in sparse]
    if dense:
        width = _number(config, "intermediate_size")
        yield from _mlp("intermediate_size", width, hidden, settings.dense, settings, dense)
    if sparse:
        yield from _shared_experts(config, settings, sparse)


def _deepseek_v4(config: Mapping[str, Any], settings: _Settings) -> Iterator[_Layer]:
    """Yields the layers of V4. ``wo_a`` is no block GEMM, and what compresses keys is bfloat16."""
    hidden, rank = _number(config, "hidden_size"), _number(config, "q_lora_rank")
    width = _number(config, "head_dim")
    heads = _number(config, "num_attention_heads")
    _part("num_attention_heads", heads, settings.attention, 1)
    groups, latent = _number(config, "o_groups"), _number(config, "o_lora_rank")
    _part("o_groups", groups, settings.attention, 1)
    count = _number(config, "num_hidden_layers")
    layers = range(count)

    def attention(name: str, n: int, k: int, among: Iterable[int] = layers) -> _Layer:
        return _Layer(name, n, k, _modules(among, f"self_attn.{name}"))

    if _is_on(settings.env, _FUSE_WQA_WKV, True):
        yield attention("wqkv_a", rank + width, hidden)
    else:
        yield attention("wq_a", rank, hidden)
        yield attention("wkv", width, hidden)
    outputs = _part("num_attention_heads", heads * width, settings.attention, settings.block[0])
    yield attention("wq_b", outputs, rank)
    ratios = config.get("compress_ratios", [4] * count)
    indexed = [layer for layer, ratio in zip(layers, ratios, strict=False) if ratio == 4]
    if indexed:
        index = _number(config, "index_n_heads") * _number(config, "index_head_dim")
        yield attention("indexer.wq_b", index, rank, indexed)
    inputs = _part("o_groups", groups * latent, settings.attention, settings.block[1])
    yield attention("wo_b", hidden, inputs)
    yield from _shared_experts(config, settings, layers)
    if str(settings.args.get("speculative-algorithm")).upper() in ("EAGLE", "NEXTN"):
        for name in ("e_proj", "h_proj"):
            yield _Layer(name, hidden, hidden, (f"model.{name}",))


def _qwen3(config: Mapping[str, Any], settings: _Settings) -> Iterator[_Layer]:
    yield from _grouped_attention(config, settings)
    width, layers = (
        _number(config, "intermediate_size"),
        range(_number(config, "num_hidden_layers")),
    )
    hidden = _number(config, "hidden_size")
    # This MLP knows nothing of moe-dense-tp-size.
    split = _Split(_count(settings.args, "tp-size"), "Choose a smaller tp-size.")
    yield from _mlp("intermediate_size", width, hidden, split, settings, layers)


def _grouped_attention(config: Mapping[str, Any], settings: _Settings) -> Iterator[_Layer]:
    """Yields the attention of Qwen3, with and without experts: queries, keys and values at once."""
    hidden, total = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    groups = _number(config, "num_key_value_heads")
    width = int(config.get("head_dim") or hidden // total)
    split, (block_n, block_k) = settings.attention, settings.block
    # With fewer of them than ranks, each rank has one and several have the same.
    copies = max(groups, split.ranks)
    if copies % groups:
        raise _indivisible("num_key_value_heads", groups, split, 1)
    outputs = 0
    for key, heads, times in (
        ("num_attention_heads", total, 1),
        ("num_key_value_heads", copies, 2),
    ):
        _part(key, heads, split, 1)
        outputs += times * _part(key, heads * width, split, block_n, merged=True)
    layers = range(_number(config, "num_hidden_layers"))
    yield _Layer("qkv_proj", outputs, hidden, _modules(layers, "self_attn.qkv_proj"))
    inputs = _part("num_attention_heads", total * width, split, block_k)
    yield _Layer("o_proj", hidden, inputs, _modules(layers, "self_attn.o_proj"))


_MODELS: Mapping[str, Callable[[Mapping[str, Any], _Settings], Iterator[_Layer]]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek,
    "deepseek_v4": _deepseek_v4,
    "qwen3": _qwen3,
    "qwen3_moe": _grouped_attention,
}


def _mlp(
    key: str,
    width: int,
    hidden: int,
    split: _Split,
    settings: _Settings,
    layers: Iterable[int],
    prefix: str = "",
) -> Iterator[_Layer]:
    """Yields gate and up as one layer, and down; ``width`` is that of the MLP on all ranks."""
    block_n, block_k = settings.block
    half = _part(key, width, split, block_n, merged=True)
    inputs = _part(key, width, split, block_k)
    up, down = f"{prefix}gate_up_proj", f"{prefix}down_proj"
    yield _Layer(up, 2 * half, hidden, _modules(layers, f"mlp.{up}"))
    yield _Layer(down, hidden, inputs, _modules(layers, f"mlp.{down}"))


def _shared_experts(
    config: Mapping[str, Any], settings: _Settings, layers: Iterable[int]
) -> Iterator[_Layer]:
    count = config.get("n_shared_experts") or 0
    if not count or _shared_is_fused(config, settings):
        return
    key, hidden = "moe_intermediate_size", _number(config, "hidden_size")
    width = count * _number(config, key)
    yield from _mlp(key, width, hidden, settings.shared, settings, layers, "shared_experts.")


def _shared_is_fused(config: Mapping[str, Any], settings: _Settings) -> bool:
    """Whether the shared expert is one more expert of the MoE, instead of layers of its own."""
    if config["model_type"] not in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"):
        return False
    backend, groups = settings.all_to_all, settings.expert_groups
    runner = settings.args.get("moe-runner-backend")
    # The flag beats all else but a backend that cannot.
    waterfill = settings.flag("enable-waterfill") and backend in _SHARED_SLOTS
    enforced = settings.flag("enforce-shared-experts-fusion") or waterfill
    disabled = settings.flag("disable-shared-experts-fusion") and not waterfill
    if disabled or runner in _UNFUSED_RUNNERS or backend in _NEVER_FUSED:
        return False
    if config["model_type"] == "deepseek_v4":
        return enforced and (groups == 1 or backend in _SHARED_SLOTS)
    overlaps = ("enable-two-batch-overlap", "enable-single-batch-overlap")
    return enforced or (
        (config.get("architectures") or [None])[0] == "DeepseekV3ForCausalLM"
        and config.get("n_routed_experts") == 256
        and config.get("n_shared_experts") == 1
        and groups == 1
        and backend not in _ALL_TO_ALL
        and not any(settings.flag(name) for name in overlaps)
    )


def has_fp4_experts(config: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    """Whether routed experts are FP4, as far as a model's config.json and the variables tell.

    Without the variable the engine asks the weights.
    """
    if config.get("model_type") != "deepseek_v4":
        return False
    method = (config.get("quantization_config") or {}).get("routed_experts_quant_method")
    return method == "mxfp4" if method is not None else _is_on(env, _FP4_EXPERTS, True)


def _is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    return bool(
        config.get("n_routed_experts")
        and layer >= config.get("first_k_dense_replace", 0)
        and layer % config.get("moe_layer_freq", 1) == 0
    )


def _settings(
    config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
) -> _Settings:
    block = _block(config)
    given = _canonical(args)
    for name in _NOT_DERIVED:
        value = given.get(name)
        if value is True or value not in (None, False, 1):
            raise LeverbenchError(
                "shapes are not derived for servers with this argument",
                where=f"args.{name}",
                cure="Start such a server and take the shapes from its log.",
            )
    tp_size = _count(given, "tp-size")
    attn_dp_size = _count(given, "attn-dp-size")
    if attn_dp_size == 1 and given.get("enable-dp-attention") not in (None, False):
        attn_dp_size = _count(given, "dp-size")
    attention = attn_dp_size * _count(given, "attn-cp-size")
    spread = _all_to_all(given) in _ALL_TO_ALL
    groups = tp_size if spread else _count(given, "ep-size")
    experts = groups * _count(given, "moe-dp-size")
    for name, ranks in (("attn-dp-size", attention), ("ep-size", experts)):
        if tp_size % ranks:
            raise LeverbenchError(
                f"{tp_size} ranks cannot be divided into groups of {ranks}",
                where=f"args.{name}",
                cure="Choose a divisor of tp-size.",
            )
    whole_dense = _count(given, "moe-dense-tp-size", 0) == 1
    whole_shared = spread or _is_on(env, _SHARED_EXPERT_TP1, False)
    smaller = "Choose a smaller tp-size"
    return _Settings(
        args=given,
        env=env,
        block=block,
        attention=_Split(tp_size // attention, f"{smaller}, or a larger attn-dp-size."),
        dense=_Split(1 if whole_dense else tp_size, f"{smaller}, or moe-dense-tp-size 1."),
        shared=_Split(1 if whole_shared else tp_size, f"{smaller}, or set {_SHARED_EXPERT_TP1}=1."),
        expert_groups=groups,
    )


def _block(config: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the rows and columns of a block; checks the model's type on the way."""
    model_type = config.get("model_type")
    if model_type not in _MODELS:
        raise LeverbenchError(
            f"the shapes of a model of type {model_type!r} are not known",
            where=f"{_CONFIG}: model_type",
            cure=f"Known are {', '.join(_MODELS)}; for others take them from a server's log.",
        )
    quantization = config.get("quantization_config") or {}
    block = quantization.get("weight_block_size")
    if quantization.get("quant_method") != "fp8" or not block:
        raise LeverbenchError(
            "the weights are not FP8 in blocks, so that no tuned file of a block GEMM is read",
            where=f"{_CONFIG}: quantization_config",
            cure="It has quant_method fp8 and a weight_block_size where they are.",
        )
    return int(block[0]), int(block[1])


def _canonical(args: Mapping[str, Any]) -> dict[str, Any]:
    names = {name: name.replace("_", "-") for name in args}
    return {_ALIASES.get(names[name], names[name]): value for name, value in args.items()}


def _count(args: Mapping[str, Any], name: str, default: int = 1) -> int:
    value = args.get(name)
    if value is None:
        return default
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = -1
    if count < min(default, 1):
        raise LeverbenchError(
            f"{value!r} is no number of ranks", where=f"args.{name}", cure="Write 1, 2, 4, ..."
        )
    return count


def _all_to_all(args: Mapping[str, Any]) -> str:
    return str(args.get("moe-a2a-backend") or "none")


def _is_on(env: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns a switch among the variables, as the engine reads it."""
    value = str(env.get(name, default)).lower()
    if value in ("true", "1", "yes", "y"):
        return True
    if value in ("false", "0", "no", "n"):
        return False
    raise LeverbenchError(f"{env[name]!r} is no switch", where=f"env.{name}", cure="Write 1 or 0.")


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int):
        raise LeverbenchError(
            f"{value!r} is no dimension of a {config['model_type']} model",
            where=f"{_CONFIG}: {key}",
            cure="Take the file that belongs to the model's weights.",
        )
    return value


def _part(key: str, size: int, split: _Split, unit: int, *, merged: bool = False) -> int:
    """Returns a rank's part of a dimension.

    What is split must be whole blocks on each rank, and what is merged must begin with a block
    even on one rank: the engine refuses the rest.
    """
    part, left = divmod(size, split.ranks)
    if left or ((split.ranks > 1 or merged) and part % unit):
        raise _indivisible(key, size, split, unit)
    return part


def _indivisible(key: str, size: int, split: _Split, unit: int) -> LeverbenchError:
    blocks = f" in whole blocks of {unit}" if unit > 1 else ""
    return LeverbenchError(
        f"{size} cannot be split over {split.ranks} ranks{blocks}",
        where=f"{_CONFIG}: {key}",
        cure=split.cure,
    )


def _modules(layers: Iterable[int], name: str) -> tuple[str, ...]:
    return tuple(f"model.layers.{layer}.{name}" for layer in layers)


def _ignored(config: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the modules that are not quantised, without the root's name."""
    quantization = config["quantization_config"]
    key = "ignored_layers" if "ignored_layers" in quantization else "modules_to_not_convert"
    names = [*(quantization.get(key) or ()), *env.get("SGLANG_FP8_IGNORED_LAYERS", "").split(",")]
    return tuple(name.strip().rstrip(".").removeprefix("model.") for name in names if name.strip())


def _is_ignored(module: str, ignored: tuple[str, ...]) -> bool:
    """Whether whole parts of a module's path are listed: ``mlp.gate`` is not ``mlp.gate_up_proj``.

    Of what the engine fuses, all parts must be listed.
    """
    parent, name = module.rsplit(".", 1)
    paths = [f".{parent}.{part}." for part in _PARTS.get(name, (name,))]
    return all(any(f".{each}." in path for each in ignored) for path in paths)
