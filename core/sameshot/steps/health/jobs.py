"""The jobs that were seen, a row each: by their CaptureCoordinators, and those with armed pods that have none. Pure."""

from __future__ import annotations

import msgspec

from sameshot.model import JobRef
from sameshot.steps.health.seen import Seen


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """`phase` is the coordinator's, empty where the job has none; ranks None: not known. `pods` are those that have not
    ended."""

    namespace: str
    job: str
    uid: str
    attempt: int = 0
    series: str = ""
    phase: str = ""
    endpoint: str = ""
    registered: int | None = None
    expected: int | None = None
    pods: int = 0
    running: int = 0


def rows(seen: Seen) -> list[JobRow]:
    """By namespace, name and attempt."""
    pods: dict[JobRef, list[bool]] = {}
    for pod in seen.pods:
        if pod.job is not None and not pod.ended:
            pods.setdefault(pod.job, []).append(pod.running)
    found = []
    for each in seen.coordinators:
        one, job = each.object, each.object.job
        running = pods.pop(job, [])
        found.append(
            JobRow(
                namespace=job.namespace,
                job=job.name,
                uid=job.uid,
                attempt=job.attempt,
                series=one.spec.series,
                phase=one.status.phase.value,
                endpoint=one.status.endpoint,
                registered=one.status.registered,
                expected=one.status.expected,
                pods=len(running),
                running=sum(running),
            )
        )
    found += [
        JobRow(
            namespace=job.namespace,
            job=job.name,
            uid=job.uid,
            attempt=job.attempt,
            pods=len(running),
            running=sum(running),
        )
        for job, running in pods.items()
    ]
    return sorted(found, key=lambda row: (row.namespace, row.job, row.attempt, row.uid))
