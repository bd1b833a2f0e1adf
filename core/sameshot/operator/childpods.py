"""What the operator needs to know about a coordinator's pod. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.kube import names


class PodFacts(msgspec.Struct, frozen=True):
    """`life` is of its process: another one has another. `note`: why it does not serve yet, in words."""

    life: str
    ip: str = ""
    port: int = names.COORDINATOR_PORT
    runs: bool = False
    ready: bool = False
    ended: bool = False
    deleting: bool = False
    note: str = ""


def facts_of(pod: Json) -> PodFacts:
    metadata, status = inside(pod, "metadata"), inside(pod, "status")
    states = [each for each in status.get("containerStatuses") or () if isinstance(each, dict)]
    restarts = sum(int(each.get("restartCount") or 0) for each in states)
    phase = str(status.get("phase") or "")
    return PodFacts(
        life=f"{metadata.get('uid')}/{restarts}",
        ip=str(status.get("podIP") or ""),
        port=_port(pod),
        runs=any(inside(each, "state", "running") or "running" in inside(each, "state") for each in states),
        ready=_condition(status, "Ready").get("status") == "True",
        ended=phase in ("Succeeded", "Failed"),
        deleting=metadata.get("deletionTimestamp") is not None,
        note=_note(phase, status, states),
    )


def _port(pod: Json) -> int:
    containers = inside(pod, "spec").get("containers") or [{}]
    ports = containers[0].get("ports") or [{}]
    port = ports[0].get("containerPort")
    return port if isinstance(port, int) else names.COORDINATOR_PORT


def _condition(status: Any, kind: str) -> Json:
    found = [each for each in status.get("conditions") or () if isinstance(each, dict) and each.get("type") == kind]
    return found[0] if found else {}


def _note(phase: str, status: Any, states: list[Json]) -> str:
    if phase in ("Succeeded", "Failed"):
        return f"Its pod has ended ({status.get('reason') or phase}: {status.get('message') or 'no more is known'})."
    for each in states:
        waiting = inside(each, "state", "waiting")
        if waiting.get("reason") and waiting["reason"] != "ContainerCreating":
            return f"Its container waits: {waiting['reason']}: {waiting.get('message') or ''}".rstrip(": ")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"Its pod has no node: {scheduled.get('message') or scheduled.get('reason') or ''}"
    return "Its pod starts."
