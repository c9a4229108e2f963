"""What variants differ by: an additive model of variant and block, fitted to logarithms.

All functions take many campaigns of one design at once, along the first axis: the analysis passes
one, a simulation thousands.

The model is the two-way layout without interaction (Scheffe, The Analysis of Variance, 1959,
chapter 4): ``y = variant + block + residual``, where y is the logarithm of what was measured, a
block is one uninterrupted pass over the variants, and residuals of all variants have one variance
(two or three sessions of one variant alone say nearly nothing of it).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# A variant whose residuals' variance exceeds that of the others, by an F test at this level, is
# judged by its own differences.
NOISY_LEVEL = 0.05
# It leaves the pool at this one. At the first level already, one campaign in four would lose a
# variant that scatters by chance, and with it the larger part of its noise: simulated, intervals
# that should hold the truth in 95% hold it in 92% then (docs/adr/0009).
LEAVES_POOL_LEVEL = 0.002
# Relative: below it a sum of squares is rounding, not noise.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Contrasts:
    """What k contrasts of variants come to, in each of n campaigns; arrays are (n, k).

    Attributes:
        estimate: Sum of weight times effect; NaN where there is none.
        standard_error: Of the estimate; NaN where it is not known.
        df: Degrees of freedom of the standard error; 0 where it is not known.
        noisy: Whether a variant concerned is noisy, so that its own differences judge it.
        unblocked: Whether no blocks connect the variants, so that the noise between blocks is
            part of the standard error.
        residual_sd: Standard deviation of one measurement: of the pool, or of the differences
            within blocks over the root of the weights' sum of squares.
    """

    estimate: Floats
    standard_error: Floats
    df: Floats
    noisy: Flags
    unblocked: Flags
    residual_sd: Floats

    def p_values(self) -> Floats:
        """Returns two-sided p values of no difference by Student's t (n, v)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            t = np.abs(self.estimate) / self.standard_error
            return np.asarray(2 * special.stdtr(self.df, -t))

    def half_width(self, confidence: float) -> Floats:
        """Returns half the width of the two-sided interval around the estimate (n, v)."""
        with np.errstate(invalid="ignore"):
            return np.asarray(special.stdtrit(self.df, 0.5 + confidence / 2) * self.standard_error)


@dataclass(frozen=True)
class _Fit:
    """The least-squares fit of one design: cells (variant, block) that hold a measurement.

    Attributes:
        effects: Takes measurements to the variants' effects (variants, cells).
        basis: Orthonormal columns that span what the model can say (cells, rank).
        df: Cells minus the rank of the design, which is variants + blocks - 1 where all are
            connected.
    """

    cells: Flags
    effects: Floats
    basis: Floats
    df: int

    def sum_of_squares(self, y: Floats) -> Floats:
        """Returns the residual sum of squares of each campaign (n)."""
        values = y[:, self.cells]
        left = values - (values @ self.basis) @ self.basis.T
        return np.asarray(np.einsum("nc,nc->n", left, left))


def against_parents(parents: Sequence[int | None]) -> Floats:
    """Returns the weights of each variant minus its parent (v, v); zeros where it has none."""
    weights = np.zeros((len(parents), len(parents)))
    for variant, parent in enumerate(parents):
        if parent is not None:
            weights[variant, variant], weights[variant, parent] = 1, -1
    return weights


