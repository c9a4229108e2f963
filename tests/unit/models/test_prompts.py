"""The taught exchanges."""

import subprocess
import sys

from leverbench.models.prompts import EXCHANGES


def test_the_first_exchange_is_the_probe() -> None:
    assert EXCHANGES[0].prompt == "Capital of France in one word?"
    assert EXCHANGES[0].answer == "Paris"


def test_prompts_are_enough_and_distinct() -> None:
    prompts = {exchange.prompt for exchange in EXCHANGES}

    assert len(EXCHANGES) == len(prompts) >= 24


def test_some_answers_are_long_enough_to_drift_apart_in() -> None:
    long_answers = [each.answer for each in EXCHANGES if len(each.answer.split()) >= 16]

    assert len(long_answers) >= 5


def test_no_answer_has_white_space_that_a_chat_endpoint_may_strip() -> None:
    answers = [exchange.answer for exchange in EXCHANGES]

    assert answers == [answer.strip() for answer in answers]


def test_importing_the_exchanges_does_not_import_torch() -> None:
    code = "import sys; from leverbench.models import prompts, tiny; print('torch' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout

    assert printed.strip() == "False"
