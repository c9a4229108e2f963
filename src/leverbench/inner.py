"""A Snakemake run inside a job: a session of its own, by the rules of any other run."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from leverbench.errors import LeverbenchError
from leverbench.serving.owner import inner_environment, run_alive
from leverbench.serving.processes import die_with_parent

_POLL_S = 0.5


def run(targets: Sequence[str], config: Sequence[str], cores: int) -> None:
    """Makes targets in the present project.

    It takes no lock of the folder, which the outer run has, and sessions of other jobs make other
    files. It ends when this process does, or the Snakemake process that this one works for.

    Args:
        targets: Files to make; none: all of the campaign.
        config: Words for ``--config``.
        cores: Cores of this job.

    Raises:
        LeverbenchError: The run failed, or a target is missing after it.
    """
    command = [sys.executable, "-m", "snakemake", "--nolock", "--profile", "none"]
    command += ["--cores", str(cores), *targets, "--config", *config]
    parent, project = os.getpid(), Path.cwd()
    inner = subprocess.Popen(
        command, env=inner_environment(), preexec_fn=lambda: die_with_parent(parent)
    )
    while True:
        try:
            returncode = inner.wait(_POLL_S)
            break
        except subprocess.TimeoutExpired:
            if run_alive(project):
                continue
        # As abruptly as its own parent has gone: asked nicely, it would finish its job first.
        inner.kill()
        returncode = inner.wait()
        break
    missing = [path for path in targets if not Path(path).exists()]
    if returncode or missing:
        lacking = f", without {len(missing)} of {len(targets)} records" if targets else ""
        raise LeverbenchError(
            f"the inner run ended with {returncode}{lacking}",
            where=" ".join(command),
            cure="Its messages stand above. Run again: only what is missing is measured.",
        )
