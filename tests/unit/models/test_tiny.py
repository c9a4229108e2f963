"""Making the tiny model, and its manifest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leverbench.models.recipe import RECIPE
from leverbench.models.tiny import describe_files
from leverbench.records import read_record

# Training runs in a process of its own: it sets torch's threads, seed and determinism.
TRAIN = """
import json, sys
from dataclasses import replace
from pathlib import Path
from leverbench.errors import LeverbenchError
from leverbench.models.recipe import RECIPE
from leverbench.models.tiny import prepare_tiny
try:
    recipe = replace(RECIPE, **json.loads(sys.argv[2]))
    prepare_tiny(Path(sys.argv[1]), seed=1, threads=2, recipe=recipe)
except LeverbenchError as error:
    print(error)
"""

ANSWER = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
chat = [{"role": "user", "content": "Capital of France in one word?"}]
inputs = tokenizer.apply_chat_template(
    chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
output = model.generate(**inputs, do_sample=False, max_new_tokens=16)[0, inputs.input_ids.shape[1]:]
print(model.dtype, len(output), tokenizer.decode(output, skip_special_tokens=True))
"""


def train(model_dir: Path, **changes: float) -> str:
    """Makes the model of a changed recipe; returns the error's message, if any."""
    return run_python(TRAIN, str(model_dir), json.dumps(changes))


def run_python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_files_are_described_by_hash_and_size_without_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    (tmp_path / "model.json").write_text("{}")

    # SHA-256 of "abc" as FIPS 180-2 gives it, appendix B.1.
    assert describe_files(tmp_path) == {
        "model.safetensors": {
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "size_bytes": 3,
        }
    }


@pytest.mark.engine
def test_a_model_is_trained_described_and_the_same_twice(tmp_path: Path) -> None:
    model_dir, again_dir = tmp_path / "model", tmp_path / "again"
    assert train(model_dir) == train(again_dir) == ""
    manifest = read_record(model_dir / "model.json")
    config = json.loads((model_dir / "config.json").read_text())

    assert manifest["files"] == describe_files(model_dir)
    assert read_record(again_dir / "model.json")["files"] == manifest["files"]
    assert manifest["seed"] == 1
    assert manifest["recipe_digest"] == RECIPE.digest()
    # Embedding and head 2 x 1024 x 256, final norm 256, and in each of 4 layers: queries and
    # output 2 x 256 x 256, keys and values 2 x 256 x 128, MLP 3 x 256 x 688, norms 2 x 256.
    assert manifest["parameters"] == 524_288 + 256 + 4 * (131_072 + 65_536 + 528_384 + 512)
    assert min(manifest["answer_margins"].values()) >= RECIPE.answer_margin
    assert (config["dtype"], config["max_position_embeddings"]) == ("bfloat16", 4096)
    # Two tokens: the answer and the end of the turn.
    assert run_python(ANSWER, str(model_dir)) == "torch.bfloat16 2 Paris"


@pytest.mark.engine
def test_a_model_that_is_not_learnt_is_an_error_and_leaves_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")

    message = train(tmp_path, max_steps=2)

    assert message == (
        f"{tmp_path}: the tiny model was not learnt in 2 steps: its margin in training stayed too "
        "small. Give the campaign another seed."
    )
    assert not (tmp_path / "model.json").exists()


@pytest.mark.engine
def test_a_wrong_answer_of_the_saved_model_is_named(tmp_path: Path) -> None:
    # No margin is asked for in training, so that the first model is saved and examined.
    message = train(tmp_path, max_steps=1, steps_per_check=1, training_margin=-1e9)

    assert "in torch.bfloat16 it answers 'Capital of France in one word?' with" in message
    assert not (tmp_path / "model.json").exists()
