"""propeller's side of a connector of Flyte: its calls, made of flyteidl's own messages, over real gRPC.

async with serving() as flyte:                        # flytekit's service in this process, on loopback
    meta = await flyte.create({"address": client.address}, node="n0", attempt=1)
    seen = await flyte.get(meta)                      # an admin.agent_pb2.Resource
    await flyte.delete(meta)

with ConnectorProcess(tmp_path) as server:            # what `pyflyte serve connector` starts
    async with server.calls() as flyte: …
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import grpc
from flyteidl.admin import agent_pb2
from flyteidl.core import identifier_pb2, literals_pb2
from flyteidl.core.execution_pb2 import TaskExecution
from flyteidl.service.agent_pb2_grpc import AsyncAgentServiceStub, add_AsyncAgentServiceServicer_to_server
from flytekit import FlyteContext
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.core.type_engine import TypeEngine
from flytekit.extend.backend.connector_service import AsyncConnectorService
from flytekit.models.literals import Literal
from flytekit.tools.translator import get_serializable
from live import free_port, wait_for

from sameshot_flyte import Capture, SameshotCapture, capture

ENDED = (TaskExecution.SUCCEEDED, TaskExecution.FAILED, TaskExecution.RETRYABLE_FAILED, TaskExecution.ABORTED)


def spec_of(task: SameshotCapture) -> Any:
    """What is registered of a task: a flyteidl `TaskSpec`."""
    settings = SerializationSettings(ImageConfig(), project="ml", domain="production", version="v1")
    return get_serializable(OrderedDict(), settings, task).to_flyte_idl()


def literals(values: Mapping[str, Any]) -> literals_pb2.LiteralMap:
    """Of plain values; what is a literal already stays one."""

    def literal(value: Any) -> literals_pb2.Literal:
        if isinstance(value, literals_pb2.Literal):
            return value
        kind = "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "string_value"
        return literals_pb2.Literal(scalar=literals_pb2.Scalar(primitive=literals_pb2.Primitive(**{kind: value})))

    return literals_pb2.LiteralMap(literals={name: literal(value) for name, value in values.items()})


def metadata(
    *,
    project: str = "ml",
    domain: str = "production",
    execution: str = "f3a9c1",
    node: str = "n0",
    attempt: int = 0,
    index: int | None = None,
) -> agent_pb2.TaskExecutionMetadata:
    """As propeller fills it in (webapi/connector/plugin.go), the index of a mapped task with it (array/
    execution_context.go)."""
    mapped = {"BATCH_JOB_ARRAY_INDEX_VAR_NAME": "FLYTE_K8S_ARRAY_INDEX", "FLYTE_K8S_ARRAY_INDEX": str(index)}
    return agent_pb2.TaskExecutionMetadata(
        task_execution_id=identifier_pb2.TaskExecutionIdentifier(
            task_id=identifier_pb2.Identifier(project=project, domain=domain, name="sameshot.capture", version="v1"),
            node_execution_id=identifier_pb2.NodeExecutionIdentifier(
                node_id=node,
                execution_id=identifier_pb2.WorkflowExecutionIdentifier(project=project, domain=domain, name=execution),
            ),
            retry_attempt=attempt,
        ),
        namespace=f"{project}-{domain}",
        environment_variables={} if index is None else mapped,
    )


def output_prefix(*path: str, execution: str = "f3a9c1", attempt: int = 0) -> str:
    """Of a node, given with the nodes that it lies in: `output_prefix("n2", "n0")`. All above are in `attempt`, too."""
    first, *within = path
    below = "".join(f"/{node}/{attempt}" for node in within)
    return f"s3://flyte/metadata/propeller/ml-production-{execution}/{first}/data/{attempt}{below}"


class Calls:
    """What propeller calls. Errors are grpc's, as propeller gets them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AsyncAgentServiceStub(channel)

    async def create(
        self,
        inputs: Mapping[str, Any],
        *,
        task: SameshotCapture = capture,
        prefix: str = "",
        attempt: int = 0,
        **where: Any,
    ) -> bytes:
        request = agent_pb2.CreateTaskRequest(
            inputs=literals(inputs),
            template=spec_of(task).template,
            output_prefix=prefix or output_prefix(where.get("node", "n0"), attempt=attempt),
            task_execution_metadata=metadata(attempt=attempt, **where),
        )
        answer: bytes = (await self._stub.CreateTask(request, timeout=10)).resource_meta
        return answer

    async def get(self, meta: bytes) -> Any:
        request = agent_pb2.GetTaskRequest(
            task_category=agent_pb2.TaskCategory(name="sameshot_capture"), resource_meta=meta
        )
        return (await self._stub.GetTask(request, timeout=10)).resource

    async def delete(self, meta: bytes) -> None:
        request = agent_pb2.DeleteTaskRequest(
            task_category=agent_pb2.TaskCategory(name="sameshot_capture"), resource_meta=meta
        )
        await self._stub.DeleteTask(request, timeout=10)

    async def ended(self, meta: bytes, timeout_s: float = 60.0) -> Any:
        """Asks until it has ended."""
        async with asyncio.timeout(timeout_s):
            while (seen := await self.get(meta)).phase not in ENDED:
                await asyncio.sleep(0.1)
        return seen


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Calls]:
    server = grpc.aio.server()
    add_AsyncAgentServiceServicer_to_server(AsyncConnectorService(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Calls(channel)
    finally:
        await server.stop(0)


def phase(seen: Any) -> str:
    return str(TaskExecution.Phase.Name(seen.phase))


async def output_of(seen: Any) -> Capture:
    """The output as the next task gets it."""
    literal = Literal.from_flyte_idl(seen.outputs.literals["capture"])
    found = await TypeEngine.async_to_python_value(FlyteContext.current_context(), literal, Capture)
    assert isinstance(found, Capture)
    return found


class ConnectorProcess:
    """`pyflyte serve connector`; it finds our connector by its entry point, as nothing names it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._lives += 1
        self.port, metrics = free_port(), free_port()
        log = self._folder / f"connector.{self._lives}.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("pyflyte")),
                    *("serve", "connector", "--port", str(self.port), "--prometheus_port", str(metrics)),
                ],
                env=os.environ | {"TMPDIR": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_for(lambda: self._answers() or self._died(log), "the connector answers", 60)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    @contextlib.asynccontextmanager
    async def calls(self) -> AsyncIterator[Calls]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield Calls(channel)

    def _answers(self) -> bool:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=1)
            except grpc.FutureTimeoutError:
                return False
        return True

    def _died(self, log: Path) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the connector ended:\n{log.read_text()[-3000:]}")
        return False
