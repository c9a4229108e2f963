# At the end of a variant's first session, on its server. A profiled run is never a measured one.
rule profile:
    input:
        session=first_session,
    output:
        summary="results/{campaign}/{variant}/profile/{workload}/c{concurrency}/summary.json",
        kernels="results/{campaign}/{variant}/profile/{workload}/c{concurrency}/kernels.parquet",
    log:
        "logs/{campaign}/{variant}/profile/{workload}/c{concurrency}.log",
    priority: profile_rank
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores
    resources:
        **PATIENCE,
        measure=1,
    params:
        launch=first_session_params,
        profile=profile_params,
    script:
        "../scripts/profile.py"
