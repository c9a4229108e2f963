"""Runs in the engine's interpreter: turns texts into token ids with a model's own tokenizer.

Standard library and transformers only. Standard input: ``{"model": folder, "texts": [prompt or
[message, ...], ...]}``. The last line of standard output: ``{"ids": [[id, ...], ...]}``, or
``{"refused": place, "problem": message}`` for the first text that is not taken.
"""

import json
import sys


def main() -> None:
    """Answers the question on standard input."""
    question = json.load(sys.stdin)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(question["model"], local_files_only=True)
    ids = []
    for place, text in enumerate(question["texts"]):
        try:
            if isinstance(text, str):
                ids.append(tokenizer(text).input_ids)
                continue
            # The template writes the special tokens itself.
            chat = tokenizer.apply_chat_template(text, tokenize=False, add_generation_prompt=True)
            ids.append(tokenizer(chat, add_special_tokens=False).input_ids)
        except Exception as error:  # a template may raise anything
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            print(json.dumps({"refused": place, "problem": problem}))
            return
    print(json.dumps({"ids": ids}))


if __name__ == "__main__":
    main()
