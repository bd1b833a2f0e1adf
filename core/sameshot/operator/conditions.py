"""The status of a CaptureCoordinator from what is known. Pure; the same facts give the same status, times included."""

from __future__ import annotations

import base64
import datetime
import math

import msgspec

from sameshot.kube.coordinators import Condition, Phase, PodPlace, Status
from sameshot.operator.decide import Coordinator, Why

READY = "Ready"
REACHABLE = "Reachable"
POLICY = "Policy"
RECONCILED = "Reconciled"
RETIRED = "Retired"
_RETIRED_REASONS = {Why.FINISHED: "JobFinished", Why.SUPERSEDED: "Superseded"}
MAX_MESSAGE = 1000


class Trouble(msgspec.Struct, frozen=True):
    """What failed last. `lasting`: it won't get better by itself."""

    reason: str
    message: str
    lasting: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`pod` None: there is none. `note`: why it does not serve yet, in words. `reachable` None: nobody tried.
    `disputed`: what somebody else undoes each time, in words."""

    attempt: int
    closing: Why | None = None
    pod: PodPlace | None = None
    ready: bool = False
    endpoint: str = ""
    server_name: str = ""
    ca: bytes = b""
    note: str = ""
    waits: tuple[str, str] | None = None  # for what, before it has a pod: a reason, and words
    reachable: bool | None = None
    unreachable_why: str = ""
    disputed: str = ""
    problems: tuple[str, ...] = ()
    trouble: Trouble | None = None
    registered: int | None = None
    expected: int | None = None
    version: str = ""


def status_of(facts: Facts, before: Status, now: float) -> Status:
    """What is to be written; equal to `before` where nothing changed. `observedAt` moves with what was observed."""
    serves = facts.pod is not None and facts.ready
    counted = (facts.registered, facts.expected) == (before.registered, before.expected)
    shown = facts.pod is not None and bool(facts.endpoint)
    return Status(
        phase=_phase(facts, serves),
        endpoint=facts.endpoint if shown else "",
        server_name=facts.server_name if shown else "",
        ca_bundle=base64.b64encode(facts.ca).decode() if shown else "",
        attempt=facts.attempt,
        pod=facts.pod,
        registered=facts.registered,
        expected=facts.expected,
        observed_at=before.observed_at if counted else stamp(now),
        version=facts.version,
        conditions=tuple(_since(each, before, now) for each in _conditions(facts, serves)),
    )


def retired(coordinator_uid: str, status: Status, *, deleting: bool) -> Coordinator:
    """What the status keeps of the end of a coordinator, for an operator that was restarted."""
    found = status.condition(RETIRED)
    if found is None or found.status != "True":
        return Coordinator(coordinator_uid, deleting)
    why = next((why for why, reason in _RETIRED_REASONS.items() if reason == found.reason), None)
    return Coordinator(coordinator_uid, deleting, why, seconds(found.last_transition_time))


def stamp(now: float) -> str:
    return f"{datetime.datetime.fromtimestamp(now, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def seconds(text: str) -> float:
    """Epoch seconds; inf for what is no time."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return math.inf


def patch_of(status: Status) -> dict[str, object]:
    """A merge patch: what is not known (any more) is taken out."""
    return {"status": msgspec.to_builtins(status) | {"phase": status.phase.value} | _nulls(status)}


def _nulls(status: Status) -> dict[str, None]:
    named = dict(zip(status.__struct_encode_fields__, status.__struct_fields__, strict=True))
    return {key: None for key, field in named.items() if getattr(status, field) in (None, "")}


def _phase(facts: Facts, serves: bool) -> Phase:
    if facts.closing is not None:
        return Phase.SUPERSEDED if facts.closing is Why.SUPERSEDED else Phase.FINISHED
    if serves:
        return Phase.READY
    return Phase.FAILED if facts.trouble is not None and facts.trouble.lasting else Phase.PENDING


def _conditions(facts: Facts, serves: bool) -> list[Condition]:
    found = []
    if facts.closing is not None:
        reason = _RETIRED_REASONS[facts.closing]
        words = {
            Why.FINISHED: "The job has ended; no new captures are taken.",
            Why.SUPERSEDED: "A later attempt of the job has a coordinator of its own; no new captures are taken here.",
        }[facts.closing]
        found.append(Condition(READY, "False", reason, words))
        found.append(Condition(RETIRED, "True", reason, words))
    elif serves:
        found.append(Condition(READY, "True", "Serves", "The coordinator serves."))
    elif facts.trouble is not None:
        found.append(Condition(READY, "False", facts.trouble.reason, facts.trouble.message))
    else:
        reason, words = facts.waits or (
            "PodPending" if facts.pod is not None else "NoPod", facts.note or "Its pod is being made."
        )  # fmt: skip
        found.append(Condition(READY, "False", reason, words))
    if facts.pod is not None and facts.reachable is not None:
        found.append(
            Condition(REACHABLE, "True", "Answers", "The operator was answered by the coordinator.")
            if facts.reachable
            else Condition(REACHABLE, "False", "NoAnswer", facts.unreachable_why)
        )
    found.append(
        Condition(POLICY, "False", "Invalid", "; ".join(facts.problems))
        if facts.problems
        else Condition(POLICY, "True", "Applied", "The policies of the cluster and of the namespace hold.")
    )
    found.append(
        Condition(RECONCILED, "False", facts.trouble.reason, facts.trouble.message)
        if facts.trouble is not None
        else Condition(RECONCILED, "False", "Disputed", facts.disputed)
        if facts.disputed
        else Condition(RECONCILED, "True", "AsItShouldBe", "All that belongs to the coordinator is as it should be.")
    )
    return found


def _since(condition: Condition, before: Status, now: float) -> Condition:
    known = before.condition(condition.type)
    same = known is not None and known.status == condition.status and known.last_transition_time
    if condition.type == RETIRED and known is not None and known.reason != condition.reason:
        same = ""  # the time to stay begins anew
    return msgspec.structs.replace(
        condition,
        message=condition.message[:MAX_MESSAGE],
        last_transition_time=known.last_transition_time if known is not None and same else stamp(now),
    )
