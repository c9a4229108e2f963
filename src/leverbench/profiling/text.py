"""The summary of traces as text, for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from leverbench.profiling.categories import LARGE_OTHER, OTHER
from leverbench.profiling.geometry import Geometry, describe

_NAME_CHARACTERS = 90


def summary_text(summary: Mapping[str, Any]) -> str:
    """Returns what `summarise_traces` found, in lines."""
    return "\n".join((*_head(summary), "", *_categories(summary), "", *_top(summary)))


def _head(summary: Mapping[str, Any]) -> Iterator[str]:
    device = summary["device"].upper()
    events = sum(file["events"] for file in summary["files"])
    yield f"{_many(len(summary['files']), 'trace')}, {events:,} operations; time on the {device}"
    if summary["truncated"]:
        yield f"INCOMPLETE: {_printable(summary['truncated'])}"
    yield _steps(summary)
    recording = summary["recording"]
    if summary["idle_share"] is not None:
        of = "them" if summary["steps"]["found_by"] else "the recording"
        line = f"{device} idle {summary['idle_share']:.1%} of {of}"
        if summary["steps"]["found_by"]:
            line += f" ({recording['idle_share']:.1%} of the whole recording)"
        if (gaps := summary["gaps"]) and gaps["count"]:
            line += (
                f": {_many(gaps['count'], 'gap')}, half of them above {gaps['median_us']:.3g} us"
            )
        yield line
    if communication := summary["communication"]:
        transfer_us, wait_us = communication["transfer_us"], communication["wait_us"]
        if transfer_us + wait_us:
            yield (
                f"communication over all ranks: {transfer_us / 1000:.3f} ms transfer,"
                f" {wait_us / 1000:.3f} ms waiting for other ranks"
            )


def _steps(summary: Mapping[str, Any]) -> str:
    steps = summary["steps"]
    count = summary["decode_steps"]
    seen = "no number of decode steps" if count is None else _many(count, "decode step")
    if steps["found_by"] is None:
        return f"{seen} found ({steps['reason']}): figures are of the whole recording"
    shortest, mean, longest = (steps[key] / 1000 for key in ("min_us", "mean_us", "max_us"))
    return (
        f"{seen}, found by {steps['found_by']}; {steps['count']} whole from start to"
        f" start: {mean:.3f} ms ({shortest:.3f} to {longest:.3f})"
    )


def _categories(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'share':>6} {'of step':>8} {'us a step':>10}  {'category':<14} tensor cores, by names"
    for entry in summary["categories"]:
        yield (
            f"{entry['share']:>6.1%} {entry['step_share']:>8.1%} {_us(entry['per_step_us']):>10} "
            f" {entry['category']:<14} {entry['tensor_cores'] or '-'}"
        )
        if entry["category"] == OTHER and entry["share"] > LARGE_OTHER:
            yield "WARNING: no category claims these operations; the longest of them:"
            yield from (f"    {_short(name)}" for name in summary["other_top"])


def _top(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'share':>6} {'calls':>8} {'us a step':>10}  longest operations"
    for entry in summary["top"]:
        yield (
            f"{entry['share']:>6.1%} {entry['calls']:>8,} {_us(entry['per_step_us']):>10} "
            f" {_short(entry['name'])} ({entry['category']})"
        )
        if entry["geometry"] and (sentence := describe(Geometry(**entry["geometry"]))):
            yield f"{'':>27} {sentence}"


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:,.1f}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _short(name: str) -> str:
    short = name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}..."
    return _printable(short)


def _printable(text: str) -> str:
    """Returns a text from a file as one line that does nothing to a terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
