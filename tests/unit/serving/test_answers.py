"""Answers to fixed prompts: how they are asked, and how far two of them agree."""

import pytest
from scripted_server import Script, serving

from leverbench.campaign.model import Agreement, Attach, Engine
from leverbench.engines import Address, api_of, get_engine
from leverbench.serving.answers import Shared, ask_again, ask_prompts, shared_start

PROMPTS = Agreement(("Count.", "Spell.", "Explain."), max_tokens=8)
COUNTED = {"Count.": "one two three", "Spell.": "a b", "Explain.": "It is so."}
NATIVE = get_engine("sglang")
OPENAI = api_of(Engine("sglang", None, None, (), {}, {}, attach=Attach("http://x", api="openai")))


def answer(text="", ids=None):
    return {"text": text, "token_ids": ids}


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], Shared(1.0, 4, "token ids")),
        # What follows the first difference does not count, equal or not.
        ([1, 2, 3, 4], [1, 9, 3, 4], Shared(0.25, 1, "token ids")),
        ([1, 2, 3, 4], [9, 2, 3, 4], Shared(0.0, 0, "token ids")),
        # Over the longer one, on whichever side it is.
        ([1, 2], [1, 2, 3, 4], Shared(0.5, 2, "token ids")),
        ([1, 2, 3, 4], [1, 2], Shared(0.5, 2, "token ids")),
        ([1, 2], [], Shared(0.0, 0, "token ids")),
        ([], [], None),
    ],
)
def test_the_common_start_is_what_agrees(one, other, shared):
    assert shared_start(answer(ids=one), answer(ids=other)) == shared


def test_words_stand_in_where_one_side_has_no_ids():
    one, other = answer("one two three", [1, 2, 3, 4]), answer("one  two\nfour")

    assert shared_start(one, other) == Shared(pytest.approx(2 / 3), 2, "words")
    assert shared_start(other, one) == shared_start(one, other)
    assert shared_start(answer(""), answer("")) is None


def test_all_prompts_are_asked_one_after_the_other():
    with serving(Script(answers=COUNTED)) as server:
        answers = ask_prompts(NATIVE, Address(server.url), PROMPTS, 10)

    assert {a["prompt"]: a["text"] for a in answers} == COUNTED
    assert [len(a["token_ids"]) for a in answers] == [4, 3, 4]
    assert {a["max_tokens"] for a in answers} == {8}
    assert all(a["seconds"] > 0 for a in answers)


def test_one_prompt_is_asked_again_and_compared_with_the_launch():
    with serving(Script(answers=COUNTED)) as server:
        at = Address(server.url)
        answers = ask_prompts(NATIVE, at, PROMPTS, 10)
        server.script = Script(answers={**COUNTED, "Count.": "one two four"})
        again = [ask_again(NATIVE, at, answers, place, 10) for place in (3, 4, 5)]

    assert [a["prompt"] for a in again] == ["Count.", "Spell.", "Explain."]
    assert [a["share"] for a in again] == [0.5, 1.0, 1.0]
    assert again[0]["text"] == "one two four"


def test_a_server_without_token_ids_is_compared_by_words():
    with serving(Script(answers=COUNTED)) as server:
        at = Address(server.url)
        answers = ask_prompts(OPENAI, at, PROMPTS, 10)
        again = ask_again(OPENAI, at, answers, 0, 10)

    assert [a["token_ids"] for a in answers] == [None] * 3
    assert (again["share"], again["unit"]) == (1.0, "words")


def test_nothing_is_asked_of_a_launch_that_was_asked_nothing():
    assert ask_again(NATIVE, Address("http://127.0.0.1:9"), [], 1, 1) is None
