"""A campaign as the pipeline leaves it on disk, with figures that can be worked out by hand."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leverbench.campaign.model import (
    Agreement,
    Campaign,
    Engine,
    Limits,
    Probe,
    Profile,
    Variant,
    Workload,
)
from leverbench.campaign.order import session_order
from leverbench.campaign.plan import plan_record
from leverbench.records import SCHEMA_VERSION, read_record

# Output tok/s of the baseline's session 1. Session 2 is 2% above it in every variant.
BASE = {1: 80.0, 8: 300.0, 16: 400.0}
# What each lever multiplies session 1 with; in session 2 it is 1% of the factor more, or less for
# the last one: variants that scattered all alike would leave the baseline's own noise to judge.
FACTORS = {
    "baseline": {1: 1.0, 8: 1.0, 16: 1.0},
    "threads-2": {1: 1.0, 8: 1.0, 16: 1.01},
    "float32": {1: 1.0, 8: 1.2, 16: 1.4},
    "decode-steps-4": {1: 1.1, 8: 1.05, 16: 0.95},
}
DELTAS: dict[str, dict[str, list[Any]]] = {
    "baseline": {},
    "threads-2": {"env.OMP_NUM_THREADS": ["1", "2"]},
    "float32": {"args.dtype": ["bfloat16", "float32"]},
    "decode-steps-4": {"args.num-continuous-decode-steps": [None, 4]},
}
SETTINGS = {"args.dtype": "bfloat16", "env.OMP_NUM_THREADS": "1"}
MACHINE = {"device": "cpu", "cpu": "Made-up CPU 9000", "cores": "2", "memory_gib": "15"}
VERSIONS = {"leverbench": "0.9.9", "snakemake": "9.18.0", "python": "3.12.1"}
PLACEMENT = {"numa_nodes": 1, "gpus": {}, "cpus_allowed": ["0-1"]}
# Share of the operations' time by category, and the longest operation of each.
SHARES = {"attention": 0.5, "matrix-multiply": 0.4, "other": 0.1}
OPERATIONS = {"attention": "decode_kernel", "matrix-multiply": "gemm_bf16", "other": "copy_"}
# Columns of a profile's table of operations, of those that a report reads.
OPERATION = ("name", "category", "calls", "self_us", "share", "per_step_us")
LAUNCH_DIGEST = "a" * 64
REQUESTS = {1: 8, 8: 32, 16: 48}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Writes a record as the product does, less the wait for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema_version": SCHEMA_VERSION, **record}))


def timed(batch: int, speedup: float, **more: Any) -> dict[str, Any]:
    """Returns what a micro-benchmark tells of a kernel's calls at one size."""
    return {
        "dimensions": {"batch": batch, "heads": 4},
        "config": {"block": 16},
        "fallback_s": speedup * 1e-5,
        "kernel_s": 1e-5,
        "speedup": speedup,
        "low": 0.9 * speedup,
        "high": 1.1 * speedup,
        **more,
    }


def chosen(batch: int, speedup: float | None, published: bool) -> dict[str, Any]:
    """Returns what a tuning chose at one size, against the default parameters."""
    return {
        "dimensions": {"batch": batch, "heads": 4},
        "config": {"block": 64 if published else 16},
        "default": {"block": 16},
        "published": published,
        "speedup": speedup,
        "low": speedup and 0.99 * speedup,
        "high": speedup and 1.01 * speedup,
    }


def rate(variant: str, session: int, concurrency: int) -> float:
    """Output tok/s of a point."""
    factor = FACTORS[variant][concurrency] * BASE[concurrency]
    if session == 2:
        factor *= 1.02 * {"baseline": 1, "decode-steps-4": 1 / 1.01}.get(variant, 1.01)
    return factor


