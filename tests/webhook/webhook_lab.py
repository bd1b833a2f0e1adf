"""Reviews as an API server sends them, and what it does with the answers.

pod(…)                     a pod that asks for arming, as it is at admission (defaults filled in, no name yet)
review_of(pod, …)          its AdmissionReview, as bytes
response_in(answer)        the response, after the checks that an API server makes
applied(pod, response)     the pod after the patch, by a library that is not ours
armed(pod, options)        what `sameshot arm` would make of it
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import jsonpatch

from sameshot.arm.kinds import place_of_pod
from sameshot.arm.template import arm_template
from sameshot.arm.values import ArmOptions

Json = dict[str, Any]

NAME = "sameshot-webhook.sameshot-system.svc"


def pod(**changes: Any) -> Json:
    """`labels`, `annotations`, `metadata`, `spec` and `container` are merged into it; None takes a key out."""
    container = {
        "name": "trainer",
        "image": "registry.local/train:1",
        "command": ["torchrun", "--nproc-per-node", "2", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}},
        "volumeMounts": [
            {
                "name": "kube-api-access-x",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    } | changes.get("container", {})
    metadata = {
        "generateName": "bert-",
        "namespace": "ml",
        "creationTimestamp": None,
        "labels": {"sameshot.dev/arm": "enabled", "app": "bert"} | changes.get("labels", {}),
        "annotations": changes.get("annotations"),
    } | changes.get("metadata", {})
    spec = {
        "volumes": [{"name": "kube-api-access-x", "projected": {"sources": [], "defaultMode": 420}}],
        "containers": [_without_none(container)],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
    } | changes.get("spec", {})
    metadata["labels"] = _without_none(metadata["labels"])
    kept = {key: value for key, value in metadata.items() if value is not None or key == "creationTimestamp"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": _without_none(spec), "status": {}}


def _without_none(value: Json) -> Json:
    return {key: each for key, each in value.items() if each is not None}


def review_of(thing: Any, **request: Any) -> bytes:
    """The fields of a request that `request` gives replace those of the creation of a pod."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    whole = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "namespace": "ml",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:job-controller",
            "groups": ["system:authenticated"],
        },
        "object": thing,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    } | request
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": whole}).encode()


def response_in(answer: bytes, to: bytes) -> Json:
    """What an API server takes from it (apiserver, VerifyAdmissionResponse); AssertionError for what it refuses."""
    review = json.loads(answer)
    assert (review["kind"], review["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response: Json = review["response"]
    assert response["uid"] == json.loads(to)["request"]["uid"]
    assert set(response) <= {"uid", "allowed", "patch", "patchType", "warnings"}
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        assert patch_in(response), "an empty patch says nothing"
    else:
        assert "patchType" not in response
    warnings = response.get("warnings", [])
    assert sum(map(len, warnings)) <= 4096  # beyond that they are cut
    assert all(warning.isprintable() for warning in warnings)  # others are dropped
    return response


def patch_in(response: Json) -> list[Json]:
    found: list[Json] = json.loads(base64.b64decode(response.get("patch", "W10="), validate=True))
    return found


def applied(thing: Json, response: Json) -> Json:
    found: Json = jsonpatch.JsonPatch(patch_in(response)).apply(thing)
    return found


def armed(thing: Json, options: ArmOptions | None = None) -> Json:
    return arm_template(thing, options, place_of_pod(thing)).template
