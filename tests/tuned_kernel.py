"""A tunable kernel of known truth: y = 2 x, and a parameter that says how long it takes.

`write_kernel` writes its folder, `build` its library. A call with a ``fault`` goes wrong in one of
the ways in `FAULTS`. Where ``CALLS_LOG`` names a file, each call adds a line with its ``work``.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from leverbench.kernels.manifest import Kernel, read_kernel

SOURCE = """
#include <chrono>
extern "C" void twice(const float* x, float* y, long count, long work_us) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(work_us);
    for (long i = 0; i < count; ++i) y[i] = 2 * x[i];
    while (std::chrono::steady_clock::now() < until) {}
}
"""

MODULE = """
import ctypes, os, time
import torch

class OutOfResources(Exception): pass
class CompilationError(Exception): pass

def load(folder):
    library = ctypes.CDLL(str(folder / "kernel.so"))
    library.twice.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    return library

def make_inputs(dimensions, generator):
    shape = dimensions["batch"], dimensions["width"]
    return {"x": torch.rand(shape, generator=generator, device=generator.device)}

def make_outputs(dimensions, device):
    return {"y": torch.empty(dimensions["batch"], dimensions["width"], device=device)}

def run(loaded, inputs, outputs, config):
    if log := os.environ.get("CALLS_LOG"):
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"%d\\n" % config["work"])
        os.close(descriptor)
    x, y, fault = inputs["x"], outputs["y"], config["fault"]
    if fault == 1:
        raise OutOfResources("shared memory")
    if fault == 2:
        raise CompilationError("at line 3")
    if fault == 3:
        raise ValueError("no such thing")
    if fault == 4:
        os.abort()
    if fault == 5:
        time.sleep(1000)
    if fault == 6:
        return
    if fault == 9:
        if os.fork():
            os._exit(0)
        time.sleep(1000)
    if fault == 10:
        for descriptor in range(3, 60):
            try:
                os.write(descriptor, b'{"samples_s": [1e-9]} and more' + bytes([10]))
            except OSError:
                pass
    print("noise")
    loaded.twice(x.data_ptr(), y.data_ptr(), x.numel(), config["work"])
    if fault == 7:
        y[0, 0] += 1
    if fault == 8:
        y[0, 0] = float("nan")

def fallback(inputs, outputs):
    time.sleep(0.002)
    torch.mul(inputs["x"], 2, out=outputs["y"])

def reference(inputs):
    assert inputs["x"].dtype == torch.float64
    return {"y": 2 * inputs["x"]}

def odd_shapes(dimensions):
    return [{**dimensions, "width": 1}]

def serve(loaded, choose, *args, **kwargs):
    return NotImplemented
"""

# What a call with this fault comes to.
FAULTS = {
    1: "out-of-resources",
    2: "build-failed",
    3: "raised",
    4: "crashed",
    5: "timed-out",
    6: "wrong-answer",
    7: "wrong-answer",
    8: "wrong-answer",
    # What it has forked holds its pipes open, and ends with it.
    9: "crashed",
    # It takes part in the conversation.
    10: "raised",
}


def write_kernel(
    parent: Path,
    work_us: Sequence[int],
    *,
    sizes: Sequence[int] = (1,),
    restrictions: Sequence[str] = (),
) -> Kernel:
    """Writes the kernel's folder; the default is the first ``work``.

    Args:
        parent: Where the folder ``twice`` is made.
        work_us: How long a call may take, in microseconds.
        sizes: Values of ``batch``.
        restrictions: Of the manifest.
    """
    folder = parent / "twice"
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "kernel": "twice",
        "language": "cpp",
        "sources": ["twice.cpp"],
        "parameters": {"work": list(work_us), "fault": [0]},
        "default": {"work": work_us[0], "fault": 0},
        "restrictions": list(restrictions),
        "shapes": [{"width": 64, "dtype": "float32"}],
        "sizes": {"batch": list(sizes)},
        "tolerance": {"absolute": 1e-6, "relative": 1e-6},
        "touches": ["attention", "norm"],
        "load": {"engine": "scripted", "hook": "nowhere.twice"},
    }
    (folder / "kernel.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    (folder / "kernel.py").write_text(MODULE)
    (folder / "twice.cpp").write_text(SOURCE)
    return read_kernel(folder)


def build(kernel: Kernel, folder: Path) -> Path:
    """Builds the kernel, and returns the folder that holds its code."""
    code = folder / "code"
    code.mkdir(parents=True)
    shutil.copy(kernel.folder / "kernel.py", code)
    source, library = kernel.folder / "twice.cpp", code / "kernel.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
    return code
