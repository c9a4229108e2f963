"""The project's own kernel, built by the machine's compiler, against the engine's loop."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.kernels.build import build, toolchain
from leverbench.kernels.manifest import Kernel, read_kernel

FOLDER = Path(__file__).resolve().parents[3] / "kernels/decode-attention"
BASE = {"heads": 4, "kv_heads": 2, "head_dim": 64, "context": 128, "batch": 8}
CONFIGS = [{"block": b, "threads": t} for b, t in product((16, 32, 64, 128), (1, 2))]


@dataclass(frozen=True)
class Built:
    """The kernel as a server has it: its manifest, its module and its entry point."""

    kernel: Kernel
    module: ModuleType
    entry: Any

    def inputs(self, dimensions: Mapping[str, int], seed: int = 1) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = self.module.make_inputs(
            dimensions, torch.Generator().manual_seed(seed)
        )
        return inputs

    def reference(self, inputs: Mapping[str, Tensor]) -> Tensor:
        exact = {
            name: value.double() if value.is_floating_point() else value
            for name, value in inputs.items()
        }
        result: Tensor = self.module.reference(exact)["output"]
        return result

    def output(self, inputs: Mapping[str, Tensor], config: Mapping[str, int]) -> Tensor:
        output = torch.full_like(inputs["query"], torch.nan)
        self.module.run(self.entry, inputs, {"output": output}, config)
        return output

    def close(self, result: Tensor, reference: Tensor) -> bool:
        tolerance = self.kernel.tolerance
        allowed = tolerance.absolute + tolerance.relative * reference.abs()
        return bool(((result.double() - reference).abs() <= allowed).all())


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Built:
    kernel = read_kernel(FOLDER)
    out = tmp_path_factory.mktemp("built")
    build(kernel, toolchain(kernel, EngineSettings("sglang", None, None, (), {}, {})), out)
    spec = importlib.util.spec_from_file_location("decode_attention", out / "code/kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Built(kernel, module, module.load(out / "code"))


def test_every_config_is_right_at_every_shape(decode):
    shapes = [BASE, *decode.module.odd_shapes(BASE)]
    for dimensions in shapes:
        inputs = decode.inputs(dimensions)
        expected = decode.reference(inputs)
        for config in CONFIGS:
            found = decode.output(inputs, config)
            assert decode.close(found, expected), (dimensions, config)


def test_the_configs_are_those_that_the_manifest_tries(decode):
    tried = [
        dict(zip(decode.kernel.parameters, values, strict=True))
        for values in product(*decode.kernel.parameters.values())
    ]

    assert tried == CONFIGS
    with pytest.raises(ValueError, match="no code was compiled"):
        decode.output(decode.inputs(BASE), {"block": 8, "threads": 1})


def test_the_fallback_does_the_same(decode):
    for dimensions in [BASE, *decode.module.odd_shapes(BASE)]:
        inputs = decode.inputs(dimensions)
        outputs = decode.module.make_outputs(dimensions, "cpu")
        outputs["output"].fill_(torch.nan)
        decode.module.fallback(inputs, outputs)
        assert decode.close(outputs["output"], decode.reference(inputs)), dimensions


def test_inputs_are_drawn_anew_and_look_like_a_server_s(decode):
    inputs, others = decode.inputs(BASE), decode.inputs(BASE, seed=2)

    assert not torch.equal(inputs["query"], others["query"])
    assert inputs["seq_lens"].max() == BASE["context"]
    assert len(set(inputs["seq_lens"].tolist())) > 1
    used = torch.cat(
        [
            inputs["req_to_token"][row, :length]
            for row, length in zip(inputs["req_pool_indices"], inputs["seq_lens"], strict=True)
        ]
    )
    assert len(used.unique()) == len(used) < len(inputs["k_cache"])
    assert not torch.equal(used, used.sort().values)


def test_nothing_is_read_but_a_request_s_own_tokens(decode):
    inputs = decode.inputs(BASE)
    expected = decode.reference(inputs)
    free = torch.ones(len(inputs["k_cache"]), dtype=torch.bool)
    for row, length in zip(inputs["req_pool_indices"], inputs["seq_lens"], strict=True):
        free[inputs["req_to_token"][row, :length].long()] = False
    for name in ("k_cache", "v_cache"):
        inputs[name][free] = torch.nan

    assert all(decode.close(decode.output(inputs, config), expected) for config in CONFIGS)


def test_large_scores_do_not_overflow_and_a_nan_stays_one(decode):
    inputs = decode.inputs(BASE)
    # Scores of some hundreds: exp of them is no float32, and their own rounding shows.
    inputs["query"] *= 100
    expected = decode.reference(inputs)
    for config in CONFIGS:
        assert torch.allclose(decode.output(inputs, config).double(), expected, atol=0.01)

    first = inputs["req_to_token"][inputs["req_pool_indices"][0], 0]
    inputs["v_cache"][first] = torch.nan
    for config in CONFIGS:
        found = decode.output(inputs, config)
        assert found[0].isnan().all()
        assert not found[1:].isnan().any()


class Scripted:
    """Calls `serve` as the engine calls its function, and notes what was chosen."""

    def __init__(self, decode: Built, config: Mapping[str, int]) -> None:
        self.decode, self.config = decode, config
        self.asked: list[Mapping[str, int]] = []

    def choose(self, dimensions: Mapping[str, int]) -> Mapping[str, int]:
        self.asked.append(dimensions)
        return self.config

    def call(self, inputs: Mapping[str, Tensor], output: Tensor, **changes: Any) -> Any:
        names = ("k_cache", "v_cache", "req_to_token", "req_pool_indices", "seq_lens")
        tensors = [changes.pop(name, inputs[name]) for name in names]
        options = {
            "scaling": inputs["query"].shape[2] ** -0.5,
            "enable_gqa": True,
            "causal": False,
            "is_cross_attn": False,
            "sliding_window_size": None,
            **changes,
        }
        query, encoder_lens = options.pop("query", inputs["query"]), options.pop("encoder", None)
        return self.decode.module.serve(
            self.decode.entry,
            self.choose,
            object(),
            query,
            output,
            *tensors,
            encoder_lens,
            **options,
        )


@pytest.fixture
def server(decode: Built) -> Scripted:
    return Scripted(decode, {"block": 32, "threads": 1})


def test_a_call_is_served_as_the_engine_would(decode, server):
    inputs = decode.inputs(BASE)
    output = torch.full_like(inputs["query"], torch.nan)
    before = {name: value.clone() for name, value in inputs.items()}

    assert server.call(inputs, output) is output
    assert decode.close(output, decode.reference(inputs))
    assert all(torch.equal(value, before[name]) for name, value in inputs.items())


def test_tensors_may_be_parts_of_larger_ones(decode, server):
    inputs = decode.inputs(BASE)
    expected = decode.reference(inputs)
    wide = {
        name: torch.cat([torch.full_like(inputs[name], torch.nan), inputs[name]], dim=1)
        for name in ("query", "k_cache", "v_cache")
    }
    parts = {name: value[:, value.shape[1] // 2 :] for name, value in wide.items()}
    output = torch.full((BASE["batch"], 9, BASE["head_dim"]), 7.0)

    server.call({**inputs, **parts}, output[:, 3:7])
    assert decode.close(output[:, 3:7], expected)
    assert (output[:, :3] == 7).all()
    assert (output[:, 7:] == 7).all()


def test_the_engine_s_scaling_is_used(decode, server):
    inputs = decode.inputs(BASE)
    output = torch.empty_like(inputs["query"])
    server.call(inputs, output, scaling=0.5)
    scaled = {**inputs, "query": inputs["query"] * 0.5 * BASE["head_dim"] ** 0.5}
    assert decode.close(output, decode.reference(scaled))

    server.call(inputs, output, scaling=None)
    assert decode.close(output, decode.reference(inputs))


def test_what_was_chosen_is_asked_for_once(decode, server):
    inputs = decode.inputs(BASE)
    for _ in range(3):
        server.call(inputs, torch.empty_like(inputs["query"]))
    smaller = decode.inputs({**BASE, "batch": 3})
    server.call(smaller, torch.empty_like(smaller["query"]))

    shape = {"heads": 4, "kv_heads": 2, "head_dim": 64}
    assert server.asked == [{"batch": 8, **shape}, {"batch": 3, **shape}]


def half(name: str) -> Callable[[dict[str, Tensor]], dict[str, Any]]:
    return lambda inputs: {name: inputs[name].bfloat16()}


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: {"encoder": inputs["seq_lens"]},
        lambda inputs: {"causal": True},
        lambda inputs: {"is_cross_attn": True},
        lambda inputs: {"sliding_window_size": 16},
        lambda inputs: {"enable_gqa": False},
        half("query"),
        half("k_cache"),
        half("v_cache"),
        lambda inputs: {"query": inputs["query"].mT.contiguous().mT},
        lambda inputs: {"query": inputs["query"].to("meta")},
        lambda inputs: {"v_cache": inputs["v_cache"][..., :32]},
        lambda inputs: {"req_to_token": inputs["req_to_token"].long()},
        lambda inputs: {"seq_lens": inputs["seq_lens"].int()},
        lambda inputs: {"req_pool_indices": inputs["req_pool_indices"].repeat_interleave(2)[::2]},
    ],
)
def test_what_it_was_not_made_for_is_left_to_the_engine(decode, server, change):
    inputs = decode.inputs(BASE)
    output = torch.full_like(inputs["query"], torch.nan)

    assert server.call(inputs, output, **change(inputs)) is NotImplemented
    assert output.isnan().all()


@pytest.mark.engine
def test_the_installed_engine_s_function_does_the_same(decode, server):
    backend = pytest.importorskip("sglang.srt.layers.attention.torch_native_backend")
    function = backend.TorchNativeAttnBackend._run_sdpa_forward_decode
    takes, ours = (list(inspect.signature(f).parameters) for f in (function, decode.module.serve))
    inputs = decode.inputs(BASE)
    theirs, fallback = (torch.empty_like(inputs["query"]) for _ in range(2))
    options = {"scaling": BASE["head_dim"] ** -0.5, "enable_gqa": True}
    tensors = {name: value for name, value in inputs.items() if name != "query"}
    returned = function(None, inputs["query"], theirs, **tensors, **options)
    decode.module.fallback(inputs, {"output": fallback})

    assert decode.kernel.hook.endswith(f"{function.__qualname__}")
    assert takes[1:] == ours[3:]
    assert returned is theirs
    assert torch.equal(theirs, fallback)
    assert decode.close(theirs, decode.reference(inputs))
