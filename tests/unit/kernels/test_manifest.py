"""Reading kernels: what a manifest says, and one message for each mistake."""

import re
from pathlib import Path
from typing import Any

import pytest
from unit.kernels.kernel_folders import MANIFEST, kernel, kernel_folder

from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import for_campaign, read_kernel, shape_name

ROOT = Path(__file__).resolve().parents[3]


def refusal(folder: Path) -> str:
    """Returns the message that a kernel is refused with: one line, relative to its parent."""
    with pytest.raises(LeverbenchError) as caught:
        read_kernel(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder.parent}/")


def test_what_a_manifest_says(tmp_path):
    read = kernel(tmp_path, flags=["-O3"], restrictions=["block <= width"], touches=["gemm"])

    assert (read.name, read.language, read.engine) == ("scale", "cpp", "some")
    assert read.sources == ("scale.cpp",)
    assert read.flags == ("-O3",)
    assert read.parameters == {"block": (16, 32)}
    assert read.default == {"block": 16}
    assert read.restrictions == ("block <= width",)
    assert read.tolerance.relative == 1e-6
    assert read.hook == "some.module.scale"
    assert read.touches == ("gemm",)
    assert [path.name for path in read.files()] == ["kernel.py", "scale.cpp"]


def test_a_call_is_tuned_for_each_size_of_a_shape(tmp_path):
    read = kernel(tmp_path)

    assert read.calls({"width": 8}) == [{"width": 8, "rows": 1}, {"width": 8, "rows": 4}]
    assert kernel(tmp_path, sizes=None).calls({"width": 8}) == [{"width": 8}]


def test_a_campaign_may_ask_for_other_shapes_and_sizes(tmp_path):
    read = kernel(tmp_path)
    asked = for_campaign(read, {"sizes": [8, 2], "shapes": [{"width": 3}]})

    assert for_campaign(read, {}) == read
    assert (asked.sizes, asked.shapes) == ((2, 8), ({"width": 3},))


def test_switches_are_numbers(tmp_path):
    read = kernel(tmp_path, parameters={"fused": [False, True]}, default={"fused": True})

    assert read.parameters == {"fused": (0, 1)}
    assert read.default == {"fused": 1}


def test_the_engine_s_own_kernel_has_configs_and_serves_nothing(tmp_path):
    folder = kernel_folder(
        tmp_path,
        language="triton",
        sources=None,
        order="-block",
        compile_shares=["block"],
        load={"engine": "some", "configs": "block-fp8"},
    )
    module = folder / "kernel.py"
    module.write_text(module.read_text().replace("def serve(", "def compile("))
    read = read_kernel(folder)

    assert (read.hook, read.configs, read.replaces) == (None, "block-fp8", "block-fp8")
    assert read.sources == ()
    assert (read.order, read.compile_shares, read.compiles_ahead) == ("-block", ("block",), True)
    plain = kernel(tmp_path)
    assert (plain.configs, plain.replaces) == (None, "some.module.scale")
    assert (plain.order, plain.compile_shares, plain.compiles_ahead) == (None, (), False)


def test_what_shares_a_compile_is_a_parameter(tmp_path):
    folder = kernel_folder(tmp_path, compile_shares=["block", "group"])
    module = folder / "kernel.py"
    module.write_text(module.read_text() + "def compile(): ...\n")

    assert "compile_shares: there is no parameter group. There are: block." in refusal(folder)


def test_the_name_of_a_shape_has_one_order():
    assert shape_name({"head_dim": 64, "batch": 16}) == "batch16-headdim64"
    assert shape_name({"batch": 16, "head_dim": 64}) == "batch16-headdim64"


def test_the_name_of_a_shape_has_no_capitals():
    assert shape_name({"N": 1536, "K": 4096}) == "k4096-n1536"


