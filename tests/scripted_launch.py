"""Stands before an engine's command line: in place of its server it starts the scripted one.

For campaigns under test: ``engine: {wrapper: [PYTHON, tests/scripted_launch.py]}``. Commands that
launch no server, such as questions to the engine's own parser, are run as they are. The server's
script comes in ``SCRIPT`` (fields of `Script` as JSON); the word ``SCRIPT_END`` makes it end with
a message instead, always or where ``mem-fraction-static`` is above ``SCRIPT_MEMORY``. The file that
``SCRIPT_LAUNCHES`` names becomes longer with each launch: its length is the launch's number.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from scripted_server import Script, serve_until_told


def _flags(words: list[str]) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            flags[name] = []
        else:
            flags[name].append(word)
    return flags


def _value(words: list[str]) -> Any:
    if len(words) != 1:
        return words or True
    try:
        return json.loads(words[0])
    except ValueError:
        return words[0]


def _script() -> Script:
    fields = json.loads(os.environ.get("SCRIPT", "{}"))
    misbehave = {int(number): how for number, how in fields.pop("misbehave", {}).items()}
    if path := os.environ.get("SCRIPT_LAUNCHES"):
        with Path(path).open("ab") as launches:
            launches.write(b".")
            fields["launch"] = launches.tell()
    return Script(**fields, misbehave=misbehave)


def main() -> None:
    """Runs the command that its own arguments are, or the scripted server in its place."""
    command = sys.argv[1:]
    if not any(word.endswith(".launch_server") for word in command):
        os.execv(command[0], command)
    flags = _flags(command[3:])
    memory, share = os.environ.get("SCRIPT_MEMORY"), flags.get("mem-fraction-static", ["0"])
    message = os.environ.get("SCRIPT_END")
    if message and (memory is None or float(share[0]) > float(memory)):
        sys.exit(os.path.expandvars(message))
    effective = {name.replace("-", "_"): _value(words) for name, words in flags.items()}
    asyncio.run(serve_until_told(_script(), int(flags["port"][0]), effective))


if __name__ == "__main__":
    main()
