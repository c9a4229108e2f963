"""Gather the points into one table."""

from leverbench.stages import analyse

analyse(
    plan=snakemake.input.plan,
    points=snakemake.input.points,
    csv=snakemake.output.csv,
    parquet=snakemake.output.parquet,
    log=snakemake.log[0],
)
