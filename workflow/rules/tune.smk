localrules:
    kernels,
    export,


# All of the campaign's kernels, and nothing that they are for.
rule kernels:
    input:
        [*RUN.lookups, *RUN.kernel_records()],


# What was chosen for kernels of the engine's own, in its format and with all times.
rule export:
    input:
        [*RUN.lookups, *RUN.exports()],


rule export_kernel:
    input:
        tunings=kernel_tunings,
    output:
        bundle=directory("reports/{campaign}/export/{kernel}-{code}-{choice}"),
    log:
        "logs/{campaign}/export/{kernel}-{code}-{choice}.log",
    conda:
        "../../envs/leverbench.yaml"
    params:
        kernel=kernel_params,
        calls=kernel_calls,
        file=CAMPAIGN.file,
    script:
        "../scripts/export_kernel.py"


# A server is launched once, and its log tells what it looks tuned files up for.
rule discover_shapes:
    output:
        record="results/tuning/{kernel}/shapes/{lookup}.json",
    log:
        "logs/tuning/{kernel}/shapes/{lookup}.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores or 1
    resources:
        **PATIENCE,
        measure=1,
    params:
        launch=lookup_params,
    script:
        "../scripts/discover_shapes.py"


# What is timed of kernels, before anything is served: alone on the machine, as all that is timed.
rule tune_kernel:
    input:
        build=tuning_build,
    output:
        record="results/tuning/{kernel}/{device}/{space}/{shape}.json",
    log:
        "logs/tuning/{kernel}/{device}/{space}/{shape}.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores or 1
    resources:
        measure=1,
        order=tuning_order,
    params:
        kernel=tuning_params,
    script:
        "../scripts/tune_kernel.py"


rule verify_kernel:
    input:
        build="results/kernels/{kernel}/{code}/build.json",
        tunings=kernel_tunings,
    output:
        record="results/kernels/{kernel}/{code}/{choice}/verify.json",
    log:
        "logs/kernels/{kernel}/{code}/{choice}/verify.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    params:
        kernel=kernel_params,
        calls=kernel_calls,
    script:
        "../scripts/verify_kernel.py"


rule microbench_kernel:
    input:
        published="results/kernels/{kernel}/{code}/{choice}/published.json",
        tunings=kernel_tunings,
    output:
        record="results/kernels/{kernel}/{code}/{choice}/microbench.json",
    log:
        "logs/kernels/{kernel}/{code}/{choice}/microbench.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores or 1
    resources:
        measure=1,
    params:
        kernel=kernel_params,
        calls=kernel_calls,
    script:
        "../scripts/microbench_kernel.py"
