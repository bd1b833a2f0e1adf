"""Which job a pod belongs to: the topmost controller above it that can be read.

A pod names only its own controller, and that may be a middleman: a Job made by a JobSet, a ReplicaSet of a Deployment.
Those that are middlemen at all stand in one table; any other kind is the job. A CronJob is no job: it makes them, one
after the other.
"""

from __future__ import annotations

import http.client
from collections import OrderedDict
from urllib.parse import quote

import msgspec

from sameshot.agent.kubeapi import Api, ApiError
from sameshot.agent.pods import AnyObject, Owner, Pod, controller_of
from sameshot.model import JobRef

MAX_REMEMBERED = 2_000
MAX_HEIGHT = 5
MAX_NAME = 253
# (group, kind) → the resource's name in the API's paths
_MIDDLEMEN = {
    ("batch", "Job"): "jobs",
    ("apps", "ReplicaSet"): "replicasets",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
}
_NO_JOB = {("batch", "CronJob")}


class Owners:
    """Remembers what it read: an object's controller never changes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._above: OrderedDict[str, Owner | None] = OrderedDict()

    def job_of(self, pod: Pod) -> JobRef:
        """The job attempt of this pod; a pod that nobody controls is a job of its own.

        Raises OSError or HTTPException where the API can't be asked: then it is not known, and to be asked again.
        """
        top = pod.owner
        if top is None or _key(top) in _NO_JOB:
            return JobRef(pod.namespace, pod.name, pod.uid, pod.attempt)
        for _ in range(MAX_HEIGHT):
            above = self._controller(pod.namespace, top)
            if above is None or _key(above) in _NO_JOB:
                break
            top = above
        return JobRef(pod.namespace, top.name, top.uid, pod.attempt)

    def _controller(self, namespace: str, owner: Owner) -> Owner | None:
        resource = _MIDDLEMEN.get(_key(owner))
        if resource is None:
            return None
        if owner.uid not in self._above:
            self._above[owner.uid] = self._read(_path(owner, namespace, resource), owner)
            while len(self._above) > MAX_REMEMBERED:
                self._above.popitem(last=False)
        return self._above[owner.uid]

    def _read(self, path: str | None, owner: Owner) -> Owner | None:
        if path is None:
            return None
        try:
            found = msgspec.json.decode(self._api.get(path), type=AnyObject)
        except ApiError as error:
            if error.status in (403, 404):  # not ours to read, or gone: the topmost one that can be known
                return None
            raise
        except msgspec.MsgspecError as error:
            raise http.client.HTTPException(f"{path} is not understood: {error}") from None
        if found.metadata.uid != owner.uid:
            return None  # a successor of that name
        return controller_of(found.metadata)


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
