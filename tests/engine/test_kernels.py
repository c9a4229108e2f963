"""Kernels that real servers do not load: the server runs happily, and nothing is called a gain."""

import json
import shutil
from typing import Any

import pytest
import yaml
from project_copy import ProjectCopy

KERNEL = "kernels/decode-attention"
# It imports everywhere but in a server.
GUARD = 'import os\n\nif "LEVERBENCH_CALLS" in os.environ:\n    import no_such_module\n\n'


def copy_kernel(project: ProjectCopy, name: str, hook: str | None = None, guard: str = "") -> None:
    """Writes a kernel that is built and tuned as the real one, and is broken in a server."""
    folder = project.path / "kernels" / name
    shutil.copytree(project.path / KERNEL, folder)
    manifest: dict[str, Any] = yaml.safe_load((folder / "kernel.yaml").read_text())
    manifest |= {
        "kernel": name,
        "sizes": {"batch": [1]},
        "parameters": {"block": [32], "threads": [1]},
    }
    if hook:
        manifest["load"]["hook"] = hook
    (folder / "kernel.yaml").write_text(yaml.safe_dump(manifest))
    source = (folder / "kernel.py").read_text()
    (folder / "kernel.py").write_text(
        source.replace("import ctypes\n", f"{guard}import ctypes\n", 1)
    )


@pytest.mark.long
def test_a_kernel_that_is_not_loaded_ends_the_campaign_with_cause_and_cure(small):
    module = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
    copy_kernel(small, "no-hook", hook=f"{module}.no_such_method")
    copy_kernel(small, "no-import", guard=GUARD)
    variants = {
        "baseline": {"args": {"dtype": "float32"}},
        "no-hook": {"from": "baseline", "tuned": ["no-hook"]},
        "no-import": {"from": "baseline", "tuned": ["no-import"]},
    }
    small.change(variants=variants, profile={"concurrency": []}, ladder={1: 2})

    said = small.snakemake()

    assert said.returncode != 0
    results = small.path / "results/quickstart"
    for name, cause in (("no-hook", "no_such_method"), ("no-import", "no_such_module")):
        session = json.loads((results / name / "s1/server.json").read_text())
        assert session["outcome"] == "not-applied"
        assert cause in session["detail"]
        point = json.loads((results / name / "s1/random/c1.json").read_text())
        assert (point["outcome"], point["valid"]) == ("not-applied", False)
        assert f"{name}/s1/server.json: not-applied: {name}: " in said.stdout
    findings = (small.path / "reports/quickstart/findings.md").read_text().replace("\\", "")
    assert "no-hook: not applied" in findings
    assert "no-import: not applied" in findings
    # A second run says so again, without another launch.
    launches = sorted((results / "launches").glob("*.json"))
    assert small.snakemake().returncode != 0
    assert sorted((results / "launches").glob("*.json")) == launches
