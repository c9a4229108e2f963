"""Write the resolved plan."""

from leverbench.stages import write_plan

write_plan(plan=snakemake.params.plan, record=snakemake.output.plan, log=snakemake.log[0])
