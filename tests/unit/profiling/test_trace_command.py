"""``leverbench trace``: the summary of any traces, and one sentence where there is none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trace_files import kernel, launch, op, step, write_trace

from leverbench.cli import main

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command and returns what it prints."""

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["leverbench", "trace", *map(str, words)])
        main()
        return capsys.readouterr().out

    return run


def test_a_real_trace_in_one_page(command):
    text = command(DATA / "decode-c16-gpu.trace.json.gz")

    assert "1 trace, 1,090 operations; time on the GPU" in text
    assert "5 decode steps, found by periodicity; 4 whole from start to start: 2.451 ms" in text
    assert "GPU idle 49.0% of them (49.7% of the whole recording)" in text
    assert "_w8a8_block_fp8_matmul (fp8-gemm)" in text
    assert "16 blocks on 132 SMs: at most 12% of the chip" in text
    assert max(map(len, text.splitlines())) < 140


def test_as_json_it_is_what_a_record_has(command):
    summary = json.loads(command(DATA / "decode-c16-cpu-gpu.trace.json.gz", "--json"))

    assert (summary["device"], summary["decode_steps"]) == ("gpu", 5)
    assert summary["files"] == [{"name": "decode-c16-cpu-gpu.trace.json.gz", "events": 1618}]
    assert {"steps", "idle_share", "categories", "top"} <= summary.keys()


def test_the_cpu_counts_where_it_is_asked_for_or_alone(command, tmp_path):
    events = [step(0, 50), op("aten::mm", 5, 20), kernel("k", 9, 9)]
    both = write_trace(tmp_path / "both.json", *events)
    alone = write_trace(tmp_path / "alone.json", *events[:2])

    assert "time on the CPU" in command(both, "--device", "cpu")
    assert "time on the CPU" in command(alone)
    assert "time on the GPU" in command(both)


def test_a_trace_counts_once(command):
    trace = DATA / "decode-c16-gpu.trace.json.gz"
    with pytest.raises(SystemExit, match="the same trace is named twice"):
        command(trace, DATA / ".." / "data" / trace.name)


def test_ranks_are_traces_side_by_side(command, tmp_path):
    steps = [(kernel("a", 10 * i, 4), kernel("nccl", 10 * i + 5, 3)) for i in range(4)]
    late = [(kernel("a", 10 * i, 6), kernel("nccl", 10 * i + 7, 1)) for i in range(4)]
    name = "ncclDevKernel_AllReduce"
    for rank, events in ((0, steps), (1, late)):
        (tmp_path / str(rank)).mkdir()
        flat = [{**e, "name": e["name"].replace("nccl", name)} for pair in events for e in pair]
        write_trace(tmp_path / f"{rank}/t.json", *flat)
    text = command(tmp_path / "0/t.json", tmp_path / "1/t.json")

    # Three whole steps: 1 us of transfer on each rank, 2 us of waiting on the first one.
    assert "communication over all ranks: 0.006 ms transfer, 0.006 ms waiting" in text
    assert text.startswith("2 traces, 16 operations")


def test_a_large_other_is_a_warning_with_names(command, tmp_path):
    events = [kernel("mystery_kernel", 0, 50), kernel("nvjet_a", 60, 50, **launch(1, 32))]
    text = command(write_trace(tmp_path / "t.json", *events))

    assert "WARNING: no category claims these operations" in text
    assert "    mystery_kernel" in text
    assert "no number of decode steps found" in text


def test_a_truncated_trace_is_summed_as_far_as_it_goes(command, tmp_path):
    text = write_trace(tmp_path / "t.json", kernel("a", 0, 5), kernel("b", 9, 5)).read_text()
    (tmp_path / "t.json").write_text(text[: text.rindex("{")])

    assert "INCOMPLETE: t.json: " in command(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, [], r"t\.json: the trace is missing\. Name traces"),
        ("", [], r"t\.json: the trace is empty"),
        ("hello", [], r"t\.json: "),
        ('{"traceEvents": []}', [], r"t\.json: no "),
    ],
)
def test_what_is_no_trace_is_one_sentence(command, tmp_path, content, words, message):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SystemExit, match=message):
        command(path, *words)


def test_a_device_that_did_nothing_is_one_sentence(command, tmp_path):
    path = write_trace(tmp_path / "t.json", op("aten::mm", 0, 5))

    with pytest.raises(SystemExit, match="no time on the gpu in it"):
        command(path, "--device", "gpu")


def test_any_name_of_a_file_will_do(command, tmp_path):
    trace = write_trace(tmp_path / "t.json", kernel("a", 0, 5))
    other = write_trace(tmp_path / "other.json", kernel("a", 0, 5))
    for name in ("n" * 250 + ".json", os.fsdecode(b"\xff.json"), "a\nb"):
        trace = trace.rename(tmp_path / name)

        assert command(trace).startswith("1 trace, 1 operations")
        assert command(trace, other, "--json").startswith("{")


def test_a_name_of_an_operation_is_one_line_of_printable_text(command, tmp_path):
    text = command(write_trace(tmp_path / "t.json", kernel("a\nb\x1b[31m", 0, 5)))

    assert "a\ufffdb\ufffd[31m (other)" in text
    assert "\x1b" not in text


def test_no_room_is_one_sentence(command, tmp_path, monkeypatch):
    trace = write_trace(tmp_path / "t.json", kernel("a", 0, 5))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))

    with pytest.raises(SystemExit, match=r"events cannot be kept .* set TMPDIR to another folder"):
        command(trace)


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_readers_and_leaves_nothing(tmp_path, number):
    pipes = [tmp_path / "a", tmp_path / "b"]
    for pipe in pipes:
        os.mkfifo(pipe)
    (tmp_path / "tmp").mkdir()
    program = "import leverbench.cli as cli; cli.main()"
    # Ctrl-C may be ignored where this runs, as in a job in the background.
    default = f"import signal; signal.signal({number:d}, signal.default_int_handler); "
    process = subprocess.Popen(
        [sys.executable, "-c", default + program, "trace", *pipes],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
    )
    # Whoever opens a pipe waits for the other side: both are read from here on.
    with pipes[0].open("wb"), pipes[1].open("wb") as written:
        process.send_signal(number)
        _, told = process.communicate(timeout=20)
        # Both readers are gone.
        with pytest.raises(BrokenPipeError):
            os.write(written.fileno(), b"{")

    assert (process.returncode, told) == (128 + number, b"")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.server
def test_a_reader_of_the_output_that_has_enough_is_no_error(tmp_path):
    trace = write_trace(tmp_path / "t.json", kernel("a", 0, 5))
    reading, writing = os.pipe()
    os.close(reading)
    program = "import leverbench.cli as cli; cli.main()"
    command = [sys.executable, "-c", program, "trace", trace]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.server
def test_descriptors_are_read_wherever_their_reader_runs(tmp_path):
    trace = write_trace(tmp_path / "t.json", kernel("a", 0, 5))
    second = write_trace(tmp_path / "u.json", kernel("a", 0, 5))
    program = "import leverbench.cli as cli; cli.main()"
    with trace.open("rb") as one, second.open("rb") as other:
        fds = (one.fileno(), other.fileno())
        command = [sys.executable, "-c", program, "trace", *(f"/dev/fd/{fd}" for fd in fds)]
        done = subprocess.run(command, pass_fds=fds, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("2 traces, 2 operations")
