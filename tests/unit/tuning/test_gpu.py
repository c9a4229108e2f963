"""What is known of a GPU: by its compute capability, and by its driver."""

import subprocess
from pathlib import Path

import pytest

from leverbench.tuning.gpu import Gpu, first_gpu

# cuDeviceGetAttribute knows three attributes: compute capability (75, 76) and multiprocessors (16).
DRIVER = """
int cuInit(unsigned flags) { return FAILS == 1; }
int cuDeviceGet(int* device, int ordinal) { *device = 7 + ordinal; return FAILS == 2; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    *value = attribute == 75 ? 12 : attribute == 76 ? 1 : attribute == 16 ? 188 : -1;
    return FAILS == 3 || device != 7;
}
"""


@pytest.mark.parametrize(
    ("capability", "shared_bytes"), [(90, 232448), (100, 232448), (120, 101376), (7, None)]
)
def test_the_shared_memory_of_a_block(capability, shared_bytes):
    assert Gpu(capability, 1).shared_bytes == shared_bytes


def driver(folder: Path, fails: int) -> str:
    """Compiles a driver whose n-th function fails, and returns its library."""
    source, library = folder / "driver.c", folder / f"driver{fails}.so"
    source.write_text(DRIVER)
    command = ["gcc", "-shared", "-fPIC", f"-DFAILS={fails}", source, "-o", library]
    subprocess.run(command, check=True)
    return str(library)


def test_the_driver_tells_the_first_gpu(tmp_path):
    assert first_gpu(driver(tmp_path, 0)) == Gpu(121, 188)


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_driver_without_a_gpu_tells_none(tmp_path, fails):
    assert first_gpu(driver(tmp_path, fails)) is None


def test_without_a_driver_there_is_no_gpu():
    assert first_gpu("libnone.so.1") is None
