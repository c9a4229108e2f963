"""Builds with the machine's own compiler, and what names them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from unit.kernels.kernel_folders import SOURCE, kernel

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.errors import LeverbenchError
from leverbench.kernels.build import Toolchain, build, build_key, toolchain
from leverbench.kernels.manifest import Kernel
from leverbench.records import read_record

ENGINE = EngineSettings("some", None, None, (), {}, {})
TRITON: dict[str, Any] = {"language": "triton", "sources": ["scale_triton.py"]}


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def built(read: Kernel, folder: Path) -> dict[str, Any]:
    build(read, toolchain(read, ENGINE), folder)
    return read_record(folder / "build.json")


def refusal(read: Kernel, folder: Path, **changes: Any) -> LeverbenchError:
    with pytest.raises(LeverbenchError) as caught:
        build(read, replace(toolchain(read, ENGINE), **changes), folder)
    assert not (folder / "build.json").exists()
    assert not (folder / "code").exists()
    return caught.value


def test_a_library_is_built_with_all_that_a_server_needs(tmp_path):
    read = kernel(tmp_path, flags=["-O1"])
    record = built(read, tmp_path / "out")

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["build.json", "code"]
    code = tmp_path / "out/code"
    assert sorted(record["files"]) == ["kernel.py", "kernel.yaml", "libkernel.so"]
    assert sorted(path.name for path in code.iterdir()) == sorted(record["files"])
    assert ctypes.CDLL(str(code / "libkernel.so")).scale(21) == 42
    assert record["outcome"] == "built"
    assert record["command"][1:] == [
        *["-shared", "-fPIC", "-std=c++17", "-Wl,-z,defs", "-o", "libkernel.so", "scale.cpp", "-O1"]
    ]
    assert record["digests"]["code"] == read.code_digest
    assert 0 < record["seconds"] < 20


def test_a_build_takes_the_place_of_another(tmp_path):
    folder = kernel(tmp_path).folder
    built(kernel(tmp_path), tmp_path / "out")
    (tmp_path / "out/published").mkdir()
    read = kernel(tmp_path)
    (folder / "scale.cpp").write_text(SOURCE.replace("2 *", "3 *"))
    built(read, tmp_path / "out")

    assert ctypes.CDLL(str(tmp_path / "out/code/libkernel.so")).scale(2) == 6
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *["build.json", "code", "published"]
    }


def test_a_header_that_the_manifest_names_is_included(tmp_path):
    folder = kernel(tmp_path).folder
    (folder / "factor.h").write_text("constexpr int factor = 5;\n")
    source = '#include "factor.h"\n' + SOURCE.replace("2 *", "factor *")

    def changed(**changes: Any) -> Kernel:
        read = kernel(tmp_path, **changes)
        (folder / "scale.cpp").write_text(source)
        return read

    built(changed(sources=["scale.cpp", "factor.h"]), tmp_path / "out")
    assert ctypes.CDLL(str(tmp_path / "out/code/libkernel.so")).scale(2) == 10
    # Else an edit of it would build nothing.
    error = refusal(changed(), tmp_path / "other")
    assert "factor.h: No such file or directory" in str(error)
    assert error.where == f"{folder}/scale.cpp:1"


def test_an_error_shows_the_compiler_s_lines_and_where(tmp_path):
    read = kernel(tmp_path)
    (read.folder / "scale.cpp").write_text(SOURCE + "int other() { return wrong; }\n")
    error = refusal(read, tmp_path / "out")

    assert error.where == f"{read.folder}/scale.cpp:2"
    assert error.what == "g++ does not build it: 'wrong' was not declared in this scope"
    lines = str(error).splitlines()
    assert lines[0].endswith("Correct what it says:")
    assert lines[1].startswith("scale.cpp:2:22: error: 'wrong' was not declared")
    assert lines[2] == "    2 | int other() { return wrong; }"
    assert list((tmp_path / "out").iterdir()) == []


def test_of_many_errors_the_first_are_shown(tmp_path):
    read = kernel(tmp_path)
    (read.folder / "scale.cpp").write_text("".join(f"int a{n} = b{n};\n" for n in range(100)))

    assert 10 < len(str(refusal(read, tmp_path / "out")).splitlines()) <= 21


def test_a_module_beside_its_library_is_what_python_imports(tmp_path):
    read = kernel(tmp_path)
    (read.folder / "kernel.py").write_text("FOUND = True\n")
    built(read, tmp_path / "out")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'out/code')!r}); import kernel"

    subprocess.run([sys.executable, "-c", f"{code}; assert kernel.FOUND"], check=True)


def test_a_symbol_that_is_missing_fails_the_build(tmp_path):
    read = kernel(tmp_path)
    (read.folder / "scale.cpp").write_text(
        'int far(int);\nextern "C" int scale(int value) { return far(value); }\n'
    )
    error = refusal(read, tmp_path / "out")

    assert "undefined reference to `far(int)'" in error.what
    assert error.where == str(read.folder)


def test_an_error_in_python_is_found_before_anything_is_compiled(tmp_path):
    read = kernel(tmp_path)
    (read.folder / "kernel.py").write_text("import ctypes\ndef load(folder:\n")
    error = refusal(read, tmp_path / "out", compiler="/nowhere/compiler")

    assert error.where == f"{read.folder}/kernel.py:2"
    assert "def load(folder:" in error.what


def test_no_compiler_is_said_when_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    read = kernel(tmp_path)

    assert toolchain(read, ENGINE).compiler is None
    assert str(refusal(read, tmp_path / "out")) == (
        f"{read.folder}/kernel.yaml: there is no compiler no-such-compiler."
        " Install g++, or name another in the environment variable CXX."
    )


@pytest.mark.parametrize("words", ['g++ "open', " "])
def test_what_is_no_command_is_no_compiler(tmp_path, monkeypatch, words):
    monkeypatch.setenv("CXX", words)

    assert toolchain(kernel(tmp_path), ENGINE).compiler is None


def test_the_compiler_s_command_may_have_words(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "env g++")
    record = built(kernel(tmp_path), tmp_path / "out")

    assert Path(record["command"][0]).name == "env"
    assert record["command"][1] == "g++"
    assert "g++" in record["toolchain"]["version"]


TOOLS = Toolchain("/usr/bin/g++", "g++ 12.2.0", "2.13.0", "cpython-311", "x86_64", "source")


@pytest.mark.parametrize("field", [field.name for field in fields(Toolchain)])
def test_each_tool_is_part_of_a_build_s_name(tmp_path, field):
    read = kernel(tmp_path)

    assert build_key(read, replace(TOOLS, **{field: "another"})) != build_key(read, TOOLS)
    assert build_key(read, replace(TOOLS, **{field: None})) != build_key(read, TOOLS)


def test_code_is_part_of_a_build_s_name_and_what_is_tuned_is_not(tmp_path):
    def key(**changes: Any) -> str:
        return build_key(kernel(tmp_path, **changes), TOOLS)

    first = key()
    assert len(first) == 16
    assert key(shapes=[{"width": 9}], sizes={"rows": [64]}) == first
    assert key(flags=["-O2"]) != first
    edited = kernel(tmp_path)
    (edited.folder / "scale.cpp").write_text(SOURCE + "\n")
    assert build_key(edited, TOOLS) != first


def test_another_compiler_is_another_toolchain(tmp_path, monkeypatch):
    read = kernel(tmp_path)
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin/cc", "echo cc 1.2; echo Copyright")))
    first = toolchain(read, ENGINE)
    script(tmp_path / "bin/cc", "echo cc 1.3")

    assert (first.compiler, first.version) == (str(tmp_path / "bin/cc"), "cc 1.2")
    assert toolchain(read, ENGINE) == replace(first, version="cc 1.3")


def test_the_cpu_counts_where_code_is_made_for_it_alone(tmp_path):
    plain = toolchain(kernel(tmp_path), ENGINE).architecture
    native = toolchain(kernel(tmp_path, flags=["-march=native"]), ENGINE).architecture

    assert plain == os.uname().machine
    assert native.startswith(f"{plain} ")
    assert native != plain


def test_torch_is_that_of_the_engine_s_interpreter(tmp_path):
    answer = '{"abi": "cpython-399", "torch": "9.9+cpu", "triton": null}'
    python = script(tmp_path / "bin/python", f"echo noise; echo '{answer}'")
    read = kernel(tmp_path)
    there = toolchain(read, replace(ENGINE, python=str(python)))
    broken = toolchain(read, replace(ENGINE, python=str(tmp_path / "none")))
    own = toolchain(read, ENGINE)

    assert (there.torch, there.abi) == ("9.9+cpu", "cpython-399")
    assert (broken.torch, broken.abi) == (None, None)
    assert own == toolchain(read, replace(ENGINE, wrapper=("env", "A=1"), python=sys.executable))


def test_the_toolchain_is_known_without_importing_torch(tmp_path):
    kernel(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from leverbench.campaign.model import Engine\n"
        "from leverbench.kernels.build import toolchain\n"
        "from leverbench.kernels.manifest import read_kernel\n"
        f"toolchain(read_kernel(Path({str(tmp_path / 'scale')!r})),"
        " Engine('some', None, None, (), {}, {}))\n"
        "assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_killed_build_leaves_nothing_half(tmp_path):
    text = f"echo half > libkernel.so; touch {tmp_path}/compiling; exec sleep 60"
    tools = replace(TOOLS, compiler=str(script(tmp_path / "bin/cc", text)))
    read, out = kernel(tmp_path), tmp_path / "out"
    code = (
        "from pathlib import Path\n"
        "from leverbench.kernels.build import Toolchain, build\n"
        "from leverbench.kernels.manifest import read_kernel\n"
        f"build(read_kernel(Path({str(read.folder)!r})), {tools!r}, Path({str(out)!r}))"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    limit = time.monotonic() + 30
    while not (tmp_path / "compiling").exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()

    assert not (out / "code").exists()
    assert not (out / "build.json").exists()
    built(read, out)
    assert sorted(path.name for path in out.iterdir()) == ["build.json", "code"]


def triton_kernel(tmp_path: Path, text: str = "BLOCK = 16\n") -> Kernel:
    folder = kernel(tmp_path).folder
    (folder / "scale_triton.py").write_text(text)
    return kernel(tmp_path, **TRITON)


def test_triton_s_modules_are_taken_as_they_are(tmp_path):
    read = triton_kernel(tmp_path)
    tools = replace(toolchain(read, ENGINE), version="3.9.0")
    build(read, tools, tmp_path / "out")
    record = read_record(tmp_path / "out/build.json")

    assert tools.compiler is None
    assert sorted(record["files"]) == ["kernel.py", "kernel.yaml", "scale_triton.py"]
    assert record["command"] == []
    assert (tmp_path / "out/code/scale_triton.py").read_text() == "BLOCK = 16\n"


def test_triton_s_modules_must_parse_and_need_triton(tmp_path):
    missing = refusal(triton_kernel(tmp_path), tmp_path / "out", version=None)
    wrong = refusal(triton_kernel(tmp_path, "x = 1\nBLOCK = = 16\n"), tmp_path / "out")

    assert missing.what == "the engine's interpreter has no Triton"
    assert wrong.where == f"{tmp_path}/scale/scale_triton.py:2"


# What nvcc prints: its version is in the fourth line.
NVCC = r"""
if [ "$1" = --version ]; then
  printf 'nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA\n'
  printf 'Built on Wed_Aug_20_01:58:59_PM_PDT_2025\n'
  printf 'Cuda compilation tools, release 13.0, V13.0.48\n'
  exit
