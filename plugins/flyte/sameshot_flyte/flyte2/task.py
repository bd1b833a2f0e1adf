"""The capture task of Flyte 2's SDK: it has no code to run, the connector does it all.

    mine = SameshotCapture(name="my_capture", retries=5)
    my_env = flyte.TaskEnvironment.from_task("my_capture", mine)
    env = flyte.TaskEnvironment("nightly", depends_on=[my_env])

    @env.task
    async def nightly(address: str) -> str:
        picture = await mine(address=address, duration="2s")
        return picture.manifest_uri

Every task needs an environment, which is what is deployed; `capture` comes with one.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flyte import Cache, Image, RetryStrategy, TaskEnvironment
from flyte.connectors import AsyncConnectorExecutorMixin
from flyte.extend import TaskTemplate
from flyte.models import NativeInterface, SerializationContext

from sameshot.errors import UsageError
from sameshot_flyte.asked import INPUTS, check_task
from sameshot_flyte.flyte2 import here
from sameshot_flyte.references import Capture
from sameshot_flyte.served import ARCHIVE_BASE_URL, OUTPUT, TASK_TYPE

RETRIES = 2
"""A `create` whose answer is lost ends an attempt (flyteorg/flyte, pluginmachinery/internal/webapi/launcher.go); the
next one finds the capture by its key."""


def _interface() -> NativeInterface:
    inputs = {
        name: (kind, inspect.Parameter.empty if default is ... else default) for name, (kind, default) in INPUTS.items()
    }
    return NativeInterface(inputs, {OUTPUT: Capture})


@dataclass(kw_only=True)
class SameshotCapture(AsyncConnectorExecutorMixin, TaskTemplate[..., Capture, Any]):
    """Captures a running job, and returns a `Capture`. Its inputs are `asked.INPUTS`.

    `archive_base_url` is where browsers find the archive; without it there are no links. `timeout`, of one attempt, is
    to be longer than the input `timeout` by half a minute or more: a back end cancels the capture at its own. Raises
    UsageError, also for a `cache`: the same inputs mean another picture.

    `if_unavailable` and `if_busy` "fail" end an attempt; the next one looks again. With `retries=0` they fail the task
    at once.

    In a local run the capture ends with the task, and with the process where that ends by itself, by an error or by
    Ctrl-C. A signal that nobody handles (SIGTERM, SIGHUP, SIGKILL) leaves it to its own end: `sameshot cancel`, or a
    handler of yours that raises SystemExit.

    Call it from tasks that are `async`, and await it: `await capture(…)`. To a task that is not it gives a coroutine.
    """

    interface: NativeInterface = field(default_factory=_interface)
    task_type: str = TASK_TYPE
    image: str | Image | None = None
    retries: int | RetryStrategy = RETRIES
    archive_base_url: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        assert isinstance(self.cache, Cache)  # whatever was given
        check_task(self.name, cached=self.cache.is_enabled(), archive_base_url=self.archive_base_url)

    async def execute(self, *args: Any, **inputs: Any) -> Any:
        """In this process, by the connector that is installed here: for local runs alone."""
        with here.running() as mine:
            try:
                return await super().execute(*args, **inputs)
            except asyncio.CancelledError:
                await here.end(mine)
                raise

    def forward(self, *args: Any, **inputs: Any) -> NoReturn:
        raise UsageError(
            f"The capture task {self.name!r} works in runs alone: start it with `flyte.run`, or in a task."
        )

    def custom_config(self, sctx: SerializationContext) -> dict[str, str]:
        """Never empty. The SDK leaves an empty one out, and without one the back end never calls the connector (flyte
        2.0.43, webapi/connector/plugin.go: `Create` reads a connection from it, or fails: "nil Struct Object")."""
        return {ARCHIVE_BASE_URL: self.archive_base_url}


capture = SameshotCapture(name=TASK_TYPE)
capture_env = TaskEnvironment.from_task(TASK_TYPE, capture)
"""Where `capture` lives: for `depends_on`, and to be deployed."""
