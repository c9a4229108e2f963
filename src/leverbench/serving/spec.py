"""What a server is asked to be, and how it can fail."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from leverbench.errors import LeverbenchError

# As much of a server's log as tells why it ended: tracebacks of all ranks.
_LOG_END_BYTES = 1 << 20

PORT = "{port}"
"""A word of a command line that is replaced by the port that the server is given."""


class Cause(StrEnum):
    """Why a server cannot be had, or no longer."""

    START_FAILED = "start-failed"
    START_TIMEOUT = "start-timeout"
    PORT_IN_USE = "port-in-use"
    SERVER_DIED = "server-died"
    SERVER_RESTARTED = "server-restarted"
    DEVICE_BUSY = "device-busy"
    QUARANTINED = "quarantined"
    OWNER_GONE = "owner-gone"


class ServerError(LeverbenchError):
    """A server cannot be had, or no longer.

    Args:
        cause: From a closed vocabulary.
        what: What happened.
        where: The server or device concerned.
        cure: What the user can do about it.
        exit_code: Of the server, where it ended by itself; negative: the signal that ended it.
        log_path: The server's output, where there is one.
    """

    def __init__(
        self,
        cause: Cause,
        what: str,
        *,
        where: str | None = None,
        cure: str | None = None,
        exit_code: int | None = None,
        log_path: Path | None = None,
    ) -> None:
        super().__init__(what, where=where, cure=cure)
        self.cause = cause
        self.exit_code = exit_code
        self.log_path = log_path

    def log(self) -> str:
        """Returns the end of the server's output, as far as it can be read."""
        try:
            with (self.log_path or Path(os.devnull)).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


@dataclass(frozen=True)
class ServerSpec:
    """A server to be launched; clients with equal digest, devices and project share it.

    Attributes:
        digest: Identity of the server: of everything that makes it another server.
        label: What messages call it, such as ``baseline/s1``.
        argv: Command line; a word that is exactly ``{port}`` becomes the port.
        project: Absolute path of the project directory, whose Snakemake processes own the server.
        log_dir: Absolute path of a directory; the output goes to ``<server id>.log`` in it.
        devices: ``("cpu",)`` or ``("gpu0", ...)``; the server has them alone.
        env: Variables that are added to the environment of the client that launches.
        cwd: Working directory of the server.
        ready_path: Answers with HTTP status 200 from when the server can be used.
        start_timeout_s: Limit for that, from the launch.
        stop_grace_s: Time from SIGTERM to SIGKILL when it is stopped.
        idle_s: Time without a client after which it is stopped.
        release_timeout_s: Limit for the GPUs' memory to come back after a stop.
    """

    digest: str
    label: str
    argv: Sequence[str]
    project: str
    log_dir: str
    devices: Sequence[str] = ("cpu",)
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    ready_path: str = "/health"
    start_timeout_s: float = 600.0
    stop_grace_s: float = 15.0
    idle_s: float = 60.0
    release_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuses device names that are not of the form above: they become file names."""
        if not self.devices or not all(re.fullmatch(r"cpu|gpu\d+", d) for d in self.devices):
            raise ValueError(f"devices are cpu, gpu0, gpu1, ..., not {self.devices!r}")
