"""A campaign on servers that others started, from the file to the report."""

import json

from scripted_server import Script, serving

# Twice the time of a step is half the speed.
SLOW, FAST = Script(step_s=0.060), Script(step_s=0.030)


def test_two_servers_of_others_are_compared(project):
    with serving(SLOW) as slow, serving(FAST) as fast:
        project.change(
            model={"token_ids": [1, 900]},
            engine={"name": "sglang"},
            variants={
                "slow": {"attach": {"url": slow.url, "api": "openai"}},
                "fast": {"from": "slow", "attach": {"url": fast.url, "api": "openai"}},
            },
            ladder={2: 4},
            sessions=1,
            limits={"min_window_s": 0.5, "warm_up_agreement": 0.5},
            profile={"concurrency": []},
        )
        said = project.snakemake()

        assert said.returncode == 0, said.stdout
        assert "2 sessions, 2 points" in said.stdout
        assert slow.flushes == fast.flushes == 0
        assert {generation.openai for generation in fast.generations} == {True}
        assert project.jobs() == {}

    path = project.path / "results/small/fast/s1/random/c2.json"
    point = json.loads(path.read_text())
    assert point["machine"]["url"] == fast.url
    assert (project.path / "reports/small/index.html").exists()
    findings = (project.path / "reports/small/findings.md").read_text()
    assert "not applied" not in findings
    assert "not compared" not in findings
    assert fast.url in findings
    path.unlink()
    assert "the attached server does not answer" in project.snakemake().stdout
