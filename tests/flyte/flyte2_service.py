"""Flyte 2's connector service and the back end that calls it, as processes of Flyte 2's environment.

    with Service(tmp_path) as service, Flyte(tmp_path) as flyte:
        meta = flyte.create(service, address="local:live", duration="1s")      # kept as Flyte keeps it: bytes
        seen = flyte.ended(service, meta)
        assert seen.phase == "SUCCEEDED" and seen.outputs["capture"]["archived"] == 2

The messages of the calls are filled in as the back end does (flyteorg/flyte, flyteplugins/go/tasks/plugins/webapi/
connector/plugin.go and executor/pkg/plugin/task_exec_metadata.go), and outputs are read without the SDK's help.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from flyte2_lab import python
from live import free_port, wait_for

CLIENT = Path(__file__).with_name("flyte2_client.py")
ENDED = ("SUCCEEDED", "RETRYABLE_FAILED", "FAILED", "ABORTED")

# `c0` listens on all interfaces, and can't be told otherwise.
_SERVE = """
import prometheus_client
from functools import partial
from flyte.connectors._grpc import grpc

def server(*args, make=grpc.aio.server, **kwargs):
    made = make(*args, **kwargs)
    add = made.add_insecure_port
    made.add_insecure_port = lambda address: add(address.replace("[::]", "127.0.0.1"))
    return made

grpc.aio.server = server
prometheus_client.start_http_server = partial(prometheus_client.start_http_server, addr="127.0.0.1")

from flyte._bin.connect import main
main()
"""


class Service:
    """`c0`, the SDK's command: it finds our connector by its entry point, as nothing names it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "HOME": str(folder), "LOG_LEVEL": "20", **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "connector.log"
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.port = free_port()
        argv = [str(python()), "-c", _SERVE, "--port", str(self.port), "--prometheus_port", str(free_port())]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                argv, env=self._environment, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def kill(self) -> None:
        """With SIGKILL: nothing is said to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)


@dataclass(frozen=True)
class Seen:
    """What the connector says of a task. `outputs`: the msgpack of each output, decoded."""

    phase: str
    message: str
    links: list[dict[str, Any]]
    outputs: dict[str, Any]


class Refused(Exception):
    """A call ended as an error of gRPC, which a back end holds against the task."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")


@dataclass
class Flyte:
    """The back end of one run, and the SDK that registered the task. Give each call of a task its own `action`."""

    folder: Path
    run: str = "rl5xk2"
    _process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [str(python()), str(CLIENT)],
            env={**os.environ, "HOME": str(self.folder)},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)

    # ---- the SDK

    def spec(self, name: str = "sameshot_capture", **settings: Any) -> dict[str, Any]:
        """What is registered of a capture task with these settings: a `flyteidl2.task.TaskSpec`."""
        return self._asked("spec", name=name, **settings)

    # ---- the back end

    def create(
        self,
        service: Service,
        *,
        action: str,
        retry: int = 0,
        connection: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **inputs: Any,
    ) -> bytes:
        """`retry`: how often the action was tried before."""
        run = {"project": "p", "domain": "d", "name": self.run}
        where = {"nodeExecutionId": {"executionId": run, "nodeId": action}, "retryAttempt": retry}
        request = {
            "template": self.spec(**(settings or {}))["taskTemplate"],
            "inputs": self._asked("inputs", **inputs),
            "outputPrefix": f"s3://runs/p/d/{self.run}/{action}/{retry}",
            "taskExecutionMetadata": {"taskExecutionId": where, "namespace": "p-d"},
            "connection": dict(connection or {}),
        }
        return base64.b64decode(self.call(service, "CreateTask", request)["resourceMeta"])

    def get(self, service: Service, meta: bytes) -> Seen:
        found = self.call(service, "GetTask", _about(meta))["resource"]
        return Seen(
            phase=found["phase"],
            message=found.get("message", ""),
            links=found.get("logLinks", []),
            outputs={
                each["name"]: msgspec.msgpack.decode(base64.b64decode(each["value"]["scalar"]["binary"]["value"]))
                for each in found.get("outputs", {}).get("literals", [])
            },
        )

    def delete(self, service: Service, meta: bytes) -> None:
        self.call(service, "DeleteTask", _about(meta))

    def ended(self, service: Service, meta: bytes, timeout_s: float = 60.0) -> Seen:
        """Asks until it has ended."""
        seen: list[Seen] = []

        def over() -> bool:
            seen.append(self.get(service, meta))
            return seen[-1].phase in ENDED

        wait_for(over, "the task has ended", timeout_s)
        return seen[-1]

    def connectors(self, service: Service) -> dict[str, Any]:
        return self.call(service, "ListConnectors", {}, of="ConnectorMetadataService")

    def call(
        self, service: Service, method: str, request: dict[str, Any], of: str = "AsyncConnectorService"
    ) -> dict[str, Any]:
        said = self._asked("call", port=service.port, service=of, method=method, request=request)
        if "answer" not in said:
            raise Refused(**said)
        answer: dict[str, Any] = said["answer"]
        return answer

    def _asked(self, wish: str, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([wish, given]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client has ended: see what it wrote"
        answer: dict[str, Any] = json.loads(line)
        return answer


def _about(meta: bytes) -> dict[str, Any]:
    return {"resourceMeta": base64.b64encode(meta).decode(), "taskCategory": {"name": "sameshot_capture"}}
