"""SGLang's files of tuned launch configs: their names, their format, and what is wrong with one.

A file holds the configs of one weight shape on one device: ``{"M": {key: value}}``. The engine
looks for its exact name, takes the config of the nearest M (of two that are equally near the one
that stands first), and hands every key of it to the launch of the kernel. So a file that is not
quite right is either never opened, or fails in the middle of a server's start. Read in 0.5.12 to
0.5.23: ``fp8_kernel.py`` and ``fused_moe_triton_config.py``.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from leverbench.errors import LeverbenchError
from leverbench.records import write_bytes

# Values of the launch, by key: numbers, and true or false for the switches.
Config = Mapping[str, int]
Block = tuple[int, int]

# Where our account of how files came about stands beside them: no lookup has this name.
PROVENANCE = "provenance.json"

_DTYPE = "fp8_w8a8"
_GEMM_NAME = re.compile(
    r"N=(?P<n>[1-9][0-9]{0,8}),K=(?P<k>[1-9][0-9]{0,8}),device_name=(?P<device>[^,/]+)"
    r",dtype=(?P<dtype>[^,/]+)"
    r"(?:,block_shape=\[(?P<bn>[1-9][0-9]{0,8}), ?(?P<bk>[1-9][0-9]{0,8})\])?\.json"
)
_MOE_NAME = re.compile(
    r"E=(?P<e>[1-9][0-9]{0,8}),N=(?P<n>[1-9][0-9]{0,8}),device_name=(?P<device>[^,/]+?)"
    r"(?:,dtype=(?P<dtype>fp8_w8a8|int8_w8a8|int8_w8a16|int4_w4a16|float32))?"
    r"(?:,block_shape=\[(?P<bn>[1-9][0-9]{0,8}), ?(?P<bk>[1-9][0-9]{0,8})\])?"
    r"(?P<channel>,per_channel_quant=True)?(?P<down>_down)?\.json"
)
_M = re.compile(r"[1-9][0-9]{0,8}")
_TRITON_FOLDER = re.compile(r"triton_[0-9]+(?:_[0-9]+)*")

# In the order in which the engine's own files have them.
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
_LAUNCH = ("num_warps", "num_stages")
# Of the kernel for Hopper, which takes the place of the common one where either is in use.
_HOPPER = ("SWAP_AB", "SPLIT_K")
_HOPPER_SINCE = (0, 5, 21)
# Of the fused MoE's first GEMM since then; of its second one in every version.
_UP_TMA_SINCE = (0, 5, 18)
_AMD = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")

# Lowest and highest value, and whether it must be a power of two: a tile's extent is a range of
# the kernel, which Triton takes in powers of two only, and from 16 on for its matrix units; a
# block has at most 1024 threads, 32 a warp.
_RANGES = {
    **dict.fromkeys(_TILE[:3], (16, 1024, True)),
    "GROUP_SIZE_M": (1, 1024, False),
    "num_warps": (1, 32, True),
    "num_stages": (1, 16, False),
    "num_ctas": (1, 16, True),
    "SPLIT_K": (1, 64, True),
}
_SWITCHES = ("SWAP_AB", "USE_TMA")

_REMAKE = "Delete it and have it made again, or remove it from the folder."


@dataclass(frozen=True)
class GemmName:
    """What the name of a GEMM's file says.

    Attributes:
        n: Rows of the weight, the outputs.
        k: Its columns, the inputs.
        device: As the engine writes it: see `device_part`.
        dtype: ``fp8_w8a8``, and others for other kernels.
        block: (n, k) of the block that one scale belongs to; None for channel-wise scales.
    """

    n: int
    k: int
    device: str
    dtype: str
    block: Block | None


@dataclass(frozen=True)
class MoeName:
    """What the name of a fused MoE kernel's file says.

    Attributes:
        e: Experts of a rank, fused shared ones among them.
        n: ``moe_intermediate_size`` of a rank.
        device: As the engine writes it.
        dtype: ``fp8_w8a8``, ``int8_w8a8`` ...; None for unquantized weights.
        block: (n, k) of the block that one scale belongs to, or None.
        per_channel_quant: Whether there is one scale a channel.
        down: For the second GEMM alone.
    """

    e: int
    n: int
    device: str
    dtype: str | None = None
    block: Block | None = None
    per_channel_quant: bool = False
    down: bool = False


def release(version: str | None) -> tuple[int, int, int] | None:
    """Returns ``(0, 5, 12)`` for 0.5.12, 0.5.12.post1 and 0.5.12rc2; None for anything else."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?!\d)", version or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def device_part(name: str) -> str:
    """Returns a device, as torch names it, as it stands in the name of a file.

    Raises:
        LeverbenchError: It cannot stand there.
    """
    if not name or re.search(r"[,/\\\x00-\x1f]", name):
        raise LeverbenchError(
            f"{name!r} cannot be a device in the name of a file",
            cure="Give the GPU's name as nvidia-smi tells it.",
        )
    return name.replace(" ", "_")


