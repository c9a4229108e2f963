"""Who is called faster."""

import math

import numpy as np
import pytest

from leverbench.tuning.race import BLOCK, ROUNDS, Rounds, judge, run_race


def test_rounds_are_interleaved():
    order = []

    def runner(name, time_s):
        def time(samples):
            order.append((name, samples))
            return [time_s] * samples

        return time

    rounds = run_race(runner("incumbent", 2.0), runner("rival", 1.0))

    block = [(name, BLOCK) for name in ("incumbent", "rival", "rival", "incumbent")]
    assert order == block * ROUNDS
    assert rounds == Rounds([[2.0] * 10] * ROUNDS, [[1.0] * 10] * ROUNDS)


def test_the_interval_is_students():
    """Logs of ratios 0.1 and 0.3: mean 0.2, sd 0.1 sqrt 2, error 0.1, t(1) at 99% is 63.657."""
    rounds = Rounds([[math.exp(0.1)], [math.exp(0.3)]], [[1.0], [1.0]])

    verdict = judge(rounds)

    assert verdict.speedup == pytest.approx(math.exp(0.2))
    assert math.log(verdict.low) == pytest.approx(0.2 - 6.3657, abs=1e-3)
    assert math.log(verdict.high) == pytest.approx(0.2 + 6.3657, abs=1e-3)
    assert not verdict.faster


def test_medians_are_of_all_samples():
    verdict = judge(Rounds([[1.0, 2.0, 9.0], [2.0, 3.0, 4.0]], [[1.0] * 3, [2.0] * 3]))

    assert (verdict.incumbent_s, verdict.rival_s) == (2.5, 1.5)


def published(gain: float, races: int, spread: float, seed: int) -> float:
    """Returns the share of simulated races in which the rival is called faster.

    A call's time is log-normal, sometimes three times as long; each round has a speed of its own,
    and drifts.
    """
    random = np.random.default_rng(seed)
    shape = (races, 2, ROUNDS, 2, BLOCK)
    logs = random.normal(0, spread, shape) + math.log(3) * (random.random(shape) < 0.05)
    logs += random.normal(0, 0.1, (races, 1, ROUNDS, 1, 1))
    # Of blocks incumbent, rival, rival, incumbent: the middle ones are one and two steps later.
    drift = random.normal(0, 0.02, (races, ROUNDS))
    logs += np.array([[0, 3], [1, 2]])[None, :, None, :, None] * drift[:, None, :, None, None]
    logs[:, 0] += math.log(gain)
    times_s = np.exp(logs).reshape(races, 2, ROUNDS, 2 * BLOCK).tolist()
    return float(np.mean([judge(Rounds(*race)).faster for race in times_s]))


def test_of_two_that_are_equal_the_rival_is_hardly_ever_called_faster():
    """One race of 200 by the interval; up to 15 of 1,000 are chance."""
    assert published(1.0, races=1000, spread=0.05, seed=1) <= 0.015


def test_a_true_gain_beyond_noise_is_found():
    assert published(1.05, races=200, spread=0.05, seed=2) >= 0.95


def test_a_rival_that_is_slower_is_never_called_faster():
    assert published(0.97, races=200, spread=0.05, seed=3) == 0
