"""Why a candidate cannot be used."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Invalid(StrEnum):
    """Why a candidate is invalid at a call's dimensions."""

    RESTRICTED = "restricted"
    BUILD_FAILED = "build-failed"
    OUT_OF_RESOURCES = "out-of-resources"
    WRONG_ANSWER = "wrong-answer"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"


MEANINGS: Mapping[Invalid, str] = {
    Invalid.RESTRICTED: "it does not meet the manifest's restrictions, and was not tried",
    Invalid.BUILD_FAILED: "it does not compile",
    Invalid.OUT_OF_RESOURCES: "it needs more registers, shared memory or memory than there is",
    Invalid.WRONG_ANSWER: "its result differs from the float64 reference by more than allowed",
    Invalid.RAISED: "its call raised an exception",
    Invalid.CRASHED: "the process that called it ended, or lost its GPU",
    Invalid.TIMED_OUT: "the process that called it gave no answer in time",
}


@dataclass
class InvalidCandidate(Exception):
    """A candidate cannot be used.

    Attributes:
        reason: Why.
        detail: What was seen.
    """

    reason: Invalid
    detail: str
