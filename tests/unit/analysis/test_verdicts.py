import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leverbench.analysis.blocks import blocks, drift
from leverbench.analysis.measurements import COLUMNS
from leverbench.analysis.verdicts import Design, judge, verdict_text

_START = np.datetime64("2026-01-01T10:00:00")
_EFFECTS = {"baseline": 1.0, "gain": 1.1, "loss": 0.9, "same": 1.0, "again": 1.0}


def row(variant: str, session: int, value: float, minute: float, **other) -> dict:
    started = str(_START + np.timedelta64(round(60 * minute), "s")) + "+00:00"
    return dict.fromkeys(COLUMNS) | {
        "variant": variant,
        "parent": None if variant == "baseline" else "baseline",
        "session": session,
        "workload": "random",
        "concurrency": 1,
        "valid": True,
        "output_tok_per_s": value,
        "started_at": started,
        **other,
    }


def campaign(
    sessions: int = 4, noise: float = 0.004, concurrencies: tuple[int, ...] = (1, 8), seed: int = 3
) -> list[dict]:
    """Rows of known effects, each block 5% slower than the one before."""
    rng = np.random.default_rng(seed)
    return [
        row(
            variant,
            session,
            100 * concurrency * effect * 0.95**session * np.exp(rng.normal(0, noise)),
            60 * session + 10 * place + concurrency / 10,
            concurrency=concurrency,
        )
        for session in range(1, sessions + 1)
        for place, (variant, effect) in enumerate(_EFFECTS.items())
        for concurrency in concurrencies
    ]


def verdicts(rows: list[dict], **changes) -> dict:
    design = {"controls": frozenset({"again"}), **changes}
    parents = dict.fromkeys(_EFFECTS, "baseline") | {"baseline": None}
    found = judge(rows, Design(parents=parents, **design))
    return {(v.variant, v.concurrency): v for v in found if v.metric == "output_tok_per_s"}


def test_planted_effects_are_judged_in_spite_of_the_drift():
    found = verdicts(campaign())

    words = {variant: found[variant, 8].verdict for variant in list(_EFFECTS)[1:]}
    assert words == {"gain": "faster", "loss": "slower", "same": "equal", "again": "equal"}
    for (variant, _), verdict in found.items():
        assert verdict.low < _EFFECTS[variant] < verdict.high
        assert verdict.sessions == 4


def test_all_but_controls_are_counted_in_the_correction():
    found = verdicts(campaign(noise=0.02))

    assert found["again", 1].p_holm is None
    smallest = min((v for v in found.values() if v.p_holm is not None), key=lambda v: v.p)
    assert smallest.p_holm == pytest.approx(6 * smallest.p)


def test_controls_are_corrected_among_themselves():
    chance = [verdicts(campaign(sessions=3, noise=0.05, seed=seed)) for seed in range(120)]
    called = [
        any(found["again", c].verdict in ("faster", "slower") for c in (1, 8)) for found in chance
    ]

    # Each of the two alone at 5%, without a correction, would be called in 10% of campaigns.
    assert sum(called) / len(called) < 0.08


def test_what_is_withheld_is_not_counted_in_the_correction():
    rows = campaign(noise=0.02)
    found = verdicts(rows, withheld={"loss": "not applied", "same": "not applied"})

    smallest = min((v for v in found.values() if v.p_holm is not None), key=lambda v: v.p)
    assert smallest.p_holm == pytest.approx(2 * smallest.p)


def test_a_rate_of_nothing_has_no_ratio():
    rows = [r | {"mean_ttft_ms": 0.0 if r["session"] == 2 else 1.0} for r in campaign()]
    parents = dict.fromkeys(_EFFECTS, "baseline") | {"baseline": None}
    found = judge(rows, Design(parents=parents))

    (gain,) = [
        v for v in found if (v.variant, v.concurrency, v.metric) == ("gain", 1, "mean_ttft_ms")
    ]
    assert (gain.ratio, gain.withheld) == (None, "0 in a session, which has no ratio")


def test_one_session_is_undecided_whatever_it_shows():
    found = verdicts(campaign(sessions=1))

    assert found["gain", 1].verdict == "undecided"
    assert found["gain", 1].ratio == pytest.approx(1.1, rel=0.03)
    assert (found["gain", 1].low, found["gain", 1].p, found["gain", 1].settled_by) == (None,) * 3
    assert verdict_text(found["gain", 1]) == "undecided: unreplicated"


def test_undecided_says_how_many_sessions_would_settle_it():
    found = verdicts(campaign(sessions=2, noise=0.03))

    assert found["gain", 1].verdict == "undecided"
    assert 2 < found["gain", 1].settled_by <= 20
    assert f"{found['gain', 1].settled_by} sessions would settle it" in verdict_text(
        found["gain", 1]
    )


