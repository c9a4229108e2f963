"""A kernel as one interpreter is given it: where its build, its tuning and its publication lie."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.kernels.build import Toolchain, build_key, toolchain
from leverbench.kernels.manifest import Dimensions, Kernel, shape_name
from leverbench.records import digest

RESULTS = Path("results/kernels")
TUNINGS = Path("results/tuning")
# What no rule declares survives a job that fails or is killed.
JOURNALS = Path("state/tuning")


@dataclass(frozen=True)
class Prepared:
    """A kernel, for one interpreter and one device; all paths are relative to the project.

    Attributes:
        kernel: The kernel, as the campaign asks for it.
        settings: The engine's, for its interpreter.
        device: ``cpu``, or the GPU's name as part of a path.
        toolchain: What builds it.
    """

    kernel: Kernel
    settings: EngineSettings
    device: str
    toolchain: Toolchain

    @cached_property
    def code(self) -> str:
        """Names what is built, in paths."""
        return build_key(self.kernel, self.toolchain)

    @cached_property
    def space(self) -> str:
        """Names what is tried, in paths."""
        return f"{self.code}-{self.kernel.space_digest[:8]}"

    @cached_property
    def choice(self) -> str:
        """Names what is published, in paths: which shapes and sizes, out of which candidates."""
        shapes = sorted(shape_name(shape) for shape in self.kernel.shapes)
        return digest([self.kernel.space_digest, self.device, shapes, self.kernel.sizes])[:16]

    @property
    def built(self) -> Path:
        """The folder of the build."""
        return RESULTS / self.kernel.name / self.code

    @property
    def published(self) -> Path:
        """The folder of what servers are given."""
        return self.built / self.choice

    @property
    def tunings(self) -> list[Path]:
        """The records of what was chosen, one a shape."""
        return [self._tuning(TUNINGS, shape, "json") for shape in self.kernel.shapes]

    def journal(self, shape: Dimensions) -> Path:
        """Returns where the search of a shape keeps what it has timed."""
        return self._tuning(JOURNALS, shape, "jsonl")

    def _tuning(self, root: Path, shape: Dimensions, suffix: str) -> Path:
        folder = root / self.kernel.name / self.device / self.space
        return folder / f"{shape_name(shape)}.{suffix}"

    def shape(self, name: str) -> Dimensions:
        """Returns the shape of a name, as `shape_name` gives it."""
        return next(shape for shape in self.kernel.shapes if shape_name(shape) == name)

    def as_params(self) -> dict[str, Any]:
        """Returns what a job needs to find it again: no more, so that no other change runs it."""
        return {
            "folder": str(self.kernel.folder),
            "engine": self.settings.name,
            "python": self.settings.python,
            "wrapper": list(self.settings.wrapper),
        }


def prepare(kernel: Kernel, settings: EngineSettings, device: str) -> Prepared:
    """Returns a kernel as the interpreter of a variant is given it.

    Args:
        kernel: The kernel, as the campaign asks for it.
        settings: The variant's engine.
        device: ``cpu``, or the GPU's name as part of a path.
    """
    interpreter = interpreter_settings(settings.name, settings.python, settings.wrapper)
    return Prepared(kernel, interpreter, device, toolchain(kernel, interpreter))


def interpreter_settings(
    name: str, python: str | None, wrapper: tuple[str, ...] | list[str]
) -> EngineSettings:
    """Returns an engine's settings as far as they concern its interpreter."""
    return EngineSettings(name, None, python, tuple(wrapper), {}, {})


def from_params(params: Mapping[str, Any]) -> EngineSettings:
    """Returns the settings of the interpreter that a job's params name."""
    return interpreter_settings(params["engine"], params["python"], params["wrapper"])
