"""Variants: inheritance, one lever each, sweeps, crosses, and one message for each mistake."""

import pytest
from unit.campaign.campaign_files import HEAD, load, refusal


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


def test_a_root_has_no_delta_and_no_lever(tmp_path):
    root = load(tmp_path, "a: {args: {dtype: float32}}\n").variants["a"]

    assert (root.parent, root.levers, root.delta) == (None, (), {})


def test_an_interpreter_a_wrapper_and_tuned_files_are_inherited_and_taken_away(tmp_path):
    head = HEAD.replace("{name: sglang,", "{name: sglang, wrapper: [box, run], python: /p,")
    campaign = load(
        tmp_path,
        """\
        a: {}
        b: {from: a, lever: gemm, tuned: [w8a8-block-fp8]}
        c: {from: b, args: {dtype: float32}}
        d: {from: c, lever: gemm, tuned: []}
        e: {from: a, engine: {wrapper: []}}
        """,
        head,
    )

    c, d, e = (campaign.variants[name] for name in "cde")
    assert c.engine.tuned == ("w8a8-block-fp8",)
    assert c.engine.wrapper == ("box", "run")
    assert c.delta == {"args.dtype": ("bfloat16", "float32")}
    assert d.delta == {"tuned.w8a8-block-fp8": (True, None)}
    assert d.engine.tuned == ()
    assert e.delta == {"wrapper": (["box", "run"], None)}
    assert (e.engine.wrapper, e.engine.python) == ((), "/p")


def test_what_a_lever_touches_is_not_inherited_and_a_cross_has_its_second_s(tmp_path):
    campaign = load(
        tmp_path,
        """\
        a: {}
        b: {from: a, touches: [attention, kv], args: {dtype: float32}}
        c: {from: b, env: {OMP_NUM_THREADS: 2}}
        d: {from: a, touches: [gemm], env: {OMP_NUM_THREADS: 4}}
        e: {cross: [b, d]}
        """,
    )

    touches = {name: variant.touches for name, variant in campaign.variants.items()}
    assert touches == {"a": (), "b": ("attention", "kv"), "c": (), "d": ("gemm",), "e": ("gemm",)}
    assert "touches: without from:" in refusal(tmp_path, "a: {touches: [gemm]}\n")
    assert "'gem' is not one of" in refusal(
        tmp_path, "a: {}\nb: {from: a, touches: [gem], args: {dtype: float32}}\n"
    )


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
    campaign = load(tmp_path, "b: {from: a, args: {dtype: float32}}\na: {}\n")

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


def test_a_control_has_an_empty_delta(tmp_path):
    again = load(tmp_path, "a: {}\nb: {from: a, control: a-a}\n").variants["b"]

    assert (again.control, again.levers, again.delta) == ("a-a", (), {})


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("a: {fron: b}\n", "c.yaml:6: unknown key 'fron'. Known here: from, lever"),
        ("a: {from: b}\nb: {from: a}\n", "c.yaml:6: a cycle in from: a -> b -> a"),
        ("a: {from: a}\n", "c.yaml:6: a cycle in from: a -> a"),
        ("a:\n  from: z\n", "c.yaml:7: from: z is not a variant. Variants are: a."),
        (
            "a: {}\nb: {from: a, args: {dtype: float32}, env: {X: 1}}\n",
            "c.yaml:7: 2 levers in one delta: args.dtype, env.X",
        ),
        ("a: {}\nb: {from: a}\n", "c.yaml:7: nothing differs from a"),
        ("a: {}\nb: {from: a, control: a-a, env: {X: 1}}\n", "a control differs from a in env.X"),
        ("a: {lever: x}\n", "c.yaml:6: lever: without from: there is nothing to differ from"),
        ("a:\n  args:\n    f: false\n", "c.yaml:8: args.f: false is no way to leave a flag out"),
        ("launches: {}\n", "c.yaml:6: 'launches' is a reserved name"),
        ("A: {}\n", "'A' does not match"),
        ("a: {}\na: {}\n", "c.yaml:7: the key 'a' stands twice (first in line 6)"),
        ("a: {sessions: 0}\n", "c.yaml:6: variants.a.sessions: 0 is less than the minimum of 1"),
        ("a: {}}\n", "c.yaml:6: not YAML"),
        ("a: {env: {X: [1]}}\n", "variants.a.env.X: [1] is not of type"),
        ('"a\\n": {}\n', "does not match"),
        (f"{'a' * 65}: {{}}\n", "is too long"),
        ("a: {args: {x: .nan}}\n", "c.yaml:6: variants.a.args.x: nan is no finite number"),
        ("a: {args: {x: {y: .inf}}}\n", "variants.a.args.x.y: inf is no finite number"),
        ("a: {args: {x: 2024-01-01}}\n", "variants.a.args.x: a date cannot be recorded"),
        ("a: {args: {x: !!set {y}}}\n", "a set cannot be recorded"),
        ('a: {env: {X: "a\\0b"}}\n', "a character that no command line can hold"),
        ("1: {}\n0x1: {}\n", "the key '0x1' stands twice (first in line 6)"),
        ("a: &a {from: *a}\n", "not plain YAML"),
        ("a: !!int abc\n", "not plain YAML"),
        ("a:\n", "c.yaml:6: variants.a is empty. Write {} for a variant that changes nothing."),
        ("a:\n  env:\n", "c.yaml:7: variants.a.env is empty. See config/campaign.yaml."),
        ("a:\n  env: {HF_TOKEN: abc}\n", "c.yaml:7: env.HF_TOKEN is a secret"),
        ("a: {args: {api-key: abc}}\n", "c.yaml:6: args.api-key is a secret"),
        (
            "a: {engine: {wrapper: [box, --env, HF_TOKEN=abc]}}\n",
            "c.yaml:6: wrapper holds a secret",
        ),
        ("a: {tuned: [a/b]}\n", "variants.a.tuned.0: 'a/b' does not match"),
        (
            "a: {}\nb: {from: a, tuned: [k, l]}\n",
            "2 levers in one delta: k, l. Give each its own variant",
        ),
    ],
)
def test_a_mistake_in_a_variant_is_one_message(tmp_path, variants, said):
    message = refusal(tmp_path, variants)

    assert said in message
    assert "abc" not in message or "!!int" in variants


