"""Reads traces of the torch profiler (Kineto's JSON), however large, into files of events.

A trace is one JSON object; its array ``traceEvents`` can hold millions of events. It is inflated in
chunks and decoded in pieces of many events. A piece ends where one event seems to end and the next
to begin: ``} , { "``. Such a place may lie in a text or inside an event; then what is before it,
put in brackets, is no JSON, and an earlier place is tried. So what can be decoded was cut rightly.
Events of a piece that does not decode are taken one by one; whatever else is in the file is passed
over. Neither takes more memory than a chunk and one event.

    python -m leverbench.profiling.reader TRACE EVENTS
"""

import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from leverbench.errors import LeverbenchError
from leverbench.profiling.events import (
    CPU,
    KINDS,
    EventsFacts,
    EventsWriter,
    Floats,
    writing_events,
)
from leverbench.serving.processes import die_with_parent

_CURE = "Delete the profile's summary.json and run again: it is taken anew."
_CHUNK_BYTES = 1 << 17
# Of one event, and of one of the file's facts; a longer one is passed over.
_LONGEST_BYTES = 8 << 20
# Characters of a name that are kept: all names are held at once.
_LONGEST_NAME = 1 << 14
# Places tried as the end of a piece before its events are taken one by one.
_TRIES = 8
# So much white space is looked at around such a place.
_SPACES = 64
# Events are made into columns when there are so many.
_BATCH = 1 << 11
# No honest trace has so many streams and threads: events on further ones are left out.
_MOST_LANES = 1 << 16
# Kinds of events on them that are kept in mind.
_MOST_PLACES = 1 << 18
# In us, of a start and of a duration: so that the end, and the length of all, in ns fit into 64
# bits. No recording has an operation of eleven days.
_LATEST_US = 4e15
_LONGEST_US = 1e12
# Of a GPU's properties: whole numbers up to here are exact as doubles.
_MOST_OF_PROPERTY = 1 << 53

_NONE = float("nan")
_GZIP_MARK = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"


class _Extent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A grid or a block."""

    x: float = _NONE
    y: float = 1.0
    z: float = 1.0


class _Arguments(msgspec.Struct, frozen=True, gc=False):
    """What an event's ``args`` tell. Numbers are doubles, so that NaN can mean none."""

    grid: _Extent = _Extent()
    block: _Extent = _Extent()
    registers: float = msgspec.field(name="registers per thread", default=_NONE)
    shared: float = msgspec.field(name="shared memory", default=_NONE)


class _Event(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event; all else in it is passed over without being decoded."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = _NONE
    dur: float = _NONE
    args: _Arguments = _Arguments()


_NUMBERS_OF_ARGUMENTS = tuple(
    field.encode_name for field in msgspec.structs.fields(_Arguments) if field.type is float
)
# Stands for what is no event that can be used: it has no times.
_UNUSABLE = _Event(ph="X", cat="Trace")

_KIND_OF_CATEGORY = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "cpu_op": "op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu-annotation",
    "python_function": "python",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "Trace": "recording",
}
_KINDS = len(KINDS)
# In place of kind and lane, of an event of no kind.
_UNUSED = -1
_GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
_KERNEL = KINDS.index("kernel")

# Our names of a GPU's properties.
_PROPERTIES = {
    "id": "id",
    "name": "name",
    "sm_count": "numSms",
    "compute_major": "computeMajor",
    "compute_minor": "computeMinor",
}

# Not strict: a number may be written as a text.
_decode = msgspec.json.Decoder(list[_Event], strict=False).decode
_place_of = attrgetter("ph", "cat", "pid", "tid")


# ``ph``, ``cat``, ``pid`` and ``tid`` of an event.
_Place = tuple[str, str, int | str, int | str]


class _Broken(Exception):
    """The file cannot be read further; the message says why."""


