"""Campaign files for tests: a head of one kind, and variants as text."""

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import Campaign
from leverbench.errors import LeverbenchError

HEAD = """\
campaign: small
model: {path: models/m}
engine: {name: sglang, args: {dtype: bfloat16, device: cpu}, env: {OMP_NUM_THREADS: 1}}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
"""
"""Four lines: `variants:` stands in the fifth, the first variant in the sixth."""


def family(engine: str, key: str) -> str:
    """The levers of an engine that knows one family of arguments and one of variables."""
    assert engine == "sglang"
    if key.startswith("args.speculative-"):
        return "speculation"
    return "nccl" if key.startswith("env.NCCL_") else key


def load(tmp_path: Path, variants: str = "a: {}\n", head: str = HEAD, **overrides: Any) -> Campaign:
    """Reads a campaign file of this head and these variants."""
    path = tmp_path / "c.yaml"
    path.write_text(head + "variants:\n" + indent(dedent(variants), "  "))
    return load_campaign(path, overrides, family)


def refusal(tmp_path: Path, variants: str = "a: {}\n", head: str = HEAD, **overrides: Any) -> str:
    """Returns the message that such a file is refused with: one line."""
    with pytest.raises(LeverbenchError) as caught:
        load(tmp_path, variants, head, **overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path}/")
