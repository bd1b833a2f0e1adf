"""The connector of Flyte 2's SDK: `sameshot_flyte.polled` behind its three calls. Importing this registers it.

Flyte's back end calls `create` once for each attempt of a task, `get` every half minute (unless it is configured
otherwise), and `delete` when somebody ends the run; each may go to another process, and the same call may come twice.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Self

import flyte
from flyte.connectors import AsyncConnector, ConnectorRegistry, Resource, ResourceMeta
from flyteidl2.connector.connector_pb2 import TaskExecutionMetadata
from flyteidl2.core.execution_pb2 import TaskExecution, TaskLog
from flyteidl2.core.tasks_pb2 import TaskTemplate

from sameshot.client.wire import os_user
from sameshot.errors import UsageError
from sameshot.steps.links import manifest_url
from sameshot_flyte.asked import Asked, Place, request_of
from sameshot_flyte.flyte2 import here
from sameshot_flyte.phases import Phase
from sameshot_flyte.polled import Polled, Status, create_from, delete
from sameshot_flyte.references import capture_of

TASK_TYPE = "sameshot_capture"
OUTPUT = "capture"
ARCHIVE_BASE_URL = "archive_base_url"
"""In a task's custom part, which a back end hands over as it was registered."""

_PHASES = {phase: TaskExecution.Phase.Value(phase.value) for phase in Phase}


@dataclass
class CaptureMeta(ResourceMeta):
    """What Flyte keeps of a capture between the calls: the bytes of an `Asked`, read by whoever needs them.

    Not here: an error on the way to `get` is counted against the task, and `get` can tell it as its phase.
    """

    data: bytes

    def encode(self) -> bytes:
        return self.data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(data)


class SameshotConnector(AsyncConnector[CaptureMeta]):
    """Secrets and settings of a task's connection are accepted and not used: coordinators know callers by name alone,
    and the archive is read with the credentials of the connector's own environment, which tasks have no say in."""

    name = "sameshot"
    task_type_name = TASK_TYPE
    metadata_type = CaptureMeta

    def __init__(self) -> None:
        self._polled = Polled()

    async def create(
        self,
        task_template: TaskTemplate,
        output_prefix: str,
        inputs: dict[str, Any] | None = None,
        task_execution_metadata: TaskExecutionMetadata | None = None,
        **connection: Any,
    ) -> CaptureMeta:
        given, caller = inputs or {}, os_user()
        place = _place(task_template, output_prefix, task_execution_metadata)
        mine = here.current()
        if mine is not None:  # before it begins, so that it is cancelled, too, should the answer be lost
            with contextlib.suppress(UsageError):
                mine.asked = Asked(request=request_of(given, place, caller), since=0.0, deadline=0.0)
        custom = task_template.custom
        base_url = custom.fields[ARCHIVE_BASE_URL].string_value if ARCHIVE_BASE_URL in custom else ""
        asked = await create_from(given, place, caller=caller, base_url=base_url)
        if mine is not None:
            mine.asked = asked
        return CaptureMeta(asked.encode())

    async def get(self, resource_meta: CaptureMeta, **connection: Any) -> Resource:
        try:
            asked = Asked.decode(resource_meta.data)
        except UsageError as error:
            return Resource(phase=TaskExecution.FAILED, message=str(error))
        status = await self._polled.get(asked)
        if here.current() is not None:
            here.raise_failure(status)
        done = status.phase is Phase.SUCCEEDED and status.result is not None
        return Resource(
            phase=_PHASES[status.phase],
            message=status.message,
            log_links=_links(status, asked.base_url),
            outputs={OUTPUT: capture_of(status.result)} if done and status.result is not None else None,
        )

    async def delete(self, resource_meta: CaptureMeta, **connection: Any) -> None:
        try:
            asked = Asked.decode(resource_meta.data)
        except UsageError as error:  # called again, it could do no more
            flyte.logger.error(f"{error} Nothing was cancelled.")
            return
        flyte.logger.info(await delete(asked))


def _place(template: TaskTemplate, output_prefix: str, metadata: TaskExecutionMetadata | None) -> Place:
    """A run is the execution, and an action of it the node: each call of a task, also by `flyte.map`, is an action of
    its own, whose name stays the same when it or the task that called it is retried (flyteorg/flyte,
    executor/pkg/plugin/task_exec_metadata.go; flyte.models.ActionID.new_sub_action_from)."""
    node = None if metadata is None else metadata.task_execution_id.node_execution_id
    if node is not None and node.node_id:
        run = node.execution_id
        return Place(project=run.project, domain=run.domain, execution=run.name, node=node.node_id)
    context = flyte.ctx()
    if context:  # a local run; its name is no more than a wish of the user's, and may come again
        return Place.local(context.action.name, f"{context.action.run_name} {context.run_start_time}")
    return Place.local(template.id.name, output_prefix)


def _links(status: Status, base_url: str) -> list[TaskLog]:
    """To the manifest, once it was read."""
    read = status.result is not None and status.result.manifest_sha256 is not None
    url = manifest_url(status.manifest_uri, base_url) if read and base_url else None
    return [TaskLog(name="capture manifest", uri=url, message_format=TaskLog.JSON, ready=True)] if url else []


ConnectorRegistry.register(SameshotConnector())
