"""Our typed errors as Airflow's: which of them another attempt of the task may cure.

An attempt that fails with an ordinary exception is repeated as often as `retries` says, under the same request key: it
finds a running capture again, and starts a new one after a failed one. Where that can't help, the task fails for good:

- UsageError (exit code 2) and Denied (77): the same words get the same answer.
- PartialCapture (3): the same key gives the same capture, with the same ranks missing. Clearing the task asks for a
  new one.
- CaptureCancelled (7): somebody said stop.
"""

from __future__ import annotations

from sameshot import errors
from sameshot_airflow.compat import AirflowException, AirflowFailException

FOR_GOOD: tuple[type[errors.SameshotError], ...] = (
    errors.UsageError,
    errors.Denied,
    errors.PartialCapture,
    errors.CaptureCancelled,
)


def failure(error: errors.SameshotError, *, retry: bool | None = None) -> AirflowException:
    """To be raised `from error`; `retry` overrides what is said above."""
    may_retry = not isinstance(error, FOR_GOOD) if retry is None else retry
    kind = AirflowException if may_retry else AirflowFailException
    return kind(str(error))


def recalled(name: str, message: str) -> errors.SameshotError:
    """An error that travelled in a trigger's event as its class's name and its message."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.SameshotError) and kind is not errors.TraceError:
        return kind(message)
    return errors.SameshotError(message)
