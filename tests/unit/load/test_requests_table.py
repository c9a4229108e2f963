import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leverbench.errors import LeverbenchError
from leverbench.load.requests_table import read_requests, write_no_requests, write_requests
from leverbench.load.window import ClientAudit, Failure, RequestRow, Window

GOOD = RequestRow(
    request_index=0,
    input_tokens=4,
    output_tokens_asked=3,
    intended_s=0.0,
    sent_s=0.125,
    ended_s=2.5,
    output_tokens=3,
    prompt_tokens=4,
    cached_tokens=1,
    finish_reason="length",
    accept_length=1.5,
    failure=None,
    error=None,
    token_times_s=(1.0, 1.5, 2.25),
    output_ids=(7, 8, 9),
)
FAILED = RequestRow(
    request_index=1,
    input_tokens=4,
    output_tokens_asked=3,
    intended_s=2.5,
    sent_s=2.5,
    ended_s=3.0,
    output_tokens=None,
    prompt_tokens=None,
    cached_tokens=None,
    finish_reason=None,
    accept_length=None,
    failure=Failure.STATUS,
    error="HTTP 500: no",
    token_times_s=(),
    output_ids=None,
)
WINDOW = Window(1, 1_700_000_000.25, (GOOD, FAILED), ClientAudit(0.1, None, 1.0, 2.0, None))
ABOUT = {"variant": "baseline", "session": 1}


def test_a_window_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "c1.parquet"

    write_requests(path, WINDOW, ABOUT)

    assert read_requests(path) == (WINDOW, ABOUT)
    assert [p.name for p in path.parent.iterdir()] == ["c1.parquet"]


def test_other_readers_find_plain_columns(tmp_path):
    path = tmp_path / "c1.parquet"
    write_requests(path, WINDOW, ABOUT)

    table = pq.read_table(path)

    assert table.column_names == [
        *("request_index", "input_tokens", "output_tokens_asked", "intended_s", "sent_s"),
        *("first_token_s", "last_token_s", "ended_s", "output_tokens", "prompt_tokens"),
        *("cached_tokens", "finish_reason", "accept_length", "failure", "error"),
        *("token_times_s", "output_ids"),
    ]
    assert table["first_token_s"].to_pylist() == [1.0, None]
    assert table["last_token_s"].to_pylist() == [2.25, None]
    assert table["token_times_s"].to_pylist() == [[1.0, 1.5, 2.25], []]
    assert table["output_ids"].type == pa.list_(pa.int32())
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_point_that_was_not_measured_has_no_window(tmp_path):
    path = tmp_path / "c1.parquet"

    write_no_requests(path, ABOUT)

    assert read_requests(path) == (None, ABOUT)
    assert pq.read_table(path).num_rows == 0
    assert pq.read_table(path).column_names[0] == "request_index"


def test_a_missing_table_is_told(tmp_path):
    with pytest.raises(LeverbenchError, match="missing"):
        read_requests(tmp_path / "c1.parquet")


@pytest.mark.parametrize("kept", [0, 3, -20])
def test_a_truncated_table_is_told(tmp_path, kept):
    path = tmp_path / "c1.parquet"
    write_requests(path, WINDOW, ABOUT)
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(LeverbenchError, match="unreadable"):
        read_requests(path)


def test_another_table_is_refused(tmp_path):
    path = tmp_path / "c1.parquet"
    pq.write_table(pa.table({"a": [1]}), path)

    with pytest.raises(LeverbenchError, match="not a request table"):
        read_requests(path)