def file_name(n: int, k: int, device: str, block: Block) -> str:
    """Returns the name that the engine looks for.

    Args:
        n: Rows of the weight, the outputs.
        k: Its columns, the inputs.
        device: The GPU, with spaces or with underscores.
        block: (n, k) of the block that one scale belongs to.

    Raises:
        LeverbenchError: There can be no such shape or device.
    """
    for size in (n, k):
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 10**9:
            raise LeverbenchError(
                f"{_short(size)} is no size of a weight", cure="Give N and K as positive numbers."
            )
    return _gemm_file(GemmName(n, k, device_part(device), _DTYPE, block))


def moe_file_name(name: MoeName) -> str:
    """Returns the name that the engine looks for."""
    dtype = f",dtype={name.dtype}" if name.dtype else ""
    block = f",block_shape=[{name.block[0]}, {name.block[1]}]" if name.block else ""
    channel = ",per_channel_quant=True" if name.per_channel_quant else ""
    down = "_down" if name.down else ""
    device = device_part(name.device)
    return f"E={name.e},N={name.n},device_name={device}{dtype}{block}{channel}{down}.json"


def parse_name(name: str) -> GemmName | None:
    """Returns what a file's name says; None where it is not the name of a GEMM's file.

    The blank in ``[128, 128]`` may be missing here; the engine does not find such a file.
    """
    match = _GEMM_NAME.fullmatch(name)
    if not match:
        return None
    said = match.groupdict()
    return GemmName(int(said["n"]), int(said["k"]), said["device"], said["dtype"], _block(said))


def parse_moe_name(name: str) -> MoeName | None:
    """Returns what a file's name says; None where it is not the name of a fused MoE's file."""
    match = _MOE_NAME.fullmatch(name)
    if not match:
        return None
    said = match.groupdict()
    return MoeName(
        e=int(said["e"]),
        n=int(said["n"]),
        device=said["device"],
        dtype=said["dtype"],
        block=_block(said),
        per_channel_quant=bool(said["channel"]),
        down=bool(said["down"]),
    )


def write_configs(
    folder: Path,
    device: str,
    block: Block,
    configs: Mapping[tuple[int, int], Mapping[int, Config]],
) -> list[Path]:
    """Writes a file for each (N, K); the same configs give the same bytes.

    Args:
        folder: Where.
        device: The GPU, with spaces or with underscores.
        block: (n, k) of the block that one scale belongs to.
        configs: The configs by M, by (N, K).

    Returns:
        The files, in the order of their shapes.

    Raises:
        LeverbenchError: The engine could not use a config; nothing is written then.
    """
    rules = _gemm_rules(block, hopper=False)
    paths = {shape: folder / file_name(*shape, device, block) for shape in configs}
    return _write({paths[shape]: configs[shape] for shape in sorted(configs)}, rules)


