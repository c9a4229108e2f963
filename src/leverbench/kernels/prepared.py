"""A kernel as one interpreter is given it: where its build, its tuning and its publication lie."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Campaign
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines import get_engine
from leverbench.errors import LeverbenchError
from leverbench.kernels.build import Toolchain, build_key, toolchain
from leverbench.kernels.manifest import (
    CORES,
    Dimensions,
    Kernel,
    for_campaign,
    read_kernel,
    shape_name,
)
from leverbench.records import digest
from leverbench.serving.machine import installed_gpus
from leverbench.tuning.space import parse_expressions

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
        """Names what is published, in paths: for which shapes and sizes, from which candidates."""
        shapes = sorted(shape_name(shape) for shape in self.kernel.shapes)
        made_of = [self.kernel.space_digest, self.device, shapes, sorted(self.kernel.sizes)]
        return digest([*made_of, get_engine(self.kernel.engine).plugin_loader()])[:16]

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

    @property
    def records(self) -> list[Path]:
        """The records of all its jobs."""
        names = ("verify.json", "published.json", "microbench.json")
        published = [self.published / name for name in names]
        return [self.built / "build.json", *self.tunings, *published]

    def journal(self, shape: Dimensions) -> Path:
        """Returns where the search of a shape keeps what it has timed."""
        return self._tuning(JOURNALS, shape, "jsonl")

    def _tuning(self, root: Path, shape: Dimensions, suffix: str) -> Path:
        folder = root / self.kernel.name / self.device / self.space
        return folder / f"{shape_name(shape)}.{suffix}"

    def shape(self, name: str) -> Dimensions:
        """Returns the shape of a name, as `shape_name` gives it."""
        return next(shape for shape in self.kernel.shapes if shape_name(shape) == name)

    @property
    def torch_device(self) -> str:
        """The device as torch names it."""
        return "cpu" if self.device == "cpu" else "cuda"

    def as_params(self) -> dict[str, Any]:
        """Returns what a job needs to find it again: no more, so that no other change runs it."""
        return {
            "folder": str(self.kernel.folder),
            "device": self.device,
            "engine": self.settings.name,
            "python": self.settings.python,
            "wrapper": list(self.settings.wrapper),
            **({"given": str(self.kernel.given)} if self.kernel.given else {}),
        }

    def calls_as_params(self, shape: str | None = None) -> dict[str, Any]:
        """Returns the shapes, or the one of a name, and the sizes that it is made for."""
        shapes = self.kernel.shapes if shape is None else [self.shape(shape)]
        # In one order, however they are written: that changes nothing.
        in_order = [dict(sorted(one.items())) for one in shapes]
        return {"shapes": in_order, "sizes": sorted(self.kernel.sizes)}


def from_params(params: Mapping[str, Any], made: Path) -> Prepared:
    """Finds a kernel again inside a job.

    Args:
        params: `Prepared.as_params`, with `Prepared.calls_as_params` where the job needs them.
        made: What the job makes; the build's name is in its path.

    Raises:
        LeverbenchError: The kernel's files have changed since the run was planned.
    """
    kernel = read_kernel(Path(params["folder"]))
    kernel = for_campaign(kernel, params)
    settings = EngineSettings(
        params["engine"], None, params["python"], tuple(params["wrapper"]), {}, {}
    )
    prepared = prepare(kernel, settings, params["device"])
    if not any(part in (prepared.code, prepared.space) for part in made.parts):
        raise LeverbenchError(
            f"the kernel {kernel.name} is another one than when the run was planned",
            where=str(kernel.folder),
            cure="Run again: what it changes is made anew.",
        )
    return prepared


def prepare(kernel: Kernel, settings: EngineSettings, device: str) -> Prepared:
    """Returns a kernel as the interpreter of a variant is given it.

    Args:
        kernel: The kernel, as the campaign asks for it.
        settings: The variant's engine.
        device: ``cpu``, or the GPU's name as part of a path.

    Raises:
        LeverbenchError: A restriction of the kernel is wrong, or two of its shapes look alike.
    """
    if device == "cpu":
        parse_expressions(kernel, known=(CORES,))
    else:
        parse_expressions(kernel)
    if len({shape_name(shape) for shape in kernel.shapes}) < len(kernel.shapes):
        raise LeverbenchError(
            "two shapes have the same name, as part of a path",
            where=str(kernel.folder),
            cure="Remove one, or rename a dimension.",
        )
    interpreter = EngineSettings(settings.name, None, settings.python, settings.wrapper, {}, {})
    return Prepared(kernel, interpreter, device, toolchain(kernel, interpreter))


def prepared_kernels(campaign: Campaign) -> dict[str, list[Prepared]]:
    """Returns what each variant's server is given, in the variant's order; empty lists left out.

    Kernels whose folders are not there are left out, too.
    """
    device = re.sub("[^a-z0-9]+", "-", _device(campaign).lower()).strip("-")
    given = {
        name: [
            prepare(campaign.kernels[kernel], variant.engine, device)
            for kernel in variant.engine.tuned
            if kernel in campaign.kernels
        ]
        for name, variant in campaign.variants.items()
    }
    return {name: kernels for name, kernels in given.items() if kernels}


def published_kernels(campaign: Campaign) -> dict[str, dict[str, str]]:
    """Returns, for each variant that is given kernels, the folder that each is published in."""
    return {
        variant: {prepared.kernel.name: str(prepared.published) for prepared in kernels}
        for variant, kernels in prepared_kernels(campaign).items()
    }


def _device(campaign: Campaign) -> str:
    if not campaign.gpus:
        return "cpu"
    return campaign.device or next((name for name, _ in installed_gpus()), "gpu")
