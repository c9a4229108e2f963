"""Servers that others started: asked and measured, never launched, stopped or changed."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leverbench import records
from leverbench.campaign.model import Attach
from leverbench.campaign.model import Engine as EngineSettings
from leverbench.campaign.slices import Launch
from leverbench.engines import Address, Api, AppliedLever, NoAnswer, api_of
from leverbench.engines.http import fetch
from leverbench.errors import LeverbenchError
from leverbench.models.files import ModelFacts, model_facts
from leverbench.secrets import masked_fields
from leverbench.serving.lease import client_of_run, noted_measurement
from leverbench.serving.processes import Process
from leverbench.serving.spec import Cause, ServerError

# HTTP statuses by which a server refuses an API key, or the lack of one.
REFUSED = (401, 403)
# One question; a server that writes the traces of a profile is silent for minutes.
_ASK_TIMEOUT_S = 180.0
# The first one: who answers later than this cannot be measured.
_FIRST_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Told:
    """What a server says of itself: the same each time, as long as it is the same server.

    Attributes:
        effective: Its arguments in force, secrets masked; empty where it tells none.
        version: Its engine's version, or None.
        device: ``cpu`` or ``gpu``, or None.
        model: What it says of its model.
        start: What another start of it would have otherwise, or None.
        memory: Its own report, or None.
    """

    effective: Mapping[str, Any]
    version: str | None
    device: str | None
    model: Mapping[str, Any]
    start: Any
    memory: Any


@dataclass(frozen=True)
class AttachedServer:
    """A server of others, and this process's permission to measure it.

    Attributes:
        server_id: Names it for one session, as it is now. Where it was started again, or set
            otherwise, and tells so, it has another one.
        address: Where it is asked.
        told: What it says of itself.
        facts: Its model: by the folder that the campaign names, else by what it says.
        inherited: Descriptors of the locks that keep other measurements away.
        api: How it is talked to.
        launch: The launch slice of the session.
    """

    server_id: str
    address: Address
    told: Told
    facts: ModelFacts
    inherited: tuple[int, ...]
    api: Api
    launch: Launch

    def check_alive(self) -> None:
        """Returns if it answers and is what it was.

        Raises:
            ServerError: It does not, or is another one.
        """
        try:
            now = _ask(self.api, self.address)
        except NoAnswer as error:
            what = f"it does not answer any more ({error})"
            raise ServerError(Cause.SERVER_DIED, what, where=self.address.url) from None
        if _server_id(self.launch, now) != self.server_id:
            what = "another server answers: started again, set otherwise, or one of several there"
            raise ServerError(Cause.SERVER_RESTARTED, what, where=self.address.url)

    def processes(self) -> list[Process]:
        """Returns none: which processes are the server's is not known."""
        return []

    def listeners(self) -> list[Process]:
        """Returns none, for the same reason: what it tells of itself is compared instead."""
        return []

    def log_size(self) -> int:
        """Returns 0: there is no log that could be read."""
        return 0

    def read_log(self, start_byte: int = 0) -> None:
        """Returns None: there is no log that could be read."""

    def account(self) -> dict[str, Any]:
        """Returns what the evidence of a launch says of it.

        Nothing of this machine: it need not be the server's.
        """
        settings, told = self.launch.engine, self.told
        url, asked = self.address.url, asdict(_attach(settings))
        shown = [AppliedLever("attach", asked, url, True, "the address that was asked")]
        if settings.version is not None:
            same = None if told.version is None else told.version == settings.version
            evidence = "what the server tells"
            shown.append(AppliedLever("version", settings.version, told.version, same, evidence))
        return {
            "attached": True,
            "argv": [],
            "env": {},
            "levers_applied": [asdict(lever) for lever in shown],
            "engine": {"name": self.api.name, "version": told.version, "python": None},
            "digests": {
                "engine": records.digest([self.api.name, told.version]),
                "model": self.facts.digest,
            },
            "machine": {"device": "attached", "url": url},
            "devices": ["attached"],
            "placement": None,
            "processes": [],
            "effective": dict(told.effective),
            "memory": told.memory,
            "served_model": dict(told.model),
            "start_s": None,
        }


