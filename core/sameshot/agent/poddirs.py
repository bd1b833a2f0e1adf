"""The armed pods of this node as worker directories: which pods there are (the API server's list), and where they lie.

Two things go on beside each other. A thread follows the API server's list of this node's pods, and keeps the last one
while the server is away. A task looks at the node's disk once a second: a pod counts as soon as its directory is there
and for as long as it is. The last list is also on disk, so that an agent that starts while the server is away serves
what its predecessor served.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from sameshot.agent import podfs, safefs, silent
from sameshot.agent.discovery import WorkerDir
from sameshot.agent.kubeapi import Api, ApiError, Change
from sameshot.agent.owners import Owners
from sameshot.agent.pods import Pod, PodObject, pod_of
from sameshot.arm import labels
from sameshot.model import JobRef

log = logging.getLogger(__name__)

PODS = "/api/v1/pods"
LOOK_S = 1.0
FIRST_LIST_WITHIN_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
BETWEEN_WATCHES_S = 0.1
ASK_AGAIN_S = 2.0  # for a job that is not known yet
COUNT_EVERY_S = 10.0  # what a limited pod has stored in its directory
# Of a pod's limit only so much is for traces: what else it stores (its writable layers, logs and other volumes) is not
# seen from here, and a pod above its limit is evicted.
SHARE_OF_LIMIT = 0.5

_TROUBLES = (OSError, http.client.HTTPException, msgspec.MsgspecError)


class Armed(msgspec.Struct, frozen=True):
    """An armed pod and its job; None: the API server could not be asked yet."""

    pod: Pod
    job: JobRef | None = None


class PodDirs:
    """`root` is the kubelet's; `memory` a file in the spool. `clock` is the epoch in seconds."""

    def __init__(
        self,
        api: Api,
        *,
        node: str,
        root: Path,
        spool: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._owners = Owners(api)
        self._node = node
        self._root = root
        self._spool = spool
        self._memory = spool / "pods.json"
        self._clock = clock
        self._lock = threading.Lock()
        self._armed: dict[str, Armed] = {}  # by pod uid
        self._current: tuple[WorkerDir, ...] = ()
        self._used: dict[str, tuple[float, int]] = {}  # pod uid → (when it was counted, bytes)
        self._said: dict[str, str] = {}  # pod uid → what was last said about it
        self.silent: dict[str, str] = {}  # pod uid → why no worker of it may ever have registered
        self._registered: set[str] = set()  # pod uids in which somebody registered once
        self._listed = threading.Event()
        self._ending = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._written = b""

    # --- WorkerDirs ------------------------------------------------------------------------------------------

    def current(self) -> Sequence[WorkerDir]:
        return self._current

    def unregistered(self, job: JobRef) -> Sequence[str]:
        with self._lock:
            mine = [armed.pod.uid for armed in self._armed.values() if armed.job == job]
        return [words for uid in mine if (words := self.silent.get(uid)) is not None]

    async def start(self) -> None:
        """Begin to follow the API server; where it does not answer, with what was known the last time."""
        await asyncio.to_thread(self._remember)
        threading.Thread(target=self._follow, name="sameshot-pods", daemon=True).start()
        threading.Thread(target=self._keep_resolving, name="sameshot-owners", daemon=True).start()
        if not await asyncio.to_thread(self._listed.wait, FIRST_LIST_WITHIN_S):
            log.warning("no list of pods yet node=%s; serving %d known before", self._node, len(self._armed))
        await asyncio.to_thread(self.look)
        self._task = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        self._ending.set()
        self._api.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- the list ---------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._ending.is_set():
            try:
                version = self._list()
                pause = FIRST_PAUSE_S
                while not self._ending.wait(BETWEEN_WATCHES_S):
                    version = self._watch(version)
            except ApiError as error:
                if error.expired and not self._ending.wait(BETWEEN_WATCHES_S):
                    continue  # what to follow from is too long ago: list again
                self._complain(error, pause)
            except _TROUBLES as error:
                self._complain(error, pause)
            except Exception:
                log.exception("following the API server failed; begun again")
            self._ending.wait(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _complain(self, error: Exception, pause: float) -> None:
        if not self._ending.is_set():
            log.warning(
                "the API server can't be asked why=%r; the last list is kept, again in %.1f s", str(error), pause
            )

    @property
    def _query(self) -> dict[str, str]:
        return {
            "fieldSelector": f"spec.nodeName={self._node}",
            "labelSelector": f"{labels.ARM_LABEL}={labels.ENABLED}",
        }

    def _list(self) -> str:
        listed = self._api.list(PODS, self._query)
        pods = [pod for raw in listed.items if (pod := self._understood(raw)) is not None]
        armed = {pod.uid: self._with_job(pod) for pod in pods}
        with self._lock:
            self._armed = armed
        self._listed.set()
        return listed.version

    def _watch(self, version: str) -> str:
        """Take in changes until the server ends this watch; the version to go on from."""
        for change in self._api.watch(PODS, self._query, version):
            version = _version(change) or version
            if change.kind != "BOOKMARK":
                self._take(change)
        return version

    def _take(self, change: Change) -> None:
        uid = msgspec.json.decode(change.object, type=_Versioned).metadata.uid
        pod = None if change.kind == "DELETED" else self._understood(change.object)
        armed = None if pod is None else self._with_job(pod)
        with self._lock:
            if armed is None:
                self._armed.pop(uid, None)
            else:
                self._armed[uid] = armed

    def _understood(self, raw: msgspec.Raw) -> Pod | None:
        try:
            pod = pod_of(msgspec.json.decode(raw, type=PodObject))
        except (msgspec.MsgspecError, ValueError) as error:
            log.warning("a pod was not understood why=%r", str(error)[:300])
            return None
        # The server was asked for our own node's pods only; it is checked all the same.
        return pod if pod is not None and pod.node == self._node else None

    def _with_job(self, pod: Pod) -> Armed:
        with self._lock:
            known = self._armed.get(pod.uid)
        if known is not None and known.job is not None and known.pod.owner == pod.owner:
            return Armed(pod, known.job)
        try:
            return Armed(pod, self._owners.job_of(pod))
        except _TROUBLES as error:
            log.warning("job of pod %s not known yet why=%r", pod, str(error))
            return Armed(pod)

    def _keep_resolving(self) -> None:
        """Ask again for jobs that are not known: beside the looks at the disk, which must not wait for the server."""
        while not self._ending.wait(ASK_AGAIN_S):
            with self._lock:
                unknown = [each for each in self._armed.values() if each.job is None]
            for each in unknown:
                resolved = self._with_job(each.pod)
                with self._lock:
                    if self._armed.get(each.pod.uid) is each:
                        self._armed[each.pod.uid] = resolved

    # --- the disk ---------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self.look)
            except Exception:
                log.exception("a look at the pods failed; the next one follows")

    def look(self) -> None:
        """One look at the disk. Blocks for a moment, and never on the API server."""
        with self._lock:
            armed = list(self._armed.values())
        self._forget(each.pod.uid for each in armed)
        dirs = []
        for each in armed:
            where = self._dir_of(each)
            if where is not None:
                dirs.append(where)
                self._report(each.pod, where.path)
        self._current = tuple(dirs)
        self._write_down(armed)

    def _dir_of(self, armed: Armed) -> WorkerDir | None:
        pod = armed.pod
        path = podfs.volume_of(self._root, pod.uid)
        try:
            problem = podfs.problem_with(path, self._spool)
        except FileNotFoundError:
            return None  # the kubelet makes it before the containers, and removes it after them
        except (OSError, safefs.Unsafe) as error:
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
            self.silent.pop(pod.uid, None)
        elif pod.uid not in self.silent:
            self.silent[pod.uid] = silent.why_silent(pod, self._clock(), prepared=podfs.was_prepared(path))
            log.warning("%s", self.silent[pod.uid])

    def _say(self, pod: Pod, what: str) -> None:
        if self._said.get(pod.uid) != what:
            self._said[pod.uid] = what
            log.warning("pod %s %s", pod, what)

    def _forget(self, uids: Iterable[str]) -> None:
        here = set(uids)
        self._registered &= here
        for known in (self._used, self._said, self.silent):
            for uid in [uid for uid in known if uid not in here]:
                known.pop(uid, None)

    # --- what a restart needs ---------------------------------------------------------------------------------

    def _remember(self) -> None:
        try:
            data = self._memory.read_bytes()
            known = msgspec.json.decode(data, type=list[Armed])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("list of pods unreadable path=%s why=%r", self._memory, str(error))
            return
        with self._lock:
            self._armed = {each.pod.uid: each for each in known}

    def _write_down(self, armed: Sequence[Armed]) -> None:
        data = msgspec.json.encode(armed)
        if data == self._written:
            return
        with contextlib.suppress(OSError):  # a full disk costs a restart during an outage, nothing else
            safefs.write_atomically(self._memory, data, durable=False)
            self._written = data


class _VersionedMeta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _VersionedMeta


def _version(change: Change) -> str:
    return msgspec.json.decode(change.object, type=_Versioned).metadata.resource_version
