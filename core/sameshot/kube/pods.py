"""What a part needs to know about a pod, from the pod's own object as the API server gives it. Pure.

Pod, namespace, uid, labels and owner come from here and never from what a process in the pod wrote. The fields are
those of https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/; what is not read is ignored.
"""

from __future__ import annotations

import datetime
import re

import msgspec

from sameshot.arm import labels
from sameshot.arm.kinds import JOBSET_ATTEMPT
from sameshot.arm.quantity import quantity
from sameshot.arm.record import record_of
from sameshot.arm.values import NotArmable
from sameshot.kube import names

EPHEMERAL = "ephemeral-storage"
MAX_LOCAL_WORLD = 4096
MAX_WHY = 300  # characters of what the API says about a pod
MOST_BYTES = 2**63 - 1  # as with the server's own quantities
# A uid becomes a folder's name below the kubelet's root.
_UID = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,98}[0-9A-Za-z])?")


class _OwnerReference(msgspec.Struct, rename="camel"):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    namespace: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_OwnerReference] | None = None
    deletion_timestamp: str | None = None


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str
    resources: _Resources | None = None
    restart_policy: str | None = None


class _EmptyDir(msgspec.Struct, rename="camel"):
    medium: str | None = None
    size_limit: str | int | None = None


class _Volume(msgspec.Struct, rename="camel"):
    name: str
    empty_dir: _EmptyDir | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None


class _Running(msgspec.Struct, rename="camel"):
    started_at: str | None = None


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, rename="camel"):
    reason: str = ""
    exit_code: int = 0


class _State(msgspec.Struct):
    running: _Running | None = None
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, rename="camel"):
    name: str
    state: _State | None = None
    restart_count: int = 0


class Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class AnyObject(msgspec.Struct):
    """Any object of the API, as far as its owner goes."""

    metadata: Metadata


class PodObject(msgspec.Struct):
    """A pod as it comes from the API server, with the fields that are read here."""

    metadata: Metadata
    spec: _Spec
    status: Status = msgspec.field(default_factory=Status)


class Owner(msgspec.Struct, frozen=True):
    """The controller that made an object."""

    api_version: str
    kind: str
    name: str
    uid: str


class Pod(msgspec.Struct, frozen=True):
    """One armed pod. None stands for what is not known, or not limited.

    `container` is the one that arming chose, `local_world_size` the workers that it is to start, `started_at_s` (epoch)
    since when it runs; `limit_bytes` is what all of the pod may store on its node before it is evicted,
    `volume_limit_bytes` what may be in the directory that traces are written to. `phase` is the API's, `why` says in
    the API's own words why it is not (or no longer) running; empty: nothing was said.
    """

    namespace: str
    name: str
    uid: str
    node: str | None = None
    owner: Owner | None = None
    attempt: int = 0
    ended: bool = False  # it will not run again, or is being deleted
    container: str = "main"
    local_world_size: int | None = None
    started_at_s: float | None = None
    restarts: int = 0
    limit_bytes: int | None = None
    volume_limit_bytes: int | None = None
    phase: str = ""
    deleting: bool = False
    why: str = ""
    armed: bool = True  # False: only its label asks for it (`unarmed_of`)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_of(found: PodObject) -> Pod | None:
    """What a part needs of an armed pod; None for any other pod, whatever its labels ask for.

    Raises ValueError for a pod that no API server would give.
    """
    meta, spec = found.metadata, found.spec
    annotations = meta.annotations or {}
    volume = next((each for each in spec.volumes or () if each.name == labels.VOLUME), None)
    if labels.ARMED not in annotations or volume is None or volume.empty_dir is None or volume.empty_dir.medium:
        return None  # a directory in memory is not on the node's disk, and counts against the container
    if not _UID.fullmatch(meta.uid):
        raise ValueError(f"pod uid {meta.uid[:60]!r}")
    container, size = _expected(annotations, spec)
    status = next((one for one in found.status.container_statuses or () if one.name == container), None)
    running = status.state.running if status is not None and status.state is not None else None
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=spec.node_name,
        owner=controller_of(meta),
        attempt=_attempt(meta.labels or {}),
        ended=meta.deletion_timestamp is not None or found.status.phase in names.POD_OVER,
        container=container,
        local_world_size=size,
        started_at_s=_seconds(running.started_at) if running is not None and running.started_at else None,
        restarts=0 if status is None else status.restart_count,
        limit_bytes=_limit(spec),
        volume_limit_bytes=_amount(volume.empty_dir.size_limit),
        phase=found.status.phase,
        deleting=meta.deletion_timestamp is not None,
        why=why_of(found.status),
    )


