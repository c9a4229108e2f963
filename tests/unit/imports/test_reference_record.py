"""What the report says of a campaign that was noted down by hand: each sentence by a rule."""

import sys
from pathlib import Path

import pytest

from leverbench.cli import main
from leverbench.errors import LeverbenchError
from leverbench.imports import import_records
from leverbench.records import read_record

RECORD = Path(__file__).resolve().parents[3] / "config/records/deepseek-v4-flash"


def run(*words: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["leverbench", *map(str, words)])
        main()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("import")
    table, profile = RECORD / "measurements.csv", RECORD / "profile.csv"
    words = ("--campaign", "record", "--target", 1000, "--profile", profile, "--out", root)
    run("import", table, *words)
    return root


@pytest.fixture(scope="module")
def said(root) -> list[str]:
    text = (root / "reports/record/findings.md").read_text()
    return [line for line in text.splitlines() if line.startswith("- **")]


def only(said: list[str], rule: str, *parts: str) -> str:
    """Returns the one sentence of a rule that has all these parts."""
    found = [s for s in said if s.startswith(f"- **{rule}**") and all(part in s for part in parts)]
    assert len(found) == 1, said
    return found[0]


def test_the_gap_to_the_target(said):
    # 1000 / 24.0
    assert "24.0 output tok/s (baseline" in only(said, "target", "41.7 times short")


def test_speculation_gains_at_one_request_and_nothing_at_eight(said):
    sentence = only(said, "crossover", "B (mtp-conservative) over A")

    # 15.7 / 10.7 and 23.2 / 22.6
    assert "a gain at C=1 (+47%)" in sentence
    assert "nothing that matters at C=8 (+3%)" in sentence
    assert "Crossover between C=1 and C=8; both figures are unreplicated." in sentence


def test_the_tuned_gemms_gain_lies_above_its_ceiling(said):
    sentence = only(said, "ceiling", "the ceiling of fp8-tuned-configs")

    # 94 / 88 against 1 / (1 - 0.06)
    assert "a gain of 1.068 at C=1" in sentence
    assert "TPOT 94 to 88 ms, unreplicated" in sentence
    assert "at most 1 / (1 - 0.06) = 1.064" in sentence
    assert "Not that lever's alone, or noise." in sentence
    # 1 / (1 - 0.08)
    assert "fp8-tuned-configs and nccl-ll together: at most 1.087." in sentence


def test_both_configurations_changed_more_than_one_thing(said):
    assert "(fp8-tuned-configs, nccl-ll)" in only(said, "confounded", "A is confounded")
    sentence = only(said, "confounded", "B is confounded")
    assert "mem-fraction-static 0.70 to 0.60, cuda-graph-max-bs 32 to 16" in sentence
    assert "A with mem-fraction-static 0.60, cuda-graph-max-bs 16" in sentence


def test_without_its_largest_kernels_the_target_is_still_far(said):
    sentence = only(said, "removal")

    # 23.6 / (1 - 0.77) = 102.6
    assert "Without moe_slot_gemv (39.0%) and sparse_attention_decode (38.0%)" in sentence
    assert "about 100 output tok/s at C=16: 23.6 / (1 - 0.77)" in sentence
    assert "The target is 1,000: these categories alone do not reach it." in sentence


def test_the_kernel_to_write_next_is_named_with_what_it_bounds(said):
    sentence = only(said, "dominant kernel", "_tiled_sparse_decode_kernel")

    assert "(sparse_attention_decode) takes 63.0% of decode time in profile first (also" in sentence
    # 1 / 0.63 and 1 / 0.37
    assert "at most 1 / 0.63 = 1.59 times as fast, with this kernel gone 2.70." in sentence
    assert "takes 39.0% of decode time in profile c16" in only(
        said, "dominant kernel", "moe_slot_gemv"
    )


def test_its_launch_leaves_most_of_the_chip_without_work(said):
    sentence = only(said, "under-filled launch")

    # 64 / 170
    assert "_tiled_sparse_decode_kernel has 64 blocks on 170 SMs: at most 38% of the chip" in (
        sentence
    )


