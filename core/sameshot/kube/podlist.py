"""The armed pods of a node or of a namespace, and whose they are, as the API server last said.

One thread lists and follows them, and another one asks whose they are: an answer that does not come keeps no pod from
being seen. While the server is away the last list holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from sameshot.kube import names
from sameshot.kube.api import Api
from sameshot.kube.deep import decoded
from sameshot.kube.follow import Follower
from sameshot.kube.owners import Owners, Whose
from sameshot.kube.pods import Pod, PodObject, pod_of, unarmed_of
from sameshot.model import JobRef

log = logging.getLogger(__name__)

ASK_AGAIN_S = 2.0  # for a job that is not known yet; owners that can't be read or fail are asked for at their own pace

ASKED_WITHIN_S = 20.0  # then jobs that are not known yet may stay so for long: an owner's answer does not come


class Armed(msgspec.Struct, frozen=True):
    """An armed pod and its job; None: the API server could not be asked yet. Not `final`: asked again (`Whose`)."""

    pod: Pod
    job: JobRef | None = None
    final: bool = False


class PodList:
    """The armed pods of one node, or of one namespace (None: of all). `known` is what to begin with.

    `unarmed`: also those that have the label and were not armed, for whoever says why a rank is missing.
    """

    def __init__(
        self,
        api: Api,
        *,
        node: str | None = None,
        namespace: str | None = None,
        known: Iterable[Armed] = (),
        unarmed: bool = False,
    ) -> None:
        self._unarmed = unarmed
        self._children_of: str | None = None
        self._owners = Owners(api)
        self._node = node
        self._lock = threading.Lock()
        self._armed: dict[str, Armed] = {
            each.pod.uid: each if each.final else Armed(each.pod) for each in known
        }  # by pod uid
        self._news = threading.Event()  # pods whose jobs are to be asked for
        self._told_at: float | None = None  # when all pods were told first (monotonic)
        self._tried = threading.Event()  # to tell the jobs of all of these
        self._why = ""  # some jobs are not known, as was said last
        query = {"labelSelector": names.ARMED_SELECTOR}
        self._follower: Follower[Pod] = Follower(
            api,
            names.pods_path(namespace),
            query if node is None else {"fieldSelector": f"spec.nodeName={node}", **query},
            understand=self._understood,
            replace=self._replace,
            take=self._take,
            name="sameshot-pods",
        )

    def only_children_of(self, uid: str) -> None:
        """From the next list on: leave out pods that this very object does not control, without a look at theirs."""
        self._children_of = uid

    def start(self, within_s: float) -> bool:
        """Begin to follow; whether the server has told of all pods within that time, by which their jobs are known if
        that can be had."""
        ends = time.monotonic() + within_s
        threading.Thread(target=self._keep_resolving, name="sameshot-owners", daemon=True).start()
        listed = self._follower.start(within_s)
        if listed:
            self._tried.wait(max(ends - time.monotonic(), 0.0))
        return listed

    def close(self) -> None:
        self._follower.close()
        self._news.set()

    @property
    def listed(self) -> bool:
        """Whether the server has told of all pods, be it long ago."""
        return self._follower.listed

    @property
    def asked(self) -> bool:
        """Whether the jobs of those that were told first have been asked for, with or without an answer."""
        told_at = self._told_at
        return self._tried.is_set() or (told_at is not None and time.monotonic() > told_at + ASKED_WITHIN_S)

    @property
    def heard_at(self) -> float | None:
        """When the server was last heard of (monotonic)."""
        return self._follower.heard_at

    @property
    def trouble(self) -> str:
        """Why the server does not tell what changes now; empty: it does."""
        return self._follower.trouble

    def armed(self) -> list[Armed]:
        with self._lock:
            return list(self._armed.values())

    # --- what the server says ---------------------------------------------------------------------------------

    def _replace(self, pods: Sequence[Pod]) -> None:
        with self._lock:
            self._armed = {pod.uid: self._as_known(pod) for pod in pods}
            if self._told_at is None:
                self._told_at = time.monotonic()
        self._news.set()

    def _take(self, kind: str, uid: str, pod: Pod | None) -> None:
        with self._lock:
            if kind == "DELETED" or pod is None:
                self._armed.pop(uid, None)
                return
            self._armed[uid] = self._as_known(pod)
        self._news.set()

    def _as_known(self, pod: Pod) -> Armed:
        """Under the lock."""
        known = self._armed.get(pod.uid)
        if known is None or known.pod.owner != pod.owner:
            return Armed(pod)
        return Armed(pod, known.job, known.final)

    def _understood(self, raw: msgspec.Raw) -> Pod | None:
        try:
            found = decoded(raw, PodObject)
            pod = pod_of(found)
            if pod is None and self._unarmed:
                pod = unarmed_of(found)
        except Exception as error:  # whatever its maker wrote into it: the others are served all the same
            log.warning("a pod was not understood why=%r", f"{type(error).__name__}: {error}"[:300])
            return None
        if pod is not None and self._children_of not in (None, None if pod.owner is None else pod.owner.uid):
            return None
        # The server was asked for one node's pods only; it is checked all the same.
        return pod if pod is not None and self._node in (None, pod.node) else None

    # --- whose they are ---------------------------------------------------------------------------------------

    def _keep_resolving(self) -> None:
        while True:
            self._news.wait(ASK_AGAIN_S)
            self._news.clear()
            if self._follower.ending.is_set():
                return
            with self._lock:
                told = self._told_at is not None
            self._resolve()
            if told:
                self._tried.set()

    def _resolve(self) -> None:
        unknown, why = 0, ""
        for each in self.armed():
            if each.final or self._follower.ending.is_set():
                continue
            try:
                self._resolved(each, self._owners.job_of(each.pod))
            except Exception as error:  # its owner is whatever its maker wrote: the others are served all the same
                unknown, why = unknown + 1, why or f"pod {each.pod}: {type(error).__name__}: {error}"[:300]
        if why not in ("", self._why):
            log.warning("jobs of %d pods are not known yet why=%r", unknown, why)
        self._why = why

    def _resolved(self, before: Armed, whose: Whose) -> None:
        with self._lock:
            now = self._armed.get(before.pod.uid)
            if now is None or (now.pod.owner, now.pod.attempt) != (before.pod.owner, before.pod.attempt):
                return  # it is asked for as it is now
            self._armed[now.pod.uid] = Armed(now.pod, whose.job, whose.final)
        if before.job not in (None, whose.job):
            log.warning("job of pod %s is %s after all, not %s", now.pod, whose.job, before.job)
