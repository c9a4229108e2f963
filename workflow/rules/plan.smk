localrules:
    plan,


rule plan:
    output:
        plan="results/{campaign}/plan.json",
    log:
        "logs/{campaign}/plan.log",
    conda:
        "../../envs/leverbench.yaml"
    params:
        plan=lambda wildcards: RUN.plan,
    script:
        "../scripts/plan.py"
