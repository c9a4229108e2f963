"""Render the report."""

from leverbench.stages import report

report(
    plan=snakemake.input.plan,
    measurements=snakemake.input.measurements,
    profiles=snakemake.input.profiles,
    html=snakemake.output.html,
    findings=snakemake.output.findings,
    figures=snakemake.output.figures,
    log=snakemake.log[0],
)
