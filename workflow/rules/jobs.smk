# The rules that share a kept server, and what is made of their records.
include: "serve.smk"
include: "bench.smk"
include: "profile.smk"
include: "analyse.smk"
include: "report.smk"
