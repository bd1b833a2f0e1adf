"""What the connectors of both SDKs answer: `polled`, between the bytes that Flyte keeps and what it shows.

Light to import, since flytekit loads it wherever it is itself: all else is loaded by the first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from sameshot_flyte.asked import Asked, Place
    from sameshot_flyte.phases import Phase
    from sameshot_flyte.polled import Polled
    from sameshot_flyte.references import Capture

TASK_TYPE = "sameshot_capture"
OUTPUT = "capture"
ARCHIVE_BASE_URL = "archive_base_url"
"""In a task's custom part, which a back end hands over as it was registered."""
MANIFEST = "capture manifest"
"""What a link is called."""


@dataclass
class Kept:
    """What Flyte keeps of a capture between the calls: the bytes of an `Asked`, read by whoever needs them.

    Not here: an error on the way to `get` is counted against the task, and `get` can tell it as its phase. That are
    600 bytes, and 1,500 where all names are as long as Kubernetes lets them be. propeller keeps them in the workflow's
    own object and sets no limit (flytepropeller 1.16.8, pkg/controller/nodes/task/plugin_state_manager.go).

    `over`: `get` has told of this very object how it ended. It stays in the process, and so is of use to local runs.
    """

    data: bytes
    over: bool = field(default=False, compare=False)

    def encode(self) -> bytes:
        return self.data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(data)


@dataclass(frozen=True)
class Seen:
    """`link`: to the manifest, once it was read; Flyte shows those of the first look at each phase, so none may come
    too early. `capture` is there after a success alone."""

    phase: Phase
    message: str
    link: str = ""
    capture: Capture | None = None


class Served:
    """One for a process."""

    @cached_property
    def polled(self) -> Polled:
        from sameshot_flyte.polled import Polled

        return Polled()

    async def create(self, inputs: Mapping[str, Any], place: Place, base_url: object = None) -> Asked:
        from sameshot.client.wire import os_user
        from sameshot_flyte.polled import create_from

        return await create_from(inputs, place, caller=os_user(), base_url=str(base_url or ""))

    async def get(self, kept: Kept) -> Seen:
        from sameshot.errors import UsageError
        from sameshot.steps.links import manifest_url
        from sameshot_flyte.asked import Asked
        from sameshot_flyte.phases import Phase
        from sameshot_flyte.references import capture_of

        try:
            asked = Asked.decode(kept.data)
        except UsageError as error:
            return Seen(Phase.FAILED, str(error))
        status = await self.polled.get(asked)
        kept.over = kept.over or status.phase.terminal
        link, result = None, status.result
        if result is not None and result.manifest_sha256 is not None and asked.base_url:
            link = manifest_url(status.manifest_uri, asked.base_url)
        done = result is not None and status.phase is Phase.SUCCEEDED
        return Seen(status.phase, status.message, link or "", capture_of(result) if done and result else None)

    async def delete(self, kept: Kept) -> str:
        """In words what that did. Raises TryAgain, as `Polled.delete` does."""
        from sameshot.errors import UsageError
        from sameshot_flyte.asked import Asked

        try:
            asked = Asked.decode(kept.data)
        except UsageError as error:  # called again, it could do no more
            return f"{error} Nothing was cancelled."
        return await self.polled.delete(asked)
