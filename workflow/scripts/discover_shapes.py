"""Launch a server once, for the shapes that it looks tuned files up for."""

from leverbench.stages import discover_shapes

discover_shapes(
    launch=snakemake.params.launch,
    record=snakemake.output.record,
    resources=snakemake.resources,
    log=snakemake.log[0],
)
