"""The connector of Flyte 2's SDK: `sameshot_flyte.served` behind its three calls. Importing this registers it.

Flyte's back end calls `create` once for each attempt of a task, `get` every half minute (unless it is configured
otherwise), and `delete` when somebody ends the run; each may go to another process, and the same call may come twice.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import flyte
from flyte.connectors import AsyncConnector, ConnectorRegistry, Resource, ResourceMeta
from flyteidl2.connector.connector_pb2 import TaskExecutionMetadata
from flyteidl2.core.execution_pb2 import TaskExecution, TaskLog
from flyteidl2.core.tasks_pb2 import TaskTemplate

from sameshot.client.wire import os_user
from sameshot.errors import UsageError
from sameshot_flyte.asked import Asked, Place, request_of
from sameshot_flyte.flyte2 import here
from sameshot_flyte.served import ARCHIVE_BASE_URL, MANIFEST, OUTPUT, TASK_TYPE, Kept, Served


@dataclass
class CaptureMeta(Kept, ResourceMeta):
    """`Kept`, as the SDK knows it."""


class SameshotConnector(AsyncConnector[CaptureMeta]):
    """Secrets and settings of a task's connection are accepted and not used: coordinators of a cluster know the
    connector by a token of its pod's account, and the archive is read with the credentials of the connector's own
    environment. Tasks have no say in either."""

    name = "sameshot"
    task_type_name = TASK_TYPE
    metadata_type = CaptureMeta

    def __init__(self) -> None:
        self._served = Served()

    async def create(
        self,
        task_template: TaskTemplate,
        output_prefix: str,
        inputs: dict[str, Any] | None = None,
        task_execution_metadata: TaskExecutionMetadata | None = None,
        **connection: Any,
    ) -> CaptureMeta:
        given = inputs or {}
        place = _place(task_template, output_prefix, task_execution_metadata)
        mine = here.current()
        if mine is not None:  # before it begins, so that it is cancelled, too, should the answer be lost
            mine.polled = self._served.polled
            with contextlib.suppress(UsageError):
                mine.asked = Asked(request=request_of(given, place, os_user()), since=0.0, deadline=0.0)
        custom = task_template.custom
        base_url = custom.fields[ARCHIVE_BASE_URL].string_value if ARCHIVE_BASE_URL in custom else ""
        asked = await self._served.create(given, place, base_url)
        if mine is not None:
            mine.asked = asked
        return CaptureMeta(asked.encode())

    async def get(self, resource_meta: CaptureMeta, **connection: Any) -> Resource:
        seen = await self._served.get(resource_meta)
        if here.current() is not None:
            here.raise_failure(seen)
        link = TaskLog(name=MANIFEST, uri=seen.link, message_format=TaskLog.JSON, ready=True)
        return Resource(
            phase=TaskExecution.Phase.Value(seen.phase.value),
            message=seen.message,
            log_links=[link] if seen.link else [],
            outputs=None if seen.capture is None else {OUTPUT: seen.capture},
        )

    async def delete(self, resource_meta: CaptureMeta, **connection: Any) -> None:
        flyte.logger.info(await self._served.delete(resource_meta))


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


ConnectorRegistry.register(SameshotConnector())
