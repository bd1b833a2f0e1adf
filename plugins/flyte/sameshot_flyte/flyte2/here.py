"""Capture tasks that this process runs itself (Flyte 2's local mode): what the back end does for others is done here.

The SDK's local executor (flyte 2.12) calls a connector's `create` and `get`, and that is all: it never calls `delete`,
and polls on for ever after RETRYABLE_FAILED, which it does not know as an end. So a capture ends with the task that
asked for it, however that ends (cancelled, or with its process: Ctrl-C), and a failure is raised, as an error that the
executor's own retries understand. Signals that end a process at once (SIGTERM, SIGHUP) are left to the program: only a
main thread may set a handler for them, and the executor runs tasks in another one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import flyte
from flyte.errors import NonRecoverableError, RuntimeUserError

from sameshot.errors import SameshotError
from sameshot.steps.store import wait
from sameshot_flyte.asked import Asked
from sameshot_flyte.phases import Phase
from sameshot_flyte.polled import Polled
from sameshot_flyte.served import Seen


@dataclass(eq=False)
class Here:
    """One task's capture, once it has been asked for, and who looks at it."""

    asked: Asked | None = None
    polled: Polled = field(default_factory=Polled)


_CURRENT: ContextVar[Here | None] = ContextVar("sameshot_capture_here", default=None)
_UNDER_WAY: set[Here] = set()


def current() -> Here | None:
    """Of the task that runs in this process and is what calls the connector; None: it is a service that was called."""
    return _CURRENT.get()


@contextlib.contextmanager
def running() -> Iterator[Here]:
    """Around the execution of a capture task."""
    here = Here()
    token = _CURRENT.set(here)
    if not _UNDER_WAY:
        atexit.unregister(_end_all)
        atexit.register(_end_all)  # handlers run from the last to the first, so this is before the SDK stops its loops
    _UNDER_WAY.add(here)
    try:
        yield here
    finally:
        _UNDER_WAY.discard(here)
        _CURRENT.reset(token)


async def end(here: Here) -> None:
    """Cancel what was asked for; some seconds at most. Another cancel of the task meanwhile does not stop this."""
    if here.asked is not None:
        await asyncio.shield(asyncio.ensure_future(_told(here.polled, here.asked)))


async def _told(polled: Polled, asked: Asked) -> None:
    """Whatever is wrong is said and nothing more: other captures are to be ended, too."""
    try:
        flyte.logger.warning(await polled.delete(asked))
    except SameshotError as error:
        flyte.logger.warning(f"The capture may go on: {error}")
    except Exception as error:
        flyte.logger.warning(f"The capture may go on: {type(error).__name__}: {error}")


def raise_failure(seen: Seen) -> None:
    """What a back end does with the phases of failures."""
    if seen.phase is Phase.RETRYABLE_FAILED:
        raise RuntimeUserError("CaptureFailed", seen.message)
    if seen.phase in (Phase.FAILED, Phase.ABORTED):
        raise NonRecoverableError(seen.message, "CaptureFailed")


def _end_all() -> None:
    """The process ends: by Ctrl-C, as a rule, which reaches the main thread alone, and the tasks run in another one."""
    for here in list(_UNDER_WAY):
        if here.asked is not None:
            wait(_told(here.polled, here.asked))
