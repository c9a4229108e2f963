import json
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverbench.parquet import write_rows

_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int32(), nullable=False),
        pa.field("time_s", pa.float64()),
        pa.field("error", pa.string()),
        pa.field("times_s", pa.list_(pa.float64()), nullable=False),
        pa.field("ids", pa.list_(pa.int32())),
    ]
)


def _rows(count: int) -> list[dict[str, object]]:
    chance = random.Random(1)
    return [
        {
            "index": index,
            "time_s": None if index % 3 else chance.random() * 10.0 ** chance.randint(-300, 300),
            "error": None if index % 2 else 'a "quote",\na line, é and \N{GRINNING FACE}',
            "times_s": [chance.random() for _ in range(index % 5)],
            "ids": None if index % 4 else list(range(index)),
        }
        for index in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 400])
def test_rows_come_back_to_the_last_bit(tmp_path, count):
    rows = _rows(count)

    write_rows(tmp_path / "t.parquet", rows, _SCHEMA, {"kind": "test"})

    table = pq.read_table(tmp_path / "t.parquet")
    assert table.to_pylist() == rows
    assert table.schema.equals(_SCHEMA)
    assert json.loads(table.schema.metadata[b"leverbench"]) == {"kind": "test"}


def test_a_row_longer_than_any_block_is_whole(tmp_path):
    row = {"index": 0, "times_s": [float(i) for i in range(1_000_000)]}

    write_rows(tmp_path / "t.parquet", [row], _SCHEMA, {})

    (back,) = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert back == row | {"time_s": None, "error": None, "ids": None}


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(pa.ArrowInvalid, match="unexpected field"):
        write_rows(tmp_path / "t.parquet", [{"index": 0, "wrong": 1}], _SCHEMA, {})

    assert not (tmp_path / "t.parquet").exists()


def test_writing_does_not_import_pandas(tmp_path):
    program = (
        "import sys, pathlib, pyarrow as pa; from leverbench.parquet import write_rows;"
        "write_rows(pathlib.Path(sys.argv[1]), [{'a': 1.5}], pa.schema([('a', pa.float64())]), {});"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t.parquet")]

    assert subprocess.check_output(command, text=True).strip() == "False"
