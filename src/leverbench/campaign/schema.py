"""The schemas of files that people write, and their errors as messages."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from leverbench.campaign.document import Document
from leverbench.errors import LeverbenchError

# The package is installed from its checkout, where the user reads the schema.
SCHEMAS = Path(__file__).parents[3] / "workflow" / "schemas"


# Where a file of each kind can be seen.
_EXAMPLES = {"campaign": "config/campaign.yaml", "kernel": "docs/kernels.md"}


@cache
def schema(name: str = "campaign") -> dict[str, Any]:
    """Returns the schema of a campaign file, or another of that name."""
    # libyaml's reader, where PyYAML was built with it: this is read in every job's process.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (SCHEMAS / f"{name}.schema.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, loader)
    return content


def check_schema(document: Document, name: str = "campaign") -> None:
    """Raises `LeverbenchError` for the worst thing that the schema of a name has against a file."""
    error = best_match(Draft202012Validator(schema(name)).iter_errors(document.data))
    if error is not None:
        raise _message(document, error, _EXAMPLES[name])


def _message(document: Document, error: ValidationError, example: str) -> LeverbenchError:
    keys = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        return LeverbenchError(
            f"unknown key {unknown!r}",
            where=document.where((*keys, unknown)),
            cure=f"Known here: {', '.join(known)}.",
        )
    if error.parent is not None and error.parent.validator == "propertyNames":
        keys = (*keys, str(error.instance))
    where, name = document.where(keys), ".".join(map(str, keys))
    if error.validator == "type" and error.validator_value == "object" and error.instance is None:
        cure = f"See {example}."
        if len(keys) == 2 and keys[0] == "variants":
            cure = "Write {} for a variant that changes nothing."
        return LeverbenchError(f"{name or 'the file'} is empty", where=where, cure=cure)
    if error.validator == "uniqueItems":
        twice = next(item for item in error.instance if error.instance.count(item) > 1)
        what = f"{name}: {twice} stands there twice"
        return LeverbenchError(what, where=where, cure="Name it once.")
    description = error.schema.get("description") if isinstance(error.schema, dict) else None
    what = error.message
    if error.validator == "pattern" and keys[-1:] in (("attach",), ("url",)):
        # Not quoted: what stands there may hold a password.
        what = "that is no address that can be used here"
    return LeverbenchError(
        f"{name}: {what}" if name else what,
        where=where,
        cure=f"It is: {description}" if description else None,
    )
