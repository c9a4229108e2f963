from leverbench.models.recipe import RECIPE, SEED


# Models and kernels are made before anything is measured.
rule prepare_tiny_model:
    output:
        manifest="models/{model}/model.json",
    log:
        "logs/models/{model}.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    threads: workflow.cores or 1
    resources:
        measure=1,
    params:
        seed=SEED,
        recipe=RECIPE.digest(),
    script:
        "../scripts/prepare_tiny_model.py"


# A kernel's files, flags and compiler are in its path: other ones are another build.
rule build_kernel:
    output:
        record="results/kernels/{kernel}/{code}/build.json",
        code=directory("results/kernels/{kernel}/{code}/code"),
    log:
        "logs/kernels/{kernel}/{code}/build.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    params:
        kernel=kernel_params,
    script:
        "../scripts/build_kernel.py"


# What a server loads: the build with what was chosen for each shape and size.
rule publish_kernel:
    input:
        build="results/kernels/{kernel}/{code}/build.json",
        verified="results/kernels/{kernel}/{code}/{choice}/verify.json",
        tunings=kernel_tunings,
    output:
        record="results/kernels/{kernel}/{code}/{choice}/published.json",
        plugin=directory("results/kernels/{kernel}/{code}/{choice}/plugin"),
    log:
        "logs/kernels/{kernel}/{code}/{choice}/publish.log",
    priority: 1_000_000
    conda:
        "../../envs/leverbench.yaml"
    params:
        kernel=kernel_params,
        calls=kernel_calls,
    script:
        "../scripts/publish_kernel.py"
