"""What one attempt of a job needs now. Pure: the same world gives the same answer, however often it is asked.

A coordinator that works on captures is never taken away: it is told to take no new ones (`Retire`), and goes when it
says that nothing is unsettled. So whatever the operator forgot in a restart it finds out by asking again.
"""

from __future__ import annotations

import enum
import math

import msgspec

from sameshot.operator.config import Timings
from sameshot.operator.objects import Kind
from sameshot.operator.tried import Tried, growing


class End(enum.Enum):
    """What is known about the job's own object."""

    UNKNOWN = enum.auto()  # not read yet, not readable, or of a kind that does not tell
    RUNS = enum.auto()  # it is there and may start pods, also when it is suspended
    ENDED = enum.auto()
    GONE = enum.auto()  # there is no such object (any more)


class Why(enum.IntEnum):
    """Why a coordinator is to take no new captures; the numbers are sameshot.proto's."""

    FINISHED = 1
    SUPERSEDED = 2
    REPLACED = 3


class Coordinator(msgspec.Struct, frozen=True):
    """The CaptureCoordinator. `retired_at` (epoch seconds) is since when its status says that it ends, and why."""

    uid: str
    deleting: bool = False
    retired: Why | None = None
    retired_at: float = math.inf


class PodNow(msgspec.Struct, frozen=True):
    """The coordinator's pod. `life`: of its process, as far as is known: pod and restarts. `runs`: its container does;
    else it has no captures, and can't be asked."""

    life: str
    current: bool = True  # it is as it would be made now
    runs: bool = False
    ready: bool = False
    ended: bool = False  # it will not run again
    deleting: bool = False
    gone_by: float = math.inf  # when it is to be gone, if it is being deleted


class Heard(msgspec.Struct, frozen=True):
    """What a coordinator last answered to Retire. `unsettled` None: it did not answer, or refused."""

    life: str
    why: Why
    at: float
    unsettled: int | None
    times: int = 1  # how often it was asked in a row and said the same
    least: int | None = None  # the smallest number so far
    since: float | None = None  # since when there has been no progress, nor an answer after none

    @property
    def still_since(self) -> float:
        return self.at if self.since is None else self.since


def heard_after(before: Heard | None, life: str, why: Why, unsettled: int | None, now: float) -> Heard:
    """Captures that begin while others hang are no progress, and neither is their end."""
    if before is None or before.life != life or before.why is not why or before.unsettled == 0:
        return Heard(life, why, now, unsettled, 1, unsettled, now)
    times = before.times + 1 if before.unsettled == unsettled else 1
    if unsettled is None or before.unsettled is None:
        same = before.unsettled is unsettled
        return Heard(life, why, now, unsettled, times, unsettled, before.still_since if same else now)
    least = before.unsettled if before.least is None else before.least
    since = before.still_since if unsettled >= least else now
    return Heard(life, why, now, unsettled, times, min(least, unsettled), since)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision is made from. Times are epoch seconds."""

    unsure_since: float | None = None  # since when of none of them it is sure that this is their job
    alive: int = 0  # armed pods of this attempt that run or will
    placed: bool = True  # one of them has a node
    room: bool = True  # there are not too many coordinators' pods for jobs of this namespace
    latest: bool = True  # no later attempt of the job is known
    end: End = End.UNKNOWN
    looked_at: float | None = None  # when the job's own object was last looked at, or tried to
    looks: int = 0  # since the job had pods
    tells: bool = True  # whether jobs of this kind ever tell that they have ended
    coordinator: Coordinator | None = None
    pod: PodNow | None = None
    present: frozenset[Kind] = frozenset()  # without the pod, and without an account that another attempt needs
    wrong: frozenset[Kind] = frozenset()  # missing, or not as they should be (the pod: its labels)
    heard: Heard | None = None
    answered: bool = True  # whether this life of its process ever said anything but that it refuses
    alone_since: float | None = None  # since when there has been no CaptureCoordinator, but something of ours
    gone_for_sure: bool = False  # the API server said that there is no CaptureCoordinator
    deleted_at: float | None = None  # when a CaptureCoordinator of this attempt was last seen to go
    deletions: int = 0
    describe_at: float | None = None  # when the coordinator is to be asked how many workers there are
    pods: Tried = Tried()  # how often its pod was made
    mends: Tried = Tried()  # how often what was `wrong` was made or mended, and was so again
    undone: bool = True  # something of it was already made just as it is wanted now
    forced_at: float = -math.inf  # when its pod was last removed by force


class Do(enum.Enum):
    LOOK = enum.auto()  # read the job's own object
    MAKE_COORDINATOR = enum.auto()
    KEEP = enum.auto()  # make or mend what is `wrong`
    MAKE_POD = enum.auto()
    DELETE_POD = enum.auto()  # the one that was seen, and no other
    FORCE_POD = enum.auto()  # the same for one that was deleted long ago, and whose kubelet does not say that it ended
    RETIRE = enum.auto()
    DESCRIBE = enum.auto()
    CONFIRM_GONE = enum.auto()  # ask for the CaptureCoordinator by name
    REMOVE = enum.auto()  # all that is present; the pod went before, as it may need the rest until its end


class Step(msgspec.Struct, frozen=True):
    do: Do
    why: Why | None = None


class Plan(msgspec.Struct, frozen=True):
    """What to do now; when to look again although nothing has changed (epoch seconds; inf: never)."""

    steps: tuple[Step, ...] = ()
    again_at: float = math.inf


NOTHING = Plan()


def decide(world: World, now: float, timings: Timings) -> Plan:
    if world.coordinator is not None:
        if world.coordinator.deleting:
            return NOTHING  # it is about to be gone, and that will be seen
        if (why := closing(world)) is not None:
            return _close(world, now, timings, why)
        return _serve(world, now, timings)
    wanted = world.alive > 0 and world.latest
    if wanted and world.end is not End.GONE:
        return _begin(world, now, timings)
    plan = _clear(world, now, timings) if world.pod is not None or world.present else NOTHING
    if wanted and not plan.steps:  # its pods live on without it: for a moment, or because it could not be seen
        look = -math.inf if world.looked_at is None else world.looked_at + _pause_of_looks(world, timings)
        if now >= look:
            return Plan((Step(Do.LOOK),), plan.again_at)
        return Plan(again_at=min(look, plan.again_at))
    return plan


def closing(world: World) -> Why | None:
    """Why this attempt's coordinator is to go; None: it is not."""
    if not world.latest:
        return Why.SUPERSEDED
    if world.end in (End.ENDED, End.GONE) and not world.alive:
        return Why.FINISHED
    return None


