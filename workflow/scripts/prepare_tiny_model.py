"""Train the tiny model that answers the probe."""

from leverbench.stages import prepare_tiny_model

prepare_tiny_model(
    seed=snakemake.params.seed, manifest=snakemake.output.manifest, log=snakemake.log[0]
)
