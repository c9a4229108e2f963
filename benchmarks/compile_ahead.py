"""What compiling candidates ahead of their timing costs and saves, without a GPU.

Compiles a random sample of the kernel ``w8a8-block-fp8``'s candidates for a GPU on all cores, with
an empty cache of the compiler's, and compares what the manifest's arithmetic refuses with what has
more shared memory than a block can have once it is compiled.

    python benchmarks/compile_ahead.py                  # 128 candidates
    python benchmarks/compile_ahead.py --quick          # 12
    python benchmarks/compile_ahead.py --sample 1280    # all

Candidates that differ in what ``compile_shares`` names share a compile: 320 are distinct.
The last line of the output is the figures as JSON: ``compiled``, how many were; ``rate_per_s`` once
the processes have started, ``start_s`` until then; ``survive_share`` of the sample fits, and
``survivors`` of all (``exact`` once all are compiled); of what the compiler would refuse,
``saved_share`` is refused by arithmetic before, of all candidates ``saved_share_of_all``;
``wrongly_refused`` of the sample fit although the arithmetic refuses them.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Engine
from leverbench.kernels.manifest import SHARED_BYTES, Candidate, Kernel, read_kernel
from leverbench.tuning.compile_ahead import Compiled, compile_ahead
from leverbench.tuning.gpu import Gpu
from leverbench.tuning.invalid import Invalid
from leverbench.tuning.journal import Journal
from leverbench.tuning.space import make_space

FOLDER = Path(__file__).resolve().parents[1] / "kernels/w8a8-block-fp8"
# RTX PRO 6000. A layer of DeepSeek-V4-Flash, and a decode step of 16 requests.
GPU = Gpu(capability=120, multiprocessors=188)
CALL = {"N": 1536, "K": 4096, "M": 16}
SEED, SAMPLE, QUICK = 1, 128, 12


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} candidates")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many candidates")
    parser.add_argument("--capability", type=int, default=GPU.capability, help="of the GPU")
    asked = parser.parse_args()
    gpu = replace(GPU, capability=asked.capability)
    with tempfile.TemporaryDirectory(prefix="leverbench-compile-") as directory:
        print(json.dumps(measure(Path(directory), QUICK if asked.quick else asked.sample, gpu)))


def measure(directory: Path, size: int, gpu: Gpu) -> dict[str, Any]:
    """Compiles a sample and returns the figures."""
    os.environ["TRITON_CACHE_DIR"] = str(directory / "cache")
    kernel = read_kernel(FOLDER)
    space = all_candidates(kernel)
    refused = refused_by_arithmetic(kernel, space, gpu)
    sample = random.Random(SEED).sample(range(len(space)), size)
    journal, cores = directory / "journal.jsonl", len(os.sched_getaffinity(0))
    began = time.monotonic()
    results = compile_ahead(
        *(kernel, FOLDER, Engine("sglang", None, None, (), {}, {}), CALL),
        *([space[place] for place in sample], gpu.capability, cores, Journal(journal, {})),
    )
    wall_s = time.monotonic() - began
    fits = {
        place for place, result in zip(sample, results, strict=True) if isinstance(result, Compiled)
    }
    invalid = Counter(str(each.reason) for each in results if not isinstance(each, Compiled))
    if others := invalid.keys() - {Invalid.OUT_OF_RESOURCES}:
        print(f"not only too large: {', '.join(others)}", file=sys.stderr)
    lines = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    busy_s = sum(line["compiled"]["seconds"] for line in lines if "compiled" in line)
    too_large = set(sample) - fits
    # What the arithmetic refuses does not fit, whether or not it is in the sample.
    open_share = len(fits - refused) / max(1, len(set(sample) - refused))
    survivors = open_share * (len(space) - len(refused)) + len(fits & refused)
    return {
        "capability": gpu.capability,
        "cores": cores,
        "sample": size,
        "compiled": len(lines),
        "wall_s": round(wall_s, 1),
        "start_s": round(wall_s - busy_s / min(cores, len(lines)), 1),
        "rate_per_s": round(len(lines) * min(cores, len(lines)) / busy_s, 3),
        "survive_share": round(len(fits) / size, 4),
        "survivors": round(survivors),
        "exact": size == len(space),
        "candidates": len(space),
        "refused_by_arithmetic": len(refused),
        "saved_share": round(len(too_large & refused) / len(too_large), 4) if too_large else None,
        "saved_share_of_all": round(len(refused) / len(space), 4),
        "wrongly_refused": len(fits & refused),
        "invalid": dict(invalid),
    }


def all_candidates(kernel: Kernel) -> list[Candidate]:
    """Returns the combinations of the parameters' values."""
    products = itertools.product(*kernel.parameters.values())
    return [dict(zip(kernel.parameters, values, strict=True)) for values in products]


def refused_by_arithmetic(kernel: Kernel, space: Sequence[Candidate], gpu: Gpu) -> set[int]:
    """Returns the places of candidates that the restrictions on shared memory refuse."""
    of_memory = tuple(text for text in kernel.restrictions if SHARED_BYTES in text)
    kept = make_space(replace(kernel, restrictions=of_memory), CALL, gpu).candidates
    return {place for place, candidate in enumerate(space) if candidate not in kept}


if __name__ == "__main__":
    main()
