import numpy as np
import pytest
from scipy import stats

from leverbench.analysis.effects import against_parents, compare, holm, sessions_to_settle

_TO_FIRST = against_parents([None, 0, 0, 0, 0, 0])


def _y(campaigns: int, variants: int, blocks: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, (campaigns, variants, blocks))


def test_a_complete_design_is_the_two_way_analysis_of_variance():
    y = _y(1, 6, 4, seed=2)

    found = compare(y, _TO_FIRST)

    left = y - y.mean(axis=2, keepdims=True) - y.mean(axis=1, keepdims=True)
    left += y.mean(axis=(1, 2), keepdims=True)
    variance = (left**2).sum(axis=(1, 2)) / (5 * 3)
    assert not found.noisy.any()
    assert np.allclose(found.estimate[:, 1:], (y[:, 1:] - y[:, :1]).mean(axis=2))
    assert np.allclose(found.standard_error[:, 1:], np.sqrt(variance * 2 / 4)[:, None])
    assert (found.df[:, 1:] == 6 * 4 - 6 - 4 + 1).all()
    assert np.isnan(found.estimate[:, 0]).all()


def test_effects_of_blocks_do_not_count():
    y = _y(1, 6, 3)
    drifted = y + np.array([0.0, -0.4, 0.3])

    assert np.allclose(
        compare(y, _TO_FIRST).estimate, compare(drifted, _TO_FIRST).estimate, equal_nan=True
    )
    assert np.allclose(
        compare(y, _TO_FIRST).standard_error,
        compare(drifted, _TO_FIRST).standard_error,
        equal_nan=True,
    )


def test_an_incomplete_design_is_least_squares():
    y = _y(1, 4, 4, seed=5)
    y[0, 1, 2] = y[0, 3, 0] = y[0, 3, 1] = np.nan

    found = compare(y, against_parents([None, 0, 1, 0]))

    cells = [(v, b) for v in range(4) for b in range(4) if not np.isnan(y[0, v, b])]
    design = np.zeros((len(cells), 7))
    for row, (v, b) in enumerate(cells):
        design[row, v] = 1
        if b:
            design[row, 3 + b] = 1
    values = np.array([y[0, v, b] for v, b in cells])
    beta, rss, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    df = len(cells) - rank
    covariance = np.linalg.inv(design.T @ design) * rss[0] / df
    assert df == len(cells) - 4 - 4 + 1
    for v, p in ((1, 0), (2, 1), (3, 0)):
        scale = covariance[v, v] + covariance[p, p] - 2 * covariance[v, p]
        assert found.estimate[0, v] == pytest.approx(beta[v] - beta[p])
        assert found.standard_error[0, v] == pytest.approx(np.sqrt(scale))
        assert found.df[0, v] == df


def test_one_session_has_an_estimate_and_no_error():
    found = compare(_y(1, 6, 1), _TO_FIRST)

    assert np.isfinite(found.estimate[0, 1:]).all()
    assert np.isnan(found.standard_error).all()
    assert np.isnan(found.p_values()).all()
    assert (found.df == 0).all()


def test_a_noisy_variant_is_judged_by_its_own_differences():
    y = _y(1, 6, 5, seed=4)
    y[0, 2] += np.array([0.4, -0.4, 0.3, -0.5, 0.2])

    found = compare(y, against_parents([None, 0, 0, 2, 0, 0]))

    # The noisy variant's comparison, and the one with it as the parent.
    assert found.noisy[0].tolist() == [False, False, True, True, False, False]
    expected = stats.ttest_rel(y[0, 2], y[0, 0])
    assert found.p_values()[0, 2] == pytest.approx(expected.pvalue)
    assert found.half_width(0.95)[0, 2] == pytest.approx(
        np.diff(expected.confidence_interval(0.95))[0] / 2
    )
    # The others' pool is what it would be without it.
    others = compare(np.delete(y, 2, axis=1), against_parents([None, 0, None, 0, 0]))
    assert found.standard_error[0, 1] == pytest.approx(others.standard_error[0, 1])
    assert found.df[0, 1] == (5 - 1) * (5 - 1)


def test_a_variant_is_noisy_by_the_f_test():
    y = _y(400, 5, 3, seed=8)
    found = compare(y, against_parents([None, 0, 0, 0, 0]))

    def p_value(v: int) -> np.ndarray:
        """Of its variance around the others' mean, computed directly."""
        others = np.delete(y, v, axis=1)
        difference = y[:, v] - others.mean(axis=1)
        own = difference.var(axis=1, ddof=1) / (1 + 1 / 4)
        left = others - others.mean(axis=2, keepdims=True) - others.mean(axis=1, keepdims=True)
        left += others.mean(axis=(1, 2), keepdims=True)
        return stats.f.sf(own / ((left**2).sum(axis=(1, 2)) / (3 * 2)), 2, 6)

    all_stay = np.min([p_value(v) for v in range(5)], axis=0) > 0.002
    expected = (p_value(1) < 0.05) | (p_value(0) < 0.05)
    assert 20 < expected.sum() < 60
    assert (found.noisy[:, 1] == expected)[all_stay].all()


