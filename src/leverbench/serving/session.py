"""A session: one launch of a variant's server, proven, and found again by each point."""

import importlib.metadata
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from leverbench import __version__, records
from leverbench.campaign.model import TUNED, Attach, Probe, RecoveryStep
from leverbench.campaign.plan import note_history
from leverbench.campaign.slices import Launch, Patience
from leverbench.engines import (
    Address,
    Api,
    AppliedLever,
    Engine,
    NoAnswer,
    api_of,
    get_engine,
)
from leverbench.engines.arguments import identify, parsed_arguments
from leverbench.errors import LeverbenchError
from leverbench.kernels.publish import Published, read_published
from leverbench.models.files import ModelFacts, model_facts
from leverbench.protocol import PROTOCOL_VERSION
from leverbench.secrets import masked, masked_fields, recorded_environment
from leverbench.serving.answers import ask_prompts
from leverbench.serving.attached import REFUSED, attached, unanswered
from leverbench.serving.calls import VARIABLE, calls_folder, proof_at_ready, read_calls
from leverbench.serving.failures import (
    LastingFailure,
    Outcome,
    PassingFailure,
    attempt_twice,
    now,
)
from leverbench.serving.lease import Cause, ServerError, ServerHandle, lease
from leverbench.serving.machine import machine_fingerprint, placement
from leverbench.serving.owner import stop_now
from leverbench.serving.processes import Process
from leverbench.serving.spec import ServerSpec
from leverbench.tuning.shapes import LookedUp

# The causes by which a server ends of itself, and its log may tell why.
_ENDED = (Cause.START_FAILED, Cause.SERVER_DIED)
# How long a server waits for its next job: longer than Snakemake needs between two jobs.
IDLE_S = 60.0
# How long a launch waits for another server to leave its devices.
BUSY_TIMEOUT_S = 300.0
# One question to a running server, outside of measured windows.
ASK_TIMEOUT_S = 120.0


class Server(Protocol):
    """What a session needs of its server, whoever started it."""

    @property
    def server_id(self) -> str:
        """Names the launch."""
        ...

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors of locks, for processes that load the server (``pass_fds``)."""
        ...

    def check_alive(self) -> None:
        """Returns if it is there and the same; else raises `ServerError`."""
        ...

    def processes(self) -> list[Process]:
        """Returns its live processes; none where they are not known."""
        ...

    def listeners(self) -> list[Process]:
        """Returns those of them that accept requests; none where it cannot be seen."""
        ...

    def log_size(self) -> int:
        """Returns the present size of its log in bytes."""
        ...

    def read_log(self, start_byte: int = 0) -> str | None:
        """Returns its output from a byte of its log on; None where there is no log to read."""
        ...


@dataclass(frozen=True)
class Session:
    """A ready and proven server.

    Attributes:
        server: The lease on it.
        address: Where it is asked.
        engine: What is known of the engine.
        api: How to talk to the server: the engine itself, or the OpenAI protocol.
        facts: The model that it serves.
        device: ``cpu`` or ``gpu``; None where a server that others started does not tell.
        evidence: The record of its launch.
        lease_s: Time from asking for the server to having it proven.
        attach: What may be done with a server that others started; None for one of ours.
        nonce: Added to the seeds of prompts, where they must differ from all that were sent before.
    """

    server: Server
    address: Address
    engine: Engine
    api: Api
    facts: ModelFacts
    device: str | None
    evidence: Mapping[str, Any]
    lease_s: float
    attach: Attach | None = None
    nonce: tuple[str, ...] = ()

    @property
    def may_flush(self) -> bool:
        """Whether the server's prefix cache is ours to empty."""
        return self.attach is None or self.attach.flush_cache

    def check_same(self) -> None:
        """Returns if the server is there, and is answered by a process of its launch.

        A program that was launched to look after a server may have started it again: then all
        that the launch has proven is of the one before.

        Raises:
            ServerError: It has ended, or is another one.
        """
        self.server.check_alive()
        launched = {(process["pid"], process["started"]) for process in self.evidence["processes"]}
        listening = self.server.listeners()
        if listening and launched.isdisjoint(listening):
            raise ServerError(
                Cause.SERVER_RESTARTED,
                "the server was started again by the program that was launched",
                where=self.server.server_id,
                cure="Look in its log for why; it is stopped, and launched anew.",
            )

    def flush_cache(self) -> None:
        """Empties the server's prefix cache, where that is allowed."""
        if self.may_flush:
            self.engine.flush_cache(self.address, ASK_TIMEOUT_S)