# --- sweep


def test_a_sweep_stands_for_a_variant_of_each_value(tmp_path):
    campaign = load(
        tmp_path,
        """\
        a: {args: {steps: 1}}
        s: {from: a, lever: steps, sessions: 5, sweep: {steps: [1, 2, 4]}}
        z: {from: s-2, args: {dtype: float32}}
        """,
    )

    # 1 is the parent's own, and left out.
    assert list(campaign.variants) == ["a", "s-2", "s-4", "z"]
    s2, s4, z = (campaign.variants[name] for name in ("s-2", "s-4", "z"))
    assert (s2.parent, s2.levers, s2.sessions) == ("a", ("steps",), 5)
    assert s2.delta == {"args.steps": (1, 2)}
    assert s4.delta == {"args.steps": (1, 4)}
    assert z.engine.args["steps"] == 2


def test_a_sweep_of_a_variable(tmp_path):
    campaign = load(
        tmp_path,
        "a: {}\nproto: {from: a, sweep: {env.NCCL_PROTO: [LL, Simple, LL128, null]}}\n",
    )

    # The parent has none, so that null is its own value.
    assert list(campaign.variants) == ["a", "proto-ll", "proto-simple", "proto-ll128"]
    assert campaign.variants["proto-ll"].engine.env["NCCL_PROTO"] == "LL"
    assert campaign.variants["proto-ll"].levers == ("nccl",)


def test_values_of_each_kind_give_names_and_stay_what_they_are(tmp_path):
    campaign = load(
        tmp_path,
        """\
        a: {args: {x: 7}}
        s: {from: a, sweep: {x: [true, null, 0.5, 1.0, [1, 2], {Size: 4}, "Two words"]}}
        """,
    )

    swept = {name: v.engine.args.get("x") for name, v in campaign.variants.items()}
    assert swept == {
        "a": 7,
        "s-true": True,
        "s-null": None,
        "s-0-5": 0.5,
        "s-1-0": 1.0,
        "s-1-2": [1, 2],
        "s-size-4": {"Size": 4},
        "s-two-words": "Two words",
    }
    assert isinstance(swept["s-1-0"], float)