@dataclass(frozen=True)
class FakeCampaign:
    """Paths of the campaign ``fake`` below a root folder, and ways to alter its records."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results" / "fake"

    @property
    def plan(self) -> Path:
        return self.results / "plan.json"

    @property
    def launches(self) -> Path:
        return self.results / "launches"

    @property
    def attempts(self) -> Path:
        return self.root / "state" / "attempts" / "fake"

    @property
    def points(self) -> list[Path]:
        return sorted(self.results.glob("*/s*/*/c*.json"))

    @property
    def profiles(self) -> list[Path]:
        return sorted(self.results.glob("*/profile/*/c*/summary.json"))

    def profile(self, variant: str) -> Path:
        return self.results / variant / "profile" / "random" / "c16" / "summary.json"

    def tell_steps(
        self,
        variant: str,
        categories_us: dict[str, float],
        *,
        idle_us: float = 0.0,
        top: dict[str, Any] | None = None,
        tensor_cores: dict[str, str] | None = None,
        device: str = "gpu",
        **changes: Any,
    ) -> None:
        """Lets a profile tell five decode steps apart, of one rank on one stream of a GPU.

        Args:
            variant: Whose profile.
            categories_us: Time in a step by category, each of one kernel, ``NAME_kernel``.
            idle_us: Time in a step without any; the whole of it is before the first category's.
            top: What else the record says of each kernel, by category.
            tensor_cores: What is inferred of a category.
            device: Where it was taken.
            **changes: Of the record.
        """
        busy_us = sum(categories_us.values())
        step_us = busy_us + idle_us
        gaps_us = {name: idle_us if n == 0 else 0.0 for n, name in enumerate(categories_us)}
        kernels = [
            {
                "name": f"{name}_kernel",
                "category": name,
                "calls": 5,
                "self_us": 5 * time_us,
                "share": time_us / busy_us,
                "per_step_us": time_us,
                "tensor_cores": None,
                "geometry": None,
                **((top or {}).get(name) or {}),
            }
            for name, time_us in categories_us.items()
        ]
        record = {
            "machine": {**MACHINE, "device": device},
            "versions": {**VERSIONS, "engine": "1.2.3"},
            "device": device,
            "total_us": 5 * busy_us,
            "steps": {
                "found_by": "annotations",
                "count": 5,
                "dropped": 2,
                "mean_us": step_us,
                "min_us": step_us - 1,
                "max_us": step_us + 1,
            },
            "span_us": 5 * step_us,
            "busy_us": 5 * busy_us,
            "idle_us": 5 * idle_us,
            "idle_share": idle_us / step_us,
            "gaps": {"count": 40, "total_us": 5 * idle_us, "median_us": 2.5},
            "categories": [
                {
                    "category": name,
                    "share": time_us / busy_us,
                    "in_loops": 0.0,
                    "self_us": 5 * time_us,
                    "union_us": 5 * time_us,
                    "gap_us": 5 * gaps_us[name],
                    "step_share": (time_us + gaps_us[name]) / step_us,
                    "per_step_us": time_us,
                    "tensor_cores": (tensor_cores or {}).get(name),
                }
                for name, time_us in categories_us.items()
            ],
            "top": kernels,
            "other_top": [],
            "communication": None,
            "tensor_activity": None,
            "truncated": None,
        }
        path = self.profile(variant)
        self.alter(path, **{**record, **changes})
        rows = [
            {"rank": "TP-0", "device": device, **{k: kernel[k] for k in OPERATION}}
            for kernel in kernels
        ]
        pq.write_table(pa.Table.from_pylist(rows), path.with_name("kernels.parquet"))

    def launch(self, variant: str, session: int) -> Path:
        return self.launches / f"{variant}-s{session}.json"

    def point(self, variant: str, session: int, concurrency: int) -> Path:
        return self.results / variant / f"s{session}" / "random" / f"c{concurrency}.json"

    def session(self, variant: str, session: int) -> Path:
        return self.results / variant / f"s{session}" / "server.json"

    def alter(self, path: Path, **changes: Any) -> None:
        write_record(path, {**read_record(path), **changes})

    def alter_metrics(self, path: Path, **changes: Any) -> None:
        self.alter(path, metrics={**read_record(path)["metrics"], **changes})

    def alter_lever(self, variant: str, session: int, key: str, **changes: Any) -> None:
        path = self.launch(variant, session)
        levers = read_record(path)["levers_applied"]
        assert key in [lever["key"] for lever in levers]
        self.alter(
            path, levers_applied=[{**x, **(changes if x["key"] == key else {})} for x in levers]
        )

    def alter_variant(self, variant: str, **changes: Any) -> None:
        plan = read_record(self.plan)
        plan["variants"][variant] |= changes
        write_record(self.plan, plan)

    def recover(self, variant: str, session: int, *steps: dict[str, Any]) -> None:
        """Lets a session's launch, its record and its points have taken recovery steps."""
        taken = [{"cause": "out-of-memory", "args": {}, "env": {}, **step} for step in steps]
        for path in (self.launch(variant, session), self.session(variant, session)):
            self.alter(path, recovery=taken)
        for concurrency in BASE:
            self.alter(self.point(variant, session, concurrency), recovery=taken)

    def answer(self, variant: str, session: int, *texts: str) -> None:
        """Lets a launch have answered the campaign's first prompts, a token a word."""
        prompts = read_record(self.plan)["agreement"]["prompts"]
        answers = [
            {
                "prompt": prompt,
                "max_tokens": 24,
                "text": text,
                "token_ids": [sum(map(ord, word)) for word in text.split()],
            }
            for prompt, text in zip(prompts, texts, strict=False)
        ]
        self.alter(self.launch(variant, session), answers=answers)

    def attach(self) -> None:
        """Lets others have started the servers, of which nothing is known but what they tell."""
        write_record(self.plan, read_record(self.plan) | {"devices": ["attached"]})
        for path in [*self.points, *self.launches.iterdir()]:
            self.alter(path, attached=True, placement=None)
        for path in self.launches.iterdir():
            unknown = {"argv": [], "env": {}, "start_s": None}
            self.alter(path, **unknown, effective={"page_size": 64, "dtype": "bfloat16"})

    def give_kernel(
        self,
        variant: str,
        calls: list[dict[str, Any]],
        tuned: dict[str, Any],
        touches: tuple[str, ...] = ("attention",),
        name: str = "decode-attention",
    ) -> None:
        """Gives a variant's servers a kernel: with a micro-benchmark and one shape's tuning."""
        built = f"results/kernels/{name}/{'c' * 16}"
        folder, tuning = f"{built}/{'d' * 16}", f"results/tuning/{name}/cpu/x/heads4.json"
        planned = read_record(self.plan).get("kernels", {})
        about = {"touches": list(touches), "size": "batch"}
        self.alter(self.plan, kernels={**planned, name: about})
        write_record(self.root / folder / "microbench.json", {"kind": "microbench", "calls": calls})
        write_record(self.root / folder / "published.json", {"tunings": [tuning]})
        write_record(self.root / tuning, {"kind": "tuning", **tuned})
        kernels = read_record(self.plan)["variants"][variant].get("kernels", {})
        self.alter_variant(variant, kernels={**kernels, name: folder})

    def alter_conditions(self, path: Path, **changes: Any) -> None:
        """Moves a point to another ``machine``, or to another ``model`` or ``engine`` digest."""
        record = read_record(path)
        if "machine" in changes:
            record["machine"]["cpu"] = changes.pop("machine")
        self.alter(path, machine=record["machine"], digests={**record["digests"], **changes})

    def add_point(self, variant: str, session: int, concurrency: int, like: int) -> Path:
        """Writes a point outside of the ladder, with the figures of another."""
        path = self.point(variant, session, concurrency)
        record = read_record(self.point(variant, session, like))
        write_record(path, {**record, "concurrency": concurrency})
        return path

    def attempt(self, variant: str, session: int, concurrency: int, *lines: Any) -> Path:
        """Writes attempts of the session's configuration, unless a line has other digests."""
        path = self.attempts / variant / f"s{session}" / "random" / f"c{concurrency}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "".join(json.dumps({"digests": {"launch": LAUNCH_DIGEST}, **x}) + "\n" for x in lines)
        )
        return path


