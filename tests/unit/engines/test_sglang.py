"""SGLang's command line, endpoints and answers; the real server is under tests/engine."""

import json
import sys
from pathlib import Path

import pytest
from scripted_server import Script, serving

from leverbench.campaign.model import Engine
from leverbench.engines import Address, Answer, NoAnswer, get_engine, step_marks
from leverbench.engines.sglang import _cure
from leverbench.errors import LeverbenchError
from leverbench.load.endpoint import Request

SGLANG = get_engine("sglang")


def engine(**settings: object) -> Engine:
    return Engine(
        **{"name": "sglang", "version": None, "python": None, "wrapper": (), "args": {}, "env": {}}
        | settings
    )


def test_the_command_is_a_list_of_words():
    args = {"tp": 4, "trust-remote-code": True, "cuda-graph-bs-decode": [1, 2], "x": {"a": 1}}
    command = SGLANG.command(engine(args=args, wrapper=("exec", "it")), Path("/m"))

    assert command[:5] == ("exec", "it", sys.executable, "-m", "sglang.launch_server")
    assert command[5:11] == ("--model-path", "/m", "--host", "127.0.0.1", "--port", "{port}")
    assert command[11:] == (
        *("--tp", "4"),
        "--trust-remote-code",
        *("--cuda-graph-bs-decode", "1", "2"),
        *("--x", '{"a": 1}'),
    )


@pytest.mark.parametrize("name", ["port", "host", "model-path", "config"])
def test_what_is_set_here_cannot_be_set_by_a_campaign(name):
    with pytest.raises(LeverbenchError, match=f"args.{name} is set by leverbench itself"):
        SGLANG.command(engine(args={name: "x"}), Path("/m"))


def test_plugins_are_off_unless_the_campaign_names_them():
    assert SGLANG.environment(engine())["SGLANG_PLUGINS"] == "leverbench-none"
    named = engine(env={"SGLANG_PLUGINS": "mine"})
    assert SGLANG.environment(named)["SGLANG_PLUGINS"] == "mine"
    # A path that is inherited is not written down: it does not make it another server.
    assert "PYTHONPATH" not in SGLANG.environment(engine())


@pytest.mark.parametrize(
    ("env", "plugins", "path"),
    [
        ({}, "leverbench_a,leverbench_b", "/inherited"),
        ({"SGLANG_PLUGINS": "mine"}, "mine,leverbench_a,leverbench_b", "/inherited"),
        # All that are installed are loaded, and those on the path are.
        ({"SGLANG_PLUGINS": ""}, "", "/inherited"),
        ({"PYTHONPATH": "/own"}, "leverbench_a,leverbench_b", "/own"),
    ],
)
def test_plugins_come_before_what_the_server_would_import(
    tmp_path, monkeypatch, env, plugins, path
):
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder, name in zip(folders, "ab", strict=True):
        (folder / f"leverbench_{name}-0.1.dist-info").mkdir(parents=True)

    given = SGLANG.environment(engine(env=env), folders)

    assert given["SGLANG_PLUGINS"] == plugins
    assert given["PYTHONPATH"] == f"{folders[0]}:{folders[1]}:{path}"


def test_without_a_path_to_inherit_there_are_plugins_alone(tmp_path, monkeypatch):
    # An empty part would be the server's working directory.
    for inherited in ("", None):
        if inherited is None:
            monkeypatch.delenv("PYTHONPATH")
        else:
            monkeypatch.setenv("PYTHONPATH", inherited)
        assert SGLANG.environment(engine(), [tmp_path])["PYTHONPATH"] == str(tmp_path)


TRACEBACK = """\
Traceback (most recent call last):
  File "/x/__init__.py", line 3, in register
    call()
    ~~~~^^
"""


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (
            f"[12:00 TP0] Failed to load plugin leverbench_a from group g\n{TRACEBACK}OSError: x\n",
            "Failed to load plugin leverbench_a from group g: OSError: x",
        ),
        (
            f"Failed to execute general plugin: leverbench_a\n{TRACEBACK}KeyError: 'k'\n"
            "\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{TRACEBACK}ValueError: y\n[12:00 TP0] Ready",
            "Failed to execute general plugin: leverbench_a: ValueError: y",
        ),
        (
            f"Failed to apply hooks to a.b\n{TRACEBACK}TypeError: z\n",
            "Failed to apply hooks to a.b: TypeError: z",
        ),
        (f"Failed to load plugin leverbench_a_b from group g\n{TRACEBACK}OSError: x\n", None),
        ("Loaded plugin leverbench_a from group g\n", None),
    ],
)
def test_why_a_plugin_is_not_in_force_is_told_by_the_log(log, problem):
    assert SGLANG.plugin_problem(f"before\n{log}after\n", "leverbench_a") == problem


