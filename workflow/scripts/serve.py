"""Launch a session's server and prove it."""

from leverbench.stages import serve

serve(
    launch=snakemake.params.launch,
    record=snakemake.output.session,
    resources=snakemake.resources,
    log=snakemake.log[0],
)
