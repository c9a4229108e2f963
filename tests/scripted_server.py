"""A streaming server of known truth: it generates tokens by the clock, as its script says.

It speaks enough of an engine's native HTTP interface, and of OpenAI's, to be loaded, probed and
watched. A request's first token comes `ttft_s` after its arrival; from then on it belongs to the
running batch, which steps as one: each step takes `step_s` + `step_per_running_s` * (requests
running) and brings each of them `tokens_per_step` tokens; `scripted_truth` has the law in full.
Steps keep to absolute deadlines, so that a late one does not delay those after it.

Run it with ``python tests/scripted_server.py --port 0``, or in a thread with `serving`.
"""

import argparse
import asyncio
import gzip
import json
import signal
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from aiohttp import web
from scripted_truth import Pace, Times

Misbehaviour = Literal["status", "cut", "no-done", "count", "error", "hang", "garbage"]
Profiling = Literal["write", "refuse", "never", "empty", "truncated", "foreign", "silent"]
VOCABULARY_SIZE = 1000
# What a decode step consists of in its traces: name, start and duration in microseconds. The
# addition is inside the linear layer, and 30 us of a step of 300 us are in no operation.
CPU_OPERATIONS = (
    ("aten::linear", 10.0, 150.0),
    ("aten::addmm", 20.0, 120.0),
    ("aten::scaled_dot_product_attention", 170.0, 100.0),
    ("aten::argmax", 270.0, 20.0),
)
KERNELS = (("nvjet_tst_64x8", 15.0, 75.0), ("ncclDevKernel_AllReduce_Sum_bf16", 95.0, 25.0))
STEP_US = 300.0


@dataclass(frozen=True, kw_only=True)
class Script(Times):
    """What the server does, beside how long it takes.

    Attributes:
        cached_tokens: Prompt tokens of each request that it claims to have found in its cache.
        says: A line that it prints with each request for tokens.
        events_per_write: Events that go out together.
        split_writes: Whether each write goes out in two halves, some time apart.
        answer: What it answers to a chat.
        answers: What it answers to some prompts instead, by prompt.
        right_answers: After how many chats of one prompt it answers something else.
        metrics_prefix: First part of the names under ``/metrics``.
        ranks: How many traces it writes of a profile.
        profiling: What becomes of a profile: "write" is good; it may "refuse", "never" come to
            the end of its steps, write files that are "empty", "truncated" or "foreign", or write
            good ones but be "silent" about it in its log.
        api_key: The key that it asks for, everywhere but under ``/health`` and ``/metrics``; a
            refusal repeats the header that was sent. Empty: none.
        model: What it calls its model.
        context: The longest context that it says it has, in tokens.
        usage: When an OpenAI-like stream tells the number of tokens: with each "event", at its
            "end", or "never".
        strangers_tokens: Tokens that it generates for others beside each request, by its counters.
        misbehave: By number of the request for tokens, from 0: "status" answers 500 and repeats
            the key, "cut" breaks the connection half-way, "no-done" leaves out the ``[DONE]``,
            "count" gives one token less than asked, "error" sends an error event half-way, "hang"
            goes silent half-way, "garbage" sends no JSON half-way.
    """

    cached_tokens: int = 0
    says: str = ""
    events_per_write: int = 1
    split_writes: bool = False
    answer: str = "Paris"
    answers: Mapping[str, str] = field(default_factory=dict)
    right_answers: int = 1_000_000
    metrics_prefix: str = "scripted"
    ranks: int = 1
    profiling: Profiling = "write"
    api_key: str = ""
    model: str = "scripted-model"
    context: int = 4096
    usage: str = "event"
    strangers_tokens: int = 0
    misbehave: Mapping[int, Misbehaviour] = field(default_factory=dict)


@dataclass(eq=False)
class Generation:
    """One request as the server saw it; times are `time.perf_counter` readings.

    Attributes:
        number: Place in the order of arrival.
        input_ids: The prompt.
        asked: Tokens asked for.
        cached_tokens: As claimed to the client.
        arrived_s: When its body had been read.
        openai: Whether it came by OpenAI's interface.
        token_times_s: When each token was made.
        steps: Decode steps that it was in.
    """

    number: int
    input_ids: list[int]
    asked: int
    cached_tokens: int
    arrived_s: float
    openai: bool = False
    token_times_s: list[float] = field(default_factory=list)
    steps: int = 0
    counts: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    def add(self, tokens: int) -> None:
        """Makes further tokens, at most as many as were asked for."""
        tokens = min(tokens, self.asked - len(self.token_times_s))
        self.token_times_s += [time.perf_counter()] * tokens
        self.counts.put_nowait(len(self.token_times_s))

    @property
    def done(self) -> bool:
        """Whether all tokens are made."""
        return len(self.token_times_s) == self.asked

    def output_ids(self, count: int) -> list[int]:
        """Returns the first ids of its output, which follow from the prompt alone."""
        start = sum(self.input_ids)
        return [(start + i) % VOCABULARY_SIZE for i in range(count)]