@contextmanager
def attached(launch: Launch, *, measured: bool) -> Iterator[AttachedServer]:
    """Yields a server that others started; when the block ends, it must still be the same.

    Args:
        launch: The launch slice, which says where it is.
        measured: Whether to measure, as for `serving.lease.lease`.

    Raises:
        NoAnswer: It does not answer.
        ServerError: It is another one when the block ends.
        LeverbenchError: The key cannot be sent.
    """
    api, address = api_of(launch.engine), _address(launch.engine)
    label = f"{launch.campaign}/{launch.variant}/s{launch.session}"
    with client_of_run(Path.cwd(), measured=measured) as held:
        told = _ask(api, address)
        server_id = _server_id(launch, told)
        with noted_measurement(label, server_id) if measured else nullcontext():
            server = AttachedServer(
                server_id, address, told, _facts(launch, told), tuple(held), api, launch
            )
            yield server
            server.check_alive()


def require_answer(settings: EngineSettings) -> None:
    """Asks an attached server whether it can be measured.

    Raises:
        LeverbenchError: It does not answer, refuses the key, speaks otherwise, or is not the
            version that the campaign names.
    """
    api, at = api_of(settings), _address(settings)
    try:
        fetch(at, api.ready_path, _FIRST_TIMEOUT_S)
        version = _ask(api, at, _FIRST_TIMEOUT_S).version
    except NoAnswer as error:
        raise unanswered(settings, error) from None
    if settings.version is not None and version != settings.version:
        raise LeverbenchError(
            f"the campaign is for {settings.name} {settings.version},"
            f" and this server is {version or 'of a version that it does not tell'}",
            where=at.url,
            cure="Change engine.version, or remove it.",
        )


def unanswered(settings: EngineSettings, error: NoAnswer) -> LeverbenchError:
    """Returns what to tell the user of a question that an attached server did not answer."""
    attach = _attach(settings)
    variable = attach.key_variable
    if error.status in REFUSED:
        return LeverbenchError(
            f"the server refuses the API key in {variable} ({error})"
            if os.environ.get(variable)
            else f"the server asks for an API key ({error})",
            where=attach.url,
            cure=f"Export the key as {variable} in the shell that runs the campaign.",
        )
    if error.status == 404:
        cure = "Say attach: {url: ..., api: openai} if only the OpenAI protocol is spoken there."
        if attach.api != "native":
            cure = "Give the address without /v1; leverbench adds it."
        what = f"the server does not speak as {api_of(settings).name} ({error})"
        return LeverbenchError(what, where=attach.url, cure=cure)
    return LeverbenchError(
        f"the attached server does not answer ({error})",
        where=attach.url,
        cure="Start it, or correct attach: in the campaign.",
    )


def _attach(settings: EngineSettings) -> Attach:
    if settings.attach is None:
        raise ValueError("no server to attach to")
    return settings.attach


def _address(settings: EngineSettings) -> Address:
    """Returns where the server is, with the API key that the environment holds."""
    attach = _attach(settings)
    key = os.environ.get(attach.key_variable) or None
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise LeverbenchError(
            f"the API key in {attach.key_variable} has characters that no HTTP header can carry",
            where=attach.url,
            cure="Export it without spaces and line ends.",
        )
    return Address(attach.url, key)


def _ask(api: Api, at: Address, timeout_s: float = _ASK_TIMEOUT_S) -> Told:
    info = api.server_info(at, timeout_s)
    return Told(
        effective=masked_fields(info["effective"]),
        version=info["version"],
        device=info["device"],
        model=api.served_model(at, timeout_s),
        start=info["start"],
        memory=info["memory"],
    )


def _facts(launch: Launch, told: Told) -> ModelFacts:
    if launch.model_path is not None:
        return model_facts(Path(launch.model_path), launch.token_ids)
    if launch.token_ids is None:
        raise ValueError("neither a model nor token ids")
    first, last = launch.token_ids
    return ModelFacts(records.digest(dict(told.model)), tuple(range(first, last + 1)))


def _server_id(launch: Launch, told: Told) -> str:
    where = _attach(launch.engine).url
    session = [launch.campaign, launch.variant, launch.session]
    says = [dict(told.effective), told.version, dict(told.model), told.start]
    return records.digest([where, *session, *says])[:12]
