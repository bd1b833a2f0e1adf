"""Why this coordinator takes no new captures: its job has ended, a later attempt runs, or it is about to be replaced.

Level-triggered and looked at when a capture is to begin: the operator's word (Retire) and what is seen by ourselves.
What is asked for under a key that is known is answered all the same, and captures that run go on to their manifest.
Where several reasons hold, the first of this order is told: a later attempt, the end, the replacement.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from sameshot.api import sameshot_pb2 as pb
from sameshot.coordinator.clock import Clock
from sameshot.errors import JobEnded, OtherAttempt, SameshotError, TryAgain, UsageError
from sameshot.model import JobRef

REPLACED_S = 60.0  # then whoever wanted to replace us has not done so


class Why(enum.Enum):
    """Numbers are those of `Retirement` in sameshot.proto."""

    FINISHED = pb.FINISHED
    SUPERSEDED = pb.SUPERSEDED
    REPLACED = pb.REPLACED


class Retirement:
    """`later_attempt` is the one that we see by ourselves; None: we see none. Finished and superseded are for good,
    as a job that has ended does not begin again; what we see holds for as long as it is seen."""

    def __init__(self, job: JobRef, clock: Clock, later_attempt: Callable[[], int | None] = lambda: None) -> None:
        self._job = job
        self._clock = clock
        self._later_attempt = later_attempt
        self._told: set[Why] = set()
        self._replaced_until = float("-inf")

    def tell(self, why: int, *, for_good: bool = False) -> None:
        """The operator's word. Raises UsageError for one that this version does not know."""
        try:
            known = Why(why)
        except ValueError:
            raise UsageError(f"Retirement {why} is not known to this version of the coordinator.") from None
        if known is Why.REPLACED:
            self._replaced_until = float("inf") if for_good else self._clock.monotonic() + REPLACED_S
        else:
            self._told.add(known)

    def refusal(self) -> SameshotError | None:
        """What a new capture is refused with; None: it is not."""
        later, job = self._later_attempt(), self._job
        if later is not None or Why.SUPERSEDED in self._told:
            which = f"attempt {later}" if later is not None else "a later attempt"
            return OtherAttempt(
                f"Job {job.namespace}/{job.name} runs as {which} by now, and this coordinator serves attempt "
                f"{job.attempt}. Nothing was started; ask the coordinator of the current attempt."
            )
        if Why.FINISHED in self._told:
            return JobEnded(f"Job {job} has ended, so nothing can be captured any more. Nothing was started.")
        if self._clock.monotonic() < self._replaced_until:
            return TryAgain(
                f"The coordinator of job {job} is about to be replaced by another one. Nothing was started; try again "
                "in a minute."
            )
        return None

    @property
    def words(self) -> str:
        """For whoever asks; empty: new captures are taken."""
        error = self.refusal()
        return "" if error is None else str(error)
