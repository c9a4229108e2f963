"""Stands before an engine's command line: in place of its server it starts the scripted one.

For campaigns under test: ``engine: {wrapper: [PYTHON, tests/scripted_launch.py]}``. Commands that
launch no server, such as questions to the engine's own parser, are run as they are. The server's
script comes in ``SCRIPT`` (fields of `Script` as JSON); the word ``SCRIPT_END`` makes it end with
a message instead, always or where ``mem-fraction-static`` is above ``SCRIPT_MEMORY``. The file that
``SCRIPT_LAUNCHES`` names becomes longer with each launch: its length is the launch's number.
Plugins are loaded as the engine loads them, and can hook what a module of the tests has.
"""

import asyncio
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


class _HookRegistry:
    """As much of the engine's registry as a plugin of ours uses; a hook is applied at once."""

    @staticmethod
    def register(target: str, hook: Callable[..., Any], kind: str) -> None:
        assert kind == "around"
        module, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(module)
        setattr(owner, name, partial(hook, getattr(owner, name)))


def _load_plugins() -> None:
    """Does as the engine does: what a plugin raises is logged, and the server goes on."""
    stand_in = ModuleType("sglang.srt.plugins.hook_registry")
    stand_in.HookRegistry = _HookRegistry  # type: ignore[attr-defined]
    stand_in.HookType = SimpleNamespace(AROUND="around")  # type: ignore[attr-defined]
    sys.modules[stand_in.__name__] = stand_in
    for plugin in entry_points(group="sglang.srt.plugins"):
        if plugin.name in os.environ["SGLANG_PLUGINS"].split(","):
            try:
                plugin.load()()
            except Exception:
                print(f"[2026-11-30 12:00:00] Failed to execute general plugin: {plugin.name}")
                print(traceback.format_exc(), end="", flush=True)


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
    _load_plugins()
    effective = {name.replace("-", "_"): _value(words) for name, words in flags.items()}
    asyncio.run(serve_until_told(_script(), int(flags["port"][0]), effective))


if __name__ == "__main__":
    main()
