"""The time law of the scripted server, and the figures that follow from it.

One launch multiplies all of its times by one factor, drawn by `seed` and `launch`, and drift makes
them grow from second to second. Each step has noise of its own. So what a campaign on scripted
servers should find is known: `tok_per_s` says it for each script and concurrency.
"""

import math
import random
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long the server takes.

    Attributes:
        ttft_s: From a request's arrival to its first token.
        step_s: Time of a decode step of an empty batch.
        step_per_running_s: Further time of a step for each request running.
        tokens_per_step: Tokens that a step brings each request, on average: between two whole
            numbers, one or the other. Above 1 the server calls itself speculative.
        slow_first: How many requests at the start are slow, as if the server were not warm.
        slow_extra_s: By how much their first token is later.
        seed: Of all that is drawn.
        launch: Number of the launch.
        launch_noise: Standard deviation of the logarithm of a launch's factor.
        step_noise: The same of a step's.
        drift_per_s: Share of themselves by which all times are longer with each second...
        drift_from_unix_s: ...since then.
        pause_every: After how many steps it pauses; 0: never.
        pause_s: For how long.
        throttled_from: The step from which it is throttled.
        throttled_steps: For how many steps.
        throttled_factor: By how much those are longer.
    """

    ttft_s: float = 0.0
    step_s: float = 0.0
    step_per_running_s: float = 0.0
    tokens_per_step: float = 1.0
    slow_first: int = 0
    slow_extra_s: float = 0.0
    seed: int = 1
    launch: int = 0
    launch_noise: float = 0.0
    step_noise: float = 0.0
    drift_per_s: float = 0.0
    drift_from_unix_s: float = 0.0
    pause_every: int = 0
    pause_s: float = 0.0
    throttled_from: int = 0
    throttled_steps: int = 0
    throttled_factor: float = 1.0


class Pace:
    """The times of one launch, as they are drawn.

    Attributes:
        launch_factor: What all of them are multiplied by.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self._random = random.Random(f"{times.seed} {times.launch}")
        self.launch_factor = math.exp(self._random.gauss(0.0, times.launch_noise))
        self._steps = 0

    def prefill_s(self, number: int) -> float:
        """Returns how long a request, by its number, waits for its first token."""
        times = self._times
        extra_s = times.slow_extra_s if number < times.slow_first else 0.0
        return (times.ttft_s + extra_s) * self._factor()

    def step_s(self, running: int) -> float:
        """Returns how long the next step takes, with what comes before it."""
        times = self._times
        seconds = plain_step_s(times, running) * self._factor()
        seconds *= math.exp(self._random.gauss(0.0, times.step_noise))
        if 0 <= self._steps - times.throttled_from < times.throttled_steps:
            seconds *= times.throttled_factor
        self._steps += 1
        if times.pause_every and self._steps % times.pause_every == 0:
            seconds += times.pause_s
        return seconds

    def tokens(self) -> int:
        """Returns how many tokens a step brings one request."""
        whole = math.floor(self._times.tokens_per_step)
        return whole + (self._random.random() < self._times.tokens_per_step - whole)

    def _factor(self) -> float:
        drifted_s = time.time() - self._times.drift_from_unix_s if self._times.drift_per_s else 0.0
        return self.launch_factor * (1.0 + self._times.drift_per_s * drifted_s)


def plain_step_s(times: Times, running: int) -> float:
    """Returns the time of a step, before noise, drift and throttling."""
    return times.step_s + times.step_per_running_s * running


def tok_per_s(times: Times, concurrency: int, output_tokens: int) -> float:
    """Returns the throughput that a client sees, before noise, drift and throttling.

    Of requests of one length in a closed loop: they arrive together, decode together and end
    together, so C of them take one TTFT and the steps of one.
    """
    if times.tokens_per_step != int(times.tokens_per_step):
        raise ValueError("requests of random numbers of steps do not go in step")
    steps = math.ceil((output_tokens - 1) / times.tokens_per_step)
    pause_s = times.pause_s / times.pause_every if times.pause_every else 0.0
    request_s = times.ttft_s + steps * (plain_step_s(times, concurrency) + pause_s)
    return concurrency * output_tokens / request_s
