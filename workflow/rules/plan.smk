localrules:
    plan,


rule plan:
    output:
        plan="results/{campaign}/plan.json",
    log:
        "logs/{campaign}/plan.log",
    # First, so that an interrupted campaign has its plan.
    priority: 1_000_001
    conda:
        "../../envs/leverbench.yaml"
    params:
        plan=lambda wildcards: RUN.plan,
    script:
        "../scripts/plan.py"
