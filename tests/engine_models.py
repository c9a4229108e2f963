"""Runs in the engine's interpreter: builds SGLang's own models without weights or ranks.

Standard input: a list of ``[config.json, command line, whether the draft model is meant]``. Each
is built on the meta device as rank 0 of its ``--tp-size``, in a process of its own. Standard
output: a line for each, ``{name: [N, K]}``: the layers whose weight is FP8 in blocks.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from sglang.srt import runtime_context
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers.moe.utils import initialize_moe_config
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.model_loader.loader import _initialize_model
from sglang.srt.models import deepseek_v4
from sglang.srt.server_args import prepare_server_args
from torch.testing._internal.distributed.fake_pg import FakeStore


def main() -> None:
    """Answers the questions on standard input, one process each."""
    # Models are refused or changed for the sake of devices; no device is asked for a shape.
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    deepseek_v4.get_rope_wrapper = lambda *_, **__: torch.nn.Identity()
    for question in json.load(sys.stdin):
        child = os.fork()
        if not child:
            print(json.dumps(build(*question)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


def build(config: dict[str, Any], argv: list[str], draft: bool) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's layers."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        fixed = ["--model-path", folder, "--device", "cpu", "--skip-tokenizer-init"]
        args = prepare_server_args([*fixed, "--disable-custom-all-reduce", *argv])
        runtime_context.publish(
            args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0)
        )
        join_alone(args.tp_size)
        initialize_moe_config()
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            model = _initialize_model(
                ModelConfig.from_server_args(args, is_draft_model=draft),
                LoadConfig(load_format="dummy"),
                Fp8Config.from_config(config["quantization_config"]),
            )
    layers = {}
    for name, module in model.named_modules():
        method = type(getattr(module, "quant_method", None)).__name__
        if method == "Fp8LinearMethod" and module.quant_method.block_quant:
            layers.setdefault(".".join(name.split(".")[-2:]), tuple(module.weight.shape))
    return layers


def join_alone(size: int) -> None:
    """Makes this process rank 0 of a group in which there is nobody else."""
    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda ranks, *_, **__: new_group(ranks, backend="fake")
    parallel_state.init_distributed_environment(size, 0, local_rank=0, backend="gloo")
    parallel_state.initialize_model_parallel(backend="gloo")


if __name__ == "__main__":
    main()
