"""Task instances run by Airflow's own task runner in this process; only the supervisor behind it is pretended.

    task = Instance(operator, max_tries=2)
    ended = task.run()                                         # a state, and the message that the supervisor would get
    ended = task.resume(ended, fire(job, ended.trigger()))     # as after a deferral

`signal.signal` is why it must be the main thread. Whatever a test talks to lives in `Background`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
import structlog

from sameshot.api.views import CaptureView
from sameshot.client import AsyncClient
from sameshot.model import CaptureSpec, CaptureState, Worker
from sameshot.storage import Storage
from support.background import Background
from support.coordination import coordinating, until_view
from support.fake_agent import FakeAgent, worker

T = TypeVar("T")


class Supervisor:
    """Takes the messages of a task, and answers those that want an answer."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, msg: Any) -> Any:
        from airflow.sdk.execution_time.comms import (
            InactiveAssetsResult,
            OKResponse,
            ValidateInletsAndOutlets,
        )

        self.sent.append(msg)
        if isinstance(msg, ValidateInletsAndOutlets):
            return InactiveAssetsResult(inactive_assets=[])
        return OKResponse(ok=True)

    @property
    def rendered(self) -> dict[str, Any]:
        from airflow.sdk.execution_time.comms import SetRenderedFields

        told = [each.rendered_fields for each in self.sent if isinstance(each, SetRenderedFields)]
        return dict(told[-1]) if told else {}

    @property
    def xcoms(self) -> dict[str, Any]:
        from airflow.sdk.execution_time.comms import SetXCom

        return {each.key: each.value for each in self.sent if isinstance(each, SetXCom)}


@dataclasses.dataclass(frozen=True)
class Ended:
    """How one run of a task in a worker ended."""

    state: str
    message: Any  # to the supervisor: SucceedTask, DeferTask, RetryTask, TaskState …
    error: BaseException | None
    xcoms: dict[str, Any]
    rendered: dict[str, Any]  # the template fields that the UI shows

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of assets, as the scheduler would take them over from a task that succeeded."""
        return getattr(self.message, "outlet_events", None) or []

    def trigger(self) -> Any:
        """What the triggerer makes of a deferral."""
        from airflow.sdk.module_loading import import_string
        from airflow.sdk.serde import deserialize

        kwargs = deserialize(self.message.trigger_kwargs)
        return import_string(self.message.classpath)(**kwargs)


class Instance:
    """One task instance (one try; make another for the next)."""

    def __init__(
        self,
        operator: Any,
        *,
        run_id: str = "manual__1",
        run_type: str = "manual",
        try_number: int = 1,
        max_tries: int = 0,
        map_index: int = -1,
        **dag_run: Any,
    ) -> None:
        self.operator = operator
        self.run_id = run_id
        self.try_number = try_number
        self.max_tries = max_tries
        self.map_index = map_index
        now = datetime.now(UTC)
        self.dag_run = {
            "dag_id": operator.dag_id,
            "run_id": run_id,
            "logical_date": now,
            "data_interval_start": now,
            "data_interval_end": now,
            "run_after": now,
            "start_date": now,
            "end_date": None,
            "run_type": run_type,
            "state": "running",
            "consumed_asset_events": [],
            "partition_key": None,
            **dag_run,
        }

    def runtime(self, *, next_method: str | None = None, next_kwargs: Any = None) -> Any:
        from airflow.sdk.api.datamodels._generated import DagRun, TIRunContext
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        given = TIRunContext.model_construct(
            dag_run=DagRun(**self.dag_run),
            max_tries=self.max_tries,
            should_retry=self.max_tries != 0 and self.try_number <= self.max_tries,
            variables=[],
            connections=[],
            xcom_keys_to_clear=[],
            next_method=next_method,
            next_kwargs=next_kwargs,
            task_reschedule_count=0,
            upstream_map_indexes={},
        )
        return RuntimeTaskInstance.model_construct(
            id=uuid.uuid4(),
            task_id=self.operator.task_id,
            dag_id=self.operator.dag_id,
            run_id=self.run_id,
            try_number=self.try_number,
            map_index=self.map_index,
            dag_version_id=uuid.uuid4(),
            task=self.operator.prepare_for_execution(),
            bundle_instance=mock.Mock(),
            _ti_context_from_server=given,
            max_tries=self.max_tries,
            start_date=self.dag_run["start_date"],
            state="running",
        )

    def context(self) -> Any:
        return self.runtime().get_template_context()

    def run(self, **resumed: Any) -> Ended:
        from airflow.sdk.execution_time import task_runner

        ti, supervisor = self.runtime(**resumed), Supervisor()
        before = signal.getsignal(signal.SIGTERM)
        with mock.patch.object(task_runner, "SUPERVISOR_COMMS", supervisor, create=True):
            try:
                state, message, error = task_runner.run(ti, ti.get_template_context(), structlog.get_logger())
            finally:
                signal.signal(signal.SIGTERM, before)
            task_runner.finalize(ti, state, ti.get_template_context(), structlog.get_logger(), error)
        return Ended(state.value, message, error, supervisor.xcoms, supervisor.rendered)

    def resume(self, deferred: Ended, event: Any) -> Ended:
        """As the scheduler brings the task back when the trigger has fired `event` (its payload)."""
        message = deferred.message
        return self.run(next_method=message.next_method, next_kwargs={**message.next_kwargs, "event": event})


@dataclasses.dataclass
class FakeJob:
    """A job of scripted agents behind a real coordinator, and the connection `sameshot_default` to it."""

    background: Background
    client: AsyncClient
    agent: FakeAgent

    def captures(self) -> list[CaptureView]:
        """In the order of asking."""
        return self.background.call(self.client.captures())[::-1]

    def get(self, capture_id: str) -> CaptureView:
        return self.background.call(self.client.get(capture_id))

    def start(self, key: str = "somebody-else", duration_ms: int = 1000) -> CaptureView:
        return self.background.call(self.client.start_capture(CaptureSpec(duration_ms=duration_ms), key))

    def wait_state(self, capture_id: str, *states: CaptureState) -> CaptureView:
        return self.background.call(until_view(self.client, capture_id, lambda view: view.state in states))

    def end(self) -> None:
        """All workers go."""
        self.agent.workers = [Worker(each.registration) for each in self.agent.workers]


@contextlib.contextmanager
def fake_job(folder: Path, patch: pytest.MonkeyPatch, *, ranks: int = 2, **options: Any) -> Iterator[FakeJob]:
    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[tuple[AsyncClient, FakeAgent]]:
        async with FakeAgent("node-0", Storage.open(str(folder))) as agent:
            agent.workers = [worker(rank=rank, world_size=ranks) for rank in range(ranks)]
            async with coordinating(folder, [agent], **options) as client:
                yield client, agent

    with Background() as background:
        client, agent = background.enter(running())
        host, _, port = client.address.rpartition(":")
        connection = {"conn_type": "sameshot", "host": host, "port": int(port), "login": "ana"}
        patch.setenv("AIRFLOW_CONN_SAMESHOT_DEFAULT", json.dumps(connection))
        yield FakeJob(background, client, agent)


def fire(job: FakeJob, trigger: Any, timeout_s: float = 60.0) -> Any:
    """Run a trigger in the loop of `job`: the payload of its only event, as the metadata database gives it back."""

    async def run() -> Any:
        async with asyncio.timeout(timeout_s):
            return [event.payload async for event in trigger.run()]

    events = job.background.call(run())
    assert len(events) == 1
    return json.loads(json.dumps(events[0]))
