"""A tunable kernel as data: ``kernels/NAME/kernel.yaml``, its sources and its ``kernel.py``."""

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
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

# Where the account of how tuned files came about stands beside them.
_ACCOUNT = "provenance.json"

# What it must define; one whose results the engine reads as its own files has no calls to serve.
FUNCTIONS = (
    *("load", "make_inputs", "make_outputs", "run", "fallback", "reference", "odd_shapes"),
    "serve",
)
# What it may define: it makes a candidate's code without a GPU.
COMPILE = "compile"

# What expressions may name beside parameters and dimensions.
CORES = "cores"
MULTIPROCESSORS = "multiprocessors"
SHARED_BYTES = "shared_bytes"
_FACTS = {
    CORES: "the number of CPU cores",
    MULTIPROCESSORS: "the number of a GPU's multiprocessors",
    SHARED_BYTES: "the largest shared memory of a block on a GPU",
}

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
        hook: Dotted path of the engine's function that it stands in for, or None.
        description: A sentence, or None.
        configs: Name of the engine's own tuned files that its results are given as, where there is
            no hook; else None.
        order: An expression over what restrictions name, smaller for what is tried earlier; None
            for the order of the manifest.
        compile_shares: Parameters that change neither shared memory nor whether it compiles.
        given: Folder of tuned files that are served in place of tuning, or None.
        compiles_ahead: Whether ``kernel.py`` can make a candidate's code without a GPU.
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
    hook: str | None
    description: str | None = None
    configs: str | None = None
    order: str | None = None
    compile_shares: tuple[str, ...] = ()
    compiles_ahead: bool = False
    given: Path | None = None

    def files(self) -> list[Path]:
        """Returns the files that its code is made of."""
        return [self.folder / name for name in (MODULE, *self.sources)]

    def calls(self, shape: Dimensions) -> list[Dimensions]:
        """Returns the dimensions of the calls that are tuned for a shape: one a size."""
        if self.size is None:
            return [shape]
        return [{**shape, self.size: value} for value in self.sizes]

    @property
    def replaces(self) -> str:
        """What of the engine it takes the place of: a function, or tuned files."""
        return self.hook or self.configs or self.name

    @property
    def code_digest(self) -> str:
        """Names what is built: files, flags, hook and tolerance; not what is tried or tuned for."""
        contents = {path.name: _sha256(path) for path in self.files()}
        code = [contents, self.language, self.flags, self.replaces, self.engine]
        return digest([*code, self.tolerance.absolute, self.tolerance.relative])

    @property
    def space_digest(self) -> str:
        """Names what is tried: parameters, default, restrictions, order, and what a size is of."""
        tried = [dict(self.parameters), dict(self.default), self.restrictions, self.size]
        given = given_files(self.given) if self.given else ()
        others = [self.order, *({path.name: _sha256(path)} for path in given)]
        return digest([*tried, *(other for other in others if other is not None)])


def shape_name(shape: Dimensions) -> str:
    """Returns a shape as part of a path, such as ``batch16-headdim64``; always in one order."""
    return _plain("-".join(f"{name}{value}" for name, value in sorted(shape.items())))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def given_files(folder: Path) -> list[Path]:
    """Returns the tuned files of a folder: what is hidden or an account of them changes nothing."""
    found = sorted(folder.glob("*.json"))
    return [path for path in found if path.name != _ACCOUNT and not path.name.startswith(".")]


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
        sources=tuple(data.get("sources", ())),
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
        hook=data["load"].get("hook"),
        description=data.get("description"),
        configs=data["load"].get("configs"),
        order=data.get("order"),
        compile_shares=tuple(data.get("compile_shares", ())),
        compiles_ahead=COMPILE in (_defined(folder / MODULE) or ()),
    )


def for_campaign(kernel: Kernel, overrides: Mapping[str, Any]) -> Kernel:
    """Returns a kernel as a campaign asks for it: with the campaign's own ``shapes`` and ``sizes``.

    Args:
        kernel: As its manifest says.
        overrides: What the campaign says of it; without one of these, the manifest's holds.
    """
    given = overrides.get("given")
    return replace(
        kernel,
        given=Path(given) if given else None,
        shapes=tuple(overrides.get("shapes") or kernel.shapes),
        sizes=tuple(sorted(overrides.get("sizes") or kernel.sizes)),
    )


def _problems(document: Document, folder: Path) -> Iterator[LeverbenchError]:
    """Yields what the schema cannot say."""
    data = document.data
    for name in (MODULE, *data.get("sources", ())):
        if not (folder / name).is_file():
            yield LeverbenchError(
                f"{name} is missing",
                where=str(folder),
                cure="Add it, or change sources: in kernel.yaml.",
            )
    if data["language"] != "triton" and not data.get("sources"):
        yield LeverbenchError(
            f"sources names no file, and {data['language']} is compiled from files",
            where=document.where(),
            cure="Name them.",
        )
    if len({"hook", "configs"} & data["load"].keys()) != 1:
        yield LeverbenchError(
            "load names either a hook or configs",
            where=document.where(("load",)),
            cure="hook: the function that it stands in for; configs: the engine's own tuned files.",
        )
    needed = [name for name in FUNCTIONS if name != "serve" or "hook" in data["load"]]
    if data.get("compile_shares"):
        needed.append(COMPILE)
    yield from _missing_functions(folder / MODULE, needed)
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
    if len({_plain(name) for name in names[0]}) < len(names[0]):
        yield LeverbenchError(
            "two dimensions of a shape look alike in a path, where there are no capitals and no _",
            where=document.where(("shapes",)),
            cure="Rename one of them.",
        )
    for place, name in enumerate(data.get("compile_shares", ())):
        if name not in data["parameters"]:
            yield LeverbenchError(
                f"compile_shares: there is no parameter {name}",
                where=document.where(("compile_shares", place)),
                cure=f"There are: {', '.join(data['parameters'])}.",
            )
    known = {*data["parameters"], *names[0], *data.get("sizes", {})}
    for name in sorted(known & _FACTS.keys()):
        yield LeverbenchError(
            f"{name} is {_FACTS[name]}, in restrictions",
            where=document.where(),
            cure="Call the parameter or dimension otherwise.",
        )
    if len(known) < len(data["parameters"]) + len(names[0]) + len(data.get("sizes", {})):
        yield LeverbenchError(
            "a name stands for two things among parameters, shapes and sizes",
            where=document.where(),
            cure="Rename one of them.",
        )


def _missing_functions(module: Path, needed: Sequence[str]) -> Iterator[LeverbenchError]:
    """Yields what ``kernel.py`` does not define."""
    defined = _defined(module)
    if defined is None:
        return  # what is missing is told above, and what does not parse when it is built
    missing = [name for name in needed if name not in defined]
    if missing:
        yield LeverbenchError(
            f"it defines no function {', '.join(missing)}",
            where=str(module),
            cure="docs/kernels.md tells what each of them does.",
        )


def _defined(module: Path) -> set[str] | None:
    """Returns the functions of a module without importing it, which needs the engine.

    None where it cannot be read or parsed.
    """
    try:
        body = ast.parse(module.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise LeverbenchError(
            f"it cannot be read ({error.strerror})", where=str(path), cure="Make it readable."
        ) from None
