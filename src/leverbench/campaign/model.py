"""The resolved campaign: plain values, with nothing left to inherit or to default."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from leverbench.records import digest

if TYPE_CHECKING:
    # Each measuring job reads this module, and none of them reads a manifest.
    from leverbench.kernels.manifest import Kernel

# Ratios from 1 / (1 + this) to 1 + this are no difference that matters.
DEFAULT_EQUAL_WITHIN = 0.03

ArgValue = str | int | float | bool | list[Any] | dict[str, Any]
# A number of tokens, or the first and the last of a range that it is drawn from.
Tokens = int | tuple[int, int]

# What the key of a kernel begins with, among a variant's settings: each is a lever of its own.
TUNED = "tuned."

RANDOM_IDS = "random-ids"
FILE = "file"


@dataclass(frozen=True)
class Attach:
    """A server that others started, and what may be done with it.

    Attributes:
        url: Its address, without a final slash.
        api: ``native`` (the engine's own endpoints) or ``openai`` (``/v1/completions``).
        key_variable: Environment variable that holds the server's API key.
        flush_cache: Whether its prefix cache may be emptied.
    """

    url: str
    api: str = "native"
    key_variable: str = "LEVERBENCH_API_KEY"
    flush_cache: bool = False

    @property
    def on_this_host(self) -> bool:
        """Whether the address is a loopback one, so that its files can be read here."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


@dataclass(frozen=True)
class Engine:
    """A server's settings.

    Attributes:
        name: Which engine implementation launches it.
        version: The version that the campaign names, or None for whichever is installed.
        python: Its interpreter; None is the one that runs leverbench.
        wrapper: Words before the command.
        args: Arguments without the leading dashes.
        env: Environment added to the server's.
        tuned: Names of the tunable kernels that it is given.
        attach: The running server in place of a launch, or None.
    """

    name: str
    version: str | None
    python: str | None
    wrapper: tuple[str, ...]
    args: Mapping[str, ArgValue]
    env: Mapping[str, str]
    tuned: tuple[str, ...] = ()
    attach: Attach | None = None

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Engine":
        """Rebuilds the settings from plain values, as `dataclasses.asdict` gives them."""
        attach = params["attach"]
        lists = {name: tuple(params[name]) for name in ("wrapper", "tuned")}
        return cls(**{**params, **lists, "attach": Attach(**attach) if attach else None})


@dataclass(frozen=True)
class Variant:
    """One configuration of the server.

    Attributes:
        name: Name of the variant, used in paths.
        parent: The variant it differs from, or None for a root.
        levers: Names of what differs.
        confounded: More than one lever differs.
        control: ``a-a`` for a variant that differs in nothing, else None.
        sessions: How many launches of its server it asks for.
        engine: The resolved settings.
        delta: What differs from the parent: ``{"args.dtype": [old, new]}``.
        cross: The two variants whose levers it combines, its parent first; else empty.
        touches: Categories of a profile that its levers touch, where the file says so.
    """

    name: str
    parent: str | None
    levers: tuple[str, ...]
    confounded: bool
    control: str | None
    sessions: int
    engine: Engine
    delta: Mapping[str, tuple[Any, Any]]
    cross: tuple[str, ...] = ()
    touches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """What is profiled, once a variant: at which concurrencies, and how many decode steps."""

    concurrency: tuple[int, ...] = (16,)
    steps: int = 5


@dataclass(frozen=True)
class RecoveryStep:
    """Settings that are changed, on top of the steps before, when a server does not start."""

    args: Mapping[str, ArgValue | None]
    env: Mapping[str, str | None]


@dataclass(frozen=True)
class SharedPrefix:
    """How prompts begin alike: each with one of ``groups`` prefixes of ``tokens`` tokens."""

    tokens: int
    groups: int


@dataclass(frozen=True)
class Workload:
    """What is asked of the server.

    Attributes:
        dataset: `RANDOM_IDS` or `FILE`.
        input_tokens: Length of a prompt, its prefix included; None where a file says it.
        output_tokens: Length of an answer; None where a file says it.
        shared_prefix: How prompts begin alike, or None.
        path: The file, absolute or relative to the project; None of random ids.
        content: SHA-256 of the file's content; None of random ids.
    """

    dataset: str
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    shared_prefix: SharedPrefix | None = None
    path: str | None = None
    content: str | None = None

    def as_params(self) -> dict[str, Any]:
        """Returns it as plain values, without what it does not have.

        So the digest of a workload stays what it was when there is more that one can have.
        """
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    @property
    def digest(self) -> str:
        """Names what is asked; where a file lies is no part of that."""
        return digest({key: v for key, v in self.as_params().items() if key != "path"})

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> "Workload":
        """Rebuilds it from plain values."""
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in params.items()
        }
        if "shared_prefix" in values:
            values["shared_prefix"] = SharedPrefix(**values["shared_prefix"])
        return cls(**values)

    @property
    def is_even(self) -> bool:
        """Whether all requests are of one length."""
        return isinstance(self.input_tokens, int) and isinstance(self.output_tokens, int)

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts may begin alike: by intent, or as text and chat templates do."""
        return self.dataset == FILE or self.shared_prefix is not None

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer; a file knows its own."""
        if self.input_tokens is None or self.output_tokens is None:
            raise ValueError("the lengths are those of a file")
        return longest(self.input_tokens) + longest(self.output_tokens)


