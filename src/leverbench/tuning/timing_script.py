"""Runs in the engine's interpreter: times the candidates of a kernel, one request a line.

Standard library, numpy and torch only. The first line of standard input: ``{"code": folder,
"device": "cpu" or "cuda", "tolerance": [absolute, relative]}``; each other one: ``{"dimensions":
{...}, "config": {...}, or null for the fallback, "samples": how many, "check": whether the result
is compared with the reference}``. Answers, a line each: ``{"ready": true}``, then ``{"samples_s":
[...]}`` or ``{"invalid": reason, "detail": message}``, with ``"ended": true`` where this process
can call nothing more.

No call finds its inputs in a cache, as in a server, whose weights and other layers come between
two calls. On the CPU every core rewrites a buffer before each call. On a GPU calls go round among
copies of inputs and outputs that together are twice as large as its second-level cache; there are
at most 256 of them, so that a call's few hundred kilobytes may stay in it.
"""

import contextlib
import gc
import importlib.util
import itertools
import json
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
Call = Callable[[], None]

_SEED = 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Where the machine does not tell.
_CACHE_BYTES = 32 << 20
_MAX_COPIES = 256
# The launch of a graph takes as long as some kernels do.
_MIN_LAUNCHES = 20
# Names of classes, since Triton's modules need not be there and have moved.
_BUILD_ERRORS = {"CompilationError", "PTXASError"}
_RESOURCE_ERRORS = {"OutOfResources", "OutOfMemoryError"}
_RESOURCE_TEXTS = ("out of resource", "too many resources", "out of memory")


def main() -> None:
    """Answers requests until there is nobody to ask."""
    # Ctrl-C in a terminal is for who asks; dying of it would look like a crash.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a kernel or a compiler prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    bench = Bench(**requests.get())
    answer: dict[str, Any] = {"ready": True}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        if "ended" in answer:
            os._exit(1)
        answer = bench.answer(**requests.get())