def next_pod(world: World, timings: Timings) -> float:
    """Before then no pod is made again: whatever rejects, deletes or changes each does not wear out the API server."""
    return world.pods.next(timings, timings.remake_longest_s)


def next_mend(world: World, timings: Timings) -> float:
    """What is wanted otherwise than before is written at once; what somebody changes back is not, each time."""
    return world.mends.next(timings, timings.mend_longest_s) if world.undone else -math.inf


def _begin(world: World, now: float, timings: Timings) -> Plan:
    """The job's own object is read first: a CaptureCoordinator of a job that is not there would go at once."""
    if world.deleted_at is not None:
        again = world.deleted_at + growing(timings.remake_s, world.deletions, timings.remake_longest_s)
        if now < again:
            return Plan(again_at=again)
    if world.unsure_since is not None and now < world.unsure_since + timings.unsure_s:
        return Plan(again_at=world.unsure_since + timings.unsure_s)
    if world.looked_at is None or (world.deleted_at is not None and world.looked_at <= world.deleted_at):
        return Plan((Step(Do.LOOK),))
    return Plan((Step(Do.MAKE_COORDINATOR),))


def waits(world: World) -> bool:
    """Whether a coordinator's pod is not made yet: while no pod of the job has a node there is nothing to capture, and
    a thousand jobs that find no room must not take up more of it with coordinators."""
    return world.pod is None and not (world.placed and world.room)


def _serve(world: World, now: float, timings: Timings) -> Plan:
    steps: list[Step] = []
    again = math.inf
    if world.wrong and not waits(world):
        if now >= next_mend(world, timings):
            steps.append(Step(Do.KEEP))
        else:
            again = next_mend(world, timings)
    pod = world.pod
    if waits(world):
        pass  # what it waits for is told
    elif pod is None:
        if now < next_pod(world, timings):
            again = min(again, next_pod(world, timings))
        elif steps or world.wrong - {Kind.POD} <= world.present:  # else it would lack something
            steps.append(Step(Do.MAKE_POD))
    elif pod.deleting:
        plan = _going(world, pod, now, timings)
        steps += plan.steps
        again = min(again, plan.again_at)
    elif pod.ended or not pod.current or _retired_for_good(world, pod):
        # It stays until another one may be made: to be looked at, or to serve meanwhile.
        if now < next_pod(world, timings):
            again = min(again, next_pod(world, timings))
        else:
            settled, plan = _settled(world, pod, Why.REPLACED, now, timings, until=_unheard_until(world, pod, timings))
            steps += [Step(Do.DELETE_POD)] if settled else plan.steps
            again = min(again, plan.again_at)
    elif pod.ready and world.describe_at is not None:
        if now >= world.describe_at:
            steps.append(Step(Do.DESCRIBE))
        else:
            again = min(again, world.describe_at)
    if not world.alive and world.tells:
        # A job without pods may have ended, or be suspended, or be about to start anew.
        before = world.looked_at if world.looks else None
        look = -math.inf if before is None else before + _pause_of_looks(world, timings)
        if now >= look:
            steps.append(Step(Do.LOOK))
        else:
            again = min(again, look)
    return Plan(tuple(steps), again)


