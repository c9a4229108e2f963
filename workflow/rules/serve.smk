# Nothing else runs beside a job that starts or loads a server: it takes all cores.
rule serve:
    input:
        model=serve_input,
        kernels=published_kernels,
    output:
        session="results/{campaign}/{variant}/s{session}/server.json",
    log:
        "logs/{campaign}/{variant}/s{session}/serve.log",
    priority: serve_rank
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores
    resources:
        **PATIENCE,
        measure=1,
    params:
        launch=launch_params,
    script:
        "../scripts/serve.py"
