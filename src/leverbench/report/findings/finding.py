"""What a finding is, and the words that rules of several subjects share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from leverbench.analysis.measurements import row_name
from leverbench.report.profiles import told_name
from leverbench.report.summary import Gain, Summary

# Characters of an operation's name in a sentence.
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Finding:
    """One sentence.

    Attributes:
        rule: Name of the rule that made it.
        text: The sentence.
        rows: Names of the rows, profiles and launches it rests on, as paths below
            ``results/{campaign}``; a profile of a record of others is ``profile/NAME``.
    """

    rule: str
    text: str
    rows: tuple[str, ...]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns the number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def session_names(sessions: list[int]) -> str:
    """Returns sessions by their names: ``s4, s5``."""
    return ", ".join(f"s{session}" for session in sessions)


def gain_text(gain: Gain) -> str:
    """Returns a measured gain with its interval."""
    if gain.low is None or gain.high is None:
        return f"{gain.ratio:.3f} (unreplicated)"
    return range_text(gain.ratio, gain.low, gain.high)


def range_text(ratio: float, low: float, high: float) -> str:
    """Returns a ratio with its interval, such as ``1.371 (1.352 to 1.390)``."""
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def config_text(values: Mapping[str, Any]) -> str:
    """Returns parameters or dimensions of a kernel on one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def short(name: str) -> str:
    """Returns what tells an operation: names of templates run to a thousand characters."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def rounded(value: float) -> str:
    """Returns two digits of a number, which is all that shares of two digits give."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def pooled_names(
    summary: Summary, variants: Iterable[str], workload: str, concurrency: int
) -> tuple[str, ...]:
    """Returns the names of the rows that figures of some variants at one point are made from."""
    return tuple(
        row_name(row) for name in variants for row in summary.pooled(name, workload, concurrency)
    )


def profile_name(summary: Summary, profile: str) -> str:
    """Returns how a profile is named as evidence."""
    return told_name(profile) if summary.imported else profile


def cross_text(summary: Summary, variant: str) -> str:
    """Returns the two variants whose levers a cross combines; empty for any other variant."""
    return " x ".join(summary.plan["variants"][variant]["cross"])
