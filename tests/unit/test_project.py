"""A project: what a run keeps of the results that it makes again."""

import os
from pathlib import Path

from leverbench.project import _keep_superseded


def test_what_is_made_again_is_kept_under_the_time_at_which_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("results/c/v/s1/random")
    folder.mkdir(parents=True)
    for name, text in (("c1.json", "old"), ("c1.parquet", "rows"), ("trace.gz", "large")):
        (folder / name).write_text(text)
        os.utime(folder / name, (0, 0))

    _keep_superseded([folder / n for n in ("c1.json", "c1.parquet", "trace.gz", "c8.json")])
    (folder / "c1.json").write_text("new")

    kept = {str(p): p.read_text() for p in Path("state").rglob("*") if p.is_file()}
    assert kept == {
        f"state/superseded/{folder}/c1.19700101T000000Z.json": "old",
        f"state/superseded/{folder}/c1.19700101T000000Z.parquet": "rows",
    }
    # Made again once more, it stands beside the first.
    os.utime(folder / "c1.json", (60, 60))
    _keep_superseded([folder / "c1.json"])
    second = Path(f"state/superseded/{folder}/c1.19700101T000100Z.json")
    assert second.read_text() == "new"
