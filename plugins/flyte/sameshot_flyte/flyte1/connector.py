"""The connector of flytekit: `sameshot_flyte.polled` behind its three calls, served by `pyflyte serve connector`.

It may run as several processes and be restarted at any time: all that it remembers is in what Flyte keeps for it.
Coordinators of today know callers by name and ask for no token; the archive is read with the connector's own
credentials, which no task chooses.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from flyteidl.core.execution_pb2 import TaskExecution, TaskLog
from flytekit.extend.backend.base_connector import AsyncConnectorBase, Resource, ResourceMeta
from flytekit.models.literals import Literal, LiteralMap
from flytekit.models.task import TaskExecutionMetadata, TaskTemplate

if TYPE_CHECKING:
    from sameshot_flyte.polled import Polled, Status

TASK_TYPE = "sameshot_capture"
OUTPUT = "capture"
ARCHIVE_BASE_URL = "archive_base_url"
"""In a task's custom part, frozen at registration."""

_log = logging.getLogger(__name__)


@dataclass
class CaptureMeta(ResourceMeta):
    """What Flyte keeps of a capture between the calls: the bytes of an `Asked`, read by whoever needs them.

    Not here: an error on the way to `get` is counted against the task, and `get` can tell it as its phase. That are
    600 bytes, and 1,500 where all names are as long as Kubernetes lets them be. propeller keeps them in the workflow's
    own object and sets no limit (flytepropeller 1.16.8, pkg/controller/nodes/task/plugin_state_manager.go).
    """

    data: bytes

    def encode(self) -> bytes:
        return self.data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(data)


class SameshotConnector(AsyncConnectorBase):
    """Begins captures, looks at them and cancels them; what that means in which case stands in `polled`."""

    name = "sameshot"

    def __init__(self) -> None:
        super().__init__(metadata_type=CaptureMeta, task_type_name=TASK_TYPE)

    async def create(
        self,
        task_template: TaskTemplate,
        output_prefix: str,
        inputs: LiteralMap | None = None,
        task_execution_metadata: TaskExecutionMetadata | None = None,
        **_: Any,
    ) -> CaptureMeta:
        from sameshot.client.wire import os_user
        from sameshot_flyte.flyte1.place import place_of
        from sameshot_flyte.polled import create_from

        asked = await create_from(
            {} if inputs is None else {name: _plain(literal) for name, literal in inputs.literals.items()},
            place_of(task_execution_metadata, output_prefix, task_template.id.name),
            caller=os_user(),
            base_url=str((task_template.custom or {}).get(ARCHIVE_BASE_URL, "")),
        )
        return CaptureMeta(asked.encode())

    async def get(self, resource_meta: CaptureMeta, **_: Any) -> Resource:
        from sameshot.errors import UsageError
        from sameshot_flyte.asked import Asked
        from sameshot_flyte.phases import Phase
        from sameshot_flyte.references import capture_of

        try:
            asked = Asked.decode(resource_meta.data)
        except UsageError as error:
            return Resource(phase=TaskExecution.FAILED, message=str(error))
        status = await self._polled.get(asked)
        done = status.phase is Phase.SUCCEEDED and status.result is not None
        return Resource(
            phase=TaskExecution.Phase.Value(status.phase.value),
            message=status.message,
            log_links=_links(status, asked.base_url),
            outputs={OUTPUT: capture_of(status.result)} if done and status.result is not None else None,
        )

    async def delete(self, resource_meta: CaptureMeta, **_: Any) -> None:
        from sameshot.errors import UsageError
        from sameshot_flyte.asked import Asked
        from sameshot_flyte.polled import delete

        try:
            asked = Asked.decode(resource_meta.data)
        except UsageError as error:  # called again, it could do no more
            _log.error("%s Nothing was cancelled.", error)
            return
        _log.info("%s", await delete(asked))

    @cached_property
    def _polled(self) -> Polled:
        from sameshot_flyte.polled import Polled

        return Polled()


def _plain(literal: Literal) -> Any:
    """The value of a text, a number or a flag; of anything else what it is, for the message that refuses it."""
    scalar = literal.scalar
    return literal.value if scalar is None or scalar.primitive is None else scalar.primitive.value


def _links(status: Status, base_url: str) -> list[TaskLog]:
    """To the manifest, once it was read. Flyte shows those of the first look at each phase, so none comes too early."""
    from sameshot.steps.links import manifest_url

    read = status.result is not None and status.result.manifest_sha256 is not None
    url = manifest_url(status.manifest_uri, base_url) if read and base_url else None
    return [TaskLog(name="capture manifest", uri=url, message_format=TaskLog.JSON)] if url else []
