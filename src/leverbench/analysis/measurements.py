"""One row a point: the table that every figure and verdict is made from."""

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from leverbench.analysis.settings import steps_text
from leverbench.campaign.model import Goodput
from leverbench.errors import LeverbenchError
from leverbench.load.metrics import goodput_request_per_s
from leverbench.load.requests_table import read_requests
from leverbench.records import read_record, write_bytes

Row = dict[str, Any]
# Variant, session, workload, concurrency.
Point = tuple[str, int, str, int]

_TEXT, _WHOLE, _REAL, _FLAG = "str", "Int64", "float64", "boolean"
_PARSERS: dict[str, type] = {_TEXT: str, _WHOLE: int, _REAL: float, _FLAG: bool}
_TIMES = [
    f"{s}_{t}_ms"
    for t in ("ttft", "tpot", "itl", "e2e")
    for s in ("mean", "p50", "p90", "p95", "p99")
]
_FIRST = {
    "campaign": _TEXT,
    "variant": _TEXT,
    "parent": _TEXT,
    "session": _WHOLE,
    "workload": _TEXT,
    "concurrency": _WHOLE,
    "server_id": _TEXT,
    "valid": _FLAG,
    "invalid_reason": _TEXT,
    "num_requests": _WHOLE,
    "failures": _WHOLE,
    "output_tok_per_s": _REAL,
    "request_per_s": _REAL,
    "mean_ttft_ms": _REAL,
    "p99_ttft_ms": _REAL,
    "mean_tpot_ms": _REAL,
    "mean_itl_ms": _REAL,
    "accept_length": _REAL,
    "duration_s": _REAL,
    "started_at": _TEXT,
}
COLUMNS = _FIRST | {
    "protocol": _WHOLE,
    "outcome": _TEXT,
    "detail": _TEXT,
    "launch_index": _WHOLE,
    "requests_planned": _WHOLE,
    "failure_messages": _TEXT,
    "ended_at": _TEXT,
    "steady_output_tok_per_s": _REAL,
    "goodput_request_per_s": _REAL,
    **{name: _REAL for name in _TIMES if name not in _FIRST},
    "warm_up_agreed": _FLAG,
    "cached_tokens": _WHOLE,
    "loop_lag_p99_ms": _REAL,
    "delivered_concurrency": _REAL,
    "answer_agreement": _REAL,
    "strangers_cpu_share": _REAL,
    "gpu_power_w": _REAL,
    "gpu_sm_clock_mhz": _REAL,
    "gpu_memory_clock_mhz": _REAL,
    "gpu_temperature_c": _REAL,
    "gpu_reasons": _TEXT,
    **{f"{name}_digest": _TEXT for name in ("launch", "model", "engine", "workload")},
    "engine_version": _TEXT,
    "leverbench_version": _TEXT,
    "placement": _TEXT,
    "recovery": _TEXT,
    "attached": _FLAG,
    "command": _TEXT,
}


@dataclass(frozen=True)
class Hole:
    """Planned points of one session that have no valid row.

    Attributes:
        variant: Its variant.
        session: Its session.
        workload: Its workload.
        concurrencies: The points concerned.
        kind: ``failed`` (lasting), ``invalid`` (measured again by the next run) or ``missing``.
        reason: The outcome or the cause in one word; empty where missing.
        detail: The message that was recorded; empty where there is none.
    """

    variant: str
    session: int
    workload: str
    concurrencies: tuple[int, ...]
    kind: str
    reason: str
    detail: str


def planned_points(plan: Mapping[str, Any]) -> list[Point]:
    """Returns every point of a plan, by variant (in the plan's order), session, workload and C."""
    return [
        (variant, session, workload, concurrency)
        for variant in plan["variants"]
        for session, workload, concurrency in product(
            sorted(session for name, session in plan["order"] if name == variant),
            plan["workloads"],
            sorted(map(int, plan["ladder"])),
        )
    ]


