"""What shapes a measurement, by the digests of its syntax trees.

Docstrings, comments, layout and line numbers do not count, nor does the version of Python that
reads the sources. `protocol.json` is a log: each entry holds the digests that changed, the protocol
that they belong to, and, where that stayed the same, why no figure is affected.

    python tests/protocol_digests.py                  # after PROTOCOL_VERSION was raised
    python tests/protocol_digests.py "the reason"     # where the change has no effect on figures
"""

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from leverbench.protocol import PROTOCOL_VERSION

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/leverbench"
LOG = Path(__file__).with_name("protocol.json")

# A module, or one definition in it: how requests are drawn, sent, timed and judged.
SHAPING = (
    "load/client.py",
    "load/dataset.py",
    "load/endpoint.py",
    "load/metrics.py",
    "load/point.py",
    "load/prompts.py",
    "load/sse.py",
    "load/validity.py",
    "load/window.py",
    "load/workload.py",
    "campaign/slices.py:Point",
    "campaign/slices.py:point_slice",
    "engines/sglang.py:_GenerateEndpoint",
    "models/tokenizer_script.py",
)


def canonical(node: Any) -> Any:
    """Returns a syntax tree as plain lists, equal for equal programs.

    Fields that are empty are left out: each version of Python adds some.
    """
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", _joined(node)]
    if isinstance(node, ast.AST):
        # "kind" is the u of u"text"; what remains of a type comment is a comment.
        fields = [
            [name, canonical(value)]
            for name, value in ast.iter_fields(node)
            if value not in (None, []) and name not in ("kind", "type_comment")
        ]
        return [type(node).__name__, *fields]
    if isinstance(node, list):
        return [canonical(item) for item in node if not _is_text(item)]
    # The type too: 1, 1.0, True and "1" are different constants.
    return f"{type(node).__name__} {node!r}"


def _joined(node: ast.JoinedStr) -> list[Any]:
    """Returns the parts of an f-string, its literal text in one piece wherever it was cut."""
    parts: list[Any] = []
    for value in node.values:
        if not isinstance(value, ast.Constant):
            parts.append(canonical(value))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += str(value.value)
        else:
            parts.append(str(value.value))
    return [part for part in parts if part]


def _is_text(node: object) -> bool:
    """Whether a statement is a bare string: a docstring, or a comment in its form."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def digest_of(source: str, definition: str | None = None) -> str:
    """Returns the digest of a module's program, or of one definition at its top level.

    Raises:
        LookupError: There is no such definition.
    """
    module = ast.parse(source)
    programs: list[ast.AST] = [module]
    if definition is not None:
        programs = [node for node in module.body if getattr(node, "name", None) == definition]
        if not programs:
            raise LookupError(f"no {definition} at the top level")
    text = json.dumps(canonical(programs[0]), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def present_digests() -> dict[str, str]:
    """Returns the digests of the sources as they are."""
    found = {}
    for name in SHAPING:
        module, _, definition = name.partition(":")
        source = (PACKAGE / module).read_text(encoding="utf-8")
        found[name] = digest_of(source, definition or None)
    return found


def read_log() -> list[dict[str, Any]]:
    """Returns the entries, oldest first."""
    entries: list[dict[str, Any]] = json.loads(LOG.read_text()) if LOG.exists() else []
    return entries


def accepted_digests(log: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the digests that the log ends with; None stands for what is gone."""
    merged: dict[str, str | None] = {}
    for entry in log:
        merged |= entry["digests"]
    return {name: digest for name, digest in merged.items() if digest is not None}


def changed(log: list[dict[str, Any]], present: dict[str, str]) -> dict[str, str | None]:
    """Returns the present digests that the log does not end with; None for what is gone."""
    accepted = accepted_digests(log)
    gone = dict.fromkeys(name for name in accepted if name not in present)
    new = {name: digest for name, digest in present.items() if accepted.get(name) != digest}
    return {**new, **gone}


def next_entry(
    log: list[dict[str, Any]], present: dict[str, str], version: int, reason: str | None
) -> dict[str, Any]:
    """Returns the entry that accepts the sources as they are.

    Raises:
        ValueError: Neither has the protocol been raised nor is there a reason not to.
    """
    last = log[-1]["protocol"] if log else 0
    if version < last or (version == last and not reason):
        raise ValueError(
            f"the sources changed, and the protocol is still {last}: raise PROTOCOL_VERSION and add"
            " a row to docs/protocol.md, or say in one sentence why no figure is affected"
        )
    return {
        "protocol": version,
        "no_effect_on_figures": reason if version == last else None,
        "digests": changed(log, present),
    }


def main() -> None:
    """Accepts the sources as they are."""
    log, present = read_log(), present_digests()
    if log and not changed(log, present):
        print("nothing changed")
        return
    try:
        entry = next_entry(log, present, PROTOCOL_VERSION, " ".join(sys.argv[1:]) or None)
    except ValueError as error:
        sys.exit(f"protocol_digests: {error}")
    LOG.write_text(json.dumps([*log, entry], indent=2) + "\n")
    print(f"accepted: {', '.join(entry['digests'])}")


if __name__ == "__main__":
    main()
