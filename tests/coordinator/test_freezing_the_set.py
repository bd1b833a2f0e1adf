"""From what nodes say to the closed set of targets: as many as the world is large, never fewer."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.coordinator.plan import MAX_WORLD_SIZE, Frozen, Seen, dispatchable, freeze
from sameshot.coordinator.podwords import PodsSeen
from sameshot.kube.pods import Pod
from sameshot.model import FailureReason, Nobody, Phase, TargetState, Worker, generation_of
from support.fake_agent import worker


def node(name: str, *workers: Worker, silent: str | None = None) -> Seen:
    return Seen(f"{name}:1", name, tuple(workers), silent)


def reasons(frozen: Frozen) -> dict[int | None, FailureReason]:
    return {
        each.fact.identity.rank: each.fact.failure.reason for each in frozen.targets if each.fact.failure is not None
    }


def test_a_complete_world_is_one_target_per_rank_named_by_its_place() -> None:
    workers = [worker(rank=rank, world_size=2, node="a", local_rank=rank) for rank in (1, 0)]
    frozen = freeze([node("a", *workers)])
    assert [each.fact.target_id for each in frozen.targets] == ["a/main/0", "a/main/1"]
    assert frozen.generation == generation_of(each.registration.uuid for each in workers)
    assert (frozen.world_size, frozen.missing_ranks, frozen.message) == (2, (), "")


def test_the_latest_registered_world_size_wins_and_the_other_is_named() -> None:
    old = [worker(rank=rank, world_size=4, node="a", local_rank=rank, registered_at_ns=1) for rank in range(2)]
    new = [worker(rank=rank, world_size=2, node="b", local_rank=rank, registered_at_ns=2) for rank in range(2)]
    frozen = freeze([node("a", *old), node("b", *new)])
    assert frozen.world_size == 2
    assert [each.fact.target_id for each in frozen.targets] == ["b/main/0", "b/main/1"]
    assert "2 workers of another world size (4) are left out" in frozen.message


def test_leftovers_that_are_not_current_or_not_alive_do_not_count() -> None:
    stale = worker(rank=0, world_size=8, registered_at_ns=99, alive=False, current=False)
    frozen = freeze([node("a", stale, worker(rank=0, world_size=1))])
    assert (frozen.world_size, len(frozen.targets), frozen.missing_ranks) == (1, 1, ())


def test_an_uncovered_rank_is_a_failed_target_of_its_own() -> None:
    frozen = freeze([node("a", worker(rank=0, world_size=3), worker(rank=2, world_size=3))])
    assert reasons(frozen) == {1: FailureReason.NEVER_REGISTERED}
    assert frozen.targets[1].fact.target_id == "rank/1"
    assert frozen.targets[1].fact.identity.registration is None
    assert "Rank 1 of 3 never registered" in frozen.targets[1].fact.failure.detail


def test_what_a_node_says_of_a_pod_in_which_nobody_registered_stands_in_the_failure() -> None:
    told = "Pod ml/b is armed, but none of its 2 workers ever registered. Likely causes: …"
    seen = [node("a", worker(rank=0, world_size=2)), msgspec.structs.replace(node("b"), unregistered=(told,) * 5)]
    detail = freeze(seen).targets[1].fact.failure.detail
    assert detail.startswith(f"Rank 1 of 2 never registered. {told} {told} {told} … and 2 more like these.")
    nobody = freeze(seen[1:])
    assert nobody.nobody is Nobody.NOT_ARMED
    assert told in nobody.message


def test_a_rank_whose_worker_died_keeps_its_identity() -> None:
    frozen = freeze([node("a", worker(rank=0, world_size=2), worker(rank=1, world_size=2, alive=False, pid=77))])
    dead = frozen.targets[1].fact
    assert (dead.failure.reason, dead.identity.pid) == (FailureReason.WORKER_EXITED, 77)
    assert "pid 77" in dead.failure.detail


def test_a_rank_last_seen_where_another_rank_lives_now_is_never_registered_with_that_hint() -> None:
    gone = worker(rank=1, world_size=2, local_rank=0, alive=False, current=False)
    frozen = freeze([node("a", gone, worker(rank=0, world_size=2, local_rank=0))])
    missing = frozen.targets[1].fact
    assert (missing.target_id, missing.failure.reason) == ("rank/1", FailureReason.NEVER_REGISTERED)
    assert "last seen on node-0/main/0" in missing.failure.detail


def test_a_silent_node_owes_its_last_known_ranks() -> None:
    known = worker(rank=1, world_size=2, node="b", local_rank=0)
    frozen = freeze(
        [node("a", worker(rank=0, world_size=2, node="a")), node("b", known, silent="no answer within 2 s")]
    )
    owed = frozen.targets[1]
    assert owed.fact.failure.reason is FailureReason.AGENT_UNREACHABLE
    assert owed.fact.identity == known.registration.identity
    assert "no answer within 2 s" in owed.fact.failure.detail
    assert owed.agent is None


def test_a_rank_that_moved_away_from_a_silent_node_is_covered_by_its_new_place() -> None:
    moved = worker(rank=1, world_size=2, node="c", local_rank=0, registered_at_ns=2)
    frozen = freeze(
        [
            node("a", worker(rank=0, world_size=2, node="a")),
            node("b", worker(rank=1, world_size=2, node="b", local_rank=0), silent="frozen"),
            node("c", moved),
        ]
    )
    assert frozen.missing_ranks == ()
    assert frozen.targets[1].fact.identity.node == "c"


def test_of_two_claims_to_one_rank_the_later_counts_and_both_are_named() -> None:
    early = worker(rank=0, world_size=1, node="a", registered_at_ns=1)
    late = worker(rank=0, world_size=1, node="b", registered_at_ns=2)
    frozen = freeze([node("a", early), node("b", late)])
    assert [each.fact.identity.node for each in frozen.targets] == ["b"]
    assert "Rank 0 is registered twice" in frozen.message


def test_pods_counts_that_disagree_with_the_world_size_are_both_in_the_message() -> None:
    workers = [worker(rank=rank, world_size=8, local_world_size=2, node="a", local_rank=rank) for rank in range(2)]
    frozen = freeze([node("a", *workers)])
    assert "expect 2 workers in all, WORLD_SIZE says 8" in frozen.message
    assert len(frozen.missing_ranks) == 6


def test_a_world_beyond_reason_and_ranks_outside_it_are_not_believed() -> None:
    huge = worker(rank=0, world_size=MAX_WORLD_SIZE + 1, registered_at_ns=9)
    outside = worker(rank=5, world_size=2, local_rank=3)
    frozen = freeze([node("a", huge, outside, worker(rank=0, world_size=2))])
    assert (frozen.world_size, frozen.missing_ranks) == (2, (1,))


GONE = worker(rank=0, world_size=1, alive=False)
NO_RANK_YET = msgspec.structs.replace(
    worker(rank=0, world_size=1), registration=msgspec.structs.replace(GONE.registration, rank=None)
)
LEAVING = worker(rank=0, world_size=1, phase=Phase.EXITING)


@pytest.mark.parametrize(
    ("seen", "kind", "says"),
    [
        ([], Nobody.SILENT, "No node agent"),
        ([node("a")], Nobody.NOT_ARMED, "was it armed"),
        ([Seen("a:1", silent="timeout")], Nobody.SILENT, "None of 1 agents answers"),
        ([node("a", GONE)], Nobody.ENDED, "can be captured now"),
        ([node("a", GONE, LEAVING)], Nobody.ENDED, "None of 2 registered workers can be captured now"),
        ([node("a", GONE, NO_RANK_YET)], Nobody.NOT_ARMED, "can be captured now"),
        # whoever is silent may have all of the workers
        ([node("a"), Seen("b:1", silent="timeout")], Nobody.SILENT, "1 agents do not answer"),
        ([node("a", GONE), Seen("b:1", silent="timeout")], Nobody.SILENT, "1 agents do not answer"),
    ],
)
def test_nobody_says_which_kind_of_nobody(seen: list[Seen], kind: Nobody, says: str) -> None:
    frozen = freeze(seen)
    assert (frozen.targets, frozen.world_size, frozen.nobody) == ((), None, kind)
    assert says in frozen.message


def test_where_there_are_targets_nobody_is_not_said() -> None:
    assert freeze([node("a", worker(rank=0, world_size=1))]).nobody is None


def test_two_ranks_that_were_last_seen_in_one_place_are_two_targets() -> None:
    """Its place names one of them; a place has one worker at a time."""
    before = {rank: worker(rank=rank, world_size=3, node="b", local_rank=0).registration for rank in (1, 2)}
    frozen = freeze([node("a", worker(rank=0, world_size=3, node="a", local_rank=0))], None, before)
    assert [each.fact.target_id for each in frozen.targets] == ["a/main/0", "b/main/0", "rank/2"]
    assert reasons(frozen) == {1: FailureReason.WORKER_EXITED, 2: FailureReason.NEVER_REGISTERED}
    assert frozen.targets[1].fact.failure is not None
    assert "is not registered any more. It was last seen alive on b/main/0" in frozen.targets[1].fact.failure.detail


def test_who_was_last_seen_in_another_world_says_nothing_about_this_one() -> None:
    before = {1: worker(rank=1, world_size=4, node="b").registration}
    frozen = freeze([node("a", worker(rank=0, world_size=2, node="a"))], None, before)
    assert reasons(frozen) == {1: FailureReason.NEVER_REGISTERED}


PLACES: list[dict[str, str]] = [{}, {}, *({"pod": f"p{n}", "pod_uid": f"u{n}"} for n in range(3))]
POD_LISTS = st.lists(
    st.builds(
        Pod,
        namespace=st.just("ml"),
        name=st.sampled_from(["p0", "p1", "p2"]),
        uid=st.sampled_from(["u0", "u1", "u9"]),
        node=st.sampled_from(["n0", None]),
        phase=st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]),
        deleting=st.booleans(),
    ),
    unique_by=lambda pod: pod.name,
    max_size=3,
)


@st.composite
def listings(draw: st.DrawFn) -> list[Seen]:
    seen = []
    for index in range(draw(st.integers(0, 4))):
        workers = [
            worker(
                rank=draw(st.integers(-1, 5)),
                world_size=draw(st.integers(0, 5)),
                node=f"n{index}",
                local_rank=draw(st.integers(0, 2)),
                alive=draw(st.booleans()),
                current=draw(st.booleans()),
                phase=draw(st.sampled_from(Phase)),
                registered_at_ns=draw(st.integers(0, 3)),
                **draw(st.sampled_from(PLACES)),
            )
            for _ in range(draw(st.integers(0, 4)))
        ]
        silent = draw(st.sampled_from([None, None, "timeout"]))
        known = None if silent and draw(st.booleans()) else tuple(workers)
        seen.append(Seen(f"n{index}:1", f"n{index}", known, silent))
    return seen


@settings(deadline=None)
@given(listings(), listings(), st.none() | POD_LISTS)
def test_whatever_nodes_say_the_set_covers_every_rank_exactly_once_or_is_empty(
    seen: list[Seen], earlier: list[Seen], pods: list[Pod] | None
) -> None:
    last_seen = {
        each.registration.rank: each.registration
        for node in earlier
        for each in node.workers or ()
        if dispatchable(each) and each.registration.rank is not None
    }
    known = None if pods is None else PodsSeen.of(pods)
    frozen = freeze(seen, known, last_seen)
    ranks = [each.fact.identity.rank for each in frozen.targets]
    assert ranks == list(range(frozen.world_size or 0))
    ids = [each.fact.target_id for each in frozen.targets]
    assert len(set(ids)) == len(ids)
    usable = {each.registration.uuid for node in seen if node.silent is None for each in node.workers or ()}
    for each in frozen.targets:
        if each.fact.state is TargetState.PENDING:
            assert each.fact.identity.registration in usable
            assert each.agent is not None
        else:
            assert each.fact.failure is not None
    if not frozen.targets:
        assert frozen.message
    assert (
        freeze(list(msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=list[Seen])), known, last_seen) == frozen
    )
