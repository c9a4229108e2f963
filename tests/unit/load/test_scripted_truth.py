"""The time law of the scripted server, which others are measured by."""

import math
from statistics import fmean, stdev

import pytest
from scripted_server import Script
from scripted_truth import Pace, Times, tok_per_s

PLAIN = Times(ttft_s=0.1, step_s=0.02, step_per_running_s=0.005)


def test_without_noise_times_are_those_of_the_script():
    pace = Pace(PLAIN)

    assert pace.launch_factor == 1.0
    assert pace.prefill_s(0) == pytest.approx(0.1)
    assert [pace.step_s(running) for running in (1, 4)] == pytest.approx([0.025, 0.04])
    assert pace.tokens() == 1


def test_a_launch_multiplies_all_its_times_by_a_factor_of_its_own():
    paces = [Pace(Times(ttft_s=1.0, step_s=1.0, launch=n, launch_noise=0.015)) for n in range(400)]
    logs = [math.log(pace.launch_factor) for pace in paces]

    assert abs(fmean(logs)) < 4 * 0.015 / math.sqrt(400)
    assert stdev(logs) == pytest.approx(0.015, rel=0.2)
    assert paces[7].step_s(1) == paces[7].prefill_s(0) == paces[7].launch_factor
    again = Pace(Times(ttft_s=1.0, step_s=1.0, launch=7, launch_noise=0.015))
    assert again.launch_factor == paces[7].launch_factor


def test_steps_have_noise_of_their_own():
    pace = Pace(Times(step_s=1.0, step_noise=0.1))
    logs = [math.log(pace.step_s(1)) for _ in range(2000)]

    assert abs(fmean(logs)) < 4 * 0.1 / math.sqrt(2000)
    assert stdev(logs) == pytest.approx(0.1, rel=0.1)


def test_drift_makes_all_times_longer(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1060.0)
    pace = Pace(Times(ttft_s=0.1, step_s=0.02, drift_per_s=0.001, drift_from_unix_s=1000.0))

    assert pace.step_s(1) == pytest.approx(0.02 * 1.06)
    assert pace.prefill_s(0) == pytest.approx(0.1 * 1.06)


def test_pauses_throttling_and_slow_first_requests():
    pace = Pace(
        Times(
            ttft_s=1.0,
            step_s=1.0,
            slow_first=1,
            slow_extra_s=5.0,
            pause_every=2,
            pause_s=0.5,
            throttled_from=2,
            throttled_steps=3,
            throttled_factor=10.0,
        )
    )

    assert [pace.prefill_s(0), pace.prefill_s(1)] == [6.0, 1.0]
    assert [pace.step_s(1) for _ in range(6)] == [1.0, 1.5, 10.0, 10.5, 10.0, 1.5]


def test_an_accept_length_between_two_numbers_is_one_or_the_other():
    pace = Pace(Times(tokens_per_step=2.25))
    tokens = [pace.tokens() for _ in range(4000)]

    assert set(tokens) == {2, 3}
    assert fmean(tokens) == pytest.approx(2.25, abs=0.03)


def test_throughput_follows_from_the_law():
    # 0.1 s, then 9 steps of 0.025 s alone, and of 0.04 s where four run.
    assert tok_per_s(PLAIN, 1, 10) == pytest.approx(10 / 0.325)
    assert tok_per_s(PLAIN, 4, 10) == pytest.approx(40 / 0.46)
    # Three tokens a step: 3 steps.
    fast = Times(ttft_s=0.1, step_s=0.02, step_per_running_s=0.005, tokens_per_step=3)
    assert tok_per_s(fast, 1, 10) == pytest.approx(10 / 0.175)
    # Half a second after every tenth step: 0.05 s a step.
    pausing = Times(ttft_s=0.1, step_s=0.02, pause_every=10, pause_s=0.5)
    assert tok_per_s(pausing, 1, 11) == pytest.approx(11 / 0.8)
    with pytest.raises(ValueError, match="do not go in step"):
        tok_per_s(Times(tokens_per_step=1.5), 1, 10)


def test_a_script_is_a_time_law_too():
    assert tok_per_s(Script(ttft_s=1.0, answer="Rome"), 1, 1) == 1.0
