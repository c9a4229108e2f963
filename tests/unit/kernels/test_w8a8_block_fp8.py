"""The engine's block-scaled FP8 GEMM: its candidates, its tensors, and its code, without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import ceil, prod
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.build import build, toolchain
from leverbench.kernels.manifest import Candidate, Kernel, read_kernel, shape_name
from leverbench.kernels.prepared import prepare
from leverbench.tuning.compile_ahead import Compiled, compile_ahead
from leverbench.tuning.gpu import Gpu
from leverbench.tuning.journal import Journal
from leverbench.tuning.space import make_space

FOLDER = Path(__file__).resolve().parents[3] / "kernels/w8a8-block-fp8"
SETTINGS = EngineSettings("sglang", None, None, (), {}, {})
RTX_PRO_6000 = Gpu(capability=120, multiprocessors=188)
H200 = Gpu(capability=90, multiprocessors=132)
SHAPE = {"N": 1536, "K": 4096}


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return read_kernel(FOLDER)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("w8a8_block_fp8", FOLDER / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_it_is_prepared_for_a_gpu_and_not_for_a_cpu(kernel):
    (record,) = prepare(kernel, SETTINGS, "nvidia-h200").tunings

    assert record.name == "k4096-n1536.json"
    with pytest.raises(LeverbenchError, match="shared_bytes is a fact of a GPU"):
        prepare(kernel, SETTINGS, "cpu")


def candidates(kernel: Kernel, m: int, gpu: Gpu = RTX_PRO_6000) -> tuple[Candidate, ...]:
    return make_space(kernel, {**SHAPE, "M": m}, gpu).candidates


def test_the_space_is_that_of_the_engines_own_tuner(kernel):
    assert prod(len(values) for values in kernel.parameters.values()) == 1280
    assert shape_name(kernel.shapes[0]) == "k4096-n1536"
    assert (kernel.hook, kernel.configs) == (None, "w8a8-block-fp8")
    assert kernel.compiles_ahead


@pytest.mark.parametrize("m", [1, 2, 16, 64, 96, 128, 4096])
@pytest.mark.parametrize("gpu", [RTX_PRO_6000, H200], ids=["sm_120", "sm_90"])
def test_the_default_can_be_used_at_every_size(kernel, m, gpu):
    assert candidates(kernel, m, gpu)[0] == kernel.default


def test_a_decode_step_has_few_candidates(kernel):
    """BLOCK_SIZE_M is 16, 32 or 64, and all groups do the same: 192; 12 need too much memory.

    Those have 3 or 4 stages of 128 columns besides, and 256 rows of B.
    """
    tried = candidates(kernel, 16)

    assert len(tried) == 3 * 4 * 2 * 1 * 2 * 4 - 3 * 2 * 2
    assert {each["GROUP_SIZE_M"] for each in tried} == {32}
    assert len(candidates(kernel, 16, H200)) == 192


def test_what_is_refused_is_told_by_its_reason(kernel):
    restricted = make_space(kernel, {**SHAPE, "M": 4096}, RTX_PRO_6000).restricted
    memory, registers, groups = (
        next(text for text in kernel.restrictions if part in text)
        for part in ("shared_bytes", "32 * num_warps", "GROUP_SIZE_M ==")
    )

    assert restricted.keys() == {memory, registers, groups}
    # The benchmark compile_ahead.py compiles all, and finds that these are what does not fit.
    assert restricted[memory] == 152
    on_h200 = make_space(kernel, {**SHAPE, "M": 4096}, H200).restricted
    # 128 x 256, 256 x 128 and 256 x 256 by 4 warps, 256 x 256 by 8.
    assert on_h200[registers] == 4 * 2 * 4 * 4 - on_h200[memory]


def test_rows_that_are_not_aligned_take_less_shared_memory(kernel):
    dimensions = {"N": 1536, "K": 4096 + 4, "M": 4096}
    restricted = make_space(kernel, dimensions, RTX_PRO_6000).restricted

    assert not any("shared_bytes" in text for text in restricted)


@pytest.mark.parametrize("m", [1, 16, 17, 64, 65, 128, 300])
def test_a_tile_that_is_left_out_has_a_half_with_as_many_programs(kernel, m):
    tried = {each["BLOCK_SIZE_M"] for each in candidates(kernel, m, H200)}

    assert tried >= {16, 32, 64}
    for rows in set(kernel.parameters["BLOCK_SIZE_M"]) - tried:
        assert ceil(m / rows) == ceil(m / (rows // 2)) == 1


def order_of_tiles(m: int, rows: int, group: int, columns: int = 3) -> tuple[tuple[int, int], ...]:
    """Returns which tile each program of the kernel computes, as its first lines say."""
    down = ceil(m / rows)
    order = []
    for pid in range(down * columns):
        first = pid // (group * columns) * group
        size = min(down - first, group)
        order.append((first + pid % size, pid % (group * columns) // size))
    return tuple(order)


@pytest.mark.parametrize("m", [1, 16, 17, 100, 256, 257, 512, 513, 1024, 1040, 2048, 4096])
def test_groups_that_are_left_out_do_what_another_does(kernel, m):
    tried: dict[int, set[int]] = {}
    for each in candidates(kernel, m, H200):
        tried.setdefault(each["BLOCK_SIZE_M"], set()).add(each["GROUP_SIZE_M"])

    for rows, groups in tried.items():
        orders = {order_of_tiles(m, rows, group) for group in kernel.parameters["GROUP_SIZE_M"]}
        kept = [order_of_tiles(m, rows, group) for group in groups]
        assert set(kept) == orders
        assert len(kept) == len(orders)


@pytest.mark.parametrize("m", [16, 4096])
def test_candidates_come_by_a_roofline(kernel, m):
    def estimate(each: Candidate) -> int:
        rows, columns = each["BLOCK_SIZE_M"], each["BLOCK_SIZE_N"]
        tiles = ceil(m / rows) * ceil(SHAPE["N"] / columns)
        return ceil(tiles / 188) * (rows + columns + rows * columns // 256)

    _, *others = candidates(kernel, m)
    estimates = [estimate(each) for each in others]

    assert estimates == sorted(estimates)
    # 48 programs of 16 x 32 are one wave, 384 of 128 x 128 three.
    assert (others[0]["BLOCK_SIZE_M"], others[0]["BLOCK_SIZE_N"]) == {
        16: (16, 32),
        4096: (128, 128),
    }[m]


def tensors(module: ModuleType, seed: int = 1, **dimensions: int) -> dict[str, Tensor]:
    inputs: dict[str, Tensor] = module.make_inputs(dimensions, torch.Generator().manual_seed(seed))
    return inputs


def product_of(module: ModuleType, inputs: Mapping[str, Tensor]) -> Tensor:
    exact: Tensor = module.reference({name: value.double() for name, value in inputs.items()})["C"]
    return exact


def test_the_reference_is_the_product_of_scaled_elements(module):
    """(2 * 3) * 128 of the first block of K, (4 * 5) * 128 of the second, for every column."""
    inputs = {
        "A": torch.ones(1, 256),
        "B": torch.ones(130, 256),
        "As": torch.tensor([[2.0, 4.0]]),
        "Bs": torch.tensor([[3.0, 5.0], [30.0, 50.0]]),
    }
    result = product_of(module, inputs)

    assert result.shape == (1, 130)
    assert (result[0, 127], result[0, 128]) == (3328, 33280)


def test_tensors_are_as_the_engine_wants_them(module):
    engine = module._engine()
    inputs = tensors(module, M=3, N=200, K=384)

    made = engine.prepare_block_fp8_matmul_inputs(
        *(inputs[name] for name in ("A", "B", "As", "Bs")), [128, 128], torch.bfloat16
    )
    assert made[:3] == (3, 200, 384)
    output = module.make_outputs({"M": 3, "N": 200, "K": 384}, "cpu")["C"]
    assert (output.shape, output.dtype, output.stride()) == (
        made[3].shape,
        made[3].dtype,
        made[3].stride(),
    )


def test_quantised_values_use_the_whole_range(module):
    inputs = tensors(module, M=2, N=130, K=192)

    # Each group of 128 elements of a row, and each block, has an element at the end of the range.
    assert (inputs["A"].float()[:, :128].abs().amax(1) == 448).all()
    assert (inputs["A"].float()[:, 128:].abs().amax(1) == 448).all()
    assert inputs["B"].float()[128:, 128:].abs().max() == 448
    assert (inputs["As"].shape, inputs["Bs"].shape) == ((2, 2), (2, 2))


@pytest.mark.parametrize(("scales", "dimension"), [("As", 1), ("Bs", 0), ("Bs", 1)])
def test_a_scale_of_a_neighbour_is_no_right_result(kernel, module, scales, dimension):
    inputs = tensors(module, M=16, N=256, K=4096)
    right = product_of(module, inputs)
    wrong = product_of(module, {**inputs, scales: inputs[scales].roll(1, dimension)})

    allowed = kernel.tolerance.absolute + kernel.tolerance.relative * right.abs()
    assert 0.5 < right.std() < 2.5
    assert ((wrong - right).abs() > allowed).double().mean() > 0.9


@pytest.fixture
def engine_of(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Makes an engine of a few files, whose kernel may be in one of two modules."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_MODULES", ("new.fp8", "old.fp8"))
    before = set(sys.modules)

    def make(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"old/fp8.py": "_w8a8_block_fp8_matmul = 1"}, "old.fp8"),
        # Its present name stands for other things, too.
        ({"new/fp8.py": "", "old/fp8.py": "_w8a8_block_fp8_matmul = 1"}, "old.fp8"),
        ({"new/fp8.py": "_w8a8_block_fp8_matmul = 1", "old/fp8.py": "1 / 0"}, "new.fp8"),
    ],
)
def test_the_engine_s_module_is_found_where_it_is(module, engine_of, files, found):
    engine_of(files)

    assert module._engine().__name__ == found


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"new/fp8.py": "import absent", "old/fp8.py": ""}, "No module named 'absent'"),
        ({"new/fp8.py": "import ne"}, "No module named 'ne'"),
        ({}, "this SGLang has no _w8a8_block_fp8_matmul"),
    ],
)
def test_what_the_engine_lacks_is_told(module, engine_of, files, message):
    engine_of(files)

    with pytest.raises(ImportError, match=message):
        module._engine()


def python(program: str, **environment: str) -> str:
    """Runs a program that has the kernel's module as ``kernel``; returns what it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=FOLDER,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