def main(arguments: Sequence[str]) -> int:
    """Reads one trace; what stands against it is told as a line of JSON."""
    trace, events = map(Path, arguments)
    try:
        read_events(trace, events)
    except LeverbenchError as error:
        print(json.dumps({"what": error.what, "where": error.where, "cure": error.cure}))
        return 1
    except OSError as error:
        print(json.dumps({"errno": error.errno, "strerror": error.strerror}))
        return 1
    return 0


def read_events(trace: Path, events: Path) -> EventsFacts:
    """Reads one rank's trace, JSON or gzipped JSON, and writes its events.

    Of a trace that is cut off or damaged, the whole events before that place are kept.

    Args:
        trace: The file.
        events: The Parquet file to write, see `events.SCHEMA`.

    Returns:
        What else the trace tells, and whether all of it could be read.

    Raises:
        LeverbenchError: The file is missing, or there is no event to be had from it.
        OSError: The events cannot be written.
    """
    try:
        file = trace.open("rb")
    except FileNotFoundError:
        raise LeverbenchError("the trace is missing", where=str(trace), cure=_CURE) from None
    except OSError as error:
        what = f"unreadable trace ({error.strerror})"
        raise LeverbenchError(what, where=str(trace), cure=_CURE) from None
    with file, writing_events(events) as writer:
        reading = _Reading(_Text(_chunks(file)), writer)
        reading.read()
        if not writer.events:
            raise LeverbenchError(reading.why_nothing(), where=str(trace), cure=_CURE)
        facts = reading.facts()
        writer.finish(facts)
    return facts


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yields a file's content in bounded chunks, inflated if it is gzipped.

    Raises:
        _Broken: It cannot be read or inflated to its end.
    """
    try:
        chunk = file.read(_CHUNK_BYTES)
        if chunk.startswith(_GZIP_MARK):
            yield from _inflated(chunk, file)
            return
        while chunk:
            yield chunk
            chunk = file.read(_CHUNK_BYTES)
    except OSError as error:
        raise _Broken(f"the file cannot be read further ({error.strerror})") from None


def _inflated(block: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Yields what a gzipped file holds: of one member after the other, as gzip allows."""
    while block:
        # A pipe cannot be read again.
        begins, given = file.tell() - len(block) if file.seekable() else None, 0
        member = isal_zlib.decompressobj(wbits=31)
        while not member.eof:
            if not block and not (block := file.read(_CHUNK_BYTES)):
                raise _Broken("the gzip stream ends early")
            try:
                chunk = member.decompress(block, _CHUNK_BYTES)
            # Its type information takes the class for an instance.
            except isal_zlib.IsalError as error:  # type: ignore[misc]
                if begins is not None:
                    file.seek(begins)
                    yield from _inflated_until_damage(file, given)
                raise _Broken(f"the gzip stream is damaged ({error})") from None
            given += len(chunk)
            if chunk:
                yield chunk
            block = member.unconsumed_tail
        # Zeros may follow a member.
        block = (member.unused_data or file.read(_CHUNK_BYTES)).lstrip(b"\0")
        while not block and (read := file.read(_CHUNK_BYTES)):
            block = read.lstrip(b"\0")
        if len(block) == 1:
            block += file.read(_CHUNK_BYTES)
        if block and not block.startswith(_GZIP_MARK):
            raise _Broken("something else follows the gzip stream")


def _inflated_until_damage(file: BinaryIO, given: int) -> Iterator[bytes]:
    """Yields in small chunks what a call could not give because damage follows.

    Args:
        file: At the beginning of the damaged member.
        given: How much of what the member holds has been given already, in bytes.
    """
    member = zlib.decompressobj(wbits=31)
    while block := file.read(_CHUNK_BYTES):
        while block and not member.eof:
            try:
                chunk = member.decompress(block, 256)
            except zlib.error:
                return
            block = member.unconsumed_tail
            if rest := chunk[max(0, given) :]:
                yield rest
            given -= len(chunk)


