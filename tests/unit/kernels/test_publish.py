"""A published kernel: what a server finds in its folder, and how a change of it is noticed."""

import hashlib
import importlib.metadata
import json
import shutil

import pytest
from config_plugin import KERNEL, file_name, gemm_config, tuning_record
from scripted_kernel import SERVES, publish_scripted, scripted_kernel

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import read_kernel
from leverbench.kernels.publish import publish, read_published
from leverbench.records import read_record, write_record

CHOSEN = (
    {"dimensions": {"heads": 4, "batch": 1}, "config": {"block": 32}, "published": False},
    {"dimensions": {"heads": 4, "batch": 8}, "config": {"block": 64}, "published": True},
)


def test_an_interpreter_with_the_folder_on_its_path_finds_the_plugin(tmp_path, monkeypatch):
    publish_scripted(tmp_path, name="my-kernel")
    monkeypatch.syspath_prepend(str(tmp_path / "plugin"))

    (found,) = importlib.metadata.entry_points(
        group="sglang.srt.plugins", name="leverbench_my_kernel"
    )

    assert found.value == "leverbench_my_kernel:register"
    assert (tmp_path / "plugin/leverbench_my_kernel/kernel.py").exists()


def test_what_did_not_win_is_published_with_the_default(tmp_path):
    publish_scripted(tmp_path, chosen=CHOSEN)

    record = read_record(tmp_path / "published.json")
    about = json.loads((tmp_path / "plugin/leverbench_double/kernel.json").read_text())
    assert [entry["config"] for entry in about["chosen"]] == [{"block": 16}, {"block": 64}]
    assert about["default"] == {"block": 16}
    assert {key: record[key] for key in about} == about


def test_the_digest_names_all_that_a_server_gets(tmp_path):
    def digest(*arguments: str, **settings: object) -> str:
        return read_published(publish_scripted(tmp_path, *arguments, **settings)).digest

    first = digest()
    others = [
        digest(SERVES + "\n"),
        digest(hook="scripted_server.make_trace"),
        digest(chosen=CHOSEN),
        digest(chosen=CHOSEN[:1]),
    ]
    assert len({first, *others}) == 5
    # Published again in the same place, nothing is left of what was there.
    assert digest() == first


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "plugin"), r"__init__\.py: .* is incomplete"),
        (
            lambda folder: (folder / "plugin/leverbench_double/kernel.py").unlink(),
            r"kernel\.py: the published kernel is incomplete",
        ),
        (
            lambda folder: (folder / "plugin/leverbench_double/kernel.py").write_text("x = 1"),
            r"kernel\.py: the published kernel was changed",
        ),
        (
            lambda folder: (folder / "published.json").unlink(),
            r"published\.json: the record is missing",
        ),
    ],
)
def test_what_is_not_as_it_was_published_is_refused(tmp_path, damage, message):
    publish_scripted(tmp_path)
    damage(tmp_path)

    with pytest.raises(LeverbenchError, match=message) as caught:
        read_published(tmp_path)
    assert "run again" in str(caught.value)


def test_a_server_s_compiled_modules_are_no_change(tmp_path):
    publish_scripted(tmp_path)
    compiled = tmp_path / "plugin/leverbench_double/__pycache__"
    compiled.mkdir()
    (compiled / "kernel.cpython-311.pyc").write_bytes(b"x")

    assert read_published(tmp_path).module == "leverbench_double"


def test_a_publication_that_fails_leaves_nothing_half_done(tmp_path):
    publish_scripted(tmp_path)
    before = read_published(tmp_path)

    with pytest.raises(FileNotFoundError):
        publish(scripted_kernel(tmp_path), tmp_path / "nowhere", [], tmp_path)
    assert read_published(tmp_path) == before
    assert not list(tmp_path.glob(".plugin*"))


def test_tuned_files_hold_every_size_and_the_incumbent_where_nothing_won(tmp_path):
    tuned, kept = gemm_config(32), gemm_config(16)
    kernel = read_kernel(KERNEL)
    record = tuning_record(tmp_path / "t.json", 256, 512, {1: kept, 16: tuned}, "Some GPU", (1,))

    publish(kernel, tmp_path, [record], tmp_path)

    found = read_published(tmp_path)
    package = tmp_path / "plugin/leverbench_w8a8_block_fp8"
    (file,) = (package / "configs").iterdir()
    assert file.name == file_name(256, 512, "Some_GPU")
    assert json.loads(file.read_text()) == {"1": dict(kernel.default), "16": tuned}
    assert found.files == {(256, 512): hashlib.sha256(file.read_bytes()).hexdigest()}
    said = json.loads((package / "configs.json").read_text())
    assert (said["device"], list(said["files"])) == ("Some_GPU", [file.name])
    assert (said["digest"], found.hook) == (found.digest, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"machine": {"gpus": None}}, "1 sizes on the GPU None"),
        ({"machine": None}, "no record of a tuning"),
        ({"chosen": []}, "0 sizes on the GPU Some GPU"),
        ({"chosen": [{"dimensions": {"M": 1}}]}, "no record of a tuning"),
        ({"chosen": [{"dimensions": {"N": "x", "K": 1, "M": 1}}]}, "no record of a tuning"),
        ({"machine": {"gpus": "Other GPU"}}, "on several devices: Some GPU, Other GPU"),
    ],
)
def test_tunings_that_make_no_files_are_named_and_what_was_published_stays(tmp_path, changes, said):
    kernel, configs = read_kernel(KERNEL), {1: gemm_config(16)}
    first = tuning_record(tmp_path / "1.json", 256, 512, configs, "Some GPU")
    other = tuning_record(tmp_path / "2.json", 512, 512, configs, "Some GPU")
    publish(kernel, tmp_path, [first, other], tmp_path)
    before = read_published(tmp_path)
    write_record(other, {**read_record(other), **changes})

    with pytest.raises(LeverbenchError, match=said):
        publish(kernel, tmp_path, [first, other], tmp_path)
    assert read_published(tmp_path) == before