INTERPRETED = """
import json, sys, torch, kernel
config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
configs = [config, {**config, "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128}]
loaded, base, off = kernel.load(None), {"M": 16, "N": 160, "K": 256}, {}
for place, dimensions in enumerate([base, *kernel.odd_shapes(base)]):
    inputs = kernel.make_inputs(dimensions, torch.Generator().manual_seed(place))
    expected = kernel.reference({name: each.double() for name, each in inputs.items()})["C"]
    for config in configs:
        outputs = kernel.make_outputs(dimensions, "cpu")
        outputs["C"].fill_(float("nan"))
        kernel.run(loaded, inputs, outputs, {**config, "num_warps": 4, "num_stages": 3})
        error = (outputs["C"].double() - expected).abs()
        if not bool((error <= 0.02 + 0.008 * expected.abs()).all()):
            off[str(dimensions)] = float(error.max())
print(json.dumps([place + 1, off]))
"""


@pytest.mark.server
def test_calls_are_right_at_odd_shapes_by_triton_s_interpreter(kernel):
    """What is shown is our side of a call: sizes, strides, grid and masking."""
    assert (kernel.tolerance.absolute, kernel.tolerance.relative) == (0.02, 0.008)

    assert json.loads(python(INTERPRETED, TRITON_INTERPRET="1")) == [12, {}]


