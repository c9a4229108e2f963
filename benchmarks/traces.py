"""What reading traces costs, beside HolisticTraceAnalysis 0.5.0 (HTA).

Makes traces of two ranks with 1,000,000 events each: seeded, laid out and filled as the profiler
writes them, with the kernels of a real trace (tests/data). HTA gets an environment of its own. Both
answer the same questions in a fresh process: the sum of durations of each kernel, and the share of
time in which the GPU is idle. Ours are answered from the files of events that were written. The
answers must agree: within 0.1% and 0.1 points. HTA is told not to round to microseconds.

Then eight ranks, for the memory of each process, and one rank at three sizes, for the exponent of
time (1: linear).

    python benchmarks/traces.py            # about five minutes
    python benchmarks/traces.py --quick    # 100,000 events a rank, under a minute

Time and memory are taken in separate runs, for to look at memory takes time (``--quick``: HTA runs
once). The fewer the events, the more of our time is the start of Python. Memory is the highest sum
of the proportional set sizes (PSS) of a command's processes. The last line of the output is the
figures as JSON: ``time_ratio`` and ``memory_ratio`` are HTA's over ours; ``rss_ratio`` is that of
the sums of resident set sizes, which count shared pages once a process; ``peak_mb`` and
``ranks8_process_mb`` are ours.
"""

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from leverbench.serving.processes import descendants

PROJECT = Path(__file__).resolve().parents[1]
REAL = PROJECT / "tests/data/decode-c16-gpu.trace.json.gz"
LOCK = PROJECT / "envs/hta.lock.txt"
SEED, STEPS = 20261, 5
# How often memory is looked at.
OURS_LOOK_S, HTA_LOOK_S = 0.05, 0.25
OURS = """
import json, sys, time
from pathlib import Path
from leverbench.profiling.ranks import events_path, read_ranks
folder, answers, *traces = map(Path, sys.argv[1:])
began = time.monotonic()
ranks = {str(number): path for number, path in enumerate(traces)}
read_ranks(ranks, folder)
from leverbench.profiling.events import DEVICE_KINDS, load_events
from leverbench.profiling.intervals import merge, sum_by
answer = {}
for rank in ranks:
    columns = ["name", "start_ns", "duration_ns"]
    events = load_events(events_path(folder, rank), columns, DEVICE_KINDS)
    is_kernel = events.of_kinds({"kernel"})
    name, duration_ns = events["name"][is_kernel], events["duration_ns"][is_kernel]
    sums_ns = sum_by(name, duration_ns, len(events.names)).tolist()
    totals = {name: ns / 1e3 for name, ns in zip(events.names, sums_ns) if ns}
    # The traces have one GPU.
    start_ns = events["start_ns"]
    starts_ns, ends_ns, _ = merge(start_ns, start_ns + events["duration_ns"])
    busy_share = (ends_ns - starts_ns).sum() / (ends_ns[-1] - starts_ns[0])
    answer[rank] = {"totals_us": totals, "idle_share": float(1 - busy_share)}
answers.write_text(json.dumps({"ranks": answer, "seconds": time.monotonic() - began}))
"""
HTA = """
import json, sys
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
_, answers, *traces = sys.argv[1:]
analysis = TraceAnalysis(dict(enumerate(traces)), "/", include_last_profiler_step=True)
_, kernels = analysis.get_gpu_kernel_breakdown(
    visualize=False, duration_ratio=1.0, num_kernels=1 << 20, include_memory_kernels=False
)
times = analysis.get_temporal_breakdown(visualize=False)
answer = {}
for rank in range(len(traces)):
    mine, time = kernels[kernels["rank"] == rank], times[times["rank"] == rank].iloc[0]
    answer[rank] = {
        "totals_us": {name: float(us) for name, us in zip(mine["name"], mine["sum (us)"])},
        "idle_share": float(time["idle_time(us)"] / time["kernel_time(us)"]),
    }
Path(answers).write_text(json.dumps({"ranks": answer}))
"""


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 events a rank")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="leverbench-traces-") as directory:
        figures = compare(Path(directory), *((100_000, 3) if quick else (1_000_000, 5)), quick)
    print(json.dumps(figures))