class _Text:
    """The part of a file's text that is looked at; it moves on and never back.

    Args:
        chunks: The text.

    Attributes:
        buffer: The part.
        at: Place in the buffer up to which all has been used.
        broken: Why there is no more text, if not for its end.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._passed = 0
        self.buffer = b""
        self.at = 0
        self.broken: str | None = None

    @property
    def place(self) -> int:
        """Returns how much of the text has been used, in bytes."""
        return self._passed + self.at

    @property
    def seen(self) -> int:
        """Returns how much of the text has been looked at, in bytes."""
        return self._passed + len(self.buffer)

    def more(self) -> bool:
        """Adds a chunk to the buffer and drops what has been used; false at the end."""
        try:
            chunk = next(self._chunks, b"")
        except _Broken as error:
            self.broken, chunk = str(error), b""
        if chunk:
            self.buffer = self.buffer[self.at :] + chunk
            self._passed += self.at
            self.at = 0
        return bool(chunk)

    def next_byte(self) -> bytes:
        """Moves to what is next after white space and returns its first byte; none at the end."""
        while not (found := _NOT_SPACE.search(self.buffer, self.at)):
            self.at = len(self.buffer)
            if not self.more():
                return b""
        self.at = found.start()
        return found[0]

    def take(self, most: int) -> bytes | None:
        """Moves behind the JSON value that begins here.

        Only texts and brackets are looked at: what it returns need not be JSON.

        Args:
            most: How many bytes are kept.

        Returns:
            The value; None where it is longer.

        Raises:
            _Broken: The text ends first.
        """
        first, whole = self.place, True
        depth, in_text, scan = 0, False, self.at
        while True:
            marks = _TEXT_ENDS if in_text else _BRACKETS if depth else _BRACKETS_OR_ENDS
            found = marks.search(self.buffer, scan)
            if found is None or (found[0] == b"\\" and found.end() == len(self.buffer)):
                ahead = 0 if found is None else 1
                if len(self.buffer) - self.at > most:
                    whole, self.at = False, len(self.buffer) - ahead
                kept = len(self.buffer) - ahead - self.at
                if not self.more():
                    raise _Broken(f"the JSON ends within what begins at byte {first}")
                scan = kept
                continue
            scan, mark = found.end(), found[0]
            if mark == b"\\":
                scan += 1
            elif mark == b'"':
                in_text = not in_text
            elif mark in b"{[":
                depth += 1
            elif depth == 0:
                # A number or a word ends before this mark.
                scan -= 1
            elif mark in b"}]":
                depth -= 1
            if depth == 0 and not in_text and mark != b"\\":
                value, self.at = self.buffer[self.at : scan], scan
                return value if whole and len(value) <= most else None


_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_TEXT_ENDS = re.compile(rb'["\\]')
_BRACKETS = re.compile(rb'["{}\[\]]')
_BRACKETS_OR_ENDS = re.compile(rb'["{}\[\],]')


class _Reading:
    """One reading of a trace.

    Attributes:
        broken: Why the trace could not be read to its end.
        left_out: How many events could not be used.
    """

    def __init__(self, text: _Text, writer: EventsWriter) -> None:
        self._text, self._writer = text, writer
        self._is_object = self._has_events = False
        self._known: dict[bytes, Any] = {}
        self._waiting: list[_Event] = []
        self._lanes = _Lanes()
        self.broken: str | None = None
        self.left_out = 0

    def read(self) -> None:
        """Reads all there is, and gives the events to the writer."""
        try:
            self._read_object()
        except _Broken as error:
            self.broken = str(error)
        self.broken = self._text.broken or self.broken
        self._add_waiting()

    def facts(self) -> EventsFacts:
        """Returns what is known of the trace."""
        devices = self._known.get(b'"deviceProperties"')
        group = self._known.get(b'"distributedInfo"')
        rank = group.get("rank") if isinstance(group, dict) else None
        return EventsFacts(
            events=self._writer.events,
            left_out=self.left_out,
            truncated=self.broken,
            rank=rank if isinstance(rank, int) else None,
            devices=tuple(
                {ours: _property(ours, device.get(theirs)) for ours, theirs in _PROPERTIES.items()}
                for device in (devices if isinstance(devices, list) else ())
                if isinstance(device, dict)
            ),
        )

    def why_nothing(self) -> str:
        """Says why a trace without a single event has none."""
        if not self._text.seen and not self.broken:
            return "the trace is empty"
        if self.broken and (self._is_object or not self._text.seen):
            return f"there is no whole event in the trace: {self.broken}"
        if not self._has_events:
            return "not a trace of the torch profiler (no JSON object with a list of traceEvents)"
        unusable = f" ({self.left_out} are unusable)" if self.left_out else ""
        return f"no event of the torch profiler in the trace{unusable}"

    def _read_object(self) -> None:
        text = self._text
        while len(text.buffer) < len(_UTF8_MARK) and text.more():
            pass
        if text.buffer.startswith(_UTF8_MARK):
            text.at = len(_UTF8_MARK)
        if text.next_byte() != b"{":
            return
        self._is_object = True
        text.at += 1
        while (byte := text.next_byte()) != b"}":
            if byte == b",":
                text.at += 1
                continue
            self._expect(b'"')
            key = text.take(_LONGEST_BYTES)
            self._expect(b":")
            text.at += 1
            begins = text.next_byte()
            if key == b'"traceEvents"' and begins == b"[":
                self._has_events = True
                self._read_events()
            elif key in (b'"deviceProperties"', b'"distributedInfo"'):
                self._known[key] = _tolerated(text.take(_LONGEST_BYTES) or b"null")
            else:
                text.take(0)
        text.at += 1
        if text.next_byte():
            raise _Broken(f"something follows the trace's end at byte {text.place}")

    def _expect(self, byte: bytes) -> None:
        if (found := self._text.next_byte()) != byte:
            what = f"no JSON at byte {self._text.place}" if found else "the JSON ends early"
            raise _Broken(what)

    def _read_events(self) -> None:
        text = self._text
        text.at += 1
        one_by_one_until = 0
        while (byte := text.next_byte()) != b"]":
            if byte == b",":
                text.at += 1
                continue
            if byte in b":}":
                # Also at the end.
                self._expect(b"{")
            while len(text.buffer) - text.at < _CHUNK_BYTES and text.more():
                pass
            events = self._take_piece() if text.place >= one_by_one_until else None
            if events is None:
                one_by_one_until = max(one_by_one_until, text.seen)
                value = text.take(_LONGEST_BYTES)
                events = [_UNUSABLE if value is None else _single(value)]
            self._waiting += events
            if len(self._waiting) >= _BATCH:
                self._add_waiting()
        text.at += 1

    def _take_piece(self) -> list[_Event] | None:
        """Returns the events up to the last place where one ends, None if none can be found."""
        text = self._text
        for decoded in (_decoded, _decoded_mended):
            end = len(text.buffer)
            for _ in range(_TRIES):
                end = _last_end(text.buffer, text.at, end)
                if end <= text.at:
                    break
                events = decoded(b"[" + text.buffer[text.at : end] + b"]")
                if events is not None:
                    text.at = end
                    return events
        return None

    def _add_waiting(self) -> None:
        """Makes columns of the events that wait, and writes them."""
        waiting, self._waiting = self._waiting, []
        found = map(self._lanes.__getitem__, map(_place_of, waiting))
        # The kind and the lane of each: one look-up for both.
        places = np.fromiter(found, np.int64, len(waiting))
        is_used = places >= 0
        events, places = list(compress(waiting, is_used)), places[is_used]
        kind, lane = (places % _KINDS).astype(np.int8), (places // _KINDS).astype(np.int32) - 1
        start_us, duration_us = _column("ts", events), _column("dur", events)
        # All of them are false for NaN.
        usable = (np.abs(start_us) < _LATEST_US) & (duration_us >= 0) & (duration_us < _LONGEST_US)
        usable &= lane >= 0
        if not usable.all():
            self.left_out += len(events) - int(usable.sum())
            events = list(compress(events, usable))
            kind, start_us, duration_us, lane = (
                kind[usable],
                start_us[usable],
                duration_us[usable],
                lane[usable],
            )
        if not events:
            return
        columns: dict[str, npt.NDArray[Any]] = {
            "kind": kind,
            "lane": lane,
            "device": self._lanes.devices()[lane],
            "start_ns": np.rint(start_us * 1e3),
            "duration_ns": np.rint(duration_us * 1e3),
            **_arguments(kind, [event.args for event in events]),
        }
        self._writer.add([event.name[:_LONGEST_NAME] for event in events], columns)


def _column(attribute: str, records: Sequence[msgspec.Struct]) -> Floats:
    return np.fromiter(map(attrgetter(attribute), records), np.float64, len(records))


def _arguments(
    kind: npt.NDArray[np.int8], arguments: Sequence[_Arguments]
) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns that only kernels have."""
    is_kernel = kind == _KERNEL
    kernels = list(compress(arguments, is_kernel))
    of_kernels = {
        "grid_blocks": _product([kernel.grid for kernel in kernels]),
        "block_threads": _product([kernel.block for kernel in kernels]),
        "registers": _column("registers", kernels),
        "shared_bytes": _column("shared", kernels),
    }
    return {name: _spread(values, is_kernel) for name, values in of_kernels.items()}


