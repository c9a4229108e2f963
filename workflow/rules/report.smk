rule report:
    input:
        plan="results/{campaign}/plan.json",
        measurements="results/{campaign}/analysis/measurements.parquet",
        profiles=RUN.profile_records(),
        kernels=RUN.microbench_records(),
        code=package_sources("analysis", "report"),
    output:
        html="reports/{campaign}/index.html",
        findings="reports/{campaign}/findings.md",
        figures=directory("reports/{campaign}/figures"),
    log:
        "logs/{campaign}/report.log",
    conda:
        "../../envs/leverbench.yaml"
    script:
        "../scripts/report.py"


# Fails while a failure that would come again stands, in every run.
rule gate:
    input:
        report="reports/{campaign}/index.html",
    output:
        passed="state/gate/{campaign}",
    log:
        "logs/{campaign}/gate.log",
    conda:
        "../../envs/leverbench.yaml"
    params:
        records=RUN.session_records() + RUN.point_records() + RUN.profile_records(),
    script:
        "../scripts/gate.py"
