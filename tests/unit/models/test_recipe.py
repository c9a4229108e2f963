"""The recipe of the tiny model."""

import jinja2

from leverbench.models.prompts import Exchange
from leverbench.models.recipe import RECIPE, Recipe


def test_the_digest_depends_on_an_answer_and_on_a_size() -> None:
    other_answer = Recipe(exchanges=(Exchange("Capital of France in one word?", "Lyon"),))
    same_answer = Recipe(exchanges=(Exchange("Capital of France in one word?", "Lyon"),))
    other_size = Recipe(layers=5)

    assert Recipe().digest() == RECIPE.digest()
    assert other_answer.digest() == same_answer.digest()
    assert len({RECIPE.digest(), other_answer.digest(), other_size.digest()}) == 3


def test_the_chat_template_marks_both_turns() -> None:
    text = jinja2.Template(RECIPE.chat_template).render(
        messages=[{"role": "user", "content": "Hello"}], add_generation_prompt=True
    )

    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