fi
"""


def cuda_kernel(tmp_path: Path, **changes: Any) -> Kernel:
    folder = kernel(tmp_path).folder
    (folder / "scale.cu").write_text(SOURCE)
    return kernel(tmp_path, language="cuda", sources=["scale.cu"], **changes)


def test_cuda_is_built_for_the_gpu_that_is_there(tmp_path, monkeypatch):
    nvcc = script(tmp_path / "bin/nvcc", NVCC + "touch libkernel.so")
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    script(tmp_path / "bin/nvidia-smi", "echo 9.0")
    read = cuda_kernel(tmp_path)
    record = built(read, tmp_path / "out")
    chosen = built(cuda_kernel(tmp_path, flags=["-arch=sm_90a"]), tmp_path / "chosen")

    assert record["command"] == [
        *[str(nvcc), "-shared", "-Xcompiler", "-fPIC", "-std=c++17", "-Xlinker", "-z,defs"],
        *["-arch=sm_90", "-o", "libkernel.so", "scale.cu"],
    ]
    assert record["toolchain"]["version"] == "Cuda compilation tools, release 13.0, V13.0.48"
    assert record["toolchain"]["architecture"] == "9.0"
    assert [word for word in chosen["command"] if "arch" in word] == ["-arch=sm_90a"]


def test_cuda_without_a_gpu_or_a_compiler(tmp_path):
    nowhere = refusal(cuda_kernel(tmp_path), tmp_path / "out", compiler=None)
    unknown = refusal(cuda_kernel(tmp_path), tmp_path / "out", compiler="nvcc", architecture=None)

    assert nowhere.cure == "Install nvcc, or name another in the environment variable NVCC."
    assert unknown.what == "nvidia-smi does not tell for which GPU it is"


def test_an_error_of_nvcc_is_told_with_its_line(tmp_path):
    said = 'scale.cu(3): error: identifier \\"wrong\\" is undefined'
    nvcc = script(tmp_path / "bin/nvcc", f'echo "{said}"; exit 2')
    read = cuda_kernel(tmp_path)
    error = refusal(read, tmp_path / "out", compiler=str(nvcc), architecture="9.0")

    assert error.where == f"{read.folder}/scale.cu:3"
    assert error.what == 'nvcc does not build it: identifier "wrong" is undefined'


def test_a_compiler_that_says_nothing(tmp_path):
    silent = script(tmp_path / "bin/cc", "exit 3")
    error = refusal(kernel(tmp_path), tmp_path / "out", compiler=str(silent))

    assert error.what == "cc does not build it: it ended with 3"
