"""The capture as a task of flytekit: a task type that the connector serves, and an instance that is ready to use.

    from sameshot_flyte import SameshotCapture, capture

    @workflow
    def profile(address: str) -> Capture:
        return capture(address=address, duration="5s")

    ours = SameshotCapture("ours", archive_base_url="https://traces.example.org", metadata=TaskMetadata(retries=3))

What a capture is to be like are inputs: launch plans and forms change them without a registration. Frozen at
registration are a task's name, its metadata, its secrets, and where links lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from flytekit import Documentation, Secret
from flytekit.configuration import SerializationSettings
from flytekit.core.base_task import PythonTask, TaskMetadata
from flytekit.core.interface import Interface
from flytekit.extend.backend.base_connector import AsyncConnectorExecutorMixin
from flytekit.models.security import SecurityContext

from sameshot.errors import SameshotError, UsageError
from sameshot.steps.links import web_problem
from sameshot.steps.store import wait
from sameshot_flyte.asked import INPUTS
from sameshot_flyte.flyte1.connector import ARCHIVE_BASE_URL, OUTPUT, TASK_TYPE, CaptureMeta, SameshotConnector
from sameshot_flyte.references import Capture

RETRIES = 2
"""Unless the task's metadata say another number. A retry costs no second picture: it finds the capture of its key."""


class SameshotCapture(AsyncConnectorExecutorMixin, PythonTask[None]):
    """One capture of a running job; its inputs are `asked.INPUTS`, its output is `capture: Capture`.

    `metadata` holds retries and timeout (of one attempt, to be longer than the input `timeout` by half a minute or
    more: Flyte cancels the capture at its own). It must not ask for a cache: each execution wants a picture of its own.
    `secret_requests` are what Flyte is to mount. `archive_base_url` is where browsers find the archive; without it
    there are no links. Raises UsageError.

    Executed locally, it waits for the capture itself. Ctrl-C cancels the capture and ends the process; before the
    coordinator has answered there is none to cancel, and what it begins all the same ends by itself.
    """

    def __init__(
        self,
        name: str,
        *,
        archive_base_url: str = "",
        metadata: TaskMetadata | None = None,
        secret_requests: Sequence[Secret] = (),
        docs: Documentation | None = None,
    ) -> None:
        if metadata is not None and metadata.cache:
            raise UsageError(
                f"The capture task {name!r} is told to cache, and a cached capture is a picture of another time. Leave "
                "`cache` out; analyses have caches of their own, by the manifest's digest."
            )
        if archive_base_url and (problem := web_problem(archive_base_url)):
            raise UsageError(f"The archive_base_url of the capture task {name!r} is {problem}.")
        super().__init__(
            task_type=TASK_TYPE,
            name=name,
            interface=Interface(
                inputs={each: (kind, None if default is ... else default) for each, (kind, default) in INPUTS.items()},
                outputs={OUTPUT: Capture},
            ),
            metadata=metadata or TaskMetadata(retries=RETRIES),
            security_ctx=SecurityContext(secrets=list(secret_requests)) if secret_requests else None,
            docs=docs,
        )
        self._archive_base_url = archive_base_url

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        return {ARCHIVE_BASE_URL: self._archive_base_url} if self._archive_base_url else {}

    def connector_signal_handler(self, resource_meta: CaptureMeta, signum: int, frame: FrameType | None) -> None:
        """On Ctrl-C, in the midst of the loop that waits. flytekit's own would start a second loop in this thread,
        which asyncio refuses, and so cancel nothing."""
        try:
            wait(SameshotConnector().delete(resource_meta))
        except SameshotError as error:
            print(f"The capture may go on: {error}")
        self._clean_up_task = True


capture = SameshotCapture("sameshot.capture")
