"""Waiting for a job to be ready to be captured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from sameshot.errors import DeadlinePassed, SameshotError
from sameshot.steps import options
from sameshot.steps.request import Action, CaptureRequest
from sameshot_airflow.compat import AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from sameshot_airflow.failures import failure, recalled
from sameshot_airflow.keys import request_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sameshot_airflow.settle import Event


class SameshotJobSensor(BaseSensorOperator):
    """Succeeds as soon as a job runs, is armed, and all of its ranks are registered.

        SameshotJobSensor(task_id="training_runs", job="bert", timeout=3600) >> SameshotCaptureOperator(...)

    Not needed for a capture (`if_unavailable="wait"` waits, too); it is for tasks that do other things with the job,
    and for captures that are to be of all ranks. Whatever keeps the job from being ready is waited for, `timeout`
    seconds long.

    :param job: the job's name; None: the only one that the connection reaches.
    :param uid: the job must have this uid.
    :param attempt: the job must be at this attempt.
    :param all_ranks: False: one worker that can be captured is enough.
    :param sameshot_conn_id: the connection: which jobs are meant.
    :param deferrable: wait in the triggerer, holding no worker slot.

    `timeout`, `soft_fail`, `poke_interval` and `mode` (of `deferrable=False`) are those of Airflow's sensors.
    """

    template_fields: Sequence[str] = ("job", "uid", "attempt", "sameshot_conn_id")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        job: str | None = None,
        uid: str | None = None,
        attempt: int | str | None = None,
        all_ranks: bool = True,
        sameshot_conn_id: str = "sameshot_default",
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.uid = uid
        self.attempt = attempt
        self.all_ranks = all_ranks
        self.sameshot_conn_id = sameshot_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        if self._first_look(context):
            return None
        from sameshot.steps.results import to_builtins
        from sameshot_airflow.settle import backstop
        from sameshot_airflow.triggers.job import SameshotJobTrigger

        deadline = time.time() + self.timeout
        self.defer(
            trigger=SameshotJobTrigger(
                request=to_builtins(self.request(context)), deadline=deadline, whole=True, all_ranks=self.all_ranks
            ),
            method_name="execute_complete",
            timeout=backstop(deadline),
        )
        return None

    def _first_look(self, context: Context) -> bool:
        """A poke, with what `soft_fail`, `never_fail` and `silent_fail` make of its failure in all sensors."""
        try:
            return self.poke(context)
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("The first look failed; the triggerer goes on.")
                return False
            if self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise

    def execute_complete(self, context: Context, event: Event) -> None:
        if event["kind"] == "ready":
            return
        error = recalled(event["error"], event["message"])
        raise AirflowSensorTimeout(str(error)) if isinstance(error, DeadlinePassed) else failure(error)

    def poke(self, context: Context) -> bool:
        from sameshot.steps.ready import not_ready

        try:
            why = asyncio.run(not_ready(self.request(context), all_ranks=self.all_ranks))
        except SameshotError as error:
            raise failure(error) from error
        if why:
            self.log.info("waiting: %s", why)
        return not why

    def request(self, context: Context) -> CaptureRequest:
        """Which job is meant; nothing is captured. Raises UsageError."""
        from sameshot_airflow.hooks.sameshot import SameshotHook

        hook, job = SameshotHook(self.sameshot_conn_id), options.label(self.job, "job")
        return CaptureRequest(
            address=hook.address(job),
            request_key=request_key(context),
            job=job,
            uid=options.label(self.uid, "uid"),
            attempt=options.whole(self.attempt, "attempt"),
            caller=hook.caller,
            if_unavailable=Action.WAIT,
            if_busy=Action.WAIT,
            timeout_s=max(self.timeout, 1.0),
        )
