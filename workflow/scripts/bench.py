"""Measure one point on its session's server."""

from leverbench.stages import bench

bench(
    launch=snakemake.params.launch,
    point=snakemake.params.point,
    session=snakemake.input.session,
    record=snakemake.output.record,
    requests=snakemake.output.requests,
    resources=snakemake.resources,
    log=snakemake.log[0],
)
