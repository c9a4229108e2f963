"""Renders a campaign's report from its results, whole or partial."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leverbench import __version__
from leverbench.analysis.differences import Explained, ProfileDifference
from leverbench.analysis.measurements import command, placement_text, row_name
from leverbench.analysis.predictions import Call, Choice, KernelResults
from leverbench.analysis.ratios import GOODPUT, concurrencies, metrics_of
from leverbench.analysis.settings import as_text, changes, steps_text
from leverbench.analysis.verdicts import interval_text, verdict_text
from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN, FILE
from leverbench.kernels.manifest import shape_name
from leverbench.profiling.categories import OTHER
from leverbench.profiling.geometry import Geometry, describe
from leverbench.records import write_bytes
from leverbench.report.figures import CURVES, RATIOS, draw_figures
from leverbench.report.findings import findings
from leverbench.report.findings.campaign import target_sentence
from leverbench.report.findings.finding import (
    config_text,
    counted,
    cross_text,
    gain_text,
    range_text,
    session_names,
)
from leverbench.report.findings.profiles import STAND_OUT
from leverbench.report.profiles import Profile, ProfileTable, told_name
from leverbench.report.summary import Summary, engine_text, first_line, summarise

# What is told below the categories of a profile; the first three of each.
_FACTS = (
    "Time of operations, ms",
    "Decode steps",
    "Requests in flight",
    "Whole steps (left out)",
    "A decode step, ms",
    "TPOT measured, ms",
    "Device idle",
    "Gaps: number, median us",
    "Communication: transfer, waiting, ms",
    "Tensor instructions, measured",
    "Memory bandwidth, measured",
)
# Operations of a difference that are listed.
_MOST_OPERATIONS = 10

_LABELS = {
    "output_tok_per_s": "Output tok/s",
    "mean_tpot_ms": "Mean TPOT",
    "mean_ttft_ms": "Mean TTFT",
    GOODPUT: "Goodput",
}


def render_report(
    plan: Path,
    measurements: Path,
    launches: Path,
    profiles: Sequence[Path],
    out_html: Path,
    out_findings: Path,
    figures_dir: Path,
) -> None:
    """Writes the page, the findings and the figures of a campaign.

    What has not been measured is shown as a hole; nothing else is read than these files, the
    records of sessions beside the plan, and those of the kernels that it names.

    Args:
        plan: The campaign's ``plan.json``.
        measurements: The Parquet table of `leverbench.analysis.analyse`.
        launches: The folder of launch evidence, which need not exist.
        profiles: The profile records that exist.
        out_html: One page that needs no other file, no network and no script.
        out_findings: The findings, in Markdown.
        figures_dir: Folder for the figures, each an SVG: ``{workload}-output-tok-per-s``,
            ``-mean-tpot-ms``, ``-mean-ttft-ms`` and ``-ratio-to-parent``.

    Raises:
        LeverbenchError: A file is truncated or foreign.
    """
    summary = summarise(plan, measurements, launches, profiles)
    figures = draw_figures(summary.plan, summary.rows, summary.ratios, summary.verdicts)
    for name, svg in figures.items():
        write_bytes(figures_dir / f"{name}.svg", svg.encode())
    context = _context(summary)
    page = _environment(autoescape=True).get_template("index.html")
    inline = {name: _inline(svg) for name, svg in figures.items()}
    write_bytes(out_html, page.render(context, figures=inline).encode())
    text = _environment(autoescape=False, finalize=_markdown).get_template("findings.md")
    write_bytes(out_findings, text.render(context).encode())


def _environment(**options: Any) -> Environment:
    environment = Environment(
        loader=PackageLoader("leverbench.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.filters |= {
        "num": _number,
        "percent": _percent,
        "counted": counted,
        "interval": interval_text,
        "gain": gain_text,
        "verdict": verdict_text,
        "text": as_text,
        "first_line": first_line,
        "session_names": session_names,
        "workload": _workload,
        "anchor": _anchor,
        "launch": _launch,
        "signed": _signed,
    }
    return environment


def _context(summary: Summary) -> dict[str, Any]:
    plan, rows = summary.plan, summary.rows
    times = sorted(t for row in rows for t in (row["started_at"], row["ended_at"]) if t)
    return {
        "s": summary,
        "plan": plan,
        "version": __version__,
        "labels": _LABELS,
        "metrics": metrics_of(plan),
        "equal_within": plan.get("equal_within", DEFAULT_EQUAL_WITHIN),
        "curves": CURVES,
        "ratio_figure": RATIOS,
        "when": (_minute(times[0]), _minute(times[-1])) if times else None,
        "engine": _engine(summary),
        "machine": _machine(summary),
        "target": target_sentence(summary),
        "findings": findings(summary),
        "concurrencies": concurrencies(plan, rows),
        "changes": {name: changes(variant) for name, variant in plan["variants"].items()},
        "ratios": {(r.variant, r.workload, r.concurrency, r.metric): r for r in summary.ratios},
        "spreads": {(s.variant, s.workload, s.concurrency, s.metric): s for s in summary.spreads},
        "ceilings": _ceilings(summary),
        "range_text": range_text,
        "kernel_calls": [row for kernel in summary.kernels for row in _kernel_calls(kernel)],
        "standing": {name: _standing(summary, name) for name in summary.compared},
        "crosses": {name: cross_text(summary, name) for name in plan["variants"]},
        "commands": [row["command"] for row in rows],
        "command_of_missing": command(plan, "VARIANT/sSESSION/WORKLOAD/cCONCURRENCY"),
        "unlike_newest": {row_name(row): summary.unlike_newest(row) for row in rows},
        "relaunches": _relaunches(summary),
        "row_name": row_name,
        "launches": _launches(summary),
        "other": OTHER,
        "told_name": told_name,
        "anchors": _anchors(summary),
        "profile_facts": lambda table: _profile_facts(summary, table),
        "category_gains": {
            (one.shares.name, one.category): one.gain for one in summary.category_ceilings
        },
        "differences": _differences(summary),
        "stand_out": STAND_OUT,
        "most_operations": _MOST_OPERATIONS,
        "digests": _digests(summary),
        "order_run": _blocks(summary.order),
        "order_planned": _blocks(plan["order"]),
        "protocols": sorted({row["protocol"] for row in summary.valid if row["protocol"]}),
        "request_failures": [row for row in summary.valid if row["failures"]],
        "has_accept_length": any(row["accept_length"] is not None for row in rows),
        "short": len(plan["workloads"]) == 1,
    }


def _workload(workload: Mapping[str, Any]) -> str:
    """Returns a workload of the plan in words."""
    if workload["dataset"] == FILE:
        return f"{workload['path']} (SHA-256 {workload['content'][:12]}), a line a request"
    lengths = (workload["input_tokens"], workload["output_tokens"])
    told, answer = (
        "an untold number of"
        if n is None
        else f"{n[0]} to {n[1]}"
        if isinstance(n, list)
        else str(n)
        for n in lengths
    )
    text = f"{workload['dataset'] or 'data set not told'}, {told} tokens in, {answer} out"
    if shared := workload.get("shared_prefix"):
        text += f", the first {shared['tokens']} of each prompt one of "
        text += counted(shared["groups"], "prefix", "prefixes")
    return text


def _engine(summary: Summary) -> str:
    """Returns the engines that were launched."""
    if summary.imported:
        return summary.imported["engine"] or "not told"
    named = [engine_text(launch) for launch in summary.launches.values()]
    return ", ".join(dict.fromkeys(named)) or "not known yet"


def _launches(summary: Summary) -> list[dict[str, Any]]:
    """Returns what the table of launches says, a row each."""
    return [
        {
            "server": server,
            "variant": launch["variant"],
            "session": launch["session"],
            "outcome": launch["outcome"],
            "attached": bool(launch.get("attached")),
            "recorded": _minute(launch["recorded_at"]),
            "start_s": launch["start_s"],
            "versions": {"engine": engine_text(launch), **(launch.get("versions") or {})},
            "placement": placement_text(launch.get("placement")),
            "recovery": steps_text(launch.get("recovery") or ()),
            "command": " ".join(
                [
                    *(f"{key}={value}" for key, value in (launch.get("env") or {}).items()),
                    *(launch.get("argv") or ()),
                ]
            ),
            "effective": launch.get("effective") or {},
        }
        for server, launch in summary.launches.items()
    ]


def _ceilings(summary: Summary) -> dict[tuple[str, str], list[str]]:
    """Returns, by variant and workload, what each of its levers can give at most, and where."""
    alike: dict[tuple[str, str], dict[tuple[Any, ...], list[int]]] = {}
    for one in summary.ceilings:
        what = (one.lever, one.gain, one.categories, one.share, one.profile)
        cell = alike.setdefault((one.variant, one.workload), {})
        cell.setdefault(what, []).append(one.concurrency)
    return {
        cell: [
            f"C={', '.join(map(str, at))}: {gain:.3f} for {lever}"
            f" ({' + '.join(categories)} {_percent(share)} in {profile})"
            for (lever, gain, categories, share, profile), at in entries.items()
        ]
        for cell, entries in alike.items()
    }


def _kernel_calls(kernel: KernelResults) -> list[dict[str, Any]]:
    """Returns what the table of kernels says: a row for each shape and size in servers."""
    tunings = {tuning.shape: tuning for tuning in kernel.tunings}
    choices = {_dimensions(one): one for tuning in kernel.tunings for one in tuning.choices}
    calls = {_dimensions(one): one for one in kernel.calls}
    rows = []
    for dimensions in dict.fromkeys([*choices, *calls]):
        choice = choices.get(dimensions)
        given = choice or calls[dimensions]
        shape = shape_name({name: value for name, value in dimensions if name != kernel.size})
        rows.append(
            {
                "kernel": kernel.name,
                "call": config_text(dict(dimensions)),
                "config": config_text(given.config),
                "choice": choice,
                "skipped": tunings[shape].skipped if shape in tunings else None,
                "given": tunings[shape].given if shape in tunings else None,
                "timed": calls.get(dimensions),
            }
        )
    return rows


def _dimensions(one: Call | Choice) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(one.dimensions.items()))


def _machine(summary: Summary) -> str:
    """Returns the devices that measured, and what the fingerprint says of the host."""
    parts = []
    for name, form in (
        ("gpus", "{}"),
        ("cpu", "{}"),
        ("cores", "{} cores"),
        ("memory_gib", "{} GiB"),
    ):
        parts += [form.format(value) for value in summary.machines.get(name, ())]
    devices = " and ".join(device.upper() for device in summary.machines.get("device", ()))
    return ": ".join(part for part in (devices, ", ".join(parts)) if part) or (
        "not told" if summary.imported else "not known yet"
    )


def _standing(summary: Summary, variant: str) -> str:
    numbers = sorted(
        {len(r.sessions) for r in summary.ratios if r.variant == variant and r.sessions}
    )
    if not numbers:
        return (
            "no ratio yet" if summary.applied[variant].state != "not applied" else "ratio withheld"
        )
    if len(numbers) == 1:
        return counted(numbers[0], "session")
    return f"{numbers[0]} to {numbers[-1]} sessions"


def _profile_facts(summary: Summary, table: ProfileTable) -> list[tuple[str, list[str]]]:
    """Returns what a profile is of: ``(what, values)``, a value for each variant of the plan.

    What profiles of before do not tell is left out where none of them does.
    """
    variants, nothing = summary.plan["variants"], _number(None)
    facts: dict[str, list[str]] = {}
    for name in variants:
        profile = table.profiles.get(name)
        told = _facts(profile) if profile else {}
        tpot_ms = summary.mean("mean_tpot_ms", name, table.workload, table.concurrency)
        if profile and profile.step_us:
            # The profiled step is longer: recording costs time.
            told["TPOT measured, ms"] = _number(tpot_ms, 2)
        for label in _FACTS:
            facts.setdefault(label, []).append(told.get(label, nothing))
    return [
        (label, values)
        for label, values in facts.items()
        if label in _FACTS[:3] or set(values) != {nothing}
    ]


def _facts(profile: Profile) -> dict[str, str]:
    """Returns what one profile tells, by the labels of `_FACTS`."""
    told = {
        "Time of operations, ms": _ms(profile.total_us),
        "Decode steps": _number(profile.decode_steps),
        "Requests in flight": _number(None)
        if profile.in_flight is None
        else str(profile.in_flight),
        "Device idle": _percent(profile.idle_share),
        "Tensor instructions, measured": _percent(profile.measured("any_tensor")),
        "Memory bandwidth, measured": _percent(profile.measured("dram_bandwidth")),
    }
    if steps := profile.steps:
        told["Whole steps (left out)"] = f"{steps['count']} ({_number(steps['dropped'])})"
    if profile.step_us:
        told["A decode step, ms"] = f"{profile.step_us / 1000:.2f}"
    if profile.gaps and profile.gaps["count"]:
        gaps = profile.gaps
        told["Gaps: number, median us"] = f"{gaps['count']:,}, {gaps['median_us']:.1f}"
    if split := profile.communication:
        told["Communication: transfer, waiting, ms"] = (
            f"{_ms(split['transfer_us'])}, {_ms(split['wait_us'])}"
        )
    return told


def _launch(told: Mapping[str, Any]) -> list[str]:
    """Returns the lines that tell how a kernel is launched, as far as that is known."""
    launch = Geometry(**{field.name: told.get(field.name) for field in fields(Geometry)})
    parts = {
        "{} threads a block": launch.block_threads,
        "{} registers": launch.registers,
        "{:,} bytes shared": launch.shared_bytes,
        "occupancy {:.0%}": launch.occupancy,
        "limited by {}": launch.limited_by,
    }
    more = ", ".join(form.format(part) for form, part in parts.items() if part is not None)
    return [line for line in (describe(launch), more) if line]


def _differences(
    summary: Summary,
) -> dict[tuple[str, int], list[tuple[ProfileDifference, Explained | None]]]:
    """Returns, by workload and concurrency, what differs from parents, and what that explains."""
    found: dict[tuple[str, int], list[tuple[ProfileDifference, Explained | None]]] = {}
    for one in summary.profile_differences:
        cell = found.setdefault((one.workload, one.concurrency), [])
        cell.append((one, summary.explained(one)))
    return found


def _anchors(summary: Summary) -> set[str]:
    """Returns what findings may rest on and the page shows."""
    return {
        *map(row_name, summary.rows),
        *(f"launches/{server}" for server in summary.launches if not summary.imported),
        *(profile.name for table in summary.profiles for profile in table.profiles.values()),
        *(
            told_name(profile["name"])
            for profile in (summary.imported or {"profiles": ()})["profiles"]
        ),
    }


def _anchor(name: str) -> str:
    """Returns a name as an element's: records of others have any names."""
    return quote(name)


