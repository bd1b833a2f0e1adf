"""Cancelling a capture by its id, as a task: for a DAG's clean-up, or a person's.

    capture = SameshotCaptureOperator(task_id="capture", job="bert")
    capture >> train_on >> SameshotCancelOperator(task_id="tidy", capture=capture.output).as_teardown()

Not needed for what Airflow itself ends: a task that is marked or cleared cancels its own capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from sameshot.errors import SameshotError
from sameshot.steps import options
from sameshot_airflow.compat import AirflowFailException, AirflowSkipException
from sameshot_airflow.failures import failure
from sameshot_airflow.operators.base import DEFAULT_CONN_ID, capture_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class SameshotCancelOperator(BaseOperator):
    """Cancels a capture; one that is over, or that nobody knows any more, stays what it is, and that is no failure.

    XCom: a `sameshot.steps.results.CancelResult`: the capture's state, and what the cancel did.

    :param capture: the XCom of a `SameshotCaptureOperator`; where that was skipped, so is this. Either this or
        `capture_id` is needed.
    :param capture_id: the capture's id.
    :param job: the job's name, where the connection reaches several; default: that of `capture`.
    :param sameshot_conn_id: the connection.
    """

    template_fields: Sequence[str] = ("capture", "capture_id", "job", "sameshot_conn_id")
    template_fields_renderers = {"capture": "json"}  # noqa: RUF012
    ui_color = "#f4e3e3"

    def __init__(
        self,
        *,
        capture: Any = None,
        capture_id: str | None = None,
        job: str | None = None,
        sameshot_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (capture is None) == (capture_id is None):
            raise ValueError(f"{self.task_id}: say which capture, either by `capture` or by `capture_id`.")
        self.capture = capture
        self.capture_id = capture_id
        self.job = job
        self.sameshot_conn_id = sameshot_conn_id

    def execute(self, context: Context) -> dict[str, object]:
        from sameshot.steps.cancel import cancel
        from sameshot.steps.results import to_builtins
        from sameshot_airflow.hooks.sameshot import SameshotHook

        hook, uid = SameshotHook(self.sameshot_conn_id), None
        try:
            job, capture_id = options.label(self.job, "job"), options.label(self.capture_id, "capture_id")
            if self.capture_id is None:
                found = capture_of(self.capture)
                if found.skipped:
                    raise AirflowSkipException(f"There is no capture to cancel: {found.message}")
                capture_id = found.capture_id
                if found.job is not None:
                    job, uid = job or found.job.name, found.job.uid
            if not capture_id:
                raise AirflowFailException(f"{self.task_id}: the template of `capture_id` gave an empty text.")
            done = cancel(hook.address(job), capture_id, caller=hook.caller, uid=uid)
        except SameshotError as error:
            raise failure(error) from error
        self.log.info("%s", done.message)
        return to_builtins(done)
