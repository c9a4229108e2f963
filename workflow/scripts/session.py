"""Make a session's records, or the report, by an inner run."""

from leverbench.stages import session

session(
    records=snakemake.params.records,
    config=snakemake.params.config,
    threads=snakemake.threads,
    log=snakemake.log[0],
)
