"""The armed pods of this node as worker directories.

Which pods there are says the API server (`podlist`), where they lie the disk: a task looks once a second, and a pod
counts as soon as its directory is there and for as long as it is. No look ever waits for the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sameshot.agent import podfs, safefs, silent
from sameshot.agent.discovery import WorkerDir
from sameshot.agent.podmemory import PodMemory
from sameshot.arm import labels
from sameshot.kube.api import Api
from sameshot.kube.podlist import Armed, PodList
from sameshot.kube.pods import Pod
from sameshot.model import JobRef

log = logging.getLogger(__name__)

LOOK_S = 1.0
FIRST_LIST_WITHIN_S = 5.0
COUNT_EVERY_S = 3.0  # what a limited pod has stored in its directory
# Of a pod's limit only so much is for traces: what else it stores (its writable layers, logs and other volumes) is not
# seen from here, and a pod above its limit is evicted.
SHARE_OF_LIMIT = 0.5


class PodDirs:
    """`root` is the kubelet's, `spool` on the same file system. `clock` is the epoch in seconds."""

    def __init__(self, api: Api, *, node: str, root: Path, spool: Path, clock: Callable[[], float] = time.time) -> None:
        self._memory = PodMemory(spool / "pods.json")
        self._pods = PodList(api, node=node, known=self._memory.read())
        self._node = node
        self._root = root
        self._spool = spool
        self._clock = clock
        self._current: tuple[WorkerDir, ...] = ()
        self._used: dict[str, tuple[float, int]] = {}  # pod uid → (when it was counted, bytes)
        self._said: dict[str, str] = {}  # pod uid → what was last said about it
        self._registered: set[str] = set()  # pod uids in which somebody registered once
        self._silent: dict[str, str] = {}  # pod uid → why no worker of it may ever have registered
        self._task: asyncio.Task[None] | None = None

    # --- WorkerDirs ------------------------------------------------------------------------------------------

    def current(self) -> Sequence[WorkerDir]:
        return self._current

    def unregistered(self, job: JobRef) -> Sequence[str]:
        mine = [armed.pod.uid for armed in self._pods.armed() if armed.job == job and not armed.pod.ended]
        return [words for uid in mine if (words := self._silent.get(uid)) is not None]

    @property
    def heard_at(self) -> float | None:
        """When the API server was last heard of (monotonic); None: not yet."""
        return self._pods.heard_at

    async def start(self) -> None:
        """Begin to follow the API server; where it does not answer, with what was known the last time."""
        if not await asyncio.to_thread(self._pods.start, FIRST_LIST_WITHIN_S):
            log.warning("no list of pods yet node=%s; serving %d known before", self._node, len(self._pods.armed()))
        await asyncio.to_thread(self.look)
        self._task = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        self._pods.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self.look)
            except Exception:
                log.exception("a look at the pods failed; the next one follows")

    # --- the disk ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One look at the disk. Blocks for a moment, and never on the API server."""
        armed = self._pods.armed()
        self._forget_but(each.pod.uid for each in armed)
        before = {where.pod_uid: where for where in self._current}
        dirs = []
        for each in armed:
            try:
                where = self._dir_of(each)
                if where is not None:
                    self._report(each.pod, where.path)
            except Exception as error:  # a passing lack of descriptors, or a defect: no reason to leave a pod
                where = before.get(each.pod.uid)
                self._say(each.pod, f"could not be looked at: {type(error).__name__}: {error}")
            if where is not None:
                dirs.append(where)
        self._current = tuple(dirs)
        self._memory.write(armed)

    def _dir_of(self, armed: Armed) -> WorkerDir | None:
        """None: it can't be served, or not yet. Raises OSError where that can't be told just now."""
        pod = armed.pod
        path = podfs.volume_of(self._root, pod.uid)
        try:
            problem = podfs.problem_with(path, self._spool)
        except FileNotFoundError:
            return None  # the kubelet makes it before the containers, and removes it after them
        except safefs.Unsafe as error:
            problem = str(error)
        if problem is not None:
            self._say(pod, f"can't be captured: {problem}")
            return None
        if armed.job is None:
            return None
        return WorkerDir(
            path=path,
            worker_path=labels.DIRECTORY,
            node=self._node,
            pod=pod.name,
            pod_uid=pod.uid,
            job=armed.job,
            limit_bytes=self._room(pod, path),
        )

    def _room(self, pod: Pod, path: Path) -> int | None:
        """What traces may still take in this pod's directory before the kubelet might evict it."""
        limits = [] if pod.limit_bytes is None else [int(pod.limit_bytes * SHARE_OF_LIMIT)]
        if pod.volume_limit_bytes is not None:
            limits.append(pod.volume_limit_bytes)
        if not limits:
            return None
        now = time.monotonic()
        counted_at, used = self._used.get(pod.uid, (-COUNT_EVERY_S, 0))
        if now - counted_at >= COUNT_EVERY_S:
            used = podfs.used_bytes(path)
            self._used[pod.uid] = (now, used)
        return max(0, min(limits) - used)

    def _report(self, pod: Pod, path: Path) -> None:
        if pod.uid in self._registered or not silent.overdue(pod, self._clock()):
            return
        if podfs.has_registration(path):
            self._registered.add(pod.uid)
            self._silent.pop(pod.uid, None)
        elif pod.uid not in self._silent:
            self._silent[pod.uid] = silent.why_silent(pod, self._clock(), prepared=podfs.was_prepared(path))
            log.warning("%s", self._silent[pod.uid])

    def _say(self, pod: Pod, what: str) -> None:
        if self._said.get(pod.uid) != what:
            self._said[pod.uid] = what
            log.warning("pod %s %s", pod, what)

    def _forget_but(self, uids: Iterable[str]) -> None:
        here = set(uids)
        self._registered &= here
        for uid in (self._used.keys() | self._said.keys() | self._silent.keys()) - here:
            self._used.pop(uid, None)
            self._said.pop(uid, None)
            self._silent.pop(uid, None)