def _relaunches(summary: Summary) -> dict[str, str]:
    """Returns, for rows of later launches, which one, where their session had several."""
    later = [row for row in summary.rows if (row["launch_index"] or 1) > 1]
    servers: dict[tuple[str, int], set[str]] = {}
    for row in later:
        servers.setdefault((row["variant"], row["session"]), set()).add(row["server_id"])
    return {
        row_name(row): row["server_id"][:6]
        if len(servers[row["variant"], row["session"]]) > 1
        else ""
        for row in later
    }


def _digests(summary: Summary) -> list[tuple[str, str, str]]:
    """Returns ``(variant, kind, digest)`` once for each that the rows name."""
    return list(
        dict.fromkeys(
            (row["variant"], kind, row[f"{kind}_digest"])
            for row in summary.rows
            for kind in ("launch", "model", "engine", "workload")
            if row[f"{kind}_digest"]
        )
    )


def _blocks(order: Any) -> list[tuple[int, list[str]]]:
    """Returns ``(session, variants)`` for each uninterrupted run of one session's variants."""
    blocks: list[tuple[int, list[str]]] = []
    for variant, session in order:
        if not blocks or blocks[-1][0] != session:
            blocks.append((session, []))
        blocks[-1][1].append(variant)
    return blocks


def _minute(timestamp: str) -> str:
    return timestamp[:16].replace("T", " ")


def _number(value: float | None, digits: int = 0) -> str:
    return "\N{EN DASH}" if value is None else f"{value:,.{digits}f}"


def _signed(value: float) -> str:
    """Returns a change with three digits."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:+,.{min(digits, 4)}f}"


def _ms(microseconds: float | None) -> str:
    return _number(None if microseconds is None else microseconds / 1000, 1)


def _percent(share: float | None) -> str:
    return _number(None if share is None else 100 * share, 1) + ("" if share is None else " %")


def _inline(svg: str) -> Markup:
    """Returns the drawing's element alone, without the group names that figures share."""
    element = svg[svg.index("<svg") :]
    return Markup(re.sub(r'<g id="[^"]*"', "<g", element))


def _markdown(value: Any) -> Any:
    """Escapes what is printed, so that text from data cannot end a cell or start markup."""
    text = re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(value).split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
