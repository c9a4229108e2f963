"""The loader of published kernels, in the engine's own plugin framework; no server is needed."""

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass

import pytest
from scripted_kernel import publish_scripted

from leverbench.campaign.model import Engine
from leverbench.engines import get_engine
from leverbench.engines.sglang_plugin import nearest
from leverbench.kernels.publish import read_published

CHOSEN = [
    {"dimensions": {"heads": 4, "batch": size}, "config": {"block": block}, "published": True}
    for size, block in ((1, 16), (8, 32), (16, 64))
]
ENGINE = """
def scale(batch, *, heads=4):
    return ["engine", batch]

def other(batch):
    return ["engine", batch]

class Layer:
    pass
"""
KERNEL = """
    from pathlib import Path

    def load(folder):
        return (folder / "kernel.json").name

    def serve(loaded, choose, batch, *, heads=4):
        if batch == 99:
            return NotImplemented
        if batch == 0:
            raise ZeroDivisionError("no batch")
        return [loaded, choose({"heads": heads, "batch": batch})["block"]]
"""
PROGRAM = """
import json
from sglang.srt.plugins import load_plugins
load_plugins()
from made_up_engine import other, scale
said = [scale(1), scale(7), scale(batch=100), scale(7, heads=5), scale(99), other(3)]
try:
    scale(0)
except ZeroDivisionError as error:
    said.append(str(error))
print(json.dumps(said))
"""


@dataclass(frozen=True)
class Loaded:
    """A process that loaded several plugins: what its calls gave, its log and its counters."""

    said: list[object]
    log: str
    calls: dict[str, tuple[int, int]]
    digest: str


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "made_up_engine.py").write_text(ENGINE)
    kernels = {
        "good": (KERNEL, "made_up_engine.scale"),
        "gone": (KERNEL, "made_up_engine.gone"),
        "class": (KERNEL, "made_up_engine.Layer"),
        "broken": ("import no_such_module", "made_up_engine.other"),
    }
    published = [
        publish_scripted(folder / name, module, name=name, hook=hook, chosen=CHOSEN) / "plugin"
        for name, (module, hook) in kernels.items()
    ]
    settings = Engine("sglang", None, None, (), {}, {"PYTHONPATH": str(folder)})
    calls = folder / "calls"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            **get_engine("sglang").environment(settings, published),
            "LEVERBENCH_CALLS": str(calls),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return Loaded(
        said=json.loads(done.stdout.splitlines()[-1]),
        log=done.stderr,
        calls={path.name: struct.unpack("<qq", path.read_bytes()) for path in calls.iterdir()},
        digest=read_published(folder / "good").digest,
    )


@pytest.mark.engine
def test_calls_are_served_with_what_was_chosen_for_the_nearest_size(loaded):
    first, seventh, hundredth, another_shape, *_ = loaded.said

    assert [first, seventh, hundredth] == [["kernel.json", block] for block in (16, 32, 64)]
    # The default, as nothing was chosen for this shape.
    assert another_shape == ["kernel.json", 16]


@pytest.mark.engine
def test_what_a_kernel_leaves_is_the_engine_s_and_what_it_raises_is_raised(loaded):
    *_, left, other, raised = loaded.said

    assert (left, other) == (["engine", 99], ["engine", 3])
    assert raised == "no batch"


@pytest.mark.engine
def test_calls_are_counted_in_a_file_of_the_process(loaded):
    ((name, counts),) = loaded.calls.items()
    kernel, pid, start, suffix = name.split(".")

    assert (kernel, suffix) == ("good", "calls")
    assert int(start) > 0
    assert counts == (4, 1)
    line = f"leverbench: kernel good {loaded.digest[:16]} for made_up_engine.scale in process {pid}"
    assert loaded.log.count("leverbench: kernel") == 1
    assert line in loaded.log.splitlines()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gone", "LookupError: this version of the engine has no made_up_engine.gone ("),
        ("class", "LookupError: made_up_engine.Layer is no function"),
        ("broken", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_what_keeps_a_plugin_from_loading_is_found_in_the_engine_s_log(loaded, name, problem):
    told = get_engine("sglang").plugin_problem(loaded.log, f"leverbench_{name}")

    assert told is not None
    assert told.startswith(f"Failed to execute general plugin: leverbench_{name}: {problem}")
    assert get_engine("sglang").plugin_problem(loaded.log, "leverbench_good") is None


@pytest.mark.parametrize(
    ("dimensions", "block"),
    [
        ({"heads": 4, "batch": 1}, 16),
        ({"batch": 4, "heads": 4}, 16),
        ({"heads": 4, "batch": 5}, 32),
        ({"heads": 4, "batch": 400, "context": 9}, 64),
        ({"heads": 2, "batch": 1}, None),
        # What a call does not know of itself is not compared.
        ({"batch": 1}, 16),
    ],
)
def test_what_a_call_knows_of_the_shape_must_be_equal_and_the_size_near(dimensions, block):
    config = nearest(CHOSEN, "batch", dimensions)

    assert config == (None if block is None else {"block": block})


def test_without_a_size_there_is_one_choice_a_shape():
    chosen = [{"dimensions": {"heads": 4}, "config": {"block": 32}}]

    assert nearest(chosen, None, {"heads": 4}) == {"block": 32}
    assert nearest(chosen, None, {"heads": 8}) is None