def _product(extents: Sequence[_Extent]) -> Floats:
    with np.errstate(over="ignore"):
        product: Floats = _column("x", extents) * _column("y", extents) * _column("z", extents)
    return product


def _spread(values: Floats, where: npt.NDArray[np.bool_]) -> Floats:
    """Puts values where they belong, between NaN."""
    spread = np.full(len(where), _NONE)
    spread[where] = values
    return spread


class _Lanes(dict[_Place, int]):
    """Gives kind and lane of an event as one number, by its ``ph``, ``cat``, ``pid`` and ``tid``.

    It is ``(lane + 1) * _KINDS + kind``, with lane -1 where there are too many; or `_UNUSED`.
    Lanes, streams and threads, are numbered as they are met.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[tuple[bool, int | str, int | str], int] = {}
        self._devices: list[int] = []

    def __missing__(self, place: _Place) -> int:
        number = self._number(*place)
        # Bounded, whatever stands in a file.
        if len(self) < _MOST_PLACES:
            self[place] = number
        return number

    def _number(self, phase: str, category: str, pid: int | str, tid: int | str) -> int:
        kind = _KIND_OF_CATEGORY.get(category) if phase == "X" else None
        if kind is None:
            return _UNUSED
        lane = (category in _GPU_CATEGORIES, pid, tid)
        if lane not in self._numbers:
            if len(self._numbers) == _MOST_LANES:
                return KINDS.index(kind)
            self._numbers[lane] = len(self._numbers)
            self._devices.append(_gpu(pid) if lane[0] else CPU)
        return (self._numbers[lane] + 1) * _KINDS + KINDS.index(kind)

    def devices(self) -> npt.NDArray[np.int32]:
        """Returns the device of each lane."""
        return np.array(self._devices, np.int32)


def _gpu(pid: int | str) -> int:
    """Returns the number of a GPU, which a trace has in the place of a process."""
    try:
        number = int(pid)
    except ValueError:
        return 0
    return number if 0 <= number < 1 << 31 else 0


def _last_end(buffer: bytes, begin: int, end: int) -> int:
    """Returns the last place where an event seems to end and another to follow, or -1.

    That is ``} , { "``: names of kernels can have the first three of these.
    """
    while (brace := buffer.rfind(b"{", begin, end)) > begin:
        first = max(begin, brace - _SPACES)
        before = buffer[first:brace].rstrip()
        if before.endswith(b",") and buffer[brace + 1 : brace + _SPACES].lstrip()[:1] == b'"':
            before = before[:-1].rstrip()
            if before.endswith(b"}"):
                return first + len(before)
        end = brace
    return -1


def _decoded(piece: bytes) -> list[_Event] | None:
    """Returns the events of a JSON array, or None if it is none."""
    try:
        return _decode(piece)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError):
        return None
    try:
        return [_event(value) for value in msgspec.json.decode(piece)]
    except (msgspec.DecodeError, RecursionError):
        return None


def _decoded_mended(piece: bytes) -> list[_Event] | None:
    return _decoded(_mended(piece))


def _single(value: bytes) -> _Event:
    """Returns what one element of the array is taken for."""
    events = _decoded(b"[" + value + b"]")
    return events[0] if events else _event(_tolerated(value))


def _tolerated(value: bytes) -> Any:
    """Returns a JSON value by the most tolerant means there are; None if it is none."""
    try:
        return json.loads(_mended(value), strict=False)
    except (ValueError, RecursionError):
        return None


def _event(value: Any) -> _Event:
    """Returns an event whose fields may be of any type."""
    if not isinstance(value, dict):
        return _UNUSABLE
    given = value.get("args")
    given = given if isinstance(given, dict) else {}
    arguments: dict[str, Any] = {
        name: _number(given[name]) for name in _NUMBERS_OF_ARGUMENTS if name in given
    }
    for extent in ("grid", "block"):
        if isinstance(given.get(extent), list):
            arguments[extent] = [_number(number) for number in given[extent][:3]]
    return _Event(
        ph=str(value.get("ph", "")),
        cat=str(value.get("cat", "")),
        name=str(value.get("name", "")),
        pid=_identity(value.get("pid")),
        tid=_identity(value.get("tid")),
        ts=_number(value.get("ts")),
        dur=_number(value.get("dur")),
        args=msgspec.convert(arguments, _Arguments),
    )


def _number(value: Any) -> float:
    try:
        return _NONE if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return _NONE


def _identity(value: Any) -> int | str:
    return value if isinstance(value, int | str) else str(value)


def _property(name: str, value: Any) -> int | str | None:
    """Returns a property of a GPU; None where it cannot be one."""
    if name == "name":
        return value if isinstance(value, str) else None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < _MOST_OF_PROPERTY else None


def _mended(piece: bytes) -> bytes:
    """Replaces what the profiler may write and JSON does not have.

    Numbers that are none become null. In texts, bytes that are no UTF-8, halves of surrogate pairs
    and control characters are replaced, and a backslash that escapes nothing is itself.
    """
    try:
        piece.decode()
    except UnicodeDecodeError:
        piece = piece.decode(errors="replace").encode()
    return _UP_TO_ODD.sub(_mended_part, piece)


def _mended_part(found: re.Match[bytes]) -> bytes:
    odd = found["odd"]
    if odd.startswith(b'"'):
        odd = _CONTROL.sub(b" ", _ESCAPE.sub(_mended_escape, odd))
    elif odd:
        odd = b"null"
    return found["right"] + odd


def _mended_escape(found: re.Match[bytes]) -> bytes:
    escape = found[0]
    if found["right"]:
        return escape
    return b"\\ufffd" if found["half"] else b"\\" + escape


# What is right, as much of it as there is, and then a text with escapes or control characters, or
# no number. It matches everywhere, so that no part is looked at twice.
_NO_NUMBER = rb"[-+]?(?:nan|inf(?:inity)?)\b"
_UP_TO_ODD = re.compile(
    rb'(?P<right>(?:"[^"\\\x00-\x1f]*+"|[^"ni+-]++|(?!' + _NO_NUMBER + rb")[ni+-])*+)"
    rb'(?P<odd>"[^"\\]*+(?:\\.[^"\\]*+)*+"|' + _NO_NUMBER + rb'|"|\Z)',
    re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(
    rb"(?P<right>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb'|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\["\\/bfnrt])'
    rb"|(?P<half>\\u[dD][0-9a-fA-F]{3})|\\.",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:]))
