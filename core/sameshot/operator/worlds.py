"""From what is seen and noted: the world that is decided on, the objects as they are to be, what the status says."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.errors import UsageError
from sameshot.hostport import joined
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, PodPlace
from sameshot.model import JobRef
from sameshot.operator import authority as certificates
from sameshot.operator import coordinatorpod, objects
from sameshot.operator.armed import ArmedPods, JobKey, key_of
from sameshot.operator.childpods import PodFacts, facts_of
from sameshot.operator.conditions import MAX_MESSAGE, REACHABLE, Facts, retired, stamp
from sameshot.operator.config import OperatorConfig, Reach
from sameshot.operator.decide import Coordinator, End, PodNow, Why, World, closing, next_mend, next_pod, waits
from sameshot.operator.known import Known
from sameshot.operator.mending import mark, to_mend
from sameshot.operator.notes import JobNotes, Notes
from sameshot.operator.objects import Attempt, Kind
from sameshot.operator.policies import Effective, effective
from sameshot.operator.seen import Seen, place_of
from sameshot.operator.sources import Source


class Worlds:
    """`authority` is set before anything is asked here, and again when it was renewed; so is `config`, once the image
    is known."""

    authority: certificates.Authority

    def __init__(
        self, config: OperatorConfig, seen: Seen, armed: ArmedPods, known: Known, clock: Callable[[], float]
    ) -> None:
        self.config = config
        self._seen = seen
        self._armed = armed
        self._known = known
        self._clock = clock
        self._ports: dict[str, int] = {}  # on the nodes' network, by the coordinator's name

    def world(self, job: JobRef, notes: JobNotes) -> World:
        key, now = key_of(job), self._clock()
        own = notes.attempts.setdefault(job.attempt, Notes())
        alive = [each for each in self._armed.of(key) if each.job == job and not each.pod.ended]
        read = self._known.read(key, job.attempt)
        pod = self._known.child(Kind.POD, job)
        facts = None if pod is None else facts_of(pod)
        coordinator = None
        if read is not None:
            coordinator = retired(read.metadata.uid, read.status, deleting=read.metadata.deletion_timestamp is not None)
            self._begin(read, own)
            own.alone_since, own.gone_for_sure = None, False
        alone = read is None and (pod is not None or any(self._known.children(job)))
        if alone and own.alone_since is None:
            own.alone_since = now
        if alive and (notes.looked is None or notes.looked.end is not End.GONE):
            notes.looks = 0
            if notes.looked is not None and notes.looked.end is End.ENDED:
                notes.looked = msgspec.structs.replace(notes.looked, end=End.RUNS)  # it was begun again
        notes.moved = not self._armed.of(key) and (notes.moved or self._armed.moved(key))
        end = End.ENDED if notes.moved else self._end(notes, coordinator, bool(alive))
        if not alive or self._armed.sure(key):
            own.unsure_since = None
        elif own.unsure_since is None:
            own.unsure_since = now
        latest = max(self._known.living(key), default=job.attempt) <= job.attempt
        counted = (facts.life if facts is not None else "", frozenset(each.pod.uid for each in alive))
        if facts is not None and facts.ready:
            own.lost_node = ""
        if facts is not None and facts.ready and own.counted != counted:
            own.counted, own.describes = counted, 0
            pause = self.config.timings.recount_s
            own.describe_at = min(max(now, own.described_at + pause), now + pause)
        current, wrong, undone = self._compare(job, read, pod, own) if latest else (True, frozenset[Kind](), False)
        if facts is None or not facts.deleting:
            own.going_since = None
        elif own.going_since is None or own.going_since[0] != facts.life:
            own.going_since = facts.life, now  # by our own clock: the API server may have another one
        if facts is not None and facts.life != own.life:
            own.life, own.answered, own.version = facts.life, False, ""
        if not (placed := any(each.pod.node for each in alive)):
            self._known.release(job)
        timings = self.config.timings
        own.pods = own.pods.seen(now, timings, good=facts is not None and facts.ready and current)
        own.mends = own.mends.seen(now, timings, good=not wrong)
        return World(
            unsure_since=own.unsure_since,
            alive=len(alive),
            placed=placed,
            room=pod is not None or self._known.has_room(job),
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
                gone_by=math.inf if own.going_since is None else own.going_since[1] + facts.grace_s,
            ),
            present=frozenset(
                kind
                for kind in self._known.children(job)
                if kind is not Kind.ACCOUNT or not self._account_needed(key, job, notes)
            ),
            wrong=wrong,
            heard=own.heard,
            answered=own.answered,
            alone_since=own.alone_since,
            gone_for_sure=own.gone_for_sure,
            deleted_at=own.deleted_at,
            deletions=own.deletions,
            describe_at=own.describe_at,
            pods=own.pods,
            mends=own.mends,
            undone=undone,
            forced_at=own.forced_at,
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
        own.registered, own.version, own.expected = status.registered, status.version, status.expected
        if (reached := status.condition(REACHABLE)) is not None:
            own.reachable, own.unreachable_why = reached.status == "True", reached.message
        own.world_size = status.expected
        pod = self._known.child(Kind.POD, read.job)
        if pod is not None:
            own.life, own.answered = facts_of(pod).life, bool(status.version)
        if pod is not None and status.registered is not None and status.registered == status.expected:
            alive = frozenset(
                each.pod.uid for each in self._armed.of(key_of(read.job)) if each.job == read.job and not each.pod.ended
            )
            own.counted = (facts_of(pod).life, alive)

    def _account_needed(self, key: JobKey, job: JobRef, notes: JobNotes) -> bool:
        """Whether another attempt of the job has a pod, or will."""
        others = [each for each in self._known.attempts(key) if each != job.attempt]
        for attempt in others:
            other = msgspec.structs.replace(job, attempt=attempt)
            if self._known.child(Kind.POD, other) is not None:
                return True
        latest = max(self._known.living(key), default=None)
        return latest in others and (
            notes.looked is None or notes.looked.end not in (End.ENDED, End.GONE) or self._known.alive(key)
        )

    def _compare(
        self, job: JobRef, read: CaptureCoordinator | None, pod: Json | None, own: Notes
    ) -> tuple[bool, frozenset[Kind], bool]:
        """(whether the pod is as it would be made now, what else is missing or otherwise, whether that was undone)."""
        if read is None:
            return True, frozenset(), False
        try:
            wants = self.wants(read, renewed=False)
        except UsageError:
            return True, frozenset(), False
        wrong: set[Kind] = set()
        for kind, want in wants.items():
            have = self._known.child(kind, job)
            if have is None:
                if kind is not Kind.POD:
                    wrong.add(kind)
            elif kind is Kind.SECRET:
                if not self.serves(have, job) or to_mend(kind, {**want, "data": have.get("data", {})}, have):
                    wrong.add(kind)
            elif to_mend(kind, want, have) is not None:
                wrong.add(kind)
        undone = any(own.written.get(kind) == mark(kind, wants[kind]) for kind in wrong)
        return pod is None or coordinatorpod.is_current(pod, wants[Kind.POD]), frozenset(wrong), undone

    def serves(self, have: Json, job: JobRef) -> bool:
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        host = objects.host_of(job, self.config)
        return certificates.serves(objects.pair_in(have), self.authority, host, now)

    def wants(self, read: CaptureCoordinator, *, renewed: bool) -> dict[Kind, Json]:
        """All objects as they are to be, with a new certificate, or none. Raises UsageError."""
        job, config = read.job, self.config
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
            Kind.POD: coordinatorpod.pod(attempt, config),
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
        config, own, service = self.config, names.coordinator_of(job), self._known.child(Kind.SERVICE, job)
        if not config.host_network:
            return names.COORDINATOR_PORT
        if (now := objects.port_now(config, service)) is not None:
            self._ports[own] = now  # it stays, also if somebody removes its Service
            return now
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
            self._seen.all_in(Source.POLICIES, namespace),
        )

    def expected(self, job: JobRef, own: Notes) -> int | None:
        """What the armed pods are to start; where that is not known of all, what the workers state."""
        sizes = [
            each.pod.local_world_size for each in self._armed.of(key_of(job)) if each.job == job and not each.pod.ended
        ]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else own.world_size

    def recount(self, job: JobRef, own: Notes) -> float:
        """Count what is expected, if it is time; when it is to be counted again (epoch seconds; inf: it is right)."""
        now, found = self._clock(), self.expected(job, own)
        if found == own.expected:
            return math.inf
        again = own.expected_at + self.config.timings.recount_s
        if own.expected is not None and own.expected_at <= now < again:
            return again
        own.expected, own.expected_at = found, now
        return math.inf

    def address(self, job: JobRef) -> str | None:
        """Where its coordinator is called; None: nowhere yet."""
        pod = self._known.child(Kind.POD, job)
        facts = None if pod is None else facts_of(pod)
        return None if facts is None or not facts.ip else joined(facts.ip, facts.port)

    def facts(self, read: CaptureCoordinator, world: World, notes: JobNotes, own: Notes) -> Facts:
        job, config = read.job, self.config
        pod = self._known.child(Kind.POD, job)
        facts = None if pod is None else facts_of(pod)
        endpoint = ""
        if facts is not None and facts.ip:
            by_service = config.reach is Reach.SERVICE
            host = f"{objects.host_of(job, config)}:{names.COORDINATOR_PORT}"
            endpoint = host if by_service else joined(facts.ip, facts.port)
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
            note=self._note(world, facts, own),
            reachable=None if facts is None else False if facts.cut_off else own.reachable,
            unreachable_why=self._unreachable_why(job, facts, own),
            disputed=self._disputed(world),
            problems=self.policy_in(job.namespace).problems,
            trouble=own.trouble,
            waits=self._waits(world),
            registered=own.registered if alive else read.status.registered,
            expected=own.expected if alive else read.status.expected,
            version=own.version,
        )

    def _unreachable_why(self, job: JobRef, facts: PodFacts | None, own: Notes) -> str:
        if facts is None or facts.cut_off:
            return "" if facts is None else facts.note
        by_hand = (
            " Another one is made in its place, and captures that run have two minutes, after: "
            f"kubectl delete pod -n {self.config.coordinators_namespace} {names.coordinator_of(job)}"
        )
        return own.unreachable_why.removesuffix(by_hand)[: MAX_MESSAGE - len(by_hand)] + by_hand

    def _note(self, world: World, facts: PodFacts | None, own: Notes) -> str:
        words = [facts.note] if facts is not None else ["Its pod is gone."] if own.pods.times else []
        if own.lost_node and (facts is None or not facts.deleting):
            words.append(f"The one before was removed by force, as its node {own.lost_node} seems to be lost.")
        if own.pods.times > 1 and (facts is None or facts.ended):
            again = stamp(next_pod(world, self.config.timings))
            words.append(f"It was made {own.pods.times} times in a row, and is again at {again}.")
        return " ".join(words)

    def _disputed(self, world: World) -> str:
        """What is undone each time."""
        timings = self.config.timings
        if world.pod is not None and world.pod.ready and not world.pod.current and world.pods.times > 1:
            return (
                f"Its pod is not what the operator makes, although it was made {world.pods.times} times in a row: "
                f"something changes the annotation {coordinatorpod.TEMPLATE}. The next try is at "
                f"{stamp(next_pod(world, timings))}."
            )
        if world.wrong and world.undone and world.mends.times > 2:
            return (
                f"{', '.join(sorted(world.wrong))}: not as it is to be, although it was mended {world.mends.times} "
                f"times in a row: something changes it back. The next try is at {stamp(next_mend(world, timings))}."
            )
        return ""

    def _waits(self, world: World) -> tuple[str, str] | None:
        """Why its pod is not made yet: a reason, and words."""
        if not waits(world):
            return None
        if not world.placed:
            return "NoPodPlaced", "No armed pod of the job has a node yet; its coordinator starts when one has."
        most = self.config.max_coordinators
        return "TooManyCoordinators", (
            f"There are {most} coordinators for jobs of this namespace already, and no more are started at once "
            "(--max-coordinators-per-namespace of the operator); it starts when one of these jobs has ended."
        )

    def forget_old(self) -> None:
        """Ports of coordinators that are not there any more."""
        if self._ports:
            there = {place_of(each)[1] for each in self._seen.all(Source.COORDINATORS)}
            self._ports = {name: port for name, port in self._ports.items() if name in there}
