"""Text to token ids, by a model's own tokenizer and chat template."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError

# A prompt that is taken as it is, or the messages of a chat.
Text = str | Sequence[Mapping[str, str]]

# A hundred thousand prompts take about a minute, a cold import several.
_TIMEOUT_S = 1800


class TextRefusedError(Exception):
    """The model's tokenizer or chat template does not take a text.

    Attributes:
        place: Which one, from 0.
        problem: What it said.
    """

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(place, problem)
        self.place, self.problem = place, problem


def token_ids(model: Path, texts: Sequence[Text], settings: EngineSettings) -> list[list[int]]:
    """Returns the token ids of each text, as a server of the model would make them.

    A prompt gets the special tokens that the tokenizer puts around any text; a chat is written out
    by the chat template, up to where the assistant's answer begins. Done in the engine's
    interpreter: it has the tokenizers that the model needs, and need not be ours.

    Args:
        model: Folder of the model.
        texts: Prompts and chats.
        settings: The engine's, for its interpreter.

    Raises:
        TextRefusedError: A text is refused.
        LeverbenchError: There is no tokenizer that could be used.
    """
    command = [*settings.wrapper, settings.python or sys.executable]
    # As text, since a container does not see this file.
    script = Path(__file__).with_name("tokenizer_script.py").read_text(encoding="utf-8")
    question = json.dumps({"model": str(model.resolve()), "texts": texts})
    try:
        done = subprocess.run(
            [*command, "-c", script],
            input=question,
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            timeout=_TIMEOUT_S,
        )
        said = done.stdout.splitlines()
        problem = None
        if done.returncode != 0 or not said:
            problem = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        raise LeverbenchError(
            f"{' '.join(command)} cannot use the model's tokenizer: {problem}",
            where=str(model),
            cure=(
                "It needs transformers and the tokenizer's files; or give input_ids in place of"
                " text."
            ),
        )
    answer = json.loads(said[-1])
    if "refused" in answer:
        raise TextRefusedError(answer["refused"], answer["problem"])
    ids: list[list[int]] = answer["ids"]
    return ids
