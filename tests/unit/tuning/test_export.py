"""The bundle for upstream: what is in it, what is left out, and which records it refuses."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from leverbench.engines.sglang_configs import file_name, read_folder
from leverbench.errors import LeverbenchError
from leverbench.records import read_record, write_record
from leverbench.tuning.export import export

GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
DEFAULT = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 32,
    "num_warps": 4,
    "num_stages": 3,
}
WINNER = {**DEFAULT, "BLOCK_SIZE_M": 16, "num_stages": 4}
VERSIONS = {"engine": "0.5.23", "triton": "3.6.0", "torch": None}


def entry(m: int, *, shape: tuple[int, int] = (1536, 4096), won: bool = True) -> dict[str, Any]:
    """Returns 12 us with the default: against 8 us, or a rival that is not told from it."""
    return {
        "dimensions": {"N": shape[0], "K": shape[1], "M": m},
        "config": WINNER if won else DEFAULT,
        "default": DEFAULT,
        "raced": WINNER,
        "tuned_s": 8e-6 if won else 12e-6,
        "default_s": 12e-6,
        "raced_s": 8e-6 if won else 12.1e-6,
        "speedup": 1.5 if won else 0.992,
        "low": 1.48 if won else 0.98,
        "high": 1.52 if won else 1.004,
        "published": won,
    }


def tuning(folder: Path, name: str, entries: list[dict[str, Any]], **changes: Any) -> Path:
    at = entries[0]["dimensions"] if entries else {"N": 512, "K": 512}
    record = {
        "kind": "tuning",
        "method": 1,
        "kernel": "w8a8-block-fp8",
        "digests": {"code": "c" * 64, "build": "b" * 16, "space": "5" * 64},
        "machine": {"device": "gpu", "cpu": "any", "gpus": GPU, "driver": "580.1"},
        "shape": {"N": at["N"], "K": at["K"]},
        "device": "cuda",
        "outcome": "tuned",
        "detail": None,
        "chosen": entries,
    }
    path = folder / f"{name}.json"
    write_record(path, record | changes)
    return path


def bundle(tunings: list[Path], folder: Path) -> Path:
    export(tunings, folder, engine="sglang", versions=VERSIONS, command="snakemake export")
    return folder


def refused(tunings: list[Path], folder: Path) -> str:
    with pytest.raises(LeverbenchError) as error:
        bundle(tunings, folder)
    assert error.value.cure
    return str(error.value)


def test_a_file_lists_all_that_was_tuned_and_the_default_where_it_stays(tmp_path):
    one = tuning(tmp_path, "one", [entry(1), entry(16, won=False), entry(32)])
    other = tuning(tmp_path, "other", [entry(1, shape=(8192, 1024), won=False)])

    made = bundle([one, other], tmp_path / "bundle")

    assert {path.name for path in made.iterdir()} == {
        *("README.md", "configs", "provenance.json", "table.csv")
    }
    # Without its M=16, the engine would take a winner's config there: 16 is nearer to 1 than to 32.
    about = {"device": GPU, "block": (128, 128), "version": "0.5.23"}
    assert read_folder(made / "configs", **about) == {
        (1536, 4096): {1: WINNER, 16: DEFAULT, 32: WINNER}
    }


def test_the_table_has_a_row_a_call(tmp_path):
    one = tuning(tmp_path, "one", [entry(1), entry(16, won=False)])
    never_raced = entry(8, shape=(8192, 1024), won=False)
    never_raced |= dict.fromkeys(("raced", "raced_s", "speedup", "low", "high"))
    other = tuning(tmp_path, "other", [never_raced])

    made = bundle([one, other], tmp_path / "bundle")

    with (made / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["N"], row["K"], row["M"], row["shipped"]) for row in rows] == [
        ("1536", "4096", "1", "yes"),
        ("1536", "4096", "16", "no"),
        ("8192", "1024", "8", "no"),
    ]
    assert rows[0] == {
        "N": "1536",
        "K": "4096",
        "M": "1",
        "default_us": "12.000",
        "tuned_us": "8.000",
        "speedup": "1.5000",
        "speedup_low": "1.4800",
        "speedup_high": "1.5200",
        "shipped": "yes",
        **{key: str(value) for key, value in WINNER.items()},
        "device": GPU,
        "driver": "580.1",
        "engine": "0.5.23",
        "triton": "3.6.0",
        "torch": "",
    }
    assert (rows[1]["tuned_us"], rows[1]["speedup"]) == ("12.100", "0.9920")
    # "No data" is empty, never 0.
    assert (rows[2]["tuned_us"], rows[2]["speedup"], rows[2]["speedup_low"]) == ("", "", "")
    readme = (made / "README.md").read_text()
    assert "snakemake export" in readme
    assert "Calls that were tuned: 3; that got another config than the default: 1." in readme
    assert "| 1536 | 4096 | 16 | 12.00 | 12.10 | 0.992 (0.980 to 1.004) | no: the default" in readme


def test_the_account_stands_beside_the_engines_files(tmp_path):
    one = tuning(tmp_path, "one", [entry(1)])

    made = bundle([one], tmp_path / "bundle")

    record = read_record(made / "provenance.json")
    name = file_name(1536, 4096, GPU, (128, 128))
    assert list(record["files"]) == [name]
    assert json.loads((made / "configs" / name).read_text()) == {"1": WINNER}
    assert record["machine"] == {"gpus": GPU, "driver": "580.1"}
    assert record["versions"] == VERSIONS
    assert record["calls"][0]["tuned_s"] == 8e-6
    assert record["tunings"] == [str(one)]


def test_the_same_records_give_the_same_bytes_and_replace_the_bundle(tmp_path):
    one = tuning(tmp_path, "one", [entry(1)])
    made = bundle([one], tmp_path / "bundle")
    first = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    (made / "configs" / file_name(1, 1, GPU, (128, 128))).write_text("of an earlier bundle")

    bundle([one], made)

    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "one.json"]


def test_where_the_default_stays_everywhere_there_are_no_files_and_the_table_says_so(tmp_path):
    made = bundle([tuning(tmp_path, "one", [entry(1, won=False)])], tmp_path / "bundle")

    assert list((made / "configs").iterdir()) == []
    assert "in the engine's own format: 0. Calls" in (made / "README.md").read_text()


def test_what_was_skipped_is_told(tmp_path):
    one = tuning(tmp_path, "one", [entry(1)])
    skipped = {"outcome": "skipped", "detail": "it replaces 1.00% of the time"}
    other = tuning(tmp_path, "other", [], **skipped)

    made = bundle([one, other], tmp_path / "bundle")

    assert "Not tuned: N 512, K 512. it replaces 1.00%" in (made / "README.md").read_text()
    assert list(read_record(made / "provenance.json")["skipped"]) == [str(other)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": 2}, "method 2, not 1"),
        (
            {"machine": {"gpus": "NVIDIA H200", "driver": "580.1"}},
            f"gpus NVIDIA H200, not {GPU}",
        ),
        ({"machine": {"gpus": GPU, "driver": "570.2"}}, "driver 570.2, not 580.1"),
        ({"kernel": "decode-attention"}, "kernel decode-attention, not w8a8-block-fp8"),
        ({"digests": {"code": "c" * 64, "build": "x", "space": "5" * 64}}, "build x, not bbbb"),
    ],
)
def test_records_that_do_not_belong_together_are_refused(tmp_path, changes, said):
    one = tuning(tmp_path, "one", [entry(1)])
    other = tuning(tmp_path, "other", [entry(1, shape=(8192, 1024))], **changes)

    text = refused([one, other], tmp_path / "bundle")

    assert text.startswith(f"{other}: it does not belong with {one}: ")
    assert said in text
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outcome": "skipped", "detail": "a share of 1%"}, "nothing was tuned: a share of 1%"),
        ({"outcome": "given", "detail": "its files are given"}, "tuned: its files are given"),
        ({"chosen": []}, "nothing was tuned: no size was asked for"),
        ({"chosen": [entry(1) | {"speedup": "nan"}]}, "no record of a tuning"),
        ({"chosen": [entry(1) | {"default_s": "inf"}]}, "no record of a tuning"),
        ({"machine": {"device": "cpu"}, "device": "cpu"}, "tuned on the device cpu"),
        ({"kind": "microbench"}, "no record of a tuning"),
        ({"outcome": "lost"}, "no record of a tuning"),
        ({"machine": None}, "no record of a tuning"),
        ({"chosen": [{"dimensions": {}}]}, "no record of a tuning"),
        ({"chosen": [entry(1) | {"published": "yes"}]}, "no record of a tuning"),
        ({"chosen": [entry(1) | {"default_s": None}]}, "no record of a tuning"),
        ({"chosen": [entry(1) | {"high": None}]}, "no record of a tuning"),
        ({"chosen": 7}, "no record of a tuning"),
        ({"kernel": "decode-attention"}, "reads no tuned files for the kernel decode-attention"),
        ({"chosen": [entry(1) | {"config": {"block": 1}}]}, "unknown key"),
        ({"chosen": [entry(1) | {"dimensions": {"batch": 1}}]}, "has no dimension 'N'"),
    ],
)
def test_a_record_that_gives_nothing_is_explained(tmp_path, changes, said):
    path = tuning(tmp_path, "one", [entry(1)], **changes)

    assert said in refused([path], tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_records_that_are_not_there_or_there_twice_are_refused(tmp_path):
    one = tuning(tmp_path, "one", [entry(1)])
    again = tuning(tmp_path, "again", [entry(8)])
    (tmp_path / "cut.json").write_text('{"schema_version": 1, "ki')

    assert "there is no tuning to export" in refused([], tmp_path / "bundle")
    assert "the record is missing" in refused([tmp_path / "no.json"], tmp_path / "bundle")
    assert "unreadable record" in refused([tmp_path / "cut.json"], tmp_path / "bundle")
    assert f"for the same shape as {one}" in refused([one, again], tmp_path / "bundle")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    one = tuning(tmp_path, "one", [entry(1)])
    mine = tmp_path / "mine"
    (mine / "configs").mkdir(parents=True)
    (mine / "thesis.tex").write_text("years")

    assert "holds something else (thesis.tex)" in refused([one], mine)
    assert "holds something else (one.json)" in refused([one], one)
    assert (mine / "thesis.tex").read_text() == "years"


def spoilt(rng: random.Random, value: Any) -> Any:
    """Returns a value with one thing in it replaced or left out."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {name: kept for name, kept in value.items() if name != key}
        return value | {key: spoilt(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], spoilt(rng, value[at]), *value[at + 1 :]]
    return rng.choice([None, True, -1, 0, 2.5, "", "text", [], [[]], {}, {"a": []}, 10**12])


def test_no_record_ends_in_anything_but_one_message(tmp_path):
    rng = random.Random(8)
    good = json.loads(tuning(tmp_path, "one", [entry(1), entry(16, won=False)]).read_text())
    messages = []
    for _ in range(150):
        (tmp_path / "one.json").write_text(json.dumps(spoilt(rng, good)))
        try:
            bundle([tmp_path / "one.json"], tmp_path / "bundle")
        except LeverbenchError as error:
            messages.append(str(error))
    assert len(messages) > 75
    assert not [text for text in messages if "\n" in text]
