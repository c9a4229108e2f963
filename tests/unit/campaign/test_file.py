"""Reading campaign files: defaults, overrides, and one message for each mistake."""

import hashlib
import json
from pathlib import Path

import pytest
from unit.campaign.campaign_files import HEAD, family, load, refusal

from leverbench.campaign.file import load_campaign
from leverbench.campaign.model import (
    Agreement,
    Attach,
    Profile,
    RecoveryStep,
    SharedPrefix,
    Workload,
)
from leverbench.errors import LeverbenchError

ATTACHED = """\
campaign: far
model: {token_ids: [10, 90]}
engine: {name: sglang}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
"""
SERVERS = """\
a: {attach: "http://127.0.0.1:30000/"}
b: {from: a, attach: {url: "http://127.0.0.1:30001", api: openai, key_variable: MY_API_KEY}}
"""


def test_defaults(tmp_path):
    campaign = load(tmp_path)

    assert campaign.ladder == {1: 8, 8: 32, 16: 48}
    assert campaign.variants["a"].sessions == 3
    assert campaign.probe.expect == "Paris"
    assert campaign.devices == ("cpu",)
    assert campaign.profile == Profile(concurrency=(16,), steps=5)
    assert campaign.recovery == {}
    assert campaign.agreement == Agreement()
    assert not campaign.attached
    assert campaign.execution == "jobs"
    assert campaign.remeasure == "none"
    assert campaign.on_environment_change == "error"


def test_the_prompts_whose_answers_are_compared(tmp_path):
    head = HEAD + "agreement: {prompts: [Say a., Say b.], tolerance: 0.5}\n"

    assert load(tmp_path, head=head).agreement == Agreement(("Say a.", "Say b."), 24, 0.5)
    assert load(tmp_path, head=HEAD + "agreement: null\n").agreement is None
    assert "agreement.prompts" in refusal(tmp_path, head=HEAD + "agreement: {prompts: []}\n")
    assert "agreement.tolerance" in refusal(tmp_path, head=HEAD + "agreement: {tolerance: 1}\n")


def test_what_the_campaign_names_of_engine_and_machine(tmp_path):
    head = HEAD.replace("{name: sglang,", '{name: sglang, version: "0.5.23",')
    head += "topology: {gpus: 2, device: Some GPU}\n"
    campaign = load(tmp_path, "a: {}\nb: {from: a, engine: {version: '0.6'}}\n", head)

    assert campaign.devices == ("gpu0", "gpu1")
    assert campaign.device == "Some GPU"
    assert campaign.variants["a"].engine.version == "0.5.23"
    assert campaign.variants["b"].delta == {"version": ("0.5.23", "0.6")}


def test_overridden_sessions_win_over_a_variant_s_own(tmp_path):
    campaign = load(tmp_path, "a: {sessions: 7}\n", sessions=2)

    assert campaign.variants["a"].sessions == 2
    assert campaign.overrides == {"sessions": 2}


