"""The profiler daemons of a node: one broker per worker directory, or the one stock daemon for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from sameshot.agent.discovery import WorkerDir, WorkerDirs
from sameshot.errors import SameshotError
from sameshot.profiler.broker import Broker
from sameshot.profiler.daemon import BackendName, ProfilerDaemon
from sameshot.profiler.dynolog import DynologClient

log = logging.getLogger(__name__)

IPC = "ipc"  # `$SAMESHOT_DIR/ipc` is the workers' KINETO_IPC_SOCKET_DIR
REFRESH_S = 1.0  # a directory that appears is served within a worker's poll

DaemonFor = Callable[[WorkerDir], ProfilerDaemon]


def daemon_factory(backend: BackendName, dynolog: str, poll_interval_s: float) -> DaemonFor:
    """How to make the daemon of a directory, for the back end that was chosen. `dynolog` is `host:port`."""
    if backend is BackendName.BROKER:
        return lambda where: Broker(where.path / IPC)
    shared = DynologClient.at(dynolog, poll_interval_s=poll_interval_s)
    return lambda where: shared


class Daemons:
    def __init__(self, dirs: WorkerDirs, make: DaemonFor) -> None:
        self._dirs = dirs
        self._make = make
        self._by_path: dict[str, ProfilerDaemon] = {}
        self._refused: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve every directory that is there now; raises where one of them can't be served, and goes on watching."""
        for where in self._dirs.current():
            await self._serve(where)
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for daemon in self.all():
            await daemon.close()

    def of(self, path: str) -> ProfilerDaemon | None:
        """The daemon that workers of this directory poll; None where there is none (yet)."""
        return self._by_path.get(path)

    def all(self) -> Iterable[ProfilerDaemon]:
        return {id(daemon): daemon for daemon in self._by_path.values()}.values()

    async def poll_ages(self, path: str) -> dict[tuple[int, int], float | None]:
        """(Kineto job id, pid) → seconds since the last poll, of the workers of one directory."""
        daemon = self.of(path)
        try:
            return {} if daemon is None else await daemon.registered()
        except SameshotError:
            return {}

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for where in self._dirs.current():
                try:
                    await self._serve(where)
                except (SameshotError, OSError) as error:
                    if str(where.path) not in self._refused:
                        self._refused.add(str(where.path))
                        log.warning("no profiler daemon dir=%s why=%r", where.path, str(error))

    async def _serve(self, where: WorkerDir) -> None:
        key = str(where.path)
        if key in self._by_path:
            return
        daemon = self._make(where)
        if all(daemon is not other for other in self._by_path.values()):
            await daemon.start()
        self._by_path[key] = daemon
