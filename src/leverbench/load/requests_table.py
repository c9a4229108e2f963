"""A window as a Parquet file: one row a request, the window's own account in the metadata."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leverbench.errors import LeverbenchError
from leverbench.load.window import ClientAudit, Failure, RequestRow, Window
from leverbench.parquet import write_rows
from leverbench.records import SCHEMA_VERSION
from leverbench.secrets import redacted

_METADATA_KEY = b"leverbench"
_KIND = "requests"

# Times are seconds since the window's start. `RequestRow` says what each column is.
SCHEMA = pa.schema(
    [
        pa.field("request_index", pa.int32(), nullable=False),
        pa.field("input_tokens", pa.int32(), nullable=False),
        pa.field("output_tokens_asked", pa.int32(), nullable=False),
        pa.field("intended_s", pa.float64(), nullable=False),
        pa.field("sent_s", pa.float64(), nullable=False),
        pa.field("first_token_s", pa.float64()),
        pa.field("last_token_s", pa.float64()),
        pa.field("ended_s", pa.float64(), nullable=False),
        pa.field("output_tokens", pa.int32()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("finish_reason", pa.string()),
        pa.field("accept_length", pa.float64()),
        pa.field("failure", pa.string()),
        pa.field("error", pa.string()),
        pa.field("token_times_s", pa.list_(pa.float64()), nullable=False),
        pa.field("output_ids", pa.list_(pa.int32())),
    ]
)
# For readers of the file alone; a `RequestRow` derives them.
_DERIVED = ("first_token_s", "last_token_s")


def write_requests(path: Path, window: Window, about: Mapping[str, Any]) -> None:
    """Writes a window, whole or not at all.

    Args:
        path: The Parquet file.
        window: What is written.
        about: JSON-able facts about where the window comes from (campaign, variant, point...).
    """
    rows = [
        vars(row)
        | {"error": redacted(row.error)}
        | {"first_token_s": row.first_token_s, "last_token_s": row.last_token_s}
        for row in window.rows
    ]
    account = {
        "concurrency": window.concurrency,
        "started_at_unix_s": window.started_at_unix_s,
        "audit": asdict(window.audit),
    }
    _write(path, rows, account, about)


def write_no_requests(path: Path, about: Mapping[str, Any]) -> None:
    """Writes the table of a point that could not be measured: no rows, no window."""
    _write(path, [], None, about)


def _write(
    path: Path,
    rows: list[dict[str, Any]],
    account: Mapping[str, Any] | None,
    about: Mapping[str, Any],
) -> None:
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "kind": _KIND,
        "about": dict(about),
        "window": account,
    }
    write_rows(path, rows, SCHEMA, metadata)


def read_requests(path: Path) -> tuple[Window | None, dict[str, Any]]:
    """Reads a request table.

    Returns:
        The window, or None if the point could not be measured, and the facts about it.

    Raises:
        LeverbenchError: The file is missing, damaged, or not such a table.
    """
    cure = "Delete the file and its record, and run again: only this point is measured anew."
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
    except FileNotFoundError:
        raise LeverbenchError("the request table is missing", where=str(path), cure=cure) from None
    except (OSError, pa.ArrowException) as error:
        raise LeverbenchError(
            f"unreadable request table ({error})", where=str(path), cure=cure
        ) from None
    metadata = json.loads((table.schema.metadata or {}).get(_METADATA_KEY, b"{}"))
    if metadata.get("kind") != _KIND or metadata.get("schema_version") != SCHEMA_VERSION:
        raise LeverbenchError(
            f"not a request table of schema version {SCHEMA_VERSION}", where=str(path), cure=cure
        )
    account = metadata["window"]
    if account is None:
        return None, metadata["about"]
    rows = tuple(_row(values) for values in table.drop_columns(list(_DERIVED)).to_pylist())
    audit = ClientAudit(**account["audit"])
    return Window(**account | {"rows": rows, "audit": audit}), metadata["about"]


def _row(values: dict[str, Any]) -> RequestRow:
    failure, ids = values["failure"], values["output_ids"]
    return RequestRow(
        **values
        | {
            "failure": None if failure is None else Failure(failure),
            "token_times_s": tuple(values["token_times_s"]),
            "output_ids": None if ids is None else tuple(ids),
        }
    )