@dataclass(frozen=True)
class _Found:
    """A server that is there, however it came.

    Attributes:
        server: The lease on it.
        address: Where it is asked.
        facts: The model that it serves.
        device: As in `Session`.
        account: Gives what its evidence says beside the probe; asked when that is answered.
    """

    server: Server
    address: Address
    facts: ModelFacts
    device: str | None
    account: Callable[[], dict[str, Any]]


def serve(params: Mapping[str, Any], patience: Patience, record: Path) -> None:
    """Launches a session's server, proves it and records which launch it is.

    A failure that would come again is recorded as the session's outcome, so that the rest of
    the campaign goes on; a passing one is tried once more and then fails the job. Where the
    campaign has recovery steps for the cause, they are taken first.

    Args:
        params: The launch slice.
        patience: How long to wait, and what to try.
        record: ``server.json`` of the session.

    Raises:
        LeverbenchError: A passing failure came twice.
    """
    launch = Launch.from_params(params)
    about = {
        "kind": "session",
        "campaign": launch.campaign,
        "variant": launch.variant,
        "session": launch.session,
        "protocol": PROTOCOL_VERSION,
        "digests": {"launch": records.digest(dict(params))},
        "recovery_offered": patience.recovery_digest,
    }
    folder = Path("state/attempts") / launch.campaign / launch.variant / f"s{launch.session}"
    taken: list[dict[str, Any]] = []
    try:
        server_id = _recovering(launch, patience, folder / "serve.jsonl", about, taken)
        outcome = {"server_id": server_id, "outcome": Outcome.OK, "detail": None}
    except LastingFailure as failure:
        outcome = {"server_id": None, "outcome": failure.outcome, "detail": failure.detail}
    records.write_record(record, {**about, **outcome, "recovery": taken})


def _recovering(
    launch: Launch,
    patience: Patience,
    account: Path,
    about: Mapping[str, Any],
    taken: list[dict[str, Any]],
) -> str:
    """Launches a server, with the campaign's recovery steps where it does not start.

    Args:
        launch: The launch slice.
        patience: How long to wait, and what to try.
        account: Where failed attempts are noted.
        about: What identifies the session there.
        taken: Receives the steps that were taken, each with its cause.

    Returns:
        The id of the server that runs.
    """
    memory = _recovery_memory(launch, patience)
    if memory is not None and memory.exists():
        # Another session of this server needed them: it would fail in the same way again.
        taken += _remembered(memory)
    while True:
        try:
            server_id = attempt_twice(
                lambda: _launch_once(launch, patience, taken), account, {**about, "recovery": taken}
            )
        except LastingFailure as failure:
            step = _next_step(patience, taken, failure.outcome)
            if step is None:
                raise
            line = {**about, "at": now(), "cause": failure.outcome, "detail": failure.detail}
            records.append_line(account, {**line, "recovery": list(taken), "row": None})
            taken.append({"cause": failure.outcome, **asdict(step)})
            continue
        if memory is not None and taken:
            records.write_record(memory, {"kind": "recovery", "taken": taken})
        return server_id


def _remembered(memory: Path) -> list[dict[str, Any]]:
    """Returns the steps of an earlier session; none where the memory of them is damaged."""
    with suppress(LeverbenchError, KeyError, TypeError):
        return [
            {"cause": str(step["cause"]), "args": dict(step["args"]), "env": dict(step["env"])}
            for step in records.read_record(memory)["taken"]
        ]
    return []


