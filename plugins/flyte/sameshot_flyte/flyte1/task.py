"""The capture as a task of flytekit: a task type that the connector serves, and an instance that is ready to use.

    from sameshot_flyte import SameshotCapture, capture

    @workflow
    def profile(address: str) -> Capture:
        return capture(address=address, duration="5s")

    ours = SameshotCapture("ours", archive_base_url="https://traces.example.org", metadata=TaskMetadata(retries=3))

What a capture is to be like are inputs: launch plans and forms change them without a registration. Frozen at
registration are a task's name, its metadata, and where links lead.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from flytekit import Documentation
from flytekit.configuration import SerializationSettings
from flytekit.core.base_task import PythonTask, TaskMetadata
from flytekit.core.interface import Interface
from flytekit.extend.backend.base_connector import AsyncConnectorExecutorMixin
from flytekit.models.core.workflow import NodeMetadata

from sameshot.errors import UsageError
from sameshot.steps.store import wait
from sameshot_flyte.asked import INPUTS, WHY_NO_CACHE, check_task
from sameshot_flyte.flyte1.connector import CaptureMeta
from sameshot_flyte.references import Capture
from sameshot_flyte.served import ARCHIVE_BASE_URL, OUTPUT, TASK_TYPE

RETRIES = 2
"""Unless the task's metadata say another number. A retry costs no second picture: it finds the capture of its key."""


class _NeverCached(NodeMetadata):
    """Of a node that captures: `with_overrides` writes into it, and asks nobody."""

    def __init__(self, task: str, said: NodeMetadata) -> None:
        super().__init__(said.name, said.timeout, said.retries, said.interruptible)
        self._task = task

    @property
    def cacheable(self) -> bool | None:
        """Read when the node is registered. Raises UsageError."""
        found: bool | None = super().cacheable
        if found:
            raise UsageError(f"A node of the capture task {self._task!r} is told to cache, {WHY_NO_CACHE}")
        return found


class SameshotCapture(AsyncConnectorExecutorMixin, PythonTask[None]):
    """One capture of a running job; its inputs are `asked.INPUTS`, its output is `capture: Capture`.

    `metadata` holds retries and timeout (of one attempt, to be longer than the input `timeout` by half a minute or
    more: Flyte cancels the capture at its own). It must not ask for a cache, nor must `with_overrides`, which is
    refused when the workflow is registered: each execution wants a picture of its own. `archive_base_url` is where
    browsers find the archive; without it there are no links. Raises UsageError.

    `if_unavailable` and `if_busy` "fail" end an attempt; the next one looks again. With `TaskMetadata(retries=0)` they
    fail the node at once.

    It takes no secrets: coordinators are shown a token of the connector's account, and propeller gives a connector none
    of a task's (flyteplugins 1.16.8, webapi/connector/plugin.go: of the security context whom to run as, and that
    alone). The archive is read with the credentials of the connector's own deployment; analysis tasks have secrets.

    Executed locally, it waits for the capture itself. Ctrl-C cancels the capture and ends the process; before the
    coordinator has answered there is none to cancel, and what it begins all the same ends by itself.
    """

    def __init__(
        self,
        name: str,
        *,
        archive_base_url: str = "",
        metadata: TaskMetadata | None = None,
        docs: Documentation | None = None,
    ) -> None:
        cached = metadata is not None and metadata.cache
        check_task(name, cached=cached, archive_base_url=archive_base_url)
        super().__init__(
            task_type=TASK_TYPE,
            name=name,
            interface=Interface(
                inputs={each: (kind, None if default is ... else default) for each, (kind, default) in INPUTS.items()},
                outputs={OUTPUT: Capture},
            ),
            metadata=metadata or TaskMetadata(retries=RETRIES),
            docs=docs,
        )
        self._archive_base_url = archive_base_url

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        return {ARCHIVE_BASE_URL: self._archive_base_url} if self._archive_base_url else {}

    def construct_node_metadata(self) -> NodeMetadata:
        return _NeverCached(self.name, super().construct_node_metadata())

    def connector_signal_handler(self, resource_meta: CaptureMeta, signum: int, frame: FrameType | None) -> None:
        """On Ctrl-C, in the midst of the loop that waits; flytekit calls that of every capture the process ever began,
        and then exits. flytekit's own would start a second loop in this thread, which asyncio refuses, and so cancel
        nothing. Raises nothing: the others' turn and the exit come after it. Meanwhile, some seconds at most, another
        Ctrl-C is ignored: its handler would stand in the midst of what this one holds, and wait for ever."""
        self._clean_up_task = True
        if resource_meta.over:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            wait(self._connector.delete(resource_meta))
        except Exception as error:
            print(f"The capture may go on: {str(error) or type(error).__name__}")
        finally:
            signal.signal(signal.SIGINT, before)


capture = SameshotCapture("sameshot.capture")
