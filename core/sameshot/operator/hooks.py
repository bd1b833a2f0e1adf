"""Keeps the hook's ConfigMap in each namespace that is labelled for arming.

Only the operator's own version is kept: an older one (or a newer, after a rollback) is overwritten. One that is none of
ours is left alone and told about. When a namespace loses its label, the one that we made goes once no armed pod runs
there any more; one that somebody applied by hand stays. All go with the CRD, which owns them.
"""

from __future__ import annotations

import enum
import logging
from typing import Any

import msgspec

from sameshot.arm import labels
from sameshot.arm.hookmap import hook_configmap
from sameshot.arm.values import Json, copied, inside
from sameshot.kube import names
from sameshot.kube.api import MERGE_PATCH, Api, ApiError
from sameshot.operator.armed import ArmedPods, InThread
from sameshot.operator.kept import kept
from sameshot.operator.mending import differs
from sameshot.operator.rights import CRD
from sameshot.operator.seen import Seen
from sameshot.operator.sources import Source

log = logging.getLogger(__name__)


class Hook(enum.Enum):
    FINE = enum.auto()  # as it should be; or none, where none should be
    MAKE = enum.auto()
    MEND = enum.auto()
    REMAKE = enum.auto()  # it can't be changed
    REMOVE = enum.auto()
    FOREIGN = enum.auto()  # somebody else's, in the way


def hook_of(namespace: str, crd_uid: str) -> Json:
    made: Json = copied(hook_configmap(namespace))
    made["metadata"]["labels"] |= names.MANAGED
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "name": CRD,
            "uid": crd_uid,
            "blockOwnerDeletion": False,
        }
    ]
    return made


def judge(want: Json, have: Json | None, *, labelled: bool, alive: int) -> Hook:
    """What to do in a namespace; `alive`: armed pods there. Pure."""
    if have is None:
        return Hook.MAKE if labelled else Hook.FINE
    marks = inside(have, "metadata", "labels")
    parts = hook_configmap()["metadata"]["labels"]
    if any(marks.get(key) != value for key, value in parts.items()):
        return Hook.FOREIGN if labelled else Hook.FINE
    if not labelled:
        ours = all(marks.get(key) == value for key, value in names.MANAGED.items())
        return Hook.REMOVE if ours and not alive else Hook.FINE
    wanted = {key: want[key] for key in ("metadata", "data")}
    if not differs(wanted, have) and set(inside(have, "data")) == set(want["data"]):
        return Hook.FINE
    return Hook.REMAKE if have.get("immutable") else Hook.MEND


class Hooks:
    def __init__(self, api: Api, seen: Seen, armed: ArmedPods, in_thread: InThread) -> None:
        self._api = api
        self._seen = seen
        self._armed = armed
        self._in_thread = in_thread
        self._crd_uid = ""
        self._foreign: set[str] = set()

    @property
    def foreign(self) -> int:
        """Namespaces in which somebody else's ConfigMap is in the way."""
        return len(self._foreign)

    def forget_crd(self) -> None:
        """It may have been deleted and made again."""
        self._crd_uid = ""

    async def work(self, namespace: str) -> None:
        """Raises what the API server does."""
        labelled = self._seen.get(Source.NAMESPACES, "", namespace)
        ends = labelled is not None and inside(labelled, "metadata").get("deletionTimestamp") is not None
        have = self._seen.get(Source.HOOKS, namespace, labels.HOOK_CONFIGMAP)
        if ends or (labelled is None and have is None):
            self._foreign.discard(namespace)
            return
        want = hook_of(namespace, await self._owner())
        found = judge(want, have, labelled=labelled is not None, alive=self._armed.alive_in(namespace))
        if found is Hook.FOREIGN:
            if namespace not in self._foreign:
                log.warning(
                    "namespace %s has a ConfigMap %s that is none of ours; it is left alone, and pods there start "
                    "without the hook until it is renamed or deleted", namespace, labels.HOOK_CONFIGMAP
                )  # fmt: skip
            self._foreign.add(namespace)
            return
        self._foreign.discard(namespace)
        if found is Hook.FINE:
            return
        log.info("hook in namespace %s: %s", namespace, found.name.lower())
        if found in (Hook.REMOVE, Hook.REMAKE):
            await self._remove(namespace, have or {})
        if found in (Hook.MAKE, Hook.REMAKE):
            # One that is there and was not seen yet (409) is seen until this is tried again.
            self._put(await self._in_thread(self._api.send, "POST", _path(namespace, named=False), want))
        if found is Hook.MEND:
            strange = set(inside(have, "data")) - set(want["data"])
            patch = {"metadata": want["metadata"], "data": want["data"] | dict.fromkeys(strange)}
            self._put(await self._in_thread(self._api.send, "PATCH", _path(namespace), patch, content_type=MERGE_PATCH))

    async def _remove(self, namespace: str, have: Json) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": inside(have, "metadata")["uid"]}}
        try:
            await self._in_thread(self._api.send, "DELETE", _path(namespace), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self._seen.drop(Source.HOOKS, (namespace, labels.HOOK_CONFIGMAP))

    async def _owner(self) -> str:
        if not self._crd_uid:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
            found = msgspec.json.decode(await self._in_thread(self._api.get, path), type=dict)
            self._crd_uid = str(inside(found, "metadata")["uid"])
        return self._crd_uid

    def _put(self, answer: Any) -> None:
        if (slim := kept(Source.HOOKS, answer)) is not None:
            self._seen.put(Source.HOOKS, slim)


def _path(namespace: str, *, named: bool = True) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps{f'/{labels.HOOK_CONFIGMAP}' if named else ''}"
