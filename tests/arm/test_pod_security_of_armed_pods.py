from __future__ import annotations

import copy
from typing import Any

import pytest
from arm_lab import container, fixture, template
from pod_security import violations

from sameshot.arm import arm_template
from sameshot.arm.kinds import arm_object

LOCKED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
RESTRICTED = template(
    container(securityContext=LOCKED), securityContext={"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 7}
)


def test_a_restricted_pod_stays_admissible_when_armed() -> None:
    assert violations(RESTRICTED, "restricted") == []
    assert violations(arm_template(RESTRICTED).template, "restricted") == []
    pod = fixture("pod")
    assert violations(pod, "restricted") == []
    assert violations(arm_object(pod).thing, "restricted") == []


@pytest.mark.parametrize("level", ["baseline", "restricted"])
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hostNetwork": True},
        {"securityContext": {"runAsUser": 0}},
        {"volumes": [{"name": "data", "hostPath": {"path": "/x"}}]},
    ],
)
def test_arming_adds_no_violation_to_any_pod(spec: dict[str, Any], level: str) -> None:
    plain = template(container(ports=[{"containerPort": 1, "hostPort": 1}]), **spec)
    assert violations(arm_template(plain).template, level) == violations(plain, level)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda pod: pod["spec"].update(hostPID=True), "hostPID"),
        (lambda pod: pod["spec"].update(volumes=[{"name": "x", "hostPath": {"path": "/"}}]), "volume x: hostPath"),
        (lambda pod: pod["spec"].update(volumes=[{"name": "x", "nfs": {}}]), "volume x: type"),
        (lambda pod: pod["spec"]["securityContext"].update(runAsUser=0), "pod: runAsUser 0"),
        (lambda pod: pod["spec"]["securityContext"].pop("seccompProfile"), "main: seccomp"),
        (lambda pod: pod["spec"]["containers"][0]["securityContext"].pop("runAsNonRoot"), "main: runAsNonRoot"),
        (lambda pod: pod["spec"]["containers"][0]["securityContext"].update(privileged=True), "main: privileged"),
        (
            lambda pod: pod["spec"]["containers"][0]["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
            "main: capabilities",
        ),
        (
            lambda pod: pod["spec"].update(initContainers=[{"name": "hook", "image": "x"}]),
            "hook: allowPrivilegeEscalation",
        ),
    ],
)
def test_the_check_itself_sees_what_it_is_for(change: Any, found: str) -> None:
    pod = copy.deepcopy(RESTRICTED)
    change(pod)
    assert found in violations(pod, "restricted")
