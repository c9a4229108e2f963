"""Builds what a kernel is made of into one folder: all that a server needs to be given it."""

import ast
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from leverbench import records
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines import get_engine
from leverbench.engines.interpreters import Facts, facts_of
from leverbench.errors import LeverbenchError
from leverbench.kernels.manifest import MANIFEST, MODULE, Kernel
from leverbench.serving.devices import nvidia_smi

RECORD = "build.json"
CODE = "code"
# Not kernel.so: Python would import it in place of kernel.py.
LIBRARY = "libkernel.so"

# Compiler, the variable that names another, and what else makes a shared library of sources.
# A symbol that is missing shows when it is linked, not when a server loads it.
_COMPILERS = {
    "cpp": ("g++", "CXX", ("-shared", "-fPIC", "-std=c++17", "-Wl,-z,defs")),
    "cuda": (
        "nvcc",
        "NVCC",
        ("-shared", "-Xcompiler", "-fPIC", "-std=c++17", "-Xlinker", "-z,defs"),
    ),
}
# Where the toolkit is installed, often without a word in PATH.
_NVCC = "/usr/local/cuda/bin/nvcc"
# Other sources are included by these.
_COMPILED = {".c", ".cc", ".cpp", ".cxx", ".cu"}
_CHOOSES_GPU = ("-arch", "-gencode", "--gpu-architecture", "--generate-code")

_LINES_SHOWN = 20
# g++ and clang: ``FILE:LINE:COLUMN: error: TEXT``; nvcc: ``FILE(LINE): error: TEXT``.
_AT_LINE = re.compile(r"(?P<file>[^\s:(]+)[:(](?P<line>\d+)\S*\s+(?:fatal )?error:? *(?P<said>.*)")
_ERROR = re.compile(r"\berror\b|undefined reference|cannot find", re.IGNORECASE)


@dataclass(frozen=True)
class Toolchain:
    """What builds a kernel, and what runs it.

    Attributes:
        compiler: The compiler's command, or None: there is none, or none is needed.
        version: What it says of its version; for Triton, Triton's. None where it is missing.
        torch: Version of torch in the engine's interpreter, None where there is none.
        abi: That interpreter's ABI, for which its torch was built; None where it does not run.
        architecture: What code is made for: the CPU, or the GPU's compute capability; None where
            it is not known.
        source: Digest of the engine's own kernel, where it is that; else None.
    """

    compiler: str | None
    version: str | None
    torch: str | None
    abi: str | None
    architecture: str | None
    source: str | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of all fields, as 64 hex digits."""
        return records.digest(asdict(self))


def toolchain(kernel: Kernel, settings: EngineSettings) -> Toolchain:
    """Returns what would build a kernel here; what is missing is None, and fails in `build`.

    Args:
        kernel: The kernel.
        settings: The engine's, for its interpreter.
    """
    has = interpreter(settings.python, settings.wrapper)
    compiler, version = None, has["triton"]
    if kernel.language in _COMPILERS:
        compiler = _compiler(kernel.language)
        version = None if compiler is None else _version(compiler)
    source = None
    if kernel.configs is not None:
        source = get_engine(kernel.engine).tuned_files.source(settings)
    return Toolchain(compiler, version, has["torch"], has["abi"], _architecture(kernel), source)


def build_key(kernel: Kernel, toolchain: Toolchain) -> str:
    """Names a build, as 16 hex digits: the same code by the same tools has the same name."""
    return records.digest([kernel.code_digest, toolchain.digest])[:16]


def lacking_compiler(kernel: Kernel) -> LeverbenchError:
    """Returns what is said of a kernel whose language has no compiler here."""
    name, variable, _ = _COMPILERS[kernel.language]
    return LeverbenchError(
        f"there is no compiler {os.environ.get(variable) or name}",
        where=str(kernel.folder / MANIFEST),
        cure=f"Install {name}, or name another in the environment variable {variable}.",
    )


def build(kernel: Kernel, toolchain: Toolchain, folder: Path) -> None:
    """Builds a kernel into ``folder/code`` and writes ``folder/build.json``.

    The code is whole or absent, however the build ends; the record is written last.

    Args:
        kernel: The kernel.
        toolchain: What builds it.
        folder: Where; it may hold other things.

    Raises:
        LeverbenchError: There is no compiler, or the code is wrong: with the compiler's lines.
    """
    began = time.monotonic()
    _check_syntax(kernel)
    command = _command(kernel, toolchain)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{CODE}.*"):
        shutil.rmtree(left, ignore_errors=True)
    (folder / RECORD).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{CODE}.", dir=folder) as work:
        sources, code = Path(work, "sources"), Path(work, CODE)
        sources.mkdir()
        code.mkdir()
        for path in kernel.files():
            shutil.copy(path, sources)
        messages = _compile(command, kernel, sources) if command else []
        served = [LIBRARY] if command else kernel.sources
        for name in (MODULE, *served):
            (sources / name).rename(code / name)
        shutil.copy(kernel.folder / MANIFEST, code)
        if (folder / CODE).exists():
            (folder / CODE).rename(Path(work, "old"))
        code.rename(folder / CODE)
    files = sorted((folder / CODE).iterdir())
    record = {
        "kind": "kernel-build",
        "kernel": kernel.name,
        "outcome": "built",
        "language": kernel.language,
        "command": command,
        "seconds": time.monotonic() - began,
        "messages": messages[:_LINES_SHOWN],
        "toolchain": asdict(toolchain),
        "digests": {"build": build_key(kernel, toolchain), "code": kernel.code_digest},
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }
    records.write_record(folder / RECORD, record)


def interpreter(python: str | None, wrapper: tuple[str, ...]) -> Facts:
    """Returns what `_packages` does in an engine's interpreter."""
    nothing: Facts = {"abi": None, "torch": None, "triton": None}
    return facts_of(_packages, python, wrapper) or nothing