def unarmed_of(found: PodObject) -> Pod:
    """A pod that `pod_of` says None of: what can be told of it all the same, to say why it can't be captured."""
    meta = found.metadata
    said = (meta.annotations or {}).get(labels.NOT_ARMED, "")
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=found.spec.node_name,
        owner=controller_of(meta),
        attempt=_attempt(meta.labels or {}),
        ended=meta.deletion_timestamp is not None or found.status.phase in names.POD_OVER,
        phase=found.status.phase,
        deleting=meta.deletion_timestamp is not None,
        why=said[:MAX_WHY] or why_of(found.status),
        armed=False,
    )


def why_of(status: Status) -> str:
    """The API's own words, the most particular first: an eviction, a lack of room, an image that does not come."""
    conditions = status.conditions or ()
    for each in conditions:  # https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
        if each.type == "DisruptionTarget" and each.status == "True":
            return _joined(status.reason or each.reason, status.message or each.message)
    if status.reason or status.message:
        return _joined(status.reason, status.message)
    for each in conditions:
        if each.type == "PodScheduled" and each.status == "False":
            return _joined(each.reason, each.message)
    for one in status.container_statuses or ():
        if one.state is not None and one.state.waiting is not None and one.state.waiting.reason:
            return _joined(one.state.waiting.reason, one.state.waiting.message)
    for one in status.container_statuses or ():
        if one.state is not None and (end := one.state.terminated) is not None and (end.reason or end.exit_code):
            return _joined(end.reason, f"container {one.name} ended with {end.exit_code}")
    return ""


def _joined(reason: str, message: str) -> str:
    return ": ".join(each for each in (reason, message.strip().rstrip(".")) if each)[:MAX_WHY]


def controller_of(metadata: Metadata) -> Owner | None:
    """The controlling owner of any object; None: nobody made it."""
    for one in metadata.owner_references or ():
        if one.controller:
            return Owner(one.api_version, one.kind, one.name, one.uid)
    return None


def _expected(annotations: dict[str, str], spec: _Spec) -> tuple[str, int | None]:
    """(the container that trains, workers that it is to start), as arming recorded them."""
    try:
        record = record_of({"metadata": {"annotations": annotations}})
    except NotArmable:
        record = None  # of another version: still armed, and the workers will say who they are
    if record is None:
        return (spec.containers[0].name if spec.containers else "main"), None
    size = record.local_world_size  # what anybody may have written there
    return record.container, size if size is not None and 0 < size <= MAX_LOCAL_WORLD else None


def _attempt(found: dict[str, str]) -> int:
    text = found.get(JOBSET_ATTEMPT, "")  # other kinds count no attempts
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 9 else 0


def _limit(spec: _Spec) -> int | None:
    """What the kubelet evicts a pod for: more stored in all than its containers' limits in sum.

    A container without a limit adds nothing; without any limit there is none. Of init containers those that go on
    beside the others (restartPolicy: Always) add to the sum; the others end before, and count where one is larger.
    (kubelet, eviction manager: podEphemeralStorageLimitEviction.)
    """
    inits = spec.init_containers or ()
    side = [one for one in inits if one.restart_policy == "Always"]
    running = [amount for one in (*spec.containers, *side) if (amount := _ephemeral(one)) is not None]
    before = [amount for one in inits if one not in side and (amount := _ephemeral(one)) is not None]
    if not running and not before:
        return None
    return min(max(sum(running), *before) if before else sum(running), MOST_BYTES)


def _ephemeral(container: _Container) -> int | None:
    limits = container.resources.limits if container.resources is not None else None
    return None if limits is None else _amount(limits.get(EPHEMERAL))


def _amount(given: str | int | float | None) -> int | None:
    if given is None:
        return None
    try:
        amount = quantity(str(given))
    except NotArmable:
        return None
    return min(amount, MOST_BYTES) or None  # an emptyDir's sizeLimit of 0 means none


def _seconds(stamp: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
