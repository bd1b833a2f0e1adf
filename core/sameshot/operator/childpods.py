"""What the operator needs to know about a coordinator's pod. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.kube import names
from sameshot.operator.coordinatorpod import CONTAINER, GRACE_S
from sameshot.operator.objects import PORT, named


class PodFacts(msgspec.Struct, frozen=True):
    """`life` is of its process: another one has another. `note`: why it does not serve yet, in words. `grace_s`: so
    long it has to end, if it is being deleted. `cut_off`: its node tells nothing any more."""

    life: str
    ip: str = ""
    port: int = names.COORDINATOR_PORT
    runs: bool = False
    ready: bool = False
    ended: bool = False
    deleting: bool = False
    grace_s: float = 0.0
    node: str = ""
    cut_off: bool = False
    note: str = ""


def facts_of(pod: Json) -> PodFacts:
    metadata, status = inside(pod, "metadata"), inside(pod, "status")
    states = [each for each in status.get("containerStatuses") or () if isinstance(each, dict)]
    own = named(states, CONTAINER)  # others may have been put beside it
    phase = str(status.get("phase") or "")
    deleted, node = metadata.get("deletionTimestamp"), str(inside(pod, "spec").get("nodeName") or "")
    facts = PodFacts(
        life=f"{metadata.get('uid')}/{int(own.get('restartCount') or 0)}",
        ip=str(status.get("podIP") or ""),
        port=_port(pod),
        runs="running" in inside(own, "state"),
        ready=_condition(status, "Ready").get("status") == "True",
        ended=phase in names.POD_OVER,
        deleting=deleted is not None,
        grace_s=_seconds(metadata.get("deletionGracePeriodSeconds")),
        node=node,
        cut_off=_cut_off(pod),
    )
    return msgspec.structs.replace(facts, note=_note(facts, pod, phase, states))


def _port(pod: Json) -> int:
    port = named(named(inside(pod, "spec").get("containers"), CONTAINER).get("ports"), PORT).get("containerPort")
    return port if isinstance(port, int) else names.COORDINATOR_PORT


def _condition(status: Any, kind: str) -> Json:
    found = [each for each in status.get("conditions") or () if isinstance(each, dict) and each.get("type") == kind]
    return found[0] if found else {}


def _seconds(grace: object) -> float:
    return float(grace) if isinstance(grace, int) and grace >= 0 else float(GRACE_S)


def _cut_off(pod: Json) -> bool:
    """Where a node is silent its pods are said not to be ready by somebody else, who leaves all else as it was.
    (https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller)"""
    status = inside(pod, "status")
    if inside(pod, "spec").get("readinessGates") or status.get("phase") != "Running":
        return False
    ready, containers = (_condition(status, kind).get("status") for kind in ("Ready", "ContainersReady"))
    return ready in ("False", "Unknown") and containers == "True"


def _note(facts: PodFacts, pod: Json, phase: str, states: list[Json]) -> str:
    status = inside(pod, "status")
    if facts.deleting:
        held = ", ".join(map(str, inside(pod, "metadata").get("finalizers") or ()))
        return (
            f"Its pod is being deleted, and is to be gone by {inside(pod, 'metadata').get('deletionTimestamp')}"
            + (f"; finalizers that others put there hold it: {held}" if held else "")
            + f". If its node {facts.node} is lost, it is removed by force some minutes after that."
        )
    if facts.ended:
        why = f"{status.get('reason') or phase}: {status.get('message') or 'no more is known'}"
        ran = any("terminated" in inside(each, state) for each in states for state in ("state", "lastState"))
        if phase == "Failed" and status.get("reason") and not ran:
            return f"Its node {facts.node} rejects its pod ({why})."
        return f"Its pod has ended ({why})."
    if facts.cut_off:
        meta = inside(pod, "metadata")
        return (
            f"Its node {facts.node} tells nothing any more. After some minutes Kubernetes deletes the pods there, and "
            "then it is made anew on another one. If you know that the node is off, sooner: kubectl delete pod "
            f"--force --grace-period=0 -n {meta.get('namespace')} {meta.get('name')}"
        )
    for each in states:
        waiting = inside(each, "state", "waiting")
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            which = "Its container" if each.get("name") == CONTAINER else f"A container beside it, {each.get('name')},"
            return f"{which} waits: {waiting['reason']}: {waiting.get('message') or ''}".rstrip(": ")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"Its pod has no node: {scheduled.get('message') or scheduled.get('reason') or ''}"
    return "Its container runs, and does not answer yet." if facts.runs else "Its pod starts."