@pytest.mark.parametrize(
    ("key", "lever"),
    [
        ("args.speculative-num-steps", "speculation"),
        ("env.NCCL_PROTO", "nccl"),
        ("args.dtype", "dtype"),
        ("args.ep-size", "expert-parallel"),
        ("args.eplb-algorithm", "eplb-algorithm"),
        ("env.MINE", "MINE"),
        ("python", "engine"),
    ],
)
def test_keys_belong_to_levers(key, lever):
    assert SGLANG.lever_family(key) == lever


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("unrecognized arguments: --dtyp x", "--dtyp: perhaps --dtype"),
        ("unrecognized arguments: --zzz", "--zzz: no such flag"),
        ("ambiguous option: --cuda-graph-max-bs", "perhaps --cuda-graph-max-bs-decode"),
        ("argument --dtype: invalid choice", "Its --help says what it takes."),
    ],
)
def test_a_refusal_has_a_cure(message, cure):
    options = ["--dtype", "--port", "--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill"]

    assert cure in _cure(message, options)


def event(**meta: object) -> bytes:
    count = meta["completion_tokens"]
    return json.dumps({"output_ids": list(range(count)), "meta_info": meta}).encode()


def test_events_are_cumulative():
    end = {"type": "length", "length": 3}
    summary = SGLANG.endpoint(Address("http://x")).parse(
        [
            event(completion_tokens=1, prompt_tokens=4, cached_tokens=0, finish_reason=None),
            event(completion_tokens=3, prompt_tokens=4, cached_tokens=2, finish_reason=end),
        ]
    )

    assert summary.cumulative_output_tokens == (1, 3)
    assert summary.prompt_tokens == 4
    assert summary.cached_tokens == 2
    assert summary.finish_reason == "length"
    assert summary.output_ids == (0, 1, 2)
    assert summary.accept_length is None


def test_an_error_in_the_stream_is_told():
    summary = SGLANG.endpoint(Address("http://x")).parse([b'{"error": {"message": "too long"}}'])

    assert summary.error == "too long"


def test_a_request_asks_for_an_exact_number_of_tokens():
    body = json.loads(SGLANG.endpoint(Address("http://x")).body(Request(0, (5, 6), 7)))

    assert body["input_ids"] == [5, 6]
    assert body["sampling_params"] == {"max_new_tokens": 7, "temperature": 0, "ignore_eos": True}
    assert body["stream"] is True


def test_a_server_is_asked_and_flushed():
    with serving(Script()) as server:
        assert SGLANG.ask(Address(server.url), "Capital?", 16, 10).text == "Paris"
        SGLANG.flush_cache(Address(server.url), 10)


def test_an_answer_has_its_token_ids_where_the_server_tells_them(monkeypatch):
    with serving(Script(answer="a b a")) as server:
        answer = SGLANG.ask(Address(server.url), "Say it.", 16, 10)

    assert answer.text == "a b a"
    first, second, third, end = answer.token_ids
    assert first == third != second
    assert end == 2

    # As a version that does not know the question answers, and one whose answer is all reasoning.
    choice = {"message": {"content": None, "reasoning_content": "hm"}}
    monkeypatch.setattr("leverbench.engines.http.fetch_json", lambda *_: {"choices": [choice]})
    assert SGLANG.ask(Address("http://x"), "Say it.", 16, 10) == Answer("", None)


def test_what_a_server_tells_is_the_same_each_time():
    with serving(Script(model="m")) as server:
        at = Address(server.url)
        info = SGLANG.server_info(at, 10)

        assert info == SGLANG.server_info(at, 10)
        assert info["version"] == "scripted"
        assert info["start"] == {"load_weight": server.started_s}
        assert info["device"] is None
        assert SGLANG.served_model(at, 10)["model_path"] == "m"