def test_how_a_run_goes_on_can_be_said_for_one_run_and_is_not_part_of_the_plan(tmp_path):
    head = HEAD + "remeasure: none\n"
    campaign = load(
        tmp_path,
        head=head,
        execution="session",
        remeasure="protocol",
        on_environment_change="separate",
    )

    assert campaign.execution == "session"
    assert campaign.remeasure == "protocol"
    assert campaign.on_environment_change == "separate"
    assert campaign.overrides == {}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            {"execution": "cloud"},
            "--config execution=cloud is unknown. It is one of jobs, session.",
        ),
        ({"remeasure": "all"}, "It is one of none, protocol."),
        ({"on_environment_change": True}, "on_environment_change=True is unknown"),
        ({"sessions": 0}, "--config sessions=0 is no whole number from 1 to 1000"),
        ({"sessions": 1001}, "sessions=1001 is no whole number"),
        ({"sessions": True}, "sessions=True is no whole number"),
        ({"sessions": "3"}, "sessions=3 is no whole number"),
    ],
)
def test_a_word_of_the_command_line_that_is_unknown_is_one_message(tmp_path, override, said):
    assert said in refusal(tmp_path, **override)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (HEAD + "extra: 1\n", "c.yaml:5: unknown key 'extra'"),
        (HEAD.replace("campaign: small", "campaign: tuning"), "c.yaml:1: 'tuning' is a reserved"),
        (HEAD.replace("campaign: small", "campaign: 'a/b'"), "'a/b' does not match"),
        (HEAD + "ladder: {0: 1}\n", "'0' does not match"),
        (HEAD + "ladder: {1: 4, 1.0: 8}\n", "the key '1.0' stands twice"),
        (HEAD + "ladder: {1000000: 1}\n", "'1000000' does not match"),
        (HEAD + "ladder: {8: x}\n", "ladder.8: 'x' is not of type 'integer'"),
        (HEAD.replace("random-ids", "sharegpt"), "workloads.random.dataset: 'sharegpt'"),
        ("campaign: x\n", "'engine' is a required property"),
        ("- 1\n", "not YAML"),
        (HEAD.replace("model: {path: models/m}\n", ""), "the campaign names no model"),
        (
            HEAD.replace("{path: models/m}", "{path: /data/m, prepare: tiny}"),
            "c.yaml:2: a model that the workflow makes cannot lie in /data/m",
        ),
        (
            HEAD.replace("{path: models/m}", "{path: m, token_ids: [9, 1]}"),
            "c.yaml:2: model.token_ids: 1 is below 9",
        ),
        (HEAD.replace("dtype: bfloat16", "x: false"), "c.yaml:3: args.x: false is no way"),
        (HEAD.replace("OMP_NUM_THREADS", "MY_PASSWORD"), "c.yaml:3: env.MY_PASSWORD is a secret"),
        (
            HEAD.replace("{name: sglang,", "{name: sglang, wrapper: [box, --api-key=abc],"),
            "c.yaml:3: wrapper holds a secret",
        ),
        (HEAD + "execution: cloud\n", "c.yaml:5: execution: 'cloud' is not one of"),
        (HEAD + "profile: {steps: 0}\n", "c.yaml:5: profile.steps: 0 is less than"),
        (HEAD + "profile: {concurrency: [0]}\n", "c.yaml:5: profile.concurrency.0: 0 is less"),
        (HEAD + "topology: {gpus: -1}\n", "c.yaml:5: topology.gpus: -1 is less than"),
    ],
)
def test_a_mistake_in_the_head_is_one_message(tmp_path, head, said):
    message = refusal(tmp_path, head=head)

    assert said in message
    assert "abc" not in message


def test_a_missing_file_names_the_way_to_choose_one(tmp_path):
    with pytest.raises(LeverbenchError, match="--config campaign=FILE"):
        load_campaign(tmp_path / "none.yaml", {}, family)


@pytest.mark.parametrize("content", [b"", b"[]", b"text", b"1.5", b"\xff\xfe\x00"])
def test_a_file_that_is_no_campaign_is_one_message(tmp_path, content):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(LeverbenchError):
        load_campaign(path, {}, family)


def test_numbers_are_names_and_whole_floats_are_counts(tmp_path):
    head = HEAD.replace("random:", "256:") + "ladder: {1: 4.0}\n"
    campaign = load(tmp_path, "1: {args: {x: 2.0}}\nargs: {sessions: 2.0}\n", head)

    assert list(campaign.variants) == ["1", "args"]
    assert list(campaign.workloads) == ["256"]
    assert campaign.ladder == {1: 4}
    assert isinstance(campaign.ladder[1], int)
    # An engine's own arguments stay as they are written, not so a variant that is called so.
    assert isinstance(campaign.variants["1"].engine.args["x"], float)
    assert isinstance(campaign.variants["args"].sessions, int)


