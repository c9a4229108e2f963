rule bench:
    input:
        session="results/{campaign}/{variant}/s{session}/server.json",
    output:
        record="results/{campaign}/{variant}/s{session}/{workload}/c{concurrency}.json",
        requests="results/{campaign}/{variant}/s{session}/{workload}/c{concurrency}.parquet",
    log:
        "logs/{campaign}/{variant}/s{session}/{workload}/c{concurrency}.log",
    priority: bench_rank
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores
    resources:
        **PATIENCE,
        measure=1,
    params:
        launch=launch_params,
        point=point_params,
    script:
        "../scripts/bench.py"