def compare(y: Floats, weights: Floats) -> Contrasts:
    """Estimates contrasts of variants.

    Degrees of freedom of the pool are measurements - variants - blocks + 1, less what is not
    connected. A contrast with a noisy variant is judged by its values in the blocks that hold all
    of its variants: a paired t test. A variant that is noisy beyond doubt also leaves the pool of
    the others. Where no blocks connect the variants, block effects are left out of the model: its
    residuals then hold the noise between blocks too.

    Args:
        y: Logarithms (campaigns, variants, blocks); NaN where nothing was measured, in the same
            places for all campaigns.
        weights: Of the variants, with a sum of 0 (contrasts, variants); all zero for none.
    """
    present = ~np.isnan(y[0])
    noisy, left = _noisy(y, present)
    shape = (len(y), len(weights))
    estimate, error, df, sd = (np.full(shape, np.nan) for _ in range(4))
    by_itself, unblocked = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for rows, pattern in _patterns(left):
        pool = _fit(present & ~pattern[:, None], blocks=True)
        for k, contrast in enumerate(weights):
            of = contrast != 0
            if not of.any() or not present[of].any(axis=1).all():
                continue
            together = present[of].all(axis=0)
            alone = noisy[rows][:, of].any(axis=1) & together.any()
            parts = []
            if alone.any():
                by_itself[rows[alone], k] = True
                of_blocks = y[rows[alone]][:, :, together]
                parts.append((rows[alone], _within_blocks(of_blocks, contrast)))
            if not alone.all():
                fit = pool
                if not _connected(pool.cells, of):
                    unblocked[rows[~alone], k] = True
                    fit = _fit(present & (~pattern | of)[:, None], blocks=False)
                parts.append((rows[~alone], _by_model(y[rows[~alone]], fit, contrast)))
            for those, found in parts:
                for to, values in zip((estimate, error, df, sd), found, strict=True):
                    to[those, k] = values
    return Contrasts(estimate, error, np.nan_to_num(df), by_itself, unblocked, sd)


def holm(p_values: Floats) -> Floats:
    """Adjusts p values for being several (Holm, Scandinavian Journal of Statistics 6, 1979).

    Args:
        p_values: (campaigns, comparisons); NaN for a comparison that is not made.

    Returns:
        Adjusted values of the same shape: below a level, the comparison is significant at it, and
        the chance that any true null hypothesis of a campaign is rejected is at most that level.
    """
    order = np.argsort(p_values, axis=1)  # NaN last
    ordered = np.take_along_axis(p_values, order, axis=1)
    number = (~np.isnan(p_values)).sum(axis=1, keepdims=True)
    factors = np.maximum(number - np.arange(p_values.shape[1]), 1)
    adjusted = np.minimum(np.maximum.accumulate(ordered * factors, axis=1), 1.0)
    result = np.empty_like(p_values)
    np.put_along_axis(result, order, adjusted, axis=1)
    return result


def sessions_to_settle(
    effect: Floats,
    residual_sd: Floats,
    df_per_session: Floats,
    comparisons: Floats,
    *,
    level: float,
    margin: float,
    beyond: NDArray[np.int64],
    most: int,
    power: float = 0.8,
) -> Floats:
    """Returns how many sessions would decide comparisons, if estimate and noise are the truth.

    Decided means significant at ``level`` over the number of comparisons (Holm's first step), or
    shown equal by two one-sided tests at ``level`` (Schuirmann, Journal of Pharmacokinetics and
    Biopharmaceutics 15, 1987). Power is by Student's t, shifted by the effect.

    Args:
        effect: Differences of logarithms, in an array of any shape.
        residual_sd: Standard deviation of one measurement.
        df_per_session: Degrees of freedom that a session beyond the first adds: variants of the
            pool - 1, or 1 for paired differences.
        comparisons: How many comparisons of the campaign are undecided.
        level: Of the verdicts.
        margin: Largest difference of logarithms that counts as equal.
        beyond: Sessions that each has already.
        most: Largest number worth considering.
        power: Wanted.

    Returns:
        The smallest numbers; NaN where ``most`` would not do or the noise is not known.
    """
    settled = np.full(np.shape(effect), np.nan)
    for sessions in range(most, 1, -1):
        df = (sessions - 1) * df_per_session
        error = residual_sd * np.sqrt(2 / sessions)
        with np.errstate(invalid="ignore", divide="ignore"):
            critical = special.stdtrit(df, 1 - level / (2 * comparisons))
            significant = special.stdtr(df, np.abs(effect) / error - critical)
            reach = margin - special.stdtrit(df, 1 - level) * error
            below, above = (-reach - effect) / error, (reach - effect) / error
            equal = np.where(reach > 0, special.stdtr(df, above) - special.stdtr(df, below), 0.0)
            settled[(np.maximum(significant, equal) >= power) & (sessions > beyond)] = sessions
    return settled


