"""Does for each job what `decide` says: reads, writes, calls, until nothing is left to do."""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.errors import SameshotError, UsageError
from sameshot.kube import names
from sameshot.kube.api import MERGE_PATCH, TROUBLES, Api, ApiError
from sameshot.kube.coordinators import CaptureCoordinator, Job, PodPlace, Spec, path_of
from sameshot.kube.pods import Owner
from sameshot.model import JobRef
from sameshot.operator import authority as certificates
from sameshot.operator import objects
from sameshot.operator.armed import ArmedPods, InThread, JobKey, key_of
from sameshot.operator.calls import Coordinators
from sameshot.operator.childpods import PodFacts, facts_of
from sameshot.operator.conditions import REACHABLE, Facts, Trouble, patch_of, retired, status_of
from sameshot.operator.config import OperatorConfig, Reach
from sameshot.operator.decide import Coordinator, Do, End, Heard, PodNow, Step, Why, World, closing, decide
from sameshot.operator.jobs import POD, Looked, look
from sameshot.operator.objects import Attempt, Kind
from sameshot.operator.policies import Effective, effective
from sameshot.operator.seen import Seen, place_of
from sameshot.operator.sources import CHILDREN, Source

log = logging.getLogger(__name__)

MOST_ROUNDS = 30  # of decisions in a row for one job; then others get their turn
_LASTING = {400, 403, 405, 422}


@dataclass
class Notes:
    """What was found out about one attempt, and would be again. Times are epoch seconds."""

    heard: Heard | None = None
    reachable: bool | None = None
    unreachable_why: str = ""
    alone_since: float | None = None
    gone_for_sure: bool = False
    deleted_at: float | None = None
    deletions: int = 0
    counted: tuple[str, frozenset[str]] | None = None  # for which process and which pods workers were counted
    describe_at: float | None = None
    describes: int = 0
    registered: int | None = None
    world_size: int | None = None
    version: str = ""
    begun: bool = False  # whether the above was taken from the status that an earlier operator wrote


@dataclass
class JobNotes:
    looked: Looked | None = None
    looked_at: float | None = None
    looks: int = 0
    trouble: Trouble | None = None
    attempts: dict[int, Notes] = field(default_factory=dict)