def _unheard_until(world: World, pod: PodNow, timings: Timings) -> float:
    """Until when a coordinator that is to be replaced, and does not say what it works on, is waited for.

    What keeps it from answering (the API server's address that it was given, a right that it lacks, the name of our own
    account) is often just what another pod would have mended. Its end is no abrupt one: captures have two minutes.
    """
    heard = world.heard
    if heard is None or heard.life != pod.life or heard.why is not Why.REPLACED or heard.unsettled is not None:
        return math.inf
    return heard.still_since + (timings.patience_s if world.answered else timings.orphan_s)


def _retired_for_good(world: World, pod: PodNow) -> bool:
    """It was told that its job had ended, or a later attempt ran, and now it is the job's after all."""
    heard = world.heard
    return heard is not None and heard.life == pod.life and heard.why is not Why.REPLACED


def _close(world: World, now: float, timings: Timings, why: Why) -> Plan:
    coordinator = world.coordinator
    assert coordinator is not None
    if world.pod is None:
        return Plan((Step(Do.REMOVE),)) if world.present else NOTHING
    since = coordinator.retired_at if coordinator.retired is why else now  # the status is about to say so
    leaves = since + timings.grace_s
    if world.pod.deleting:
        return _going(world, world.pod, now, timings)
    settled, plan = _settled(world, world.pod, why, now, timings, until=since + timings.patience_s)
    if not settled:
        return plan
    return Plan((Step(Do.DELETE_POD),)) if now >= leaves else Plan(again_at=leaves)


def _clear(world: World, now: float, timings: Timings) -> Plan:
    """Something of ours without a CaptureCoordinator."""
    since = now if world.alone_since is None else world.alone_since
    if now < since + timings.settle_s:
        return Plan(again_at=since + timings.settle_s)
    if not world.gone_for_sure:
        return Plan((Step(Do.CONFIRM_GONE),))
    if world.pod is None:
        return Plan((Step(Do.REMOVE),))
    if world.pod.deleting:
        return _going(world, world.pod, now, timings)
    settled, plan = _settled(world, world.pod, Why.FINISHED, now, timings, until=since + timings.orphan_s)
    return Plan((Step(Do.DELETE_POD),)) if settled else plan


def _going(world: World, pod: PodNow, now: float, timings: Timings) -> Plan:
    """A pod that is being deleted is waited for; where its node is lost, nobody ever says that it has ended.

    Its process may still run there. It is no second coordinator at work: a minute after a pod was to be gone, and once
    its object is, no token that is bound to it is good for anything
    (https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens).
    So it can have no caller reviewed and takes no capture from anybody, and agents refuse it; no Service leads to it,
    and the status names the new one. What its captures had reached workers ends there by itself.
    """
    at = max(pod.gone_by, world.forced_at) + timings.lost_s
    return Plan((Step(Do.FORCE_POD),), now + timings.lost_s) if now >= at else Plan(again_at=at)


def _settled(world: World, pod: PodNow, why: Why, now: float, timings: Timings, *, until: float) -> tuple[bool, Plan]:
    """Whether nothing would be lost with this pod; else what to do to find out. `until`: then it is not waited for."""
    if pod.ended or not pod.runs or pod.deleting or now >= until:
        return True, NOTHING
    heard = world.heard
    if heard is None or heard.life != pod.life or heard.why is not why or heard.at > now:  # (a clock was set back)
        return False, Plan((Step(Do.RETIRE, why),), min(until, now + timings.settling_longest_s))
    if heard.unsettled == 0 and (why is not Why.REPLACED or now < heard.at + timings.settling_longest_s):
        return True, NOTHING
    # Being replaced is said again before the minute is over for which it holds. Where what is left makes no progress,
    # as it can't while the archive is away, the minute passes: for most of the time others may begin captures.
    again = heard.at + growing(timings.ask_s, heard.times, timings.settling_longest_s)
    if why is Why.REPLACED and heard.unsettled != 0 and now >= heard.still_since + timings.stuck_s:
        again = heard.at + timings.end_longest_s
    if now >= again:
        return False, Plan((Step(Do.RETIRE, why),), min(until, now + timings.settling_longest_s))
    return False, Plan(again_at=min(until, again))


def _pause_of_looks(world: World, timings: Timings) -> float:
    return growing(timings.end_s, world.looks, timings.end_longest_s)
