"""Recovery steps: what they come to, and the control that tells them from the lever."""

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from leverbench.analysis.settings import (
    beside_the_lever,
    changed_settings,
    matched_control,
    steps_text,
)
from leverbench.campaign.file import load_campaign
from leverbench.campaign.plan import plan_record

HEAD = """\
campaign: small
model: {path: models/m}
engine: {name: sglang, args: {dtype: bfloat16, memory: 0.9}, env: {THREADS: 1}}
workloads: {random: {dataset: random-ids, input_tokens: 4, output_tokens: 8}}
variants:
  baseline: {}
  float32: {from: baseline, args: {dtype: float32}}
"""
LESS_MEMORY = {"args": {"memory": 0.8}}


def family(engine: str, key: str) -> str:
    return key


def load(folder: Path, more: str = "") -> dict[str, Any]:
    """Returns the plan of the campaign above with more variants."""
    path = folder / "c.yaml"
    path.write_text(HEAD + indent(more, "  "))
    return plan_record(load_campaign(path, {}, family), [])


def steps(*settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"cause": "out-of-memory", "args": {}, "env": {}, **each} for each in settings]


def test_steps_come_to_their_last_values_and_are_told_in_order():
    taken = steps(LESS_MEMORY, {"args": {"memory": 0.7, "graph": True}, "env": {"THREADS": None}})

    assert changed_settings(taken) == {
        "args.memory": 0.7,
        "args.graph": True,
        "env.THREADS": None,
    }
    assert steps_text(taken) == (
        "out-of-memory: args.memory=0.8;"
        " out-of-memory: args.memory=0.7, args.graph=true, env.THREADS=unset"
    )
    assert steps_text([]) == ""


@pytest.mark.parametrize(
    ("own", "parents", "expected"),
    [
        ([], [], {}),
        ([LESS_MEMORY], [], {"args.memory": (0.9, 0.8)}),
        ([], [LESS_MEMORY], {"args.memory": (0.8, 0.9)}),
        ([LESS_MEMORY], [LESS_MEMORY], {}),
        # In two steps, or in one: the servers' settings are the same.
        ([{"args": {"memory": 0.85}}, LESS_MEMORY], [LESS_MEMORY], {}),
        ([LESS_MEMORY], [{"args": {"memory": 0.7}}], {"args.memory": (0.7, 0.8)}),
        ([{"env": {"THREADS": None}}], [], {"env.THREADS": ("1", None)}),
        # A step that sets what was set changes nothing.
        ([{"args": {"memory": 0.9}}], [], {}),
        # The parent lost what the lever starts from.
        ([], [{"args": {"dtype": "float16"}}], {"args.dtype": ("float16", "float32")}),
    ],
)
def test_what_differs_beside_the_lever(tmp_path, own, parents, expected):
    plan = load(tmp_path)

    assert beside_the_lever(plan, "float32", steps(*own), steps(*parents)) == expected


@pytest.mark.parametrize(
    ("own", "parents", "name", "delta"),
    [
        ([LESS_MEMORY], [], "baseline-as-float32", {"args.memory": [0.9, 0.8]}),
        (
            [LESS_MEMORY, {"args": {"memory": 0.7, "graph": True}, "env": {"THREADS": None}}],
            [LESS_MEMORY],
            "baseline-as-float32",
            {
                "args.graph": [None, True],
                "args.memory": [0.9, 0.7],
                "env.THREADS": ["1", None],
            },
        ),
        ([], [LESS_MEMORY], "float32-as-baseline", {"args.memory": [0.9, 0.8]}),
        # Steps of the variant that change nothing are no reason to look at it alone.
        (
            [{"args": {"memory": 0.9}}],
            [{"env": {"THREADS": "2"}}],
            "float32-as-baseline",
            {"env.THREADS": ["1", "2"]},
        ),
    ],
)
def test_the_matched_control_loads_and_differs_in_the_steps_alone(
    tmp_path, own, parents, name, delta
):
    control = matched_control(load(tmp_path), "float32", steps(*own), steps(*parents))

    assert control is not None
    assert (control.name, control.planned) == (name, False)
    variant = load(tmp_path, control.yaml)["variants"][name]
    assert variant["parent"] == name.partition("-as-")[0]
    assert variant["delta"] == delta
    assert variant["levers"] == (
        ["recovery"] if len(delta) == 1 else ["memory", "graph", "THREADS"]
    )


def test_what_to_compare_follows_from_whose_steps_the_control_has(tmp_path):
    plan = load(tmp_path)
    above = matched_control(plan, "float32", steps(LESS_MEMORY), [])
    below = matched_control(plan, "float32", [], steps(LESS_MEMORY))

    assert above is not None
    assert above.compare == (
        "float32 and baseline-as-float32 differ in args.dtype alone: divide the ratio of float32"
        " to baseline by that of baseline-as-float32 to baseline."
    )
    assert below is not None
    assert below.compare == (
        "float32-as-baseline and baseline differ in args.dtype alone: multiply the ratio of"
        " float32-as-baseline to float32 by that of float32 to baseline."
    )


def test_a_control_that_the_campaign_has_is_not_added_again(tmp_path):
    plan = load(tmp_path, "tight: {from: baseline, lever: recovery, args: {memory: 0.8}}\n")
    control = matched_control(plan, "float32", steps(LESS_MEMORY), [])

    assert control is not None
    assert (control.name, control.planned) == ("tight", True)
    assert "that of tight to baseline" in control.compare


def test_no_control_where_recovery_changed_what_the_lever_changes(tmp_path):
    parents = steps({"args": {"dtype": "float16"}})

    assert matched_control(load(tmp_path), "float32", [], parents) is None


def test_a_long_name_is_cut_to_what_the_schema_takes(tmp_path):
    name = "f" * 60
    plan = load(tmp_path, f"{name}: {{from: baseline, args: {{dtype: float16}}}}\n")
    control = matched_control(plan, name, steps(LESS_MEMORY), [])

    assert control is not None
    assert control.name in load(tmp_path, control.yaml)["variants"]