def _next_step(
    patience: Patience, taken: Sequence[Mapping[str, Any]], cause: str | None
) -> RecoveryStep | None:
    """Returns the first step for a cause that has not been taken yet."""
    done = sum(step["cause"] == cause for step in taken)
    steps = patience.recovery.get(str(cause), ())
    return steps[done] if done < len(steps) else None


def _recovery_memory(launch: Launch, patience: Patience) -> Path | None:
    """Returns where the steps that a variant's server needs on this machine are kept."""
    if not patience.recovery:
        return None
    params = {**launch.as_params(), "session": None}
    machine = machine_fingerprint(launch.devices)
    key = records.digest(
        [params, patience.recovery_digest, machine, identify(launch.engine).digest]
    )
    folder = Path("state/recovery") / launch.campaign / launch.variant
    return folder / f"{key[:16]}.json"


def _launch_once(launch: Launch, patience: Patience, taken: Sequence[Mapping[str, Any]]) -> str:
    with open_session(launch, patience, taken, measured=False) as session:
        return session.server.server_id


@contextmanager
def open_session(
    launch: Launch,
    patience: Patience,
    recovery: Sequence[Mapping[str, Any]],
    *,
    measured: bool,
) -> Iterator[Session]:
    """Yields the session's server, launched if it does not run, and proven if nobody has.

    Args:
        launch: The launch slice.
        patience: How long to wait, and what to try.
        recovery: The recovery steps that the session's server needed, as its record lists them.
        measured: Whether nothing else of ours may be measured meanwhile.

    Raises:
        PassingFailure: The server does not start, dies, or its devices stay busy.
        LastingFailure: The server answers the probe wrongly, does not use a kernel that it was
            given, or lacks memory and a recovery step is left to try.
    """
    began = time.monotonic()
    steps = [RecoveryStep(args=step["args"], env=step["env"]) for step in recovery]
    launch = launch.recovered(steps)
    attach, engine = launch.engine.attach, get_engine(launch.engine.name)
    api = api_of(launch.engine)
    # Equal prompts would find each other in a cache that we may not empty.
    nonce = (secrets.token_hex(4),) if attach and not attach.flush_cache else ()
    kernels = _published(launch)
    try:
        with (
            _attached(launch, measured)
            if attach
            else _launched(launch, kernels, engine, patience, measured)
        ) as found:
            path = Path("results") / launch.campaign / "launches" / f"{found.server.server_id}.json"
            evidence = records.read_record(path) if path.exists() else None
            # Another try at a server that was found wrong is another launch, unless it is not ours.
            if evidence is None or (attach and evidence["outcome"] != Outcome.OK):
                _prove(launch, patience, api, found, recovery, path)
                evidence = records.read_record(path)
            if evidence["outcome"] != Outcome.OK:
                raise LastingFailure(Outcome(evidence["outcome"]), evidence["detail"])
            session = Session(
                server=found.server,
                address=found.address,
                engine=engine,
                api=api,
                facts=found.facts,
                device=found.device,
                evidence=evidence,
                lease_s=round(time.monotonic() - began, 4),
                attach=attach,
                nonce=nonce,
            )
            session.check_same()
            yield session
    except LastingFailure as failure:
        if failure.outcome == Outcome.NOT_APPLIED and not attach:
            # Another try is another launch: plugins are looked for at the start alone.
            stop_now(Path.cwd())
        raise
    except ServerError as error:
        if error.cause == Cause.SERVER_RESTARTED and not attach:
            # Its lease would find the same one again.
            stop_now(Path.cwd())
        raise _failure(error, engine, patience, recovery) from error
    except NoAnswer as error:
        if attach and error.status in REFUSED:
            raise unanswered(launch.engine, error) from None
        raise PassingFailure(Cause.SERVER_DIED, f"no answer: {error}", retry=True) from error


