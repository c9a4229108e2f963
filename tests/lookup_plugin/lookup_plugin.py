"""A plugin for tests that looks FP8 configs up in a real server, which has no such GEMM on a CPU.

At the first forward of a rank it asks for each shape of LOOKED_UP ("2048x4096 1024x512") with the
engine's own function, picks the config for M=16 as the engine does, and tells what it got. There
is no GPU whose name could be asked for: the engine is given a made-up one.
"""

import json
import os
import sys
import traceback

DEVICE = "Made-up GPU"


def register():
    if not any(frame.name == "run_scheduler_process" for frame in traceback.extract_stack()):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.utils.common.get_device_name", lambda device_id=0: DEVICE, HookType.REPLACE
    )
    shapes = [tuple(map(int, shape.split("x"))) for shape in os.environ["LOOKED_UP"].split()]

    def look_up(*arguments, **options):
        from sglang.kernels.ops.gemm.fp8_kernel import get_w8a8_block_fp8_configs

        while shapes:
            n, k = shapes.pop(0)
            configs = get_w8a8_block_fp8_configs(n, k, 128, 128)
            config = configs and configs[min(configs.keys(), key=lambda m: abs(m - 16))]
            told = f"lookup_plugin: process {os.getpid()} {n}x{k} {json.dumps(config)}\n"
            sys.stderr.write(told)

    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward", look_up, HookType.BEFORE
    )
