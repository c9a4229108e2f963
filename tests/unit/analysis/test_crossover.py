import pytest

from leverbench.analysis.crossover import Crossover, crossovers, effect


@pytest.mark.parametrize(
    ("ratio", "verdict", "expected"),
    [
        (1.03, None, "nothing"),
        (1.031, None, "gain"),
        (1 / 1.03, None, "nothing"),
        (0.97, None, "loss"),
        (1.2, "equal", "nothing"),
        (0.9, "faster", "gain"),
        (1.2, "slower", "loss"),
        (1.2, "undecided", None),
    ],
)
def test_a_verdict_goes_before_the_figure(ratio, verdict, expected):
    assert effect(ratio, verdict) == expected


def test_an_effect_that_does_not_change_has_no_crossover():
    assert crossovers([(1, 1.1, None), (8, 1.2, None), (16, 1.04, None)]) == []
    assert crossovers([]) == []


def test_open_points_are_passed_over():
    points = [(16, 1.0, "equal"), (1, 1.4, "faster"), (8, 1.1, "undecided"), (32, 0.8, "slower")]

    assert crossovers(points) == [
        Crossover(1, 16, "gain", "nothing"),
        Crossover(16, 32, "nothing", "loss"),
    ]