def _packages() -> dict[str, str | None]:
    """Returns the ABI of this interpreter, and the versions that it has of torch and Triton."""
    import importlib.metadata
    import sysconfig

    found = {"abi": sysconfig.get_config_var("SOABI"), "torch": None, "triton": None}
    for name in ("torch", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _compiler(language: str) -> str | None:
    """Returns the command of a language's compiler, its program with its path."""
    name, variable, _ = _COMPILERS[language]
    try:
        program, *words = shlex.split(os.environ.get(variable) or name)
    except ValueError:  # an open quote, or nothing but spaces
        return None
    found = shutil.which(program)
    if found is None and program == "nvcc":
        found = shutil.which(_NVCC)
    return None if found is None else shlex.join([found, *words])


def _version(compiler: str) -> str | None:
    """Returns the line in which a compiler tells its version; nvcc's is not the first."""
    try:
        done = subprocess.run(
            [*shlex.split(compiler), "--version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line for line in done.stdout.splitlines() if re.search(r"\d\.\d", line)), None)


def _architecture(kernel: Kernel) -> str | None:
    if kernel.language != "cpp":
        rows = nvidia_smi("--query-gpu=compute_cap")
        return rows[0][0] if rows else None
    if not any(flag.endswith("=native") for flag in kernel.flags):
        return platform.machine()
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or fields.get("CPU part") or "unknown"
    able = sorted((fields.get("flags") or fields.get("Features") or "").split())
    return f"{platform.machine()} {model} {records.digest(able)[:8]}"


def _check_syntax(kernel: Kernel) -> None:
    """Raises `LeverbenchError` for a Python file that does not parse."""
    for path in kernel.files():
        if path.suffix != ".py":
            continue
        try:
            ast.parse(path.read_bytes())
        except SyntaxError as error:
            raise LeverbenchError(
                f"{error.msg}: {(error.text or '').strip()}",
                where=f"{path}:{error.lineno}",
                cure="Correct the line.",
            ) from None


def _command(kernel: Kernel, toolchain: Toolchain) -> list[str]:
    """Returns the compiler's argv, run beside the sources; for Triton, none.

    Raises:
        LeverbenchError: What it needs is not there.
    """
    where = str(kernel.folder / MANIFEST)
    if kernel.language not in _COMPILERS:
        if toolchain.version is None:
            raise LeverbenchError(
                "the engine's interpreter has no Triton",
                where=where,
                cure="Install it there, or name another with engine.python in the campaign.",
            )
        return []
    if toolchain.compiler is None:
        raise lacking_compiler(kernel)
    _, _, shared = _COMPILERS[kernel.language]
    target: list[str] = []
    if kernel.language == "cuda" and not any(f.startswith(_CHOOSES_GPU) for f in kernel.flags):
        if toolchain.architecture is None:
            raise LeverbenchError(
                "nvidia-smi does not tell for which GPU it is",
                where=where,
                cure="Build on a machine that has the GPU, or say -arch=sm_NN in flags.",
            )
        target = [f"-arch=sm_{toolchain.architecture.replace('.', '')}"]
    compiled = [source for source in kernel.sources if Path(source).suffix in _COMPILED]
    # Libraries must come after the sources that need them.
    argv = [*shlex.split(toolchain.compiler), *shared, *target, "-o", LIBRARY]
    return [*argv, *compiled, *kernel.flags]


def _compile(command: Sequence[str], kernel: Kernel, sources: Path) -> list[str]:
    """Compiles what lies in a folder, and returns what the compiler said.

    In the folder is only what the manifest names: what else is included would not be part of the
    build's name.
    """
    done = subprocess.run(
        command,
        cwd=sources,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
    )
    said = done.stdout.splitlines()
    if done.returncode == 0 and (sources / LIBRARY).exists():
        return said
    first = next((n for n, line in enumerate(said) if _ERROR.search(line)), 0)
    shown = said[first : first + _LINES_SHOWN] or [
        f"it ended with {done.returncode}" if done.returncode else f"it made no {LIBRARY}"
    ]
    where, problem = str(kernel.folder), shown[0]
    for match in _located(shown, kernel):
        where, problem = f"{kernel.folder / match['file']}:{match['line']}", match["said"]
        break
    raise LeverbenchError(
        f"{Path(command[0]).name} does not build it: {problem.rstrip('?.')}",
        where=where,
        cure="\n".join(["Correct what it says:", *shown]),
    )


def _located(lines: Sequence[str], kernel: Kernel) -> Iterator[re.Match[str]]:
    """Yields the errors that are in a line of the kernel's own sources."""
    for line in lines:
        match = _AT_LINE.match(line)
        if match and match["file"] in kernel.sources:
            yield match
