"""Runs in the engine's interpreter: makes the code of a kernel's candidates, one request a line.

Standard library and what ``kernel.py`` imports only. The first line of standard input: ``{"code":
folder}``; each other one: ``{"dimensions": {...}, "config": {...}, "capability": the GPU's}``.
Answers, a line each: ``{"ready": true}``, then ``{"compiled": {...}}``: what the kernel's compile
function returns, with the ``seconds`` that it took; or ``{"invalid": reason, "detail": message}``.
"""

import importlib.util
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Answers requests until there is nobody to ask."""
    # Ctrl-C in a terminal is for who asks; dying of it would look like a crash.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # There are many of this process, and none of them needs memory of the GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # What a compiler prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    module = _import(Path(requests.get()["code"]))
    answer: dict[str, Any] = {"ready": True}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        answer = _answer(module, **requests.get())


def _read(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    # Who asked is gone: whatever is being compiled, nobody wants to know.
    os._exit(0)


def _answer(
    module: ModuleType, dimensions: dict[str, Any], config: dict[str, int], capability: int
) -> dict[str, Any]:
    began = time.monotonic()
    try:
        compiled = dict(module.compile(dimensions, config, capability))
        compiled["shared_bytes"] = int(compiled["shared_bytes"])
        json.dumps(compiled)
    except Exception as error:  # a compiler may raise anything
        said = str(error).strip().splitlines() or [""]
        return {"invalid": "build-failed", "detail": f"{type(error).__name__}: {said[0]}"}
    return {"compiled": {**compiled, "seconds": round(time.monotonic() - began, 3)}}


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