def write_campaign(root: Path) -> FakeCampaign:
    """Writes a campaign in which every point was measured."""
    campaign = FakeCampaign(root)
    declared = _campaign()
    parents = {name: variant.parent for name, variant in declared.variants.items()}
    order = session_order(dict.fromkeys(parents, 2), parents, declared.seed)
    plan = plan_record(declared, order)
    write_record(campaign.plan, plan)
    for place, (variant, session) in enumerate(order):
        _write_session(campaign, variant, session, place)
    for variant in DELTAS:
        write_record(campaign.profile(variant), _profile(variant))
    return campaign


def _campaign() -> Campaign:
    return Campaign(
        name="fake",
        file="config/fake.yaml",
        description="A campaign made up for tests",
        target_output_tok_per_s=1000,
        model_path="models/tiny",
        token_ids=None,
        prepare=None,
        model_config=None,
        gpus=0,
        device=None,
        variants={
            name: Variant(
                name=name,
                parent=None if name == "baseline" else "baseline",
                levers=tuple(delta),
                confounded=False,
                control=None,
                sessions=2,
                engine=_engine(delta),
                delta={key: (old, new) for key, (old, new) in delta.items()},
            )
            for name, delta in DELTAS.items()
        },
        workloads={"random": Workload("random-ids", 256, 256)},
        ladder=REQUESTS,
        seed=7,
        probe=Probe(),
        agreement=Agreement(),
        limits=Limits(),
        profile=Profile(),
        until=None,
        equal_within=0.03,
        goodput=None,
        recovery={},
        kernels={},
        unshaped={},
        shapes_from={},
        skip={},
        execution="jobs",
        remeasure="none",
        on_environment_change="error",
        overrides={"sessions": 2},
    )


def _engine(delta: dict[str, list[Any]]) -> Engine:
    settings = SETTINGS | {key: new for key, (_, new) in delta.items()}
    args, env = (
        {key.partition(".")[2]: x for key, x in settings.items() if key.startswith(group)}
        for group in ("args.", "env.")
    )
    return Engine("engine", version=None, python=None, wrapper=(), args=args, env=env)


