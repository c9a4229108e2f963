rule analyse:
    input:
        plan="results/{campaign}/plan.json",
        sessions=RUN.session_records(),
        points=RUN.measured_records(),
        code=package_sources("analysis"),
    output:
        csv="results/{campaign}/analysis/measurements.csv",
        parquet="results/{campaign}/analysis/measurements.parquet",
        verdicts="results/{campaign}/analysis/verdicts.json",
    log:
        "logs/{campaign}/analyse.log",
    conda:
        "../../envs/leverbench.yaml"
    script:
        "../scripts/analyse.py"
