"""Kernel folders for tests: a small one in C++, and one with another manifest."""

from pathlib import Path
from typing import Any

import yaml

from leverbench.kernels.manifest import FUNCTIONS, Kernel, read_kernel

MANIFEST: dict[str, Any] = {
    "kernel": "scale",
    "language": "cpp",
    "sources": ["scale.cpp"],
    "parameters": {"block": [16, 32]},
    "default": {"block": 16},
    "shapes": [{"width": 8}],
    "sizes": {"rows": [4, 1]},
    "tolerance": {"absolute": 0, "relative": 1e-6},
    "load": {"engine": "some", "hook": "some.module.scale"},
}
SOURCE = 'extern "C" int scale(int value) { return 2 * value; }\n'


def kernel_folder(parent: Path, **changes: Any) -> Path:
    """Writes a kernel's folder; None removes a key of its manifest."""
    manifest = {k: v for k, v in {**MANIFEST, **changes}.items() if v is not None}
    folder = parent / "scale"
    folder.mkdir(exist_ok=True)
    (folder / "kernel.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    (folder / "kernel.py").write_text("".join(f"def {name}(): ...\n" for name in FUNCTIONS))
    (folder / "scale.cpp").write_text(SOURCE)
    return folder


def kernel(parent: Path, **changes: Any) -> Kernel:
    """Returns such a kernel, as it is read."""
    return read_kernel(kernel_folder(parent, **changes))
