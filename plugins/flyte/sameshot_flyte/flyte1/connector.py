"""The connector of flytekit: `sameshot_flyte.served` behind its three calls, as `pyflyte serve connector` serves them.

It may run as several processes and be restarted at any time: all that it remembers is in what Flyte keeps for it.
Coordinators of a cluster know the connector by a token of its pod's account; the archive is read with the connector's
own credentials. No task chooses either.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from flyteidl.core.execution_pb2 import TaskExecution, TaskLog
from flytekit.core.constants import MESSAGEPACK
from flytekit.extend.backend.base_connector import AsyncConnectorBase, Resource, ResourceMeta
from flytekit.models.literals import Literal, LiteralMap
from flytekit.models.task import TaskExecutionMetadata, TaskTemplate

from sameshot_flyte.served import ARCHIVE_BASE_URL, MANIFEST, OUTPUT, TASK_TYPE, Kept, Served

_log = logging.getLogger(__name__)


@dataclass
class CaptureMeta(Kept, ResourceMeta):
    """`Kept`, as flytekit knows it."""


class SameshotConnector(AsyncConnectorBase):
    """Begins captures, looks at them and cancels them; what that means in which case stands in `polled`."""

    name = "sameshot"

    def __init__(self) -> None:
        super().__init__(metadata_type=CaptureMeta, task_type_name=TASK_TYPE)
        self._served = Served()

    async def create(
        self,
        task_template: TaskTemplate,
        output_prefix: str,
        inputs: LiteralMap | None = None,
        task_execution_metadata: TaskExecutionMetadata | None = None,
        **_: Any,
    ) -> CaptureMeta:
        from sameshot_flyte.flyte1.place import place_of

        asked = await self._served.create(
            {} if inputs is None else {name: _plain(literal) for name, literal in inputs.literals.items()},
            place_of(task_execution_metadata, output_prefix, task_template.id.name),
            (task_template.custom or {}).get(ARCHIVE_BASE_URL),
        )
        return CaptureMeta(asked.encode())

    async def get(self, resource_meta: CaptureMeta, **_: Any) -> Resource:
        seen = await self._served.get(resource_meta)
        return Resource(
            phase=TaskExecution.Phase.Value(seen.phase.value),
            message=seen.message,
            log_links=[TaskLog(name=MANIFEST, uri=seen.link, message_format=TaskLog.JSON)] if seen.link else [],
            outputs=None if seen.capture is None else {OUTPUT: seen.capture},
        )

    async def delete(self, resource_meta: CaptureMeta, **_: Any) -> None:
        _log.info("%s", await self._served.delete(resource_meta))


def _plain(literal: Literal) -> Any:
    """The value of a text, a number or a flag; of anything else what it is, for the message that refuses it.

    What is bound to an attribute of a dataclass arrives as msgpack (flytepropeller since 1.14, pkg/controller/nodes/
    attr_path_resolver.go), whatever its type.
    """
    import msgspec

    scalar = literal.scalar
    if scalar is None:
        return literal.value
    if scalar.primitive is not None:
        return scalar.primitive.value
    if scalar.binary is None or scalar.binary.tag != MESSAGEPACK:
        return scalar.value
    try:
        return msgspec.msgpack.decode(scalar.binary.value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return scalar.binary
