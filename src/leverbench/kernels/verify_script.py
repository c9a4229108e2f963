"""Runs in the engine's interpreter: calls a kernel in many ways and tells what it saw.

Standard library and torch only. Standard input: the question that `verify.py` asks. Standard
output, one JSON object a line:

    {"phase": name, ...}   before each part that could end this process
    {"case": {...}}        what was seen of the kernel in one case
    {"end": reason, "detail": ...}   the last line; the reason is null where all cases were tried
    {"failed": message}   the last line where the cases could not be tried

A process that ends without the last line was ended by the phase in flight.
"""

import ctypes
import hashlib
import importlib
import itertools
import json
import math
import mmap
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]

# The inputs of the cases: what random ones are multiplied with. "other" follows "random" at the
# same addresses.
DATA = {"random": 1.0, "other": 1.0, "zeros": 0.0, "large": 8.0, "small": 0.125}

# Bytes that memory is filled with. All ones are NaN in every floating type, and -1; the second
# makes a number near 1 in most, which changes when something is added to it.
_NAN, _OTHER, _ZERO = 0xFF, 0x3F, 0x00
# Fewest and most bytes on either side of a buffer whose content is known: as many as its own, so
# that a step too far stays within. The fewest are still compared by one thread.
_PADS = 1 << 13, 1 << 20
_ALIGNMENT = 64
# Bytes beyond a buffer that cannot be touched.
_GUARD = 1 << 20
_PROT_NONE = 0
_PR_SET_PDEATHSIG = 1
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _EndError(Exception):
    """Nothing more can be tried.

    Attributes:
        reason: A `Rejection`.
        detail: What happened.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class _Buffer:
    """A tensor amid memory of which every byte is known.

    Args:
        like: Gives shape, strides and type. Bytes between its elements are not its own.
        memory: Bytes, a multiple of 8.
        start: Where in them it begins.
    """

    def __init__(self, like: torch.Tensor, memory: torch.Tensor, start: int) -> None:
        self._like, self._start = like, start
        self._memory = self._before = memory
        self._content: tuple[int, torch.Tensor] | None = None
        self.tensor = self._within(memory)

    def set(self, around: int, value: torch.Tensor) -> None:
        """Sets the tensor and all bytes around it, and remembers them."""
        if self._content is not None and self._content[0] == around and self._content[1] is value:
            return
        self._memory.fill_(around)
        _written(self.tensor, self._like).copy_(_written(value, self._like))
        self._before = self._memory.clone()
        self._content = around, value

    def poison(self, byte: int) -> None:
        """Sets all bytes, the tensor's too, and remembers them."""
        self._memory.fill_(byte)
        self._before = self._memory.clone()

    def changes(self) -> tuple[bool, bool]:
        """Returns whether the tensor, and whether memory around it, is not as it was set."""
        if _same(self._memory, self._before):
            return False, False
        self._content = None
        before = self._within(self._before)
        restored = self._memory.clone()
        _written(self._within(restored), self._like).copy_(_written(before, self._like))
        changed = not torch.equal(_bits(self.tensor), _bits(before))
        return changed, not _same(restored, self._before)

    def _within(self, memory: torch.Tensor) -> torch.Tensor:
        own = memory[self._start : self._start + _span_bytes(self._like)]
        return torch.as_strided(own.view(self._like.dtype), self._like.shape, self._like.stride())