def test_what_twenty_sessions_would_not_settle_is_not_worth_deciding():
    rows = campaign(sessions=3, noise=0.15, seed=4)
    words = {verdict.verdict for verdict in verdicts(rows).values()}

    assert "not worth deciding" in words
    assert not {"faster", "slower", "equal"} & words


def test_equal_takes_precedence_and_says_that_it_is_not_the_same():
    rows = [r for r in campaign(noise=0.0005) if r["variant"] != "same"]
    rows += [
        r | {"variant": "same", "output_tok_per_s": 1.01 * r["output_tok_per_s"]}
        for r in campaign(noise=0.0005, seed=9)
        if r["variant"] == "same"
    ]
    found = verdicts(rows)

    assert found["same", 1].verdict == "equal"
    assert found["same", 1].low > 1
    assert verdict_text(found["same", 1]) == "equal, though not the same"


def test_invalid_rows_are_never_pooled():
    rows = campaign()
    void = [r | {"valid": False, "output_tok_per_s": 5.0} if r["session"] == 2 else r for r in rows]

    assert verdicts(void)["gain", 1].ratio == pytest.approx(1.1, rel=0.02)
    assert verdicts(void)["gain", 1].sessions == 3


def test_rows_of_another_protocol_or_machine_are_not_pooled():
    rows = [r | {"protocol": 2, "machine_cpu": "a"} for r in campaign()]
    for r in rows:
        if r["session"] == 1:
            r |= {"protocol": 1, "output_tok_per_s": 5.0}
        if r["variant"] == "loss":
            r["machine_cpu"] = "b"
    found = verdicts(rows)

    assert found["gain", 1].sessions == 3
    assert (found["loss", 1].ratio, found["loss", 1].withheld) == (
        None,
        "measured on another machine",
    )


def test_what_only_older_conditions_measured_is_withheld_and_not_unmeasured():
    rows = campaign()
    for r in rows:
        if r["variant"] in ("baseline", "gain"):
            r["protocol"] = 2
            r["started_at"] = r["started_at"].replace("2026-01-01", "2026-01-02")
    found = verdicts(rows)

    assert found["gain", 1].verdict == "faster"
    assert verdict_text(found["loss", 1]) == "withheld: measured on another protocol"


def test_another_engine_is_only_compared_where_it_is_the_lever():
    rows = [r | {"engine_digest": "new" if r["variant"] == "gain" else "old"} for r in campaign()]

    assert verdicts(rows)["gain", 1].withheld == "measured on another engine"
    free = verdicts(rows, free={"gain": frozenset({"engine"})})
    assert free["gain", 1].verdict == "faster"


def test_a_variant_that_is_not_applied_has_no_verdict():
    found = verdicts(campaign(), withheld={"gain": "not applied: asked 2, seen 1"})

    assert (found["gain", 1].verdict, found["gain", 1].ratio) == (None, None)
    assert verdict_text(found["gain", 1]).startswith("withheld: not applied")
    assert found["loss", 1].verdict == "slower"


def _at_1(rows: list[dict], parents: dict) -> dict:
    found = judge(rows, Design(parents=parents))
    cell = (1, "output_tok_per_s")
    return {v.variant: v for v in found if (v.concurrency, v.metric) == cell}


def test_a_late_variant_without_fresh_launches_of_its_parent_is_unblocked():
    rows = campaign(sessions=3)
    late = [row("late", s, 100 * 0.95**s, 3000 + 10 * s) for s in (4, 5, 6)]
    parents = dict.fromkeys([*_EFFECTS, "late"], "baseline") | {"baseline": None}
    found = _at_1(rows + late, parents)

    assert found["late"].unblocked
    assert "unblocked" in verdict_text(found["late"])
    # The drift between blocks is part of its interval.
    assert found["late"].high - found["late"].low > 0.05
    beside = late + [row("baseline", s, 100 * 0.95**s, 3003 + 10 * s) for s in (4, 5, 6)]
    found = _at_1(rows + beside, parents)
    assert not found["late"].unblocked
    assert found["late"].verdict == "equal"


def test_a_stricter_level_for_looks():
    rows = campaign(noise=0.02)
    assert verdicts(rows, level=0.01)["gain", 1].high > verdicts(rows)["gain", 1].high


def test_blocks_are_passes_by_time():
    minutes = {("a", 1): 0, ("b", 1): 10, ("b", 2): 20, ("a", 2): 30, ("c", 3): 40, ("a", 3): 50}
    rows = [row(variant, session, 1.0, at) for (variant, session), at in minutes.items()]

    assert blocks(rows) == [0, 0, 1, 1, 1, 2]
    assert blocks(rows[::-1]) == [2, 1, 1, 1, 0, 0]


