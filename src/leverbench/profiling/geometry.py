"""Launch geometry: how much of a GPU a launch can use, as the arithmetic it is.

Nothing here is measured. The rules are those of NVIDIA's occupancy calculator
(``cuda_occupancy.h`` of the CUDA toolkit 13.0): registers are given to warps in units of 256 and
to each of an SM's four partitions by itself, shared memory to blocks in units of 128 bytes (256
before Ampere), with 1 KiB for the driver since Ampere. The limits of an SM are those of "Technical
Specifications per Compute Capability" in the CUDA C++ Programming Guide. What the profiler calls
achieved occupancy is the same estimate, but 0 where a block has more than 48 KiB of shared memory.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Capability: TypeAlias = tuple[int, int]

_WARP = 32
_REGISTERS = 65536
_REGISTER_UNIT = 256
_PARTITIONS = 4


@dataclass(frozen=True)
class _Limits:
    """What an SM holds at once: threads, blocks and KiB of shared memory."""

    threads: int
    blocks: int
    shared_kib: int


# By compute capability: 10.3 is that of B300, 11.0 of Thor, 12.1 of GB10.
_LIMITS: Mapping[Capability, _Limits] = {
    (7, 0): _Limits(2048, 32, 96),
    (7, 2): _Limits(2048, 32, 96),
    (7, 5): _Limits(1024, 16, 64),
    (8, 0): _Limits(2048, 32, 164),
    (8, 6): _Limits(1536, 16, 100),
    (8, 7): _Limits(1536, 16, 164),
    (8, 9): _Limits(1536, 24, 100),
    (9, 0): _Limits(2048, 32, 228),
    (10, 0): _Limits(2048, 32, 228),
    (10, 3): _Limits(2048, 32, 228),
    (11, 0): _Limits(1536, 24, 228),
    (12, 0): _Limits(1536, 24, 100),
    (12, 1): _Limits(1536, 24, 100),
}


@dataclass(frozen=True)
class Geometry:
    """What follows from how a kernel is launched; null where an input of it is.

    Attributes:
        grid_blocks: Blocks of the grid.
        block_threads: Threads of a block.
        registers: Registers of a thread.
        shared_bytes: Shared memory of a block, static and dynamic.
        sm_count: SMs of the device.
        blocks_per_sm: Blocks that an SM holds at once.
        waves: Blocks of the grid, over those that all SMs hold at once.
        last_wave_loss: Share of all waves' places that stay empty because the last is not full.
        busy_sm_share: Share of the SMs that get a block at all.
        occupancy: Warps on an SM over those that it can hold, while places last, as a mean over
            all SMs.
        limited_by: What keeps it from more: ``grid`` (too few blocks), ``registers``,
            ``shared-memory``, ``threads``, or ``blocks`` (as many as an SM holds).
    """

    grid_blocks: int | None
    block_threads: int | None
    registers: int | None
    shared_bytes: int | None
    sm_count: int | None
    blocks_per_sm: int | None
    waves: float | None
    last_wave_loss: float | None
    busy_sm_share: float | None
    occupancy: float | None
    limited_by: str | None


def geometry(
    grid_blocks: int | None,
    block_threads: int | None = None,
    registers: int | None = None,
    shared_bytes: int | None = None,
    sm_count: int | None = None,
    capability: Capability | None = None,
) -> Geometry:
    """Returns what a launch can use of a device.

    Args:
        grid_blocks: Blocks of the grid.
        block_threads: Threads of a block.
        registers: Registers of a thread.
        shared_bytes: Shared memory of a block, static and dynamic.
        sm_count: SMs of the device.
        capability: Its compute capability.
    """
    limits = _LIMITS.get(capability) if capability else None
    places = limited_by = waves = loss = occupancy = busy = None
    if limits and block_threads and registers is not None and shared_bytes is not None:
        places, limited_by = _places(
            limits, capability or (0, 0), block_threads, registers, shared_bytes
        )
    if grid_blocks and sm_count:
        busy = min(1.0, grid_blocks / sm_count)
        if places:
            waves = grid_blocks / (sm_count * places)
            loss = 1 - waves / math.ceil(waves)
            if waves < 1:
                limited_by = "grid"
    if limits and block_threads and places:
        warps = math.ceil(block_threads / _WARP) * _WARP
        occupancy = places * min(1.0, waves if waves is not None else 1.0) * warps / limits.threads
    return Geometry(
        grid_blocks=grid_blocks,
        block_threads=block_threads,
        registers=registers,
        shared_bytes=shared_bytes,
        sm_count=sm_count,
        blocks_per_sm=places,
        waves=waves,
        last_wave_loss=loss,
        busy_sm_share=busy,
        occupancy=occupancy,
        limited_by=limited_by,
    )


def _places(
    limits: _Limits, capability: Capability, threads: int, registers: int, shared_bytes: int
) -> tuple[int, str]:
    """Returns how many blocks an SM holds, and the first thing that keeps it from more."""
    warps = math.ceil(threads / _WARP)
    by = {}
    if registers:
        of_warp = _up(registers * _WARP, _REGISTER_UNIT)
        by["registers"] = _REGISTERS // _PARTITIONS // of_warp * _PARTITIONS // warps
    ampere = capability >= (8, 0)
    if taken_bytes := _up(shared_bytes + (1024 if ampere else 0), 128 if ampere else 256):
        by["shared-memory"] = limits.shared_kib * 1024 // taken_bytes
    by["threads"] = limits.threads // _WARP // warps
    by["blocks"] = limits.blocks
    limited_by = min(by, key=by.__getitem__)
    # It ran: at least one block was there.
    return max(1, by[limited_by]), limited_by


def _up(value: int, unit: int) -> int:
    return math.ceil(value / unit) * unit


def describe(launch: Geometry) -> str | None:
    """Returns the geometry as a sentence without a full stop; None where it says nothing."""
    blocks, sms = launch.grid_blocks, launch.sm_count
    if not blocks or not sms or launch.busy_sm_share is None:
        return None
    told = f"{blocks:,} block{'s' if blocks > 1 else ''} on {sms} SMs"
    if blocks < sms:
        return f"{told}: at most {launch.busy_sm_share:.0%} of the chip"
    if launch.waves is None or launch.blocks_per_sm is None:
        return told
    if launch.waves <= 1:
        return f"{told}: {launch.waves:.0%} of the {launch.blocks_per_sm} places on each are taken"
    at_once = f"{launch.blocks_per_sm} at once on each (limited by {launch.limited_by})"
    return f"{told}, {at_once}: {launch.waves:.1f} waves, {launch.last_wave_loss:.0%} lost"
