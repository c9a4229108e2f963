"""Parquet files of typed rows, written whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from leverbench.records import write_bytes


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, metadata: Mapping[str, Any]
) -> None:
    """Writes rows as Parquet.

    By way of JSON, which keeps every double to its last bit: to convert Python objects, pyarrow
    would import pandas, which takes longer than all else that a job does after its measurement.

    Args:
        path: The file.
        rows: JSON-able values by column; a column that a row lacks is null in it.
        schema: The columns.
        metadata: JSON-able facts about the table, kept under the key ``leverbench``.
    """
    schema = schema.with_metadata({b"leverbench": json.dumps(metadata, allow_nan=False)})
    table = _table(rows, schema) if rows else schema.empty_table()
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_bytes(path, buffer.getvalue().to_pybytes())


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    text = "\n".join(json.dumps(row, allow_nan=False) for row in rows).encode()
    # One block: a row may be longer than the default one.
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    table = pyarrow.json.read_json(
        pa.BufferReader(text), read_options=reading, parse_options=parsing
    )
    return table.cast(schema)
