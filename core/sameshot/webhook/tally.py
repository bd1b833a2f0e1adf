"""What became of reviews, counted. One event loop's own."""

from __future__ import annotations

import enum

from sameshot.webhook import review


class Missed(enum.StrEnum):
    """Why a pod started without having been looked at."""

    LATE = "late"  # no answer within the time that there was
    FAILED = "failed"  # a defect of ours
    TOO_SLOW = "too slow"  # the review did not arrive in time
    TOO_LARGE = "too large"
    NO_ROOM = "no room"  # too many, or too large ones, at once
    MALFORMED = "malformed"  # no review at all


class Tally:
    def __init__(self) -> None:
        outcomes = (*(each.value for each in review.Outcome), *(each.value for each in Missed))
        self.reviews = dict.fromkeys(outcomes, 0)
        self.answered, self.seconds = 0, 0.0

    def count(self, outcome: review.Outcome | Missed) -> None:
        self.reviews[outcome.value] += 1

    def took(self, seconds: float) -> None:
        self.answered += 1
        self.seconds += seconds