@dataclass
class Recording:
    """A profile as it was asked for.

    Attributes:
        asked: The body of the request.
        running: Requests in the running batch when it began.
        steps_left: Decode steps still to be recorded.
    """

    asked: Mapping[str, Any]
    running: int
    steps_left: int


class ScriptedServer:
    """The server and its account of what it did.

    Attributes:
        script: What it does; another one may be set at any time.
        effective: The arguments that it calls its own.
        url: Where it listens.
        generations: The requests for tokens.
        flushes: How often its cache was emptied.
        keys: The ``Authorization`` headers that were sent, None for none.
        started_s: Unix time of its start, which it tells; set, it is another start.
    """

    def __init__(self, script: Script, effective: Mapping[str, Any] | None = None) -> None:
        self.script = script
        self.effective = dict(effective or {})
        self.url = ""
        self.log = ""
        self.generations: list[Generation] = []
        self.recordings: list[Recording] = []
        self.profile_stops = 0
        self.flushes = 0
        self.chats: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.started_s = time.time()
        self._pace = Pace(script)
        self._running: list[Generation] = []
        self.in_flight = 0
        self._some_running = asyncio.Event()
        self._recording: Recording | None = None

    async def listen(self, port: int) -> web.AppRunner:
        """Starts to serve on 127.0.0.1; port 0 takes a free one. `url` says where."""
        # Prompts may be long: the default limit of 1 MiB is not an engine's.
        app = web.Application(client_max_size=1 << 28, middlewares=[self._check_key])
        app.cleanup_ctx.append(self._step_while_up)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/v1/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/model_info", self._model_info),
                web.post("/v1/chat/completions", self._chat),
                web.get("/health", self._health),
                web.get("/flush_cache", self._flush_cache),
                web.post("/flush_cache", self._flush_cache),
                web.get("/server_info", self._server_info),
                web.get("/metrics", self._metrics),
                web.post("/start_profile", self._start_profile),
                web.post("/stop_profile", self._stop_profile),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _step_while_up(self, _: web.Application) -> Any:
        stepping = asyncio.create_task(self._step())
        yield
        stepping.cancel()

    async def _step(self) -> None:
        while True:
            await self._some_running.wait()
            due_s = time.perf_counter()
            while self._running:
                due_s += self._pace.step_s(len(self._running))
                attend(len(self._running))
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                for generation in self._running:
                    generation.steps += 1
                    generation.add(self._pace.tokens())
                self._running = [g for g in self._running if not g.done]
                self._count_recorded_step()
            self._some_running.clear()

    @web.middleware
    async def _check_key(self, http: web.Request, handler: Any) -> web.StreamResponse:
        sent = http.headers.get("Authorization")
        self.keys.add(sent)
        expected = f"Bearer {self.script.api_key}"
        if self.script.api_key and sent != expected and http.path not in ("/health", "/metrics"):
            return web.json_response({"error": {"message": f"not the key: {sent}"}}, status=401)
        response: web.StreamResponse = await handler(http)
        return response

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        return await self._answer(
            http, body, body["input_ids"], body["sampling_params"]["max_new_tokens"], openai=False
        )

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        if body["model"] != self.script.model:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        return await self._answer(http, body, body["prompt"], body["max_tokens"], openai=True)

    async def _answer(
        self,
        http: web.Request,
        body: Mapping[str, Any],
        input_ids: list[int],
        asked: int,
        *,
        openai: bool,
    ) -> web.StreamResponse:
        generation = Generation(
            number=len(self.generations),
            input_ids=input_ids,
            asked=asked,
            cached_tokens=self.script.cached_tokens,
            arrived_s=time.perf_counter(),
            openai=openai,
        )
        self.generations.append(generation)
        if self.script.says:
            self._print(f"{self.script.says}\n")
        misbehaviour = self.script.misbehave.get(generation.number)
        if misbehaviour == "status":
            message = f"scripted failure ({http.headers.get('Authorization')})"
            return web.json_response({"error": {"message": message}}, status=500)
        self.in_flight += 1
        try:
            if body.get("stream", False):
                return await self._stream(http, generation, misbehaviour)
            await self._prefill(generation)
            while not generation.done:
                await generation.counts.get()
            return web.json_response(self._event(generation, generation.asked))
        finally:
            self.in_flight -= 1
            if generation in self._running:  # the client has gone
                self._running.remove(generation)

    async def _prefill(self, generation: Generation) -> None:
        await asyncio.sleep(self._pace.prefill_s(generation.number))
        generation.add(1)
        if not generation.done:
            self._running.append(generation)
            self._some_running.set()

    async def _stream(
        self, http: web.Request, generation: Generation, misbehaviour: Misbehaviour | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await self._prefill(generation)
        last = generation.asked - (1 if misbehaviour == "count" else 0)
        half = (generation.asked + 1) // 2
        pending: list[bytes] = []
        count = 0
        while count < last:
            count = min(last, await generation.counts.get())
            pending.append(_sse(json.dumps(self._event(generation, count))))
            if len(pending) >= self.script.events_per_write and count < last:
                await self._write(response, pending)
            if count < half:
                continue
            if misbehaviour == "cut" and http.transport is not None:
                http.transport.abort()
                return response
            if misbehaviour == "hang":
                await asyncio.Event().wait()
            if misbehaviour == "error":
                pending.append(_sse(json.dumps({"error": {"message": "scripted error"}})))
                break
            if misbehaviour == "garbage":
                pending.append(_sse("{no JSON"))
                break
        if generation.openai and self.script.usage == "end":
            usage = self._usage(generation, count)
            pending.append(_sse(json.dumps({"choices": [], "usage": usage})))
        if misbehaviour != "no-done":
            pending.append(_sse("[DONE]"))
        await self._write(response, pending)
        await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, pending: list[bytes]) -> None:
        data = b"".join(pending)
        pending.clear()
        if not self.script.split_writes:
            await response.write(data)
            return
        middle = len(data) // 2
        await response.write(data[:middle])
        await asyncio.sleep(0.002)
        await response.write(data[middle:])

    def _event(self, generation: Generation, count: int) -> dict[str, Any]:
        done = count == generation.asked
        if generation.openai:
            reason = "length" if done else None
            choice = {"index": 0, "text": "x", "finish_reason": reason}
            told = self.script.usage == "event"
            return {"choices": [choice], "usage": self._usage(generation, count) if told else None}
        meta: dict[str, Any] = {
            "prompt_tokens": len(generation.input_ids),
            "completion_tokens": count,
            "cached_tokens": generation.cached_tokens,
            "finish_reason": {"type": "length", "length": count} if done else None,
        }
        if self.script.tokens_per_step > 1 and generation.steps:
            meta["spec_accept_length"] = count / generation.steps
        return {"output_ids": generation.output_ids(count), "meta_info": meta}

    def _usage(self, generation: Generation, count: int) -> dict[str, Any]:
        return {
            "prompt_tokens": len(generation.input_ids),
            "completion_tokens": count,
            "total_tokens": len(generation.input_ids) + count,
            "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        }

    async def _chat(self, http: web.Request) -> web.Response:
        body = await http.json()
        if body.get("model", "default") not in ("default", self.script.model):
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        attend(0)
        prompt = body["messages"][-1]["content"]
        self.chats[prompt] += 1
        right = self.chats[prompt] <= self.script.right_answers
        content = self.script.answer if right else "something else"
        content = self.script.answers.get(prompt, content)
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        if body.get("return_token_ids"):
            # A token a word, and one that ends the answer.
            choice["response_token_ids"] = [*(zlib.crc32(w.encode()) for w in content.split()), 2]
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _flush_cache(self, _: web.Request) -> web.Response:
        if self.in_flight:
            return web.Response(status=400, text="requests are running")
        self.flushes += 1
        return web.Response(text="flushed")

    async def _server_info(self, _: web.Request) -> web.Response:
        # As an engine does: its key stands among its arguments, what changes among its states.
        states = [{"last_gen_throughput": time.perf_counter()}]
        return web.json_response(
            {
                **self.effective,
                "version": "scripted",
                "api_key": self.script.api_key or None,
                "context_length": self.script.context,
                "startup_time": {"load_weight": self.started_s},
                "internal_states": states,
            }
        )

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self.script.model, "weight_version": "default"})

    async def _models(self, _: web.Request) -> web.Response:
        card = {
            "id": self.script.model,
            "object": "model",
            "created": time.time_ns(),
            "root": self.script.model,
            "max_model_len": self.script.context,
            "permission": [{"id": f"permission-{time.time_ns()}"}],
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, _: web.Request) -> web.Response:
        values = {
            "num_running_reqs": self.in_flight,
            "prompt_tokens_total": sum(len(g.input_ids) for g in self.generations),
            "generation_tokens_total": sum(len(g.token_times_s) for g in self.generations)
            + self.script.strangers_tokens * len(self.generations),
            "cached_tokens_total": sum(g.cached_tokens for g in self.generations),
        }
        prefix = self.script.metrics_prefix
        return web.Response(text="".join(f"{prefix}:{k} {v}\n" for k, v in values.items()))

    async def _start_profile(self, http: web.Request) -> web.Response:
        asked = await http.json()
        if self.script.profiling == "refuse" or self._recording:
            return web.Response(status=500, text="Internal Server Error")
        self._recording = Recording(asked, len(self._running), asked["num_steps"])
        self.recordings.append(self._recording)
        self._say("Profiling starts.", self.script.ranks)
        return web.Response(text="Start profiling.\n")

    async def _stop_profile(self, _: web.Request) -> web.Response:
        self.profile_stops += 1
        if self._recording is None:
            return web.Response(status=500, text="Internal Server Error")
        self._write_traces(self._recording)
        return web.Response(text="Stop profiling.\n")

    def _count_recorded_step(self) -> None:
        if self._recording is not None and self.script.profiling != "never":
            self._recording.steps_left -= 1
            if self._recording.steps_left == 0:
                self._write_traces(self._recording)

    def _write_traces(self, recording: Recording) -> None:
        self._recording = None
        folder = Path(recording.asked["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        steps = recording.asked["num_steps"] - recording.steps_left
        content = gzip.compress(make_trace(steps, recording.running, recording.asked["activities"]))
        content = {
            "empty": b"",
            "truncated": content[: len(content) // 2],
            "foreign": gzip.compress(b'{"spans": []}'),
        }.get(self.script.profiling, content)
        for rank in range(self.script.ranks):
            (folder / f"{time.time()}-TP-{rank}.trace.json.gz").write_bytes(content)
        self._say("Profiling done.", self.script.ranks)

    def _say(self, line: str, times: int) -> None:
        if self.script.profiling != "silent":
            self._print(f"{line}\n" * times)

    def _print(self, text: str) -> None:
        self.log += text
        print(text, end="", flush=True)


def attend(batch: int) -> int:
    """What each decode step calls, and each chat with 0: a tunable kernel can stand in for it."""
    return batch


def make_trace(steps: int, running: int, activities: Sequence[str]) -> bytes:
    """Returns the trace of some decode steps, as JSON."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "scheduler"}}
    ]
    for step in range(steps):
        start_us = step * STEP_US
        marked = {"ph": "X", "cat": "user_annotation", "name": f"step[DECODE bs={running}]"}
        events.append({**marked, "pid": 7, "tid": 7, "ts": start_us, "dur": STEP_US})
        for name, at_us, duration_us in CPU_OPERATIONS:
            call = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7}
            events.append({**call, "ts": start_us + at_us, "dur": duration_us})
        for name, at_us, duration_us in KERNELS if "GPU" in activities else ():
            call = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 13}
            events.append({**call, "ts": start_us + at_us, "dur": duration_us})
    return json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=2).encode()


def _sse(payload: str) -> bytes:
    return f"data: {payload}\n\n".encode()


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    """Serves in a thread of its own, on a free port, until the block ends."""
    server = ScriptedServer(script)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = await server.listen(0)
        ready.set()
        await stop.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        if not ready.wait(10):
            raise RuntimeError("the scripted server did not start")
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def serve_until_told(
    script: Script, port: int, effective: Mapping[str, Any] | None = None
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        script: What the server does.
        port: Where; 0 takes a free one.
        effective: The arguments that it calls its own.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ScriptedServer(script, effective)
    runner = await server.listen(port)
    print(f"ready: {server.url}", flush=True)
    await stop.wait()
    await runner.cleanup()


def _parse_arguments() -> tuple[Script, int]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one")
    for option in fields(Script):
        name = "--" + option.name.replace("_", "-")
        if option.name == "answers":
            parser.add_argument(name, type=json.loads, default={}, help="as JSON")
        elif option.name == "misbehave":
            how = "|".join(get_args(Misbehaviour))
            parser.add_argument(
                name, nargs="*", default=[], metavar="NUMBER=HOW", help=f"HOW is {how}"
            )
        elif option.name == "profiling":
            parser.add_argument(name, choices=get_args(Profiling), default=option.default)
        elif option.type is bool:
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=type(option.default), default=option.default)
    values = vars(parser.parse_args())
    port = values.pop("port")
    pairs = (item.split("=") for item in values.pop("misbehave"))
    return Script(**values, misbehave={int(number): how for number, how in pairs}), port


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    script, port = _parse_arguments()
    asyncio.run(serve_until_told(script, port))


if __name__ == "__main__":
    main()
