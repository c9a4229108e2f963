"""A tunable kernel as data: ``kernels/NAME/kernel.yaml``, its sources and its ``kernel.py``."""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leverbench.campaign.document import Document, read_document
from leverbench.campaign.schema import check_schema
from leverbench.errors import LeverbenchError
from leverbench.records import digest

MANIFEST = "kernel.yaml"
# What knows the kernel's tensors: it is imported by the engine's interpreter alone.
MODULE = "kernel.py"

# What it must define.
FUNCTIONS = (
    *("load", "make_inputs", "make_outputs", "run", "fallback", "reference", "odd_shapes"),
    "serve",
)

Value = int | str
Dimensions = Mapping[str, Value]
# A value of each parameter.
Candidate = Mapping[str, int]


@dataclass(frozen=True)
class Tolerance:
    """``|result - reference| <= absolute + relative * |reference|``, element by element."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class Kernel:
    """A tunable kernel.

    Attributes:
        name: Its name.
        folder: Where its files are.
        language: ``cpp``, ``cuda`` or ``triton``.
        sources: Names of files in the folder.
        flags: Compiler flags of its own.
        parameters: What is tuned: the values of each.
        default: A value of each parameter.
        restrictions: Conditions over parameters, dimensions and ``cores``.
        shapes: What stays the same in one server.
        size: Name of the dimension that varies from call to call, or None.
        sizes: Its values that are tuned; empty where there is none.
        tolerance: Of its results.
        touches: Categories of a profile whose time it replaces.
        engine: The engine that it is for.
        hook: Dotted path of the engine's function that it stands in for.
        description: A sentence, or None.
    """

    name: str
    folder: Path
    language: str
    sources: tuple[str, ...]
    flags: tuple[str, ...]
    parameters: Mapping[str, tuple[int, ...]]
    default: Candidate
    restrictions: tuple[str, ...]
    shapes: tuple[Dimensions, ...]
    size: str | None
    sizes: tuple[int, ...]
    tolerance: Tolerance
    touches: tuple[str, ...]
    engine: str
    hook: str
    description: str | None = None

    def files(self) -> list[Path]:
        """Returns the files that its code is made of."""
        return [self.folder / name for name in (MODULE, *self.sources)]

    def calls(self, shape: Dimensions) -> list[Dimensions]:
        """Returns the dimensions of the calls that are tuned for a shape: one a size."""
        if self.size is None:
            return [shape]
        return [{**shape, self.size: value} for value in self.sizes]

    @property
    def code_digest(self) -> str:
        """Names what is built: files, flags, hook and tolerance; not what is tried or tuned for."""
        contents = {path.name: _sha256(path) for path in self.files()}
        code = [contents, self.language, self.flags, self.hook, self.engine]
        return digest([*code, self.tolerance.absolute, self.tolerance.relative])

    @property
    def space_digest(self) -> str:
        """Names what is tried: parameters, default, restrictions, and what a size is of."""
        return digest([dict(self.parameters), dict(self.default), self.restrictions, self.size])


def shape_name(shape: Dimensions) -> str:
    """Returns a shape as part of a path, such as ``batch16-head_dim64``; always in one order."""
    return "-".join(f"{name}{value}" for name, value in sorted(shape.items())).replace("_", "")


def read_kernel(folder: Path) -> Kernel:
    """Reads a kernel's manifest and checks that its files are there.

    Args:
        folder: The kernel's folder; messages name it as it is given.

    Raises:
        LeverbenchError: What is missing or wrong, where, and the cure.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise LeverbenchError(
            "there is no such kernel",
            where=str(path),
            cure="docs/kernels.md tells how to add one.",
        )
    document = read_document(path)
    check_schema(document, "kernel")
    for problem in _problems(document, folder):
        raise problem
    data = document.data
    size, sizes = next(iter(data.get("sizes", {}).items()), (None, ()))
    return Kernel(
        name=data["kernel"],
        folder=folder,
        language=data["language"],
        sources=tuple(data["sources"]),
        flags=tuple(data.get("flags", ())),
        parameters={name: tuple(map(int, tried)) for name, tried in data["parameters"].items()},
        default={name: int(value) for name, value in data["default"].items()},
        restrictions=tuple(data.get("restrictions", ())),
        shapes=tuple(data["shapes"]),
        size=size,
        sizes=tuple(sorted(sizes)),
        tolerance=Tolerance(**data["tolerance"]),
        touches=tuple(data.get("touches", ())),
        engine=data["load"]["engine"],
        hook=data["load"]["hook"],
        description=data.get("description"),
    )


def for_campaign(kernel: Kernel, overrides: Mapping[str, Any]) -> Kernel:
    """Returns a kernel as a campaign asks for it: with the campaign's own ``shapes`` and ``sizes``.

    Args:
        kernel: As its manifest says.
        overrides: What the campaign says of it; without one of these, the manifest's holds.
    """
    return replace(
        kernel,
        shapes=tuple(overrides.get("shapes") or kernel.shapes),
        sizes=tuple(sorted(overrides.get("sizes") or kernel.sizes)),
    )


def _problems(document: Document, folder: Path) -> Iterator[LeverbenchError]:
    """Yields what the schema cannot say."""
    data = document.data
    for name in (MODULE, *data["sources"]):
        if not (folder / name).is_file():
            yield LeverbenchError(
                f"{name} is missing",
                where=str(folder),
                cure="Add it, or change sources: in kernel.yaml.",
            )
    yield from _missing_functions(folder / MODULE)
    if data["kernel"] != folder.name:
        yield LeverbenchError(
            f"the kernel is called {data['kernel']}, and its folder {folder.name}",
            where=document.where(("kernel",)),
            cure="Give both the same name.",
        )
    if data["default"].keys() != data["parameters"].keys():
        odd = ", ".join(sorted(data["default"].keys() ^ data["parameters"].keys()))
        yield LeverbenchError(
            f"default and parameters do not name the same ({odd})",
            where=document.where(("default",)),
            cure="Give each parameter a default value.",
        )
    else:
        for name, value in data["default"].items():
            if value not in data["parameters"][name]:
                yield LeverbenchError(
                    f"the default {name}: {value} is none of the values that are tried",
                    where=document.where(("default", name)),
                    cure="Add it to the parameter's values.",
                )
    names = [tuple(sorted(shape)) for shape in data["shapes"]]
    if len(set(names)) > 1:
        yield LeverbenchError(
            "shapes do not all have the same dimensions",
            where=document.where(("shapes",)),
            cure="Name every dimension in each shape.",
        )
    known = {*data["parameters"], *names[0], *data.get("sizes", {})}
    if "cores" in known:
        yield LeverbenchError(
            "cores is the number of CPU cores, in restrictions",
            where=document.where(),
            cure="Call the parameter or dimension otherwise.",
        )
    if len(known) < len(data["parameters"]) + len(names[0]) + len(data.get("sizes", {})):
        yield LeverbenchError(
            "a name stands for two things among parameters, shapes and sizes",
            where=document.where(),
            cure="Rename one of them.",
        )


def _missing_functions(module: Path) -> Iterator[LeverbenchError]:
    """Yields what ``kernel.py`` does not define, without importing it: that needs the engine."""
    try:
        body = ast.parse(module.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return  # what is missing is told above, and what does not parse when it is built
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in FUNCTIONS if name not in defined]
    if missing:
        yield LeverbenchError(
            f"it defines no function {', '.join(missing)}",
            where=str(module),
            cure="docs/kernels.md tells what each of them does.",
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