def compare(directory: Path, events: int, rounds: int, hta_once: bool) -> dict[str, Any]:
    """Returns the figures.

    Args:
        directory: For all files.
        events: Of each rank.
        rounds: How often ours is run.
        hta_once: Whether HTA's time is that of the run in which its memory is looked at.
    """
    hta = Command([str(make_environment(directory / "hta")), "-c", HTA], directory)
    ours = Command([sys.executable, "-c", OURS], directory)
    sizes = [events // 4, events // 2, events]
    wanted = [(directory / f"rank-{rank}.json.gz", rank, events) for rank in (0, 1)]
    wanted += [(directory / f"size-{size}.json.gz", 0, size) for size in sizes[:-1]]
    with ProcessPoolExecutor(2) as pool:
        text_bytes = list(pool.map(write_trace, *zip(*wanted, strict=True)))
    ranks = [path for path, *_ in wanted[:2]]
    our_runs = [ours.run(ranks) for _ in range(rounds)]
    hta_memory = hta.run(ranks, HTA_LOOK_S)
    hta_run = hta_memory if hta_once else hta.run(ranks)
    difference, idle_points = differences(our_runs[0].answers, hta_run.answers)
    if difference > 1e-3 or idle_points > 0.1:
        sys.exit(f"the answers differ: {difference:.2%} of a kernel, {idle_points} points of idle")
    our_memory = ours.run(ranks, OURS_LOOK_S)
    eight = ours.run(ranks * 4)
    alone_s = [
        min(ours.run([path]).answers["seconds"] for _ in range(rounds))
        for path in (*(path for path, *_ in wanted[2:]), ranks[0])
    ]
    wall_s = median(run.wall_s for run in our_runs)
    return {
        "time_ratio": round(hta_run.wall_s / wall_s, 1),
        "memory_ratio": round(hta_memory.pss_mb / our_memory.pss_mb, 1),
        "rss_ratio": round(hta_memory.rss_mb / our_memory.rss_mb, 1),
        "peak_mb": round(our_memory.pss_mb, 1),
        "peak_rss_mb": round(our_memory.rss_mb, 1),
        "ours_s": round(wall_s, 2),
        "ours_lowest_s": round(min(run.wall_s for run in our_runs), 2),
        "ours_highest_s": round(max(run.wall_s for run in our_runs), 2),
        "hta_s": round(hta_run.wall_s, 1),
        "hta_peak_mb": round(hta_memory.pss_mb, 1),
        "hta_peak_rss_mb": round(hta_memory.rss_mb, 1),
        "largest_difference": difference,
        "idle_points": round(idle_points, 4),
        "ranks8_s": round(eight.wall_s, 1),
        "ranks8_process_mb": round(eight.process_mb, 1),
        "size_s": {size: round(s, 3) for size, s in zip(sizes, alone_s, strict=True)},
        "exponent": round(exponent(sizes, alone_s), 3),
        "events": events,
        "json_mb": round(text_bytes[0] / 1e6, 1),
        "gz_mb": round(ranks[0].stat().st_size / 1e6, 1),
        "cores": len(os.sched_getaffinity(0)),
    }


def make_environment(folder: Path) -> Path:
    """Installs HTA and returns the interpreter that has it."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    # Compiling all of it takes longer than all else; the import compiles what is used.
    install = [*pip, "--no-deps", "--no-compile", "-r", LOCK]
    for command in (install, [python, "-c", "import hta.trace_analysis"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
    return python


@dataclass(frozen=True)
class Run:
    """A command that ran, what it answered and what it took.

    Attributes:
        process_mb: Peak resident set size of the largest of its processes.
        pss_mb: Peak of the sum over its processes; 0 where nobody looked.
        rss_mb: The same of resident set sizes.
    """

    answers: dict[str, Any]
    wall_s: float
    process_mb: float
    pss_mb: float
    rss_mb: float


@dataclass(frozen=True)
class Command:
    """What reads traces: it gets a folder, a file for its answers, and the traces."""

    words: Sequence[str]
    folder: Path

    def run(self, traces: Sequence[Path], look_s: float = 0.0) -> Run:
        """Runs it, looking at memory every so many seconds or not at all."""
        answers, log = self.folder / "answers.json", self.folder / "log"
        words = [*self.words, str(self.folder / "events"), str(answers), *map(str, traces)]
        pss_mb = rss_mb = 0.0
        began = time.monotonic()
        with log.open("w") as file:
            process = subprocess.Popen(
                words,
                env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            while (
                look_s
                and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                now_mb = memory_mb(process.pid)
                pss_mb, rss_mb = max(pss_mb, now_mb[0]), max(rss_mb, now_mb[1])
                time.sleep(look_s)
            _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(log.read_text()[-4000:])
        answer = json.loads(answers.read_text())
        # In kB; of the process itself or the largest that it waited for.
        return Run(answer, wall_s, usage.ru_maxrss / 1e3, pss_mb, rss_mb)


def memory_mb(root: int) -> tuple[float, float]:
    """Returns the sums of PSS and of RSS of a process and its descendants."""
    sums = {"Pss:": 0, "Rss:": 0}
    for pid in (root, *(process.pid for process in descendants(root))):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue
        for name, kilobytes, *_ in map(str.split, lines):
            if name in sums:
                sums[name] += int(kilobytes) * 1024
    return sums["Pss:"] / 1e6, sums["Rss:"] / 1e6


def differences(ours: dict[str, Any], hta: dict[str, Any]) -> tuple[float, float]:
    """Returns the largest relative difference of a kernel's total, and that of idle in points."""
    of_totals, of_idle = [], []
    for rank, mine in ours["ranks"].items():
        theirs = hta["ranks"][rank]
        if mine["totals_us"].keys() != theirs["totals_us"].keys():
            sys.exit("the two name different kernels")
        of_totals += [
            abs(us / theirs["totals_us"][name] - 1) for name, us in mine["totals_us"].items()
        ]
        of_idle.append(100 * abs(mine["idle_share"] - theirs["idle_share"]))
    return max(of_totals), max(of_idle)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Returns the slope of log time over log size, by least squares."""
    slope, _ = np.polyfit([math.log(size) for size in sizes], [math.log(s) for s in seconds], 1)
    return float(slope)


def write_trace(path: Path, rank: int, events: int) -> int:
    """Writes a rank's trace and returns the size of its JSON in bytes."""
    written = 0
    with gzip.open(path, "wb", compresslevel=6) as file:
        for text in parts(rank, events):
            written += file.write(text.encode())
    return written


HEAD = """\

  {{
    "schemaVersion": 1,
    "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448
    }}
    ],
      "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2}},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
TAIL = """\
  {{
    "name": "thread_name", "ph": "M", "ts": {first:.3f}, "pid": 489, "tid": 489,
    "args": {{
      "name": "thread 489 (scheduler)"
    }}
  }},
  {{
    "ph": "X", "cat": "Trace", "ts": {first:.3f}, "dur": {span:.3f},
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {{
      "Op count": 0
    }}
  }},
  {{
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": {last:.3f}
  }}
  ],
  "traceName": "rank-{rank}.json"
}}"""
# Of an operation that launches its kernel: three operations, the launch, and an arrow to the kernel
# and its end. A graph's kernels have the launch in common.
EAGER, GRAPH, GRAPH_KERNELS = 7, 2, 400
MAIN, OVERLAPPED, COPIES = 33, 13, 29
OPERATIONS = ("aten::empty", "aten::as_strided", "aten::copy_", "aten::linear", "aten::add")


def parts(rank: int, events: int) -> Iterator[str]:
    """Yields the text of a trace: steps in which every other kernel is in a graph."""
    rng = np.random.default_rng([SEED, rank])
    document = json.loads(gzip.decompress(REAL.read_bytes()))
    kernels = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
    layouts = [kernel_layout(kernel["name"], kernel["args"]) for kernel in kernels]
    lasts = [kernel["dur"] for kernel in kernels]
    yield HEAD.format(rank=rank)
    first = now = 5_110_875_000_000.0 + 17.0 * rank
    correlation = written = 0
    for step in range(STEPS):
        step_begins = now
        while written < events * (step + 1) / STEPS - 4:
            count = GRAPH_KERNELS
            which = rng.integers(0, len(kernels), count).tolist()
            varied = rng.lognormal(0.0, 0.3, count).tolist()
            gaps = rng.exponential(4.0, count).tolist()
            beside = (rng.random(count) < 0.1).tolist()
            text = []
            correlation += 1
            graph = correlation
            text.append(launch("cudaGraphLaunch", now, 40.0, graph))
            written += 2
            for at, kernel in enumerate(which):
                duration = lasts[kernel] * varied[at]
                stream = OVERLAPPED if beside[at] else MAIN
                layout = layouts[kernel]
                if at % 2:
                    text.append(layout(now, duration, stream, graph))
                    written += GRAPH
                elif at % 40 == 0:
                    correlation += 1
                    text.append(launch("cudaMemcpyAsync", now - 9.0, 8.0, correlation))
                    text.append(copy(now, 1.0 + gaps[at], correlation))
                    written += 4
                else:
                    correlation += 1
                    text.append(operations(now - 40.0, gaps[at], correlation, at))
                    text.append(launch("cudaLaunchKernel", now - 9.0, 8.0, correlation))
                    text.append(layout(now, duration, stream, correlation))
                    written += EAGER
                # Kernels of the other stream overlap with the next one.
                now += gaps[at] + (0.3 * duration if beside[at] else duration)
            yield "".join(text)
        yield annotation(f"ProfilerStep#{step}", step_begins - 50.0, now - step_begins)
        written += 1
    yield TAIL.format(rank=rank, first=first - 100.0, span=now - first + 200.0, last=now + 100.0)


def annotation(name: str, start: float, duration: float) -> str:
    """Returns the text of a marked span."""
    return f"""\
  {{
    "ph": "X", "cat": "user_annotation", "name": "{name}", "pid": 489, "tid": 489,
    "ts": {start:.3f}, "dur": {duration:.3f},
    "args": {{
      "External id": 1,"Record function id": 0, "Ev Idx": 0
    }}
  }},
