"""One AdmissionReview (admission.k8s.io/v1) in, its answer out.

`allowed` is always true: a capture is never worth a pod that does not start. A pod that asks for arming and can't be
armed says so itself, in the annotation `sameshot.dev/not-armed`, and whoever creates it is warned. Nothing but the
review is looked at and nothing is remembered, so a dry run is answered like any other (side effects: none), and a pod
that comes back after another webhook changed it is armed anew where that is needed.
"""

from __future__ import annotations

import base64
import enum
import re
from typing import Any

import msgspec

from sameshot.arm import labels
from sameshot.arm.kinds import place_of_pod
from sameshot.arm.template import NotArmable, arm_template, options_in
from sameshot.webhook.patch import difference

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
# An API server passes on 4,096 characters of warnings, from everybody who has any; beyond that it cuts each to 256
# (apiserver, WithWarningRecorder).
WARNING_LENGTH = 600
MAX_WARNINGS = 6
# Keys and values of all annotations of an object, as UTF-8 (apimachinery, TotalAnnotationSizeLimitB). A server refuses
# an object that a webhook brought above it, whatever the failure policy.
ANNOTATIONS_BYTES = 256 << 10


class Malformed(Exception):
    """This is no review of this API version; the message says what is wrong with it."""


class Outcome(enum.StrEnum):
    ARMED = "armed"
    UNCHANGED = "unchanged"  # armed already, and nothing of it changed since
    REFUSED = "refused"  # it asks for arming and can't be armed
    NOT_OURS = "not ours"  # no pod that is being created and asks for it, or the mirror of a static one


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a pod. `pod` is None where it stays as it is; warnings go to whoever creates it."""

    outcome: Outcome
    pod: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


class Resource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """What of a request counts here; `object` is read only if the rest is right."""

    uid: str
    operation: str = ""
    resource: Resource = Resource()
    sub_resource: str = ""
    namespace: str = ""
    name: str = ""  # empty where the server will generate it
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: Request


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    generate_name: str | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


_ONLY = Resource(group="", version="v1", resource="pods")
_decoder = msgspec.json.Decoder(_Review)


def request_in(body: bytes) -> Request:
    """Raises Malformed."""
    try:
        review = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise Malformed(f"it is {review.kind[:40]!r} of {review.api_version[:40]!r}, not {KIND} of {API_VERSION!r}")
    if not review.request.uid:
        raise Malformed("its request has no uid")
    return review.request


def name_of(request: Request) -> str:
    """How people know the object, for logs: its name, or the beginning of one that the server will generate."""
    try:
        metadata = msgspec.json.decode(request.object, type=_Named).metadata
    except msgspec.MsgspecError:
        return request.name
    return request.name or metadata.name or f"{metadata.generate_name or ''}…"


def judge(request: Request) -> Verdict:
    """What becomes of the object of a request. Whatever it raises is a defect of ours."""
    if (request.operation, request.resource, request.sub_resource) != ("CREATE", _ONLY, ""):
        return Verdict(Outcome.NOT_OURS)
    pod = msgspec.json.decode(request.object)
    metadata = (pod.get("metadata") if isinstance(pod, dict) else None) or {}
    if (metadata.get("labels") or {}).get(labels.ARM_LABEL) != labels.ENABLED:
        return Verdict(Outcome.NOT_OURS)
    annotations = metadata.get("annotations") or {}
    if labels.MIRROR in annotations:  # the pod itself runs already, and is not changed with it
        return Verdict(Outcome.NOT_OURS)
    try:
        armed = arm_template(pod, options_in(pod), place_of_pod(pod))
    except NotArmable as error:
        return _refusal(pod, annotations, str(error))
    warnings = tuple(map(_for_annotations, armed.warnings))
    if not armed.changed and labels.NOT_ARMED not in annotations:
        return Verdict(Outcome.UNCHANGED, warnings=warnings)
    template = armed.template
    template["metadata"]["annotations"].pop(labels.NOT_ARMED, None)  # true the last time, but no longer
    if not _fit(template["metadata"]["annotations"]):
        return _refusal(pod, annotations, f"armed, its annotations would be above {_LIMIT}: shorten them.")
    return Verdict(Outcome.ARMED, template, warnings)


def _refusal(pod: dict[str, Any], annotations: dict[str, str], why: str) -> Verdict:
    why = _for_annotations(why)
    warnings = (f"not armed for captures: {why}",)
    if labels.ARMED in annotations:  # another version armed it: that it is not armed would be wrong
        return Verdict(Outcome.REFUSED, warnings=(f"left as it is: {why}",))
    noted = {**annotations, labels.NOT_ARMED: why}
    if not _fit(noted):
        return Verdict(Outcome.REFUSED, warnings=warnings)
    metadata = {**(pod.get("metadata") or {}), "annotations": noted}
    return Verdict(Outcome.REFUSED, {**pod, "metadata": metadata}, warnings)


_LIMIT = f"{ANNOTATIONS_BYTES} bytes, the most that an API server takes"


def _fit(annotations: dict[str, Any]) -> bool:
    return sum(len(str(part).encode()) for item in annotations.items() for part in item) <= ANNOTATIONS_BYTES


def answer(body: bytes) -> tuple[bytes, Request, Verdict]:
    """The answer to a review, with what it was about. Raises Malformed, and whatever a defect of ours raises."""
    request = request_in(body)
    verdict = judge(request)
    return _answer(request, verdict), request, verdict


def unchanged(body: bytes, why: str) -> bytes:
    """An answer that admits the pod as it is, because something went wrong here. Raises Malformed."""
    return _answer(request_in(body), Verdict(Outcome.NOT_OURS, warnings=(why,)))


def _answer(request: Request, verdict: Verdict) -> bytes:
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if verdict.pod is not None and (patch := difference(msgspec.json.decode(request.object), verdict.pod)):
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    if verdict.warnings:
        response["warnings"] = [_plain(f"sameshot: {each}") for each in verdict.warnings[:MAX_WARNINGS]]
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


_OPTIONS = {
    "--container": labels.CONTAINER,
    "--local-world-size": labels.LOCAL_WORLD_SIZE,
    "--single": labels.SINGLE,
    "--arm-spawned": labels.ARM_SPAWNED,
    "--pythonpath": labels.PYTHONPATH,
}
_OPTION = re.compile("|".join(rf"{re.escape(option)}(?![-\w])" for option in _OPTIONS))


def _for_annotations(text: str) -> str:
    """What arming says of its options, said of the annotations that stand for them: a pod has no command line."""
    return _OPTION.sub(lambda match: f"the annotation {_OPTIONS[match[0]]}", text)


def _plain(text: str) -> str:
    """As a warning may be: one line, without control characters (a server drops what has any), not too long."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= WARNING_LENGTH else f"{plain[: WARNING_LENGTH - 3]}..."
