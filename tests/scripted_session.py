"""A session on the scripted server, without a keeper: for what a job does with a ready server."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from scripted_server import VOCABULARY_SIZE, ScriptedServer

from leverbench.engines import Address, get_engine
from leverbench.models.files import ModelFacts
from leverbench.serving.lease import ServerHandle
from leverbench.serving.processes import Process
from leverbench.serving.session import Session
from leverbench.serving.spec import Cause, ServerError

SERVER_ID = "feed01"


@dataclass
class ScriptedHandle:
    """What a job asks of a `ServerHandle`.

    Attributes:
        scripted: The server.
        is_dead: Whether it is found dead when it is looked at.
        server_id: Names the launch.
        live: Its processes, as they are said to be.
        listening: Those of them that accept requests.
    """

    scripted: ScriptedServer
    is_dead: Callable[[], bool] = field(default=lambda: False)
    server_id: str = SERVER_ID
    live: list[Process] = field(default_factory=list)
    listening: list[Process] = field(default_factory=list)

    def check_alive(self) -> None:
        if self.is_dead():
            raise ServerError(Cause.SERVER_DIED, "the server has ended", where="scripted")

    def processes(self) -> list[Process]:
        return self.live

    def listeners(self) -> list[Process]:
        return self.listening

    def log_size(self) -> int:
        return len(self.scripted.log)

    def read_log(self, start_byte: int = 0) -> str:
        return self.scripted.log[start_byte:]


def scripted_session(
    server: ScriptedServer, is_dead: Callable[[], bool] = lambda: False, **effective: Any
) -> Session:
    """Returns a session; `effective` are the arguments that its server says are in force."""
    return Session(
        server=cast(ServerHandle, ScriptedHandle(server, is_dead)),
        address=Address(server.url),
        engine=get_engine("sglang"),
        api=get_engine("sglang"),
        facts=ModelFacts("model-digest", tuple(range(VOCABULARY_SIZE))),
        device="cpu",
        evidence={
            "outcome": "ok",
            "digests": {"engine": "engine-digest", "model": "model-digest"},
            "machine": {"cpu": "a"},
            "versions": {"leverbench": "0"},
            "engine": {"name": "scripted", "version": "1"},
            "placement": None,
            "devices": ["cpu"],
            "processes": [],
            "recovery": [],
            "effective": effective,
        },
        lease_s=0.5,
    )