def test_it_runs_without_tensor_cores(said):
    sentence = only(said, "cuda-core fallback", "_tiled_sparse_decode_kernel")

    assert "63.0% of decode time in profile first" in sentence
    assert "uses no tensor cores (as the record says), although it is matrix work." in sentence
    assert "moe_slot_gemv takes 39.0%" in only(said, "cuda-core fallback", "moe_slot_gemv")


def test_each_category_has_its_ceiling(said):
    sentence = only(said, "category ceilings", "profile first")

    # 1 / 0.37, 1 / 0.94 and 1 / 0.98
    assert "sparse_attention_decode 2.703, gemm_fp8_block 1.064, communication 1.020." in sentence
    # 1 / 0.61 and 1 / 0.62
    assert "moe_slot_gemv 1.639, sparse_attention_decode 1.613." in only(
        said, "category ceilings", "profile c16"
    )


def test_levers_are_exhausted_and_kernels_are_left(said):
    sentence = only(said, "levers exhausted")

    assert "No lever of the configuration can give 10% any more" in sentence
    assert "fp8-tuned-configs 1.064 (gemm_fp8_block 6.0% in first)" in sentence
    assert "nccl-ll 1.020 (communication 2.0% in first)" in sentence
    assert "mtp-conservative: no ceiling, and measured." in sentence
    assert "at most 2.70 without sparse_attention_decode (63.0% in first), 1.64 without" in sentence


def test_what_the_kernels_leave_of_the_gap(said):
    sentence = only(said, "removal")

    # 1000 / 102.6, and 1 - 23.6 / 1000
    assert "A factor of 9.7 would still be missing" in sentence
    assert "97.6% of decode time must go" in sentence


def test_every_figure_is_called_unreplicated(said):
    assert "every figure is unreplicated" in only(said, "record", "measurements.csv")
    assert not [s for s in said if "is withheld" in s]


def test_profiles_are_told_with_blocks_and_multiprocessors(said):
    sentence = only(said, "profile", "c16 (C=16)")

    assert "(38.0%, 64 blocks on 170 SMs, no tensor cores)" in sentence
    assert "no concurrency told" in only(said, "profile", "first")


def test_the_page_says_what_others_did_not_tell(root):
    page = (root / "reports/record/index.html").read_text()

    assert "Others measured this." in page
    assert "1.064 for fp8-tuned-configs (gemm_fp8_block 6.0 % in first)" in page
    assert "two levers in one config" in page
    assert "snakemake --cores" not in page
    assert "Warm-up at the measured shape" not in page


def test_the_table_has_what_the_record_has_and_nothing_else(root):
    import pandas as pd

    table = pd.read_csv(root / "results/record/analysis/measurements.csv")

    assert len(table) == 9
    assert table.mean_tpot_ms.dropna().tolist() == [94, 88, 58]
    assert table.mean_ttft_ms.isna().all()
    assert table.parent.isna().tolist() == [True] * 3 + [False] * 6
    assert set(table.session) == {1}


def test_an_import_is_written_again_over_itself_alone(root, tmp_path):
    table = RECORD / "measurements.csv"
    import_records([table], "record", root)
    assert "removal" not in (root / "reports/record/findings.md").read_text()

    plan = tmp_path / "results/mine/plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text('{"schema_version": 1, "kind": "plan"}')
    with pytest.raises(LeverbenchError, match=r"results/mine: a campaign of this name"):
        import_records([table], "mine", tmp_path)
    (tmp_path / "reports/old").mkdir(parents=True)
    with pytest.raises(LeverbenchError, match="something of this name is here already"):
        import_records([table], "old", tmp_path)

    assert read_record(plan) == {"schema_version": 1, "kind": "plan"}
    assert not (tmp_path / "results/old").exists()


@pytest.mark.parametrize("name", ["A", "../x", "", "x" * 65, "tuning"])
def test_a_name_that_no_campaign_has_is_refused(name, tmp_path, capsys):
    with pytest.raises(SystemExit, match="leverbench: --campaign"):
        run("import", RECORD / "measurements.csv", "--campaign", name, "--out", tmp_path)

    assert list(tmp_path.iterdir()) == []
