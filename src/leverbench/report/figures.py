"""The report's figures, as SVG that is the same for the same data."""

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leverbench.analysis.measurements import Row, newest
from leverbench.analysis.ratios import Ratio
from leverbench.analysis.verdicts import Verdict

# Metric: (file name, axis label). Throughput and latency are drawn against concurrency.
CURVES = {
    "output_tok_per_s": ("output-tok-per-s", "output tok/s"),
    "mean_tpot_ms": ("mean-tpot-ms", "mean TPOT, ms"),
    "mean_ttft_ms": ("mean-ttft-ms", "mean TTFT, ms"),
}
RATIOS = "ratio-to-parent"

# Okabe and Ito's palette (2008), which colour-blind readers tell apart, less its yellow: too
# light on white. Markers tell variants apart too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00")
# One marker more than colours: a second round of colours has other markers.
_MARKERS = ("s", "^", "D", "v", "P", "X", "p", "h")
_INK, _MUTED, _RULE = "#1c2128", "#5b6570", "#dde2e7"
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa4ae",
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.color": _RULE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    # Text stays text: it can be searched, and takes the page's font.
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
}


def draw_figures(
    plan: Mapping[str, Any],
    rows: Sequence[Row],
    ratios: Sequence[Ratio],
    verdicts: Mapping[tuple[str, str, int, str], Verdict],
) -> dict[str, str]:
    """Draws every figure of a campaign.

    Returns:
        SVG documents by file name without its suffix: ``{workload}-{curve}`` and
        ``{workload}-ratio-to-parent`` for each workload of the plan, empty ones included.
    """
    drawn = {}
    for workload in plan["workloads"]:
        here = [row for row in rows if row["workload"] == workload]
        for metric, (name, label) in CURVES.items():
            file = f"{workload}-{name}"
            size = (11.0, 4.4) if metric == "output_tok_per_s" else (6.2, 3.9)
            with matplotlib.rc_context({**_STYLE, "svg.hashsalt": file}):
                drawn[file] = _svg(_curves(plan, here, metric, label, size))
        file = f"{workload}-{RATIOS}"
        with matplotlib.rc_context({**_STYLE, "svg.hashsalt": file}):
            drawn[file] = _svg(
                _ratios(plan, [r for r in ratios if r.workload == workload], verdicts)
            )
    return drawn


def _curves(
    plan: Mapping[str, Any],
    rows: Sequence[Row],
    metric: str,
    label: str,
    size: tuple[float, float],
) -> Figure:
    figure = Figure(figsize=size)
    axes = figure.subplots()
    last: dict[Any, float] = {}
    for index, variant in enumerate(plan["variants"]):
        points = {
            concurrency: [row[metric] for row in newest(cell) if row[metric] is not None]
            for concurrency in sorted({row["concurrency"] for row in rows})
            if (
                cell := [
                    r for r in rows if (r["variant"], r["concurrency"]) == (variant, concurrency)
                ]
            )
        }
        points = {concurrency: values for concurrency, values in points.items() if values}
        if not points:
            continue
        colour, marker = _look(index)
        means = [statistics.fmean(values) for values in points.values()]
        (line,) = axes.plot(list(points), means, color=colour, linewidth=1.8, label=variant)
        line.set_marker(marker)
        line.set_markersize(4)
        for concurrency, values in points.items():
            axes.plot(
                [concurrency] * len(values),
                values,
                linestyle="none",
                marker=marker,
                markersize=7,
                markerfacecolor="none",
                markeredgecolor=colour,
            )
        last[line] = means[-1]
    axes.set_xlabel("concurrency (C)")
    axes.set_ylabel(label)
    if not last:
        return _empty(figure, axes)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.03)
    axes.set_xscale("log", base=2)
    steps = sorted({int(c) for c in plan["ladder"]} | {row["concurrency"] for row in rows})
    axes.set_xticks(steps, labels=[str(step) for step in steps])
    axes.minorticks_off()
    axes.set_xlim(steps[0] / 1.15, steps[-1] * 1.15)
    # In the order of the lines' right ends.
    lines = sorted(last, key=lambda line: -last[line])
    figure.legend(handles=lines, loc="outside right upper")
    return figure


def _ratios(
    plan: Mapping[str, Any],
    ratios: Sequence[Ratio],
    verdicts: Mapping[tuple[str, str, int, str], Verdict],
) -> Figure:
    shown = [ratio for ratio in ratios if ratio.metric == "output_tok_per_s"]
    variants = list(dict.fromkeys(ratio.variant for ratio in shown))
    # Variants stand apart by most of a row.
    heights = {
        (ratio.variant, ratio.concurrency): -(row + 0.7 * variants.index(ratio.variant))
        for row, ratio in enumerate(shown)
    }
    rows_and_gaps = len(shown) + 0.7 * len(variants)
    figure = Figure(figsize=(11.0, 1.0 + 0.27 * max(rows_and_gaps, 3)))
    axes = figure.subplots()
    axes.set_xlabel("output tok/s, ratio to the parent")
    if all(verdict.ratio is None for verdict in verdicts.values()):
        return _empty(figure, axes)
    axes.axvline(1, color=_INK, linewidth=1)
    notes = []
    for ratio in shown:
        y = heights[ratio.variant, ratio.concurrency]
        colour, marker = _look(list(plan["variants"]).index(ratio.variant))
        verdict = verdicts[ratio.variant, ratio.workload, ratio.concurrency, ratio.metric]
        if verdict.ratio is None:
            notes.append((y, _why_none(ratio, verdict)))
            continue
        values = [value for _, value in ratio.sessions]
        if verdict.low is not None and verdict.high is not None:
            interval = [verdict.low, verdict.high]
            axes.plot(interval, [y, y], color=colour, linewidth=1.2, alpha=0.6)
        axes.plot([verdict.ratio] * 2, [y - 0.36, y + 0.36], color=colour, linewidth=2.4)
        axes.plot(
            values,
            [y] * len(values),
            linestyle="none",
            marker=marker,
            markersize=6,
            markerfacecolor="white",
            markeredgecolor=colour,
        )
    for y, note in notes:
        axes.annotate(
            note,
            (1, y),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=_MUTED,
            fontstyle="italic",
        )
    axes.set_yticks(
        list(heights.values()),
        labels=[
            f"{ratio.variant} / {ratio.parent}   C={ratio.concurrency}"
            if ratio.variant != before
            else f"C={ratio.concurrency}"
            for ratio, before in zip(shown, [None, *(r.variant for r in shown)], strict=False)
        ],
    )
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(min(heights.values()) - 0.8, 0.8)
    return figure


def _why_none(ratio: Ratio, verdict: Verdict) -> str:
    if ratio.withheld:
        return "not applied"
    apart = dict.fromkeys(what for _, what in ratio.not_compared)
    if apart:
        return f"measured on {', '.join(apart)}: not compared"
    return verdict.withheld or "no pair of valid rows"


def _look(index: int) -> tuple[str, str]:
    """Returns the colour and marker of the plan's variant number `index`; the first is ink."""
    if index == 0:
        return _INK, "o"
    return _COLOURS[(index - 1) % len(_COLOURS)], _MARKERS[(index - 1) % len(_MARKERS)]


def _empty(figure: Figure, axes: Axes) -> Figure:
    figure.set_figheight(1.6)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "nothing measured yet", transform=axes.transAxes, ha="center", color=_MUTED)
    return figure


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    # No date and no version: the same data give the same file.
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()
