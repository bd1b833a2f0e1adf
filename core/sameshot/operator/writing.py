"""Writing what is ours. The answer is taken for seen at once; all raise what the API server does."""

from __future__ import annotations

import logging

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.kube.api import MERGE_PATCH, Api, ApiError
from sameshot.operator import objects
from sameshot.operator.armed import InThread
from sameshot.operator.kept import kept
from sameshot.operator.mending import to_mend
from sameshot.operator.objects import Kind
from sameshot.operator.seen import Seen, place_of
from sameshot.operator.sources import CHILDREN, Source

log = logging.getLogger(__name__)


class Writing:
    def __init__(self, api: Api, seen: Seen, in_thread: InThread) -> None:
        self._api = api
        self._seen = seen
        self._in_thread = in_thread

    async def create(self, kind: Kind, want: Json) -> None:
        namespace, name = place_of(want)
        try:
            made = await self.send("POST", objects.path(kind, namespace), want)
        except ApiError as error:
            if error.status != 409:
                raise
            # It is there, and was not seen: it lost its labels, or is seen in a moment, or is being deleted.
            marks = {"metadata": {"labels": want["metadata"]["labels"]}}
            await self.patch(kind, want, marks if kind is Kind.POD else to_mend(kind, want, {}) or marks)
            return
        log.info("%s %s/%s made", kind.value, namespace, name)
        self._put(CHILDREN[kind], made)

    async def patch(self, kind: Kind, want: Json, patch: Json) -> None:
        namespace, name = place_of(want)
        try:
            made = await self.send("PATCH", objects.path(kind, namespace, name), patch, MERGE_PATCH)
        except ApiError as error:
            if error.status == 404:
                self._seen.drop(CHILDREN[kind], (namespace, name))
            raise
        self._put(CHILDREN[kind], made)

    async def remove(self, kind: Kind, thing: Json, *, force: bool = False) -> None:
        """The very object that was seen; that there is none any more is as good. `force`: a pod whose kubelet is not
        waited for."""
        place, uid = place_of(thing), inside(thing, "metadata").get("uid")
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if force:
            body["gracePeriodSeconds"] = 0
        try:
            left = await self.send("DELETE", objects.path(kind, *place), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self._seen.drop(CHILDREN[kind], place, uid)
            return
        log.info("%s %s/%s removed", kind.value, *place)
        meta = inside(left, "metadata")
        waits = meta.get("finalizers") or (not force and meta.get("deletionGracePeriodSeconds") != 0)
        if kind is Kind.POD and meta.get("deletionTimestamp") and waits:
            self._put(CHILDREN[kind], left)  # its process ends, then it is gone
        else:
            self._seen.drop(CHILDREN[kind], place, uid)

    def _put(self, source: Source, thing: Json) -> None:
        if (slim := kept(source, thing)) is not None:
            self._seen.put(source, slim)

    def coordinator(self, thing: Json) -> None:
        """One was seen in an answer."""
        self._put(Source.COORDINATORS, thing)

    async def get(self, path: str) -> Json:
        found: Json = msgspec.json.decode(await self._in_thread(self._api.get, path), type=dict)
        return found

    async def send(self, method: str, path: str, body: object, content_type: str = "application/json") -> Json:
        answer = await self._in_thread(self._api.send, method, path, body, content_type=content_type)
        found: Json = msgspec.json.decode(answer, type=dict)
        return found
