"""Reading campaign files: inheritance, levers, and one message for each mistake."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from leverbench.campaign.file import load_campaign
from leverbench.errors import LeverbenchError


def family(engine: str, key: str) -> str:
    assert engine == "sglang"
    return "speculation" if key.startswith("args.speculative-") else key


HEAD = """\
campaign: small
model: {path: models/m}
engine: {name: sglang, args: {dtype: bfloat16, device: cpu}, env: {OMP_NUM_THREADS: 1}}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
"""


def load(tmp_path: Path, variants: str, head: str = HEAD, **overrides: int):
    path = tmp_path / "c.yaml"
    path.write_text(head + "variants:\n" + indent(dedent(variants), "  "))
    return load_campaign(path, overrides, family)


def refusal(tmp_path: Path, variants: str, head: str = HEAD, **overrides: int) -> str:
    with pytest.raises(LeverbenchError) as caught:
        load(tmp_path, variants, head, **overrides)
    return str(caught.value)


def test_defaults(tmp_path):
    campaign = load(tmp_path, "  baseline: {}\n")

    assert campaign.ladder == {1: 8, 8: 32, 16: 48}
    assert campaign.variants["baseline"].sessions == 3
    assert campaign.probe.expect == "Paris"
    assert campaign.devices == ("cpu",)


def test_a_variant_inherits_and_null_removes(tmp_path):
    campaign = load(
        tmp_path,
        """\
          a: {}
          b: {from: a, args: {dtype: float32}}
          c: {from: b, env: {OMP_NUM_THREADS: null}}
        """,
    )

    c = campaign.variants["c"]
    assert c.engine.args == {"dtype": "float32", "device": "cpu"}
    assert c.engine.env == {}
    assert c.delta == {"env.OMP_NUM_THREADS": ("1", None)}
    assert campaign.variants["b"].delta == {"args.dtype": ("bfloat16", "float32")}


def test_keys_of_one_family_are_one_lever(tmp_path):
    campaign = load(
        tmp_path,
        """\
          a: {}
          b: {from: a, args: {speculative-algorithm: EAGLE, speculative-num-steps: 1}}
        """,
    )

    assert campaign.variants["b"].levers == ("speculation",)
    assert not campaign.variants["b"].confounded


def test_the_order_in_the_file_does_not_matter(tmp_path):
    campaign = load(tmp_path, "  b: {from: a, args: {dtype: float32}}\n  a: {}\n")

    assert list(campaign.variants) == ["b", "a"]
    assert campaign.variants["b"].parent == "a"


def test_declared_levers_are_confounded(tmp_path):
    campaign = load(
        tmp_path,
        """\
          a: {}
          b: {from: a, levers: [one, two], args: {dtype: float32}, env: {X: 1}}
        """,
    )

    assert campaign.variants["b"].levers == ("one", "two")
    assert campaign.variants["b"].confounded


def test_overridden_sessions_win_over_a_variant_s_own(tmp_path):
    campaign = load(tmp_path, "  a: {sessions: 7}\n", sessions=2)

    assert campaign.variants["a"].sessions == 2
    assert campaign.overrides == {"sessions": 2}


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("  a: {fron: b}\n", "c.yaml:6: unknown key 'fron'. Known here: from, lever"),
        ("  a: {from: b}\n  b: {from: a}\n", "a cycle in from: a -> b -> a"),
        ("  a: {from: a}\n", "a cycle in from: a -> a"),
        ("  a: {from: z}\n", "from: z is not a variant. Variants are: a."),
        (
            "  a: {}\n  b: {from: a, args: {dtype: float32}, env: {X: 1}}\n",
            "c.yaml:7: 2 levers in one delta: args.dtype, env.X",
        ),
        ("  a: {}\n  b: {from: a}\n", "nothing differs from a"),
        ("  a: {}\n  b: {from: a, control: a-a, env: {X: 1}}\n", "a control differs from a"),
        ("  a: {lever: x}\n", "without from: there is nothing to differ from"),
        ("  a: {args: {flag: false}}\n", "args.flag: false is no way to leave a flag out"),
        ("  launches: {}\n", "'launches' is a reserved name"),
        ("  A: {}\n", "'A' does not match"),
        ("  a: {}\n  a: {}\n", "c.yaml:7: the key 'a' stands twice (first in line 6)"),
        ("  a: {sessions: 0}\n", "c.yaml:6: variants.a.sessions: 0 is less than the minimum of 1"),
        ("  a: {}}\n", "c.yaml:6: not YAML"),
        ("  a: {env: {X: [1]}}\n", "variants.a.env.X: [1] is not of type"),
        ('  "a\\n": {}\n', "does not match"),
        (f"  {'a' * 65}: {{}}\n", "is too long"),
        ("  a: {args: {x: .nan}}\n", "c.yaml:6: variants.a.args.x: nan is no finite number"),
        ("  a: {args: {x: {y: .inf}}}\n", "variants.a.args.x.y: inf is no finite number"),
        ("  a: {args: {x: 2024-01-01}}\n", "variants.a.args.x: a date cannot be recorded"),
        ("  a: {args: {x: !!set {y}}}\n", "a set cannot be recorded"),
        ('  a: {env: {X: "a\\0b"}}\n', "a character that no command line can hold"),
        ("  1: {}\n  0x1: {}\n", "the key '0x1' stands twice (first in line 6)"),
        ("  a: &a {from: *a}\n", "not plain YAML"),
        ("  a: !!int abc\n", "not plain YAML"),
        ("  a:\n", "c.yaml:6: variants.a is empty"),
        ("  a: {env: {HF_TOKEN: abc}}\n", "env.HF_TOKEN is a secret"),
        ("  a: {args: {api-key: abc}}\n", "args.api-key is a secret"),
    ],
)
def test_a_mistake_in_a_variant_is_one_message(tmp_path, variants, said):
    message = refusal(tmp_path, variants)

    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (HEAD + "extra: 1\n", "c.yaml:5: unknown key 'extra'"),
        (HEAD.replace("campaign: small", "campaign: tuning"), "'tuning' is a reserved name"),
        (HEAD.replace("campaign: small", "campaign: 'a/b'"), "'a/b' does not match"),
        (HEAD + "ladder: {0: 1}\n", "'0' does not match"),
        (HEAD + "ladder: {1: 4, 1.0: 8}\n", "the key '1.0' stands twice"),
        (HEAD + "ladder: {1000000: 1}\n", "'1000000' does not match"),
        (HEAD + "ladder: {8: x}\n", "ladder.8: 'x' is not of type 'integer'"),
        (HEAD.replace("random-ids", "sharegpt"), "workloads.random.dataset: 'sharegpt'"),
        ("campaign: x\n", "'model' is a required property"),
        ("- 1\n", "not YAML"),
        (
            HEAD.replace("{path: models/m}", "{path: /data/m, prepare: tiny}"),
            "c.yaml:2: a model that the workflow makes cannot lie in /data/m",
        ),
    ],
)
def test_a_mistake_in_the_head_is_one_message(tmp_path, head, said):
    assert said in refusal(tmp_path, "  a: {}\n", head)


def test_a_missing_file_names_the_way_to_choose_one(tmp_path):
    with pytest.raises(LeverbenchError, match="--config campaign=FILE"):
        load_campaign(tmp_path / "none.yaml", {}, family)


@pytest.mark.parametrize("content", [b"", b"[]", b"text", b"\xff\xfe\x00"])
def test_a_file_that_is_no_campaign_is_one_message(tmp_path, content):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(LeverbenchError):
        load_campaign(path, {}, family)


def test_numbers_are_names_and_whole_floats_are_counts(tmp_path):
    head = HEAD.replace("random:", "256:") + "ladder: {1: 4.0}\n"
    campaign = load(tmp_path, "  1: {args: {x: 2.0}}\n", head)

    assert list(campaign.variants) == ["1"]
    assert list(campaign.workloads) == ["256"]
    assert campaign.ladder == {1: 4}
    assert isinstance(campaign.ladder[1], int)
    # An engine's own arguments stay as they are written.
    assert campaign.variants["1"].engine.args["x"] == 2.0
    assert isinstance(campaign.variants["1"].engine.args["x"], float)


def test_requests_outside_the_ladder_are_interpolated(tmp_path):
    campaign = load(tmp_path, "  a: {}\n")

    # Between C=1 (8 requests) and C=8 (32): 8 + 3/7 of 24.
    assert campaign.requests(4) == 18
    assert campaign.requests(8) == 32
    # Beyond C=16 (48 requests): in proportion.
    assert campaign.requests(32) == 96
    head = HEAD + "ladder: {4: 4}\n"
    # Never fewer than twice the concurrency.
    assert load(tmp_path, "  a: {}\n", head).requests(8) == 16


def test_what_is_no_file_is_one_message(tmp_path):
    with pytest.raises(LeverbenchError, match="not a file"):
        load_campaign(Path("/dev/null"), {}, family)
    with pytest.raises(LeverbenchError, match="not a file"):
        load_campaign(tmp_path, {}, family)