def collect(
    plan: Mapping[str, Any], results: Path, point_paths: Sequence[Path], attempts_dir: Path
) -> pd.DataFrame:
    """Reads the point records of a campaign into one table.

    A point without a record is shown by its last attempt, or by its session's last attempt to
    launch, with ``valid`` false; without either it has no row. Where the session's record exists,
    attempts of another configuration than its own do not count.

    Args:
        plan: The campaign's plan.
        results: The campaign's folder of results.
        point_paths: The point records that exist.
        attempts_dir: The campaign's folder under ``state/attempts``, which need not exist.

    Returns:
        The columns of `COLUMNS`, then one ``machine_*`` for each entry of the fingerprint. What
        is not known is a missing value. Rows by variant (in the plan's order), session, workload
        and concurrency.

    Raises:
        LeverbenchError: A record is truncated, or not a point of this campaign.
    """
    rows: dict[Point, Row] = {}
    goodput = plan.get("goodput")
    for path in point_paths:
        row = _row(plan, read_record(path), path)
        if goodput and row["valid"]:
            window, _ = read_requests(path.with_suffix(".parquet"))
            if window is not None:
                row["goodput_request_per_s"] = goodput_request_per_s(window, Goodput(**goodput))
        point = _point(row)
        if point in rows:
            raise LeverbenchError(
                f"a second record of {'/'.join(map(str, point))}",
                where=str(path),
                cure="A record was copied: delete the copy, whose name is not its content.",
            )
        rows[point] = row
    for point in planned_points(plan):
        variant, session, workload, concurrency = point
        path = attempts_dir / variant / f"s{session}" / workload / f"c{concurrency}.jsonl"
        session_path = results / variant / f"s{session}" / "server.json"
        launch_digest = None
        if session_path.exists():
            launch_digest = (read_record(session_path).get("digests") or {}).get("launch")
        elif not path.exists():
            # The session was never launched: its points share the account of that.
            path = attempts_dir / variant / f"s{session}" / "serve.jsonl"
        if point in rows or not path.exists():
            continue
        attempt = _last_attempt(path, launch_digest)
        if attempt is not None:
            identity = {
                "kind": "point",
                "campaign": plan["campaign"],
                "variant": variant,
                "session": session,
                "workload": workload,
                "concurrency": concurrency,
                "valid": False,
                "invalid_reason": attempt.get("cause"),
                "detail": attempt.get("detail"),
            }
            rows[point] = _row(plan, {**attempt, **(attempt.get("row") or {}), **identity}, path)
    variants, workloads = list(plan["variants"]), list(plan["workloads"])
    ordered = sorted(
        rows.values(),
        key=lambda row: (
            variants.index(row["variant"]),
            row["session"],
            workloads.index(row["workload"]),
            row["concurrency"],
        ),
    )
    machine = sorted({name for row in ordered for name in row if name.startswith("machine_")})
    types = COLUMNS | dict.fromkeys(machine, _TEXT)
    return pd.DataFrame(ordered, columns=list(types)).astype(types)


def write_measurements(measurements: pd.DataFrame, csv_path: Path, parquet_path: Path) -> None:
    """Writes the table twice, each file whole or absent.

    In the CSV a float has the fewest digits that give it back exactly, and no data is empty.
    """
    parquet = io.BytesIO()
    measurements.to_parquet(parquet, index=False)
    write_bytes(parquet_path, parquet.getvalue())
    write_bytes(csv_path, measurements.to_csv(index=False, lineterminator="\n").encode())


def read_measurements(parquet_path: Path) -> pd.DataFrame:
    """Reads a table of `write_measurements`.

    Raises:
        LeverbenchError: The file is missing or not such a table.
    """
    cure = "Delete the file and run again: it is made anew from the records."
    try:
        measurements = pd.read_parquet(parquet_path)
    except (OSError, ValueError) as error:
        message = f"unreadable measurements ({error})"
        raise LeverbenchError(message, where=str(parquet_path), cure=cure) from None
    if missing := [name for name in COLUMNS if name not in measurements]:
        message = f"measurements without {', '.join(missing)}"
        raise LeverbenchError(message, where=str(parquet_path), cure=cure)
    return measurements


