localrules:
    finish,


# One job is one session, for clusters: an inner Snakemake runs the ordinary rules, so that there
# is one way to measure. The marker is all that it declares: a second rule that declared the same
# results would be rerun by runs that share a kept server.
rule session:
    input:
        model=serve_input,
    output:
        marker=touch("state/sessions/{campaign}/{variant}/s{session}"),
    log:
        "logs/{campaign}/{variant}/s{session}/session.log",
    priority: serve_rank
    conda:
        "../../envs/leverbench.yaml"
    # Without a number of cores, as on a cluster, the profile says how many a job gets.
    threads: workflow.cores or 1
    resources:
        **session_resources(),
    params:
        measured=session_params,
        records=session_records,
        config=RUN.inner_config(),
    script:
        "../scripts/session.py"


rule finish:
    input:
        plan=f"results/{CAMPAIGN.name}/plan.json",
        markers=RUN.markers(),
        code=package_sources("analysis", "report"),
    output:
        marker=touch("state/sessions/{campaign}.finished"),
    log:
        "logs/{campaign}/finish.log",
    conda:
        "../../envs/leverbench.yaml"
    params:
        records=[],
        config=RUN.inner_config(),
    script:
        "../scripts/session.py"
