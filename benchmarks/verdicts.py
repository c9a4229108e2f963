"""How often verdicts are right: simulated campaigns, judged by the code that judges real ones.

Each campaign has 6 variants (a baseline and five levers, each from it) at 3 concurrencies.
The logarithm of what a point measures is the sum of its true effect and of three normal noises:
of the block (1.5%, shared by all points of a session number), of the launch (1.5%, shared by the
concurrencies of one server) and of the requests (0.5%, of each point).

    python benchmarks/verdicts.py            # 4,000 campaigns for each case and number of sessions
    python benchmarks/verdicts.py --quick    # 400

The last line of the output is the figures as JSON, each by number of sessions S:

- ``coverage``: share of 95% intervals that hold the true ratio (true effects of 0)
- ``campaign_false_rate``: share of campaigns without any true effect in which any verdict is faster
  or slower
- ``power_6pct``: share of comparisons that are called faster where one lever truly gives 6%
- ``equal_at_margin_rate``: share called equal where one lever truly gives exactly the margin
- ``noisy_coverage``, ``noisy_false_rate``: the same as the first two where one lever has three
  times the noise; coverage is that of its own intervals
- ``until_false_rate``: share of comparisons called faster or slower in campaigns without any true
  effect that run until they are decided, and ``until_sessions``, how many sessions they took
"""

import argparse
import json
import time

import numpy as np
from numpy.typing import NDArray

from leverbench.analysis.effects import Contrasts, against_parents, compare
from leverbench.analysis.verdicts import (
    LEVEL,
    LEVEL_PER_LOOK,
    Word,
    decide,
)
from leverbench.campaign.model import DEFAULT_EQUAL_WITHIN
from leverbench.project import MOST_SESSIONS

SEED = 20251
SESSIONS = (2, 3, 5)
VARIANTS, CONCURRENCIES = 6, 3
BLOCK_SD, LAUNCH_SD, REQUEST_SD = 0.015, 0.015, 0.005
AGAINST_BASELINE = against_parents([None, *[0] * (VARIANTS - 1)])
TREATED = 1  # the lever that has an effect, or more noise


def main() -> None:
    """Prints a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="400 campaigns a case")
    campaigns = 400 if parser.parse_args().quick else 4000
    began = time.monotonic()
    figures: dict[str, dict[str, float]] = {}
    for sessions in SESSIONS:
        for name, value in fixed(campaigns, sessions).items():
            figures.setdefault(name, {})[str(sessions)] = round(value, 4)
    false_rate, taken = until_decided(campaigns)
    figures["until_false_rate"] = {"until": round(false_rate, 4)}
    figures["until_sessions"] = {"until": round(taken, 2)}
    for name, by_sessions in figures.items():
        cells = "  ".join(f"S={s}: {value:.4f}" for s, value in by_sessions.items())
        print(f"{name:22} {cells}")
    about = {"campaigns": campaigns, "seed": SEED, "wall_s": round(time.monotonic() - began, 1)}
    print(json.dumps({**figures, **about}))


def fixed(campaigns: int, sessions: int) -> dict[str, float]:
    """Returns the figures of campaigns with a fixed number of sessions."""
    null = judged(simulate(campaigns, sessions))
    six = judged(simulate(campaigns, sessions, effect=np.log(1.06)))
    margin = judged(simulate(campaigns, sessions, effect=np.log1p(DEFAULT_EQUAL_WITHIN)))
    noisy = judged(simulate(campaigns, sessions, noise=3.0))
    return {
        "coverage": covered(null[0]).mean(),
        "campaign_false_rate": called(null[1]).any(axis=(1, 2)).mean(),
        "power_6pct": (six[1][:, :, TREATED] == Word.FASTER).mean(),
        "equal_at_margin_rate": (margin[1][:, :, TREATED] == Word.EQUAL).mean(),
        "noisy_coverage": covered(noisy[0])[:, :, TREATED - 1].mean(),
        "noisy_false_rate": called(noisy[1]).any(axis=(1, 2)).mean(),
    }


def simulate(
    campaigns: int, sessions: int, effect: float = 0.0, noise: float = 1.0
) -> NDArray[np.float64]:
    """Returns logarithms (campaigns, concurrencies, variants, sessions).

    Args:
        campaigns: How many.
        sessions: Of each variant.
        effect: Of the treated lever.
        noise: By what its noise is greater.
    """
    rng = np.random.default_rng([SEED, sessions, round(1e6 * effect), round(1e3 * noise)])
    scale = np.ones(VARIANTS)
    scale[TREATED] = noise
    block = rng.normal(0, BLOCK_SD, (campaigns, 1, 1, sessions))
    launch = rng.normal(0, LAUNCH_SD, (campaigns, 1, VARIANTS, sessions))
    shape = (campaigns, CONCURRENCIES, VARIANTS, sessions)
    requests = rng.normal(0, REQUEST_SD, shape)
    y = block + (launch + requests) * scale[:, None]
    y[:, :, TREATED] += effect
    return y


def judged(
    y: NDArray[np.float64], level: float = LEVEL
) -> tuple[list[Contrasts], NDArray[np.object_]]:
    """Returns the comparisons by concurrency, and the verdicts (n, concurrencies, variants)."""
    cells = [compare(y[:, c], AGAINST_BASELINE) for c in range(CONCURRENCIES)]
    words = decide(
        cells, sessions=y.shape[-1], level=level, margin=np.log1p(DEFAULT_EQUAL_WITHIN)
    ).words
    return cells, words


def covered(cells: list[Contrasts]) -> NDArray[np.bool_]:
    """Returns whether each lever's interval holds no effect (n, concurrencies, levers)."""
    inside = [np.abs(cell.estimate) <= cell.half_width(0.95) for cell in cells]
    return np.stack(inside, axis=1)[:, :, 1:]


def called(words: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Returns which verdicts are faster or slower."""
    return (words == Word.FASTER) | (words == Word.SLOWER)


def until_decided(campaigns: int) -> tuple[float, float]:
    """Returns the false rate a comparison and the mean number of sessions, without an effect."""
    y = simulate(campaigns, MOST_SESSIONS)
    final = np.full((campaigns, CONCURRENCIES, VARIANTS), None, dtype=object)
    taken = np.full(campaigns, MOST_SESSIONS)
    running = np.arange(campaigns)
    for sessions in range(2, MOST_SESSIONS + 1):
        _, words = judged(y[running, :, :, :sessions], LEVEL_PER_LOOK)
        final[running] = words
        open_ = (words == Word.UNDECIDED).any(axis=(1, 2))
        taken[running[~open_]] = sessions
        running = running[open_]
        if not len(running):
            break
    return called(final[:, :, 1:]).mean(), taken.mean()


if __name__ == "__main__":
    main()
