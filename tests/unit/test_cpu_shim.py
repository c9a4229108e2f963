"""The import hooks, each in a fresh interpreter that sees no installed package (``-S``)."""

import subprocess
import sys
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "envs" / "cpu_shim" / "src"

# Stands in for torch: keeps what was defined, and knows what is defined already.
FAKE_TORCH = """
import types
defined = []
class _Library:
    def __init__(self, namespace, kind):
        self.namespace = namespace
    def define(self, schema):
        defined.append(f"{self.namespace}::{schema}")
library = types.SimpleNamespace(Library=_Library)
ops = types.SimpleNamespace(torchvision=types.SimpleNamespace())
"""


def run_python(code: str, site_dir: Path) -> str:
    """Runs code where ``site_dir`` is site-packages and the shim is installed; returns stdout."""
    start = (
        f"import site, sys; sys.path.insert(0, {str(site_dir)!r}); site.addsitedir({str(SHIM)!r})\n"
    )
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_torchvision(site_dir: Path, *, has_ops: bool) -> None:
    (site_dir / "torch.py").write_text(FAKE_TORCH)
    package = site_dir / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("import torchvision.extension\n")
    (package / "extension.py").write_text(f"def _has_ops():\n    return {has_ops}\n")


def test_a_name_of_the_stub_can_be_imported_and_fails_when_called(tmp_path: Path) -> None:
    message = run_python(
        "from sgl_kernel.attention import merge\n"
        "try:\n    merge(1, out=2)\n"
        "except NotImplementedError as error:\n    print(error)",
        tmp_path,
    )

    assert message == (
        "sgl_kernel.attention.merge is not available: it is a native kernel of the serving engine, "
        "and this environment has only the stub of leverbench-cpu-shim in the place of the "
        "sgl_kernel package. This variant needs a real kernel build: install one, or remove the "
        "lever that asks for this operation."
    )


@pytest.mark.parametrize(
    "use",
    [
        "sgl_kernel.silu()",
        "sgl_kernel.silu.default()",
        "bool(sgl_kernel.has_amx)",
        "list(sgl_kernel.configs)",
        "sgl_kernel.block_size + 1",
    ],
)
def test_no_use_of_a_name_passes_in_silence(tmp_path: Path, use: str) -> None:
    outcome = run_python(
        f"import sgl_kernel\n"
        f"try:\n    {use}\n"
        "except (NotImplementedError, TypeError) as error:\n    print('raised', error)",
        tmp_path,
    )

    assert outcome.startswith("raised")


def test_a_real_kernel_package_wins_over_the_stub(tmp_path: Path) -> None:
    (tmp_path / "sgl_kernel").mkdir()
    (tmp_path / "sgl_kernel" / "__init__.py").write_text("def silu():\n    return 'real'\n")

    seen = run_python(
        "import sgl_kernel\n"
        "print(sgl_kernel.silu())\n"
        "try:\n    import sgl_kernel.absent\n"
        "except ModuleNotFoundError as error:\n    print(error)",
        tmp_path,
    )

    assert seen.splitlines() == ["real", "No module named 'sgl_kernel.absent'"]


def test_operators_that_did_not_load_are_declared(tmp_path: Path) -> None:
    make_torchvision(tmp_path, has_ops=False)

    defined = run_python("import torchvision, torch; print(*torch.defined, sep='\\n')", tmp_path)

    assert defined.splitlines() == [
        "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ]


def test_a_torchvision_that_works_is_left_alone(tmp_path: Path) -> None:
    make_torchvision(tmp_path, has_ops=True)

    seen = run_python(
        "before = len(sys.meta_path)\n"
        "import torchvision\n"
        "loader = type(torchvision.extension.__spec__.loader).__name__\n"
        "print(loader, 'torch' in sys.modules, len(sys.meta_path) - before)",
        tmp_path,
    )

    assert seen == "SourceFileLoader False -1"


def test_start_up_imports_only_the_hook(tmp_path: Path) -> None:
    names = run_python(
        "print(*sorted(name for name in sys.modules if 'shim' in name or 'torch' in name))",
        tmp_path,
    )

    assert names == "leverbench_cpu_shim"


def test_a_pth_file_that_is_read_twice_installs_one_pair_of_hooks(tmp_path: Path) -> None:
    finders = run_python(
        f"site.addsitedir({str(SHIM)!r})\n"
        "print(*(type(f).__name__ for f in sys.meta_path if not isinstance(f, type)))",
        tmp_path,
    )

    assert finders == "_TorchvisionHook _KernelStubFinder"


@pytest.mark.engine
def test_the_installed_torchvision_can_be_imported_and_used_or_says_why_not() -> None:
    code = (
        "import torch, torchvision\n"
        "boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 1]])\n"
        "try:\n    print(torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9]), 0.5).tolist())\n"
        "except RuntimeError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[1]" or "Couldn't load custom C++ ops" in result.stdout
