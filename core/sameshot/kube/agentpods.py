"""The node agents of a cluster by their pods: which one serves a node now, and if none does, why not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec

from sameshot.kube import names
from sameshot.kube.api import Api
from sameshot.kube.deep import decoded
from sameshot.kube.follow import Follower
from sameshot.kube.pods import Condition, why_of
from sameshot.kube.pods import Metadata as _Metadata
from sameshot.kube.pods import Status as _Status

log = logging.getLogger(__name__)


class AgentPod(msgspec.Struct, frozen=True):
    """One agent's pod. `ip` is empty where it has none (yet), `created` is RFC 3339; `why` is the API's own words."""

    name: str
    uid: str
    node: str
    ip: str = ""
    phase: str = ""
    ready: bool = False
    deleting: bool = False
    created: str = ""
    why: str = ""

    @property
    def callable(self) -> bool:
        """Something may listen at its address; not ready is no proof that it does not."""
        return bool(self.ip) and self.phase == "Running"

    @property
    def trouble(self) -> str:
        """What is wrong with it, in words; empty: nothing."""
        why = f" ({self.why})" if self.why else ""
        if self.deleting:
            return f"its pod {self.name} is Terminating{why}"
        if self.phase != "Running":
            return f"its pod {self.name} is {self.phase or 'of no phase'}{why}"
        if not self.ip:
            return f"its pod {self.name} has no address yet{why}"
        return "" if self.ready else f"its pod {self.name} is not Ready{why}"

    @property
    def precedence(self) -> tuple[bool, bool, bool, str, str]:
        """Of two on one node the larger one serves it: the newest of those that are ready."""
        return self.callable, self.ready, not self.deleting, self.created, self.uid


class AgentPods:
    """Follows them in one thread; while the API server is away the last list holds."""

    def __init__(self, api: Api, namespace: str = names.AGENTS_NAMESPACE) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, AgentPod] = {}  # by uid
        self._best: dict[str, AgentPod] | None = None  # by node; None: to be found out anew
        self._follower: Follower[AgentPod] = Follower(
            api,
            names.pods_path(namespace),
            {"labelSelector": names.AGENT_SELECTOR},
            understand=_understood,
            replace=self._replace,
            take=self._take,
            name="sameshot-agents",
        )

    def start(self, within_s: float) -> bool:
        """Begin to follow; whether the server has answered within that time."""
        return self._follower.start(within_s)

    def close(self) -> None:
        self._follower.close()

    @property
    def listed(self) -> bool:
        """Whether the server has told of all of them, be it long ago."""
        return self._follower.listed

    @property
    def trouble(self) -> str:
        """Why the server does not tell what changes now; empty: it does."""
        return self._follower.trouble

    def by_node(self) -> dict[str, AgentPod]:
        """The one that serves each node, or would. Not to be changed."""
        with self._lock:
            if self._best is None:
                self._best = {}
                for pod in self._pods.values():
                    if pod.node not in self._best or self._best[pod.node].precedence < pod.precedence:
                        self._best[pod.node] = pod
            return self._best

    def _replace(self, found: Sequence[AgentPod]) -> None:
        with self._lock:
            self._pods, self._best = {pod.uid: pod for pod in found}, None

    def _take(self, kind: str, uid: str, pod: AgentPod | None) -> None:
        with self._lock:
            self._best = None
            if kind == "DELETED" or pod is None:
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = pod


class _Meta(_Metadata, rename="camel"):
    creation_timestamp: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None


class _AgentStatus(_Status, rename="camel"):
    pod_ip: str = msgspec.field(name="podIP", default="")


class _AgentObject(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _AgentStatus = msgspec.field(default_factory=_AgentStatus)


def _understood(raw: msgspec.Raw) -> AgentPod | None:
    """None: it is on no node yet, so it serves none."""
    try:
        found = decoded(raw, _AgentObject)
    except msgspec.MsgspecError as error:
        log.warning("an agent's pod was not understood why=%r", str(error)[:300])
        return None
    meta, status = found.metadata, found.status
    if not found.spec.node_name:
        return None
    return AgentPod(
        name=meta.name,
        uid=meta.uid,
        node=found.spec.node_name,
        ip=status.pod_ip,
        phase=status.phase,
        ready=any(map(_is_ready, status.conditions or ())),
        deleting=meta.deletion_timestamp is not None,
        created=meta.creation_timestamp,
        why=why_of(status),
    )


def _is_ready(condition: Condition) -> bool:
    return condition.type == "Ready" and condition.status == "True"
