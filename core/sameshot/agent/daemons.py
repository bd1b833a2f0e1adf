"""The profiler daemons of a node: one broker per worker directory, or the one stock daemon for all of them."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable

from sameshot.agent.discovery import WorkerDir, WorkerDirs
from sameshot.errors import SameshotError
from sameshot.profiler.broker import Broker
from sameshot.profiler.daemon import BackendName, ProfilerDaemon
from sameshot.profiler.dynolog import DynologClient
from sameshot.profiler.podplace import PodPlace

log = logging.getLogger(__name__)

IPC = "ipc"  # `$SAMESHOT_DIR/ipc` is the workers' KINETO_IPC_SOCKET_DIR
REFRESH_S = 1.0  # a directory that appears is served within a worker's poll
STARTS_AT_ONCE = 4  # each takes a process for a moment, and this is a training node
LOOK_WAITS_S = 2.0  # for daemons that are being started; who takes longer holds up nobody else
REBIND_PAUSE_S = 10.0  # for a pod that keeps removing its daemon's socket
# A pod has a handful of ranks that poll once a second; who sends more than this waits, and nobody else does.
POD_DATAGRAMS_PER_S = 500.0

DaemonFor = Callable[[WorkerDir], ProfilerDaemon]


def daemon_factory(backend: BackendName, dynolog: str, poll_interval_s: float) -> DaemonFor:
    """How to make the daemon of a directory, for the back end that was chosen. `dynolog` is `host:port`."""
    if backend is BackendName.BROKER:
        return _broker
    shared = DynologClient.at(dynolog, poll_interval_s=poll_interval_s)
    return lambda where: shared


def _broker(where: WorkerDir) -> Broker:
    if not where.in_pod:
        return Broker(where.path / IPC)
    return Broker(PodPlace(where.path, where.worker_path), per_second=POD_DATAGRAMS_PER_S)


class Daemons:
    def __init__(self, dirs: WorkerDirs, make: DaemonFor) -> None:
        self._dirs = dirs
        self._make = make
        self._by_path: dict[str, ProfilerDaemon] = {}
        self._refused: dict[str, str] = {}  # path → why it could not be served at the last try
        self._rebound_at: dict[str, float] = {}
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._trying: dict[str, asyncio.Task[None]] = {}  # path → what serves it, for as long as that lasts
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve every directory that is there now, and go on watching.

        Raises where one of them can't be served, unless it is a pod's: that is tried again, and harms nobody else.
        """
        here = [where for where in self._dirs.current() if not where.in_pod]
        for where in here:
            await self._serve(where)
        await self._look()
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        trying = list(self._trying.values())
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)
        await asyncio.gather(*(daemon.close() for daemon in self.all()))

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
            try:
                await self._look()
            except Exception:
                log.exception("a look at the workers' directories failed; the next one follows")

    async def _look(self) -> None:
        """Serve what appeared, all at once, and let go of what is gone. Waits only so long for the slowest of them."""
        current = {str(where.path): where for where in self._dirs.current()}
        for path in [path for path in self._by_path if path not in current and path not in self._trying]:
            daemon = self._by_path.pop(path)
            if all(daemon is not other for other in self._by_path.values()):
                await daemon.close()
                log.info("no longer served dir=%s", path)
        for known in (self._refused, self._rebound_at):
            for path in [path for path in known if path not in current]:
                del known[path]
        for path, where in current.items():
            if path not in self._trying:
                self._trying[path] = task = asyncio.create_task(self._try(where))
                task.add_done_callback(functools.partial(self._tried, path))
        if self._trying:
            await asyncio.wait(list(self._trying.values()), timeout=LOOK_WAITS_S)

    def _tried(self, path: str, _: asyncio.Task[None]) -> None:
        del self._trying[path]

    async def _try(self, where: WorkerDir) -> None:
        key = str(where.path)
        try:
            await self._serve(where)
        except FileNotFoundError:
            return  # its hook has not made the socket directory yet
        except Exception as error:  # a defect in one must not end all
            if self._refused.get(key) != str(error):
                self._refused[key] = str(error)
                defect = None if isinstance(error, SameshotError | OSError) else error
                log.warning("no profiler daemon dir=%s why=%r", where.path, str(error), exc_info=defect)
            return
        if self._refused.pop(key, None) is not None:
            log.info("served after all dir=%s", where.path)

    async def _serve(self, where: WorkerDir) -> None:
        key = str(where.path)
        daemon = self._by_path.get(key)
        if daemon is None:
            daemon = self._make(where)
            if all(daemon is not other for other in self._by_path.values()):
                async with self._starts:
                    await daemon.start()
            self._by_path[key] = daemon
        elif where.in_pod and isinstance(daemon, Broker) and not await asyncio.to_thread(daemon.intact):
            await self._serve_again(key, daemon)

    async def _serve_again(self, key: str, broker: Broker) -> None:
        """Somebody removed the socket, or its whole directory: workers that poll now find nobody."""
        now = time.monotonic()
        if now - self._rebound_at.get(key, -REBIND_PAUSE_S) < REBIND_PAUSE_S:
            return
        self._rebound_at[key] = now
        log.warning("the daemon's socket was removed, bound again dir=%s", key)
        await broker.close()
        await broker.start()