def test_a_server_that_is_not_there_gives_no_answer():
    with pytest.raises(NoAnswer):
        SGLANG.ask(Address("http://127.0.0.1:9"), "Capital?", 16, 1)


@pytest.mark.parametrize(
    ("asked", "seen", "applied"),
    [
        ("float32", "float32", True),
        ("float32", "bfloat16", False),
        (None, "auto", None),  # a removed argument: the analysis knows what it was
    ],
)
def test_an_argument_is_applied_if_the_server_says_so(asked, seen, applied):
    parsed = {} if asked is None else {"dtype": ["dtype", asked]}
    lever = SGLANG.applied(
        parsed, {"effective": {"dtype": seen}, "version": "1"}, "args.dtype", asked
    )

    assert lever.applied is applied
    assert lever.seen == seen


@pytest.mark.parametrize(("version", "applied"), [("0.5.23", None), ("0.4.0", True)])
def test_an_argument_that_the_engine_ignores_is_not_shown_in_force(version, applied):
    field = "num_continuous_decode_steps"
    name = field.replace("_", "-")
    info = {"effective": {field: 4}, "version": version}

    lever = SGLANG.applied({name: [field, 4]}, info, f"args.{name}", 4)

    assert lever.applied is applied
    assert ("reads nowhere" in lever.evidence) == (applied is None)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB", "out-of-memory"),
        ("Possible solutions:\n1. set --mem-fraction-static to a smaller value", "out-of-memory"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "out-of-memory"),
        ("Decode out of memory. Try to lower your batch size.", "out-of-memory"),
        ("Not enough memory. Please try to increase --mem-fraction-static.", "pool-too-small"),
        ("no memory for the KV cache. Raise --mem-fraction-static above 0.002", "pool-too-small"),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory", None),
        ("ValueError: Cannot find model module.", None),
    ],
)
def test_a_lack_of_memory_is_told_by_its_direction(log, cause):
    assert SGLANG.memory_failure(f"before\n{log}\nafter") == cause


def test_an_argument_that_the_server_does_not_tell_is_not_shown():
    lever = SGLANG.applied({"x": ["x", 1]}, {"effective": {}}, "args.x", 1)

    assert lever.applied is None
    assert "has no x" in lever.evidence


@pytest.mark.parametrize(
    ("line", "compiling"),
    [
        ("Capture cuda graph begin. This can take up to several minutes.", True),
        ("Capture draft CUDA graph end. elapsed=3", True),
        ("Decode batch, #running-req: 16, cuda graph: True, gen throughput", False),
        ("[TP0] Prefill batch, #new-seq: 1", False),
    ],
)
def test_lines_that_tell_of_compilation(line, compiling):
    assert bool(SGLANG.compile_pattern.search(line)) is compiling


def test_another_interpreter_tells_the_same_of_itself():
    here = SGLANG.identify(engine())

    assert SGLANG.identify(engine(python=sys.executable)) == here
    assert SGLANG.identify(engine(wrapper=("env", "X=1"))) == here
    assert here.version.count(".") >= 2