def as_rows(measurements: pd.DataFrame) -> list[Row]:
    """Returns the table's rows as plain values, with None where there is no data."""
    plain = measurements.astype(object).where(measurements.notna(), None)
    return [dict(row) for row in plain.to_dict("records")]


def conditions(row: Row) -> dict[str, Any]:
    """Returns, by name, what must be equal before rows may be pooled or divided."""
    return {
        "protocol": row["protocol"],
        "workload": row["workload_digest"],
        "model": row["model_digest"],
        "engine": row["engine_digest"],
        "machine": {name: row[name] for name in row if name.startswith("machine_")},
    }


def differences(row: Row, other: Row) -> list[str]:
    """Returns the names of the conditions in which two rows differ."""
    others = conditions(other)
    return [name for name, value in conditions(row).items() if value != others[name]]


def newest(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows that may be pooled: the valid ones of the last measured one's conditions.

    Args:
        rows: Rows of one variant, workload and concurrency.
    """
    valid = [row for row in rows if row["valid"]]
    if not valid:
        return []
    last = max(valid, key=lambda row: str(row["started_at"] or ""))
    return [row for row in valid if not differences(row, last)]


def holes(plan: Mapping[str, Any], rows: Sequence[Row]) -> list[Hole]:
    """Returns the planned points without a valid row; those of one cause stand together."""
    by_point = {_point(row): row for row in rows}
    grouped: dict[tuple[str, ...], list[Point]] = {}
    for point in [*planned_points(plan), *by_point]:
        row = by_point.get(point)
        if row is not None and row["valid"]:
            continue
        if row is None:
            account = ("missing", "", "")
        else:
            lasting = row["outcome"] not in (None, "measured")
            kind = "failed" if lasting else "invalid"
            account = (kind, row["invalid_reason"] or "", row["detail"] or "")
        variant, session, workload, _ = point
        group = grouped.setdefault((variant, str(session), workload, *account), [])
        if point not in group:
            group.append(point)
    return [
        Hole(*points[0][:3], tuple(point[3] for point in points), *key[3:])
        for key, points in grouped.items()
    ]


def command(plan: Mapping[str, Any], name: str) -> str:
    """Returns the command that measures a row again.

    Targets come first, as ``--config`` takes all words after it. Overrides of how a run goes on
    are left out: they do not change what is measured.

    Args:
        plan: The campaign's plan.
        name: The row's record, as a path below ``results/{campaign}`` without its suffix.
    """
    settings = [f"campaign={plan['file']}"]
    if "sessions" in plan["overrides"]:
        settings.append(f"sessions={plan['overrides']['sessions']}")
    target = f"results/{plan['campaign']}/{name}.json"
    return f".venv/bin/snakemake --cores 8 --force {target} --config {shlex.join(settings)}"


def row_name(row: Mapping[str, Any]) -> str:
    """Returns a row's name: its record's path below the campaign, without the suffix."""
    return f"{row['variant']}/s{row['session']}/{row['workload']}/c{row['concurrency']}"


def placement_text(placement: Mapping[str, Any] | None) -> str | None:
    """Returns where a server ran: its GPUs with bus and NUMA node, its CPUs; None if not known."""
    if placement is None:
        return None
    gpus = []
    for gpu, at in placement["gpus"].items():
        node = "" if at["numa_node"] is None else f", NUMA node {at['numa_node']}"
        gpus.append(f"{gpu} ({at['pci']}{node})")
    cpus = " and ".join(placement["cpus_allowed"])
    nodes = placement["numa_nodes"]
    parts = [
        ", ".join(gpus),
        f"CPUs {cpus}" if cpus else "",
        f"of {nodes} NUMA node{'' if nodes == 1 else 's'}" if nodes else "",
    ]
    return "; ".join(filter(None, (parts[0], " ".join(filter(None, parts[1:]))))) or None


def _point(row: Row) -> Point:
    return row["variant"], row["session"], row["workload"], row["concurrency"]


def _row(plan: Mapping[str, Any], record: Mapping[str, Any], path: Path) -> Row:
    """Flattens a point record, or an attempt that was given a point's identity."""
    try:
        if record["kind"] != "point" or record["campaign"] != plan["campaign"]:
            raise ValueError(f"a {record['kind']} of campaign {record['campaign']}")
        values = {
            **record,
            **(record.get("metrics") or {}),
            **(record.get("client") or {}),
            **{f"{name}_digest": value for name, value in (record.get("digests") or {}).items()},
            # The plan says what a variant is compared with: it may have changed since.
            "parent": plan["variants"][record["variant"]]["parent"],
            "failure_messages": "\n".join(record.get("failure_messages") or ()) or None,
            "answer_agreement": (record.get("agreement") or {}).get("share"),
            "warm_up_agreed": (record.get("warm_up") or {}).get("agreed"),
            **_gpu_columns(record.get("gpus") or {}),
            "engine_version": (record.get("versions") or {}).get("engine"),
            "leverbench_version": (record.get("versions") or {}).get("leverbench"),
            "placement": placement_text(record.get("placement")),
            "command": command(plan, row_name(record)),
        }
        if record.get("recovery") is not None:
            values["recovery"] = steps_text(record["recovery"])
        if record.get("server_id") is not None:
            # Only servers that others started say so.
            values["attached"] = record.get("attached", False)
        if not values["valid"]:
            values["invalid_reason"] = values.get("invalid_reason") or values.get("outcome")
        row = {
            name: None if values.get(name) is None else _PARSERS[kind](values[name])
            for name, kind in COLUMNS.items()
        }
        if None in (*_point(row), row["valid"]):
            raise ValueError("a point without its session, concurrency or validity")
        if not (row["variant"] in plan["variants"] and row["workload"] in plan["workloads"]):
            raise ValueError(f"{row['variant']} under {row['workload']} is not in the plan")
        machine = (record.get("machine") or {}).items()
        return row | {f"machine_{name}": str(value) for name, value in machine}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LeverbenchError(
            f"not a point of campaign {plan['campaign']} ({error!r})",
            where=str(path),
            cure="Delete the file and run again: it is made anew, with what depends on it.",
        ) from None


def _gpu_columns(gpus: Mapping[str, Mapping[str, Any]]) -> Row:
    """Returns a point's GPUs in one row: power in all, the lowest clocks, the highest temperature.

    Figures are means over the samples; a reason why clocks were not higher has the largest of the
    GPUs' shares of samples.
    """

    def means(name: str) -> list[float]:
        return [gpu[name]["mean"] for gpu in gpus.values() if gpu[name] is not None]

    power_w = means("power_w")
    shares: dict[str, float] = {}
    for gpu in gpus.values():
        for name, share in (gpu["reasons"] or {}).items():
            shares[name] = max(share, shares.get(name, 0.0))
    told = any(gpu["reasons"] is not None for gpu in gpus.values())
    reasons = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items()))
    return {
        "gpu_power_w": sum(power_w) if power_w and len(power_w) == len(gpus) else None,
        "gpu_sm_clock_mhz": min(means("sm_clock_mhz"), default=None),
        "gpu_memory_clock_mhz": min(means("memory_clock_mhz"), default=None),
        "gpu_temperature_c": max(means("temperature_c"), default=None),
        "gpu_reasons": (reasons or "none") if told else None,
    }


def _last_attempt(path: Path, launch_digest: str | None) -> Mapping[str, Any] | None:
    """Returns the last whole line of a configuration, or of any.

    A kill or a full disk can leave half a line, or a file without any: then nothing is known.
    """
    for line in reversed(path.read_text(errors="replace").splitlines()):
        try:
            attempt = json.loads(line)
        except ValueError:
            continue
        if not isinstance(attempt, dict):
            continue
        if launch_digest in (None, (attempt.get("digests") or {}).get("launch")):
            return attempt
    return None
