"""Which jobs can be captured: what a DAG is mapped over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from sameshot.client import JobInfo, jobs
from sameshot.client.cluster import address_of, found_jobs, is_kube, parse
from sameshot.errors import UsageError
from sameshot.steps.patience import patiently
from sameshot.steps.preflight import dialled, in_thread
from sameshot.steps.store import wait


class FoundJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One running job. `address` is what `connect()` takes; `uid` and `attempt` pin a request to this very run.
    `labels` are those of its run on this machine, or of its own object in a cluster."""

    name: str
    address: str
    uid: str
    attempt: int = 0
    namespace: str = ""
    series: str = ""
    labels: dict[str, str] = {}


async def find_jobs_async(address: str = "local", labels: Mapping[str, str] | None = None) -> list[FoundJob]:
    """The jobs at an address that have all of `labels`, newest first: of this machine for `local` and `local:<name>`,
    of a cluster for `kube:<namespace>` and `kube:<namespace>/<name>` (labels of the job's own object), else the one
    that the coordinator there serves.

    None is an empty list. Raises UsageError where labels are asked of a coordinator, which knows none; Unreachable; and
    Denied.
    """
    if is_kube(address):
        return await patiently(lambda: in_thread(lambda _: _in_cluster(address, labels or {})))
    scheme, _, name = address.partition(":")
    if scheme == "local":
        found = [info for info in jobs(labels) if name in ("", info.job.name, info.run)]
        names = Counter(info.job.name for info in jobs())
        return [_found(info, unique=names[info.job.name] == 1) for info in found]
    if labels:
        raise UsageError(
            f"The coordinator at {address} serves one job and knows no labels; leave them out, or ask for local jobs."
        )

    async def attempt() -> FoundJob:
        async with dialled(address) as client:
            told = await client.describe()
        job = told.job
        return FoundJob(
            name=job.name,
            address=address,
            uid=job.uid,
            attempt=job.attempt,
            namespace=job.namespace,
            series=told.series,
        )

    return [await patiently(attempt)]


def find_jobs(address: str = "local", labels: Mapping[str, str] | None = None) -> list[FoundJob]:
    """`find_jobs_async` for callers without an event loop."""
    return wait(find_jobs_async(address, labels))


def _in_cluster(address: str, labels: Mapping[str, str]) -> list[FoundJob]:
    """A job is addressed as the whole list was, by its name, and by its uid where that is not enough."""
    wanted, found = parse(address), found_jobs(address)
    called = Counter(each.spec.job.name for each in found)
    alone = {name for name, times in called.items() if times == 1 and wanted.uid is None}
    return [
        FoundJob(
            name=each.spec.job.name,
            address=str(address_of(each.job, wanted, alone=each.spec.job.name in alone)),
            uid=each.spec.job.uid,
            attempt=each.spec.job.attempt,
            namespace=each.metadata.namespace,
            series=each.spec.series,
            labels=each.spec.labels,
        )
        for each in found
        if labels.items() <= each.spec.labels.items()
    ]


def _found(info: JobInfo, *, unique: bool) -> FoundJob:
    """A run is addressed by its job's name, which people know, unless two runs have the same."""
    return FoundJob(
        name=info.job.name,
        address=f"local:{info.job.name if unique else info.run}",
        uid=info.job.uid,
        attempt=info.job.attempt,
        namespace=info.job.namespace,
        series=info.series,
        labels=info.labels,
    )
