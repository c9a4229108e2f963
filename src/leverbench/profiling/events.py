"""Events of one rank's trace: one Parquet file, one row a complete event, in the trace's order.

Times are whole nanoseconds. A column that does not apply to an event is null there.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leverbench.errors import LeverbenchError
from leverbench.records import SCHEMA_VERSION

# `op` is an operation of the framework on the CPU, `annotation` a span that the engine's code
# marks (`gpu-annotation`: where its kernels ran), `runtime` a call of the driver, and `recording`
# the span of the recording itself.
KINDS = (
    "kernel",
    "memcpy",
    "memset",
    "op",
    "annotation",
    "gpu-annotation",
    "python",
    "runtime",
    "recording",
)
# These keep a device busy.
DEVICE_KINDS = frozenset({"kernel", "memcpy", "memset"})
CPU = -1

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("name", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        # Number of the GPU; -1 is the CPU.
        pa.field("device", pa.int32(), nullable=False),
        # Number of the stream or thread.
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        # These are of kernels.
        pa.field("grid_blocks", pa.int64()),
        pa.field("block_threads", pa.int64()),
        # Of a thread.
        pa.field("registers", pa.int64()),
        # Of a block.
        pa.field("shared_bytes", pa.int64()),
    ]
)

# Such values repeat; times grow.
_REPEATED = [name for name in SCHEMA.names if name not in {"start_ns", "duration_ns"}]
_GROWING = {"start_ns": "DELTA_BINARY_PACKED"}
# A row group is written when it has so many rows, or names of so many bytes.
_GROUP_ROWS = 1 << 15
_GROUP_NAME_BYTES = 8 << 20
_METADATA_KEY = b"leverbench"
# Whole numbers up to here are exact as doubles.
_EXACT = float(1 << 53)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EventsFacts:
    """What is known of a rank's trace beside its events; kept in the file's metadata.

    Attributes:
        events: How many rows there are.
        left_out: How many events of the trace could not be used: no JSON, no such times, too long.
        truncated: Why the trace ends before its end; None for a whole one.
        rank: Of the process in its group, where the trace says so.
        devices: The GPUs: ``id``, ``name``, ``sm_count``, ``compute_major`` and ``compute_minor``;
            null where not told.
    """

    events: int
    left_out: int
    truncated: str | None
    rank: int | None
    devices: tuple[Mapping[str, Any], ...]


class EventsWriter:
    """Takes events in batches and writes them in row groups of bounded size.

    Made by `writing_events`.
    """

    def __init__(self, sink: Any) -> None:
        self._writer = pq.ParquetWriter(
            sink,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_REPEATED,
            column_encoding=_GROWING,
            write_statistics=False,
        )
        self._kinds = _strings(KINDS)
        self._start_group()
        self.events = 0

    def _start_group(self) -> None:
        self._batches: list[Mapping[str, npt.NDArray[Any]]] = []
        self._names = _Numbering()
        self._rows = 0

    def add(self, names: Iterable[str], columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Adds events.

        Args:
            names: Of the events.
            columns: All other columns: ``kind`` as a number into `KINDS`; those that may be null
                as doubles, NaN for null.
        """
        rows = len(columns["kind"])
        name = np.fromiter(map(self._names.__getitem__, names), np.int32, rows)
        self._batches.append({**columns, "name": name})
        self._rows += rows
        self.events += rows
        if self._rows >= _GROUP_ROWS or self._names.text_bytes >= _GROUP_NAME_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if not self._rows:
            return
        arrays = []
        for field in SCHEMA:
            values = np.concatenate([batch[field.name] for batch in self._batches])
            if field.name == "kind":
                array = _dictionary(field.type, values, self._kinds)
            elif field.name == "name":
                array = _dictionary(field.type, values, _strings(self._names))
            elif field.nullable:
                array = _nullable(field.type, values)
            else:
                array = _array(field.type, values)
            arrays.append(array)
        self._start_group()
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        self._writer.write_batch(batch, row_group_size=batch.num_rows)

    def finish(self, facts: EventsFacts) -> None:
        """Writes what is left, with the facts."""
        self._write_group()
        metadata = {"schema_version": SCHEMA_VERSION, "kind": "events", **asdict(facts)}
        text = json.dumps(metadata, allow_nan=False)
        self._writer.add_key_value_metadata({_METADATA_KEY.decode(): text})
        self.close()

    def close(self) -> None:
        """Ends the writing; without `finish` before, what was written is no file of events."""
        try:
            self._writer.close()
        finally:
            # Else it would try once more when it is collected, after its file is closed.
            self._writer.is_open = False


@contextmanager
def writing_events(path: Path) -> Iterator[EventsWriter]:
    """Gives the writer of a file that is there once it is finished and synced, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            with closing(EventsWriter(file)) as writer:
                yield writer
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class _Numbering(dict[str, int]):
    """Numbers texts from 0 in the order in which they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.text_bytes = 0

    def __missing__(self, text: str) -> int:
        self.text_bytes += len(text)
        self[text] = number = len(self)
        return number


