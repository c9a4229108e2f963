"""A model's folder with a tokenizer of eleven words, for tests of what becomes of text."""

import json
from pathlib import Path

WORDS = ("<s>", "<|", "|>", "Hello", "there", "system", "user", "assistant", "Be", "brief", ".")
# Refuses a chat that begins with "there", as templates refuse roles out of turn.
TEMPLATE = (
    "{% if messages[0]['content'] == 'there' %}{{ raise_exception('only Hello') }}{% endif %}"
    "{% for m in messages %}<| {{ m['role'] }} |> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<| assistant |>{% endif %}"
)


def write_word_model(folder: Path, **config: int) -> Path:
    """Writes the folder, without weights; words stand between spaces, and ``<s>`` before a text.

    Args:
        folder: Where; made if it is missing.
        config: Content of ``config.json`` beside the size of the vocabulary.
    """
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: id for id, word in enumerate(WORDS)},
            "unk_token": ".",
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {
        "config.json": {"vocab_size": len(WORDS), **config},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder
