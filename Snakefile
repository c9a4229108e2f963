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
include: "workflow/rules/serve.smk"
include: "workflow/rules/bench.smk"
include: "workflow/rules/profile.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/report.smk"


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