class Keeper:
    """`authority` is set before anything is worked on, and again when it was renewed."""

    authority: certificates.Authority

    def __init__(
        self,
        config: OperatorConfig,
        api: Api,
        seen: Seen,
        armed: ArmedPods,
        coordinators: Coordinators,
        in_thread: InThread,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._api = api
        self._seen = seen
        self._armed = armed
        self._coordinators = coordinators
        self._in_thread = in_thread
        self._clock = clock
        self._notes: dict[JobKey, JobNotes] = {}
        self._of: dict[JobKey, dict[tuple[Source, tuple[str, str]], int | None]] = {}  # what is seen of each job
        self._told: set[JobKey] = set()
        self._ports: dict[str, int] = {}  # on the nodes' network, by the coordinator's name

    # --- what is seen -----------------------------------------------------------------------------------------

    def note(self, source: Source, before: Json | None, after: Json | None) -> set[JobKey]:
        """Something of ours was seen, or is gone; the jobs that it concerns."""
        keys = set()
        for thing, there in ((before, False), (after, True)):
            found = None if thing is None else self._whose(source, thing)
            if thing is None or found is None:
                continue
            namespace, uid, attempt = found
            key = (namespace, uid)
            if there:
                self._of.setdefault(key, {})[source, place_of(thing)] = attempt
            else:
                self._of.get(key, {}).pop((source, place_of(thing)), None)
                if source is Source.COORDINATORS and after is None and attempt is not None:
                    notes = self._notes.setdefault(key, JobNotes()).attempts.setdefault(attempt, Notes())
                    notes.deleted_at, notes.deletions = self._clock(), notes.deletions + 1
            keys.add(key)
        return keys

    def jobs(self) -> set[JobKey]:
        return {*self._of, *self._armed.keys()}

    def jobs_in(self, namespace: str) -> list[JobKey]:
        return [key for key in self.jobs() if key[0] == namespace]

    @property
    def unusable(self) -> int:
        """Jobs that no coordinator can be made for."""
        return len(self._told)

    def _whose(self, source: Source, thing: Json) -> tuple[str, str, int | None] | None:
        if source is not Source.COORDINATORS:
            return objects.job_of(thing)
        read = _coordinator(thing)
        return None if read is None else (read.job.namespace, read.job.uid, read.job.attempt)

    # --- one job ----------------------------------------------------------------------------------------------

    async def work(self, key: JobKey) -> float:
        """Do what this job needs; when it is to be looked at again (epoch seconds). Raises what the API server does."""
        if self._config.namespaces and key[0] not in self._config.namespaces:
            return math.inf  # another operator's
        notes = self._notes.setdefault(key, JobNotes())
        for _ in range(MOST_ROUNDS):
            again, busy = math.inf, False
            for attempt in self._attempts(key):
                job, top = self._job(key, attempt)
                if self._usable(key, job):
                    did, at = await self._work(job, top, notes)
                    again, busy = min(again, at), busy or did
            if not busy:
                break
        else:
            again = self._clock()
        if not self._of.get(key) and not self._armed.of(key):
            self._of.pop(key, None)
            if all(each.deleted_at is None for each in notes.attempts.values()):
                self._notes.pop(key, None)
        return again

    async def _work(self, job: JobRef, top: Owner, notes: JobNotes) -> tuple[bool, float]:
        """One attempt, once: (whether something was done, when to look again)."""
        world = self._world(job, notes)
        plan = decide(world, self._clock(), self._config.timings)
        try:
            for step in plan.steps:
                await self._do(step, job, top, world, notes)
            if not plan.steps:
                notes.trouble = None
                await self._write_status(job, self._world(job, notes), notes)
        except UsageError as error:
            notes.trouble = Trouble("CannotBeServed", str(error), lasting=True)
            await self._write_status(job, self._world(job, notes), notes)
            return False, math.inf
        except TROUBLES as error:
            await self._tell(error, job, notes)
            raise
        return bool(plan.steps), plan.again_at

    def forget_old(self) -> None:
        """Notes of jobs of which nothing has been left for long."""
        now = self._clock()
        for key in [key for key in self._notes if key not in self._of and not self._armed.of(key)]:
            last = max((each.deleted_at or 0.0 for each in self._notes[key].attempts.values()), default=0.0)
            if now > last + self._config.timings.remake_longest_s:
                del self._notes[key]
        self._told &= self.jobs()
        if self._ports:
            there = {place_of(each)[1] for each in self._seen.all(Source.COORDINATORS)}
            self._ports = {name: port for name, port in self._ports.items() if name in there}

    async def _tell(self, error: Exception, job: JobRef, notes: JobNotes) -> None:
        """Say it in the status, where that can be written."""
        if isinstance(error, ApiError):
            lasting = error.status in _LASTING
            notes.trouble = Trouble(objects.refused(error), str(error), lasting)
        else:
            notes.trouble = Trouble("NoAnswer", f"The API server does not answer: {error}")
        try:
            await self._write_status(job, self._world(job, notes), notes)
        except TROUBLES as again:
            log.debug("status of job %s not written why=%r", job, str(again))

    def _usable(self, key: JobKey, job: JobRef) -> bool:
        if names.usable(job):
            return True
        if key not in self._told:
            self._told.add(key)
            log.warning("no coordinator can be made for job %s: the uid of its owner, %r, is none", job, job.uid[:60])
        return False

    def _attempts(self, key: JobKey) -> list[int]:
        """The latest first: what it needs matters most."""
        found = {each.job.attempt for each in self._armed.of(key) if each.job is not None}
        marked = set(self._of.get(key, {}).values())
        found |= {each for each in marked if each is not None}
        return sorted(found or ({0} if marked else set()), reverse=True)

    def _job(self, key: JobKey, attempt: int) -> tuple[JobRef, Owner]:
        """The attempt, and the job's own object as a reference."""
        for each in self._armed.of(key):
            if each.job is not None and each.job.attempt == attempt:
                own = msgspec.structs.replace(POD, name=each.pod.name, uid=each.pod.uid)
                return each.job, own if each.top is None else each.top
        read = self._read(key, attempt)
        if read is not None:
            job = read.spec.job
            return read.job, Owner(job.api_version, job.kind, job.name, job.uid)
        for source, place in self._of.get(key, {}):
            thing = self._seen.get(source, *place)
            name = inside(thing or {}, "metadata", "annotations").get(names.JOB_NAME)
            if isinstance(name, str) and name:
                return JobRef(key[0], name, key[1], attempt), POD
        return JobRef(key[0], "unknown", key[1], attempt), POD  # its names do not need the job's

    def _read(self, key: JobKey, attempt: int) -> CaptureCoordinator | None:
        for (source, place), of in self._of.get(key, {}).items():
            if source is Source.COORDINATORS and of == attempt:
                thing = self._seen.get(source, *place)
                return None if thing is None else _coordinator(thing)
        return None

    # --- the world of one attempt -----------------------------------------------------------------------------

    def _world(self, job: JobRef, notes: JobNotes) -> World:
        key, now = key_of(job), self._clock()
        own = notes.attempts.setdefault(job.attempt, Notes())
        alive = [each for each in self._armed.of(key) if each.job == job and not each.pod.ended]
        read = self._read(key, job.attempt)
        pod = self._child(Kind.POD, job)
        facts = None if pod is None else facts_of(pod)
        coordinator = None
        if read is not None:
            coordinator = retired(read.metadata.uid, read.status, deleting=read.metadata.deletion_timestamp is not None)
            self._begin(read, own)
            own.alone_since, own.gone_for_sure = None, False
        alone = read is None and (pod is not None or any(self._children(job)))
        if alone and own.alone_since is None:
            own.alone_since = now
        if alive and (notes.looked is None or notes.looked.end is not End.GONE):
            notes.looks = 0
            if notes.looked is not None and notes.looked.end is End.ENDED:
                notes.looked = msgspec.structs.replace(notes.looked, end=End.RUNS)  # it was begun again
        end = self._end(notes, coordinator, bool(alive))
        latest = max(self._living(key), default=job.attempt) <= job.attempt
        counted = (facts.life if facts is not None else "", frozenset(each.pod.uid for each in alive))
        if facts is not None and facts.ready and own.counted != counted:
            own.counted, own.describe_at, own.describes = counted, now, 0
        current, wrong = self._compare(job, read, pod) if latest else (True, frozenset[Kind]())
        return World(
            alive=len(alive),
            latest=latest,
            end=end,
            looked_at=notes.looked_at,
            looks=notes.looks,
            tells=notes.looked is None or notes.looked.tells,
            coordinator=coordinator,
            pod=None
            if facts is None
            else PodNow(
                facts.life,
                current=current,
                runs=facts.runs and bool(facts.ip),
                ready=facts.ready,
                ended=facts.ended,
                deleting=facts.deleting,
            ),
            present=frozenset(
                kind
                for kind in self._children(job)
                if kind is not Kind.ACCOUNT or not self._account_needed(key, job, notes)
            ),
            wrong=wrong,
            heard=own.heard,
            alone_since=own.alone_since,
            gone_for_sure=own.gone_for_sure,
            deleted_at=own.deleted_at,
            deletions=own.deletions,
            describe_at=own.describe_at,
        )

    def _end(self, notes: JobNotes, coordinator: Coordinator | None, alive: bool) -> End:
        if notes.looked is not None:
            return notes.looked.end
        if coordinator is not None and coordinator.retired is Why.FINISHED and not alive:
            return End.ENDED  # an earlier operator has seen it
        return End.UNKNOWN

    def _begin(self, read: CaptureCoordinator, own: Notes) -> None:
        """Go on from what an earlier operator wrote: workers that were complete are not counted again."""
        if own.begun:
            return
        own.begun = True
        status = read.status
        own.registered, own.version = status.registered, status.version
        if (reached := status.condition(REACHABLE)) is not None:
            own.reachable, own.unreachable_why = reached.status == "True", reached.message
        own.world_size = status.expected
        pod = self._child(Kind.POD, read.job)
        if pod is not None and status.registered is not None and status.registered == status.expected:
            alive = frozenset(
                each.pod.uid for each in self._armed.of(key_of(read.job)) if each.job == read.job and not each.pod.ended
            )
            own.counted = (facts_of(pod).life, alive)

    def _living(self, key: JobKey) -> Iterable[int]:
        """Attempts that have pods, or a coordinator."""
        for each in self._armed.of(key):
            if each.job is not None and not each.pod.ended:
                yield each.job.attempt
        for (source, _), attempt in self._of.get(key, {}).items():
            if source is Source.COORDINATORS and attempt is not None:
                yield attempt

    def _children(self, job: JobRef) -> Iterator[Kind]:
        for kind in Kind:
            if kind is not Kind.POD and self._child(kind, job) is not None:
                yield kind

    def _child(self, kind: Kind, job: JobRef) -> Json | None:
        return self._seen.get(CHILDREN[kind], objects.place_of(kind, job, self._config), objects.name_of(kind, job))

    def _account_needed(self, key: JobKey, job: JobRef, notes: JobNotes) -> bool:
        """Whether another attempt of the job has a pod, or will."""
        others = [each for each in self._attempts(key) if each != job.attempt]
        for attempt in others:
            other = msgspec.structs.replace(job, attempt=attempt)
            if self._child(Kind.POD, other) is not None:
                return True
        latest = max(self._living(key), default=None)
        return latest in others and (
            notes.looked is None or notes.looked.end not in (End.ENDED, End.GONE) or self._any_alive(key)
        )

    def _any_alive(self, key: JobKey) -> bool:
        return any(not each.pod.ended for each in self._armed.of(key))

    def _compare(self, job: JobRef, read: CaptureCoordinator | None, pod: Json | None) -> tuple[bool, frozenset[Kind]]:
        """(whether the pod is as it would be made now, what else is missing or otherwise)."""
        if read is None:
            return True, frozenset()
        try:
            wants = self._wants(read, renewed=False)
        except UsageError:
            return True, frozenset()
        wrong: set[Kind] = set()
        for kind, want in wants.items():
            have = self._child(kind, job)
            if have is None:
                if kind is not Kind.POD:
                    wrong.add(kind)
            elif kind is Kind.SECRET:
                if not self._serves(have, job) or objects.to_mend(kind, {**want, "data": have.get("data", {})}, have):
                    wrong.add(kind)
            elif objects.to_mend(kind, want, have) is not None:
                wrong.add(kind)
        return pod is None or objects.is_current(pod, wants[Kind.POD]), frozenset(wrong)

    def _serves(self, have: Json, job: JobRef) -> bool:
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        host = objects.host_of(job, self._config)
        return certificates.serves(objects.pair_in(have), self.authority, host, now)

    def _wants(self, read: CaptureCoordinator, *, renewed: bool) -> dict[Kind, Json]:
        """All objects as they are to be, with a new certificate, or none. Raises UsageError."""
        job, config = read.job, self._config
        attempt = self._attempt(read)
        leaf = certificates.Pair(b"", b"")
        if renewed:
            now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
            leaf = certificates.leaf(self.authority, objects.host_of(job, config), now)
        return {
            Kind.ACCOUNT: objects.account(job, config),
            Kind.BINDING: objects.binding(job, config, read.metadata.uid),
            Kind.SECRET: objects.secret(job, config, leaf),
            Kind.CONFIG: objects.config_map(attempt, config),
            Kind.SERVICE: objects.service(attempt, config),
            Kind.POD: objects.pod(attempt, config),
        }

    def _attempt(self, read: CaptureCoordinator) -> Attempt:
        job = read.job
        return Attempt(
            job=job,
            series=read.spec.series,
            policy=self.policy_in(job.namespace).policy,
            ca=self.authority.bundle,
            port=self._port(job),
        )

    def _port(self, job: JobRef) -> int:
        """With a host network: no other coordinator's, also not of one that is just being made."""
        config, own, service = self._config, names.coordinator_of(job), self._child(Kind.SERVICE, job)
        if not config.host_network:
            return objects.port_of(job, config, None, ())
        if service is None and own in self._ports:
            return self._ports[own]
        taken = [port for name, port in self._ports.items() if name != own]
        for thing in self._seen.all(Source.SERVICES):
            if place_of(thing)[1] != own:
                taken += [each.get("targetPort") for each in inside(thing, "spec").get("ports") or ()]
        port = self._ports[own] = objects.port_of(job, config, service, taken)
        return port

    def policy_in(self, namespace: str) -> Effective:
        return effective(
            self._seen.all(Source.CLUSTER_POLICIES),
            (each for each in self._seen.all(Source.POLICIES) if place_of(each)[0] == namespace),
        )

    # --- steps ------------------------------------------------------------------------------------------------

    async def _do(self, step: Step, job: JobRef, top: Owner, world: World, notes: JobNotes) -> None:
        own = notes.attempts[job.attempt]
        log.debug("job %s: %s", job, step)
        match step.do:
            case Do.LOOK:
                await self._look(job, top, world, notes)
            case Do.MAKE_COORDINATOR:
                await self._make_coordinator(job, top, notes)
            case Do.KEEP:
                await self._keep(job, world)
            case Do.MAKE_POD:
                await self._create(Kind.POD, self._wanted(job, renewed=False)[Kind.POD])
            case Do.DELETE_POD:
                await self._remove(Kind.POD, job)
            case Do.RETIRE:
                assert step.why is not None
                await self._retire(job, world, own, step.why)
            case Do.DESCRIBE:
                await self._describe(job, own)
            case Do.CONFIRM_GONE:
                own.gone_for_sure = await self._is_gone(job)
            case Do.REMOVE:
                for kind in sorted(world.present, key=list(Kind).index, reverse=True):
                    await self._remove(kind, job)

    async def _look(self, job: JobRef, top: Owner, world: World, notes: JobNotes) -> None:
        looked: Looked = await self._in_thread(look, self._api, job, top)
        notes.looked_at, notes.looks = self._clock(), notes.looks + 1
        before = notes.looked
        notes.looked = looked
        if before is None or before.end is not looked.end:
            log.info("job %s: %s%s", job, looked.end.name.lower(), f" ({looked.why})" if looked.why else "")

    async def _make_coordinator(self, job: JobRef, top: Owner, notes: JobNotes) -> None:
        looked = notes.looked
        assert looked is not None
        said = next((each.series for each in self._armed.of(key_of(job)) if each.series), "")
        spec = Spec(
            Job(top.api_version, top.kind, job.name, job.uid, job.attempt),
            series=said[:253] or looked.series or job.name,
            labels=looked.labels,
        )
        body = objects.capture_coordinator(job, spec)
        try:
            made = await self._send("POST", path_of(job.namespace), body)
        except ApiError as error:
            if error.status != 409:
                raise
            made = msgspec.json.decode(await self._in_thread(self._api.get, objects.coordinator_path(job)), type=dict)
            if _coordinator(made) is None:
                raise
        else:
            log.info("job %s: CaptureCoordinator %s made", job, names.coordinator_of(job))
        self._seen.put(Source.COORDINATORS, made)

    def _wanted(self, job: JobRef, *, renewed: bool) -> dict[Kind, Json]:
        read = self._read(key_of(job), job.attempt)
        if read is None:
            raise OSError(f"the CaptureCoordinator of job {job} is gone")  # seen in a moment
        return self._wants(read, renewed=renewed)

    async def _keep(self, job: JobRef, world: World) -> None:
        kept = self._child(Kind.SECRET, job)
        serves = kept is not None and self._serves(kept, job)
        wants = self._wanted(job, renewed=not serves)
        if kept is not None and serves:
            wants[Kind.SECRET]["data"] = objects.tls_data(objects.pair_in(kept))
        for kind in Kind:
            if kind not in world.wrong:
                continue
            have, want = self._child(kind, job), wants[kind]
            if have is None:
                await self._create(kind, want)
                continue
            patch = objects.to_mend(kind, want, have)
            if patch == {}:
                await self._remove(kind, job)
                await self._create(kind, want)
            elif patch is not None:
                log.info("%s %s is mended", kind.value, objects.name_of(kind, job))
                await self._patch(kind, want, patch)

    async def _create(self, kind: Kind, want: Json) -> None:
        namespace, name = place_of(want)
        try:
            made = await self._send("POST", objects.path(kind, namespace), want)
        except ApiError as error:
            if error.status != 409:
                raise
            # It is there, and was not seen: it lost its labels, or is seen in a moment, or is being deleted.
            marks = {"metadata": {"labels": want["metadata"]["labels"]}}
            await self._patch(kind, want, marks if kind is Kind.POD else objects.to_mend(kind, want, {}) or marks)
            return
        log.info("%s %s/%s made", kind.value, namespace, name)
        self._seen.put(CHILDREN[kind], made)

    async def _patch(self, kind: Kind, want: Json, patch: Json) -> None:
        namespace, name = place_of(want)
        try:
            made = await self._send("PATCH", objects.path(kind, namespace, name), patch, MERGE_PATCH)
        except ApiError as error:
            if error.status == 404:
                self._seen.drop(CHILDREN[kind], (namespace, name))
            raise
        self._seen.put(CHILDREN[kind], made)

    async def _remove(self, kind: Kind, job: JobRef) -> None:
        """The very object that was seen; that there is none any more is as good."""
        thing = self._child(kind, job)
        if thing is None:
            return
        place, uid = place_of(thing), inside(thing, "metadata").get("uid")
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            left = await self._send("DELETE", objects.path(kind, *place), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self._seen.drop(CHILDREN[kind], place, uid)
            return
        log.info("%s %s/%s removed", kind.value, *place)
        if kind is Kind.POD and inside(left, "metadata").get("deletionTimestamp"):
            self._seen.put(CHILDREN[kind], left)  # its process ends, then it is gone
        else:
            self._seen.drop(CHILDREN[kind], place, uid)

    async def _is_gone(self, job: JobRef) -> bool:
        try:
            found = await self._in_thread(self._api.get, objects.coordinator_path(job))
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        self._seen.put(Source.COORDINATORS, msgspec.json.decode(found, type=dict))
        return False

    # --- calls ------------------------------------------------------------------------------------------------

    def _address(self, job: JobRef) -> tuple[str, PodFacts] | None:
        pod = self._child(Kind.POD, job)
        facts = None if pod is None else facts_of(pod)
        if facts is None or not facts.ip:
            return None
        return _host_port(facts.ip, facts.port), facts

    async def _retire(self, job: JobRef, world: World, own: Notes, why: Why) -> None:
        found, pod = self._address(job), world.pod
        if found is None or pod is None:
            return
        before = own.heard
        same = before is not None and before.life == pod.life and before.why is why
        unsettled: int | None = None
        try:
            unsettled = await self._coordinators.retire(job, found[0], self.authority.bundle, why)
        except SameshotError as error:
            self._unreachable(job, own, error)
        else:
            own.reachable = True
        times = before.times + 1 if before is not None and same and before.unsettled == unsettled else 1
        own.heard = Heard(pod.life, why, self._clock(), unsettled, times)

    async def _describe(self, job: JobRef, own: Notes) -> None:
        found = self._address(job)
        timings = self._config.timings
        own.describes += 1
        pause = min(timings.ask_s * 2.0 ** min(own.describes - 1, 30), 86_400.0)
        own.describe_at = self._clock() + pause
        if found is None:
            return
        try:
            said = await self._coordinators.describe(job, found[0], self.authority.bundle)
        except SameshotError as error:
            self._unreachable(job, own, error)
            return
        own.reachable = True
        own.registered, own.world_size, own.version = said.registered, said.world_size, said.version
        expected = self._expected(job, own)
        if expected is not None and own.registered is not None and own.registered >= expected:
            own.describe_at = None  # complete: nothing is asked until pods change

    def _unreachable(self, job: JobRef, own: Notes, error: SameshotError) -> None:
        if own.reachable is not False:
            log.warning("coordinator of job %s: %s", job, error)
        own.reachable, own.unreachable_why = False, str(error)

    def _expected(self, job: JobRef, own: Notes) -> int | None:
        """What the armed pods are to start; where that is not known of all, what the workers state."""
        sizes = [
            each.pod.local_world_size for each in self._armed.of(key_of(job)) if each.job == job and not each.pod.ended
        ]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else own.world_size

    # --- the status -------------------------------------------------------------------------------------------

    async def _write_status(self, job: JobRef, world: World, notes: JobNotes) -> None:
        read = self._read(key_of(job), job.attempt)
        if read is None or read.metadata.deletion_timestamp is not None:
            return
        own, now = notes.attempts[job.attempt], self._clock()
        before = read.status
        after = status_of(self._facts(read, world, notes, own), before, now)
        if after == before:
            return
        path = objects.coordinator_path(job, status=True)
        try:
            made = await self._send("PATCH", path, patch_of(after), MERGE_PATCH)
        except ApiError as error:
            if error.status == 404:  # it went meanwhile; that will be seen
                self._seen.drop(Source.COORDINATORS, (job.namespace, read.metadata.name), read.metadata.uid)
                return
            raise
        self._seen.put(Source.COORDINATORS, made)
        if before.phase is not after.phase:
            log.info("job %s: %s", job, after.phase.value)

    def _facts(self, read: CaptureCoordinator, world: World, notes: JobNotes, own: Notes) -> Facts:
        job, config = read.job, self._config
        pod = self._child(Kind.POD, job)
        facts = None if pod is None else facts_of(pod)
        endpoint = ""
        if facts is not None and facts.ip:
            by_service = config.reach is Reach.SERVICE
            host = f"{objects.host_of(job, config)}:{names.COORDINATOR_PORT}"
            endpoint = host if by_service else _host_port(facts.ip, facts.port)
        place = None
        if facts is not None and not facts.deleting:
            place = PodPlace(config.coordinators_namespace, names.coordinator_of(job), facts.port)
        alive = world.alive > 0
        return Facts(
            attempt=job.attempt,
            closing=closing(world),
            pod=place,
            ready=facts is not None and facts.ready and not facts.deleting,
            endpoint=endpoint,
            server_name=objects.host_of(job, config),
            ca=self.authority.bundle,
            note="" if facts is None else facts.note,
            reachable=own.reachable if facts is not None else None,
            unreachable_why=own.unreachable_why,
            problems=self.policy_in(job.namespace).problems,
            trouble=notes.trouble,
            registered=own.registered if alive else read.status.registered,
            expected=self._expected(job, own) if alive else read.status.expected,
            version=own.version,
        )

    async def _send(self, method: str, path: str, body: object, content_type: str = "application/json") -> Json:
        answer = await self._in_thread(self._api.send, method, path, body, content_type=content_type)
        found: Json = msgspec.json.decode(answer, type=dict)
        return found


def _host_port(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _coordinator(thing: Json) -> CaptureCoordinator | None:
    """One that is named after its job; any other one is none of ours, whoever made it."""
    try:
        read = msgspec.convert(thing, CaptureCoordinator)
    except msgspec.ValidationError:
        return None
    job = read.job
    return read if names.usable(job) and names.coordinator_of(job) == read.metadata.name else None