"""


def operations(start: float, duration: float, number: int, which: int) -> str:
    """Returns the text of three operations, two in the first."""
    return "".join(
        f"""\
  {{
    "ph": "X", "cat": "cpu_op", "name": "{OPERATIONS[(which + depth) % len(OPERATIONS)]}", \
"pid": 489, "tid": 489,
    "ts": {start + 3.0 * depth:.3f}, "dur": {duration + 20.0 - 6.0 * depth:.3f},
    "args": {{
      "External id": {3 * number + depth},"Record function id": 0, "Ev Idx": {3 * number + depth}
    }}
  }},
"""
        for depth in range(3)
    )


def launch(name: str, start: float, duration: float, correlation: int) -> str:
    """Returns the text of a call of the runtime, and of the arrow that begins at it."""
    return f"""\
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 489, "tid": 489,
    "ts": {start:.3f}, "dur": {duration:.3f},
    "args": {{
            "External id": {correlation}, "cbid": 211, "correlation": {correlation}
    }}
  }},
  {{
    "ph": "s", "id": {correlation}, "pid": 489, "tid": 489, "ts": {start:.3f},
    "cat": "ac2g", "name": "ac2g"
  }},
"""


def arrow_end(start: float, stream: int, correlation: int) -> str:
    """Returns the text of the arrow's end at what a GPU did."""
    return f"""\
  {{
    "ph": "f", "id": {correlation}, "pid": 0, "tid": {stream}, "ts": {start:.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
"""