class _EdgeBuffer(_Buffer):
    """A tensor that ends, or begins, where memory ends, once `close` is called. CPU only."""

    def __init__(self, like: torch.Tensor, at_end: bool) -> None:
        span = _span_bytes(like)
        usable = -(-max(span, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = torch.frombuffer(mmap.mmap(-1, usable + 2 * _GUARD), dtype=torch.uint8)
        memory = pages[_GUARD : _GUARD + usable]
        self._wall = pages.data_ptr() + (_GUARD + usable if at_end else 0)
        super().__init__(like, memory, usable - span if at_end else 0)

    def close(self) -> None:
        """Makes the memory next to the tensor unreadable."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self._wall), ctypes.c_size_t(_GUARD), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")


class _Kernel:
    """What a kernel's folder holds, loaded; all that its author wrote is called from here."""

    def __init__(self, code: Path, device: str, tolerance: Mapping[str, float]) -> None:
        self.device, self.tolerance = torch.device(device), tolerance
        self._threads = torch.get_num_threads()
        sys.path.insert(0, str(code))
        try:
            self._module: Any = importlib.import_module("kernel")
            self._loaded = self._module.load(code)
        except (Exception, SystemExit) as error:
            raise _EndError("raised", f"when it was loaded: {_told(error)}") from None

    def dimensions(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the dimensions to try: those that are tuned, then the odd ones."""
        try:
            odd = [dict(found) for call in calls for found in self._module.odd_shapes(dict(call))]
        except Exception as error:
            raise _EndError("no-reference", f"odd_shapes: {_told(error)}") from None
        unique = {json.dumps(each, sort_keys=True): each for each in [*calls, *odd]}
        return list(unique.values())

    def inputs(self, dimensions: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
        """Returns fresh random inputs."""
        generator = torch.Generator(self.device).manual_seed(seed)
        try:
            return dict(self._module.make_inputs(dict(dimensions), generator))
        except Exception as error:
            raise _EndError("no-reference", f"make_inputs: {_told(error)}") from None

    def outputs(self, dimensions: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Returns tensors of undefined content."""
        try:
            return dict(self._module.make_outputs(dict(dimensions), self.device))
        except Exception as error:
            raise _EndError("no-reference", f"make_outputs: {_told(error)}") from None

    def reference(self, inputs: Tensors, outputs: Tensors) -> dict[str, torch.Tensor]:
        """Returns what is right: float64 for each floating output."""
        exact = {
            name: value.to(torch.float64 if value.is_floating_point() else value.dtype, copy=True)
            for name, value in inputs.items()
        }
        try:
            expected = dict(self._module.reference(exact))
        except Exception as error:
            raise _EndError("no-reference", f"reference: {_told(error)}") from None
        if expected.keys() != outputs.keys():
            raise _EndError("no-reference", "reference and make_outputs name other tensors")
        for name, value in expected.items():
            output = outputs[name]
            if value.shape != output.shape:
                shapes = f"{tuple(value.shape)} and {tuple(output.shape)}"
                raise _EndError("no-reference", f"{name} has the shapes {shapes}")
            if output.is_floating_point() and value.dtype != torch.float64:
                raise _EndError("no-reference", f"{name} is computed in {value.dtype}")
            if value.is_floating_point() and bool(value.isnan().any()):
                raise _EndError("no-reference", f"{name} has NaN in the reference itself")
        return expected

    def run(self, inputs: Tensors, outputs: Tensors, config: Mapping[str, int]) -> None:
        """Calls the kernel and waits for it."""
        torch.set_num_threads(self._threads)
        try:
            self._module.run(self._loaded, dict(inputs), dict(outputs), dict(config))
        except (Exception, SystemExit) as error:
            raise _EndError("raised", _told(error)) from None
        finally:
            # What is compared is small: on a busy machine threads wait for one another.
            torch.set_num_threads(1)
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError as error:
                raise _EndError("crashed", _told(error)) from None


class _Bench:
    """A kernel with inputs and outputs that stay where they are from call to call.

    Attributes:
        faults: What was seen in calls that is wrong whatever the results: `Rejection` to detail.
    """

    def __init__(
        self, kernel: _Kernel, inputs: Mapping[str, _Buffer], outputs: Mapping[str, _Buffer]
    ) -> None:
        self._kernel, self._inputs, self._outputs = kernel, inputs, outputs
        self.faults: dict[str, str] = {}

    def call(
        self,
        values: Tensors,
        config: Mapping[str, int],
        poison: int = _NAN,
        around: int = _NAN,
    ) -> dict[str, torch.Tensor]:
        """Returns the results of a call.

        Args:
            values: The inputs' content.
            config: Of the kernel.
            poison: What the bytes of the outputs hold before.
            around: What the bytes around the inputs hold.
        """
        for name, buffer in self._inputs.items():
            buffer.set(around, values[name])
        for buffer in self._outputs.values():
            buffer.poison(poison)
        # Not our own objects, whose shape could be changed.
        given = {name: buffer.tensor.detach() for name, buffer in self._inputs.items()}
        results = {name: buffer.tensor.detach() for name, buffer in self._outputs.items()}
        self._kernel.run(given, results, config)
        for name, buffer in {**self._inputs, **self._outputs}.items():
            changed, changed_around = buffer.changes()
            if changed and name in self._inputs:
                self.faults.setdefault("changes-input", f"{name} is changed")
            if changed_around:
                self.faults.setdefault("writes-out-of-bounds", f"memory around {name} is changed")
        return {name: buffer.tensor.clone() for name, buffer in self._outputs.items()}


def observe(question: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the lines of the answer."""
    try:
        yield from _cases(question)
    except _EndError as end:
        yield {"end": end.reason, "detail": end.detail}
    else:
        yield {"end": None, "detail": None}


def _cases(question: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"phase": "load"}
    kernel = _Kernel(Path(question["code"]), question["device"], question["tolerance"])
    # Right results so far, by their bits.
    right: set[str] = set()
    for place, dimensions in enumerate(kernel.dimensions(question["calls"])):
        first_seed = question["seed"] + place * (len(DATA) + 1)
        yield {"phase": "inputs", "dimensions": dimensions, "seed": first_seed}
        between = kernel.inputs(dimensions, first_seed)
        outputs = kernel.outputs(dimensions)
        bench = _Bench(
            kernel,
            {name: _padded(value) for name, value in between.items()},
            {name: _padded(value) for name, value in outputs.items()},
        )
        for seed, (data, factor) in enumerate(DATA.items(), first_seed + 1):
            about = {"dimensions": dimensions, "data": data, "seed": seed}
            yield {"phase": "inputs", **about}
            values = kernel.inputs(dimensions, seed)
            if problem := _unlike(values, between):
                raise _EndError("no-reference", problem)
            values = {name: _scaled(value, factor) for name, value in values.items()}
            yield {"phase": "reference", **about}
            expected = kernel.reference(values, outputs)
            tolerance = dict(kernel.tolerance)
            # A product of two inputs, and its rounding, grow with the square.
            tolerance["absolute"] *= max(factor, 1.0) ** 2
            cases: list[tuple[dict[str, Any], bool]] = []
            for config in question["configs"]:
                case = {**about, "config": config}
                yield {"phase": "call", **case}
                seen = _case(bench, values, between, config, expected, tolerance, right)
                yield {"case": {**case, **seen}}
                cases.append((case, bool(seen["faults"])))
            if question["guard_pages"] and data == "random":
                yield from _at_edges(kernel, values, outputs, expected, cases)


def _case(
    bench: _Bench,
    values: Tensors,
    between: Tensors,
    config: Mapping[str, int],
    expected: Tensors,
    tolerance: Mapping[str, float],
    right: set[str],
) -> dict[str, Any]:
    """Returns the faults and the largest error of several calls with the same inputs.

    Three calls differ in the content of memory that must not matter; after a call with other
    inputs, the first is repeated, and the others where results are wrong.
    """
    faults: dict[str, str] = {}
    bench.faults = faults
    variations: tuple[dict[str, int], ...] = ({}, {"poison": _OTHER}, {"around": _ZERO})
    before = [bench.call(values, config, **each) for each in variations]
    bench.call(between, config)
    after = [bench.call(values, config)]
    first, poisoned, padded = before
    seen = {"faults": faults, "largest_error": _largest_error(first, expected)}
    if left := _left(first, poisoned):
        faults.update(left)
        return seen
    earlier = set(right)
    for results in (*before, *after):
        bits = _digest(results)
        if not (wrong := _wrong(results, expected, tolerance)):
            # All zeros are too easily had to be from an earlier call.
            if any(bool(_bits(value).any()) for value in results.values()):
                right.add(bits)
            continue
        faults.update({**wrong, **faults})
        if bits in earlier:
            faults["stale"] = "the result is the right one of earlier inputs"
    if not faults.keys() & {"wrong", "not-a-number"}:
        return seen
    after += [bench.call(values, config, **each) for each in variations[1:]]
    repeated = zip(before, after, strict=True)
    if apart := [detail for pair in repeated if (detail := _apart(*pair, tolerance))]:
        faults["not-deterministic"] = f"called again, {apart[0]}"
        return seen
    if detail := _apart(first, poisoned, tolerance):
        faults["reads-output"] = f"with something else in the outputs before, {detail}"
    if detail := _apart(first, padded, tolerance):
        faults["reads-out-of-bounds"] = f"with something else around the inputs, {detail}"
    return seen


def _at_edges(
    kernel: _Kernel,
    values: Tensors,
    outputs: Tensors,
    expected: Tensors,
    cases: list[tuple[dict[str, Any], bool]],
) -> Iterator[dict[str, Any]]:
    """Yields lines of calls with tensors at the edge of memory.

    Each call is first made with the edge open: a kernel that needs more alignment than that of
    an element ends there, and is not blamed for what it reads. Results are not judged in cases
    that are faulty anyway.
    """
    like = {"inputs": values, "outputs": outputs}
    for guarded, side in itertools.product(like, ("end", "start")):
        edges = {name: _EdgeBuffer(value, side == "end") for name, value in like[guarded].items()}
        buffers: dict[str, Mapping[str, _Buffer]] = {
            kind: {name: _padded(value) for name, value in tensors.items()}
            for kind, tensors in like.items()
            if kind != guarded
        }
        bench = _Bench(kernel, **buffers, **{guarded: edges})
        for phase in ("unaligned", f"{guarded}-guarded"):
            if phase != "unaligned":
                for buffer in edges.values():
                    buffer.close()
            for about, faulty in cases:
                yield {"phase": phase, "side": side, **about}
                bench.faults = {}
                results = bench.call(values, about["config"])
                wrong = {} if faulty else _wrong(results, expected, kernel.tolerance)
                if faults := {**wrong, **bench.faults}:
                    data = f"{about['data']}, {guarded} at the {side} of memory"
                    yield {"case": {**about, "data": data, "faults": faults, "largest_error": None}}


def _unlike(values: Tensors, first: Tensors) -> str | None:
    """Tells why inputs of another seed are not what they should be."""
    for name, value in first.items():
        other = values.get(name)
        if other is None or (other.shape, other.dtype) != (value.shape, value.dtype):
            return f"make_inputs gives {name} another shape or type from another seed"
    floating = {name: value for name, value in first.items() if value.is_floating_point()}
    same = [torch.equal(_bits(values[name]), _bits(value)) for name, value in floating.items()]
    if same and all(same):
        return "make_inputs gives the same inputs from another seed"
    return None


def _scaled(value: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns an input scaled by a power of two; integers and 8-bit floats as they are."""
    if factor == 1.0 or not value.is_floating_point():
        return value
    if factor == 0.0:
        return torch.zeros_like(value)
    return value * factor if value.element_size() > 1 else value


def _padded(like: torch.Tensor) -> _Buffer:
    span = _span_bytes(like)
    fewest, most = _PADS
    rounded = -(-span // _ALIGNMENT) * _ALIGNMENT
    pad = min(max(rounded, fewest), most)
    memory = torch.empty(pad + rounded + pad, dtype=torch.uint8, device=like.device)
    return _Buffer(like, memory, start=pad)


def _span_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes from a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * tensor.element_size()


def _written(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the part of a tensor that `like`, which may be expanded, has in memory once."""
    for dimension, stride in enumerate(like.stride()):
        if stride == 0 and like.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_SAME_SIZE[tensor.element_size()])


def _same(memory: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether bytes are equal; by eights, they are compared several times as fast."""
    return torch.equal(memory.view(torch.int64), other.view(torch.int64))


def _digest(results: Tensors) -> str:
    total = hashlib.sha256()
    for value in results.values():
        total.update(_bits(value).cpu().numpy().tobytes())
    return total.hexdigest()


def _left(first: Tensors, poisoned: Tensors) -> dict[str, str]:
    """Returns the fault of results that still hold poison in the same place in both calls."""
    left, total = 0, 0
    detail = ""
    for name, value in first.items():
        poison = int.from_bytes(bytes([_OTHER]) * value.element_size(), "little")
        holds = (_bits(value) == -1) & (_bits(poisoned[name]) == poison)
        count = int(holds.sum())
        if count and not detail:
            detail = f"{name}[{_place(holds)}] is not written"
        left, total = left + count, total + value.numel()
    if not left:
        return {}
    if left == total:
        return {"writes-nothing": "nothing is written"}
    return {"writes-part": f"{detail}, nor are {left - 1} others of {total}"}


def _wrong(results: Tensors, expected: Tensors, tolerance: Mapping[str, float]) -> dict[str, str]:
    """Returns the fault of results that are not what is expected."""
    for name, value in results.items():
        near = _near(value, expected[name], tolerance)
        if bool(near.all()):
            continue
        fault, far = "wrong", ~near
        if value.is_floating_point() and bool((nan := value.to(torch.float64).isnan()).any()):
            fault, far = "not-a-number", nan
        detail = _compared(name, far, value, expected[name])
        return {fault: f"{detail}; so are {int(far.sum())} of {value.numel()}"}
    return {}


def _apart(one: Tensors, again: Tensors, tolerance: Mapping[str, float]) -> str | None:
    """Tells where two results that should be the same are not, within tolerance."""
    for name, value in one.items():
        other = again[name]
        if value.is_floating_point():
            other = other.to(torch.float64)
            near = _near(value, other, tolerance) | (
                value.to(torch.float64).isnan() & other.isnan()
            )
        else:
            near = value == other
        if not bool(near.all()):
            return _compared(name, ~near, value, other)
    return None


def _near(
    value: torch.Tensor, expected: torch.Tensor, tolerance: Mapping[str, float]
) -> torch.Tensor:
    """Returns where a result is right; integers must be equal, and NaN never is."""
    if not value.is_floating_point():
        return value == expected
    result = value.to(torch.float64)
    allowed = tolerance["absolute"] + tolerance["relative"] * expected.abs()
    near = ((result - expected).abs() <= allowed) & expected.isfinite()
    # No result of this type is nearer than the rounded reference, which may be infinite.
    return near | (result == expected.to(value.dtype).to(torch.float64))


def _largest_error(results: Tensors, expected: Tensors) -> float | None:
    """Returns the largest ``|result - reference|`` of floating results, if it is finite."""
    errors = [
        float((value.to(torch.float64) - expected[name]).abs().max())
        for name, value in results.items()
        if value.is_floating_point() and value.numel()
    ]
    return max(errors) if errors and all(map(math.isfinite, errors)) else None


def _compared(name: str, far: torch.Tensor, value: torch.Tensor, expected: torch.Tensor) -> str:
    result, right = value[far][0].item(), expected[far][0].item()
    return f"{name}[{_place(far)}] is {result:.9g} in place of {right:.9g}"


def _place(where: torch.Tensor) -> str:
    """Returns the first place where something is true."""
    return ", ".join(map(str, where.nonzero()[0].tolist()))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def main() -> None:
    """Answers the question on standard input."""
    question = json.load(sys.stdin)
    # A kernel that hangs must not outlive who asks.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A kernel's folder is a result: nothing is added to it.
    sys.dont_write_bytecode = True
    # A kernel may print, and that must not get among the lines.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        try:
            for line in observe(question):
                print(json.dumps(line), file=answer, flush=True)
        except Exception as error:  # no fault of the kernel, such as too little memory
            print(json.dumps({"failed": _told(error)}), file=answer, flush=True)


if __name__ == "__main__":
    main()
