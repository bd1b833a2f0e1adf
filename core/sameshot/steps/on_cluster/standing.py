"""How far an analysis Job is, from the objects that were read: what to say, what hinders it, how it ended. Pure.

Reasons are those of the kubelet (pkg/kubelet/images/types.go, container/sync_result.go), of the Job controller (events
FailedCreate; conditions and their reasons: https://kubernetes.io/docs/concepts/workloads/controllers/job/) and of the
scheduler (condition PodScheduled).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sameshot.errors import Denied, SameshotError, TryAgain, UsageError, of_exit_code
from sameshot.kube import names
from sameshot.kube.pods import Condition
from sameshot.steps.image import IMAGE_ENV
from sameshot.steps.on_cluster.build import CONTAINER, TRIES


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A Job that has ended. `result` is the step's result file (docs/steps.md), whole or, of a failure, what is known;
    empty where the pod left none."""

    namespace: str
    name: str
    exit_code: int
    message: str
    result: dict[str, Any] = {}


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class _JobStatus(msgspec.Struct):
    conditions: list[Condition] | None = None
    failed: int = 0


class JobSeen(msgspec.Struct):
    """A batch/v1 Job, as far as it is read."""

    metadata: _Meta
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)

    def condition(self, *kinds: str) -> Condition | None:
        found = self.status.conditions or ()
        return next((each for each in found if each.type in kinds and each.status == "True"), None)


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    name: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class PodSeen(msgspec.Struct):
    metadata: _Meta
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def state(self) -> _State:
        found = self.status.container_statuses or ()
        return next((each.state for each in found if each.name == CONTAINER), _State())


class EventSeen(msgspec.Struct):
    type: str = ""
    reason: str = ""
    message: str = ""


class Hindrance(msgspec.Struct, frozen=True):
    """What keeps the Job from running. `patience_s`: so long it may pass by itself."""

    kind: type[SameshotError]
    words: str
    patience_s: float


class Standing(msgspec.Struct, frozen=True):
    """`logs_of` is the pod whose log is worth reading; `hindrance` None: nothing stands in the way."""

    words: str
    logs_of: str | None = None
    hindrance: Hindrance | None = None
    finished: Finished | None = None


# A pod's container waits for one of these reasons → the error, how long it may pass by itself, and what to do.
_OTHER_IMAGE = f"name another one with --image or ${IMAGE_ENV}"
_HINDRANCES: dict[str, tuple[type[SameshotError], float, str]] = {
    "InvalidImageName": (UsageError, 0.0, _OTHER_IMAGE),
    "ErrImageNeverPull": (UsageError, 0.0, _OTHER_IMAGE),
    "ErrImagePull": (UsageError, 60.0, f"{_OTHER_IMAGE}, or give the ServiceAccount an imagePullSecret"),
    "ImagePullBackOff": (UsageError, 60.0, f"{_OTHER_IMAGE}, or give the ServiceAccount an imagePullSecret"),
    "CreateContainerConfigError": (UsageError, 20.0, "make the Secret, or name another one with --secret"),
    "CreateContainerError": (SameshotError, 60.0, "see the pod's events"),
    "RunContainerError": (SameshotError, 60.0, "see the pod's events"),
}
# The Job controller can't make the pod, and says → the same.
_REFUSALS: list[tuple[str, type[SameshotError], float, str]] = [
    ("exceeded quota", TryAgain, 60.0, "wait for room, or ask for less with --requests and --limits"),
    ("must specify", UsageError, 10.0, "the namespace's quota wants these said: use --requests and --limits"),
    ("maximum", UsageError, 10.0, "the namespace's LimitRange refuses it: use --requests and --limits"),
    ("service account", UsageError, 10.0, "make it, or name another one with --service-account"),
    ("serviceaccount", UsageError, 10.0, "make it, or name another one with --service-account"),
    ("podsecurity", Denied, 10.0, "the namespace's Pod Security refuses it"),
    ("forbidden", Denied, 10.0, "see who may make pods in this namespace"),
]


