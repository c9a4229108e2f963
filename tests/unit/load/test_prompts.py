"""Files as token ids: by the model's own tokenizer and template, kept, and checked for a server."""

import io
import json
import sys
from pathlib import Path

import pytest
from unit.load.test_dataset import CHAT, GOOD, workload
from word_model import WORDS, write_word_model

from leverbench.campaign.model import Engine, Probe, Workload
from leverbench.campaign.slices import Launch
from leverbench.errors import LeverbenchError
from leverbench.load.prompts import load_prompts, prompts_for
from leverbench.models import tokenizer_script

ENGINE = Engine("sglang", None, None, (), {}, {})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(project: Path) -> Path:
    return write_word_model(project / "model", max_position_embeddings=20)


def launch(model: Path | None, **args: int) -> Launch:
    engine = Engine("sglang", None, None, (), args, {})
    path = str(model) if model else None
    return Launch("c", "v", 1, engine, (), path, None, ("cpu",), Probe())


def test_text_is_read_by_the_models_tokenizer_and_chats_by_its_template(model):
    read = workload(
        model.parent / "d.jsonl",
        {"prompt": "Hello there", "output_tokens": 2},
        {"messages": CHAT[1:], "output_tokens": 3},
        {"input_ids": [10, 9], "output_tokens": 4},
        {"messages": [{"role": "system", "content": "Be brief ."}, *CHAT[1:]], "output_tokens": 5},
    )

    prompts = load_prompts(read, model, ENGINE)

    # A prompt gets what the tokenizer puts around any text; a template brings its own.
    requests = [prompts.request(place, index=place) for place in range(len(prompts))]
    assert [" ".join(WORDS[id] for id in request.input_ids) for request in requests] == [
        "<s> Hello there",
        "<| user |> Hello <| assistant |>",
        ". brief",
        "<| system |> Be brief . <| user |> Hello <| assistant |>",
    ]
    assert [request.output_tokens for request in requests] == [2, 3, 4, 5]

    # Kept: the engine's interpreter is not asked again.
    absent = Engine("sglang", None, "/no/such/python", (), {}, {})
    again = load_prompts(read, model, absent)
    assert [again.request(place, place) for place in range(4)] == requests
    (kept,) = (model.parent / "state/datasets").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(LeverbenchError, match="/no/such/python cannot use the model's tokenizer"):
        load_prompts(read, model, absent)


def interpreter(folder: Path, script: str) -> Engine:
    """Returns an engine whose interpreter does what a shell script says."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
    path.chmod(0o755)
    return Engine("sglang", None, str(path), (), {}, {})


def test_a_text_that_is_refused_is_named_by_its_line(model):
    read = workload(model.parent / "d.jsonl", {"input_ids": [1], "output_tokens": 1}, b"", GOOD)
    refusing = interpreter(model.parent, """echo '{"refused": 0, "problem": "no"}'""")

    with pytest.raises(LeverbenchError, match=r"d\.jsonl:3: .* does not take it \(no\)"):
        load_prompts(read, model, refusing)


def test_a_tokenizer_that_cannot_be_used_is_one_message(model):
    read = workload(model.parent / "d.jsonl", GOOD)
    broken = interpreter(model.parent, "printf 'Trace\\nno sentencepiece' >&2; exit 1")

    with pytest.raises(LeverbenchError) as caught:
        load_prompts(read, model, broken)

    said = f"{model}: {broken.python} cannot use the model's tokenizer: no sentencepiece. "
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_template_s_refusal_is_told_by_its_place(model, monkeypatch, capsys):
    chats = [[{"role": "user", "content": word}] for word in ("Hello", "there")]
    question = {"model": str(model), "texts": ["Hello", *chats]}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(question)))

    tokenizer_script.main()

    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["refused"] == 2
    assert "only Hello" in answer["problem"]


def test_token_ids_need_no_model_and_must_be_the_models_where_there_is_one(model):
    lines = [{"input_ids": ids, "output_tokens": 1} for ids in ([3, 4], [10], [1, 11], [2])]
    read = workload(model.parent / "d.jsonl", *lines)

    assert load_prompts(read, None, ENGINE).request(2, 0).input_ids == (1, 11)
    with pytest.raises(LeverbenchError, match=r"d\.jsonl:3: the model has no token id 11"):
        load_prompts(read, model, ENGINE)


def test_a_file_must_have_lines_enough_and_none_too_long(model):
    lines = [{"input_ids": [1] * n, "output_tokens": 8} for n in (3, 10, 4)]
    read = workload(model.parent / "d.jsonl", *lines)

    # Of the model's 20 positions the engine keeps 2: 10 + 8 tokens just fit.
    assert len(prompts_for(launch(model), "chat", read, 3)) == 3
    with pytest.raises(LeverbenchError, match="it has 3 requests, and a window needs 4"):
        prompts_for(launch(model), "chat", read, 4)
    with pytest.raises(LeverbenchError, match=r"d\.jsonl:2: a request of 18 .* than the 17"):
        prompts_for(launch(model, **{"context-length": 19}), "chat", read, 3)


def test_random_ids_that_are_too_long_are_refused(model):
    fits, too_long = (Workload("random-ids", (1, n), 8) for n in (10, 11))

    assert prompts_for(launch(model), "long", fits, 3) is None
    assert prompts_for(launch(None), "long", too_long, 3) is None
    with pytest.raises(LeverbenchError, match=r"workloads\.long: a request of 19 tokens"):
        prompts_for(launch(model), "long", too_long, 3)
