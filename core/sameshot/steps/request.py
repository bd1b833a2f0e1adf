"""What a capture step is asked for: one value that any engine can serialise and hand from process to process."""

from __future__ import annotations

import enum
from typing import Any, Self

import msgspec

from sameshot.errors import UsageError
from sameshot.model import CaptureSpec, check_caller


class Action(enum.StrEnum):
    """What to do where the job can't be captured now."""

    FAIL = "fail"
    SKIP = "skip"
    WAIT = "wait"  # until the step's own deadline


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A capture of one job, and what its caller makes of all that can go otherwise.

    `address` is what `connect()` takes. `job`, `uid` and `attempt` say which job is expected there (None: whichever).
    `family` is how the keys begin under which the same task asked before a person wanted a new picture (empty: there
    are none): such captures are the caller's own, and no reason to say that the job is busy.
    `min_ranks`: a PARTIAL capture with at least so many verified traces is good enough (None: all ranks are needed).
    `if_unavailable`: the job has ended, is not armed, or has another attempt; `wait` also waits for a coordinator that
    does not answer, which is never skipped. `if_busy`: another capture of it is running; waiting is the coordinator's
    queue. `timeout_s` bounds the whole step, waiting included; then the capture is cancelled.
    """

    address: str = "local"
    request_key: str
    family: str = ""
    spec: CaptureSpec = CaptureSpec()
    job: str | None = None
    uid: str | None = None
    attempt: int | None = None
    caller: str | None = None
    min_ranks: int | None = None
    if_unavailable: Action = Action.FAIL
    if_busy: Action = Action.WAIT
    timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if not self.request_key:
            raise UsageError("A capture step needs a request key, so that a retry finds its capture again.")
        if not self.request_key.startswith(self.family):
            raise UsageError(f"The request key {self.request_key!r} does not begin with its family, {self.family!r}.")
        if self.caller is not None:
            check_caller(self.caller)
        if self.min_ranks is not None and self.min_ranks < 1:
            raise UsageError(f"min_ranks is {self.min_ranks}; ask for at least one rank, or leave it out for all.")
        if not 0 < self.timeout_s < float("inf"):
            raise UsageError(f"A timeout of {self.timeout_s} s is impossible.")

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        """From `msgspec.to_builtins` of another process; unknown fields are ignored. Raises UsageError."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"The capture request is not valid: {error}.") from None