def read_configs(
    path: Path,
    *,
    device: str,
    block: Block,
    version: str | None,
    capability: tuple[int, int] | None = None,
) -> dict[int, dict[str, int]]:
    """Reads a file as the engine would, and refuses what would not do there.

    Args:
        path: The file; its name must be the one that the engine looks for.
        device: The GPU of the server, with spaces or with underscores.
        block: (n, k) of the block that one scale belongs to.
        version: The engine's.
        capability: The GPU's; where it is not known, keys that need a certain one are refused.

    Returns:
        The configs by M.

    Raises:
        LeverbenchError: What is wrong with it, and the cure.
    """
    _check_gemm_name(path, device_part(device), block)
    hopper = (capability or (0, 0))[0] == 9 and (release(version) or (0, 0, 0)) >= _HOPPER_SINCE
    return _read(path, _gemm_rules(block, hopper))


def read_folder(
    folder: Path,
    *,
    device: str,
    block: Block,
    version: str | None,
    capability: tuple[int, int] | None = None,
) -> dict[tuple[int, int], dict[int, dict[str, int]]]:
    """Reads the files of a folder: their configs by (N, K).

    Args:
        folder: It may hold ``provenance.json`` and files that are not JSON, too.
        device: As for `read_configs`.
        block: As for `read_configs`.
        version: As for `read_configs`.
        capability: As for `read_configs`.

    Raises:
        LeverbenchError: A file is wrong, two are for one shape, or there is none.
    """
    found: dict[tuple[int, int], Path] = {}
    paths = _json_files(folder)
    for path in paths:
        said = parse_name(path.name)
        if said is None or (said.dtype, said.block) != (_DTYPE, block):
            continue
        if (said.n, said.k) in found and said.device == device_part(device):
            raise LeverbenchError(
                f"two files for one shape: {found[said.n, said.k].name} and {path.name}",
                where=str(folder),
                cure=f"Keep the newer one, as {_gemm_file(said)}.",
            )
        found.setdefault((said.n, said.k), path)
    asked: dict[str, Any] = {
        "device": device,
        "block": block,
        "version": version,
        "capability": capability,
    }
    configs = {}
    for path in paths:
        by_m = read_configs(path, **asked)
        said = parse_name(path.name)
        assert said is not None
        configs[said.n, said.k] = by_m
    if not configs:
        raise LeverbenchError(
            "there is no file of tuned configs",
            where=str(folder),
            cure=f"Put files such as {file_name(1536, 4096, device, block)} there.",
        )
    return configs


def check_common(path: Path, by_m: Mapping[int, Config], block: Block) -> None:
    """Raises `LeverbenchError` where configs are for another kernel than the common one.

    Args:
        path: The file that they are from.
        by_m: Configs that can be launched, by M.
        block: (n, k) of the block that one scale belongs to.
    """
    common = _gemm_rules(block, hopper=False).order
    for m, config in by_m.items():
        if others := [key for key in config if key not in common]:
            raise LeverbenchError(
                f"{', '.join(others)}: it is for the engine's kernel for Hopper, and the common one"
                " is what is verified and given files",
                where=f"{path}: M={m}",
                cure="Remove this M, or the file.",
            )


def shipped_configs(name: str, text: str, block: Block) -> dict[int, dict[str, int]]:
    """Returns the configs by M of a file that the engine brings along, in the file's order.

    Args:
        name: Of the file.
        text: Its content.
        block: (n, k) of the block that one scale belongs to.

    Raises:
        LeverbenchError: They cannot be used by the common kernel.
    """
    return _read_text(Path(name), text, _gemm_rules(block, hopper=False))


