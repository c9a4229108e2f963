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
