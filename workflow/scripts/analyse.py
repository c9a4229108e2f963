"""Gather the points into one table, and judge them."""

from leverbench.stages import analyse

analyse(
    plan=snakemake.input.plan,
    points=snakemake.input.points,
    verdicts=snakemake.output.verdicts,
    log=snakemake.log[0],
)
