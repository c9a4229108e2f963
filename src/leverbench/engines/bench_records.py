"""Lines that SGLang's own benchmark (``bench_serving``) appends to its output file.

Its keys were renamed over the years: ``output_token_throughput`` became ``output_throughput``,
times got their unit (``median_ttft``, ``median_ttft_ms``), and ``tag``, ``max_concurrency`` and
``server_info`` came later.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from leverbench.engines import get_engine
from leverbench.secrets import is_secret_setting

# Settings that differ between launches of one configuration, and what the server found out.
_NOT_SETTINGS = {
    "internal_states",
    "kv_events",
    "max_req_input_len",
    "max_total_num_tokens",
    "model_path",
    "served_model_name",
    "startup_time",
    "status",
    "tokenizer_path",
    "version",
}
_OF_LAUNCHES = {"random_seed", "host", "port", "dist_init_addr"}
_RATE = ("output_throughput", "output_token_throughput")
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}


def is_bench_line(line: Mapping[str, Any]) -> bool:
    """Returns whether an object is a line of that benchmark."""
    return "backend" in line and _first(line, *_RATE) is not None


def measured_values(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns a line's figures by our names; None where it has none.

    A time of zero is what the tool writes where there was none.
    """
    duration_s = _first(line, "duration", "benchmark_duration")
    completed = _first(line, "completed")
    request_per_s = _first(line, "request_throughput")
    if request_per_s is None and completed is not None and duration_s:
        request_per_s = completed / duration_s
    values: dict[str, float | None] = {
        "output_tok_per_s": _first(line, *_RATE),
        "request_per_s": request_per_s,
        "num_requests": completed,
        "duration_s": duration_s,
        "output_tokens": _first(line, "total_output_tokens", "total_output"),
        "accept_length": _first(line, "accept_length"),
        "delivered_concurrency": _first(line, "concurrency"),
    }
    for time, theirs in _TIMES.items():
        for statistic, word in _STATISTICS.items():
            value = _first(line, f"{word}_{theirs}_ms", f"{word}_{theirs}")
            values[f"{statistic}_{time}_ms"] = value or None
    return values


def load_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a line says of its load.

    Returns:
        ``dataset``, ``input_tokens``, ``output_tokens`` (the longest, where lengths vary),
        ``fixed`` (whether all requests have these), ``request_per_s`` (None: as many as the
        concurrency allows) and ``concurrency``; None where the line does not tell.
    """
    dataset, concurrency = line.get("dataset_name"), line.get("max_concurrency")
    rate = line.get("request_rate")
    finite = isinstance(rate, (int, float)) and math.isfinite(rate)
    named = isinstance(dataset, str) and dataset.startswith("random")
    return {
        "dataset": dataset if isinstance(dataset, str) else None,
        "input_tokens": _whole(line.get("random_input_len")) if named else None,
        "output_tokens": _whole(line.get("random_output_len")) if named else None,
        "fixed": named and line.get("random_range_ratio") == 1,
        "request_per_s": rate if finite else None,
        "concurrency": _whole(concurrency),
    }


def server_of(line: Mapping[str, Any]) -> tuple[str | None, str | None, dict[str, Any]]:
    """Returns model, engine version and settings (``args.NAME``) of the server, as it told them.

    Secrets and what differs between launches of one configuration are left out.
    """
    told = line.get("server_info")
    if not isinstance(told, Mapping):
        return None, None, {}
    settings = {}
    for name, value in told.items():
        key = f"args.{name.replace('_', '-')}"
        own = name in _OF_LAUNCHES or name.endswith("_port")
        if name in _NOT_SETTINGS or own or is_secret_setting(key):
            continue
        settings[key] = value if isinstance(value, (str, int, float, type(None))) else _text(value)
    model, version = told.get("model_path"), told.get("version")
    return (
        model if isinstance(model, str) else None,
        f"sglang {version}" if isinstance(version, str) else None,
        settings,
    )


def lever_family(key: str) -> str:
    """Returns the lever that a setting of `server_of` belongs to."""
    return get_engine("sglang").lever_family(key)


def _first(line: Mapping[str, Any], *keys: str) -> float | None:
    """Returns the first of some keys that has a finite number."""
    for key in keys:
        value = line.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