def write_moe_configs(
    root: Path,
    triton_version: str,
    configs: Mapping[MoeName, Mapping[int, Config]],
    *,
    version: str | None = None,
) -> list[Path]:
    """Writes fused MoE configs where the engine looks with ``SGLANG_MOE_CONFIG_DIR=root``.

    That variable stands for the whole tree that the engine comes with: files for other shapes,
    which it would find there, are no longer found.

    Args:
        root: The folder to be named in the variable.
        triton_version: ``triton.__version__`` in the engine's interpreter.
        configs: The configs by M, by what the name of their file is to say.
        version: The engine's; where it is not known, keys that need a certain one are refused.

    Returns:
        The files, in the order of their names.

    Raises:
        LeverbenchError: The engine could not use a config, or not find the files.
    """
    folder = root / "configs" / _triton_folder(triton_version)
    ordered = sorted(configs, key=moe_file_name)
    for name in ordered:
        path = folder / moe_file_name(name)
        _check_values({path: configs[name]}, _moe_rules(name, version))
    paths = []
    for name in ordered:
        path = folder / moe_file_name(name)
        paths += _write({path: configs[name]}, _moe_rules(name, version))
    return paths


def read_moe_configs(
    root: Path, triton_version: str, *, device: str, version: str | None
) -> dict[MoeName, dict[int, dict[str, int]]]:
    """Reads what a server with ``SGLANG_MOE_CONFIG_DIR=root`` would find for its Triton.

    Args:
        root: The folder named in the variable.
        triton_version: ``triton.__version__`` in the engine's interpreter.
        device: The GPU of the server.
        version: The engine's.

    Returns:
        The configs by M, by what the name of their file says.

    Raises:
        LeverbenchError: The files do not lie where the engine looks, or one of them is wrong.
    """
    folder = moe_folder(root, triton_version)
    configs = {}
    for path in _json_files(folder):
        name, by_m = read_moe_file(path, device=device, version=version)
        configs[name] = by_m
    if not configs:
        raise LeverbenchError(
            "there is no file of tuned configs",
            where=str(folder),
            cure="Put the files there, or do without SGLANG_MOE_CONFIG_DIR: it hides those that"
            " the engine comes with.",
        )
    return configs


def read_moe_file(
    path: Path, *, device: str | None, version: str | None
) -> tuple[MoeName, dict[int, dict[str, int]]]:
    """Returns what a fused MoE's file is for, and its configs by M.

    Args:
        path: The file.
        device: The GPU that it must be for; None for any.
        version: The engine's.

    Raises:
        LeverbenchError: What is wrong with it, and the cure.
    """
    said = parse_moe_name(path.name)
    if said is None:
        _refuse_foreign(path, "E=256,N=512,device_name=...,dtype=fp8_w8a8.json")
    if moe_file_name(said) != path.name:
        _misnamed(path, moe_file_name(said))
    if device is not None and said.device != device_part(device):
        _foreign_device(path, said.device, device_part(device))
    return said, _read(path, _moe_rules(said, version))


def moe_folder(root: Path, triton_version: str) -> Path:
    """Returns where the engine looks with ``SGLANG_MOE_CONFIG_DIR=root``.

    Raises:
        LeverbenchError: It would find no folder there, or one that it cannot make sense of.
    """
    wanted = _triton_folder(triton_version)
    configs = root / "configs"
    rule = f"The engine looks into configs/{wanted} below SGLANG_MOE_CONFIG_DIR"
    if not configs.is_dir():
        inside = root.name == "configs" and any(root.glob("triton_*"))
        raise LeverbenchError(
            "it has no folder configs, and a server would fail at its first MoE layer",
            where=str(root),
            cure=f"{rule}: {f'name {root.parent} in it' if inside else 'make that folder'}.",
        )
    for path in sorted(configs.iterdir()):
        if path.name.startswith("triton_") and not _TRITON_FOLDER.fullmatch(path.name):
            raise LeverbenchError(
                "a server would fail here: the engine takes what follows triton_ for numbers",
                where=str(path),
                cure="Rename it after the version of Triton, such as triton_3_6_0.",
            )
    if not (configs / wanted).is_dir():
        others = sorted(path.name for path in configs.glob("triton_*"))
        loose = any(parse_moe_name(path.name) for path in configs.glob("*.json"))
        raise LeverbenchError(
            f"there is no folder {wanted}"
            + (f", only {', '.join(others)}, tuned for another Triton" if others else "")
            + (", and files that lie beside the folders are not read" if loose else ""),
            where=str(configs),
            cure=f"{rule}: {'tune with that version' if others else 'put the files there'}.",
        )
    return configs / wanted


