"""A job on this machine with everything it needs beside it: `sameshot run`, the demonstration and the tests.

`LocalRun` stands for a small cluster: each node has its own `$SAMESHOT_DIR`, its own agent process and, with stock
dynolog, its own daemon; one coordinator serves the job. The command that trains is started by the caller in the
environment that `environment(node)` returns.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from sameshot.client import CaptureView, Client, connect
from sameshot.client.local import JobInfo
from sameshot.errors import SameshotError, UsageError
from sameshot.local.arming import armed_environment, node_dir
from sameshot.local.runtime import RunFolder
from sameshot.local.services import Service, ServiceCommand, free_port, sameshot_argv
from sameshot.model import CapturePolicy, JobRef, check_name
from sameshot.profiler.daemon import BackendName

NAMESPACE = "local"


class LocalSetup(msgspec.Struct, frozen=True):
    """What to run beside the job.

    `dynolog` is the program of a stock daemon, started once per node on a free port; needed for
    that back end only. `archive` is a directory or an `s3://bucket/prefix` URL.
    """

    name: str
    archive: str
    nodes: tuple[str, ...] = ("node-0",)
    series: str | None = None
    labels: dict[str, str] = {}
    backend: BackendName = BackendName.BROKER
    dynolog: Path | None = None
    policy: CapturePolicy = CapturePolicy()
    local_world_size: int | None = None
    single: bool = False
    arm_spawned: bool = False
    columns: bool = True

    def __post_init__(self) -> None:
        check_name(self.name, "job name")
        if self.backend is BackendName.DYNOLOG and self.dynolog is None:
            raise UsageError(
                "The dynolog back end needs the daemon's program: give --dynolog PATH or set SAMESHOT_DYNOLOG."
            )


class LocalRun:
    """Agents and a coordinator for one run; a context manager that leaves nothing running and nothing lost."""

    START_TIMEOUT_S = 60.0
    SILENCE_S = 15.0  # a coordinator that died is back long before

    def __init__(self, setup: LocalSetup, *, environment: Mapping[str, str] | None = None) -> None:
        self.setup = setup
        self.job = JobRef(NAMESPACE, setup.name, uuid.uuid4().hex, 0)
        self._base = dict(os.environ if environment is None else environment)
        self.folder = RunFolder.create()
        self.services: dict[str, Service] = {}
        self.dynolog = tuple(f"127.0.0.1:{free_port()}" for _ in setup.nodes) if setup.dynolog else ()
        self.left_behind: list[Path] = []  # known once it has stopped: traces that never reached the archive
        self.address = f"unix:{self.folder.path / 'coordinator.sock'}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def environment(self, node: int = 0) -> dict[str, str]:
        """What the training command of one node is started with."""
        return armed_environment(
            self._base,
            job=self.job,
            node=self.setup.nodes[node],
            folder=self.node_dir(node),
            local_world_size=self.setup.local_world_size,
            single=self.setup.single,
            arm_spawned=self.setup.arm_spawned,
        )

    def node_dir(self, node: int) -> Path:
        return node_dir(self.folder.path, node)

    def client(self) -> Client:
        return connect(self.address)

    def settle(self, timeout_s: float) -> list[str]:
        """Wait until every capture has converged and is published, so that a job that just ended loses none.

        Returns what there is to say of those that have not by then. A coordinator that is away is waited for: it is
        started again.
        """
        deadline = time.monotonic() + timeout_s
        silent_until = time.monotonic() + min(timeout_s, self.SILENCE_S)
        unsettled: list[CaptureView] | None = None
        while True:
            with contextlib.suppress(SameshotError), self.client() as client:
                unsettled = client.captures(unsettled=True)
                if not unsettled:
                    return []
            if time.monotonic() > (silent_until if unsettled is None else deadline):
                break
            time.sleep(0.2)
        if unsettled is None:
            return ["the coordinator does not answer: it is not known whether every capture was published"]
        return [
            f"capture {view.capture_id} is {view.state.value}, {view.archived} archived, and not published"
            for view in unsettled
        ]

    def stop(self) -> None:
        """Stop every service. Where traces never reached the archive the folder is kept, see `left_behind`."""
        for name in reversed(list(self.services)):  # as they were started: daemons, agents, coordinator
            self.services.pop(name).stop()
        self.left_behind = self.folder.left_behind()
        self.folder.close(keep=bool(self.left_behind))

    def _start(self) -> None:
        for index, node in enumerate(self.setup.nodes):
            folder = self.node_dir(index)
            self.folder.add_node(folder)
            if self.setup.backend is BackendName.DYNOLOG:
                self._start_dynolog(index, folder)
            self._start_agent(index, node, folder)
        self._start_coordinator()
        for service in self.services.values():
            service.wait_ready(self.START_TIMEOUT_S)
        self.folder.announce(
            JobInfo(
                job=self.job,
                series=self.setup.series or self.setup.name,
                labels=self.setup.labels,
                coordinator=self.address,
                archive=self.setup.archive,
                pid=os.getpid(),
                started_at_ns=time.time_ns(),
                dynolog=self.dynolog,
            )
        )

    def _start_agent(self, index: int, node: str, folder: Path) -> None:
        extra = ["--dynolog", self.dynolog[index]] if self.dynolog else []
        if not self.setup.columns:
            extra.append("--no-columns")
        self._spawn(
            f"agent-{index}",
            sameshot_argv(
                *("agent", "--node", node, "--dir", str(folder), "--archive", self.setup.archive),
                *(
                    "--spool",
                    str(self.folder.path / f"spool-n{index}"),
                    "--listen",
                    f"unix:{self._agent_socket(index)}",
                ),
                *("--backend", self.setup.backend, "--address-file", str(self._address_file(f"agent-{index}"))),
                *("--end-with-stdin", *extra),
            ),
        )

    def _start_coordinator(self) -> None:
        agents = [
            part for index in range(len(self.setup.nodes)) for part in ("--agent", f"unix:{self._agent_socket(index)}")
        ]
        policy = self.folder.path / "policy.json"
        policy.write_bytes(msgspec.json.encode(self.setup.policy))
        self._spawn(
            "coordinator",
            sameshot_argv(
                *("coordinator", "--namespace", self.job.namespace, "--name", self.job.name, "--uid", self.job.uid),
                *("--series", self.setup.series or self.setup.name, "--archive", self.setup.archive, *agents),
                *("--backend", self.setup.backend, "--policy", str(policy), "--listen", self.address),
                *("--address-file", str(self._address_file("coordinator")), "--end-with-stdin"),
            ),
        )

    def _start_dynolog(self, index: int, folder: Path) -> None:
        port = self.dynolog[index].rpartition(":")[2]
        self._spawn(
            f"dynolog-{index}",
            (str(self.setup.dynolog), "--enable_ipc_monitor", "--port", port),
            environment={"KINETO_IPC_SOCKET_DIR": str(folder / "ipc")},
            ready=False,
        )

    def _spawn(
        self, name: str, argv: tuple[str, ...], *, environment: Mapping[str, str] | None = None, ready: bool = True
    ) -> None:
        command = ServiceCommand(
            name=name,
            argv=argv,
            log=self.folder.path / f"{name}.log",
            ready=self._address_file(name) if ready else None,
        )
        self.services[name] = Service(command, {**self._base, **(environment or {})})

    def _agent_socket(self, index: int) -> Path:
        return self.folder.path / f"agent-{index}.sock"

    def _address_file(self, name: str) -> Path:
        return self.folder.path / f"{name}.addr"