def looked_up(launch: Launch, patience: Patience) -> list[LookedUp]:
    """Launches a server for the shapes that it looks tuned files up for, and ends it.

    It looks them up when it first needs them: while it starts, or for its first answer.

    Raises:
        LeverbenchError: It does not start, or does not answer.
    """
    engine, found = get_engine(launch.engine.name), list[LookedUp]()
    try:
        with _launched(launch, {}, engine, patience, measured=False) as server:
            ask_probe(engine, server.address, launch.probe)
            found = engine.tuned_files.looked_up(server.server.read_log() or "")
    except NoAnswer as error:
        raise PassingFailure(Cause.SERVER_DIED, f"no answer: {error}", retry=False) from error
    finally:
        stop_now(Path.cwd())
    return found


@contextmanager
def _launched(
    launch: Launch,
    kernels: Mapping[str, Published],
    engine: Engine,
    patience: Patience,
    measured: bool,
) -> Iterator[_Found]:
    facts = model_facts(_model_folder(launch), launch.token_ids)
    spec = _server_spec(engine, launch, kernels, patience)
    with lease(spec, measured=measured, timeout_s=BUSY_TIMEOUT_S) as server:
        at = Address(server.base_url)
        device = "cpu" if launch.devices[0] == "cpu" else "gpu"
        yield _Found(
            server,
            at,
            facts,
            device,
            lambda: _account(launch, kernels, engine, facts, server, at),
        )


@contextmanager
def _attached(launch: Launch, measured: bool) -> Iterator[_Found]:
    with attached(launch, measured=measured) as server:
        yield _Found(server, server.address, server.facts, server.told.device, server.account)


def _published(launch: Launch) -> dict[str, Published]:
    """Returns the kernels that a server is given; they must be there before it is launched."""
    try:
        return {name: read_published(Path(path)) for name, path in sorted(launch.kernels.items())}
    except LeverbenchError as error:
        raise LastingFailure(Outcome.NOT_APPLIED, str(error)) from None


def _plugins(kernels: Mapping[str, Published]) -> list[Path]:
    return [kernel.plugin.resolve() for kernel in kernels.values()]


def _model_folder(launch: Launch) -> Path:
    if launch.model_path is None:
        raise ValueError("a server is launched with a model")
    return Path(launch.model_path)


def _failure(
    error: ServerError,
    engine: Engine,
    patience: Patience,
    recovery: Sequence[Mapping[str, Any]],
) -> PassingFailure | LastingFailure:
    """Returns which kind of failure a server's end is, by what its log says."""
    memory = engine.memory_failure(error.log()) if error.cause in _ENDED else None
    if memory is None:
        lasting = Outcome.START_FAILED if error.cause == Cause.START_FAILED else None
        return PassingFailure(error.cause, str(error), retry=True, lasting=lasting)
    outcome = Outcome(memory)
    if error.cause == Cause.START_FAILED and _next_step(patience, recovery, outcome):
        # The next step is the second attempt: without it, the same would come again.
        return LastingFailure(outcome, str(error))
    return PassingFailure(outcome, str(error), retry=True, lasting=outcome)


def ask_probe(
    api: Api, address: Address, probe: Probe, expected: str | None = None
) -> dict[str, Any]:
    """Asks the probe's question.

    Args:
        api: How to talk to the server.
        address: The server.
        probe: The question.
        expected: An earlier answer to compare with, where the probe expects none.

    Returns:
        ``{"answer": text, "right": bool, "seconds": time}``.
    """
    began = time.monotonic()
    answer = api.ask(address, probe.prompt, probe.max_tokens, ASK_TIMEOUT_S).text
    seconds = round(time.monotonic() - began, 4)
    return {"answer": answer, "right": _is_right(probe, answer, expected), "seconds": seconds}


def _is_right(probe: Probe, answer: str, expected: str | None) -> bool:
    if probe.expect is None:
        return expected is None or answer == expected
    return probe.expect in answer if probe.match == "contains" else answer == probe.expect