def standing(namespace: str, job: JobSeen, pods: Sequence[PodSeen], events: Sequence[EventSeen] = ()) -> Standing:
    """`pods` of this Job in any order, `events` about it (Warnings), the newest last."""
    newest = max(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), default=None)
    if (ended := job.condition("Complete", "Failed")) is not None:
        return Standing("ended", _name(newest), finished=_finished(namespace, job, ended, newest))
    if newest is None:
        refused = next((each for each in reversed(events) if each.reason == "FailedCreate"), None)
        if refused is None:
            return Standing("its pod is being made")
        return Standing("its pod can't be made", hindrance=refusal(refused.message))
    tried = f" (try {len(pods)} of {TRIES})" if len(pods) > 1 else ""
    pod, state = newest.metadata.name, newest.state
    if newest.status.phase == "Running":
        return Standing(f"pod {pod} runs{tried}", pod)
    if newest.status.phase in names.POD_OVER:
        return Standing(f"pod {pod} has ended{tried}: {_why(newest)}", pod)
    if state.waiting is not None and (known := _HINDRANCES.get(state.waiting.reason)) is not None:
        kind, patience_s, mend = known
        words = f"pod {pod} can't start, {state.waiting.reason}: {_short(state.waiting.message)}; {mend}"
        return Standing(f"pod {pod} waits: {state.waiting.reason}", hindrance=Hindrance(kind, words, patience_s))
    place = next((each for each in newest.status.conditions or () if each.type == "PodScheduled"), None)
    if place is not None and place.status == "False":
        words = f"no node takes pod {pod}: {_short(place.message)}"
        return Standing(words, hindrance=Hindrance(TryAgain, words, float("inf")))
    if state.waiting is not None and state.waiting.reason == "ContainerCreating":
        return Standing(f"pod {pod} has a node, which gets its image and volumes ready{tried}")
    return Standing(f"pod {pod} is {newest.status.phase or 'Pending'}{tried}")


def refusal(message: str) -> Hindrance:
    """Why no pod or Job could be made, from the API server's words."""
    low = message.lower()
    kind, patience_s, mend = next(
        ((kind, patience_s, mend) for words, kind, patience_s, mend in _REFUSALS if words in low),
        (SameshotError, 60.0, "see the Job's events"),
    )
    return Hindrance(kind, f"its pod can't be made: {_short(message)}; {mend}", patience_s)


def _finished(namespace: str, job: JobSeen, ended: Condition, pod: PodSeen | None) -> Finished:
    terminated = None if pod is None else pod.state.terminated
    result = _result(terminated.message if terminated is not None else "")
    told = str(result.get("message") or "")
    made: Callable[[int, str], Finished] = lambda code, message: Finished(  # noqa: E731
        namespace=namespace, name=job.metadata.name, exit_code=code, message=message, result=result
    )
    if ended.type == "Complete":
        return made(0, told or "The analysis has succeeded; its pod left no result behind.")
    if ended.reason == "DeadlineExceeded":
        return made(TryAgain.exit_code, "The analysis took longer than its time and was ended; see --timeout.")
    if terminated is None:
        return made(1, f"The analysis Job has failed ({ended.reason}): {_short(ended.message)}")
    if terminated.reason == "OOMKilled":
        return made(1, "The analysis ran out of memory; give it more with --limits memory=…, or fewer --workers.")
    code = terminated.exit_code if of_exit_code(terminated.exit_code) is not SameshotError else 1
    return made(code, told or f"The analysis has failed with exit code {terminated.exit_code}: {_tail(terminated)}")


def _result(message: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(message)
    except msgspec.DecodeError:  # none was written: it is the end of the log
        return {}
    return found if isinstance(found, dict) and "exit_code" in found else {}


def _why(pod: PodSeen) -> str:
    terminated = pod.state.terminated
    if terminated is None:
        return _short(f"{pod.status.reason} {pod.status.message}".strip()) or "nothing is said of why"
    if told := str(_result(terminated.message).get("message") or ""):
        return told
    return f"exit code {terminated.exit_code}, {terminated.reason or 'no reason'}"


def _tail(terminated: _Terminated) -> str:
    lines = terminated.message.strip().splitlines()
    return _short(lines[-1]) if lines else terminated.reason or "nothing was said"


def _short(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _name(pod: PodSeen | None) -> str | None:
    return None if pod is None else pod.metadata.name


_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\S+) ?(.*)")


def new_lines(log: str, last: str) -> tuple[list[str], str]:
    """The lines of a log with time stamps that come after `last`, without their stamps, and the new last stamp.

    The kubelet writes stamps with nine digits after the second and, in one log, one offset: they compare as text.
    """
    stamped = [(match[1], match[2]) for line in log.splitlines() if (match := _STAMPED.fullmatch(line))]
    return [line for stamp, line in stamped if stamp > last], max([last, *(stamp for stamp, _ in stamped)])
