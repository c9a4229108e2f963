"""Time a kernel against what it stands in for."""

from leverbench.stages import microbench_kernel

microbench_kernel(
    kernel=snakemake.params.kernel,
    calls=snakemake.params.calls,
    tunings=snakemake.input.tunings,
    record=snakemake.output.record,
    log=snakemake.log[0],
)