def _server_spec(
    engine: Engine, launch: Launch, kernels: Mapping[str, Published], patience: Patience
) -> ServerSpec:
    project = Path.cwd()
    identity = identify(launch.engine)
    argv = engine.command(launch.engine, (project / _model_folder(launch)).resolve())
    env = engine.environment(launch.engine, _plugins(kernels))
    if kernels:
        env = {**env, VARIABLE: str(project / calls_folder(launch))}
    if launch.devices[0] != "cpu":
        gpus = ",".join(device.removeprefix("gpu") for device in launch.devices)
        # In nvidia-smi's order, which is not CUDA's own on mixed machines.
        env = {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpus}
    # What was published may be another thing in the same place.
    given = [kernel.digest for kernel in kernels.values()]
    key = [str(project), launch.campaign, launch.variant, launch.session, argv, env, given]
    folder = project / "logs" / launch.campaign / launch.variant / f"s{launch.session}"
    return ServerSpec(
        digest=records.digest([*key, launch.devices, identity.digest])[:16],
        label=f"{launch.campaign}/{launch.variant}/s{launch.session}",
        argv=argv,
        env=env,
        devices=launch.devices,
        project=str(project),
        log_dir=str(folder),
        ready_path=engine.ready_path,
        start_timeout_s=patience.start_s,
        stop_grace_s=engine.stop_grace_s(launch.devices),
        idle_s=IDLE_S,
        cwd=str(project),
    )


def _prove(
    launch: Launch,
    patience: Patience,
    api: Api,
    found: _Found,
    recovery: Sequence[Mapping[str, Any]],
    path: Path,
) -> None:
    """Writes the evidence of a launch: what is known of the server when it is ready."""
    probe = ask_probe(api, found.address, launch.probe)
    answers = None
    if patience.agreement and probe["right"]:
        answers = ask_prompts(api, found.address, patience.agreement, ASK_TIMEOUT_S)
    account = found.account()
    outcome, detail = _judged(launch.probe, probe, account.get("kernels", ()))
    records.write_record(
        path,
        {
            "kind": "launch",
            "campaign": launch.campaign,
            "variant": launch.variant,
            "session": launch.session,
            "server_id": found.server.server_id,
            "outcome": outcome,
            "detail": detail,
            "versions": {
                "leverbench": __version__,
                "snakemake": importlib.metadata.version("snakemake"),
                "python": platform.python_version(),
            },
            "recovery": list(recovery),
            "probe": probe,
            "answers": answers,
            **account,
            "recorded_at": now(),
        },
    )
    if account["start_s"] is not None:
        note_history("launch", account["start_s"], launch.campaign)


def _judged(
    asked: Probe, probe: Mapping[str, Any], proofs: Sequence[Mapping[str, Any]]
) -> tuple[Outcome, str | None]:
    """Returns how a launch ended, and why: by its answer, then by its use of kernels."""
    if not probe["right"]:
        return Outcome.PROBE_WRONG, _wrong(asked, probe["answer"])
    if missed := [proof for proof in proofs if not proof["applied"]]:
        told = (f"{proof['kernel']}: {proof['problem']}" for proof in missed)
        return Outcome.NOT_APPLIED, "; ".join(told)
    return Outcome.OK, None


