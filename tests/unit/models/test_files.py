"""A model's identity and vocabulary, without reading its weights."""

import json
import struct
from pathlib import Path

import pytest

from leverbench.errors import LeverbenchError
from leverbench.models.files import model_facts


def write_model(path: Path, weights: bytes = b"0123") -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": 6}))
    (path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 0}, {"id": 5}]}))
    header = b'{"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}'
    content = struct.pack("<Q", len(header)) + header + weights
    (path / "model.safetensors").write_bytes(content)
    return path


def test_special_tokens_are_not_in_the_vocabulary(tmp_path):
    assert model_facts(write_model(tmp_path / "m")).vocabulary == (1, 2, 3, 4)


def test_weights_are_known_by_header_and_size_and_not_by_content(tmp_path):
    digests = [
        model_facts(write_model(tmp_path / name, weights)).digest
        for name, weights in (("a", b"0123"), ("b", b"4567"), ("c", b"01234"))
    ]

    assert digests[0] == digests[1] != digests[2]


def test_configuration_is_part_of_the_identity_and_the_manifest_is_not(tmp_path):
    path = write_model(tmp_path / "m")
    first = model_facts(path).digest
    (path / "model.json").write_text('{"seed": 1}')
    assert model_facts(path).digest == first

    (path / "config.json").write_text(json.dumps({"vocab_size": 6, "rope_theta": 1}))
    assert model_facts(path).digest != first


def test_a_nested_configuration_has_its_vocabulary_too(tmp_path):
    path = write_model(tmp_path / "m")
    (path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 3}}))

    assert model_facts(path).vocabulary == (1, 2)


@pytest.mark.parametrize("content", [None, "", "{}", '{"vocab_size": "many"}', "[]"])
def test_a_folder_that_is_no_model_is_one_message(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(LeverbenchError) as caught:
        model_facts(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_campaign_may_narrow_the_vocabulary(tmp_path):
    path = write_model(tmp_path / "m")

    assert model_facts(path, (2, 3)).vocabulary == (2, 3)
    assert model_facts(path, (0, 99)).vocabulary == (1, 2, 3, 4)
    with pytest.raises(LeverbenchError, match="none of the token ids 5 to 99 is an ordinary one"):
        model_facts(path, (5, 99))


@pytest.mark.parametrize(
    "content", ["version https://git-lfs.github.com/spec/v1", "[]", '{"added_tokens": [{}]}']
)
def test_a_damaged_tokenizer_is_one_message(tmp_path, content):
    (tmp_path / "config.json").write_text('{"vocab_size": 10}')
    (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(LeverbenchError, match="unreadable tokenizer"):
        model_facts(tmp_path)