def test_other_settings_of_a_sweep_are_those_of_each_member(tmp_path):
    campaign = load(
        tmp_path,
        """\
        a: {}
        s:
          from: a
          args: {speculative-algorithm: EAGLE}
          sweep: {speculative-num-steps: [1, 3]}
        """,
    )

    assert campaign.variants["s-3"].delta == {
        "args.speculative-algorithm": (None, "EAGLE"),
        "args.speculative-num-steps": (None, 3),
    }
    assert campaign.variants["s-3"].levers == ("speculation",)


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("s: {sweep: {x: [1]}}\n", "c.yaml:6: s sweeps without from:"),
        ("a: {}\ns: {from: a, sweep: {x: 1}}\n", "variants.s.sweep.x: 1 is not of type 'array'"),
        ("a: {}\ns: {from: a, sweep: {x: []}}\n", "variants.s.sweep.x: []"),
        ("a: {}\ns: {from: a, sweep: {x: [1], y: [1]}}\n", "variants.s.sweep"),
        ("a: {}\ns: {from: a, sweep: {env.1X: [1]}}\n", "'env.1X' does not match"),
        ("a: {}\ns: {from: a, sweep: {X: [1]}}\n", "'X' does not match"),
        (
            "a: {}\ns: {from: a, sweep: {x: [1, -1]}}\n",
            "c.yaml:7: s: the value -1 gives no name of its own",
        ),
        ("a: {}\ns: {from: a, sweep: {x: [LL, ll]}}\n", 's: the value "ll" gives no name'),
        ("a: {}\ns: {from: a, sweep: {x: ['']}}\n", 's: the value "" gives no name'),
        ("a: {}\ns: {from: a, sweep: {x: [false]}}\n", "c.yaml:7: args.x: false is no way"),
        ("a: {}\ns: {from: a, sweep: {env.X: [true]}}\n", "s: env.X cannot be true"),
        ("a: {}\ns: {from: a, sweep: {env.X: [[1]]}}\n", "s: env.X cannot be [1]"),
        ("a: {}\ns: {from: a, sweep: {env.MY_TOKEN: [abc]}}\n", "env.MY_TOKEN is a secret"),
        (
            "a: {}\ns: {from: a, sweep: {dtype: [bfloat16]}}\n",
            "c.yaml:7: s sweeps no value that its parent does not have",
        ),
        (
            "a: {}\ns: {from: a, sweep: {x: [2, 4]}}\nb:\n  from: s\n  env: {X: 1}\n",
            "c.yaml:9: from: s is several variants. Name one of its own: s-2, s-4.",
        ),
        (
            "a: {args: {x: 1}}\ns: {from: a, sweep: {x: [1, 2]}}\nb: {from: s-1, env: {X: 1}}\n",
            "c.yaml:8: from: s-1 is left out of its sweep, whose parent has that value already."
            " Say from: a.",
        ),
        (
            "a: {}\ns: {from: a, sweep: {x: [2]}}\ns-2: {from: a, args: {y: 1}}\n",
            "c.yaml:8: s-2 is made by s and by s-2. Rename one of them.",
        ),
        (
            f"a: {{}}\ns: {{from: a, sweep: {{x: [{'y' * 63}]}}}}\n",
            "is too long a name for a variant",
        ),
        ("a: {}\ns: {from: a, env: {X: 1}, sweep: {y: [2]}}\n", "2 levers in one delta"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_message(tmp_path, variants, said):
    assert said in refusal(tmp_path, variants)


# --- cross

LEVERS = """\
a: {}
mtp: {from: a, lever: mtp, args: {speculative-algorithm: EAGLE, speculative-num-steps: 1}}
f32: {from: a, args: {dtype: float32}}
steps: {from: a, sweep: {steps: [2, 4]}}
proto: {from: a, lever: nccl, sweep: {env.NCCL_PROTO: [LL, Simple]}}
"""


def test_a_cross_is_the_first_one_with_the_change_of_the_second(tmp_path):
    campaign = load(tmp_path, f"{LEVERS}both: {{cross: [f32, mtp], sessions: 7}}\n")

    both = campaign.variants["both"]
    assert (both.parent, both.levers, both.cross) == ("f32", ("mtp",), ("f32", "mtp"))
    assert both.delta == {
        "args.speculative-algorithm": (None, "EAGLE"),
        "args.speculative-num-steps": (None, 1),
    }
    assert both.engine.args["dtype"] == "float32"
    assert both.engine.args["speculative-num-steps"] == 1
    assert (both.sessions, both.confounded) == (7, False)


def test_a_cross_of_a_sweep_is_one_of_each_value(tmp_path):
    campaign = load(
        tmp_path,
        f"{LEVERS}one: {{cross: [mtp, steps]}}\ntwo: {{cross: [steps, proto]}}\n",
    )

    one = {name: v.cross for name, v in campaign.variants.items() if name.startswith("one")}
    two = {name: v.cross for name, v in campaign.variants.items() if name.startswith("two")}
    assert one == {"one-2": ("mtp", "steps-2"), "one-4": ("mtp", "steps-4")}
    assert two == {
        "two-2-ll": ("steps-2", "proto-ll"),
        "two-2-simple": ("steps-2", "proto-simple"),
        "two-4-ll": ("steps-4", "proto-ll"),
        "two-4-simple": ("steps-4", "proto-simple"),
    }
    assert campaign.variants["one-4"].delta == {"args.steps": (None, 4)}
    assert campaign.variants["two-4-ll"].engine.args["steps"] == 4


def test_a_cross_with_the_parent_s_own_value_is_left_out(tmp_path):
    campaign = load(
        tmp_path,
        """\
        a: {args: {steps: 1}}
        s: {from: a, sweep: {steps: [1, 2]}}
        f: {from: a, args: {dtype: float32}}
        x: {cross: [f, s]}
        """,
    )

    assert list(campaign.variants) == ["a", "s-2", "f", "x-2"]


def test_a_cross_may_stand_below_the_second_one_s_parent(tmp_path):
    # `deep` descends from `f32`, which descends from `a`, the parent of `mtp`.
    campaign = load(
        tmp_path, f"{LEVERS}deep: {{from: f32, env: {{X: 1}}}}\nx: {{cross: [deep, mtp]}}\n"
    )

    assert campaign.variants["x"].engine.env == {"OMP_NUM_THREADS": "1", "X": "1"}


def test_a_cross_of_a_confounded_variant_is_confounded(tmp_path):
    campaign = load(
        tmp_path,
        LEVERS + "two: {from: a, levers: [p, q], env: {P: 1, Q: 1}}\nx: {cross: [f32, two]}\n",
    )

    assert campaign.variants["x"].levers == ("p", "q")
    assert campaign.variants["x"].confounded


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("x: {cross: [f32, mtp], from: a}\n", "c.yaml:11: cross and from exclude each other"),
        ("x: {cross: [f32, mtp], args: {y: 1}}\n", "cross and args exclude each other"),
        ("x: {cross: [f32, mtp], sweep: {y: [1]}}\n", "cross and sweep exclude each other"),
        ("x: {cross: [f32]}\n", "variants.x.cross: ['f32'] is too short"),
        ("x: {cross: [f32, f32]}\n", "variants.x.cross: f32 stands there twice. Name it once."),
        ("x: {cross: [f32, none]}\n", "cross: none is not a variant that can be crossed"),
        (
            "x: {cross: [f32, mtp]}\ny: {cross: [x, proto]}\n",
            "c.yaml:12: cross: x is not a variant that can be crossed. These can: a, mtp, f32",
        ),
        ("x: {cross: [x, mtp]}\n", "cross: x is not a variant that can be crossed"),
        ("x: {cross: [f32, a]}\n", "c.yaml:11: cross: a changes nothing"),
        ("again: {from: a, control: a-a}\nx: {cross: [f32, again]}\n", "again changes nothing"),
        (
            "f16: {from: a, args: {dtype: float16}}\nx: {cross: [f32, f16]}\n",
            "c.yaml:12: cross: f32 and f16 both set args.dtype",
        ),
        (
            "other: {env: {Y: 1}}\nfar: {from: other, args: {y: 1}}\nx: {cross: [f32, far]}\n",
            "c.yaml:13: cross: far descends from other, and f32 does not",
        ),
        (
            "x: {cross: [f32, steps]}\nb: {from: x, env: {X: 1}}\n",
            "from: x is several variants. Name one of its own: x-2, x-4.",
        ),
        ("analysis: {cross: [f32, mtp]}\n", "c.yaml:11: 'analysis' is a reserved name"),
    ],
)
def test_a_mistake_in_a_cross_is_one_message(tmp_path, more, said):
    assert said in refusal(tmp_path, LEVERS + more)


def test_a_setting_that_is_set_and_swept_is_refused(tmp_path):
    said = refusal(tmp_path, "a: {}\nb: {from: a, args: {n: 5}, sweep: {n: [2, 3]}}\n")

    assert "n is set and swept" in said


def test_a_cross_that_is_left_out_is_no_parent(tmp_path):
    said = refusal(
        tmp_path,
        """\
        a: {args: {n: 1}}
        b: {from: a, args: {dtype: float32}}
        s: {from: a, sweep: {n: [1, 2]}}
        x: {cross: [b, s]}
        y: {from: x-1, args: {z: 3}}
        """,
    )

    assert "from: x-1 is left out of its sweep" in said
    assert "Say from: b" in said