def without(*keys: str) -> dict[str, Any]:
    return dict.fromkeys(keys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (without("language"), "'language' is a required property"),
        (without("default"), "'default' is a required property"),
        ({"language": "fortran"}, "language: 'fortran' is not one of"),
        ({"colour": "red"}, "unknown key 'colour'. Known here: kernel,"),
        ({"sources": ["../scale.cpp"]}, "sources.0:"),
        ({"sources": ["more.cpp"]}, "more.cpp is missing. Add it, or change sources:"),
        ({"kernel": "other"}, "the kernel is called other, and its folder scale. Give both"),
        ({"default": {"blok": 16}}, "do not name the same (block, blok). Give each parameter"),
        ({"default": {"block": 8}}, "the default block: 8 is none of the values that are tried"),
        ({"parameters": {"block": []}}, "parameters.block: [] "),
        ({"parameters": {"b-1": [1]}}, "b-1"),
        ({"shapes": [{"width": 8}, {"height": 8}]}, "shapes do not all have the same dimensions"),
        ({"shapes": [{"width": 0}]}, "shapes.0.width: 0 is less than the minimum of 1"),
        ({"shapes": [{"block": 8}]}, "a name stands for two things among"),
        ({"sizes": {"rows": [1], "columns": [1]}}, "sizes:"),
        ({"tolerance": {"absolute": "1e-5", "relative": 0}}, "tolerance.absolute: '1e-5' is not"),
        ({"load": {"engine": "some", "hook": "scale"}}, "load.hook: 'scale' does not match"),
        ({"load": {"engine": "some"}}, "load names either a hook or configs"),
        ({"load": {"engine": "some", "hook": "a.b", "configs": "c"}}, "either a hook or configs"),
        (without("sources"), "sources names no file, and cpp is compiled from files. Name them."),
        ({"shapes": [{"N_1": 8, "n1": 8}]}, "two dimensions of a shape look alike in a path"),
        ({"sizes": {"cores": [1]}}, "cores is the number of CPU cores, in restrictions"),
        ({"sizes": {"shared_bytes": [1]}}, "shared_bytes is the largest shared memory of a block"),
        ({"compile_shares": ["group"]}, "it defines no function compile"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_mistake_has_one_message(tmp_path, changes, message):
    said = refusal(kernel_folder(tmp_path, **changes))

    assert said.startswith("scale")
    assert message in said


def test_a_mistake_is_told_with_its_line(tmp_path):
    folder = kernel_folder(tmp_path, default={"block": 8})
    lines = (folder / "kernel.yaml").read_text().splitlines()

    assert refusal(folder).startswith(f"scale/kernel.yaml:{lines.index('default:') + 2}: ")


def test_a_kernel_that_is_not_there(tmp_path):
    assert refusal(tmp_path / "none").startswith(
        "none/kernel.yaml: there is no such kernel. docs/kernels.md tells how to add one."
    )


def test_a_kernel_without_its_module(tmp_path):
    folder = kernel_folder(tmp_path)
    (folder / "kernel.py").unlink()

    assert refusal(folder).startswith("scale: kernel.py is missing")


def test_a_function_that_kernel_py_lacks_is_named_without_importing_it(tmp_path):
    folder = kernel_folder(tmp_path)
    text = (folder / "kernel.py").read_text().replace("def serve(", "def server(")
    (folder / "kernel.py").write_text(f"import no_such_module\n{text}")

    with pytest.raises(LeverbenchError) as caught:
        read_kernel(folder)

    assert f"{folder}/kernel.py: it defines no function serve. docs" in str(caught.value)


def test_what_is_built_is_named_by_files_flags_hook_and_tolerance(tmp_path):
    def code(**changes: Any) -> str:
        return kernel(tmp_path, **changes).code_digest

    same = [
        code(shapes=[{"width": 9}]),
        code(sizes={"rows": [2]}),
        code(parameters={"block": [16, 64]}),
        code(description="Other words."),
    ]
    others = [
        code(flags=["-O2"]),
        code(tolerance={"absolute": 1, "relative": 0}),
        code(load={"engine": "some", "hook": "some.module.other"}),
        code(load={"engine": "some", "configs": "other"}),
    ]
    assert {code(), *same} == {code()}
    assert len({code(), *others}) == 5


def test_what_is_tried_is_named_by_parameters_default_and_restrictions(tmp_path):
    def space(**changes: Any) -> str:
        return kernel(tmp_path, **changes).space_digest

    others = [
        space(parameters={"block": [16, 64]}),
        space(default={"block": 32}),
        space(restrictions=["block <= width"]),
        space(sizes={"lines": [4, 1]}),
        space(order="block"),
    ]
    assert space(shapes=[{"width": 9}], flags=["-O2"]) == space()
    assert len({space(), *others}) == 6


@pytest.mark.parametrize("folder", sorted((ROOT / "kernels").iterdir()), ids=lambda p: p.name)
def test_the_project_s_own_kernels_can_be_read(folder):
    assert read_kernel(folder).name == folder.name


def test_the_documentation_names_every_key():
    text = (ROOT / "docs/kernels.md").read_text()
    table = text.partition("### kernel.yaml")[2].partition("### kernel.py")[0]
    schema = (ROOT / "workflow/schemas/kernel.schema.yaml").read_text()
    keys = re.findall(r"^  (\w+):", schema.partition("\nproperties:")[2], re.MULTILINE)

    assert set(MANIFEST) < set(keys)
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == keys
