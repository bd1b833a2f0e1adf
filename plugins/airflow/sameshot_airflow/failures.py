"""Our typed errors as Airflow's.

An attempt that fails with an ordinary exception is repeated as often as `retries` says, under the same request key: it
finds a running capture again, and starts a new one after a failed one. Where that can't help
(`sameshot.steps.contract.retryable`), the task fails for good; clearing it asks for a new capture.
"""

from __future__ import annotations

from sameshot import errors
from sameshot.steps.contract import retryable
from sameshot_airflow.compat import AirflowException, AirflowFailException


def failure(error: errors.SameshotError, *, retry: bool | None = None, reads_only: bool = False) -> AirflowException:
    """To be raised `from error`. `retry` overrides what is said above; `reads_only`: the task captures nothing."""
    may_retry = retryable(error, reads_only=reads_only) if retry is None else retry
    kind = AirflowException if may_retry else AirflowFailException
    return kind(str(error))


def recalled(name: str, message: str) -> errors.SameshotError:
    """An error that travelled in a trigger's event as its class's name and its message."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.SameshotError) and kind is not errors.TraceError:
        return kind(message)
    return errors.SameshotError(message)