@dataclass(frozen=True)
class _Rules:
    """What a config may hold.

    Attributes:
        required: Keys that it must have.
        optional: Keys that it may have.
        block_k: What BLOCK_SIZE_K must divide, or None.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    block_k: int | None

    @property
    def order(self) -> tuple[str, ...]:
        """The keys, in the order in which they are written."""
        return (*self.required, *self.optional)


def _gemm_rules(block: Block, hopper: bool) -> _Rules:
    return _Rules((*_TILE, *_LAUNCH), _HOPPER if hopper else (), block[1])


def _moe_rules(name: MoeName, version: str | None) -> _Rules:
    # Where the first two are missing Triton takes its own; num_ctas is one of its options, too.
    tma = name.down or (release(version) or (0, 0, 0)) >= _UP_TMA_SINCE
    optional = (*_LAUNCH, "num_ctas", *(("USE_TMA",) if tma else ()))
    return _Rules(_TILE, optional, name.block[1] if name.block else None)


def _gemm_file(name: GemmName) -> str:
    assert name.block is not None
    bn, bk = name.block
    shape = f"N={name.n},K={name.k},device_name={name.device}"
    return f"{shape},dtype={name.dtype},block_shape=[{bn}, {bk}].json"


def _block(said: Mapping[str, str | None]) -> Block | None:
    return (int(said["bn"] or 0), int(said["bk"] or 0)) if said["bn"] else None


def _triton_folder(version: str) -> str:
    folder = f"triton_{version.replace('.', '_')}"
    if not _TRITON_FOLDER.fullmatch(folder):
        raise LeverbenchError(
            f"Triton's version {version!r} cannot name a folder: the engine takes what follows"
            " triton_ for numbers, and a server would fail at the first shape without a file",
            cure="Use a released version of Triton, without a local part.",
        )
    return folder


def _json_files(folder: Path) -> list[Path]:
    try:
        names = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise LeverbenchError(
            f"the folder of tuned configs cannot be read ({error.strerror})",
            where=str(folder),
            cure="Name the folder that holds the files.",
        ) from None
    return [path for path in names if path.name != PROVENANCE and not path.name.startswith(".")]


def _check_gemm_name(path: Path, device: str, block: Block) -> None:
    """Raises `LeverbenchError` unless the name is one that a server of this kind looks for."""
    said = parse_name(path.name)
    if said is None:
        _refuse_foreign(path, file_name(1536, 4096, device, block))
    if said.dtype != _DTYPE or said.block is None:
        kind = said.dtype if said.block else f"{said.dtype} without blocks"
        raise LeverbenchError(
            f"it is for another kernel ({kind}), not for {_DTYPE} with blocks",
            where=str(path),
            cure="Remove it from the folder: the FP8 block GEMM never opens it.",
        )
    if said.device != device:
        _foreign_device(path, said.device, device)
    if said.block != block:
        raise LeverbenchError(
            f"it is for blocks of {list(said.block)}, and the model's are {list(block)}",
            where=str(path),
            cure="Tune for the model's weight_block_size (in its config.json).",
        )
    if _gemm_file(said) != path.name:
        _misnamed(path, _gemm_file(said))


def _refuse_foreign(path: Path, example: str) -> NoReturn:
    other = "a fused MoE kernel's" if parse_moe_name(path.name) else "no"
    other = "a GEMM's" if parse_name(path.name) else other
    raise LeverbenchError(
        f"this is {other} file name, and the engine would not open it here",
        where=str(path),
        cure=f"Remove it from the folder, or give it a name such as {example}.",
    )


def _misnamed(path: Path, right: str) -> NoReturn:
    raise LeverbenchError(
        "the engine looks for another spelling of this name, and would not open it",
        where=str(path),
        cure=f"Rename it to {right}.",
    )


def _foreign_device(path: Path, theirs: str, ours: str) -> NoReturn:
    family = _family(theirs)
    shared = f", another card of the same family ({family})" if family == _family(ours) else ""
    raise LeverbenchError(
        f"it is for {theirs}{shared}, and the server's GPU is {ours}",
        where=str(path),
        cure="Tune on this GPU: the engine looks for its exact name, and what is fastest differs"
        " with clocks, memory and power limit.",
    )


def _family(device: str) -> str:
    """Returns what several names of one card have in common: up to the first word with a digit."""
    words = re.split(r"[_-]", device)
    last = next((at for at, word in enumerate(words) if re.search(r"\d", word)), len(words))
    return " ".join(words[: last + 1])


def _write(files: Mapping[Path, Mapping[int, Config]], rules: _Rules) -> list[Path]:
    _check_values(files, rules)
    for path, by_m in files.items():
        # Of two that are equally near the engine takes the first: the smaller one.
        ordered = {
            str(m): {key: config[key] for key in rules.order if key in config}
            for m, config in sorted(by_m.items())
        }
        write_bytes(path, json.dumps(ordered, indent=4).encode() + b"\n")
    return list(files)


def _check_values(files: Mapping[Path, Mapping[int, Config]], rules: _Rules) -> None:
    for path, by_m in files.items():
        if not by_m:
            _refuse_empty(path)
        for m, config in by_m.items():
            if isinstance(m, bool) or not isinstance(m, int) or not 1 <= m < 10**9:
                _refuse_m(path, m)
            _check_config(config, f"{path}: M={m}", rules)


def _read(path: Path, rules: _Rules) -> dict[int, dict[str, int]]:
    try:
        # As text: what the engine's own reader refuses, such as a byte order mark, is refused.
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        reason, cure = f"it cannot be read ({error.strerror})", "Name a file that can be read."
        raise LeverbenchError(reason, where=str(path), cure=cure) from None
    except UnicodeDecodeError as error:
        raise LeverbenchError(f"it is not JSON ({error})", where=str(path), cure=_REMAKE) from None
    return _read_text(path, text, rules)


def _read_text(path: Path, text: str, rules: _Rules) -> dict[int, dict[str, int]]:
    pairs = _parsed(path, text)
    if not isinstance(pairs, _Pairs):
        raise LeverbenchError(
            "it is JSON, but no object of configs by M", where=str(path), cure=_REMAKE
        )
    if not pairs.items:
        _refuse_empty(path)
    configs: dict[int, dict[str, int]] = {}
    for key, config in pairs.items:
        if not _M.fullmatch(key):
            _refuse_m(path, key)
        if int(key) in configs:
            raise LeverbenchError(
                f"M={key} is given twice, and the engine would take the last",
                where=str(path),
                cure="Keep one of the two.",
            )
        where = f"{path}: M={key}"
        if isinstance(config, _Pairs):
            _check_once(config, where)
            config = dict(config.items)
        _check_config(config, where, rules)
        configs[int(key)] = config
    return configs


@dataclass(frozen=True)
class _Pairs:
    """A JSON object with its keys as they stand, twice where they stand twice."""

    items: list[tuple[str, Any]]


def _parsed(path: Path, text: str) -> Any:
    if not text.strip():
        raise LeverbenchError("the file is empty", where=str(path), cure=_REMAKE)
    try:
        return json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        what = "it ends in the middle, as if truncated" if cut else "it is not JSON"
        at = f"{error.msg}, line {error.lineno}"
        raise LeverbenchError(f"{what} ({at})", where=str(path), cure=_REMAKE) from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets in thousands of brackets.
        detail = str(error).partition(";")[0]
        raise LeverbenchError(f"it is not JSON ({detail})", where=str(path), cure=_REMAKE) from None


def _refuse_empty(path: Path) -> NoReturn:
    raise LeverbenchError(
        "it has no configs, and the engine would use its default without a word",
        where=str(path),
        cure="Remove it, or tune the shape.",
    )


def _refuse_m(path: Path, m: object) -> NoReturn:
    raise LeverbenchError(
        f"the key {_short(m)} is no M: a positive whole number, without sign, zeros or blanks",
        where=str(path),
        cure="Correct or remove the key.",
    )


def _check_once(config: _Pairs, where: str) -> None:
    keys = [key for key, _ in config.items]
    twice = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
    if twice is not None:
        raise LeverbenchError(
            f"{_short(twice)} is given twice", where=where, cure="Keep one of the two."
        )


def _check_config(config: Any, where: str, rules: _Rules) -> None:
    """Raises `LeverbenchError` unless the kernel could be launched with a config, and be right."""

    def refuse(what: str, cure: str) -> NoReturn:
        raise LeverbenchError(what, where=where, cure=cure)

    if not isinstance(config, Mapping):
        refuse(f"a config is an object of keys and numbers, not {_short(config)}", _REMAKE)
    known = (*rules.required, *rules.optional)
    if unknown := [key for key in config if key not in known]:
        refuse(*_unknown(unknown, known))
    if missing := [key for key in rules.required if key not in config]:
        refuse(f"it lacks {', '.join(missing)}", "Give it every key, or remove this M.")
    for key, value in config.items():
        _check_value(key, value, refuse)
    if rules.block_k is not None and rules.block_k % config["BLOCK_SIZE_K"]:
        refuse(
            f"BLOCK_SIZE_K {config['BLOCK_SIZE_K']} does not divide the weights' block of"
            f" {rules.block_k}: one scale would be taken for inputs that have several",
            "Choose one that does.",
        )
    if any(key in config for key in _HOPPER) and not (
        config.get("SWAP_AB") or config.get("SPLIT_K", 1) > 1
    ):
        refuse(
            "SWAP_AB false and SPLIT_K 1 mean the common kernel, which does not know these keys",
            "Remove both keys.",
        )


def _unknown(unknown: list[str], known: Iterable[str]) -> tuple[str, str]:
    told = ", ".join(_short(key) for key in unknown)
    what = f"unknown key {told}: the engine would hand it to the kernel's launch, which fails"
    if any(key in _HOPPER for key in unknown):
        since = ".".join(map(str, _HOPPER_SINCE))
        return what, f"SWAP_AB and SPLIT_K need a GPU of sm_90 and SGLang {since} or newer."
    if "USE_TMA" in unknown and "num_ctas" in known:
        since = ".".join(map(str, _UP_TMA_SINCE))
        return what, f"In other files than _down ones USE_TMA needs SGLang {since} or newer."
    if any(key in _AMD for key in unknown):
        return what, "It is an option of AMD GPUs; tune on this one."
    return what, f"Keep only {', '.join(known)}; notes belong into {PROVENANCE}."


def _check_value(key: str, value: Any, refuse: Callable[[str, str], NoReturn]) -> None:
    if key in _SWITCHES:
        if not isinstance(value, bool):
            refuse(f"{key} is true or false, not {_short(value)}", "Correct it.")
        return
    low, high, power = _RANGES[key]
    # True is 1 to Python, and would pass for a number.
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(f"{key} is a whole number, not {_short(value)}", "Correct it.")
    if not low <= value <= high or (power and value & (value - 1)):
        kind = "a power of two" if power else "a whole number"
        refuse(f"{key} is {kind} from {low} to {high}, not {_short(value)}", "Correct it.")


def _short(value: object) -> str:
    """Returns a value as it stands in the file, cut where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        # An object, also inside a list, or a number of thousands of digits.
        text = "an object" if isinstance(value, _Pairs) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
