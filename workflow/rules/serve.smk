# Nothing else runs beside a job that starts or loads a server: it takes all cores.
rule serve:
    input:
        model=model_input,
        again=again_if_due("results/{campaign}/{variant}/s{session}/server.json"),
    output:
        session="results/{campaign}/{variant}/s{session}/server.json",
    log:
        "logs/{campaign}/{variant}/s{session}/serve.log",
    priority: serve_rank
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores
    resources:
        measure=1,
        **PATIENCE,
    params:
        launch=launch_params,
    script:
        "../scripts/serve.py"
