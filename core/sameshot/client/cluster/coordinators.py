"""Which CaptureCoordinator is meant by an address, and what there is to say where none can be called. Pure."""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

from sameshot.client.cluster.address import LABEL, SUBDOMAIN, WAIT_S, KubeAddress, address_of
from sameshot.errors import JobEnded, NoSuchJob, OtherAttempt, SameshotError, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, Phase

_OVER = (Phase.FINISHED, Phase.SUPERSEDED)
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


class Armed(enum.StrEnum):
    """What the namespace's pods say of a job without a CaptureCoordinator."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # they may not be listed


def choose(found: Iterable[CaptureCoordinator], wanted: KubeAddress) -> CaptureCoordinator | None:
    """The coordinator that is meant: of the newest attempt, unless the address says which.

    None: there is none (yet). Raises UsageError where several jobs fit, and OtherAttempt where the one that is asked
    for has gone and another is there.
    """
    named = [each for each in found if wanted.job in ("", each.spec.job.name)]
    if wanted.job == "" and wanted.uid is None:
        named = [each for each in named if is_live(each)]
    fit = fitting(named, wanted)
    if named and not fit:
        what = f"uid {wanted.uid}" if wanted.uid is not None else f"kind {wanted.kind}"
        raise OtherAttempt(
            f"The job {wanted.what} with {what} is not there any more, or was never armed; there is {_listed(named)}. "
            "Nothing was captured."
        )
    if wanted.attempt is not None and fit:
        of_it = [each for each in fit if each.spec.job.attempt == wanted.attempt]
        newer = [each for each in fit if each.spec.job.attempt > wanted.attempt]
        if not of_it and newer:
            raise OtherAttempt(
                f"Attempt {wanted.attempt} of the job {wanted.job or 'there'} in namespace {wanted.namespace} is over, "
                f"and its coordinator has gone; there is {_listed(newer)}. Nothing was captured."
            )
        fit = of_it
    newest = [_newest(group) for group in _by_uid(fit)]
    live = [each for each in newest if is_live(each)]
    kinds = {(each.spec.job.name, each.spec.job.api_version.partition("/")[0], each.spec.job.kind) for each in live}
    if len(kinds) > 1:
        choices = ", ".join(_to_copy(each, wanted) for each in _in_order(live))
        raise UsageError(f"Several jobs {wanted.what} can be captured; name one by its address (--address): {choices}")
    return max(live or newest, key=_age, default=None)


def _to_copy(found: CaptureCoordinator, wanted: KubeAddress) -> str:
    """An address as a shell takes it. How long is waited for it is whoever dials to say."""
    plain = msgspec.structs.replace(wanted, wait_ms=int(WAIT_S * 1000))
    return shlex.quote(str(address_of(found.job, plain, alone=False)))


def fitting(found: Iterable[CaptureCoordinator], wanted: KubeAddress) -> list[CaptureCoordinator]:
    """Those of the job that the address names, of whatever attempt."""
    return [
        each
        for each in found
        if wanted.job in ("", each.spec.job.name)
        and wanted.uid in (None, each.spec.job.uid)
        and (wanted.kind is None or wanted.kind.lower() == each.spec.job.kind.lower())
    ]


def is_live(found: CaptureCoordinator) -> bool:
    """Whether its job runs, as far as the operator knows."""
    return found.status.phase not in _OVER and found.metadata.deletion_timestamp is None


def can_be_called(found: CaptureCoordinator, *, through_pod: bool) -> bool:
    """Also where its job has ended: what it captured last is still to be had of it, as long as it is there."""
    status = found.status
    if status.phase not in (Phase.READY, *_OVER) or not status.ca:
        return False
    return status.pod is not None if through_pod else bool(status.endpoint)


def forged(found: CaptureCoordinator) -> SameshotError | None:
    """Why a status is none that the operator writes, of one that can be called; None: it may be.

    A status says where a caller's token and connections go. The operator names everything after the job, so whoever
    else has got the right to write one can't send callers to another pod, path or name. Only the namespace of
    coordinators is each installation's own.
    """
    job, status, pod = found.job, found.status, found.status.pod
    name = names.coordinator_of(job) if names.usable(job) else ""
    wrong = {
        f"its job's uid is {job.uid!r}": not name,
        f"serverName is {status.server_name!r}, and not {name}.…": not (
            status.server_name.startswith(f"{name}.") and SUBDOMAIN.fullmatch(status.server_name)
        ),
        f"endpoint is {status.endpoint!r}, and not host:port": status.endpoint != ""
        and not _is_host_port(status.endpoint),
    }
    if pod is not None:
        wrong |= {
            f"the pod's name is {pod.name!r}, and not {name}": pod.name != name,
            f"the pod's namespace is {pod.namespace!r}": LABEL.fullmatch(pod.namespace) is None,
            f"the pod's port is {pod.port}": not 0 < pod.port < 1 << 16,
        }
    why = next((each for each, holds in wrong.items() if holds), None)
    if why is None:
        return None
    return SameshotError(
        f"The status of CaptureCoordinator {found.metadata.namespace}/{found.metadata.name} is not what sameshot's "
        f"operator writes: {why}. Nobody was called. See who else may update or patch capturecoordinators/status in "
        f"namespace {found.metadata.namespace}; or the operator is of a much newer version than this client."
    )


def _is_host_port(text: str) -> bool:
    match = _HOST_PORT.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 1 << 16


def why_not(found: CaptureCoordinator | None, wanted: KubeAddress, armed: Armed) -> SameshotError:
    """Why nobody can be called, as an error. Of those only Unreachable may mend by itself."""
    if found is None:
        return _nobody(wanted, armed)
    job, status = found.spec.job, found.status
    what = f"{job.kind} {found.metadata.namespace}/{job.name}"
    if found.metadata.deletion_timestamp is not None or status.phase is Phase.FINISHED:
        return JobEnded(f"{what} has ended, and its coordinator has gone. Nothing was captured; see its archive.")
    if status.phase is Phase.SUPERSEDED:
        return OtherAttempt(
            f"Attempt {job.attempt} of {what} is over, a later one runs, and the coordinator of this one has gone. "
            "Nothing was captured."
        )
    if status.phase is Phase.FAILED:
        return Unreachable(f"The coordinator of {what} can't be made{_conditions(found)}. Nothing was captured.")
    return Unreachable(
        f"The coordinator of {what} is not ready{_conditions(found)}. Nothing was captured; see kubectl -n "
        f"{found.metadata.namespace} describe capturecoordinator {found.metadata.name}"
    )


def may_come(error: SameshotError, found: CaptureCoordinator | None, armed: Armed, wanted: KubeAddress) -> bool:
    """Whether waiting is of use, after `why_not`. A job that nobody knows of is only waited for shortly: one without
    armed pods, or an attempt that somebody saw before and that is gone."""
    if found is None:
        return armed is not Armed.NO and wanted.attempt is None
    return isinstance(error, Unreachable) and found.status.phase is not Phase.FAILED


def progress(found: CaptureCoordinator | None, wanted: KubeAddress) -> str:
    """What is waited for, in a sentence for people."""
    if found is None:
        return f"waiting: no coordinator was made yet for job {wanted.what}"
    return f"waiting: the coordinator of job {wanted.what} is starting{_conditions(found)}"


def newest_of_each(found: Iterable[CaptureCoordinator]) -> list[CaptureCoordinator]:
    """One for each job, of its newest attempt; the newest job first."""
    return newest_first(_newest(group) for group in _by_uid(found))


def newest_first(found: Iterable[CaptureCoordinator]) -> list[CaptureCoordinator]:
    return sorted(found, key=lambda each: (_age(each)[0], each.spec.job.attempt, each.metadata.name), reverse=True)


def _by_uid(found: Iterable[CaptureCoordinator]) -> list[list[CaptureCoordinator]]:
    groups: dict[str, list[CaptureCoordinator]] = {}
    for each in found:
        groups.setdefault(each.spec.job.uid, []).append(each)
    return list(groups.values())


def _newest(group: Sequence[CaptureCoordinator]) -> CaptureCoordinator:
    return max(group, key=lambda each: each.spec.job.attempt)


def _age(found: CaptureCoordinator) -> tuple[str, str]:
    """RFC 3339 in UTC sorts as text."""
    return found.metadata.creation_timestamp, found.metadata.name


def _in_order(found: Iterable[CaptureCoordinator]) -> list[CaptureCoordinator]:
    return sorted(found, key=lambda each: (each.spec.job.name, each.spec.job.kind, each.spec.job.uid))


def _listed(found: Sequence[CaptureCoordinator]) -> str:
    return ", ".join(
        f"{each.spec.job.kind} {each.spec.job.name} (uid {each.spec.job.uid}, attempt {each.spec.job.attempt}, "
        f"{each.status.phase.value})"
        for each in _in_order(found)[:5]
    )


def _conditions(found: CaptureCoordinator) -> str:
    """What the operator says is not as it should be, or how far it has come."""
    bad = [each for each in found.status.conditions if each.status != "True"] or found.status.conditions
    said = "; ".join(f"{each.type} is {each.status} ({each.reason}) {each.message}".rstrip(" .") for each in bad)
    return f" ({found.status.phase.value}): {said}" if said else f" ({found.status.phase.value})"


def _nobody(wanted: KubeAddress, armed: Armed) -> SameshotError:
    if armed is Armed.YES:
        return Unreachable(
            f"Pods of job {wanted.what} are armed, and nobody made a coordinator for it: the operator does not run, or "
            "does not look after this namespace. See kubectl -n sameshot-system get deployment sameshot-operator"
        )
    unsure = "" if armed is Armed.NO else " (whether it has armed pods is not known: they may not be listed)"
    if not wanted.job:
        return NoSuchJob(
            f"No job {wanted.what} can be captured{unsure}. Arm one with `sameshot arm`, or where the webhook runs by "
            "the label sameshot.dev/arm: enabled in its pod template; it counts for pods that are made from then on."
        )
    return NoSuchJob(
        f"No job {wanted.what} can be captured: it does not run, or it was not armed when its pods were made{unsure}. "
        f"Arm it with `sameshot arm`; `sameshot status -n {wanted.namespace}` lists those that can."
    )
