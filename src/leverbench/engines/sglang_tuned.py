"""SGLang's block-scaled FP8 GEMM, whose Triton kernel reads its parameters from files."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverbench.campaign.model import Engine as EngineSettings
from leverbench.engines import (
    sglang_backends,
    sglang_config_lines,
    sglang_configs,
    sglang_shapes,
)
from leverbench.engines.base import FileProof, Unread
from leverbench.engines.interpreters import facts_of
from leverbench.errors import LeverbenchError
from leverbench.tuning.shapes import Alternative, GemmShape, LookedUp

_BLOCK = (128, 128)


class BlockGemmFiles:
    """The files ``N=...,K=...,device_name=...,dtype=fp8_w8a8,block_shape=[128, 128].json``."""

    kernel = "w8a8-block-fp8"

    def shapes(
        self, config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
    ) -> tuple[GemmShape, ...]:
        """Returns them by the model sources of 0.5.23; blocks other than 128 x 128 are refused."""
        shapes = sglang_shapes.gemm_shapes(config, args, env)
        for shape in shapes:
            if (shape.block_n, shape.block_k) != _BLOCK:
                raise LeverbenchError(
                    f"the model has scales for blocks of {shape.block_n} x {shape.block_k}",
                    where="quantization_config.weight_block_size",
                    cure="The kernel is tuned for blocks of 128 x 128: remove it from tuned:.",
                )
        return shapes

    def alternatives(
        self, config: Mapping[str, Any], args: Mapping[str, Any], env: Mapping[str, str]
    ) -> tuple[Alternative, ...]:
        """Varies what changes shapes: fused layers, drafts, parallel sizes, the backend."""
        return sglang_shapes.alternatives(config, args, env)

    def looked_up(self, log: str) -> list[LookedUp]:
        """Reads the lines ``Using configuration from`` and ``Config file not found at``.

        Those of other blocks are left out: no file of these kinds is for them.
        """
        found = sglang_config_lines.looked_up(log)
        return [one for one in found if (one.block_n, one.block_k) == _BLOCK]

    def captured_sizes(self, args: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Reads ``cuda-graph-bs-decode``."""
        return sglang_shapes.captured_sizes(args)

    def draft_tokens(self, args: Mapping[str, Any]) -> int:
        """Reads ``speculative-num-draft-tokens``: all of them are verified in one step."""
        given = args.get("speculative-num-draft-tokens")
        if not args.get("speculative-algorithm") or not given:
            return 1
        try:
            return int(given)
        except (TypeError, ValueError):
            raise LeverbenchError(
                f"{given!r} is no number of tokens",
                where="args.speculative-num-draft-tokens",
                cure="Write 2, 3, 4, ...",
            ) from None

    def why_not_read(
        self,
        version: str | None,
        capability: tuple[int, int] | None,
        args: Mapping[str, Any],
        shapes: Sequence[GemmShape],
        env: Mapping[str, str],
    ) -> Unread | None:
        """Looks at the FP8 GEMM backend: Triton's kernel alone reads files."""
        return sglang_backends.why_not_read(version, capability, args, shapes, env)

    def source(self, settings: EngineSettings) -> str | None:
        """Returns the digest of the kernel's module and of the files that come with it."""
        found = facts_of(_in_package, settings.python, settings.wrapper, "")
        return found["source"] if found else None

    def shipped(
        self, settings: EngineSettings, n: int, k: int, device: str
    ) -> dict[int, dict[str, int]]:
        """Returns what the engine brings along for a shape on a device, by M; empty for none."""
        name = sglang_configs.file_name(n, k, device, _BLOCK)
        found = facts_of(_in_package, settings.python, settings.wrapper, name)
        if found is None or found["source"] is None:
            # Not known is not none: the default would be raced in its place.
            raise LeverbenchError(
                f"what the engine brings along for N={n}, K={k} cannot be told",
                where=" ".join([*settings.wrapper, settings.python or sys.executable]),
                cure="See that this interpreter runs and has the engine, and run again.",
            )
        if found["shipped"] is None:
            return {}
        try:
            return sglang_configs.shipped_configs(name, found["shipped"], _BLOCK)
        except LeverbenchError as error:
            raise LeverbenchError(
                f"a file that the engine brings along: {error.what}",
                where=error.where,
                cure="Servers read it, too: install the engine anew, or leave this shape out"
                " (shapes: in the campaign).",
            ) from None

    def read(
        self,
        folder: Path,
        device: str,
        version: str | None,
        capability: tuple[int, int] | None,
    ) -> dict[tuple[int, int], dict[int, dict[str, int]]]:
        """Reads them as the engine would, and refuses what would not do there."""
        read = sglang_configs.read_folder(
            folder, device=device, block=_BLOCK, version=version, capability=capability
        )
        for (n, k), by_m in read.items():
            # Refused now, and not by what verifies and writes them after hours.
            sglang_configs.check_common(
                folder / sglang_configs.file_name(n, k, device, _BLOCK), by_m, _BLOCK
            )
        return read

    def write(self, folder: Path, device: str, chosen: Sequence[Mapping[str, Any]]) -> list[Path]:
        """Writes a file for each (N, K), with the keys of M ascending."""
        shapes: dict[tuple[int, int], dict[int, sglang_configs.Config]] = {}
        try:
            for call in chosen:
                at = call["dimensions"]
                shapes.setdefault((at["N"], at["K"]), {})[at["M"]] = call["config"]
        except KeyError as error:
            raise LeverbenchError(
                f"a call of {self.kernel} has no dimension {error}",
                cure="Delete its tuning records and run again: they are made anew.",
            ) from None
        return sglang_configs.write_configs(folder, device, _BLOCK, shapes)

    def loader(self) -> str:
        """Returns ``sglang_config_plugin.py``, which hooks the lookup."""
        path = Path(__file__).with_name("sglang_config_plugin.py")
        return path.read_text(encoding="utf-8")

    def device_part(self, device: str) -> str:
        """Puts underscores for spaces."""
        return sglang_configs.device_part(device)

    def proofs(
        self, log: str, expected: Mapping[tuple[int, int], str], ranks: int
    ) -> list[FileProof]:
        """Reads the plugin's lines, and the engine's own about the same shapes."""
        return sglang_config_lines.applied_files(log, expected, ranks)


def _in_package(name: str) -> dict[str, str | None]:
    """Returns the digest of the kernel's module with its files, and the content of one of these.

    Nothing of the engine is imported: its modules take seconds.
    """
    import hashlib
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("sglang")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for module in ("kernels/ops/gemm", "kernels/ops/quantization", "srt/layers/quantization"):
            path = Path(root, module, "fp8_kernel.py")
            if not path.is_file() or b"\ndef get_w8a8_block_fp8_configs(" not in path.read_bytes():
                continue
            # As the engine does: a module that is a link has the files beside what it links to.
            folder = path.resolve().parent / "configs"
            digest = hashlib.sha256(path.read_bytes())
            for file in sorted(folder.glob("*.json")):
                digest.update(f"{file.name} {file.stat().st_size}".encode())
            own = folder / name
            text = own.read_text(encoding="utf-8") if name and own.is_file() else None
            return {"source": digest.hexdigest(), "shipped": text}
    return {"source": None, "shipped": None}
