"""Find the fastest parameters of a kernel for one shape."""

from leverbench.stages import tune_kernel

tune_kernel(
    kernel=snakemake.params.kernel,
    build=snakemake.input.build,
    record=snakemake.output.record,
    resources=snakemake.resources,
    log=snakemake.log[0],
)