def test_requests_outside_the_ladder_are_interpolated(tmp_path):
    campaign = load(tmp_path)

    # Between C=1 (8 requests) and C=8 (32): 8 + 3/7 of 24.
    assert campaign.requests(4) == 18
    assert campaign.requests(8) == 32
    # Beyond C=16 (48 requests): in proportion.
    assert campaign.requests(32) == 96
    # Never fewer than twice the concurrency.
    assert load(tmp_path, head=HEAD + "ladder: {4: 4}\n").requests(8) == 16


def test_what_is_no_file_is_one_message(tmp_path):
    with pytest.raises(LeverbenchError, match="not a file"):
        load_campaign(Path("/dev/null"), {}, family)
    with pytest.raises(LeverbenchError, match="not a file"):
        load_campaign(tmp_path, {}, family)


# --- profile


@pytest.mark.parametrize(
    ("written", "profile"),
    [
        ("{steps: 3}", Profile(concurrency=(16,), steps=3)),
        ("{concurrency: []}", Profile(concurrency=())),
        ("{concurrency: [16, 1, 16]}", Profile(concurrency=(1, 16))),
    ],
)
def test_what_is_profiled(tmp_path, written, profile):
    assert load(tmp_path, head=f"{HEAD}profile: {written}\n").profile == profile


# --- recovery


def test_recovery_steps_keep_their_order_and_null_removes(tmp_path):
    head = HEAD + (
        "recovery:\n"
        "  out-of-memory:\n"
        "    - args: {mem-fraction-static: 0.6}\n"
        "    - {args: {graphs: null}, env: {X: 1, Y: null}}\n"
    )

    assert load(tmp_path, head=head).recovery == {
        "out-of-memory": (
            RecoveryStep(args={"mem-fraction-static": 0.6}, env={}),
            RecoveryStep(args={"graphs": None}, env={"X": "1", "Y": None}),
        )
    }


@pytest.mark.parametrize(
    ("recovery", "said"),
    [
        ("{out-of-memory: [{}]}", "c.yaml:5: a recovery step changes nothing"),
        ("{out-of-memory: [{args: {}}]}", "a recovery step changes nothing"),
        ("{out-of-memory: []}", "recovery.out-of-memory: []"),
        ("{out-of-memory: [{env: {MY_KEY: abc}}]}", "c.yaml:5: env.MY_KEY is a secret"),
        ("{out-of-memory: [{args: {x: false}}]}", "c.yaml:5: args.x: false is no way"),
        ("{out-of-luck: [{args: {x: 1}}]}", "unknown key 'out-of-luck'. Known here: out-of-memory"),
        ("{out-of-memory: [{tuned: []}]}", "unknown key 'tuned'"),
    ],
)
def test_a_mistake_in_recovery_is_one_message(tmp_path, recovery, said):
    message = refusal(tmp_path, head=f"{HEAD}recovery: {recovery}\n")

    assert said in message
    assert "abc" not in message


# --- servers that others started


def test_attached_servers(tmp_path):
    campaign = load(tmp_path, SERVERS, ATTACHED)

    a, b = campaign.variants["a"], campaign.variants["b"]
    assert campaign.attached
    assert (campaign.model_path, campaign.token_ids) == (None, (10, 90))
    assert a.engine.attach == Attach("http://127.0.0.1:30000")
    assert b.engine.attach == Attach("http://127.0.0.1:30001", "openai", "MY_API_KEY")
    assert list(b.delta) == ["attach"]
    # An OpenAI-compatible endpoint has no profiler.
    assert campaign.profile == Profile(concurrency=())


def test_one_address_for_all(tmp_path):
    head = ATTACHED + "attach: http://127.0.0.1:30000\n"
    campaign = load(tmp_path, "a: {}\nagain: {from: a, control: a-a}\n", head)

    assert campaign.variants["again"].engine.attach == Attach("http://127.0.0.1:30000")
    assert campaign.profile.concurrency == (16,)


