"""Write a bundle of what was chosen for one of the engine's own kernels."""

from leverbench.stages import export_kernel

export_kernel(
    kernel=snakemake.params.kernel,
    calls=snakemake.params.calls,
    tunings=snakemake.input.tunings,
    folder=snakemake.output.bundle,
    campaign=snakemake.params.file,
    log=snakemake.log[0],
)
