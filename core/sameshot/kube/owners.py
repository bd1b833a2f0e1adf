"""Which job a pod belongs to: the topmost controller above it that can be read.

A pod names only its own controller, and that may be a middleman: a Job made by a JobSet, a ReplicaSet of a Deployment.
Those that are middlemen at all stand in one table; any other kind is the job. A CronJob is no job: it makes them, one
after the other.
"""

from __future__ import annotations

import http.client
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from sameshot.kube.api import TROUBLES, ApiError, Reader
from sameshot.kube.deep import decoded
from sameshot.kube.pods import AnyObject, Owner, Pod, controller_of
from sameshot.model import JobRef

log = logging.getLogger(__name__)

MAX_REMEMBERED = 2_000
UNREAD_FOR_S = 30.0  # then an owner that could not be read is asked for again
FAILED_FOR_S = 5.0  # the same where there was no answer: a hundred pods of one owner do not wait for it one by one
MAX_HEIGHT = 5
MAX_NAME = 253
# (group, kind) → the resource's name in the API's paths
_MIDDLEMEN = {
    ("batch", "Job"): "jobs",
    ("apps", "ReplicaSet"): "replicasets",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
}
_NO_JOB = {("batch", "CronJob")}


class Whose(msgspec.Struct, frozen=True):
    """A pod's job. Not `final`: an owner on the way up could not be read, and what is above it may be the job."""

    job: JobRef
    final: bool


class _Seen(msgspec.Struct, frozen=True):
    """What is above an owner. `until` (the clock's seconds): it could not be read, and is asked for again then.
    `trouble`: it is not even known whether it can be."""

    above: Owner | None
    until: float | None = None
    trouble: Exception | None = None


class Owners:
    """Remembers what it read: an object's controller never changes. What it could not read it asks for again.

    `clock` is any monotonic one, in seconds.
    """

    def __init__(self, api: Reader, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        # By all that a pod's maker wrote, and the namespace: a reference that was forged stands for itself alone.
        self._seen: OrderedDict[tuple[str, Owner], _Seen] = OrderedDict()

    def job_of(self, pod: Pod) -> Whose:
        """The job attempt of this pod; a pod that nobody controls is a job of its own.

        Raises OSError or HTTPException where the API can't be asked: then it is not known, and to be asked again; for
        some seconds the answer is the same without asking.
        """
        return self.top_of(pod)[0]

    def top_of(self, pod: Pod) -> tuple[Whose, Owner | None]:
        """The same, and the job's own object, as the one below it refers to it; None: the pod itself."""
        top, final = pod.owner, True
        if top is None or _key(top) in _NO_JOB:
            return Whose(JobRef(pod.namespace, pod.name, pod.uid, pod.attempt), final), None
        for _ in range(MAX_HEIGHT):
            seen = self._look(pod.namespace, top)
            final = seen.until is None
            if seen.above is None or _key(seen.above) in _NO_JOB:
                break
            top = seen.above
        return Whose(JobRef(pod.namespace, top.name, top.uid, pod.attempt), final), top

    def _look(self, namespace: str, owner: Owner) -> _Seen:
        resource = _MIDDLEMEN.get(_key(owner))
        path = None if resource is None else _path(owner, namespace, resource)
        if path is None:
            return _Seen(None)
        before = self._seen.get((namespace, owner))
        if before is None or (before.until is not None and self._clock() >= before.until):
            try:
                before = self._read(path, owner, said=before is not None and before.trouble is None)
            except TROUBLES as error:
                before = _Seen(None, self._clock() + FAILED_FOR_S, error)
            self._seen[namespace, owner] = before
            while len(self._seen) > MAX_REMEMBERED:
                self._seen.popitem(last=False)
        if before.trouble is not None:
            raise before.trouble.with_traceback(None)
        return before

    def _read(self, path: str, owner: Owner, *, said: bool) -> _Seen:
        try:
            found = decoded(self._api.get(path), AnyObject)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            why = str(error)  # not ours to read (yet), or gone: the topmost one that can be known, for now
        except msgspec.MsgspecError as error:
            raise http.client.HTTPException(f"{path} is not understood: {error}") from None
        else:
            if found.metadata.uid == owner.uid:
                return _Seen(controller_of(found.metadata))
            why = "another object has that name"
        if not said:
            log.warning(
                "owner unread path=%s why=%r; taken for the job, asked again every %.0f s", path, why, UNREAD_FOR_S
            )
        return _Seen(None, until=self._clock() + UNREAD_FOR_S)


def _path(owner: Owner, namespace: str, resource: str) -> str | None:
    """Where the owner is read; None: no object can be called so.

    It is whatever the pod's maker wrote, and asked for with our token, so each piece must stay one piece of the path.
    Escaping alone does not see to that, as a server takes a path apart after unescaping it. (What a name may not be:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#path-segment-names.)
    """
    group, _, version = owner.api_version.partition("/")
    for piece in (version, owner.name):
        if piece in ("", ".", "..") or len(piece) > MAX_NAME or "/" in piece or "%" in piece:
            return None
    return "".join(
        f"/{quote(each, safe='')}" for each in ("apis", group, version, "namespaces", namespace, resource, owner.name)
    )


def _key(owner: Owner) -> tuple[str, str]:
    return owner.api_version.partition("/")[0], owner.kind
