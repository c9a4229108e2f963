"""Lines of the engine's benchmark, real and of older versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from leverbench.errors import LeverbenchError
from leverbench.imports import import_records
from leverbench.imports.bench_lines import read_bench_lines

REAL = Path(__file__).resolve().parents[2] / "data/bench_serving-0.5.17.jsonl"
# As the tool wrote them before it had tags, limits of concurrency or the server's settings.
OLD = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "total_input_tokens": 1024,
    "total_output_tokens": 2048,
    "mean_e2e_latency": 900.0,
    "median_e2e_latency": 890.0,
    "median_ttft": 30.0,
    "median_itl": 5.0,
    "output_token_throughput": 512.0,
    "random_input_len": 256,
    "random_output_len": 256,
    "random_range_ratio": 1.0,
    "duration": 4.0,
    "completed": 8,
}


@pytest.fixture
def write(tmp_path):
    def write(*lines: Any, name: str = "runs.jsonl") -> Path:
        path = tmp_path / name
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(texts) + "\n")
        return path

    return write


def new(tag: str, rate: float, **more: Any) -> dict[str, Any]:
    return {
        **OLD,
        "tag": tag,
        "max_concurrency": 8,
        "output_throughput": rate,
        "duration": 2048 / rate,
        "mean_tpot_ms": 4000 / rate,
        "p99_tpot_ms": 8000 / rate,
        **more,
    }


def read(*paths: Path, parent: str | None = None, fresh_launches: bool = False):
    return read_bench_lines(paths, parent, fresh_launches)


def test_real_lines_are_one_variant_at_two_concurrencies():
    record = read(REAL)
    one, sixteen = sorted(record.rows, key=lambda row: row["concurrency"])

    assert list(record.variants) == ["dsv3"]
    assert list(record.workloads) == ["random-ids-256-256"]
    assert (record.model, record.engine) == ("models/dsv3", "sglang 0.5.17")
    assert one["output_tok_per_s"] == pytest.approx(691.3015)
    assert one["p50_ttft_ms"] == pytest.approx(23.1879, rel=1e-5)
    assert one["accept_length"] is None
    # Two runs of 8,192 and 16,384 tokens in 9.241 and 1.807 s.
    assert sixteen["output_tok_per_s"] == pytest.approx(24576 / 11.0478, rel=1e-5)
    assert sixteen["num_requests"] == 96
    assert sixteen["p99_ttft_ms"] is None
    assert "886.5, 9,068.7 tok/s" in sixteen["detail"]
    assert any("differ by 923%" in note for note in record.notes)


def test_repetitions_are_launches_only_if_said(write):
    path = write(new("a", 100), new("a", 102), new("b", 110), new("b", 112))

    assert [row["session"] for row in read(path).rows] == [1, 1]
    # 4,096 tokens in 20.48 + 20.08 s; requests of both runs weigh alike.
    assert read(path).rows[0]["output_tok_per_s"] == pytest.approx(4096 / (20.48 + 2048 / 102))
    assert read(path).rows[0]["mean_tpot_ms"] == pytest.approx((40 + 4000 / 102) / 2)
    assert [row["session"] for row in read(path, fresh_launches=True).rows] == [1, 2, 1, 2]


def test_older_keys_mean_the_same(write):
    record = read(write(OLD, name="plain-c16.jsonl"))
    (row,) = record.rows

    assert list(record.variants) == ["plain"]
    assert row["concurrency"] == 16
    assert row["output_tok_per_s"] == 512
    assert row["request_per_s"] == 2
    assert (row["p50_ttft_ms"], row["p50_itl_ms"], row["mean_e2e_ms"]) == (30, 5, 900)
    assert row["mean_tpot_ms"] is None


def test_the_first_tag_is_the_parent_unless_another_is_named(write):
    path = write(new("a", 100), new("b", 110))

    assert read(path).variants["b"].parent == "a"
    assert read(path, parent="b").variants["a"].parent == "b"
    with pytest.raises(LeverbenchError, match=r"--parent c: no line has this tag\. Tags are: a, b"):
        read(path, parent="c")


def test_what_servers_told_is_the_delta_without_secrets_and_seeds(write):
    base = {"version": "1", "dtype": "auto", "random_seed": 1, "port": 1, "api_key": "abc"}
    other = {**base, "dtype": "half", "random_seed": 2, "port": 2, "api_key": "xyz"}
    fast = {**other, "speculative_algorithm": "EAGLE", "speculative_num_steps": 1}
    lines = [new("a", 9, server_info=base), new("b", 9, server_info=other)]
    variants = read(write(*lines, new("c", 9, server_info=fast))).variants

    assert variants["b"].delta == {"args.dtype": ("auto", "half")}
    assert variants["b"].levers == ("dtype",)
    assert variants["c"].levers == ("dtype", "speculation")


def test_different_loads_are_different_workloads(write):
    lines = [new("a", 9, request_rate=4.0), new("a", 9), new("a", 9, random_range_ratio=0.0)]
    workloads = list(read(write(*lines, new("a", 9, dataset_name="sharegpt"))).workloads)

    assert workloads == [
        "random-256-256-rate-4",
        "random-256-256",
        "random-256-256-varied",
        "sharegpt",
    ]


def test_cut_off_lines_are_counted_and_said(write, tmp_path):
    whole = json.dumps(new("a", 100))
    path = write(whole, whole[: len(whole) // 2], json.dumps(new("b", 110)), whole[:9])
    import_records([path], "cut", tmp_path)

    assert "runs.jsonl: 2 truncated lines are left out" in (
        tmp_path / "reports/cut/findings.md"
    ).read_text().replace("\\", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{]}", "runs.jsonl:2: not a line of JSON"),
        ("[1]", "runs.jsonl:2: not a line of the engine's benchmark"),
        ({"backend": "x"}, "no backend, or no output throughput"),
        ({**OLD, "output_token_throughput": "fast"}, "not a line of the engine's benchmark"),
        (OLD, "runs.jsonl:2: the line does not tell its concurrency"),
        (new("a", 9, output_throughput=0), "an output throughput of 0"),
    ],
)
def test_a_bad_line_is_named_with_its_cure(write, line, message):
    with pytest.raises(LeverbenchError) as error:
        read(write(new("a", 100), line))

    assert message in str(error.value)
    assert error.value.cure


def test_a_file_of_cut_off_lines_alone_is_refused(write):
    with pytest.raises(LeverbenchError, match=r"no whole line \(1 truncated\)"):
        read(write('{"backend": "x", "out'))
