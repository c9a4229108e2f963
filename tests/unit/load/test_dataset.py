"""Dataset files: what a line may be, and one message for each that is none."""

import hashlib
import json
from pathlib import Path

import pytest

from leverbench.campaign.model import FILE, Workload
from leverbench.errors import LeverbenchError
from leverbench.load.dataset import read_lines, require_model

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def workload(path: Path, *lines: object) -> Workload:
    """Writes a file, of JSON or of raw lines, and returns the workload that is read from it."""
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(texts))
    return Workload(FILE, path=str(path), content=hashlib.sha256(path.read_bytes()).hexdigest())


def refusal(path: Path, *lines: object) -> str:
    with pytest.raises(LeverbenchError) as caught:
        read_lines(workload(path, *lines))
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path.parent}/")


def test_each_kind_of_line_is_read_with_its_length_and_number(tmp_path):
    lines = read_lines(
        workload(
            tmp_path / "d.jsonl",
            {"prompt": "Once", "output_tokens": 4, "source": "made up"},
            b"",
            {"messages": CHAT, "output_tokens": 1},
            {"input_ids": [5, 0], "output_tokens": 9},
            b"",
        )
    )

    assert [(line.number, line.text, line.input_ids, line.output_tokens) for line in lines] == [
        (1, "Once", None, 4),
        (3, CHAT, None, 1),
        (4, None, [5, 0], 9),
    ]


GOOD = {"prompt": "a", "output_tokens": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([1], "not a JSON object"),
        ({"output_tokens": 1}, "nothing says what the prompt is"),
        ({**GOOD, "input_ids": [1]}, "prompt and input_ids says what the prompt is"),
        ({"prompt": "a"}, "output_tokens is missing"),
        ({"prompt": "a", "output_tokens": 0}, "output_tokens 0 is no length"),
        ({"prompt": "a", "output_tokens": True}, "output_tokens True is no length"),
        ({"prompt": "a", "output_tokens": 1e3}, "output_tokens 1000.0 is no length"),
        ({"prompt": "a", "output_tokens": 10**30}, "is no length"),
        ({"prompt": "", "output_tokens": 1}, "prompt is no text"),
        ({"messages": [], "output_tokens": 1}, "messages is no list of chat messages"),
        ({"messages": [{"role": "user"}], "output_tokens": 1}, "messages is no list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}], "output_tokens": 1},
            "other content than text is not sent",
        ),
        ({"input_ids": [], "output_tokens": 1}, "input_ids is no list of token ids"),
        ({"input_ids": [1, -1], "output_tokens": 1}, "input_ids is no list of token ids"),
        ({"input_ids": [10**30], "output_tokens": 1}, "input_ids is no list of token ids"),
    ],
)
def test_a_line_that_is_no_request_is_one_message_with_its_number(tmp_path, line, said):
    message = refusal(tmp_path / "d.jsonl", GOOD, b"", line, GOOD)

    assert message.startswith("d.jsonl:3: ")
    assert said in message


def test_a_file_without_a_request_is_refused(tmp_path):
    assert "d.jsonl: there is no request in it" in refusal(tmp_path / "d.jsonl", b" ", b"")


def test_a_file_that_changes_under_a_run_is_refused(tmp_path):
    read = workload(tmp_path / "d.jsonl", GOOD)
    (tmp_path / "d.jsonl").write_text(json.dumps(GOOD) + "\n")

    with pytest.raises(LeverbenchError, match="changed since this run began"):
        read_lines(read)


def test_text_needs_a_model_and_token_ids_do_not(tmp_path):
    ids = {"input_ids": [1], "output_tokens": 1}
    read = workload(tmp_path / "d.jsonl", ids, GOOD)
    lines = read_lines(read)

    require_model(read, lines, tmp_path)
    require_model(read, lines[:1], None)
    with pytest.raises(LeverbenchError, match=r"d\.jsonl:2: text needs the model's own tokenizer"):
        require_model(read, lines, None)