@pytest.mark.parametrize(
    ("variants", "head", "said"),
    [
        (f"{SERVERS}c: {{}}\n", ATTACHED, "c.yaml:8: c has no attach:, and others have"),
        (
            SERVERS.replace("{from: a, ", "{from: a, args: {x: 1}, lever: x, ").replace(
                "b: {", "b: {levers: [x, server], "
            ),
            ATTACHED,
            "c.yaml:7: b: args.x needs a launch, and others started its server",
        ),
        (
            SERVERS,
            ATTACHED.replace("{name: sglang}", "{name: sglang, env: {X: 1}}"),
            "a: env.X needs a launch",
        ),
        (
            "a: {}\ns: {from: a, sweep: {x: [1]}}\n",
            ATTACHED + "attach: http://h:1\n",
            "c.yaml:8: s-1: args.x needs a launch",
        ),
        (
            SERVERS,
            ATTACHED.replace("token_ids", "path").replace("[10, 90]", "m")
            + "recovery: {start-failed: [{env: {X: 1}}]}\n",
            "c.yaml:5: recovery: needs a launch",
        ),
        (SERVERS, ATTACHED + "topology: {gpus: 1}\n", "c.yaml:5: topology: needs a launch"),
        (
            SERVERS,
            ATTACHED.replace("{token_ids: [10, 90]}", "{path: models/m, prepare: tiny}"),
            "c.yaml:2: a model that the workflow makes needs a launch",
        ),
        (
            SERVERS,
            ATTACHED.replace("model: {token_ids: [10, 90]}\n", ""),
            "neither model.path nor model.token_ids says which prompts can be drawn",
        ),
        (
            SERVERS,
            ATTACHED + "profile: {concurrency: [16]}\n",
            "c.yaml:5: b: an OpenAI-compatible endpoint cannot be profiled",
        ),
        (SERVERS, ATTACHED + "profile: {steps: 3}\n", "b: an OpenAI-compatible endpoint"),
        (
            'a: {attach: "http://box:1"}\n',
            ATTACHED + "profile: {concurrency: [16]}\n",
            "c.yaml:5: a: a server of another host, where its traces are written, cannot be",
        ),
        ("a: {engine: {python: /p}, attach: http://h}\n", ATTACHED, "a: python needs a launch"),
        ("a: {engine: {wrapper: [w]}, attach: http://h}\n", ATTACHED, "a: wrapper needs a launch"),
        (
            "a: {tuned: [w8a8-block-fp8], attach: http://h}\n",
            ATTACHED,
            "a: tuned.w8a8-block-fp8 needs a launch",
        ),
        (
            "a: {attach: {url: http://h, api: openai, flush_cache: true}}\n",
            ATTACHED,
            "c.yaml:6: a: the OpenAI protocol has no way to empty a cache",
        ),
        (
            "a: {attach: {url: http://h, key_variable: MINE}}\n",
            ATTACHED,
            "c.yaml:6: variants.a.attach",
        ),
    ],
)
def test_what_needs_a_launch_is_refused_for_attached_servers(tmp_path, variants, head, said):
    assert said in refusal(tmp_path, variants, head)


@pytest.mark.parametrize(
    ("url", "profiled"),
    [
        ("http://127.0.0.1:1", (16,)),
        ("http://127.1.2.3:1", (16,)),
        ("http://[::1]:1", (16,)),
        ("http://localhost:1", (16,)),
        ("http://10.0.0.1:1", ()),
        ("http://localhost.box:1", ()),
    ],
)
def test_only_a_server_on_this_host_is_profiled(tmp_path, url, profiled):
    head = ATTACHED + f'attach: "{url}"\n'

    assert load(tmp_path, head=head).profile.concurrency == profiled
    none = head + "profile: {concurrency: []}\n"
    assert load(tmp_path, head=none).profile.concurrency == ()


