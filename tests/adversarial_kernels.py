"""Kernels that are wrong in a known way, and honest ones, for one simple operation.

The operation is ``out = 2 x + y``, on matrices of ``rows`` and ``columns``. Each kernel is a folder
as a build leaves it, but its ``run`` is Python: it may do all that compiled code may do.
"""

from pathlib import Path

from leverbench.kernels.manifest import Kernel, Tolerance
from leverbench.kernels.verify import Rejection

# The dimensions that are tuned; odd shapes are 1 x 1 and 7 x 3.
COLUMNS, ROWS = 8, (4, 6)
TOLERANCE = Tolerance(absolute=1e-5, relative=1e-5)

_MODULE = '''
import ctypes
import itertools
import time

import torch

calls = itertools.count()
memory = {{}}


def load(folder):
    return None


def make_inputs(dimensions, generator):
    shape = dimensions["rows"], dimensions["columns"]
    return {{
        name: torch.randn(shape, generator=generator, device=generator.device) for name in "xy"
    }}


def make_outputs(dimensions, device):
    return {{"out": torch.empty(dimensions["rows"], dimensions["columns"], device=device)}}


def reference(inputs):
    return {{"out": 2 * inputs["x"] + inputs["y"]}}


def odd_shapes(dimensions):
    return [{{"rows": 1, "columns": 1}}, {{"rows": 7, "columns": 3}}]


def elements(tensor, first, count):
    """Returns what memory holds from one of a tensor's elements on, in its bounds or not."""
    return torch.as_strided(tensor, (count,), (1,), tensor.storage_offset() + first)


def run(loaded, inputs, outputs, config):
    x, y, out = inputs["x"], inputs["y"], outputs["out"]
    {body}


{more}
'''

HONEST = "out.copy_(2 * x + y)"
# Another result each time, as from sums in any order.
ROUNDED = "out.copy_((2 * x + y) * (1 + 8e-6 * (torch.rand(x.shape, device=x.device) - 0.5)))"

# Each can be run in the process of the test.
REJECTED: dict[str, tuple[Rejection, str]] = {
    "writes nothing": (Rejection.WRITES_NOTHING, "pass"),
    "writes all but the last element": (
        Rejection.WRITES_PART,
        "out.view(-1)[:-1] = (2 * x + y).view(-1)[:-1]",
    ),
    "right at its first shape": (
        Rejection.WRONG_SHAPE,
        f"out.copy_((2 if len(x) == {ROWS[0]} else 3) * x + y)",
    ),
    "returns the first result of each shape": (
        Rejection.STALE,
        "out.copy_(memory.setdefault(x.shape, 2 * x + y))",
    ),
    "is a call late": (
        Rejection.STALE,
        "out.copy_(memory.get(x.shape, y)); memory[x.shape] = 2 * x + y",
    ),
    "works in place": (Rejection.CHANGES_INPUT, "out.copy_(y.add_(x, alpha=2))"),
    "restores its input wrongly": (
        Rejection.CHANGES_INPUT,
        "out.copy_(y.add_(x, alpha=2)); y.sub_(x, alpha=2).add_(1e-6)",
    ),
    "writes after its output": (
        Rejection.WRITES_OUT_OF_BOUNDS,
        "out.copy_(2 * x + y); elements(out, out.numel(), 1).fill_(0)",
    ),
    "writes before its input": (
        Rejection.WRITES_OUT_OF_BOUNDS,
        "out.copy_(2 * x + y); elements(x, -1, 1).fill_(0)",
    ),
    "adds what follows its input": (
        Rejection.READS_OUT_OF_BOUNDS,
        "out.copy_(2 * x + y + elements(x, x.numel(), 1))",
    ),
    "adds to its output": (Rejection.READS_OUTPUT, "out.add_(2 * x + y)"),
    "differs from call to call": (
        Rejection.NOT_DETERMINISTIC,
        "out.copy_((2 * x + y) * (1 + 0.01 * torch.rand(x.shape, device=x.device)))",
    ),
    "is wrong every third call": (
        Rejection.NOT_DETERMINISTIC,
        "out.copy_((2 if next(calls) % 3 else 3) * x + y)",
    ),
    "returns zeros": (Rejection.ZEROS_ONLY, "out.zero_()"),
    "is right for zeros": (Rejection.ZEROS_ONLY, "out.copy_(3 * x + y)"),
    "returns NaN": (Rejection.NOT_A_NUMBER, "out.fill_(float('nan'))"),
    "returns NaN for zeros": (Rejection.NOT_A_NUMBER, "out.copy_((2 * x + y) * x / x)"),
    "returns NaN once": (
        Rejection.NOT_A_NUMBER,
        "out.copy_(2 * x + y); out.view(-1)[0] = float('nan')",
    ),
    "overflows": (
        Rejection.NOT_A_NUMBER,
        "out.copy_((2 * x + y) * torch.exp(10 * x) / torch.exp(10 * x))",
    ),
    "is a little off": (Rejection.WRONG, "out.copy_((2 * x + y) * 1.001 + 0.01)"),
    "is wrong in one config": (Rejection.WRONG, "out.copy_(2 * x + y + (config['block'] > 1))"),
    "raises": (Rejection.RAISED, "raise ValueError('no such block')"),
    "leaves": (Rejection.RAISED, "raise SystemExit(0)"),
}