LAUNCHED = """
import json, os, torch, kernel
from pathlib import Path
cache = Path(os.environ["TRITON_CACHE_DIR"])
config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32}
config |= {"num_warps": 4, "num_stages": 2}
counts = []
for m in (16, 1, 7, 48, 9):
    dimensions = {"M": m, "N": 256, "K": 256}
    kernel.compile(dimensions, config, 120)
    counts.append(len(list(cache.iterdir())))
    loaded = kernel.load(None)
    loaded.device_caches.clear()
    inputs = kernel.make_inputs(dimensions, torch.Generator().manual_seed(1))
    try:
        kernel.run(loaded, inputs, kernel.make_outputs(dimensions, "cpu"), config)
    except AttributeError as error:  # what stands in for the driver cannot launch
        assert "launcher_cls" in str(error), error
    counts.append(len(list(cache.iterdir())))
print(json.dumps(counts))
"""


@pytest.mark.server
def test_a_launch_finds_what_was_compiled_ahead(tmp_path):
    """Sizes that are 1, divisible by 16, and others each have code of their own."""
    counts = json.loads(python(LAUNCHED, TRITON_CACHE_DIR=str(tmp_path)))

    assert counts == [1, 1, 2, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.server
def test_candidates_are_compiled_for_a_gpu_that_is_not_here(kernel, tmp_path, monkeypatch):
    """At the least what is under way is in shared memory; no group is compiled by itself."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    build(kernel, toolchain(kernel, SETTINGS), tmp_path / "built")
    tried = [
        {**kernel.default, "GROUP_SIZE_M": group, "BLOCK_SIZE_N": columns}
        for columns, group in product((128, 256), (1, 32))
    ]
    stages = 4  # of 128 x (64 + 256) bytes: three are too much for sm_120

    journal = Journal(tmp_path / "journal.jsonl", {})
    tried = [{**each, "num_stages": stages} for each in tried]
    code, call = tmp_path / "built/code", {**SHAPE, "M": 64}
    small = compile_ahead(kernel, code, SETTINGS, call, tried, 120, 2, journal)
    large = compile_ahead(kernel, code, SETTINGS, call, tried, 90, 2, journal)

    assert [isinstance(each, Compiled) for each in small] == [True, True, False, False]
    assert [str(each.reason) for each in small if not isinstance(each, Compiled)] == [
        "out-of-resources",
        "out-of-resources",
    ]
    for each, columns in zip(large, (128, 128, 256, 256), strict=True):
        assert isinstance(each, Compiled)
        assert 3 * 128 * (64 + columns) <= each.shared_bytes <= 232448
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1 + 4
