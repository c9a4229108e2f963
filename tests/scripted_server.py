"""A streaming server of known truth: it generates tokens by the clock, as its script says.

It speaks enough of an engine's native HTTP interface to be loaded, probed and watched. A request's
first token comes `ttft_s` after its arrival; from then on it belongs to the running batch, which
steps as one: each step takes `step_s` + `step_per_running_s` * (requests running) and brings each
of them `tokens_per_step` tokens. Steps keep to absolute deadlines, so that a late one does not
delay those after it.

Run it with ``python tests/scripted_server.py --port 0``, or in a thread with `serving`.
"""

import argparse
import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from aiohttp import web

Misbehaviour = Literal["status", "cut", "no-done", "count", "error", "hang", "garbage"]
VOCABULARY_SIZE = 1000


@dataclass(frozen=True)
class Script:
    """What the server does.

    Attributes:
        ttft_s: From a request's arrival to its first token.
        step_s: Time of a decode step of an empty batch.
        step_per_running_s: Further time of a step for each request running.
        tokens_per_step: Tokens that a step brings each request; above 1 the server calls itself
            speculative.
        cached_tokens: Prompt tokens of each request that it claims to have found in its cache.
        slow_first: How many requests at the start are slow, as if the server were not warm.
        slow_extra_s: By how much their first token is later.
        events_per_write: Events that go out together.
        split_writes: Whether each write goes out in two halves, some time apart.
        answer: What it answers to a chat.
        metrics_prefix: First part of the names under ``/metrics``.
        misbehave: By number of the ``/generate`` request, from 0: "status" answers 500, "cut"
            breaks the connection half-way, "no-done" leaves out the ``[DONE]``, "count" gives one
            token less than asked, "error" sends an error event half-way, "hang" goes silent
            half-way, "garbage" sends no JSON half-way.
    """

    ttft_s: float = 0.0
    step_s: float = 0.0
    step_per_running_s: float = 0.0
    tokens_per_step: int = 1
    cached_tokens: int = 0
    slow_first: int = 0
    slow_extra_s: float = 0.0
    events_per_write: int = 1
    split_writes: bool = False
    answer: str = "Paris"
    metrics_prefix: str = "scripted"
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
        token_times_s: When each token was made.
    """

    number: int
    input_ids: list[int]
    asked: int
    cached_tokens: int
    arrived_s: float
    token_times_s: list[float] = field(default_factory=list)
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


class ScriptedServer:
    """The server and its account of what it did."""

    def __init__(self, script: Script, effective: Mapping[str, Any] | None = None) -> None:
        self.script = script
        self.effective = dict(effective or {})
        self.url = ""
        self.generations: list[Generation] = []
        self.flushes = 0
        self._running: list[Generation] = []
        self._in_flight = 0
        self._some_running = asyncio.Event()

    async def listen(self, port: int) -> web.AppRunner:
        """Starts to serve on 127.0.0.1; port 0 takes a free one. `url` says where."""
        # Prompts may be long: the default limit of 1 MiB is not an engine's.
        app = web.Application(client_max_size=1 << 28)
        app.cleanup_ctx.append(self._step_while_up)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/v1/chat/completions", self._chat),
                web.get("/health", self._health),
                web.get("/flush_cache", self._flush_cache),
                web.post("/flush_cache", self._flush_cache),
                web.get("/server_info", self._server_info),
                web.get("/metrics", self._metrics),
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
        script = self.script
        while True:
            await self._some_running.wait()
            due_s = time.perf_counter()
            while self._running:
                due_s += script.step_s + script.step_per_running_s * len(self._running)
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                for generation in self._running:
                    generation.add(script.tokens_per_step)
                self._running = [g for g in self._running if not g.done]
            self._some_running.clear()

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        generation = Generation(
            number=len(self.generations),
            input_ids=body["input_ids"],
            asked=body["sampling_params"]["max_new_tokens"],
            cached_tokens=self.script.cached_tokens,
            arrived_s=time.perf_counter(),
        )
        self.generations.append(generation)
        misbehaviour = self.script.misbehave.get(generation.number)
        if misbehaviour == "status":
            return web.json_response({"error": {"message": "scripted failure"}}, status=500)
        self._in_flight += 1
        try:
            if body.get("stream", False):
                return await self._stream(http, generation, misbehaviour)
            await self._prefill(generation)
            while not generation.done:
                await generation.counts.get()
            return web.json_response(self._event(generation, generation.asked))
        finally:
            self._in_flight -= 1
            if generation in self._running:  # the client has gone
                self._running.remove(generation)

    async def _prefill(self, generation: Generation) -> None:
        slow = generation.number < self.script.slow_first
        await asyncio.sleep(self.script.ttft_s + (self.script.slow_extra_s if slow else 0.0))
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
        meta: dict[str, Any] = {
            "prompt_tokens": len(generation.input_ids),
            "completion_tokens": count,
            "cached_tokens": generation.cached_tokens,
            "finish_reason": {"type": "length", "length": count} if done else None,
        }
        if self.script.tokens_per_step > 1:
            meta["spec_accept_length"] = float(self.script.tokens_per_step)
        return {"output_ids": generation.output_ids(count), "meta_info": meta}

    async def _chat(self, _: web.Request) -> web.Response:
        message = {"role": "assistant", "content": self.script.answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _flush_cache(self, _: web.Request) -> web.Response:
        if self._in_flight:
            return web.Response(status=400, text="requests are running")
        self.flushes += 1
        return web.Response(text="flushed")

    async def _server_info(self, _: web.Request) -> web.Response:
        info = {**self.effective, "version": "scripted", "internal_states": [{}]}
        return web.json_response(info)

    async def _metrics(self, _: web.Request) -> web.Response:
        values = {
            "num_running_reqs": self._in_flight,
            "prompt_tokens_total": sum(len(g.input_ids) for g in self.generations),
            "generation_tokens_total": sum(len(g.token_times_s) for g in self.generations),
            "cached_tokens_total": sum(g.cached_tokens for g in self.generations),
        }
        prefix = self.script.metrics_prefix
        return web.Response(text="".join(f"{prefix}:{k} {v}\n" for k, v in values.items()))


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
        if option.name == "misbehave":
            how = "|".join(get_args(Misbehaviour))
            parser.add_argument(
                name, nargs="*", default=[], metavar="NUMBER=HOW", help=f"HOW is {how}"
            )
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
