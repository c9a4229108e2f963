"""A plugin folder with tuned configs of the FP8 block GEMM, published as a campaign's are."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from leverbench.engines.sglang_configs import file_name as engine_name
from leverbench.kernels.manifest import read_kernel
from leverbench.kernels.publish import publish, read_published
from leverbench.records import write_record

KERNEL = Path(__file__).resolve().parents[1] / "kernels/w8a8-block-fp8"
# By M, as the engine's own files have them.
Configs = Mapping[int, Mapping[str, int]]


def gemm_config(block_m: int) -> dict[str, int]:
    """Returns a config of the kernel that is known by its block of rows."""
    blocks = {"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128}
    return {**blocks, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}


def file_name(n: int, k: int, device: str) -> str:
    """Returns the engine's name of the file of a shape."""
    return engine_name(n, k, device, (128, 128))


def tuning_record(
    path: Path, n: int, k: int, configs: Configs, device: str, lost: tuple[int, ...] = ()
) -> Path:
    """Writes the record of a tuning in which each of these won its race, but those that lost."""
    kernel = read_kernel(KERNEL)
    chosen = [
        {
            "dimensions": {"N": n, "K": k, "M": m},
            "config": dict(config),
            "default": dict(kernel.default),
            "published": m not in lost,
        }
        for m, config in configs.items()
    ]
    record = {"kind": "tuning", "outcome": "tuned", "machine": {"gpus": device}, "chosen": chosen}
    write_record(path, record)
    return path


def write_config_plugin(
    folder: Path, files: Mapping[tuple[int, int], Configs], device: str, name: str = KERNEL.name
) -> dict[tuple[int, int], str]:
    """Publishes configs as if they had won their races.

    Args:
        folder: Where; a server's PYTHONPATH is its ``plugin``.
        files: Configs by (N, K).
        device: The GPU, as torch names it.
        name: Of the kernel.

    Returns:
        The SHA-256 of each file, by (N, K).
    """
    tunings = [
        tuning_record(folder / f"{n}-{k}.json", n, k, configs, device)
        for (n, k), configs in files.items()
    ]
    publish(replace(read_kernel(KERNEL), name=name), folder, tunings, folder)
    return dict(read_published(folder).files)