def test_an_interpreter_without_the_engine_is_told(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # without site-packages
    python.chmod(0o755)

    with pytest.raises(LeverbenchError, match="this interpreter has no SGLang"):
        SGLANG.identify(engine(python=str(python)))


def test_an_interpreter_that_is_not_there_is_told():
    with pytest.raises(LeverbenchError, match="does not run"):
        SGLANG.identify(engine(python="/nowhere/python"))


def test_a_recording_has_no_stacks_and_no_shapes(tmp_path):
    with serving(Script()) as server:
        for device in ("cpu", "gpu0"):
            SGLANG.start_profile(Address(server.url), tmp_path / device, 7, (device,), 10)
            SGLANG.stop_profile(Address(server.url), 10)

    assert [recording.asked for recording in server.recordings] == [
        {
            "output_dir": str(tmp_path / device),
            "num_steps": 7,
            "activities": activities,
            "with_stack": False,
            "record_shapes": False,
        }
        for device, activities in (("cpu", ["CPU"]), ("gpu0", ["CPU", "GPU"]))
    ]
    assert server.profile_stops == 2


def test_a_refused_recording_has_a_status(tmp_path):
    with serving(Script(profiling="refuse")) as server:
        with pytest.raises(NoAnswer, match="500") as start:
            SGLANG.start_profile(Address(server.url), tmp_path, 1, ("cpu",), 10)
        with pytest.raises(NoAnswer, match="500"):
            SGLANG.stop_profile(Address(server.url), 10)

    assert start.value.status == 500


def test_traces_are_known_by_their_names(tmp_path):
    names = {
        "1790857026.5-TP-0.trace.json.gz": "TP-0",
        "1790857026.5-TP-1-DP-3-EP-1.trace.json.gz": "TP-1-DP-3-EP-1",
        "p-1790857026.5-TP-12-PP-1.trace.json.gz": "TP-12-PP-1",
        "1790857026.5-TP-0-memory.pickle": None,
        "merged-1790857026.5.trace.json.gz": None,
        "tmp.json": None,
    }
    for name in names:
        (tmp_path / name).touch()

    found = SGLANG.traces(tmp_path)
    assert {path.name: rank for rank, path in found.items()} == {
        name: rank for name, rank in names.items() if rank
    }


@pytest.mark.parametrize(
    ("effective", "ranks"),
    [
        ({}, 1),
        ({"tp_size": 4, "pp_size": 1, "dp_size": 1}, 4),
        ({"tp_size": 4, "pp_size": 2, "dp_size": 2, "attn_dp_size": 1}, 16),
        ({"tp_size": 4, "dp_size": 1, "attn_dp_size": 4, "enable_dp_attention": True}, 4),
        ({"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 4),
        ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": False}, 8),
    ],
)
def test_each_scheduler_is_a_rank(effective, ranks):
    assert SGLANG.profiled_ranks(effective) == ranks


@pytest.mark.parametrize(
    ("annotations", "marks"),
    [
        (
            ["step[DECODE bs=16]", "step[DECODE bs=15]", "step[EXTEND bs=1 toks=64]"],
            {
                "step[DECODE bs=16]": True,
                "step[DECODE bs=15]": True,
                "step[EXTEND bs=1 toks=64]": False,
            },
        ),
        # A verification with its drafts is one step; a prefill ends it.
        (
            [
                "step[TARGET_VERIFY bs=16]",
                "step[DECODE bs=16]",
                "step[DRAFT_EXTEND_V2 bs=16]",
                "step[EXTEND bs=1 toks=64]",
            ],
            {"step[TARGET_VERIFY bs=16]": True, "step[EXTEND bs=1 toks=64]": False},
        ),
        (["scheduler.run_batch", "a step[DECODE bs=1]"], {}),
        ([], {}),
    ],
)
def test_decode_steps_are_known_by_their_annotations(annotations, marks):
    assert SGLANG.step_marks(annotations) == marks
    assert step_marks(annotations) == marks


def test_the_log_tells_of_recordings():
    start = "[2026-01-01 TP0] Profiling starts. Traces will be saved to: /p (with profile id: 1.5)"
    done = "[2026-01-01 TP0] Profiling done. Traces are saved to: /p"

    for pattern, line in (
        (SGLANG.profile_begun_pattern, start),
        (SGLANG.profile_done_pattern, done),
    ):
        assert pattern.findall(f"{start}\n{done}\n") == pattern.findall(line)
        assert len(pattern.findall(line)) == 1


@pytest.mark.parametrize(
    ("args", "config", "longest"),
    [
        ({}, {"max_position_embeddings": 4096}, 4094),
        ({"context-length": 1000}, {"max_position_embeddings": 4096}, 998),
        ({"context-length": 1000}, {}, 998),
        ({}, {"text_config": {"max_position_embeddings": 512}}, 510),
        ({}, {"max_position_embeddings": 4096, "rope_scaling": {"factor": 4.0}}, 16382),
        (
            {},
            {
                "max_position_embeddings": 4096,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 1024},
            },
            4094,
        ),
        ({}, {"max_position_embeddings": 4096, "rope_scaling": None}, 4094),
        ({}, {"vocab_size": 10}, None),
    ],
)
def test_the_longest_request_by_argument_or_model(args, config, longest):
    assert get_engine("sglang").longest_request(args, config) == longest
