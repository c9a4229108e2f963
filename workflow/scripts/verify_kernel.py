"""Compare a kernel with its reference."""

from leverbench.stages import verify_kernel

verify_kernel(
    kernel=snakemake.params.kernel,
    calls=snakemake.params.calls,
    tunings=snakemake.input.tunings,
    record=snakemake.output.record,
    log=snakemake.log[0],
)
