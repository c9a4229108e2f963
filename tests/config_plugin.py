"""A plugin folder with tuned configs of the FP8 block GEMM, as a variant's servers are given it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from leverbench.engines import get_engine, sglang_config_plugin

# By M, as the engine's own files have them.
Configs = Mapping[int, Mapping[str, int]]


def gemm_config(block_m: int) -> dict[str, int]:
    """Returns a config of the kernel that is known by its block of rows."""
    blocks = {"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128}
    return {**blocks, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}


def file_name(n: int, k: int, device: str) -> str:
    """Returns the engine's name of the file of a shape; a device's name has no spaces there."""
    return f"N={n},K={k},device_name={device},dtype=fp8_w8a8,block_shape=[128, 128].json"


def write_config_plugin(
    folder: Path,
    files: Mapping[tuple[int, int], Configs],
    device: str,
    module: str = "leverbench_w8a8_block_fp8",
) -> dict[tuple[int, int], str]:
    """Writes the folder for a server's PYTHONPATH.

    Args:
        folder: Where.
        files: Configs by (N, K).
        device: Name of the device, as in file names.
        module: The plugin's name.

    Returns:
        The SHA-256 of each file, by (N, K).
    """
    package, metadata = folder / module, folder / f"{module}-0.1.dist-info"
    (package / "configs").mkdir(parents=True)
    metadata.mkdir()
    digests = {}
    for (n, k), configs in files.items():
        content = json.dumps({str(m): config for m, config in configs.items()}).encode()
        (package / "configs" / file_name(n, k, device)).write_bytes(content)
        digests[n, k] = hashlib.sha256(content).hexdigest()
    named = {file_name(n, k, device): digest for (n, k), digest in digests.items()}
    about = {"digest": "d" * 64, "device": device, "files": named}
    (package / "configs.json").write_text(json.dumps(about))
    loader = Path(sglang_config_plugin.__file__).read_text()
    (package / "__init__.py").write_text(loader)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1\n")
    group = get_engine("sglang").plugin_group
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}:register\n")
    return digests