def test_a_pause_interrupts_a_pass():
    rows = [row("a", 1, 1.0, 0), row("b", 1, 1.0, 10), row("c", 1, 1.0, 20), row("d", 1, 1.0, 60)]

    # A server that takes long to load is none.
    assert blocks(rows) == [0, 0, 0, 0]
    rows[3] = row("d", 1, 1.0, 120)
    assert blocks(rows) == [0, 0, 0, 1]


def test_a_row_that_was_never_measured_is_no_part_of_a_pass():
    rows = [row("a", 1, 1.0, 0), row("b", 1, 1.0, 10), row("a", 2, 1.0, 20), row("b", 2, 1.0, 30)]
    lost = row("c", 1, 1.0, 0) | {"valid": False, "started_at": None}

    assert blocks([*rows, lost])[:4] == [0, 0, 1, 1]
    # Sessions may lie otherwise in time.
    rows[0]["session"], rows[2]["session"] = 2, 1
    assert blocks([*rows, lost])[:4] == [0, 0, 1, 1]


def test_without_times_blocks_are_sessions():
    rows = [row("a", 5, 1.0, 0), row("b", 5, 1.0, 0), row("a", 7, 1.0, 0)]
    rows[1]["started_at"] = None

    assert blocks(rows) == [0, 0, 1]


def _cells(rows: list[dict]) -> list[list[dict]]:
    return [[r for r in rows if r["concurrency"] == c] for c in (1, 8)]


def test_the_drift_is_estimated():
    found = drift(_cells(campaign(noise=0.002)), "output_tok_per_s")

    # A block is 5% slower than that of an hour before.
    true = 0.95**found.hours - 1
    assert found.low < true < found.high
    assert found.high - found.low < 0.03
    assert found.hours == pytest.approx(3.7, abs=0.1)
    assert drift(_cells(campaign(sessions=2)), "output_tok_per_s") is None


def test_the_drift_s_interval_holds_what_blocks_do_by_chance():
    def without_drift(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        factors = {session: np.exp(rng.normal(0, 0.02)) for session in range(1, 6)}
        rows = [
            r
            | {
                "output_tok_per_s": r["output_tok_per_s"]
                * factors[r["session"]]
                / 0.95 ** r["session"]
            }
            for r in campaign(sessions=5, seed=seed)
        ]
        found = drift(_cells(rows), "output_tok_per_s")
        return found.low < 0 < found.high

    held = [without_drift(seed) for seed in range(200)]
    assert 0.9 < np.mean(held) < 0.99


def _csv(path: Path, lines: list[str]) -> Path:
    head = "variant,parent,session,workload,concurrency,valid,output_tok_per_s"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def _analyse(table: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from leverbench.cli import main; main()", "analyse"]
    return subprocess.run(
        [*command, str(table), "--out", str(table.with_name("v.json"))],
        capture_output=True,
        text=True,
    )


def test_the_command_judges_a_table_that_anybody_made(tmp_path):
    lines = [
        f"{r['variant']},{r['parent'] or ''},{r['session']},chat,{r['concurrency']},"
        f"{'true' if r['session'] < 4 else 'False'},{r['output_tok_per_s']}"
        for r in campaign()
    ]
    done = _analyse(_csv(tmp_path / "t.csv", lines))

    assert done.returncode == 0, done.stderr
    assert re.search(
        r"gain / baseline, chat, C=8: 1\.\d+ \(1\.\d+ to 1\.\d+\), p < .*: faster\n", done.stdout
    )
    found = json.loads((tmp_path / "v.json").read_text())
    judged = [v for v in found if v["metric"] == "output_tok_per_s"]
    assert len(judged) == 8
    assert {v["sessions"] for v in judged} == {3}
    (gain,) = [v for v in judged if (v["variant"], v["concurrency"]) == ("gain", 1)]
    assert gain["verdict"] == "faster"
    assert gain["p_holm"] >= gain["p"]
    assert (gain["confounded"], gain["applied"]) == (None, None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,,1,w,one,true,5"], "t.csv:2: "),
        (["a,,1,w,1,true,inf"], "t.csv:2: "),
        (["a,,1,w,1,maybe,5"], "t.csv:2: "),
        (["a,,,w,1,true,5"], "t.csv:2: "),
        (["a,,1,w,1,true,5", "a,,1,w,1,true,6"], "t.csv:3: a second row of a/s1/w/c1"),
        (["a,,1,w,1,true,5", "a,b,2,w,1,true,6"], "t.csv:3: a has another parent than above"),
        (["a,b,1,w,1,true,5"], "parent b has no row"),
        (["a,a,1,w,1,true,5"], "a descends from itself"),
        (["a,b,1,w,1,true,5", "b,a,1,w,1,true,5"], "descends from itself"),
    ],
)
def test_a_bad_table_gets_one_message(tmp_path, lines, message):
    done = _analyse(_csv(tmp_path / "t.csv", lines))

    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "v.json").exists()


def test_no_rows_give_no_verdicts():
    assert judge([], Design(parents={})) == []
