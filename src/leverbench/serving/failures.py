"""Failures of two kinds: lasting ones are results, passing ones are tried again.

docs/failures.md says of each reason which kind it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from leverbench import records
from leverbench.errors import LeverbenchError

Result = TypeVar("Result")


class Outcome(StrEnum):
    """How a session or a point ended, in its record."""

    OK = "ok"
    MEASURED = "measured"
    PROFILED = "profiled"
    START_FAILED = "start-failed"
    OUT_OF_MEMORY = "out-of-memory"
    POOL_TOO_SMALL = "pool-too-small"
    PROBE_WRONG = "probe-wrong"
    NOT_APPLIED = "not-applied"
    NO_SERVER = "no-server"
    PROFILE_FAILED = "profile-failed"


# The cause of a passing failure: the server made no complete profile.
PROFILE_INCOMPLETE = "profile-incomplete"

SUCCESSES = (Outcome.OK, Outcome.MEASURED, Outcome.PROFILED)
# Ends of a launch that a campaign can have recovery steps for.
RECOVERABLE = (Outcome.OUT_OF_MEMORY, Outcome.POOL_TOO_SMALL, Outcome.START_FAILED)


@dataclass
class LastingFailure(Exception):
    """A failure that would come again: it is recorded and stands until its inputs change."""

    outcome: Outcome
    detail: str


@dataclass
class PassingFailure(Exception):
    """A failure that another attempt may not see.

    Attributes:
        cause: From a closed vocabulary: `serving.lease.Cause`, `load.validity.InvalidReason` or
            `PROFILE_INCOMPLETE`.
        detail: What was seen.
        retry: Whether the cause is independent of the result, so that another attempt at once
            does not select results.
        lasting: What it is when it came twice in a row, where that is a result.
        row: What was measured all the same.
    """

    cause: str
    detail: str
    retry: bool
    lasting: Outcome | None = None
    row: Mapping[str, Any] | None = None


def require_started(session: Mapping[str, Any]) -> None:
    """Raises `LastingFailure` where a session's record says that it has no server to measure.

    That a lever was not in force is kept: it says that nothing is known of the lever.
    """
    if session["outcome"] != Outcome.OK:
        missed = session["outcome"] == Outcome.NOT_APPLIED
        outcome = Outcome.NOT_APPLIED if missed else Outcome.NO_SERVER
        raise LastingFailure(outcome, str(session["detail"]))


def attempt_twice(
    action: Callable[[], Result], account: Path, context: Mapping[str, Any]
) -> Result:
    """Does an action, and once more after a passing failure whose cause allows it.

    Each failed attempt leaves a line in the account, with what it had measured.

    Raises:
        LastingFailure: The action's own, or a passing one that came twice.
        LeverbenchError: A passing failure remains.
    """
    first_cause: str | None = None
    while True:
        try:
            return action()
        except PassingFailure as failure:
            line = {**context, "at": now(), "cause": failure.cause, "detail": failure.detail}
            records.append_line(account, {**line, "row": failure.row})
            if failure.lasting is not None and failure.cause == first_cause:
                raise LastingFailure(failure.lasting, failure.detail) from None
            if first_cause is not None or not failure.retry:
                raise LeverbenchError(
                    f"{failure.cause}: {failure.detail}",
                    where=str(account),
                    cure="Run again: only what is missing is measured.",
                ) from None
            first_cause = failure.cause


def now() -> str:
    """Returns the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