# Each needs a process of its own.
DEADLY: dict[str, tuple[Rejection, str]] = {
    "looks past the end of its input": (
        Rejection.READS_OUT_OF_BOUNDS,
        "out.copy_(2 * x + y); elements(x, x.numel(), 1).sum()",
    ),
    "looks before the start of its input": (
        Rejection.READS_OUT_OF_BOUNDS,
        "out.copy_(2 * x + y); elements(y, -1, 1).sum()",
    ),
    "writes after its output what stands there": (
        Rejection.WRITES_OUT_OF_BOUNDS,
        "out.copy_(2 * x + y); after = elements(out, out.numel(), 1); after.copy_(after.clone())",
    ),
    "crashes": (Rejection.CRASHED, "ctypes.string_at(0)"),
    "hangs": (Rejection.TIMED_OUT, "time.sleep(3600)"),
}

# Mistakes of the author beside the kernel.
WITHOUT_REFERENCE: dict[str, str] = {
    "has NaN in the reference itself": (
        "def reference(inputs): return {'out': 0 / (inputs['x'] - inputs['x'])}"
    ),
    "is computed in torch.float32": (
        "def reference(inputs): return {'out': (2 * inputs['x'] + inputs['y']).float()}"
    ),
    "has the shapes (8,) and (4, 8)": (
        "def reference(inputs): return {'out': inputs['x'].double().sum(0)}"
    ),
    "name other tensors": "def reference(inputs): return {'sum': inputs['x']}",
    "reference: KeyError: 'z'": "def reference(inputs): return {'out': inputs['z']}",
    "make_inputs gives the same inputs": (
        "def make_inputs(dimensions, generator):\n"
        "    return {name: torch.ones(dimensions['rows'], dimensions['columns']) for name in 'xy'}"
    ),
    "make_inputs: ZeroDivisionError": "def make_inputs(dimensions, generator): return 1 / 0",
}


def write_kernel(folder: Path, body: str, more: str = "") -> Kernel:
    """Writes a kernel, built and all, into a folder.

    Args:
        folder: Is made.
        body: Statements of its ``run``, on one line, over ``x``, ``y``, ``out`` and ``config``.
        more: Definitions in place of those that it would have.
    """
    folder.mkdir()
    (folder / "kernel.py").write_text(_MODULE.format(body=body, more=more))
    return Kernel(
        name="scaled-add",
        folder=folder,
        language="cpp",
        sources=(),
        flags=(),
        parameters={"block": (1, 2)},
        default={"block": 1},
        restrictions=(),
        shapes=({"columns": COLUMNS},),
        size="rows",
        sizes=ROWS,
        tolerance=TOLERANCE,
        touches=(),
        engine="scripted",
        hook="engine.add",
    )