def _write_session(campaign: FakeCampaign, variant: str, session: int, place: int) -> None:
    server_id = f"{variant}-s{session}"
    settings = SETTINGS | {key: new for key, (_, new) in DELTAS[variant].items()}
    write_record(
        campaign.session(variant, session),
        {
            "kind": "session",
            "digests": {"launch": LAUNCH_DIGEST},
            "server_id": server_id,
            "outcome": "ok",
            "detail": None,
            "recovery": [],
        },
    )
    write_record(
        campaign.launch(variant, session),
        {
            "kind": "launch",
            "campaign": "fake",
            "variant": variant,
            "session": session,
            "server_id": server_id,
            "outcome": "ok",
            "detail": None,
            "argv": ["python", "-m", "engine", "--port", "30000"],
            "env": {"OMP_NUM_THREADS": "1"},
            "levers_applied": [
                {"key": key, "asked": x, "seen": x, "applied": True, "evidence": "server info"}
                for key, x in settings.items()
            ],
            "engine": {"name": "engine", "version": "1.2.3"},
            "versions": VERSIONS,
            "placement": PLACEMENT,
            "recovery": [],
            "effective": {"dtype": "bfloat16"},
            "recorded_at": f"2025-03-01T{9 + place:02}:00:00.000+00:00",
            "start_s": 21.5,
        },
    )
    for minute, concurrency in enumerate(BASE, start=1):
        write_record(
            campaign.point(variant, session, concurrency),
            _point(variant, session, concurrency, server_id, f"{9 + place:02}:{10 * minute:02}"),
        )


def _point(
    variant: str, session: int, concurrency: int, server_id: str, clock: str
) -> dict[str, Any]:
    tok_per_s = rate(variant, session, concurrency)
    mean = {
        "ttft": 40.0 + concurrency,
        "tpot": 1000 * concurrency / tok_per_s,
        "itl": 1000 * concurrency / tok_per_s,
        "e2e": 256_000 * concurrency / tok_per_s,
    }
    times = {
        f"{statistic}_{name}_ms": value * scale
        for name, value in mean.items()
        for statistic, scale in (("mean", 1), ("p50", 1), ("p90", 1.1), ("p95", 1.2), ("p99", 1.5))
    }
    return {
        "kind": "point",
        "campaign": "fake",
        "variant": variant,
        "parent": None if variant == "baseline" else "baseline",
        "session": session,
        "workload": "random",
        "concurrency": concurrency,
        "protocol": 1,
        "outcome": "measured",
        "detail": None,
        "valid": True,
        "invalid_reason": None,
        "server_id": server_id,
        "launch_index": 1,
        "digests": {
            "launch": LAUNCH_DIGEST,
            "model": "b" * 64,
            "engine": "c" * 64,
            "workload": "d" * 64,
        },
        "machine": MACHINE,
        "versions": {**VERSIONS, "engine": "1.2.3"},
        "placement": PLACEMENT,
        "recovery": [],
        "requests_planned": REQUESTS[concurrency],
        "num_requests": REQUESTS[concurrency],
        "failures": 0,
        "failure_messages": [],
        "started_at": f"2025-03-01T{clock}:00.000+00:00",
        "ended_at": f"2025-03-01T{clock}:30.000+00:00",
        "duration_s": REQUESTS[concurrency] * 256 / tok_per_s,
        "metrics": {
            "output_tok_per_s": tok_per_s,
            "steady_output_tok_per_s": None,
            "request_per_s": tok_per_s / 256,
            **times,
            "accept_length": None,
        },
        "warm_up": {"windows_tok_per_s": [tok_per_s, tok_per_s], "agreed": True},
        "cached_tokens": 0,
        "client": {"loop_lag_p99_ms": 0.4, "delivered_concurrency": concurrency * 0.97},
    }


def _profile(variant: str) -> dict[str, Any]:
    total_us = 80_000.0
    top = [
        {
            "name": OPERATIONS[category],
            "category": category,
            "calls": 120,
            "self_us": share * total_us,
            "share": share,
        }
        for category, share in SHARES.items()
    ]
    return {
        "kind": "profile",
        "campaign": "fake",
        "variant": variant,
        "session": 1,
        "workload": "random",
        "concurrency": 16,
        "protocol": 1,
        "outcome": "profiled",
        "detail": None,
        "server_id": f"{variant}-s1",
        "machine": MACHINE,
        "steps_asked": 5,
        "decode_steps": 5,
        "in_flight": 16,
        "files": [
            {
                "name": "a.trace.json.gz",
                "bytes": 4_200_000,
                "sha256": "f" * 64,
                "rank": 0,
                "events": 9000,
            }
        ],
        "total_us": total_us,
        "categories": [
            {"category": category, "share": share, "self_us": share * total_us}
            for category, share in SHARES.items()
        ],
        "top": top,
        "other_top": ["copy_"],
    }
