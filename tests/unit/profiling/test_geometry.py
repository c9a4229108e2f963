"""Launch geometry: known launches on known devices, worked out by hand."""

import gzip
import json
import math
from pathlib import Path

import pytest

from leverbench.profiling.geometry import describe, geometry

TRACE = Path(__file__).resolve().parents[2] / "data/decode-c16-gpu.trace.json.gz"

H200 = {"sm_count": 132, "capability": (9, 0)}


def test_few_blocks_leave_most_of_a_chip_alone():
    launch = geometry(64, sm_count=170)

    assert launch.busy_sm_share == 64 / 170
    assert describe(launch) == "64 blocks on 170 SMs: at most 38% of the chip"
    # Without threads, registers and shared memory nothing else follows.
    assert (launch.waves, launch.occupancy, launch.blocks_per_sm, launch.limited_by) == (
        *(None, None, None, None),
    )


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "places", "limited_by"),
    [
        # 2,048 threads are 8 times 256; 16 registers would allow twice as many.
        (256, 16, 0, 8, "threads"),
        # 64 registers a thread: 2,048 a warp, 32 warps.
        (256, 64, 0, 4, "registers"),
        # 194 are rounded up to 6,400 a warp: 2 warps in each quarter of 16,384, 8 in all.
        (128, 194, 0, 2, "registers"),
        # 228 KiB: twice 100 KiB with 1 KiB for the driver.
        (128, 32, 100 * 1024, 2, "shared-memory"),
        # 113 KiB and the driver's make 114: exactly two.
        (128, 32, 113 * 1024, 2, "shared-memory"),
        (128, 32, 113 * 1024 + 1, 1, "shared-memory"),
        (32, 16, 0, 32, "blocks"),
        # One thread takes a warp.
        (1, 16, 0, 32, "blocks"),
        # 289 threads are ten warps: 64 // 10.
        (289, 16, 4624, 6, "threads"),
    ],
)
def test_what_an_sm_holds_at_once(threads, registers, shared_bytes, places, limited_by):
    launch = geometry(100_000, threads, registers, shared_bytes, **H200)

    assert (launch.blocks_per_sm, launch.limited_by) == (places, limited_by)


@pytest.mark.parametrize(
    ("capability", "places", "limited_by"),
    [
        # 48 KiB a block, of 96, 64, 164, 100, 228 KiB; with the driver's own since Ampere.
        ((7, 0), 2, "shared-memory"),
        ((7, 5), 1, "shared-memory"),
        ((8, 0), 3, "shared-memory"),
        ((8, 6), 2, "shared-memory"),
        ((8, 9), 2, "shared-memory"),
        ((9, 0), 4, "shared-memory"),
        ((10, 0), 4, "shared-memory"),
        ((12, 0), 2, "shared-memory"),
    ],
)
def test_each_architecture_has_its_limits(capability, places, limited_by):
    launch = geometry(1000, 128, 32, 48 * 1024, 100, capability)

    assert (launch.blocks_per_sm, launch.limited_by) == (places, limited_by)


@pytest.mark.parametrize(
    ("capability", "threads_per_sm", "blocks"),
    [
        *[((7, 0), 2048, 32), ((7, 5), 1024, 16), ((8, 0), 2048, 32), ((8, 6), 1536, 16)],
        *[((8, 7), 1536, 16), ((8, 9), 1536, 24), ((9, 0), 2048, 32), ((10, 0), 2048, 32)],
        *[((10, 3), 2048, 32), ((11, 0), 1536, 24), ((12, 0), 1536, 24), ((12, 1), 1536, 24)],
    ],
)
def test_an_sm_holds_so_many_threads_and_blocks(capability, threads_per_sm, blocks):
    full = geometry(10_000, 512, 16, 0, 100, capability)
    small = geometry(10_000, 32, 16, 0, 100, capability)

    assert (full.blocks_per_sm, full.occupancy) == (threads_per_sm // 512, 1.0)
    assert small.blocks_per_sm == blocks


def test_waves_and_what_the_last_one_loses():
    # Four blocks on each of 132 SMs: 528 at once. 1,320 are two and a half waves of three.
    launch = geometry(1320, 256, 64, 0, **H200)

    assert (launch.waves, launch.busy_sm_share) == (2.5, 1.0)
    assert launch.last_wave_loss == pytest.approx(0.5 / 3)
    # 32 of 64 warps.
    assert launch.occupancy == 0.5
    assert describe(launch) == (
        "1,320 blocks on 132 SMs, 4 at once on each (limited by registers): 2.5 waves, 17% lost"
    )


def test_a_grid_that_does_not_fill_one_wave_limits_itself():
    # One block of 8 warps on every second SM, of 64 warps.
    launch = geometry(66, 256, 16, 0, **H200)

    assert (launch.limited_by, launch.busy_sm_share) == ("grid", 0.5)
    assert launch.waves == 66 / (132 * 8)
    assert launch.occupancy == pytest.approx(0.5 * 8 / 64)
    assert describe(geometry(264, 256, 16, 0, **H200)) == (
        "264 blocks on 132 SMs: 25% of the 8 places on each are taken"
    )


def test_a_full_wave_is_not_the_grids_fault():
    launch = geometry(528, 256, 64, 0, **H200)

    assert (launch.waves, launch.last_wave_loss, launch.limited_by) == (1.0, 0.0, "registers")


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"grid_blocks": 8},
        {"grid_blocks": 8, "block_threads": 128, "registers": 32, "shared_bytes": 0},
        {"grid_blocks": 8, "block_threads": 128, "sm_count": None, "capability": (9, 0)},
    ],
)
def test_what_is_not_known_has_no_consequence(known):
    launch = geometry(**{"grid_blocks": None, **known})

    assert (launch.busy_sm_share, launch.waves, launch.occupancy) == (None, None, None)
    assert describe(launch) is None


def test_an_unknown_architecture_still_has_its_sms():
    launch = geometry(10, 128, 32, 0, sm_count=20, capability=(99, 0))

    assert (launch.busy_sm_share, launch.blocks_per_sm) == (0.5, None)
    assert describe(launch) == "10 blocks on 20 SMs: at most 50% of the chip"
    assert describe(geometry(40, 128, 32, 0, 20, (99, 0))) == "40 blocks on 20 SMs"


def test_what_ran_had_a_place():
    # No SM has 512 threads of 255 registers, but some kernels give registers back.
    assert geometry(10, 512, 255, 0, **H200).blocks_per_sm == 1


def test_the_profilers_own_arithmetic_says_the_same():
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    kernels = [event["args"] for event in events if event.get("cat") == "kernel"]
    # It is rounded to whole percents; and 0 where a block has more than 48 KiB of shared memory.
    known = [launch for launch in kernels if launch["shared memory"] <= 48 * 1024]

    assert len(known) == 759
    for launch in known:
        blocks, threads = math.prod(launch["grid"]), math.prod(launch["block"])
        registers, shared_bytes = launch["registers per thread"], launch["shared memory"]
        occupancy = launch["est. achieved occupancy %"] / 100
        found = geometry(blocks, threads, registers, shared_bytes, **H200)
        assert found.occupancy == pytest.approx(occupancy, abs=0.005)
