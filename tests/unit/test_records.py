"""Records are whole or absent."""

import json
import subprocess
import sys

import pytest

from leverbench.errors import LeverbenchError
from leverbench.records import append_line, digest, read_record, write_bytes, write_record


def test_round_trip(tmp_path):
    path = tmp_path / "a/b.json"
    write_record(path, {"kind": "x", "value": None})

    assert read_record(path) == {"schema_version": 1, "kind": "x", "value": None}
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


@pytest.mark.parametrize(
    "content", [b"", b'{"schema_version": 1', b"[]", b'{"schema_version": 99}', b"\xff"]
)
def test_a_damaged_record_is_one_message(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_bytes(content)

    with pytest.raises(LeverbenchError, match="Delete the file and run again") as caught:
        read_record(path)
    assert str(path) in str(caught.value)


def test_a_missing_record_is_one_message(tmp_path):
    with pytest.raises(LeverbenchError, match="the record is missing"):
        read_record(tmp_path / "none.json")


def test_no_data_is_never_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path / "r.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "r"
    write_bytes(path, b"old")
    path.with_name(f".{path.name}.tmp").touch()
    with pytest.raises(TypeError):
        write_bytes(path, "text")  # type: ignore[arg-type]

    assert path.read_bytes() == b"old"


def test_a_line_that_is_not_all_written_is_an_error(tmp_path):
    code = (
        "import resource, pathlib; from leverbench.records import append_line;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30, 30));"
        f"append_line(pathlib.Path({str(tmp_path / 'lines')!r}), {{'a': 'x' * 100}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert "OSError: [Errno 27]" in done.stderr
    assert (tmp_path / "lines").stat().st_size == 30


def test_lines_are_appended(tmp_path):
    path = tmp_path / "s/h.jsonl"
    append_line(path, {"a": 1})
    append_line(path, {"a": 2})

    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_digest_does_not_depend_on_order():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
