"""Reads the traces of several ranks at once, each in a process of its own.

Nothing heavy is imported before these processes have begun.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverbench.errors import LeverbenchError

if TYPE_CHECKING:
    from leverbench.profiling.events import EventsFacts


def read_ranks(
    traces: Mapping[str, Path], folder: Path, workers: int | None = None
) -> dict[str, "EventsFacts"]:
    """Reads the traces of several ranks at once: one in this process, others in further ones.

    Args:
        traces: By the rank's name, such as ``TP-0``.
        folder: Where the events are written, see `events_path`.
        workers: How many processes read, this one included; by default one a core.

    Returns:
        The facts of each rank's trace.

    Raises:
        LeverbenchError: There is no event to be had from a trace.
        OSError: Events cannot be written.
    """
    workers = workers or len(os.sched_getaffinity(0))
    # One iterator for all, so that each rank is taken once, by whoever is free.
    waiting = iter(traces.items())
    failed: list[BaseException] = []
    processes: list[subprocess.Popen[str]] = []

    def stop(error: BaseException) -> None:
        failed.append(error)
        for process in processes:
            process.kill()

    def started(process: subprocess.Popen[str]) -> None:
        processes.append(process)
        # In between, something may have failed.
        if failed:
            process.kill()

    def read(reader: Any) -> None:
        while not failed and (found := next(waiting, None)):
            try:
                reader(found[1], events_path(folder, found[0]))
            except Exception as error:
                stop(error)

    beside = max(0, min(workers, len(traces)) - 1)
    with ThreadPoolExecutor(max(1, beside)) as threads:
        try:
            reader = partial(_read_in_process, started=started)
            tasks = [threads.submit(read, reader) for _ in range(beside)]
            from leverbench.profiling.events import load_facts
            from leverbench.profiling.reader import read_events

            read(read_events)
            for task in tasks:
                task.result()
        except BaseException as error:
            # Whoever interrupts this does not wait for the others.
            stop(error)
            raise
    if failed:
        raise failed[0]
    return {rank: load_facts(events_path(folder, rank)) for rank in traces}


def events_path(folder: Path, rank: str) -> Path:
    """Returns where the events of a rank are kept."""
    return folder / f"{rank}.events.parquet"


def _read_in_process(
    trace: Path, events: Path, started: Callable[["subprocess.Popen[str]"], None]
) -> None:
    command = [sys.executable, "-m", "leverbench.profiling.reader", str(trace), str(events)]
    # The default allocator keeps ten megabytes that it does not use.
    environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", **os.environ}
    pipe = subprocess.PIPE
    # A trace may be a descriptor of ours, as of a shell's <(...): it is passed on.
    with subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        close_fds=False,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        started(process)
        stdout, stderr = process.communicate()
    if process.returncode == 0:
        return
    error: Exception
    try:
        told = json.loads(stdout)
        if "errno" in told:
            raise OSError(told["errno"], told["strerror"], str(events))
        error = LeverbenchError(told["what"], where=told["where"], cure=told["cure"])
    except (ValueError, LookupError, TypeError):
        last = (stderr.split("\n")[-2:] or [""])[0]
        what = f"the process that reads the trace ended with {process.returncode} ({last})"
        error = LeverbenchError(what, where=str(trace), cure="Run again.")
    raise error
