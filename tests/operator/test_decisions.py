"""What one attempt of a job needs, decided without any I/O: single decisions, and whole lives of jobs by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.operator.config import Timings
from sameshot.operator.decide import (
    NOTHING,
    Coordinator,
    Do,
    End,
    Heard,
    PodNow,
    Step,
    Why,
    World,
    closing,
    decide,
    heard_after,
)
from sameshot.operator.objects import Kind
from sameshot.operator.tried import NEVER, Tried

T = Timings()
NOW = 1_000_000.0
ALL = frozenset(set(Kind) - {Kind.POD})
HERE = Coordinator("cr")
READY = PodNow("p/0", runs=True, ready=True)


def steps(world: World, now: float = NOW) -> list[Do]:
    return [each.do for each in decide(world, now, T).steps]


def served(**more: Any) -> World:
    """A job that runs, with everything it needs."""
    given: dict[str, Any] = {
        "alive": 2, "end": End.RUNS, "looked_at": NOW - 60, "coordinator": HERE, "pod": READY, "present": ALL,
    }  # fmt: skip
    return World(**(given | more))


def heard(why: Why, unsettled: int | None, *, ago: float = 1.0, times: int = 1, life: str = "p/0") -> Heard:
    return Heard(life, why, NOW - ago, unsettled, times)


# ---- single decisions


def test_the_jobs_own_object_is_read_before_a_coordinator_is_made() -> None:
    assert steps(World(alive=1)) == [Do.LOOK]
    assert steps(World(alive=1, end=End.RUNS, looked_at=NOW)) == [Do.MAKE_COORDINATOR]


@pytest.mark.parametrize("end", [End.RUNS, End.UNKNOWN, End.ENDED], ids=lambda end: end.name)
def test_pods_that_live_get_a_coordinator_also_where_their_job_can_not_be_read(end: End) -> None:
    assert steps(World(alive=1, end=end, looked_at=NOW)) == [Do.MAKE_COORDINATOR]


def test_while_it_is_not_sure_that_this_is_the_job_minutes_are_waited() -> None:
    unsure = World(alive=1, end=End.RUNS, looked_at=NOW, unsure_since=NOW)
    assert decide(unsure, NOW + 1, T) == msgspec.structs.replace(NOTHING, again_at=NOW + T.unsure_s)
    assert steps(unsure, NOW + T.unsure_s) == [Do.MAKE_COORDINATOR]
    assert steps(served(unsure_since=NOW, describe_at=NOW)) == [Do.DESCRIBE], "who has one keeps it"


def test_pods_whose_job_is_gone_get_none_and_the_job_is_looked_for_after_growing_pauses() -> None:
    world = World(alive=1, end=End.GONE, looked_at=NOW, looks=3)
    assert decide(world, NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + 8)
    assert steps(world, NOW + 8) == [Do.LOOK]


def test_pods_that_have_ended_get_none() -> None:
    assert decide(World(end=End.RUNS, looked_at=NOW), NOW, T) == NOTHING


def test_an_earlier_attempt_gets_none() -> None:
    assert decide(World(alive=1, latest=False), NOW, T) == NOTHING


def test_what_is_missing_is_made_before_the_pod() -> None:
    world = served(pod=None, present=frozenset(), wrong=ALL)
    assert steps(world) == [Do.KEEP, Do.MAKE_POD]


def test_nothing_is_done_and_never_again_for_an_idle_job() -> None:
    assert decide(served(), NOW, T) == NOTHING


def test_a_pod_of_another_template_is_told_first_and_replaced_once_it_is_idle() -> None:
    old = PodNow("p/0", current=False, runs=True, ready=True)
    assert decide(served(pod=old), NOW, T).steps == (Step(Do.RETIRE, Why.REPLACED),)
    busy = served(pod=old, heard=heard(Why.REPLACED, 1, ago=0.5))
    assert decide(busy, NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + 0.5)
    assert steps(served(pod=old, heard=heard(Why.REPLACED, 1, ago=5))) == [Do.RETIRE]
    assert steps(served(pod=old, heard=heard(Why.REPLACED, 0))) == [Do.DELETE_POD]


def test_an_answer_from_long_ago_is_asked_for_again_before_a_pod_is_replaced() -> None:
    """Being replaced is forgotten by the coordinator after a minute."""
    old = PodNow("p/0", current=False, runs=True, ready=True)
    assert steps(served(pod=old, heard=heard(Why.REPLACED, 0, ago=59))) == [Do.RETIRE]


OLD = PodNow("p/0", current=False, runs=True, ready=True)


@pytest.mark.parametrize(
    ("answered", "patience_s"), [(True, T.patience_s), (False, T.orphan_s)], ids=["it did before", "it never did"]
)
def test_a_coordinator_that_does_not_answer_is_replaced_after_hours_and_one_that_never_did_sooner(
    answered: bool, patience_s: float
) -> None:
    """A wrong address of the API server, or an account of the operator that it does not know, would last for ever."""
    mute: Heard | None = None
    for at in (NOW, NOW + 60, NOW + patience_s - 10):
        world = served(pod=OLD, heard=mute, answered=answered)
        assert decide(world, at, T).steps == (Step(Do.RETIRE, Why.REPLACED),)
        mute = heard_after(mute, "p/0", Why.REPLACED, None, at)
    world = served(pod=OLD, heard=mute, answered=answered)
    assert decide(world, NOW + patience_s - 1, T) == msgspec.structs.replace(NOTHING, again_at=NOW + patience_s)
    assert steps(world, NOW + patience_s) == [Do.DELETE_POD]
    busy = heard_after(mute, "p/0", Why.REPLACED, 1, NOW + patience_s - 1)
    assert steps(msgspec.structs.replace(world, heard=busy), NOW + 100 * patience_s) == [Do.RETIRE], "never a busy one"
    again = heard_after(busy, "p/0", Why.REPLACED, None, NOW + patience_s)
    assert steps(msgspec.structs.replace(world, heard=again), NOW + patience_s + 300) == [Do.RETIRE], "it begins anew"


def test_a_capture_that_hangs_keeps_others_out_for_minutes_only() -> None:
    """The archive is away for six hours while a coordinator is to be replaced: it holds each word for a minute."""
    heard: Heard | None = None
    now, refused_until, refused = NOW, -math.inf, 0
    for _ in range(6 * 60):
        for _ in range(5):
            plan = decide(served(pod=OLD, heard=heard), now, T)
            for step in plan.steps:
                assert step == Step(Do.RETIRE, Why.REPLACED)
                open_before = now >= refused_until and heard is not None
                heard, refused_until = heard_after(heard, "p/0", Why.REPLACED, 2 if open_before else 1, now), now + 60
            now += 12
        refused += now < refused_until
    assert refused <= 5 + 6 * 60 / 4, "a minute out of five"
    done = heard_after(heard, "p/0", Why.REPLACED, 0, now)
    assert steps(served(pod=OLD, heard=done), now + 1) == [Do.DELETE_POD]


def test_progress_is_waited_for_without_captures_that_begin_meanwhile() -> None:
    heard: Heard | None = None
    for left in (3, 2, 1):
        at = NOW + (3 - left) * 290
        heard = heard_after(heard, "p/0", Why.REPLACED, left, at)
        assert steps(served(pod=OLD, heard=heard), at + 20) == [Do.RETIRE], "before its minute is over"


def test_a_clock_that_was_set_back_does_not_make_an_answer_of_the_future_count() -> None:
    for unsettled in (0, 1, None):
        assert steps(served(pod=OLD, heard=heard(Why.REPLACED, unsettled, ago=-3600))) == [Do.RETIRE]


@pytest.mark.parametrize(
    "pod",
    [PodNow("p/0", current=False), PodNow("p/0", current=False, ended=True, runs=True), PodNow("p/0", ended=True)],
    ids=["its container does not run", "it has ended, being old", "it has ended"],
)
def test_a_pod_without_a_process_has_no_captures_and_is_replaced_at_once(pod: PodNow) -> None:
    assert steps(served(pod=pod)) == [Do.DELETE_POD]


def test_what_a_process_said_does_not_count_for_the_next_one() -> None:
    old = PodNow("p/1", current=False, runs=True, ready=True)
    assert steps(served(pod=old, heard=heard(Why.REPLACED, 0, life="p/0"))) == [Do.RETIRE]


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    assert decide(served(pod=PodNow("p/0", runs=True, deleting=True)), NOW, T) == NOTHING


def test_workers_are_counted_when_it_is_time_and_the_coordinator_serves() -> None:
    assert steps(served(describe_at=NOW)) == [Do.DESCRIBE]
    assert decide(served(describe_at=NOW + 4), NOW, T).again_at == NOW + 4
    assert steps(served(describe_at=NOW, pod=PodNow("p/0", runs=True))) == []


def test_a_job_is_looked_at_only_when_it_has_no_pods_and_ever_more_seldom() -> None:
    assert steps(served(alive=0)) == [Do.LOOK]
    assert decide(served(alive=0, looks=1, looked_at=NOW), NOW, T).again_at == NOW + 2
    assert decide(served(alive=0, looks=4, looked_at=NOW), NOW, T).again_at == NOW + 16
    assert decide(served(alive=0, looks=40, looked_at=NOW), NOW, T).again_at == NOW + 300


def test_a_job_of_a_kind_that_never_tells_is_not_looked_at() -> None:
    assert decide(served(alive=0, tells=False, end=End.UNKNOWN), NOW, T) == NOTHING


@pytest.mark.parametrize(
    ("world", "why"),
    [(served(alive=0, end=End.ENDED), Why.FINISHED), (served(latest=False), Why.SUPERSEDED)],
    ids=["finished", "superseded"],
)
def test_a_coordinator_that_is_to_go_refuses_at_once_and_goes_after_its_grace(world: World, why: Why) -> None:
    def later(**more: Any) -> World:
        return msgspec.structs.replace(world, **more)

    assert decide(world, NOW, T).steps == (Step(Do.RETIRE, why),)
    told = {"coordinator": Coordinator("cr", retired=why, retired_at=NOW)}
    busy, idle = heard(why, 2, ago=-600), heard(why, 0)
    assert decide(later(**told, heard=idle), NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + T.grace_s)
    assert steps(later(**told, heard=busy), NOW + T.grace_s) == [], "captures converge"
    assert steps(later(**told, heard=idle), NOW + T.grace_s) == [Do.DELETE_POD]
    assert steps(later(**told, pod=None), NOW + T.grace_s) == [Do.REMOVE]
    assert decide(later(**told, pod=None, present=frozenset()), NOW + T.grace_s, T) == NOTHING


def test_an_attempt_that_was_superseded_stays_so_when_its_job_ends() -> None:
    assert closing(served(alive=0, latest=False, end=End.ENDED)) is Why.SUPERSEDED


def test_a_job_that_ended_and_has_pods_again_gets_a_coordinator_that_takes_captures() -> None:
    world = served(heard=heard(Why.FINISHED, 0))
    assert decide(world, NOW, T).steps == (Step(Do.RETIRE, Why.REPLACED),)


def test_without_its_coordinator_object_all_goes_once_that_is_sure_and_captures_have_ended() -> None:
    alone = World(pod=READY, present=ALL, alone_since=NOW)
    assert decide(alone, NOW, T).again_at == NOW + T.settle_s
    later = NOW + T.settle_s
    assert steps(alone, later) == [Do.CONFIRM_GONE]
    sure = msgspec.structs.replace(alone, gone_for_sure=True)
    assert decide(sure, later, T).steps == (Step(Do.RETIRE, Why.FINISHED),)
    busy = msgspec.structs.replace(sure, heard=Heard("p/0", Why.FINISHED, later, 1))
    assert steps(busy, later) == []
    assert steps(busy, NOW + T.orphan_s) == [Do.DELETE_POD], "not longer than a quarter of an hour"
    assert steps(msgspec.structs.replace(sure, pod=None), later) == [Do.REMOVE]


def test_a_coordinator_object_that_was_deleted_by_hand_is_made_again_after_growing_pauses() -> None:
    world = World(alive=1, end=End.RUNS, looked_at=NOW - 9, pod=READY, present=ALL, deleted_at=NOW, deletions=1)
    assert decide(world, NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + 3)
    assert steps(world, NOW + 3) == [Do.LOOK], "it may have gone with its job"
    assert steps(msgspec.structs.replace(world, looked_at=NOW + 3), NOW + 3) == [Do.MAKE_COORDINATOR]
    assert decide(msgspec.structs.replace(world, deletions=3), NOW, T).again_at == NOW + 12


def test_one_that_is_being_deleted_is_waited_for() -> None:
    assert decide(served(coordinator=Coordinator("cr", deleting=True)), NOW, T) == NOTHING


def gone_again(times: int, ago: float) -> World:
    return served(pod=None, pods=Tried(times, NOW - ago))


def test_a_pod_that_is_undone_again_and_again_is_made_after_growing_pauses() -> None:
    assert steps(served(pod=None)) == [Do.MAKE_POD]
    for times, pause in ((1, 3), (2, 6), (5, 48), (30, 300)):
        assert decide(gone_again(times, 0), NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + pause)
        assert steps(gone_again(times, pause)) == [Do.MAKE_POD]


def test_a_pod_stays_until_the_next_may_be_made() -> None:
    rejected = PodNow("p/0", ended=True)
    changed = PodNow("p/0", current=False, runs=True, ready=True)
    for pod, then in ((rejected, Do.DELETE_POD), (changed, Do.RETIRE)):
        world = served(pod=pod, pods=Tried(3, NOW - 11))
        assert decide(world, NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + 1)
        assert steps(world, NOW + 1) == [then]


def test_what_served_for_long_is_made_again_at_once() -> None:
    tried = Tried(5, NOW).seen(NOW + 60, T, good=True)
    assert tried.seen(NOW + 60 + T.calm_s - 1, T, good=False).times == 5
    assert tried.seen(NOW + 60 + T.calm_s, T, good=True).times == 5
    assert tried.seen(NOW + 60 + T.calm_s, T, good=False) == Tried()
    short = tried.seen(NOW + 100, T, good=False).seen(NOW + 101, T, good=True)
    assert short.seen(NOW + 101 + T.calm_s - 1, T, good=False).times == 5, "what it was before does not count"


def test_what_is_changed_back_each_time_is_mended_ever_more_seldom_and_holds_up_no_pod() -> None:
    fought = served(wrong=frozenset({Kind.SERVICE}), mends=Tried(9, NOW - 1))
    assert decide(fought, NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + 29)
    assert steps(fought, NOW + 29) == [Do.KEEP]
    assert steps(msgspec.structs.replace(fought, pod=None)) == [Do.MAKE_POD]
    lacks = msgspec.structs.replace(fought, pod=None, present=ALL - {Kind.SERVICE})
    assert steps(lacks) == [], "a pod would wait for what is missing"
    assert steps(lacks, NOW + 29) == [Do.KEEP, Do.MAKE_POD]


def test_what_is_wanted_otherwise_than_before_is_written_at_once() -> None:
    new = served(wrong=frozenset({Kind.CONFIG}), mends=Tried(9, NOW - 1), undone=False)
    assert steps(new) == [Do.KEEP]


LOST = PodNow("p/0", runs=True, deleting=True, gone_by=NOW)


@pytest.mark.parametrize(
    "world",
    [
        served(pod=LOST),
        served(pod=LOST, alive=0, end=End.ENDED, coordinator=Coordinator("cr", retired=Why.FINISHED, retired_at=NOW)),
        World(pod=LOST, present=ALL, alone_since=NOW - 60, gone_for_sure=True),
    ],
    ids=["its job runs", "its job has ended", "its job is gone"],
)
def test_a_pod_on_a_lost_node_is_removed_by_force_minutes_after_it_should_have_ended(world: World) -> None:
    """Nobody else would ever: the kubelet of a node that is off confirms nothing."""
    assert decide(world, NOW, T) == msgspec.structs.replace(NOTHING, again_at=NOW + T.lost_s)
    assert decide(world, NOW + T.lost_s, T).steps == (Step(Do.FORCE_POD),)
    held = msgspec.structs.replace(world, forced_at=NOW + T.lost_s)  # by a finalizer of somebody's
    assert steps(held, NOW + T.lost_s + 1) == []
    assert steps(held, NOW + 2 * T.lost_s) == [Do.FORCE_POD]


@pytest.mark.parametrize("lacks", ["placed", "room"])
def test_a_coordinator_gets_its_pod_and_all_else_only_when_a_pod_of_the_job_has_a_node_and_there_is_room(
    lacks: str,
) -> None:
    waiting = served(pod=None, present=frozenset(), wrong=ALL, **{lacks: False})
    assert decide(waiting, NOW, T) == NOTHING
    assert steps(msgspec.structs.replace(waiting, **{lacks: True})) == [Do.KEEP, Do.MAKE_POD]
    assert decide(served(**{lacks: False}), NOW, T) == NOTHING, "who has one keeps it"


# ---- whole lives


@dataclass
class Play:
    """One attempt of a job, its coordinator, and an operator that may forget everything at any moment."""

    alive: int = 0
    placed: bool = True  # of those that are alive one has a node
    room: bool = True
    latest: bool = True
    end: End = End.RUNS  # as it is
    known: End = End.UNKNOWN  # as the operator knows
    coordinator: Coordinator | None = None
    pod: PodNow | None = None
    present: frozenset[Kind] = frozenset()
    unsettled: int = 0
    answers: bool = True
    heard: Heard | None = None
    looked_at: float | None = None
    looks: int = 0
    alone_since: float | None = None
    sure: bool = False
    deleted_at: float | None = None
    deletions: int = 0
    lives: int = 0
    now: float = NOW
    lost: list[str] = field(default_factory=list)
    pods: Tried = NEVER
    mends: Tried = NEVER
    answered: bool = False
    changed: bool = False  # something that is there is not as it should be
    did: list[Do] = field(default_factory=list)

    def world(self) -> World:
        if self.coordinator is not None:
            self.alone_since, self.sure = None, False
        elif self.alone_since is None and (self.pod or self.present):
            self.alone_since = self.now
        if self.alive:
            self.looks = 0
            self.known = End.RUNS if self.known is End.ENDED else self.known
        known = self.known
        wrong = ALL - self.present | (frozenset({Kind.SERVICE}) if self.changed else frozenset())
        self.pods = self.pods.seen(self.now, T, good=self.pod is not None and self.pod.ready and self.pod.current)
        self.mends = self.mends.seen(self.now, T, good=not wrong)
        if known is End.UNKNOWN and not self.alive and self.coordinator and self.coordinator.retired is Why.FINISHED:
            known = End.ENDED
        return World(
            alive=self.alive, placed=self.alive > 0 and self.placed, room=self.room or self.pod is not None,
            latest=self.latest, end=known, looked_at=self.looked_at, looks=self.looks,
            coordinator=self.coordinator, pod=self.pod, present=self.present,
            wrong=wrong if self.coordinator else frozenset(), heard=self.heard, answered=self.answered,
            undone=bool(self.present), pods=self.pods, mends=self.mends,
            alone_since=self.alone_since, gone_for_sure=self.sure, deleted_at=self.deleted_at,
            deletions=self.deletions,
        )  # fmt: skip

    def forget(self) -> None:
        """The operator is another process now."""
        self.known, self.heard, self.looked_at, self.looks = End.UNKNOWN, None, None, 0
        self.alone_since, self.sure, self.deleted_at, self.deletions = None, False, None, 0
        self.pods = self.mends = Tried()
        self.answered = False

    def turn(self) -> float:
        """As the keeper does it: until nothing is left to do. When to look again."""
        for _ in range(30):
            world = self.world()
            plan = decide(world, self.now, T)
            assert plan == decide(world, self.now, T)
            for step in plan.steps:
                self.do(step)
            if not plan.steps:
                self.say(closing(self.world()))
                return plan.again_at
        raise AssertionError(f"it does not come to rest: {world}")

    def say(self, why: Why | None) -> None:
        """The status is written."""
        if self.coordinator is not None and self.coordinator.retired is not why:
            at = math.inf if why is None else self.now
            self.coordinator = msgspec.structs.replace(self.coordinator, retired=why, retired_at=at)

    def do(self, step: Step) -> None:
        self.did.append(step.do)
        match step.do:
            case Do.LOOK:
                self.known, self.looked_at, self.looks = self.end, self.now, self.looks + 1
            case Do.MAKE_COORDINATOR:
                self.coordinator = Coordinator(f"cr-{self.now}")
            case Do.KEEP:
                self.mends = self.mends.did(self.now) if self.present else self.mends
                self.present, self.changed = ALL, False
            case Do.MAKE_POD:
                assert self.alive, "nobody needs it"
                assert self.placed
                assert self.room
                assert self.pod is None, "two coordinators of one attempt"
                assert self.present == ALL
                self.lives += 1
                self.pod = PodNow(f"{self.lives}/0", runs=True, ready=True)
                self.unsettled, self.answered = 0, False
                self.pods = self.pods.did(self.now)
            case Do.FORCE_POD:
                raise AssertionError("every node is there")
            case Do.DELETE_POD:
                assert self.pod is not None
                if self.pod.runs and not self.pod.ended and self.unsettled:
                    self.lost.append(f"{self.unsettled} captures")
                self.pod = None
                self.unsettled = 0
            case Do.RETIRE:
                assert self.pod is not None
                assert step.why is not None
                said = self.unsettled if self.answers else None
                self.answered |= self.answers
                self.heard = heard_after(self.heard, self.pod.life, step.why, said, self.now)
            case Do.CONFIRM_GONE:
                self.sure = self.coordinator is None
            case Do.REMOVE:
                assert self.pod is None, "it may need the rest until its end"
                self.present = frozenset()
            case Do.DESCRIBE:
                raise AssertionError("nobody asked for it")


EVENTS = st.sampled_from(
    [
        "pods_come",
        "pods_go",
        "pods_find_no_node",
        "pods_find_a_node",
        "no_room",
        "room",
        "job_ends",
        "job_deleted",
        "later_attempt",
        "capture_starts",
        "capture_ends",
        "silent",
        "answers",
        "upgraded",
        "pod_dies",
        "pod_evicted",
        "cr_deleted",
        "child_deleted",
        "operator_restarts",
        "time",
    ]
)


def happen(play: Play, event: str) -> None:
    pod = play.pod
    match event:
        case "pods_come" if play.end is End.RUNS:
            play.alive = 2
        case "pods_find_no_node" | "pods_find_a_node":
            play.placed = event == "pods_find_a_node"
        case "no_room" | "room":
            play.room = event == "room"
        case "pods_go":
            play.alive = 0
        case "job_ends":
            play.alive, play.end = 0, End.ENDED
        case "job_deleted" if play.coordinator is not None:
            play.alive, play.end, play.coordinator, play.deleted_at = 0, End.GONE, None, play.now
        case "later_attempt":
            play.latest = False
        case "capture_starts" if pod is not None and pod.runs and not pod.ended:
            taken = play.heard is not None and play.heard.life == pod.life
            recently = taken and play.heard is not None and (
                play.heard.why is not Why.REPLACED or play.now < play.heard.at + 60
            )  # fmt: skip
            if not recently:
                play.unsettled += 1
        case "capture_ends":
            play.unsettled = max(play.unsettled - 1, 0)
        case "silent" | "answers":
            play.answers = event == "answers"
        case "upgraded" if pod is not None:
            play.pod = msgspec.structs.replace(pod, current=False)
        case "pod_dies" if pod is not None:
            play.pod, play.unsettled = msgspec.structs.replace(pod, runs=False, ready=False), 0
        case "pod_evicted" if pod is not None:
            play.pod, play.unsettled = msgspec.structs.replace(pod, ended=True, runs=False, ready=False), 0
        case "cr_deleted" if play.coordinator is not None:
            play.coordinator, play.deleted_at, play.deletions = None, play.now, play.deletions + 1
        case "child_deleted" if play.coordinator is not None:
            play.present -= {Kind.SERVICE, Kind.BINDING}
        case "operator_restarts":
            play.forget()
        case "time":
            play.now += 20


def settle(play: Play) -> None:
    """Nothing more happens: captures end, everybody answers, what runs no more is started again by its kubelet."""
    play.answers, play.unsettled = True, 0
    for _ in range(300):
        if play.pod is not None and not play.pod.runs and not play.pod.ended:
            life = play.pod.life.partition("/")[0]
            play.pod = msgspec.structs.replace(play.pod, life=f"{life}/1", runs=True, ready=True)
        again = play.turn()
        if again == math.inf or play.now > NOW + 3e4:
            return
        play.now = max(again, play.now)
    raise AssertionError("it does not come to rest")


@settings(max_examples=250, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_whatever_happens_no_capture_is_lost_within_its_time_and_all_comes_to_its_end(events: list[str]) -> None:
    play = Play(alive=2)
    for event in events:
        happen(play, event)
        play.turn()
    assert not play.lost, "within minutes nothing that runs is given up"
    settle(play)
    before = (play.coordinator, play.pod, play.present)
    play.turn()
    assert before == (play.coordinator, play.pod, play.present)
    assert not play.lost
    if play.coordinator is not None and play.latest and (play.alive or play.end is End.RUNS):
        if play.alive and play.placed and play.room:
            assert play.pod is not None
            assert play.present == ALL
        if play.pod is not None:
            assert play.pod.current
            assert play.pod.runs
    elif play.coordinator is not None:
        assert play.pod is None
        assert not play.present
        assert play.coordinator.retired is (Why.FINISHED if play.latest else Why.SUPERSEDED)
    else:
        assert play.pod is None
        assert not play.present
        assert not (play.alive and play.latest and play.end is not End.GONE)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(EVENTS.filter(lambda each: each not in ("operator_restarts", "cr_deleted")), max_size=15),
    st.integers(0, 15),
)
def test_an_operator_that_is_restarted_at_any_moment_comes_to_the_same_end(events: list[str], at: int) -> None:
    """(What was deleted by hand is made again after a pause, which a restart cuts short: not in here.)"""

    def end(restarts: bool) -> tuple[Any, ...]:
        play = Play(alive=2)
        for i, event in enumerate(events):
            if restarts and i == min(at, len(events) - 1):
                play.forget()
            happen(play, event)
            play.turn()
        settle(play)
        found = play.coordinator
        retired = None if found is None else found.retired
        waits = found is not None and retired is None and play.pod is None  # then nothing is mended before its end
        return found is not None, retired, play.pod is not None and play.pod.current, None if waits else play.present

    assert end(restarts=True) == end(restarts=False)


MISCHIEF = st.sampled_from(["deleted", "rejected", "changed at admission", "crashes", "mangled", "nothing"])


def spoil(play: Play, how: str) -> None:
    pod = play.pod
    match how:
        case "deleted":
            play.pod = None
        case "rejected" if pod is not None:
            play.pod = msgspec.structs.replace(pod, ended=True, runs=False, ready=False)
        case "changed at admission" if pod is not None:
            play.pod = msgspec.structs.replace(pod, current=False)
        case "crashes" if pod is not None:
            play.pod = msgspec.structs.replace(pod, runs=False, ready=False)
        case "mangled":
            play.changed = True


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(MISCHIEF, st.sampled_from([1.0, 7.0, 60.0, 650.0])), min_size=1, max_size=6))
def test_whatever_is_done_to_it_for_an_hour_the_api_server_is_asked_a_few_hundred_times(
    ways: list[tuple[str, float]],
) -> None:
    """What is undone at once is made again after 3, 9, 21, 45, 93, 189, 381 s, and then each 300 s. What was good for
    ten minutes between begins anew: up to 7 times in as long."""
    play = Play(alive=2)
    turns = 0
    while play.now < NOW + 3600:
        how, pause = ways[turns % len(ways)]
        again = play.turn()
        spoil(play, how)
        play.turn()
        play.now = max(min(again, play.now + pause), play.now + 1)
        turns += 1
    counted = {do: play.did.count(do) for do in Do}
    assert counted[Do.MAKE_POD] <= 50, counted
    assert counted[Do.DELETE_POD] <= 50, counted
    assert counted[Do.KEEP] <= 200, counted
