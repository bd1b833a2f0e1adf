"""What is seen of each job: its armed pods, and what is ours and marked for it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, Phase
from sameshot.kube.pods import Owner
from sameshot.model import JobRef
from sameshot.operator import objects
from sameshot.operator.armed import ArmedPods, JobKey
from sameshot.operator.config import OperatorConfig
from sameshot.operator.jobs import POD
from sameshot.operator.objects import Kind
from sameshot.operator.seen import Seen, place_of
from sameshot.operator.sources import CHILDREN, KIND_OF, Source

RETIRED = {Phase.FINISHED.value, Phase.SUPERSEDED.value}
MOST_ATTEMPTS = 20
"""Of one job, that are looked at in one turn. Jobs have one or a few with anything left; with labels that a pod's maker
may choose there may be any number."""


class Known:
    """`gone` is called when the CaptureCoordinator of an attempt was there and is not any more."""

    def __init__(
        self, config: OperatorConfig, seen: Seen, armed: ArmedPods, gone: Callable[[JobKey, int], None]
    ) -> None:
        self._config = config
        self._seen = seen
        self._armed = armed
        self._gone = gone
        self._of: dict[JobKey, dict[tuple[Source, tuple[str, str]], int | None]] = {}
        self._pods: dict[str, set[str]] = {}  # those of coordinators, by their jobs' namespace
        self._held: dict[str, set[str]] = {}  # as well: those that went, and are to be made again
        self._making: Counter[JobRef] = Counter()
        self._read: dict[JobKey, set[int]] = {}  # attempts that have a CaptureCoordinator

    def note(self, source: Source, before: Json | None, after: Json | None) -> set[JobKey]:
        """Something of ours was seen, or is gone; the jobs that it concerns."""
        keys = set()
        for thing, there in ((before, False), (after, True)):
            found = None if thing is None else self._whose(source, thing)
            if thing is None or found is None:
                continue
            namespace, uid, attempt = found
            key = (namespace, uid)
            keys.add(key)
            if source is Source.BINDINGS:
                continue  # it goes with its CaptureCoordinator: alone it says nothing about an attempt
            if source is Source.PODS:
                self._note_pod(namespace, place_of(thing)[1], there=there, gone=after is None)
            if there:
                self._of.setdefault(key, {})[source, place_of(thing)] = attempt
            else:
                self._of.get(key, {}).pop((source, place_of(thing)), None)
            if source is Source.COORDINATORS and attempt is not None:
                read = self._read.setdefault(key, set())
                if there:
                    read.add(attempt)
                else:
                    read.discard(attempt)
                    if after is None:
                        self._held.get(namespace, set()).discard(place_of(thing)[1])
                        self._gone(key, attempt)
        return keys

    def _note_pod(self, namespace: str, name: str, *, there: bool, gone: bool) -> None:
        held = self._held.setdefault(namespace, set())
        if there:
            self._pods.setdefault(namespace, set()).add(name)
            held.discard(name)
        else:
            self._pods.get(namespace, set()).discard(name)
            if gone and self._serves(namespace, name):
                held.add(name)
        if not held:
            del self._held[namespace]

    def _serves(self, namespace: str, name: str) -> bool:
        """Whether this coordinator is one of a job that runs."""
        thing = self._seen.get(Source.COORDINATORS, namespace, name)
        return (
            thing is not None
            and not inside(thing, "metadata").get("deletionTimestamp")
            and inside(thing, "status").get("phase") not in RETIRED
        )

    def has_room(self, job: JobRef) -> bool:
        """Whether this coordinator's pod may be made. Those that stay for a while after their job's end take nobody's
        place, as long as there are not as many again; who is being replaced keeps its own."""
        most, namespace, name = self._config.max_coordinators, job.namespace, names.coordinator_of(job)
        held = {each for each in self._held.get(namespace, ()) if self._serves(namespace, each)}
        if not most or name in held:
            return True
        made = self._pods.get(namespace, set())
        coming = {names.coordinator_of(each) for each in self._making if each.namespace == namespace} - made
        serving = sum(self._serves(namespace, each) for each in made)
        return serving + len(coming | held) < most and len(made | coming | held) < 2 * most

    def release(self, job: JobRef) -> None:
        """Its pod is not to be made again for now."""
        self._held.get(job.namespace, set()).discard(names.coordinator_of(job))

    @contextlib.contextmanager
    def making(self, job: JobRef) -> Iterator[None]:
        """Meanwhile its pod counts as made."""
        self._making[job] += 1
        try:
            yield
        finally:
            self._making[job] -= 1
            self._making += Counter()  # without zeros

    def jobs(self) -> set[JobKey]:
        return {*self._of, *self._armed.keys()}

    def jobs_in(self, namespace: str) -> list[JobKey]:
        return [key for key in self.jobs() if key[0] == namespace]

    def anything_of(self, key: JobKey) -> bool:
        """Whether anything of this job is seen: a pod of it, or something of ours."""
        return bool(self._of.get(key) or self._armed.of(key))

    def forget(self, key: JobKey) -> None:
        self._of.pop(key, None)
        self._read.pop(key, None)

    def _whose(self, source: Source, thing: Json) -> tuple[str, str, int | None] | None:
        """By what it says, and only where it is what would be made for that: anybody may write our labels."""
        if source is Source.COORDINATORS:
            read = coordinator_in(thing)
            return None if read is None else (read.job.namespace, read.job.uid, read.job.attempt)
        found = objects.job_of(thing)
        if found is None:
            return None
        namespace, uid, attempt = found
        kind, job = KIND_OF[source], JobRef(namespace, "of-that-uid", uid, attempt or 0)
        if not names.usable(job) or (attempt is None and kind is not Kind.ACCOUNT):
            return None
        exact = (objects.place_of(kind, job, self._config), objects.name_of(kind, job))
        return found if place_of(thing) == exact else None

    def attempts(self, key: JobKey) -> list[int]:
        """The latest first: what it needs matters most. Of too many, those that have a pod or a coordinator come before
        those of which only other things are left; the rest gets its turn when these are done."""
        armed = {each.job.attempt for each in self._armed.of(key) if each.job is not None}
        things = self._of.get(key, {})
        read = self._read.get(key, set())
        found = {*armed, *read, *(each for each in things.values() if each is not None)}
        if not found and things:
            found = {0}
        if len(found) > MOST_ATTEMPTS:
            pods = {each for (source, _), each in things.items() if source is Source.PODS}
            latest = max(armed | read, default=0)
            first = sorted(found, key=lambda each: (each == latest, each in pods, each in read, each), reverse=True)
            found = set(first[:MOST_ATTEMPTS])
        return sorted(found, reverse=True)

    def ref(self, key: JobKey, attempt: int) -> tuple[JobRef, Owner]:
        """The attempt, and the job's own object as a reference."""
        for each in self._armed.of(key):
            if each.job is not None and each.job.attempt == attempt:
                own = msgspec.structs.replace(POD, name=each.pod.name, uid=each.pod.uid)
                return each.job, own if each.top is None else each.top
        read = self.read(key, attempt)
        if read is not None:
            job = read.spec.job
            return read.job, Owner(job.api_version, job.kind, job.name, job.uid)
        for source, place in self._of.get(key, {}):
            thing = self._seen.get(source, *place)
            name = inside(thing or {}, "metadata", "annotations").get(names.JOB_NAME)
            if isinstance(name, str) and name:
                return JobRef(key[0], name, key[1], attempt), POD
        return JobRef(key[0], "unknown", key[1], attempt), POD  # its names do not need the job's

    def read(self, key: JobKey, attempt: int) -> CaptureCoordinator | None:
        if attempt not in self._read.get(key, ()):
            return None
        job = JobRef(key[0], "of-that-uid", key[1], attempt)
        thing = self._seen.get(Source.COORDINATORS, key[0], names.coordinator_of(job))
        return None if thing is None else coordinator_in(thing)

    def living(self, key: JobKey) -> Iterable[int]:
        """Attempts that have pods, or a coordinator."""
        for each in self._armed.of(key):
            if each.job is not None and not each.pod.ended:
                yield each.job.attempt
        yield from self._read.get(key, ())

    def alive(self, key: JobKey) -> bool:
        return any(not each.pod.ended for each in self._armed.of(key))

    def children(self, job: JobRef) -> Iterator[Kind]:
        for kind in Kind:
            if kind is not Kind.POD and self.child(kind, job) is not None:
                yield kind

    def child(self, kind: Kind, job: JobRef) -> Json | None:
        return self._seen.get(CHILDREN[kind], objects.place_of(kind, job, self._config), objects.name_of(kind, job))


def coordinator_in(thing: Json) -> CaptureCoordinator | None:
    """One that is named after its job; any other one is none of ours, whoever made it."""
    try:
        read = msgspec.convert(thing, CaptureCoordinator)
    except msgspec.ValidationError:
        return None
    return read if is_ours(read) else None


def is_ours(read: CaptureCoordinator) -> bool:
    """Whether it is named after its job."""
    job = read.job
    return names.usable(job) and names.coordinator_of(job) == read.metadata.name