def _read(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    # Who asked is gone: whatever a candidate is doing, nobody wants to know.
    os._exit(0)


class Bench:
    """A kernel's code, and the inputs of the dimensions that were asked for last."""

    def __init__(self, code: str, device: str, tolerance: list[float]) -> None:
        torch.set_num_threads(1)  # threads are the kernel's own parameter
        self._device = device
        self._absolute, self._relative = tolerance
        self._module = _import(Path(code))
        self._loaded = self._module.load(Path(code))
        self._dimensions: dict[str, Any] | None = None
        self._copies: list[tuple[Tensors, Tensors]] = []
        self._reference: Tensors | None = None
        self._flush = _Flush() if device == "cpu" else None

    def answer(
        self,
        dimensions: dict[str, Any],
        config: dict[str, int] | None,
        samples: int,
        check: bool,
    ) -> dict[str, Any]:
        """Returns the answer to a request."""
        try:
            self._prepare(dimensions)
            calls = [self._call(config, *copy) for copy in self._copies]
            timer: _Timer = _OnCpu(calls[0], self._flush) if self._flush else _OnGpu(calls)
            if check and (problem := self._problem(timer)):
                return {"invalid": "wrong-answer", "detail": problem}
            return {"samples_s": timer.samples(samples)}
        except Exception as error:  # a kernel may raise anything
            return self._raised(error)

    def _prepare(self, dimensions: dict[str, Any]) -> None:
        if dimensions == self._dimensions:
            return
        self._dimensions, self._copies, self._reference = None, [], None
        generator = torch.Generator(device=self._device).manual_seed(_SEED)

        def copy() -> tuple[Tensors, Tensors]:
            return (
                self._module.make_inputs(dimensions, generator),
                self._module.make_outputs(dimensions, torch.device(self._device)),
            )

        self._copies = [copy()]
        if self._device == "cuda":
            used_bytes = sum(
                tensor.numel() * tensor.element_size()
                for tensors in self._copies[0]
                for tensor in tensors.values()
            )
            cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
            count = min(_MAX_COPIES, math.ceil(2 * cache_bytes / max(1, used_bytes)))
            self._copies += [copy() for _ in range(1, count)]
        self._dimensions = dimensions

    def _call(self, config: dict[str, int] | None, inputs: Tensors, outputs: Tensors) -> Call:
        if config is None:
            return lambda: self._module.fallback(inputs, outputs)
        return lambda: self._module.run(self._loaded, inputs, outputs, config)

    def _problem(self, timer: "_Timer") -> str | None:
        """Returns what is wrong with the result of a call, or None."""
        inputs, outputs = self._copies[0]
        if self._reference is None:
            self._reference = self._module.reference(
                {
                    name: tensor.double() if tensor.is_floating_point() else tensor
                    for name, tensor in inputs.items()
                }
            )
        for tensor in outputs.values():
            _poison(tensor)
        timer.once()
        if outputs.keys() != self._reference.keys():
            return f"outputs {sorted(outputs)}, and of the reference {sorted(self._reference)}"
        for name, expected in self._reference.items():
            result = outputs[name].double()
            if result.shape != expected.shape:
                return f"{name}: {tuple(result.shape)} in place of {tuple(expected.shape)}"
            off = (result - expected).abs()
            # A NaN compares false, so that it is never right.
            wrong = ~(off <= self._absolute + self._relative * expected.abs())
            if bool(wrong.any()):
                count = int(wrong.sum())
                return f"{name}: {count} of {wrong.numel()} off, by up to {float(off.max()):.3g}"
        return None

    def _raised(self, error: Exception) -> dict[str, Any]:
        classes = {each.__name__ for each in type(error).__mro__}
        text = str(error)
        reason = "raised"
        if classes & _BUILD_ERRORS:
            reason = "build-failed"
        elif classes & _RESOURCE_ERRORS or any(each in text.lower() for each in _RESOURCE_TEXTS):
            reason = "out-of-resources"
        first = (text.strip().splitlines() or [""])[0]
        answer: dict[str, Any] = {"invalid": reason, "detail": f"{type(error).__name__}: {first}"}
        if self._device == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception:  # an illegal access stays with the process: all further calls fail
                answer |= {"invalid": "crashed", "ended": True}
        return answer


class _OnCpu:
    def __init__(self, call: Call, flush: "_Flush") -> None:
        self.once = call
        self._flush = flush
        call()  # what is set up at the first call is not measured

    def samples(self, count: int) -> list[float]:
        """Returns the seconds of calls, each after the caches were rewritten."""
        taken_ns = []
        with _no_collection():
            for _ in range(count):
                self._flush.rewrite()
                began = time.perf_counter_ns()
                self.once()
                taken_ns.append(time.perf_counter_ns() - began)
        return [each / 1e9 for each in taken_ns]


class _OnGpu:
    def __init__(self, calls: list[Call]) -> None:
        # As many launches as make each copy come equally often.
        self._launches = len(calls) * math.ceil(_MIN_LAUNCHES / len(calls))
        # What is compiled or set up at the first call cannot be captured.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls[0]()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for place in range(self._launches):
                calls[place % len(calls)]()

    def once(self) -> None:
        """Calls by the graph: one that launches on another stream is not in it, and is found."""
        self._graph.replay()
        torch.cuda.synchronize()

    def samples(self, count: int) -> list[float]:
        """Returns the seconds of a launch: a replay's time over its launches."""
        events = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(count + 1)
        ]
        with _no_collection():
            # While it runs, the next ones are queued: no gap between launches is measured.
            self._graph.replay()
            events[0].record()
            for event in events[1:]:
                self._graph.replay()
                event.record()
        torch.cuda.synchronize()
        pairs = itertools.pairwise(events)
        return [began.elapsed_time(ended) / 1e3 / self._launches for began, ended in pairs]


_Timer = _OnCpu | _OnGpu


class _Flush:
    """Rewrites a buffer on each core, at least twice as large as its share of any cache.

    On each, because a core keeps in its own cache what another core's writing pushed out of the
    shared one.
    """

    def __init__(self) -> None:
        cores = os.sched_getaffinity(0)
        count = 2 * _cache_share_bytes(cores) // 8
        self._parts = [
            (ThreadPoolExecutor(1, initializer=_pin, initargs=(core,)), np.zeros(count, np.int64))
            for core in sorted(cores)
        ]

    def rewrite(self) -> None:
        """Returns when no cache holds what it held."""
        done = [pool.submit(np.add, buffer, 1, out=buffer) for pool, buffer in self._parts]
        for future in done:
            future.result()


def _pin(core: int) -> None:
    os.sched_setaffinity(0, {core})  # of this thread alone


def _cache_share_bytes(cores: set[int]) -> int:
    """Returns the largest of a core's shares of its caches."""
    shares = []
    for cache in _CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            kibibytes = int((cache / "size").read_text().strip().removesuffix("K"))
            text = (cache / "shared_cpu_list").read_text().strip()
            ends = [list(map(int, part.split("-"))) for part in text.split(",")]
            sharing = {core for part in ends for core in range(part[0], part[-1] + 1)} & cores
            shares.append(kibibytes * 1024 // max(1, len(sharing)))
    return max(shares, default=_CACHE_BYTES)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _poison(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(math.nan)
    else:
        tensor.fill_(1 if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


def _import(folder: Path) -> ModuleType:
    sys.path.insert(0, str(folder))  # for the modules that it imports
    spec = importlib.util.spec_from_file_location("kernel", folder / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module  # Triton looks its functions' sources up there
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
