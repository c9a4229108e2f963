"""An NVML of known truth: a library built here, with the part of NVML's interface that GPM needs.

`build` makes it. What its GPUs are is in memory that `Nvml` shares with it. Its structures are laid
out by the compiler, as nvml.h has them, and not by those of the code that is tested.
"""

import ctypes
import subprocess
from pathlib import Path

GPUS, METRICS = 4, 16
ANY_TENSOR, HMMA, SM_ACTIVE, SM_OCCUPANCY, DRAM_BANDWIDTH = 5, 7, 2, 3, 10

SOURCE = r"""
#include <cmath>
#include <cstdlib>
extern "C" {
enum { SUCCESS, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, MISMATCH = 25 };
struct Gpu {
    unsigned offered, mig;
    int support_code, sample_codes[2], metric_codes[16];
    unsigned taken;
    double ticks, busy[16];
};
struct Sample { double ticks, busy[16]; };
Gpu gpus[4];
unsigned present, opened, allocated;
int init_code;

int nvmlInit_v2() { if (init_code) return init_code; ++opened; return SUCCESS; }
int nvmlShutdown() { --opened; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    if (index >= present) return INVALID;
    *device = gpus + index;
    return SUCCESS;
}
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* pending) {
    const unsigned mig = static_cast<Gpu*>(device)->mig;
    if (mig == 2) return NOT_SUPPORTED;
    *now = *pending = mig;
    return SUCCESS;
}
struct Support { unsigned version, isSupportedDevice; };
int nvmlGpmQueryDeviceSupport(void* device, Support* support) {
    const Gpu* gpu = static_cast<Gpu*>(device);
    if (support->version != 1) return MISMATCH;
    support->isSupportedDevice = gpu->offered;
    return gpu->support_code;
}
int nvmlGpmSampleAlloc(void** sample) {
    *sample = calloc(1, sizeof(Sample));
    ++allocated;
    return SUCCESS;
}
int nvmlGpmSampleFree(void* sample) { free(sample); --allocated; return SUCCESS; }
int nvmlGpmSampleGet(void* device, void* sample) {
    Gpu* gpu = static_cast<Gpu*>(device);
    Sample* into = static_cast<Sample*>(sample);
    const int code = gpu->sample_codes[gpu->taken++ % 2];
    if (code) return code;
    into->ticks = gpu->ticks;
    for (int i = 0; i < 16; ++i) into->busy[i] = gpu->metric_codes[i] ? -1 : gpu->busy[i];
    return SUCCESS;
}
struct Metric {
    unsigned metricId;
    int nvmlReturn;
    double value;
    struct { char* shortName; char* longName; char* unit; } metricInfo;
};
struct MetricsGet {
    unsigned version, numMetrics;
    void *sample1, *sample2;
    Metric metrics[477];
};
int nvmlGpmMetricsGet(MetricsGet* asked) {
    if (asked->version != 1) return MISMATCH;
    const Sample *first = static_cast<Sample*>(asked->sample1);
    const Sample *last = static_cast<Sample*>(asked->sample2);
    for (unsigned i = 0; i < asked->numMetrics; ++i) {
        Metric& metric = asked->metrics[i];
        const double busy = last->busy[metric.metricId];
        metric.nvmlReturn = busy < 0 ? NOT_SUPPORTED : SUCCESS;
        metric.value = 100 * (busy - first->busy[metric.metricId]) / (last->ticks - first->ticks);
    }
    return SUCCESS;
}
}
"""


class Gpu(ctypes.Structure):
    """A GPU of the library.

    Attributes:
        offered: Whether it offers GPM.
        mig: 1 with MIG on; 2 where the question is refused.
        support_code: What asking for its support returns.
        sample_codes: What taking the first sample returns, and the second.
        metric_codes: By metric: not 0 where it gives no figure.
        taken: How many samples were taken of it.
        ticks: How long it has run.
        busy: By metric, for how much of that it was busy.
    """

    _fields_ = (
        ("offered", ctypes.c_uint),
        ("mig", ctypes.c_uint),
        ("support_code", ctypes.c_int),
        ("sample_codes", ctypes.c_int * 2),
        ("metric_codes", ctypes.c_int * METRICS),
        ("taken", ctypes.c_uint),
        ("ticks", ctypes.c_double),
        ("busy", ctypes.c_double * METRICS),
    )

    def run(self, ticks: float, busy: dict[int, float]) -> None:
        """Lets it run for some time, and be busy for a part of it, by metric."""
        self.ticks += ticks
        for metric, part in busy.items():
            self.busy[metric] += part


class Nvml:
    """The library's memory: GPUs that offer GPM and have run for a while."""

    def __init__(self, library: Path, present: int = 1) -> None:
        self._library = ctypes.CDLL(str(library))
        ctypes.c_uint.in_dll(self._library, "present").value = present
        self.refuse(0)
        self.gpus = (Gpu * GPUS).in_dll(self._library, "gpus")
        for gpu in self.gpus:
            ctypes.memset(ctypes.byref(gpu), 0, ctypes.sizeof(Gpu))
            gpu.offered = 1
            gpu.run(1000, dict.fromkeys(range(METRICS), 900))

    def refuse(self, code: int) -> None:
        """Lets its start return a code from now on."""
        ctypes.c_int.in_dll(self._library, "init_code").value = code

    @property
    def held(self) -> tuple[int, int]:
        """How often it is open, and how many samples are not freed."""
        opened = ctypes.c_uint.in_dll(self._library, "opened").value
        return opened, ctypes.c_uint.in_dll(self._library, "allocated").value


def build(folder: Path, leave_out: str | None = None) -> Path:
    """Builds the library, without one of its functions if so asked; returns it."""
    source = folder / "nvml.cpp"
    text = SOURCE if leave_out is None else SOURCE.replace(f"{leave_out}(", f"un{leave_out}(")
    source.write_text(text)
    library = folder / "libnvidia-ml.so.1"
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library
