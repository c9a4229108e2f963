"""The engine's own kernel in a campaign: whose shapes are tuned, and what stops it beforehand."""

import json

import pytest
from project_copy import ProjectCopy
from scripted_campaign import use_scripted_gpu, use_scripted_servers
from scripted_gpu import Gpu

KERNEL = "w8a8-block-fp8"
MISS = (
    "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not"
    " found at /site/configs/N={n},K={k},device_name=NVIDIA_H200,dtype=fp8_w8a8,"
    "block_shape=[128, 128].json"
)
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
TUNED = {"baseline": {}, "tuned": {"from": "baseline", "tuned": [KERNEL]}}


@pytest.fixture
def gpu_project(project: ProjectCopy) -> ProjectCopy:
    """A campaign on one GPU, with a variant that is given tuned files."""
    use_scripted_servers(project, {"ttft_s": 0.005, "step_s": 0.005}, variants=TUNED)
    use_scripted_gpu(project, {"": Gpu()})
    engine = project.campaign()["engine"]
    engine["args"]["fp8-gemm-backend"] = "triton"
    says = "; ".join(f"echo '{MISS.format(n=n, k=k)}'" for n, k in ((1536, 512), (640, 512)))
    # What an engine logs when its first GEMM of a shape runs.
    speaking = ["sh", "-c", f'case "$*" in *launch_server*) {says};; esac; exec "$@"', "sh"]
    engine["wrapper"] = [*speaking, *engine["wrapper"]]
    project.change(engine=engine)
    (project.path / "models/m/config.json").write_text(json.dumps(CONFIG))
    return project


def test_a_job_a_shape_of_the_model(gpu_project):
    jobs = gpu_project.jobs()

    assert (jobs["tune_kernel"], jobs["build_kernel"], jobs["publish_kernel"]) == (4, 1, 1)


def test_a_bundle_of_its_own(gpu_project):
    made = {"build_kernel": 1, "tune_kernel": 4, "export_kernel": 1, "export": 1}
    assert gpu_project.jobs("export") == made


def test_files_that_would_not_be_read_stop_a_run_before_it_tunes(gpu_project):
    engine = gpu_project.campaign()["engine"]
    engine["args"]["fp8-gemm-backend"] = "cutlass"
    gpu_project.change(engine=engine)

    said = gpu_project.snakemake()

    assert said.returncode != 0
    assert "these files would not be read: fp8-gemm-backend is cutlass" in said.stdout
    assert "rule tune_kernel" not in said.stdout
    assert "Traceback" not in said.stdout


def test_an_unknown_model_stops_a_run(gpu_project):
    other = {**CONFIG, "model_type": "mystery"}
    (gpu_project.path / "models/m/config.json").write_text(json.dumps(other))

    said = gpu_project.snakemake()

    assert said.returncode != 0
    assert "mystery" in said.stdout
    assert "rule serve" not in said.stdout
    assert "Traceback" not in said.stdout


def test_no_server_is_launched_without_its_files_while_their_shapes_are_unknown(gpu_project):
    gpu_project.change(kernels={KERNEL: {"shapes": "discover"}})
    assert gpu_project.jobs("--config", "only=tuned") == {"discover_shapes": 1}
    assert "discover_shapes" not in gpu_project.jobs("--config", "only=baseline")

    said = gpu_project.snakemake("results/small/tuned/s1/server.json")
    assert said.returncode != 0
    assert f"tuned is given {KERNEL}, whose shapes are not known yet" in said.stdout
    assert "rule serve" not in said.stdout

    said = gpu_project.snakemake("--config", "execution=session")
    assert said.returncode != 0
    assert "jobs of one session each" in said.stdout
    assert "rule discover_shapes" not in said.stdout


def test_a_target_of_kernels_discovers_their_shapes_first(gpu_project):
    gpu_project.change(kernels={KERNEL: {"shapes": "discover"}})
    assert gpu_project.jobs("kernels") == {"discover_shapes": 1, "kernels": 1}

    said = gpu_project.snakemake("export")

    assert (said.returncode, "the shapes are known now: run again" in said.stdout) == (0, True)
    assert gpu_project.jobs("export")["tune_kernel"] == 2


@pytest.mark.parametrize("target", ["kernels", "export"])
def test_a_target_of_kernels_that_cannot_be_made_says_so(gpu_project, target):
    (gpu_project.path / "models/m/config.json").write_text(json.dumps({"model_type": "mystery"}))

    said = gpu_project.snakemake("--dry-run", target)

    assert said.returncode != 0
    assert "mystery" in said.stdout
    assert "Traceback" not in said.stdout


def test_shapes_are_discovered_by_one_launch_and_the_run_goes_on_with_them(gpu_project):
    gpu_project.change(kernels={KERNEL: {"shapes": "discover"}})
    assert gpu_project.jobs() == {"discover_shapes": 1}

    said = gpu_project.snakemake()

    (record,) = gpu_project.path.glob(f"results/tuning/{KERNEL}/shapes/*.json")
    seen = json.loads(record.read_text())["looked_up"]
    assert [(one["n"], one["k"]) for one in seen] == [(1536, 512), (640, 512)]
    assert "the shapes are known now" in said.stdout
    assert f"{KERNEL}: N=640, K=512 is only looked up." in said.stdout
    # Here is no GPU that could be timed.
    assert said.returncode != 0
    assert "Traceback" not in said.stdout
    assert not list(gpu_project.path.glob(f"results/tuning/{KERNEL}/shapes/../*/*/*.json"))
    assert gpu_project.jobs()["tune_kernel"] == 2