# Arrays are made from buffers: to convert Python objects, pyarrow would import pandas.
def _array(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    data = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _nullable(kind: pa.DataType, values: Floats) -> pa.Array:
    valid = np.abs(values) < _EXACT  # False for NaN.
    data = np.where(valid, values, 0.0).astype(kind.to_pandas_dtype())
    bits = np.packbits(valid, bitorder="little")
    return pa.Array.from_buffers(kind, len(data), [pa.py_buffer(bits), pa.py_buffer(data)])


def _dictionary(kind: pa.DataType, codes: npt.NDArray[Any], texts: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_array(kind.index_type, codes), texts)


def _strings(texts: Iterable[str]) -> pa.Array:
    # A text can hold half of a surrogate pair, which has no encoding.
    encoded = [text.encode("utf-8", "replace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), data)


def load_facts(path: Path) -> EventsFacts:
    """Returns what a file of events says of its trace.

    Raises:
        LeverbenchError: There is no such file, or it is another one.
    """
    with _opened(path) as file:
        try:
            found = json.loads(file.metadata.metadata[_METADATA_KEY])
            if found["kind"] != "events" or found["schema_version"] != SCHEMA_VERSION:
                raise KeyError("schema_version")
            return EventsFacts(
                events=found["events"],
                left_out=found["left_out"],
                truncated=found["truncated"],
                rank=found["rank"],
                devices=tuple(found["devices"]),
            )
        except (LookupError, TypeError, ValueError):
            raise _no_events(path) from None


@dataclass(frozen=True)
class Events:
    """Events of a file, as arrays of one length, in the trace's order.

    Attributes:
        names: All names, by their number.
        columns: Numbers: ``kind`` into `KINDS`, ``name`` into `names`; what may be null is a
            double, NaN for null.
    """

    names: tuple[str, ...]
    columns: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    def of_kinds(self, kinds: Iterable[str]) -> npt.NDArray[np.bool_]:
        """Tells of each event whether it is of one of these kinds."""
        return np.isin(self["kind"], [KINDS.index(kind) for kind in kinds])


def load_events(
    path: Path,
    columns: Sequence[str] = tuple(SCHEMA.names),
    kinds: Iterable[str] = KINDS,
) -> Events:
    """Returns a file's events of some kinds. Of all others, one row group is held at a time.

    Args:
        path: The file.
        columns: Which columns; ``kind`` is always there.
        kinds: Which kinds.

    Raises:
        LeverbenchError: There is no such file, or it is another one.
    """
    columns, kinds = list(dict.fromkeys(["kind", *columns])), list(kinds)
    of_kind = {kind: number for number, kind in enumerate(KINDS)}
    names = _Numbering()
    parts: dict[str, list[npt.NDArray[Any]]] = {column: [] for column in columns}
    with _opened(path) as file:
        if not set(columns) <= set(file.schema_arrow.names):
            raise _no_events(path)
        for group in range(file.num_row_groups):
            read = file.read_row_group(group, columns, use_threads=False)
            kind = _numbers(read.column("kind"), of_kind)
            chosen = np.isin(kind, [of_kind[one] for one in kinds])
            for column in columns:
                values = kind if column == "kind" else _numbers(read.column(column), names)
                values = values[chosen]
                nullable = SCHEMA.field(column).nullable
                parts[column].append(values.astype(np.float64) if nullable else values)
    found = {
        column: np.concatenate(arrays) if arrays else np.zeros(0)
        for column, arrays in parts.items()
    }
    return Events(tuple(names), found)


# Arrays are read from buffers: pyarrow's own way imports pandas.
def _numbers(column: pa.ChunkedArray, texts: dict[str, int]) -> npt.NDArray[Any]:
    """Returns a column as an array; texts become their numbers."""
    parts: list[npt.NDArray[Any]] = []
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            of_code = np.array([texts[text] for text in chunk.dictionary.to_pylist()], np.int32)
            parts.append(of_code[_values(chunk.indices)])
        elif chunk.null_count:
            bits = np.frombuffer(chunk.buffers()[0], np.uint8)
            valid = np.unpackbits(bits, bitorder="little")[chunk.offset :][: len(chunk)]
            parts.append(np.where(valid, _values(chunk), np.nan))
        else:
            parts.append(_values(chunk))
    return np.concatenate(parts)


def _values(array: pa.Array) -> npt.NDArray[Any]:
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException):
        raise _no_events(path) from None


def _no_events(path: Path) -> LeverbenchError:
    return LeverbenchError(
        "no file of a trace's events",
        where=str(path),
        cure="Delete it and run again: it is made anew.",
    )
