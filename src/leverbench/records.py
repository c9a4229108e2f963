"""Records: JSON files that are whole or absent, never half written."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverbench.errors import LeverbenchError
from leverbench.secrets import redacted

SCHEMA_VERSION = 1


def digest(value: object) -> str:
    """Returns the SHA-256 of a JSON-able value in canonical form, as 64 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name, syncs it and renames it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Appends one JSON line, in one write, so that lines of several processes never mix.

    Raises:
        OSError: It is not all there, such as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(redacted(entry), allow_nan=False).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # On a disk that becomes full a part is written; the next write then says why.
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a JSON record with its ``schema_version``; a NaN or infinity is a ValueError.

    The environment's secrets are masked, wherever a text holds one.
    """
    body = {"schema_version": SCHEMA_VERSION, **redacted(record)}
    write_bytes(path, json.dumps(body, indent=2, allow_nan=False).encode() + b"\n")


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def read_record(path: Path) -> dict[str, Any]:
    """Reads a record written by `write_record`.

    Raises:
        LeverbenchError: The file is missing, not a JSON object, or of another schema version.
    """
    cure = "Delete the file and run again: it is made anew, with what depends on it."
    try:
        record = json.loads(path.read_bytes(), parse_constant=_no_number)
    except FileNotFoundError:
        raise LeverbenchError("the record is missing", where=str(path), cure=cure) from None
    except (OSError, ValueError, RecursionError) as error:
        raise LeverbenchError(f"unreadable record ({error})", where=str(path), cure=cure) from None
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
        raise LeverbenchError(
            f"not a record of schema version {SCHEMA_VERSION}", where=str(path), cure=cure
        )
    return record
