import sys

from snakemake.utils import min_version

min_version("9.18")

try:
    import leverbench
except ModuleNotFoundError:
    sys.exit(
        "leverbench is not installed in this Python. Run `make setup`, then use .venv/bin/snakemake."
    )


include: "workflow/rules/common.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/build.smk"
include: "workflow/rules/tune.smk"
include: f"workflow/rules/{CAMPAIGN.execution}.smk"


rule all:
    default_target: True
    input:
        campaign_targets(),


onstart:
    begin_run()


onsuccess:
    end_run()


onerror:
    end_run(failed=True)