def _noisy(y: Floats, present: Flags) -> tuple[Flags, Flags]:
    """Returns which variants are noisy, and which of them leave the pool (campaigns, variants).

    The noisiest leaves first, and the others are tested again without it.
    """
    noisy, left = (np.zeros(y.shape[:2], dtype=bool) for _ in range(2))
    pending = np.arange(len(y))
    while len(pending):
        again = []
        for within, pattern in _patterns(left[pending]):
            rows = pending[within]
            p_values = _excess(y[rows], present & ~pattern[:, None])
            noisy[rows] = pattern | (p_values < NOISY_LEVEL)
            worst = p_values.argmin(axis=1)
            leaves = p_values.min(axis=1) < LEAVES_POOL_LEVEL
            left[rows[leaves], worst[leaves]] = True
            again.append(rows[leaves])
        pending = np.concatenate(again)
    return noisy, left


def _excess(y: Floats, cells: Flags) -> Floats:
    """Returns p values of variants being no noisier than the others (campaigns, variants).

    What a variant adds to the residual sum of squares, over what the model leaves without it,
    each by its degrees of freedom, is an F ratio where all variances are equal.
    """
    p_values = np.ones(y.shape[:2])
    pool = _fit(cells, blocks=True)
    whole = pool.sum_of_squares(y)
    for v in np.flatnonzero(cells.any(axis=1)):
        others = _fit(cells & (np.arange(len(cells)) != v)[:, None], blocks=True)
        own_df = pool.df - others.df
        if own_df < 1 or others.df < 1:
            continue
        theirs = others.sum_of_squares(y)
        own = np.maximum(whole - theirs, 0) / own_df
        # Figures that are exactly alike have no noise to compare.
        rest = np.maximum(theirs, _ROUNDING * np.maximum(whole, 1e-300)) / others.df
        p_values[:, v] = special.fdtrc(own_df, others.df, own / rest)
    return p_values


def _patterns(noisy: Flags) -> list[tuple[NDArray[np.int64], Flags]]:
    """Returns, for each set of variants that occurs, the campaigns that have it."""
    patterns, which = np.unique(noisy, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [(np.flatnonzero(which == number), p) for number, p in enumerate(patterns)]


def _fit(cells: Flags, *, blocks: bool) -> _Fit:
    return _cached_fit(cells.shape, cells.tobytes(), blocks)


@lru_cache(maxsize=4096)
def _cached_fit(shape: tuple[int, int], packed: bytes, blocks: bool) -> _Fit:
    cells = np.frombuffer(packed, dtype=bool).reshape(shape)
    variant, block = np.nonzero(cells)
    design = np.zeros((len(variant), shape[0] + (shape[1] if blocks else 0)))
    design[np.arange(len(variant)), variant] = 1
    if blocks:
        design[np.arange(len(variant)), shape[0] + block] = 1
    inverse = np.asarray(np.linalg.pinv(design), dtype=np.float64)
    rank = int(np.linalg.matrix_rank(design)) if len(variant) else 0
    basis = np.linalg.svd(design, full_matrices=False)[0][:, :rank]
    return _Fit(
        cells=cells,
        effects=inverse[: shape[0]],
        basis=basis,
        df=len(variant) - rank,
    )


def _connected(present: Flags, of: Flags) -> bool:
    """Returns whether chains of blocks and variants lead from each of these variants to all."""
    reached = np.arange(len(of)) == np.argmax(of)
    while True:
        blocks = present[reached].any(axis=0)
        further = reached | present[:, blocks].any(axis=1)
        if (further == reached).all():
            return bool(reached[of].all())
        reached = further


def _by_model(y: Floats, fit: _Fit, contrast: Floats) -> tuple[Floats, Floats, int, Floats]:
    """Returns estimate, standard error, degrees of freedom and residual deviation."""
    # How much each measurement weighs in the estimate.
    weighs = contrast @ fit.effects
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation = np.sqrt(fit.sum_of_squares(y) / fit.df if fit.df else np.full(len(y), np.nan))
    return y[:, fit.cells] @ weighs, deviation * np.sqrt(weighs @ weighs), fit.df, deviation


def _within_blocks(y: Floats, contrast: Floats) -> tuple[Floats, Floats, int, Floats]:
    """Returns the same by the contrast's values in blocks that hold all of its variants."""
    of = contrast != 0
    values = np.einsum("v,nvb->nb", contrast[of], y[:, of])
    number = values.shape[1]
    deviation = values.std(axis=1, ddof=1) if number > 1 else np.full(len(y), np.nan)
    residual = deviation / np.sqrt(contrast @ contrast)
    return values.mean(axis=1), deviation / np.sqrt(number), number - 1, residual
