"""Recording a window on every rank of a running job, as a task."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from airflow.sdk import BaseOperator

from sameshot.errors import SameshotError, UsageError
from sameshot.steps import options
from sameshot.steps.request import Action, CaptureRequest
from sameshot_airflow.assets import announce, captures
from sameshot_airflow.compat import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferralTimeout
from sameshot_airflow.failures import failure, recalled
from sameshot_airflow.keys import family, past, request_key
from sameshot_airflow.links import SameshotManifestLink

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from sameshot.client import CaptureView
    from sameshot.steps.results import CaptureResult
    from sameshot_airflow.settle import Event

Duration = str | float | timedelta
"""`2s`, `500ms`, `1m`; a timedelta; a number of seconds."""

ON_KILL_S = 4.0  # Airflow kills a task's process 5 s after it was told to end


class SameshotCaptureOperator(BaseOperator):
    """Captures one trustworthy set of traces from every rank of a running, armed PyTorch job.

        SameshotCaptureOperator(task_id="capture", job="bert", duration="2s")
        SameshotCaptureOperator.partial(task_id="capture", duration="1s", if_unavailable="skip").expand(job=names)

    While the window is recorded and the files are verified the task is deferred and holds no worker slot. The XCom is a
    `sameshot.steps.results.CaptureResult` as a dict below 2 KB: ids, URIs and numbers, never traces. An asset event
    announces the capture (`sameshot_airflow.assets`).

    A retry of the task asks for the same picture: it finds a running or finished capture again and makes a new one
    after a failed one. Clearing the task asks for a new picture. Where ranks are missing the task fails, without a
    retry (that would find the same capture); `min_ranks` accepts fewer, with a warning.

    All options are templates; a text that does not say what it should is an error that names the option.

    :param job: the job's name; None: the only one that the connection reaches.
    :param duration: the length of the window: `2s`, `500ms`, a timedelta, seconds.
    :param activities: of cpu, cuda, xpu, mtia; a list, or a text with commas.
    :param with_stack: record Python functions, too (large traces; jobs allow 2 s by default).
    :param record_shapes: record the shapes of operators' inputs.
    :param warmup: how long the profiler runs before the window, whole seconds.
    :param min_ranks: so many verified traces are enough; None: those of all ranks.
    :param if_unavailable: `fail`, `skip` or `wait` where the job has ended, is not armed or is another attempt than
        the one that was asked for.
    :param if_busy: the same where someone else's capture of the job runs; to wait is to queue at the coordinator.
    :param uid: the job must have this uid.
    :param attempt: the job must be at this attempt.
    :param timeout: for all of it, waiting included; then the capture is cancelled and the task fails. A shorter
        `execution_timeout` counts, too, as Airflow itself does not apply it to a deferred task.
    :param allow_backfill: capture also in runs that stand for the past. By default they fail: one can't photograph
        the past, and many of them would be pictures of the same moment.
    :param sameshot_conn_id: the connection: which jobs are meant, and on whose behalf captures are asked for.
    :param deferrable: False: wait in the worker. A worker that is shut down then cancels the capture, as Airflow tells
        a task of that in the same way as of a person's mark; one that is killed leaves it running for the retry.
    """

    template_fields: Sequence[str] = (*options.CAPTURE, "allow_backfill", "sameshot_conn_id")
    ui_color = "#d5e8f7"
    operator_extra_links = (SameshotManifestLink(),)

    def __init__(
        self,
        *,
        job: str | None = None,
        duration: Duration = "2s",
        activities: Sequence[str] | str = ("cpu", "cuda"),
        with_stack: bool | str = False,
        record_shapes: bool | str = False,
        warmup: Duration = "1s",
        min_ranks: int | str | None = None,
        if_unavailable: Action | str = "fail",
        if_busy: Action | str = "wait",
        uid: str | None = None,
        attempt: int | str | None = None,
        timeout: Duration = "15m",
        allow_backfill: bool | str = False,
        sameshot_conn_id: str = "sameshot_default",
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**announcing(kwargs))
        self.job = job
        self.duration = duration
        self.activities = activities
        self.with_stack = with_stack
        self.record_shapes = record_shapes
        self.warmup = warmup
        self.min_ranks = min_ranks
        self.if_unavailable = if_unavailable
        self.if_busy = if_busy
        self.uid = uid
        self.attempt = attempt
        self.timeout = timeout
        self.allow_backfill = allow_backfill
        self.sameshot_conn_id = sameshot_conn_id
        self.deferrable = deferrable
        self._request: CaptureRequest | None = None
        self._capture_id = ""
        self._killed = False
        if not getattr(self, "_BaseOperator__from_mapped", False):  # then `execute` says it, and for good
            self._check_literals()

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """For `.expand`; with the outlet that a task which isn't mapped gets when it is made, so that the UI knows."""
        made: OperatorPartial = super().partial(**announcing(kwargs))
        return made

    # ---- the task's life

    def execute(self, context: Context) -> Any:
        if (why := past(context)) and not options.flag(self.allow_backfill, "allow_backfill"):
            raise AirflowFailException(
                f"{why} One can't photograph the past: nothing was captured. Set allow_backfill=True where a picture "
                "of now is wanted all the same."
            )
        try:
            request = self.request(context)
        except SameshotError as error:
            raise failure(error) from error
        return self._capture(context, request, time.time() + request.timeout_s)

    def execute_ready(self, context: Context, event: Event, request: dict[str, Any], deadline: float) -> Any:
        """Back from waiting for the job: `request` and `deadline` are those of the beginning."""
        asked = CaptureRequest.of(request)
        if event["kind"] != "ready":
            self._obstacle(context, recalled(event["error"], event["message"]), asked, deadline, wait=False)
        return self._capture(context, asked, deadline)

    def execute_complete(self, context: Context, event: Event) -> Any:
        """Back from waiting for the capture."""
        from sameshot.steps.results import CaptureResult, from_builtins

        if event["kind"] == "error":
            raise failure(recalled(event["error"], event["message"]))
        return self._accept(context, from_builtins(event["result"], CaptureResult))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Airflow's way back from a deferral; here a scheduler that gave up says what that means."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            raise AirflowException(
                "No triggerer followed this task to its deadline, so the scheduler took it back: is one running? "
                "Nothing was cancelled: a capture that was begun goes on and ends at its own deadlines, and a retry of "
                "the task finds it again."
            ) from error

    def on_kill(self) -> None:
        """Cancels the capture, by its id, while this task waits for it. Bounded: Airflow soon kills the process.

        It runs inside a signal handler, where the interrupted event loop can't be used: so in a thread of its own.
        """
        self._killed = True
        if not self._capture_id:
            return  # none was begun, as far as is known here; if one was, a retry finds it by its key
        thread = threading.Thread(target=self._cancel, args=(ON_KILL_S - 1,), daemon=True)
        thread.start()
        thread.join(ON_KILL_S)

    # ---- what to ask for

    def request(self, context: Context) -> CaptureRequest:
        """What this task asks for, from its rendered options and its connection. Raises UsageError."""
        from sameshot.client.wire import os_user
        from sameshot_airflow.hooks.sameshot import SameshotHook

        hook, job = SameshotHook(self.sameshot_conn_id), options.label(self.job, "job")
        return self._asked(
            {name: getattr(self, name) for name in options.CAPTURE},
            address=hook.address(job),
            request_key=request_key(context),
            family=family(context),
            caller=hook.caller or os_user(),  # by name: the triggerer may be another user
        )

    def _asked(self, given: Mapping[str, Any], **where: Any) -> CaptureRequest:
        request = options.capture_request(given, **where)
        if self.execution_timeout is None:
            return request
        seconds = min(request.timeout_s, self.execution_timeout.total_seconds())
        return msgspec.structs.replace(request, timeout_s=seconds)

    def _check_literals(self) -> None:
        """Options that are no templates are checked when the DAG file is parsed."""
        known = {name: value for name in options.CAPTURE if _literal(value := getattr(self, name))}
        try:
            self._asked(known, request_key="-")
            if _literal(self.allow_backfill):
                options.flag(self.allow_backfill, "allow_backfill")
        except UsageError as error:
            raise ValueError(f"{self.task_id}: {error}") from error

    # ---- begin, wait, end

    def _capture(self, context: Context, request: CaptureRequest, deadline: float) -> Any:
        from sameshot.steps.begin import begin, begin_when_clear, pinned

        try:
            view = asyncio.run(
                begin(request, self.log.info)
                if self.deferrable
                else begin_when_clear(request, deadline=deadline, progress=self.log.info)
            )
        except SameshotError as error:
            self._obstacle(context, error, request, deadline)
        self._request = request = pinned(request, view)
        self._capture_id = view.capture_id
        if self._killed:
            self._cancel(ON_KILL_S - 1)
            raise failure(SameshotError(f"The task was ended while it began capture {view.capture_id}."))
        self.log.info("capture %s of %s: %s", view.capture_id, view.job, view.state.value)
        if view.state.terminal and view.published:  # a retry, or somebody was quick
            return self._accept(context, self._result(request, view))
        if self.deferrable:
            self._wait_in_the_triggerer(request, view, deadline)
        from sameshot_airflow.settle import settle

        event = asyncio.run(settle(request, view.capture_id, view.manifest_uri, deadline, self.log.info))
        return self.execute_complete(context, event)

    def _wait_in_the_triggerer(self, request: CaptureRequest, view: CaptureView, deadline: float) -> NoReturn:
        from sameshot.steps.results import to_builtins
        from sameshot_airflow.settle import backstop
        from sameshot_airflow.triggers.capture import SameshotCaptureTrigger

        self.defer(
            trigger=SameshotCaptureTrigger(
                request=to_builtins(request),
                capture_id=view.capture_id,
                manifest_uri=view.manifest_uri,
                deadline=deadline,
            ),
            method_name="execute_complete",
            timeout=backstop(deadline),
        )
        raise AssertionError("defer returned")

    def _obstacle(
        self, context: Context, error: SameshotError, request: CaptureRequest, deadline: float, *, wait: bool = True
    ) -> NoReturn:
        """No capture was begun: fail, skip or wait, as the user set."""
        from sameshot.steps.finish import skipped
        from sameshot.steps.preflight import action_for

        action = action_for(request, error)
        if action is Action.SKIP:
            self._keep(context, skipped(request, error))
            raise AirflowSkipException(str(error)) from error
        if action is Action.WAIT and wait and time.time() < deadline:
            self.log.info("waiting: %s", error)
            self._wait_for_the_job(request, deadline)
        if action is Action.WAIT:
            error = type(error)(f"Waited in vain for {request.timeout_s:g} s. {error}")
        raise failure(error) from error

    def _wait_for_the_job(self, request: CaptureRequest, deadline: float) -> None:
        from sameshot.steps.results import to_builtins
        from sameshot_airflow.settle import backstop
        from sameshot_airflow.triggers.job import SameshotJobTrigger

        self.defer(
            trigger=SameshotJobTrigger(request=to_builtins(request), deadline=deadline),
            method_name="execute_ready",
            kwargs={"request": to_builtins(request), "deadline": deadline},
            timeout=backstop(deadline),
        )

    def _result(self, request: CaptureRequest, view: CaptureView) -> CaptureResult:
        from sameshot.steps.finish import result_of

        try:
            return asyncio.run(result_of(request, view))
        except SameshotError as error:
            raise failure(error) from error

    def _accept(self, context: Context, result: CaptureResult) -> dict[str, object]:
        """Good enough? Then it is announced and returned; if not, the result stays as XCom for links and for people."""
        from sameshot.steps.capture import accept
        from sameshot.steps.results import to_builtins

        try:
            accept(result)
        except SameshotError as error:
            self._keep(context, result)
            if self._killed:
                error = type(error)(f"This task was told to end. {error}")
            # What we cancelled ourselves may be tried again: the time was over, or this worker had to end.
            raise failure(error, retry=True if result.timed_out or self._killed else None) from error
        if result.warning:
            self.log.warning(result.warning)
        self.log.info("%s manifest: %s", result.message, result.manifest_uri)
        announce(context, result, self.outlets)
        return to_builtins(result)

    def _keep(self, context: Context, result: CaptureResult) -> None:
        from sameshot.steps.results import to_builtins

        if self.do_xcom_push:
            context["ti"].xcom_push(key="return_value", value=to_builtins(result))

    def _cancel(self, wait_s: float) -> None:
        from sameshot_airflow.settle import cancelled

        assert self._request is not None
        self.log.info(asyncio.run(cancelled(self._request, self._capture_id, wait_s)))


def announcing(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A task's arguments, with the outlet of all captures beside the user's own."""
    outlets, every = _listed(kwargs.get("outlets")), captures()
    return {**kwargs, "outlets": outlets if every in outlets else [*outlets, every]}


def _literal(value: object) -> bool:
    """Known when the DAG file is parsed: not a template, not another task's output."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, list | tuple):
        return all(_literal(each) for each in value)
    return value is None or isinstance(value, bool | int | float | timedelta)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]