def _account(
    launch: Launch,
    kernels: Mapping[str, Published],
    engine: Engine,
    facts: ModelFacts,
    server: ServerHandle,
    address: Address,
) -> dict[str, Any]:
    """Returns what the evidence says of a server that was launched here."""
    info = engine.server_info(address, ASK_TIMEOUT_S)
    identity = identify(launch.engine)
    processes = server.processes()
    calls, ranks = read_calls(launch, processes), engine.profiled_ranks(info["effective"])
    log = server.read_log() if kernels else ""
    proofs = proof_at_ready(
        kernels,
        calls,
        ranks,
        lambda module: engine.plugin_problem(log, module),
        lambda kernel: engine.tuned_files.proofs(log, kernel.files, ranks),
    )
    levers = [
        *_applied(
            launch, engine, info, processes, engine.environment(launch.engine, _plugins(kernels))
        ),
        *_tuned(launch, proofs, ranks),
    ]
    return {
        "attached": False,
        "argv": masked(server.argv),
        "env": recorded_environment(
            _environment(processes[0].pid) if processes else {},
            own=launch.engine.env,
            prefix=engine.env_prefix,
        ),
        "levers_applied": [asdict(lever) for lever in levers],
        **({"kernels": proofs} if kernels else {}),
        "engine": {
            "name": identity.name,
            "version": identity.version,
            "python": launch.engine.python or sys.executable,
        },
        "digests": {"engine": identity.digest, "model": facts.digest},
        "machine": machine_fingerprint(launch.devices),
        "devices": list(launch.devices),
        "placement": placement(launch.devices, processes),
        "processes": [{"pid": pid, "started": start} for pid, start in processes],
        "effective": masked_fields(info["effective"]),
        "memory": info["memory"],
        "start_s": round(server.ready_at_unix_s - server.started_at_unix_s, 3),
    }


def _wrong(probe: Probe, answer: str) -> str:
    return f"{probe.prompt!r} is answered {answer!r}, expected {probe.expect!r}"


def _tuned(
    launch: Launch, proofs: Sequence[Mapping[str, Any]], ranks: int
) -> Iterator[AppliedLever]:
    """Yields, for each kernel that the variant is given or is without, what the calls show."""
    for proof in proofs:
        using = sum(count > 0 for count in proof["calls"].values())
        evidence = f"calls counted on {using} of {ranks} ranks"
        applied = proof["applied"]
        yield AppliedLever(f"{TUNED}{proof['kernel']}", True, applied, applied, evidence)
    for key in launch.removed:
        if key.startswith(TUNED):
            yield AppliedLever(key, None, None, True, "its plugin was not given to the server")


def _applied(
    launch: Launch,
    engine: Engine,
    info: Mapping[str, Any],
    processes: Sequence[Process],
    given: Mapping[str, str],
) -> list[AppliedLever]:
    """Returns, for each setting of the variant, what the running server shows of it.

    Args:
        launch: The launch slice.
        engine: The engine.
        info: What the server tells of itself.
        processes: Its processes.
        given: The environment that was added to theirs: a variable that lists plugins or paths
            has more there than the campaign says.
    """
    parsed = parsed_arguments(launch.engine)
    environments = [_environment(pid) for pid, _ in processes]
    readable = [environment for environment in environments if environment]
    asked: dict[str, Any] = {f"args.{name}": value for name, value in launch.engine.args.items()}
    asked |= {f"env.{name}": value for name, value in launch.engine.env.items()}
    asked |= dict.fromkeys(launch.removed)
    shown = []
    for key, value in asked.items():
        group, _, name = key.partition(".")
        if group == "args":
            shown.append(engine.applied(parsed, info, key, value))
        elif group == "env":
            values = {environment.get(name) for environment in readable}
            seen = (
                ", ".join(sorted(map(str, values))) if len(values) > 1 else next(iter(values), None)
            )
            # One process that shows something else refutes it; all of them must show it.
            complete = bool(readable) and len(readable) == len(processes)
            expected = given.get(name, value)
            applied = False if readable and values != {expected} else (True if complete else None)
            evidence = f"/proc environment of {len(readable)} of {len(processes)} processes"
            shown.append(AppliedLever(key, value, seen, applied, evidence))
    if version := launch.engine.version:
        installed = identify(launch.engine).version
        same = installed == version
        shown.append(AppliedLever("version", version, installed, same, "the installed package"))
    if launch.engine.python or launch.engine.wrapper:
        command = [*launch.engine.wrapper, launch.engine.python]
        for key, value in (("python", command[-1]), ("wrapper", command[:-1])):
            shown.append(AppliedLever(key, value, value, True, "the command that was launched"))
    return shown


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode(errors="replace").partition("=") for word in words if b"=" in word)
    return {name: value for name, _, value in pairs}
