"""Runs in the engine's interpreter: asks SGLang's own parser about command lines.

Standard library and the engine only. Standard input: a list of ``{"argv": [...], "flags": {name:
[...]}}``. The last line of standard output: ``{"options": [...], "answers": [{"error": message or
null, "fields": {name: [field, value]}}, ...]}``.
"""

import argparse
import json
import sys
from typing import Any, NoReturn


class _Refused(Exception):
    """The parser refuses the command line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def main() -> None:
    """Answers the questions on standard input."""
    questions = json.load(sys.stdin)
    from sglang.srt.server_args import ServerArgs

    parser = _Parser(prog="server")
    ServerArgs.add_cli_args(parser)
    # Without defaults, what is left after parsing one flag is that flag's own field.
    bare = _Parser(prog="server", argument_default=argparse.SUPPRESS)
    ServerArgs.add_cli_args(bare)
    for action in bare._actions:
        action.default = argparse.SUPPRESS
        action.required = False
    answers = []
    for question in questions:
        answer: dict[str, Any] = {"error": None, "fields": {}}
        try:
            parser.parse_args(question["argv"])
            for name, words in question["flags"].items():
                for field, value in vars(bare.parse_args(words)).items():
                    answer["fields"][name] = [field, value]
        except _Refused as refusal:
            answer["error"] = str(refusal)
        answers.append(answer)
    options = sorted(option for action in parser._actions for option in action.option_strings)
    print(json.dumps({"options": options, "answers": answers}, default=str))


if __name__ == "__main__":
    main()