@pytest.mark.parametrize(
    "address",
    [
        "http://[abc",
        "http://abc:99999",
        "http://abc:0",
        "http://me:abc@127.0.0.1:30000",
        "http://127.0.0.1:30000/?key=abc",
        "ftp://abc",
        "127.0.0.1:30000/abc",
        "{url: 'http://me:abc@h'}",
    ],
)
def test_an_address_that_may_hold_a_password_is_refused_and_not_repeated(tmp_path, address):
    written = address if address.startswith("{") else f"'{address}'"
    message = refusal(tmp_path, f"a:\n  attach: {written}\n", ATTACHED)

    assert message.startswith(("c.yaml:7: variants.a.attach", "c.yaml:6: a: attach"))
    assert "no address that can be used" in message
    assert "abc" not in message


RANDOM = "{random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}"


def test_what_a_workload_may_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jsonl").write_text("not read here")
    prefix = "shared_prefix: {tokens: 3, groups: 2}"
    written = f"""
  mixed: {{dataset: random-ids, input_tokens: [4, 9], output_tokens: 8}}
  shared: {{dataset: random-ids, input_tokens: [4, 9], output_tokens: 8, {prefix}}}
  chat: {{dataset: file, path: chat.jsonl}}
"""

    campaign = load(tmp_path, head=HEAD.replace(RANDOM, written))
    mixed, shared, chat = campaign.workloads.values()

    assert mixed == Workload("random-ids", (4, 9), 8)
    assert shared == Workload("random-ids", (4, 9), 8, SharedPrefix(3, 2))
    assert (mixed.is_even, mixed.longest, mixed.shares_prefixes) == (False, 17, False)
    assert (shared.shares_prefixes, chat.shares_prefixes) == (True, True)
    assert (chat.path, chat.content) == ("chat.jsonl", hashlib.sha256(b"not read here").hexdigest())
    for workload in (mixed, shared, chat):
        params = json.loads(json.dumps(workload.as_params()))
        assert Workload.from_params(params) == workload
        assert None not in params.values()
    # What older campaigns can say is digested as it always was.
    plain = load(tmp_path).workloads["random"].as_params()
    assert plain == {"dataset": "random-ids", "input_tokens": 4, "output_tokens": 8}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{dataset: random-ids, input_tokens: 4}", "workloads.w: output_tokens is missing"),
        ("{dataset: random-ids, input_tokens: [9, 4], output_tokens: 8}", "4 is not above 9"),
        ("{dataset: random-ids, input_tokens: [4], output_tokens: 8}", "input_tokens: [4] is"),
        ("{dataset: random-ids, input_tokens: 4, output_tokens: [1, 8]}", "1 is less than"),
        (
            "{dataset: random-ids, input_tokens: 4, output_tokens: 8, path: a}",
            "random ids come from no file",
        ),
        (
            "{dataset: random-ids, input_tokens: [4, 8], output_tokens: 8,"
            " shared_prefix: {tokens: 4, groups: 1}}",
            "a prompt of 4 tokens has no room for a prefix of 4 and a token of its own",
        ),
        ("{dataset: file}", "workloads.w: a file needs a path"),
        ("{dataset: file, path: a, output_tokens: 8}", "output_tokens is for random ids"),
        ("{dataset: file, path: no/such.jsonl}", "no/such.jsonl cannot be read (No such file"),
    ],
)
def test_a_workload_that_is_none_is_one_message_with_its_line(tmp_path, written, said):
    message = refusal(tmp_path, head=HEAD.replace(RANDOM, f"{{w: {written}}}"))

    assert message.startswith("c.yaml:4: ")
    assert said in message


def test_files_are_refused_for_servers_whose_cache_may_not_be_emptied(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text("")
    head = ATTACHED.replace(RANDOM, f"{{chat: {{dataset: file, path: {path}}}}}")
    server = 'a: {attach: {url: "http://127.0.0.1:30000", flush_cache: %s}}\n'

    message = refusal(tmp_path, server % "false", head)

    assert message.startswith("c.yaml:4: workloads.chat: the prompts of a file come again")
    assert load(tmp_path, server % "true", head).workloads["chat"].content
