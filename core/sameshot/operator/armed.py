"""The armed pods by the job that they belong to. Only used in the event loop's thread, but for asking for owners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.kube.api import TROUBLES
from sameshot.kube.owners import Owners, Whose
from sameshot.kube.pods import Owner, Pod
from sameshot.model import JobRef

log = logging.getLogger(__name__)

JobKey = tuple[str, str]
"""Namespace and uid of a job, all attempts of it together."""

InThread = Callable[..., Awaitable[Any]]
"""Runs a function that blocks, with its arguments."""


class ArmedPod(msgspec.Struct, frozen=True):
    """`top` is the job's own object as a reference; None: the pod itself. `final`: see `Whose`."""

    pod: Pod
    series: str = ""
    job: JobRef | None = None
    top: Owner | None = None
    final: bool = False
    was: frozenset[str] = frozenset()  # uids of what was taken for the job before


def key_of(job: JobRef) -> JobKey:
    return job.namespace, job.uid


class ArmedPods:
    """`changed` is called with the key of each job that something happened to."""

    def __init__(
        self,
        owners: Owners,
        in_thread: InThread,
        changed: Callable[[JobKey], None],
        *,
        again_s: float,
    ) -> None:
        self._owners = owners
        self._in_thread = in_thread
        self._changed = changed
        self._again_s = again_s
        self._pods: dict[str, ArmedPod] = {}  # by uid
        self._of: dict[JobKey, dict[str, ArmedPod]] = {}
        self._below: dict[JobKey, set[str]] = {}  # pods by what was, or might have been, taken for their job
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._untried: set[str] = set()
        self._tried = asyncio.Event()

    def of(self, key: JobKey) -> Collection[ArmedPod]:
        return self._of.get(key, {}).values()

    def sure(self, key: JobKey) -> bool:
        """Whether of one of its pods it is known that this is the job."""
        return any(each.final for each in self.of(key))

    def moved(self, key: JobKey) -> bool:
        """Whether this was only on the way up to the job of some pod."""
        pods = (self._pods[uid] for uid in self._below.get(key, ()))
        return any(each.final and each.job is not None and key_of(each.job) != key for each in pods)

    def keys(self) -> Iterable[JobKey]:
        return list(self._of)

    @property
    def count(self) -> int:
        return len(self._pods)

    @property
    def unknown(self) -> int:
        """Pods whose job could not be told yet."""
        return sum(each.job is None for each in self._pods.values())

    def alive_in(self, namespace: str) -> int:
        return sum(each.pod.namespace == namespace and not each.pod.ended for each in self._pods.values())

    def take(self, before: Json | None, after: Json | None) -> None:
        """A pod was seen (as it is `kept`), or is gone."""
        old = str(inside(before or {}, "metadata").get("uid") or "")
        pod: Pod | None = None if after is None else after.get("pod")
        if pod is None or pod.uid != old:
            self._forget(old)
        if pod is None:
            return
        known = self._pods.get(pod.uid)
        series = str((after or {}).get("series") or "")
        if known is not None and known.pod.owner == pod.owner and known.pod.attempt == pod.attempt:
            self._set(msgspec.structs.replace(known, pod=pod, series=series))
        else:
            self._forget(pod.uid)
            self._set(ArmedPod(pod, series))
        if not self._pods[pod.uid].final:
            self._ask(pod.uid)

    async def tried(self) -> None:
        """Until each pod's owner was asked for once."""
        while self._untried:
            self._tried.clear()
            await self._tried.wait()

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def _set(self, armed: ArmedPod) -> None:
        uid = armed.pod.uid
        before = self._pods.get(uid)
        if before == armed:
            return
        for each in (before, armed):
            if each is not None and each.job is not None:
                self._of.get(key_of(each.job), {}).pop(uid, None)
        self._pods[uid] = armed
        for key in self._keys_of(armed):
            self._below.setdefault(key, set()).add(uid)
        if armed.job is not None:
            self._of.setdefault(key_of(armed.job), {})[uid] = armed
        for each in (before, armed):
            self._tell(each)

    def _forget(self, uid: str) -> None:
        before = self._pods.pop(uid, None)
        if before is not None and before.job is not None:
            self._of.get(key_of(before.job), {}).pop(uid, None)
        for key in () if before is None else self._keys_of(before):
            self._below.get(key, set()).discard(uid)
            if not self._below.get(key):
                self._below.pop(key, None)
        self._tell(before)

    def _keys_of(self, armed: ArmedPod) -> set[JobKey]:
        uids = {*armed.was, *(each.uid for each in (armed.job, armed.pod.owner) if each is not None)}
        return {(armed.pod.namespace, uid) for uid in uids}

    def _tell(self, armed: ArmedPod | None) -> None:
        if armed is not None and armed.job is not None:
            key = key_of(armed.job)
            if not self._of.get(key):
                self._of.pop(key, None)
            self._changed(key)

    def _ask(self, uid: str) -> None:
        if uid not in self._asking:
            self._untried.add(uid)
            task = asyncio.create_task(self._resolve(uid))
            self._asking[uid] = task
            task.add_done_callback(lambda _: self._end_asking(uid))

    def _end_asking(self, uid: str) -> None:
        self._asking.pop(uid, None)
        self._try(uid)

    def _try(self, uid: str) -> None:
        self._untried.discard(uid)
        self._tried.set()

    async def _resolve(self, uid: str) -> None:
        """Until it is final, or the pod is gone or has ended."""
        while (armed := self._pods.get(uid)) is not None:
            found: tuple[Whose, Owner | None] | None = None
            try:
                found = await self._in_thread(self._owners.top_of, armed.pod)
            except TROUBLES as error:
                log.warning("job of pod %s not known yet why=%r", armed.pod, str(error)[:300])
            except Exception as error:  # its owner is whatever its maker wrote: the others are served all the same
                log.warning("job of pod %s can't be told why=%r", armed.pod, f"{type(error).__name__}: {error}"[:300])
            now = self._pods.get(uid)
            if now is None:
                return
            if found is not None and now.pod.owner == armed.pod.owner and now.pod.attempt == armed.pod.attempt:
                whose, top = found
                was = now.was if now.job is None else now.was | {now.job.uid}
                self._set(msgspec.structs.replace(now, job=whose.job, top=top, final=whose.final, was=was))
                if whose.final:
                    return
            if now.pod.ended:
                return
            self._try(uid)
            await asyncio.sleep(self._again_s)