def test_a_variant_that_may_be_noisy_by_chance_stays_in_the_pool_of_the_others():
    y = _y(1, 6, 3, seed=5)
    y[0, 2] += np.array([0.06, -0.06, 0.0])
    found = compare(y, _TO_FIRST)

    left = y - y.mean(axis=2, keepdims=True) - y.mean(axis=1, keepdims=True)
    left += y.mean(axis=(1, 2), keepdims=True)
    variance = (left**2).sum() / (5 * 2)
    assert found.noisy[0].tolist() == [False, False, True, False, False, False]
    assert found.standard_error[0, 1] == pytest.approx(np.sqrt(variance * 2 / 3))


def test_without_a_shared_block_the_noise_between_blocks_counts():
    y = _y(1, 6, 4)
    y[0, :, 1] += 0.3
    y[0, 5, :3] = np.nan
    y[0, :5, 3] = np.nan

    found = compare(y, _TO_FIRST)

    assert found.unblocked[0].tolist() == [False] * 5 + [True]
    assert found.estimate[0, 5] == pytest.approx(y[0, 5, 3] - y[0, 0, :3].mean())
    assert found.standard_error[0, 5] > 5 * found.standard_error[0, 1]


def test_a_chain_of_blocks_connects():
    y = np.full((1, 3, 3), np.nan)
    y[0, 0, :2], y[0, 1, 1:], y[0, 2, 2] = [0.0, 0.1], [0.2, 0.3], 0.7

    found = compare(y, against_parents([None, None, 0]))

    assert not found.unblocked.any()
    assert found.estimate[0, 2] == pytest.approx((0.7 - 0.3) + (0.2 - 0.1))


def test_exactly_equal_figures_are_no_noise():
    found = compare(np.zeros((1, 4, 3)), against_parents([None, 0, 0, 0]))

    assert not found.noisy.any()
    assert found.standard_error[0, 1] == 0.0


def test_holm_steps_down_and_skips_what_is_not_compared():
    p = np.array([[0.01, 0.04, np.nan, 0.03, 0.005]])

    assert holm(p)[0].tolist() == pytest.approx([0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True)


@pytest.mark.parametrize("effect", [0.0, 0.05])
def test_the_sessions_that_would_settle_it_do(effect):
    sd, variants, margin, level = 0.02, 6, np.log(1.03), 0.05

    (needed,) = sessions_to_settle(
        np.array([effect]),
        np.array([sd]),
        np.array([variants - 1.0]),
        np.array([3.0]),
        level=level,
        margin=margin,
        beyond=2,
        most=40,
    )

    def decided(sessions: int) -> float:
        y = np.random.default_rng(3).normal(0, sd, (4000, variants, sessions))
        y[:, 1] += effect
        found = compare(y, _TO_FIRST)
        estimate, half = found.estimate[:, 1], found.half_width(1 - 2 * level)[:, 1]
        pooled = ~found.noisy[:, 1]
        equal = np.abs(estimate) + half < margin
        significant = found.p_values()[:, 1] < level / 3
        return float((equal | significant)[pooled].mean())

    assert 2 < needed < 40
    assert decided(int(needed)) > 0.76
    assert decided(int(needed) - 1) < 0.84


def test_what_is_not_worth_it_has_no_number():
    settled = sessions_to_settle(
        np.array([0.025, 0.025]),
        np.array([0.05, np.nan]),
        np.array([5.0, 5.0]),
        np.array([1.0, 1.0]),
        level=0.05,
        margin=np.log(1.03),
        beyond=3,
        most=20,
    )

    assert np.isnan(settled).all()


def test_an_interaction_is_a_contrast_of_four():
    y = _y(1, 5, 4, seed=2)
    weights = np.array([[1.0, -1.0, -1.0, 1.0, 0.0]])

    found = compare(y, weights)

    means = y[0].mean(axis=1)
    assert found.estimate[0, 0] == pytest.approx(means[0] - means[1] - means[2] + means[3])
    plain = compare(y, against_parents([None, 0, 0, 0, 0]))
    assert found.standard_error[0, 0] == pytest.approx(plain.standard_error[0, 1] * np.sqrt(2))
