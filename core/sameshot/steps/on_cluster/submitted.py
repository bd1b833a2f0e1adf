"""Making an analysis Job, or finding it again, and following it to its end.

A Job outlives whoever follows it: nothing here deletes one that runs. One that has failed is replaced when the same is
asked for again.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable

import msgspec

from sameshot.client.cluster.access import Api
from sameshot.errors import Denied, SameshotError, TryAgain, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.api import TROUBLES, ApiError
from sameshot.steps.on_cluster.build import CONTAINER, AnalysisJob, job_of
from sameshot.steps.on_cluster.standing import (
    EventSeen,
    Finished,
    JobSeen,
    PodSeen,
    Standing,
    new_lines,
    refusal,
    standing,
)

Tell = Callable[[str], None]

EVERY_S = 2.0
PATIENCE_S = 60.0  # while the API server does not answer
START_WITHIN_S = 600.0
GONE_WITHIN_S = 30.0
LOG_BYTES = 64 << 10
FIRST_LINES = 50


class Submitted(msgspec.Struct, frozen=True):
    """`found`: the same was asked for before, and its Job is there."""

    namespace: str
    name: str
    found: bool

    @property
    def hints(self) -> str:
        return (
            f"it goes on without you; follow it with: kubectl logs -n {self.namespace} -f job/{self.name}, or delete "
            f"it with: kubectl delete job -n {self.namespace} {self.name}"
        )


class _Events(msgspec.Struct):
    items: list[EventSeen] | None = None


def run(api: Api, asked: AnalysisJob, tell: Tell = lambda line: None) -> Finished:
    """Make the Job and follow it. Raises as `submit` and `follow` do; how a finished one ended says its `exit_code`."""
    return follow(api, submit(api, asked, tell), tell)


def submit(
    api: Api,
    asked: AnalysisJob,
    tell: Tell = lambda line: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Submitted:
    """Make the Job, or find the one of the very same request. One that has failed is replaced.

    Raises UsageError where it or its namespace can't be, Denied where the caller may not make one, TryAgain where the
    namespace's quota is used up, and Unreachable.
    """
    document = job_of(asked)
    name = document["metadata"]["name"]
    ends = clock() + GONE_WITHIN_S
    while True:
        try:
            api.send("POST", _jobs(asked.namespace), document)
        except ApiError as error:
            if error.status != 409:
                raise _refused(error, asked.namespace) from None
        except TROUBLES as error:
            raise Unreachable(f"The API server does not answer: {error}. Nothing is known of the Job {name}.") from None
        else:
            tell(f"made Job {name} in namespace {asked.namespace}")
            return Submitted(asked.namespace, name, found=False)
        before = _read(api, asked.namespace, name)
        if before is not None and before.metadata.deletion_timestamp is None:
            if before.condition("Failed") is None:
                tell(f"found Job {name} in namespace {asked.namespace}, of the same request")
                return Submitted(asked.namespace, name, found=True)
            tell(f"Job {name} of the same request has failed before; it is replaced")
            _delete(api, asked.namespace, before)
        if clock() >= ends:
            raise TryAgain(f"The Job {name} in namespace {asked.namespace} is being deleted; ask again in a moment.")
        sleep(EVERY_S / 4)


def follow(
    api: Api,
    job: Submitted,
    tell: Tell = lambda line: None,
    *,
    start_within_s: float = START_WITHIN_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Finished:
    """Until the Job has ended; what it waits for, and its log, are told as they change.

    Raises what hinders its pod from starting, once that has lasted (UsageError: the image, the Secret, the account;
    Denied: Pod Security; TryAgain: quota, no node), SameshotError where the Job is deleted meanwhile, and Unreachable
    where the API server is away. The Job itself stays, whatever is raised.
    """
    began = answered = clock()
    hindered_since: float | None = None
    said, stamp, of = "", "", ""
    while True:
        try:
            seen = _look(api, job)
            answered = clock()
        except TROUBLES as error:
            if isinstance(error, ApiError) and error.status in (401, 403):
                raise Denied(f"Job {job.name} can't be followed: {message_of(error)}; {job.hints}.") from None
            if clock() - answered > PATIENCE_S:
                raise Unreachable(
                    f"The API server does not answer: {error}. Job {job.name} may run: {job.hints}."
                ) from None
            sleep(EVERY_S)
            continue
        if seen is None:
            raise SameshotError(f"Job {job.name} in namespace {job.namespace} was deleted before it had ended.")
        if seen.words != said and seen.finished is None:
            said = seen.words
            tell(said)
        if seen.logs_of is not None:
            if seen.logs_of != of:
                of, stamp = seen.logs_of, ""
            lines, stamp = new_lines(_log(api, job.namespace, of, stamp), stamp)
            for line in lines:
                tell(f"  {line}")
        if seen.finished is not None:
            return seen.finished
        now = clock()
        if seen.hindrance is None:
            hindered_since = None
        else:
            hindered_since = now if hindered_since is None else hindered_since
            waited = now - hindered_since
            if waited >= seen.hindrance.patience_s or now - began >= start_within_s:
                raise seen.hindrance.kind(f"Job {job.name}: {seen.hindrance.words}. The Job stays: {job.hints}.")
        sleep(EVERY_S)


def message_of(error: ApiError) -> str:
    """What the server said, without the JSON around it."""
    match = re.search(r'"message":\s*"((?:[^"\\]|\\.)*)', str(error))
    return match[1].replace('\\"', '"') if match else str(error)


def _look(api: Api, job: Submitted) -> Standing | None:
    found = _read(api, job.namespace, job.name)
    if found is None:
        return None
    selector = {"labelSelector": f"batch.kubernetes.io/job-name={job.name}"}
    pods = [
        msgspec.json.decode(item, type=PodSeen)
        for page in api.list(names.pods_path(job.namespace), selector)
        for item in page.items
    ]
    events = [] if pods else _events(api, job.namespace, found.metadata.uid)
    return standing(job.namespace, found, pods, events)


def _events(api: Api, namespace: str, uid: str) -> list[EventSeen]:
    """Newest last. Who may not read them learns less."""
    try:
        data = api.get(
            f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
        )
    except ApiError as error:
        if error.status in (401, 403):
            return []
        raise
    return msgspec.json.decode(data, type=_Events).items or []


def _log(api: Api, namespace: str, pod: str, since: str) -> str:
    query = {"container": CONTAINER, "timestamps": "true", "limitBytes": str(LOG_BYTES)}
    query |= {"sinceTime": since} if since else {"tailLines": str(FIRST_LINES)}
    with contextlib.suppress(*TROUBLES):  # it does not run yet, or may not be read: the end tells what it came to
        return api.get(f"{names.pods_path(namespace)}/{pod}/log", query).decode(errors="replace")
    return ""


def _read(api: Api, namespace: str, name: str) -> JobSeen | None:
    try:
        return msgspec.json.decode(api.get(f"{_jobs(namespace)}/{name}"), type=JobSeen)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _delete(api: Api, namespace: str, job: JobSeen) -> None:
    """This very one, with its pods."""
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": job.metadata.uid},
    }
    try:
        api.send("DELETE", f"{_jobs(namespace)}/{job.metadata.name}", options)
    except ApiError as error:
        if error.status not in (404, 409):  # gone, or replaced, meanwhile
            raise _refused(error, namespace) from None


def _refused(error: ApiError, namespace: str) -> SameshotError:
    said = message_of(error)
    if error.status in (401, 403):
        if "quota" in said.lower():
            return TryAgain(f"The quota of namespace {namespace} has no room for the analysis Job: {said}")
        return Denied(
            f"You may not make Jobs in namespace {namespace}: {said}. The role `edit` of the namespace has the right."
        )
    if error.status == 404:
        return UsageError(f"There is no namespace {namespace} in this cluster; name another one with --namespace.")
    if error.status in (400, 422):
        return UsageError(f"The API server does not take the analysis Job: {said}")
    hindrance = refusal(said)
    return Unreachable(f"The API server did not make the analysis Job: {hindrance.words}.")


def _jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"
