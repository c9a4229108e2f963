"""Profile a session's server under load."""

from leverbench.stages import profile

profile(
    launch=snakemake.params.launch,
    profile=snakemake.params.profile,
    session=snakemake.input.session,
    summary=snakemake.output.summary,
    kernels=snakemake.output.kernels,
    resources=snakemake.resources,
    log=snakemake.log[0],
)
