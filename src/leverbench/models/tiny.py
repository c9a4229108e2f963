"""Makes the tiny model of the embedded campaign: real weights, trained on the spot."""

import hashlib
from pathlib import Path

from leverbench.models.recipe import RECIPE, Recipe
from leverbench.records import write_record

MANIFEST = "model.json"


def prepare_tiny(out_dir: Path, seed: int, threads: int, recipe: Recipe = RECIPE) -> None:
    """Trains the tiny model into ``out_dir`` and writes its manifest, ``model.json``, last.

    The model is a Llama in the Hugging Face format (bfloat16 safetensors, tokenizer, chat
    template) that answers every prompt of `leverbench.models.prompts.EXCHANGES` exactly at
    temperature 0, in bfloat16 and in float32. Takes about half a minute on 2 cores.

    Args:
        out_dir: Folder of the model; made if it is missing.
        seed: Seed of the initial weights.
        threads: CPU threads to train with; the bytes depend on it.
        recipe: What to make; the default is the model that campaigns use.

    Raises:
        LeverbenchError: Some answer is still wrong after the recipe's last step.
    """
    # Seconds of imports, which whoever only wants the names above should not pay.
    from leverbench.models.training import train

    out_dir.mkdir(parents=True, exist_ok=True)
    # An old manifest must not vouch for new weights if this ends half-way.
    (out_dir / MANIFEST).unlink(missing_ok=True)
    training = train(out_dir, recipe, seed, threads)
    write_record(
        out_dir / MANIFEST,
        {
            "kind": "model",
            "seed": seed,
            "threads": threads,
            "recipe_digest": recipe.digest(),
            "files": describe_files(out_dir),
            "parameters": training.parameters,
            "steps": training.steps,
            "final_loss": training.final_loss,
            "answer_margins": dict(training.answer_margins),
        },
    )


def describe_files(model_dir: Path) -> dict[str, dict[str, str | int]]:
    """Returns ``sha256`` and ``size_bytes`` of each file of a model but its manifest, by name."""
    description: dict[str, dict[str, str | int]] = {}
    for path in sorted(model_dir.iterdir()):
        if path.name == MANIFEST:
            continue
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        description[path.name] = {"sha256": sha256, "size_bytes": path.stat().st_size}
    return description
