"""Build a kernel for this machine."""

from leverbench.stages import build_kernel

build_kernel(kernel=snakemake.params.kernel, record=snakemake.output.record, log=snakemake.log[0])
