"""The armed pods of a node or of a namespace, and whose they are, as the API server last said.

One thread lists and follows them, another asks again for jobs that could not be told. While the server is away the last
list holds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

import msgspec

from sameshot.kube import names
from sameshot.kube.api import TROUBLES, Api
from sameshot.kube.deep import decoded
from sameshot.kube.follow import Follower
from sameshot.kube.owners import Owners
from sameshot.kube.pods import Pod, PodObject, pod_of, unarmed_of
from sameshot.model import JobRef

log = logging.getLogger(__name__)

ASK_AGAIN_S = 2.0  # for a job that is not known yet; owners that can't be read are asked for at their own pace


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
        """Begin to follow; whether the server has answered within that time."""
        threading.Thread(target=self._keep_resolving, name="sameshot-owners", daemon=True).start()
        return self._follower.start(within_s)

    def close(self) -> None:
        self._follower.close()

    @property
    def listed(self) -> bool:
        """Whether the server has told of all pods, be it long ago."""
        return self._follower.listed

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
        armed = {pod.uid: self._with_job(pod) for pod in pods}
        with self._lock:
            self._armed = armed

    def _take(self, kind: str, uid: str, pod: Pod | None) -> None:
        armed = None if kind == "DELETED" or pod is None else self._with_job(pod)
        with self._lock:
            if armed is None:
                self._armed.pop(uid, None)
            else:
                self._armed[uid] = armed

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

    def _with_job(self, pod: Pod) -> Armed:
        with self._lock:
            known = self._armed.get(pod.uid)
        if known is None or known.pod.owner != pod.owner:
            known = None
        elif known.final:
            return Armed(pod, known.job, final=True)
        try:
            whose = self._owners.job_of(pod)
        except TROUBLES as error:
            log.warning("job of pod %s not known yet why=%r", pod, str(error))
        except Exception as error:  # its owner is whatever its maker wrote: the others are served all the same
            log.warning("job of pod %s can't be told why=%r", pod, f"{type(error).__name__}: {error}"[:300])
        else:
            if known is not None and known.job not in (None, whose.job):
                log.warning("job of pod %s is %s after all, not %s", pod, whose.job, known.job)
            return Armed(pod, whose.job, whose.final)
        return Armed(pod, None if known is None else known.job)

    def _keep_resolving(self) -> None:
        """Beside the other thread: a watch may be quiet for a minute."""
        while not self._follower.ending.wait(ASK_AGAIN_S):
            try:
                self._resolve()
            except Exception:
                log.exception("asking for jobs failed; begun again")

    def _resolve(self) -> None:
        for each in self.armed():
            if not each.final:
                resolved = self._with_job(each.pod)
                with self._lock:
                    if self._armed.get(each.pod.uid) is each:
                        self._armed[each.pod.uid] = resolved