def shortest(tokens: Tokens) -> int:
    """Returns the smallest number that is drawn."""
    return tokens if isinstance(tokens, int) else tokens[0]


def longest(tokens: Tokens) -> int:
    """Returns the largest number that is drawn."""
    return tokens if isinstance(tokens, int) else tokens[1]


@dataclass(frozen=True)
class Probe:
    """A question with a known answer; ``expect`` None asks for the same answer twice."""

    prompt: str = "Capital of France in one word?"
    expect: str | None = "Paris"
    match: str = "exact"
    max_tokens: int = 16


@dataclass(frozen=True)
class Agreement:
    """What servers are asked to find out whether a variant changes answers.

    Attributes:
        prompts: Each launch is asked all of them, and again one of them after each point.
        max_tokens: Longest answer, in tokens.
        tolerance: Largest share of an answer that may differ from the parent's.
    """

    prompts: tuple[str, ...] = (
        "Count from one to twenty in words.",
        "Name the months of the year.",
        "Why do servers answer several requests at once?",
    )
    max_tokens: int = 24
    tolerance: float = 0.1


@dataclass(frozen=True)
class Limits:
    """Bounds of the measurement, in the unit that the name ends with."""

    min_window_s: float = 10.0
    warm_up_agreement: float = 0.1
    max_warm_up_windows: int = 8
    max_strangers_cpu_share: float = 0.2
    max_power_capped_share: float = 0.2
    start_timeout_s: int = 1800
    request_timeout_s: int = 600


@dataclass(frozen=True)
class Goodput:
    """Limits that a request keeps within to count, in milliseconds; None for no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


@dataclass(frozen=True)
class Campaign:
    """A campaign file, validated and resolved.

    Attributes:
        name: Name of the campaign.
        file: The file that it was read from.
        description: A sentence for the report, or None.
        target_output_tok_per_s: What the user needs, or None.
        model_path: Folder of the model, as written in the file; None where a server is attached
            and the file names none.
        token_ids: First and last token id that prompts are drawn from, where the file says so.
        prepare: How the workflow makes the model, or None.
        model_config: The model's config.json, where the file names one beside the model's folder.
        gpus: GPUs of one server; 0 is the CPU.
        device: What the GPUs are called, where the file says so.
        variants: By name, in the file's order.
        workloads: By name.
        ladder: Requests by concurrency.
        seed: Seeds prompts and order.
        probe: The question asked before and after each point.
        agreement: The prompts by which answers are compared; None where they are not.
        limits: Bounds of the measurement.
        profile: What is profiled.
        until: ``decided`` where sessions are added until verdicts are, else None.
        equal_within: Variants whose ratio lies within this share of 1 are equal.
        goodput: Limits of a request's latency, or None.
        recovery: By cause of a failed start, what is changed step by step.
        kernels: The tunable kernels that variants name, as far as their folders exist.
        unshaped: Kernels of the engine's own whose shapes and sizes are not known, or not yet.
        shapes_from: Of each kernel of the engine's own, where they come from: ``model``,
            ``discover``, ``list`` or ``files``.
        skip: By kernel, the profile that tells whether tuning it can be worth it, if any.
        execution: ``jobs`` (rules share a kept server) or ``session`` (one job a session).
        remeasure: ``none`` or ``protocol`` (rows of an older protocol are measured again).
        on_environment_change: ``error``, ``remeasure`` or ``separate``.
        overrides: What the command line changed in the plan.
    """

    name: str
    file: str
    description: str | None
    target_output_tok_per_s: float | None
    model_path: str | None
    token_ids: tuple[int, int] | None
    prepare: str | None
    model_config: str | None
    gpus: int
    device: str | None
    variants: Mapping[str, Variant]
    workloads: Mapping[str, Workload]
    ladder: Mapping[int, int]
    seed: int
    probe: Probe
    agreement: Agreement | None
    limits: Limits
    profile: Profile
    until: str | None
    equal_within: float
    goodput: Goodput | None
    recovery: Mapping[str, tuple[RecoveryStep, ...]]
    kernels: Mapping[str, "Kernel"]
    unshaped: Mapping[str, "Kernel"]
    shapes_from: Mapping[str, str]
    skip: Mapping[str, str]
    execution: str
    remeasure: str
    on_environment_change: str
    overrides: Mapping[str, Any]

    @property
    def attached(self) -> bool:
        """Whether others started the servers; then none is launched."""
        return any(variant.engine.attach for variant in self.variants.values())

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that one server takes: ``("cpu",)`` or ``("gpu0", "gpu1", ...)``."""
        return tuple(f"gpu{index}" for index in range(self.gpus)) or ("cpu",)

    def requests(self, concurrency: int) -> int:
        """Returns the number of requests at a concurrency.

        Outside the ladder it is interpolated linearly between its steps (beyond them, in
        proportion to the nearest), and at least twice the concurrency.
        """
        if concurrency in self.ladder:
            return self.ladder[concurrency]
        below = max((c for c in self.ladder if c < concurrency), default=None)
        above = min((c for c in self.ladder if c > concurrency), default=None)
        if below is not None and above is not None:
            share = (concurrency - below) / (above - below)
            count = self.ladder[below] + share * (self.ladder[above] - self.ladder[below])
        else:
            nearest = below if below is not None else above
            if nearest is None:
                raise ValueError("the ladder is empty")
            count = self.ladder[nearest] * concurrency / nearest
        return max(round(count), 2 * concurrency)
