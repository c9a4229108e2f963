"""What a GPU has, as far as it decides which candidates can be used there."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

# CUDA C++ Programming Guide, technical specifications per compute capability: "maximum amount of
# shared memory per thread block", in KiB. A key is the capability without its point.
_SHARED_KIB: Mapping[int, int] = {
    **{80: 163, 86: 99, 87: 163, 89: 99},
    **{90: 227, 100: 227, 103: 227},
    **{120: 99, 121: 99},
}
_LIBRARY = "libcuda.so.1"
# CUdevice_attribute of cuda.h.
_MULTIPROCESSOR_COUNT, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        capability: Its compute capability without the point: 120 is 12.0.
        multiprocessors: How many it has.
    """

    capability: int
    multiprocessors: int

    @property
    def shared_bytes(self) -> int | None:
        """The most shared memory that a block can have; None where that is not known."""
        return shared_bytes_of(self.capability)


# By a part of the GPU's name, the first that is found (NVIDIA, CUDA GPU compute capability).
_CAPABILITIES: Mapping[str, int] = {
    **{"RTX PRO": 120, "GeForce RTX 50": 120, "GB10": 121},
    **{"B300": 103, "B200": 100, "B100": 100},
    **{"H200": 90, "H100": 90, "H800": 90, "H20": 90, "GH200": 90},
    **{"L40": 89, "L4": 89, "GeForce RTX 40": 89, "Ada Generation": 89},
    **{"A100": 80, "A800": 80, "A30": 80, "A40": 86, "A10": 86, "RTX A": 86, "GeForce RTX 30": 86},
}


def capability_of(name: str) -> int | None:
    """Returns a GPU's compute capability without the point, by its name; None where not known.

    Args:
        name: As NVIDIA's driver calls it.
    """
    return next((value for part, value in _CAPABILITIES.items() if part in name), None)


def shared_bytes_of(capability: int) -> int | None:
    """Returns the most shared memory that a block can have, in bytes; None where not known.

    Args:
        capability: Compute capability without the point.
    """
    kibibytes = _SHARED_KIB.get(capability)
    return None if kibibytes is None else kibibytes * 1024


def first_gpu(library: str = _LIBRARY) -> Gpu | None:
    """Returns the first GPU that this process sees, by the driver; None where there is none.

    Asking takes no memory of the GPU: no context is made.

    Args:
        library: The driver's library.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    values = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSOR_COUNT):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    major, minor, multiprocessors = values
    return Gpu(10 * major + minor, multiprocessors)
