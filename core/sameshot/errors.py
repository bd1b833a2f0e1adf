"""Every error that sameshot raises on purpose, drawn once.

    SameshotError                      1   anything else that went wrong
    ├── UsageError                     2   the request itself can't be served as written
    │   ├── InvalidSpec                    an option is misspelt, unsupported or out of range
    │   ├── PolicyRefused                  the capture policy of the job never allows it
    │   └── RequestKeyConflict             the same request key came with another spec
    ├── PartialCapture                 3   some ranks have no verified trace
    ├── CaptureFailed                  4   no rank has a verified trace
    ├── ManifestError                  4   a manifest is malformed, edited, empty or of an unknown version
    ├── VerificationFailed             4   bytes differ from what the manifest states
    ├── TraceError                     4   a trace file is not what it should be (kind, byte offset)
    ├── ColumnsError                   4   stored columns are none, damaged or of an unknown version
    ├── Regressed                      4   a comparison found a regression, and its caller wants that to fail
    ├── UnknownCapture                 5   no coordinator and no archive knows this capture
    ├── NoSuchJob                      6   no such job, or the job was never armed
    │   ├── JobEnded                       all of its workers have gone
    │   ├── NotArmed                       it runs, and no worker of it can be captured
    │   └── OtherAttempt                   another attempt of it runs than the one that was asked for
    ├── CaptureCancelled               7   a cancel was accepted before convergence
    ├── TryAgain                      75   nothing is lost; the same call may succeed later
    │   ├── Unreachable                    a coordinator, agent or daemon does not answer
    │   ├── JobBusy                        another capture of this job is running, or the last one was just now
    │   ├── DeadlinePassed                 the time that was given is over; the capture goes on
    │   └── StorageError                   the object store refused or lost a request
    │       ├── NotFound                   there is no object under that name
    │       ├── Forbidden                  the credential, or the file's mode, does not allow it
    │       └── AlreadyExists              a conditional put found an object: never overwritten
    └── Denied                        77   the caller may not do this

`exit_code` is what the command line returns. Each message is one sentence or two: what happened, to which
rank, pod or node, what was kept, and what to do next.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar


class SameshotError(Exception):
    """Something went wrong; the message says what, to whom, and what to do."""

    exit_code: ClassVar[int] = 1


class UsageError(SameshotError):
    """The request can't be served as it was written."""

    exit_code = 2


class InvalidSpec(UsageError):
    """A capture option is misspelt, unsupported or out of range."""


class PolicyRefused(UsageError):
    """The job's capture policy never allows this capture; what it does not allow just now is JobBusy."""


class RequestKeyConflict(UsageError):
    """A known request key was used with a different spec."""


class PartialCapture(SameshotError):
    """Some ranks have no verified trace."""

    exit_code = 3


class CaptureFailed(SameshotError):
    """No rank has a verified trace."""

    exit_code = 4


class ManifestError(SameshotError):
    """A manifest is malformed, edited, empty or of an unknown version."""

    exit_code = 4


class VerificationFailed(SameshotError):
    """Bytes in the archive differ from what the manifest states."""

    exit_code = 4


class TraceError(SameshotError):
    """A trace file is not what it should be.

    `kind` is a `model.InvalidKind` value, `byte_offset` counts from the start of the *decoded* (uncompressed)
    bytes, `event_index` counts the elements of `traceEvents`; both are None where they mean nothing.
    """

    exit_code = 4

    def __init__(
        self, kind: str, detail: str, *, byte_offset: int | None = None, event_index: int | None = None
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.byte_offset = byte_offset
        self.event_index = event_index
        where = "" if byte_offset is None else f" at byte {byte_offset}"
        if event_index is not None:
            where += f" (event {event_index})"
        super().__init__(f"{kind}{where}: {detail}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Verification runs in worker processes, and its errors come back pickled."""
        return partial(type(self), byte_offset=self.byte_offset, event_index=self.event_index), (self.kind, self.detail)


class ColumnsError(SameshotError):
    """Stored columns are no such file, damaged, or of a version that is not known here; the trace can give new ones."""

    exit_code = 4


class Regressed(SameshotError):
    """A comparison found a regression, and whoever asked wants that to be a failure."""

    exit_code = 4


class UnknownCapture(SameshotError):
    """No coordinator and no archive knows this capture."""

    exit_code = 5


class NoSuchJob(SameshotError):
    """There is no such job, or no worker of it was ever armed."""

    exit_code = 6


class JobEnded(NoSuchJob):
    """All workers of the job have gone."""


class NotArmed(NoSuchJob):
    """The job runs, and no worker of it is registered."""


class OtherAttempt(NoSuchJob):
    """Another job, or another attempt of it, runs where this one was expected."""


class CaptureCancelled(SameshotError):
    """A cancel was accepted before the capture converged."""

    exit_code = 7


class TryAgain(SameshotError):
    """Nothing is lost; the same call may succeed later."""

    exit_code = 75


class Unreachable(TryAgain):
    """A coordinator, agent or profiler daemon does not answer."""


class JobBusy(TryAgain):
    """Another capture of the job is running.

    `own`: nothing but earlier captures of the caller's own task, which asks again; they are about to end.
    """

    def __init__(self, message: str, *, own: bool = False) -> None:
        super().__init__(message)
        self.own = own


class DeadlinePassed(TryAgain):
    """The time that the caller gave is over, and the capture has not ended; it goes on until it is cancelled.

    `view` is the `CaptureView` that was seen last; None: nobody answered.
    """

    def __init__(self, message: str, view: Any = None) -> None:
        super().__init__(message)
        self.view = view


class StorageError(TryAgain):
    """The object store refused or lost a request."""


class NotFound(StorageError):
    """There is no object under that name."""


class Forbidden(StorageError):
    """The store does not let this caller do that: of a credential (403), or of a file's mode."""


class AlreadyExists(StorageError):
    """A conditional put found an object under that name; it was not overwritten."""


class Denied(SameshotError):
    """The caller may not do this."""

    exit_code = 77


_OF_EXIT_CODE: dict[int, type[SameshotError]] = {
    each.exit_code: each
    for each in (
        SameshotError,
        UsageError,
        PartialCapture,
        CaptureFailed,
        UnknownCapture,
        NoSuchJob,
        CaptureCancelled,
        TryAgain,
        Denied,
    )
}


def of_exit_code(code: int) -> type[SameshotError]:
    """What an exit code (not 0) says on its own: the class whose subclasses have it, too."""
    return _OF_EXIT_CODE.get(code, SameshotError)