def copy(start: float, duration: float, correlation: int) -> str:
    """Returns the text of a copy, with the arrow that ends at it."""
    event = f"""\
  {{
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, \
"tid": {COPIES},
    "ts": {start:.3f}, "dur": {duration:.3f},
    "args": {{
            "External id": {correlation}, "device": 0, "context": 1,      "stream": {COPIES}, \
"correlation": {correlation},      "bytes": 128, "memory bandwidth (GB/s)": 0.16
    }}
  }},
"""
    return event + arrow_end(start, COPIES, correlation)


def kernel_layout(name: str, arguments: dict[str, Any]) -> Any:
    """Returns a function that gives the text of a kernel, with the arrow that ends at it."""
    head = f"""\
  {{
    "ph": "X", "cat": "kernel", "name": {json.dumps(name)}, "pid": 0, "tid": """
    shown = {
        key: arguments[key]
        for key in (
            "registers per thread",
            "shared memory",
            "blocks per SM",
            "warps per SM",
            "grid",
            "block",
            "est. achieved occupancy %",
        )
    }
    tail = ",      ".join(f'"{key}": {json.dumps(value)}' for key, value in shown.items())

    def layout(start: float, duration: float, stream: int, correlation: int) -> str:
        event = f"""{head}{stream},
    "ts": {start:.3f}, "dur": {duration:.3f},
    "args": {{
            "External id": {correlation}, "queued": 0, "device": 0, "context": 1,      \
"stream": {stream}, "correlation": {correlation},      {tail}
    }}
  }},
"""
        return event + arrow_end(start, stream, correlation)

    return layout


if __name__ == "__main__":
    main()
