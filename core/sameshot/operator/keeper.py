"""Does for each job what `decide` says: reads, writes, calls, until nothing is left to do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable

from sameshot.arm.values import Json, inside
from sameshot.errors import SameshotError, UsageError
from sameshot.kube import names
from sameshot.kube.api import MERGE_PATCH, TROUBLES, Api, ApiError
from sameshot.kube.coordinators import Job, Spec, path_of
from sameshot.kube.pods import Owner
from sameshot.model import JobRef
from sameshot.operator import objects
from sameshot.operator.armed import ArmedPods, InThread, JobKey, key_of
from sameshot.operator.calls import Coordinators
from sameshot.operator.conditions import Trouble, patch_of, status_of
from sameshot.operator.config import OperatorConfig
from sameshot.operator.decide import Do, Step, Why, World, closing, decide, heard_after, waits
from sameshot.operator.jobs import Looked, look
from sameshot.operator.known import Known, coordinator_in
from sameshot.operator.mending import mark, to_mend
from sameshot.operator.notes import JobNotes, Notes
from sameshot.operator.objects import Kind
from sameshot.operator.seen import Seen
from sameshot.operator.sources import Source
from sameshot.operator.tried import growing
from sameshot.operator.worlds import Worlds
from sameshot.operator.writing import Writing

log = logging.getLogger(__name__)

LONGEST_UNCOUNTED_S = 86_400.0  # between questions for workers that do not come
MOST_ROUNDS = 30  # of decisions in a row for one job; then others get their turn
_LASTING = {400, 403, 405, 422}


class Keeper:
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
        self._writing = Writing(api, seen, in_thread)
        self._notes: dict[JobKey, JobNotes] = {}
        self._told: set[JobKey] = set()
        self._waiting: dict[str, dict[JobKey, None]] = {}  # by namespace, in the order in which they came
        self.known = Known(config, seen, armed, self._gone)
        self.worlds = Worlds(config, seen, armed, self.known, clock)

    def _gone(self, key: JobKey, attempt: int) -> None:
        notes = self._notes.setdefault(key, JobNotes()).attempts.setdefault(attempt, Notes())
        notes.deleted_at, notes.deletions = self._clock(), notes.deletions + 1

    @property
    def unusable(self) -> int:
        """Jobs that no coordinator can be made for."""
        return len(self._told)

    async def work(self, key: JobKey) -> float:
        """Do what this job needs; when it is to be looked at again (epoch seconds). Raises what the API server does."""
        if self._config.namespaces and key[0] not in self._config.namespaces:
            return math.inf  # another operator's
        notes = self._notes.setdefault(key, JobNotes())
        failed: dict[int, Exception] = {}  # what the latest attempt is refused is often what an earlier one still has
        for _ in range(MOST_ROUNDS):
            again, busy = math.inf, False
            for attempt in self.known.attempts(key):
                job, top = self.known.ref(key, attempt)
                if attempt not in failed and self._usable(key, job):
                    try:
                        did, at = await self._work(job, top, notes)
                    except Exception as error:
                        failed[attempt] = error
                        continue
                    again, busy = min(again, at), busy or did
                await asyncio.sleep(0)  # others have their turns between
            if not busy:
                break
        else:
            again = self._clock()
        if not self.known.anything_of(key):
            self.known.forget(key)
            if all(each.deleted_at is None for each in notes.attempts.values()):
                self._notes.pop(key, None)
        for first in failed.values():
            raise first
        return again

    async def _work(self, job: JobRef, top: Owner, notes: JobNotes) -> tuple[bool, float]:
        """One attempt, once: (whether something was done, when to look again)."""
        world = self.worlds.world(job, notes)
        own = notes.attempts[job.attempt]
        recount_at = self.worlds.recount(job, own) if world.alive else math.inf
        plan = decide(world, self._clock(), self._config.timings)
        self._note_waiting(job, world)
        makes = any(step.do is Do.MAKE_POD for step in plan.steps)
        try:
            with self.known.making(job) if makes else contextlib.nullcontext():
                for step in plan.steps:
                    await self._do(step, job, top, world, notes)
            if not plan.steps:
                own.trouble = None
                await self._write_status(job, self.worlds.world(job, notes), notes)
        except UsageError as error:
            own.trouble = Trouble("CannotBeServed", str(error), lasting=True)
            await self._write_status(job, self.worlds.world(job, notes), notes)
            return False, math.inf
        except TROUBLES as error:
            await self._tell(error, job, notes)
            raise
        return bool(plan.steps), min(plan.again_at, recount_at)

    def _note_waiting(self, job: JobRef, world: World) -> None:
        key, there = key_of(job), self._waiting.get(job.namespace, {})
        if not (world.coordinator is not None and closing(world) is None and world.placed and waits(world)):
            there.pop(key, None)
            return
        if not there:
            log.warning(
                "namespace %s has %d coordinators already; for its other jobs none is started until one of these ends",
                job.namespace, self._config.max_coordinators,
            )  # fmt: skip
        self._waiting.setdefault(job.namespace, {})[key] = None

    def waiting(self, namespace: str) -> list[JobKey]:
        """Jobs whose coordinator waits for room, those that have waited the longest first."""
        return list(self._waiting.get(namespace, ()))

    @property
    def held_back(self) -> int:
        """Jobs whose coordinator waits for room."""
        return sum(map(len, self._waiting.values()))

    def forget_old(self) -> None:
        """Notes of jobs of which nothing has been left for long."""
        now = self._clock()
        for key in [key for key in self._notes if not self.known.anything_of(key)]:
            last = max((each.deleted_at or 0.0 for each in self._notes[key].attempts.values()), default=0.0)
            if now > last + self._config.timings.remake_longest_s:
                del self._notes[key]
        jobs = self.known.jobs()
        self._told &= jobs
        for namespace, keys in list(self._waiting.items()):
            self._waiting[namespace] = {key: None for key in keys if key in jobs}
            if not self._waiting[namespace]:
                del self._waiting[namespace]
        self.worlds.forget_old()

    async def _tell(self, error: Exception, job: JobRef, notes: JobNotes) -> None:
        """Say it in the status, where that can be written."""
        own = notes.attempts[job.attempt]
        if isinstance(error, ApiError):
            lasting = error.status in _LASTING
            own.trouble = Trouble(objects.refused(error), str(error), lasting)
        else:
            own.trouble = Trouble("NoAnswer", f"The API server does not answer: {error}")
        try:
            await self._write_status(job, self.worlds.world(job, notes), notes)
        except TROUBLES as again:
            log.debug("status of job %s not written why=%r", job, str(again))

    def _usable(self, key: JobKey, job: JobRef) -> bool:
        if names.usable(job):
            return True
        if key not in self._told:
            self._told.add(key)
            log.warning(
                "no coordinator can be made for job %r: the name or the uid of its pods' owner, %r, is none",
                str(job)[:300], job.uid[:60],
            )  # fmt: skip
        return False

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
                if world.undone:
                    own.mends = own.mends.did(self._clock())
                await self._keep(job, world, own)
            case Do.MAKE_POD:
                await self._writing.create(Kind.POD, self._wanted(job, renewed=False)[Kind.POD])
                own.pods = own.pods.did(self._clock())
            case Do.DELETE_POD:
                await self._remove(Kind.POD, job)
            case Do.FORCE_POD:
                await self._force(job, own)
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
            made = await self._writing.send("POST", path_of(job.namespace), body)
        except ApiError as error:
            if error.status != 409:
                raise
            made = await self._writing.get(objects.coordinator_path(job))
            if coordinator_in(made) is None:
                raise
        else:
            log.info("job %s: CaptureCoordinator %s made", job, names.coordinator_of(job))
        self._writing.coordinator(made)

    def _wanted(self, job: JobRef, *, renewed: bool) -> dict[Kind, Json]:
        read = self.known.read(key_of(job), job.attempt)
        if read is None:
            raise OSError(f"the CaptureCoordinator of job {job} is gone")  # seen in a moment
        return self.worlds.wants(read, renewed=renewed)

    async def _keep(self, job: JobRef, world: World, own: Notes) -> None:
        kept = self.known.child(Kind.SECRET, job)
        serves = kept is not None and self.worlds.serves(kept, job)
        wants = self._wanted(job, renewed=not serves)
        if kept is not None and serves:
            wants[Kind.SECRET]["data"] = objects.tls_data(objects.pair_in(kept))
        for kind in Kind:
            if kind not in world.wrong:
                continue
            have, want = self.known.child(kind, job), wants[kind]
            own.written[kind] = mark(kind, want)
            if have is None:
                await self._writing.create(kind, want)
                continue
            patch = to_mend(kind, want, have)
            if patch == {}:
                await self._remove(kind, job)
                await self._writing.create(kind, want)
            elif patch is not None:
                log.info("%s %s is mended", kind.value, objects.name_of(kind, job))
                await self._writing.patch(kind, want, patch)

    async def _remove(self, kind: Kind, job: JobRef) -> None:
        thing = self.known.child(kind, job)
        if thing is not None:
            await self._writing.remove(kind, thing)

    async def _force(self, job: JobRef, own: Notes) -> None:
        pod = self.known.child(Kind.POD, job)
        if pod is None:
            return
        own.forced_at = self._clock()
        node = str(inside(pod, "spec").get("nodeName") or "")
        log.warning(
            "pod %s of job %s is removed by force: it should have been gone by %s, and its node %s does not say so",
            objects.name_of(Kind.POD, job), job, inside(pod, "metadata").get("deletionTimestamp"), node,
        )  # fmt: skip
        await self._writing.remove(Kind.POD, pod, force=True)
        own.lost_node = node

    async def _is_gone(self, job: JobRef) -> bool:
        try:
            found = await self._writing.get(objects.coordinator_path(job))
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        self._writing.coordinator(found)
        return False

    # --- calls ------------------------------------------------------------------------------------------------

    async def _retire(self, job: JobRef, world: World, own: Notes, why: Why) -> None:
        found, pod = self.worlds.address(job), world.pod
        if found is None or pod is None:
            return
        unsettled: int | None = None
        try:
            unsettled = await self._coordinators.retire(job, found, self.worlds.authority.bundle, why)
        except SameshotError as error:
            self._unreachable(job, own, error)
        else:
            own.reachable = own.answered = True
        own.heard = heard_after(own.heard, pod.life, why, unsettled, self._clock())

    async def _describe(self, job: JobRef, own: Notes) -> None:
        found = self.worlds.address(job)
        timings = self._config.timings
        own.describes += 1
        own.described_at = self._clock()
        own.describe_at = own.described_at + growing(timings.ask_s, own.describes, LONGEST_UNCOUNTED_S)
        if found is None:
            return
        try:
            said = await self._coordinators.describe(job, found, self.worlds.authority.bundle)
        except SameshotError as error:
            self._unreachable(job, own, error)
            return
        own.reachable = own.answered = True
        own.registered, own.world_size, own.version = said.registered, said.world_size, said.version
        own.expected, own.expected_at = self.worlds.expected(job, own), self._clock()  # told together
        if own.expected is not None and own.registered is not None and own.registered >= own.expected:
            own.describe_at = None  # complete: nothing is asked until pods change

    def _unreachable(self, job: JobRef, own: Notes, error: SameshotError) -> None:
        if own.reachable is not False:
            log.warning("coordinator of job %s: %s", job, error)
        own.reachable, own.unreachable_why = False, str(error)
        soon = self._clock() + self._config.timings.end_longest_s  # not as much later as it was away
        own.describe_at = soon if own.describe_at is None else min(own.describe_at, soon)

    # --- the status -------------------------------------------------------------------------------------------

    async def _write_status(self, job: JobRef, world: World, notes: JobNotes) -> None:
        read = self.known.read(key_of(job), job.attempt)
        if read is None or read.metadata.deletion_timestamp is not None:
            return
        own, now = notes.attempts[job.attempt], self._clock()
        before = read.status
        after = status_of(self.worlds.facts(read, world, notes, own), before, now)
        if after == before:
            return
        path = objects.coordinator_path(job, status=True)
        try:
            made = await self._writing.send("PATCH", path, patch_of(after), MERGE_PATCH)
        except ApiError as error:
            if error.status == 404:  # it went meanwhile; that will be seen
                self._seen.drop(Source.COORDINATORS, (job.namespace, read.metadata.name), read.metadata.uid)
                return
            raise
        self._writing.coordinator(made)
        if before.phase is not after.phase:
            log.info("job %s: %s", job, after.phase.value)
