"""Write what servers load of a kernel."""

from leverbench.stages import publish_kernel

publish_kernel(
    kernel=snakemake.params.kernel,
    calls=snakemake.params.calls,
    tunings=snakemake.input.tunings,
    record=snakemake.output.record,
    log=snakemake.log[0],
)
