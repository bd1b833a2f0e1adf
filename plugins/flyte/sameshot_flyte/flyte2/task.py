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

from flyte import Image, RetryStrategy, TaskEnvironment
from flyte.connectors import AsyncConnectorExecutorMixin
from flyte.extend import TaskTemplate
from flyte.models import NativeInterface, SerializationContext

from sameshot.steps.links import web_problem
from sameshot_flyte.asked import INPUTS
from sameshot_flyte.flyte2 import here
from sameshot_flyte.flyte2.connector import BASE_URL, OUTPUT, TASK_TYPE
from sameshot_flyte.references import Capture

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
    """Captures a running job, and returns a `Capture`. Its inputs are `sameshot_flyte.asked.INPUTS`.

    `base_url`: where browsers find the archive's root, for a link to the manifest; registration freezes it. Never
    cached (ValueError): the same inputs mean another picture.
    """

    interface: NativeInterface = field(default_factory=_interface)
    task_type: str = TASK_TYPE
    image: str | Image | None = None
    retries: int | RetryStrategy = RETRIES
    base_url: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache.is_enabled():
            raise ValueError(f"Task {self.name}: a capture is never cached, as the same inputs mean another picture.")
        if self.base_url and (problem := web_problem(self.base_url)):
            raise ValueError(f"Task {self.name}: base_url is {problem}.")

    async def execute(self, *args: Any, **inputs: Any) -> Any:
        """In this process, by the connector that is installed here: for local runs alone."""
        with here.running() as mine:
            try:
                return await super().execute(*args, **inputs)
            except asyncio.CancelledError:
                await here.end(mine)
                raise

    def forward(self, *args: Any, **inputs: Any) -> NoReturn:
        raise RuntimeError(f"Task {self.name} runs in a run alone: flyte.run({self.name}, address=…), or in a task.")

    def custom_config(self, sctx: SerializationContext) -> dict[str, str]:
        return {BASE_URL: self.base_url} if self.base_url else {}


capture = SameshotCapture(name=TASK_TYPE)
capture_env = TaskEnvironment.from_task(TASK_TYPE, capture)
"""Where `capture` lives: for `depends_on`, and to be deployed."""
