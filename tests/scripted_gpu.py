"""An nvidia-smi of known truth, for a machine with one GPU.

`install` puts it into a folder, for the front of the PATH. What it tells may depend on the variant
whose server has the GPU; it finds that in the keeper's run directory.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """What it tells.

    Attributes:
        power_w: Power.
        sm_clock_mhz: Clock of the processors; "[N/A]" is what is told of what is not known.
        reasons: Why clocks are not higher, in NVML's bits.
        pids: Processes that it lists beside the server.
        lists_server: Whether it lists the server: in some containers it does not.
    """

    power_w: float = 300.0
    sm_clock_mhz: float | str = 1980.0
    reasons: int = 0
    pids: tuple[int, ...] = ()
    lists_server: bool = True

    def answers(self) -> dict[str, object]:
        """Returns the value of each field that can be asked for."""
        return {
            "index": 0,
            "name": "Scripted GPU",
            "driver_version": "1.0",
            "pci.bus_id": "00000000:00:06.0",
            "memory.used": 100,
            "power.draw": self.power_w,
            "clocks.sm": self.sm_clock_mhz,
            "clocks.mem": 3201,
            "temperature.gpu": 60,
            "clocks_throttle_reasons.active": f"{self.reasons:#018x}",
        }


def install(folder: Path, usual: Gpu, by_label: Mapping[str, Gpu] | None = None) -> None:
    """Puts it into a folder, or lets it tell otherwise from now on.

    Args:
        folder: Where.
        usual: What it tells.
        by_label: What it tells while a server of that variant, or ``variant/s1``, has the GPU.
    """
    folder.mkdir(exist_ok=True)
    truth = {"": usual, **(by_label or {})}
    path = folder / "gpus.json"
    path.write_text(json.dumps({name: asdict(gpu) for name, gpu in truth.items()}))
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {path} "$@"\n')
    script.chmod(0o755)


def _present(truth: Path) -> tuple[Gpu, list[int]]:
    """Returns what is to be told now, and the pids of the server."""
    gpus: dict[str, dict[str, Any]] = json.loads(truth.read_text())
    state = Path(os.environ.get("LEVERBENCH_RUN_DIR", "")) / "gpu0.json"
    served = json.loads(state.read_text()) if state.is_file() else {}
    _, variant, session = served.get("label", "//").split("/")
    told = gpus.get(f"{variant}/{session}") or gpus.get(variant) or gpus[""]
    return Gpu(**told), served.get("server", [])[:1]


def main() -> None:
    """Answers ``--query-gpu`` and ``--query-compute-apps``, again and again if so told."""
    truth, words = Path(sys.argv[1]), sys.argv[2:]
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    period_s = int(options.get("loop-ms", 0)) / 1000
    while True:
        gpu, server = _present(truth)
        if "query-compute-apps" in options:
            listed = [*gpu.pids, *(server if gpu.lists_server else [])]
            print("".join(f"{pid}\n" for pid in listed), end="", flush=True)
        else:
            fields, answers = options["query-gpu"].split(","), gpu.answers()
            if unknown := set(fields) - answers.keys():
                print(f'Field "{unknown.pop()}" is not a valid field to query.')
                sys.exit(2)
            print(", ".join(str(answers[field]) for field in fields), flush=True)
        if not period_s:
            return
        time.sleep(period_s)


if __name__ == "__main__":
    main()
