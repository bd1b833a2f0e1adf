"""The broker's decisions, on an invented clock: what a poll gets, and what may be said about it afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from profiler_lab import JOB, NS, a_request

from sameshot.errors import InvalidSpec
from sameshot.model import CaptureSpec
from sameshot.profiler.daemon import TriggerFact, TriggerRequest, TriggerStatus
from sameshot.profiler.slots import FORGET_WORKER_AFTER_NS, GONE_AFTER_NS, Slots

T0 = 1_800_000_000 * NS
WORKER = (JOB, 100)
SPEC = CaptureSpec(duration_ms=1000, warmup_ms=1000)
LONG = CaptureSpec(duration_ms=3000, warmup_ms=1000)


class Node:
    """One worker, one agent, and the time between them."""

    def __init__(self) -> None:
        self.slots = Slots()
        self.now = T0

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * NS)

    def poll(self, *, free: bool = True, address: str = "a", key: tuple[int, int] = WORKER) -> str | None:
        """The config that the worker got; None for nothing."""
        offer = self.slots.poll(key, address, free, self.now)
        if offer is None:
            return None
        self.slots.handed_over(offer, self.now)
        return offer.text

    def ask(self, capture: str = "c1", *, start_in: float | None = None, **changes: Any) -> TriggerFact:
        start = 0 if start_in is None else self.now + int(start_in * NS)
        request = a_request(**({"capture_id": capture, "spec": SPEC, "start_at_ns": start} | changes))
        return self.slots.ask([request], self.now)[0]

    def fact(self, capture: str = "c1") -> TriggerFact:
        (fact,) = self.slots.facts(capture, self.now)
        return fact


@pytest.fixture
def node() -> Node:
    node = Node()
    node.poll()
    return node


def test_a_worker_that_never_polled_is_not_matched() -> None:
    fact = Node().ask()
    assert fact.status is TriggerStatus.NOT_MATCHED
    assert "has never polled" in fact.note


def test_a_request_is_queued_until_the_worker_polls_and_consumed_then(node: Node) -> None:
    assert node.ask().status is TriggerStatus.QUEUED
    node.wait(0.5)
    assert node.fact().status is TriggerStatus.QUEUED
    assert node.poll() is not None
    fact = node.fact()
    assert (fact.status, fact.consumed_at_ns, fact.last_poll_age_s) == (TriggerStatus.CONSUMED, node.now, 0.0)


def test_a_config_goes_to_one_worker_only(node: Node) -> None:
    node.poll(key=(JOB, 101), address="b")
    node.poll(key=(JOB + 1, 100), address="c")
    node.ask()
    assert node.poll(key=(JOB, 101), address="b") is None
    assert node.poll(key=(JOB + 1, 100), address="c") is None
    assert node.poll() is not None
    assert node.poll() is None


def test_a_worker_that_says_it_is_recording_gets_nothing(node: Node) -> None:
    node.ask()
    assert node.poll(free=False) is None
    assert node.fact().status is TriggerStatus.QUEUED


def test_what_could_not_be_sent_is_still_queued(node: Node) -> None:
    node.ask()
    assert node.slots.poll(WORKER, "a", True, node.now) is not None  # and no word of it being handed over
    assert node.fact().status is TriggerStatus.QUEUED
    assert node.poll() is not None


def test_repeating_a_request_changes_nothing(node: Node) -> None:
    assert node.ask() == node.ask()
    node.poll()
    assert node.ask().status is TriggerStatus.CONSUMED
    node.wait(60)
    assert node.ask().status is TriggerStatus.CONSUMED
    assert node.poll() is None


def test_a_start_that_can_be_met_is_sent(node: Node) -> None:
    node.ask(start_in=5)
    node.wait(1)
    text = node.poll()
    assert text is not None
    assert f"PROFILE_START_TIME={(T0 + 5 * NS) // 1_000_000}\n" in text
    assert node.fact().late_start is False


def test_a_start_that_can_no_longer_be_met_becomes_at_once_and_late(node: Node) -> None:
    node.ask(start_in=5)
    assert node.fact().late_start is None
    node.wait(2.6)
    text = node.poll()
    assert text is not None
    assert "PROFILE_START_TIME=0\n" in text
    assert node.fact().late_start is True


def test_a_start_at_once_that_was_asked_for_is_not_late(node: Node) -> None:
    node.ask()
    node.poll()
    assert node.fact().late_start is False


def test_a_second_capture_is_busy_until_the_first_was_fetched_and_its_window_is_over(node: Node) -> None:
    node.ask("c1", start_in=5)
    second = node.ask("c2", start_in=5)
    assert second.status is TriggerStatus.BUSY
    assert "has not fetched yet" in second.note
    node.wait(1)
    node.poll()
    for _ in range(4):  # Kineto polls as if it were free until its first one starts, and would drop a second
        assert node.ask("c2").status is TriggerStatus.BUSY
        assert node.poll() is None
        node.wait(1)
    assert "over in 1.0 s" in node.ask("c2").note
    node.wait(1)
    assert node.ask("c2").status is TriggerStatus.QUEUED
    assert node.poll(free=False) is None  # still writing the first
    node.wait(1)
    assert node.poll() is not None


def test_a_withdrawn_config_is_never_handed_over(node: Node) -> None:
    node.ask()
    assert [f.status for f in node.slots.withdraw("c1", ["node/main/0"], node.now)] == [TriggerStatus.WITHDRAWN]
    assert node.poll() is None
    assert node.ask().status is TriggerStatus.WITHDRAWN
    assert node.poll() is None
    assert node.ask("c2").status is TriggerStatus.QUEUED  # the slot is free again


def test_a_consumed_config_cannot_be_withdrawn(node: Node) -> None:
    node.ask()
    node.poll()
    assert [f.status for f in node.slots.withdraw("c1", ["node/main/0"], node.now)] == [TriggerStatus.CONSUMED]
    assert node.ask("c2").status is TriggerStatus.BUSY


def test_a_request_that_comes_after_its_withdrawal_came_too_late(node: Node) -> None:
    node.slots.withdraw("c1", ["node/main/0"], node.now)
    assert node.ask().status is TriggerStatus.WITHDRAWN
    assert node.poll() is None


def test_what_was_meant_for_a_dead_process_does_not_reach_the_next_one_with_its_pid(node: Node) -> None:
    node.ask()
    assert node.poll(address="another") is None
    fact = node.fact()
    assert fact.status is TriggerStatus.NOT_MATCHED
    assert "gone" in fact.note


def test_a_worker_that_fell_silent_is_not_matched(node: Node) -> None:
    node.wait(GONE_AFTER_NS / NS + 1)
    fact = node.ask()
    assert fact.status is TriggerStatus.NOT_MATCHED
    assert "61 s ago" in fact.note
    node.poll()
    assert node.ask().status is TriggerStatus.QUEUED


def test_poll_ages_are_told_and_the_long_gone_forgotten(node: Node) -> None:
    node.wait(7)
    assert node.slots.ages_ns(node.now) == {WORKER: 7 * NS}
    node.wait(FORGET_WORKER_AFTER_NS / NS)
    assert node.slots.ages_ns(node.now) == {}


def test_a_worker_that_polls_as_free_inside_its_own_window_is_offered_it_once_more(node: Node) -> None:
    node.ask(start_in=5, spec=LONG)
    node.poll()
    node.wait(6.5)
    text = node.poll()
    assert text is not None
    assert "PROFILE_START_TIME=0\n" in text
    fact = node.fact()
    assert (fact.status, fact.late_start) == (TriggerStatus.CONSUMED, True)
    assert "dropped" in fact.note
    node.wait(4.5)  # inside the second window: once more is enough
    assert node.poll() is None


@pytest.mark.parametrize("spec", [SPEC, LONG])
def test_a_window_that_kineto_begins_a_tick_late_is_not_taken_for_dropped(node: Node, spec: CaptureSpec) -> None:
    node.ask(start_in=5, spec=spec)
    node.poll()
    node.wait(5.3)
    assert node.poll() is None
    node.wait(0.9)
    assert node.poll() is None
    node.wait(0.2)
    assert node.poll(free=False) is None  # now it records
    node.wait(spec.duration_ms / 1000)
    for _ in range(5):
        node.wait(1)
        assert node.poll() is None
    assert (node.fact().late_start, node.fact().note) == (False, "")


def test_a_worker_that_records_in_its_window_is_offered_nothing_again(node: Node) -> None:
    node.ask(start_in=5)
    node.poll()
    node.wait(5.5)
    assert node.poll(free=False) is None
    node.wait(1)
    assert node.poll() is None
    assert node.fact().note == ""


def test_a_worker_that_was_never_busy_until_after_its_window_is_offered_it_once_more(node: Node) -> None:
    node.ask(start_in=5)  # the window is shorter than what lies between two of its polls
    node.poll()
    node.wait(6.5)
    assert node.poll() is None  # half a second after its end: it may have begun late
    node.wait(1)
    text = node.poll()
    assert text is not None
    assert "PROFILE_START_TIME=0\n" in text
    assert (node.fact().late_start, "dropped" in node.fact().note) == (True, True)
    node.wait(10)
    assert node.poll() is None


def test_a_worker_that_was_busy_before_its_window_was_over_has_recorded_it(node: Node) -> None:
    node.ask(start_in=5)
    node.poll()
    node.wait(4.9)
    assert node.poll(free=False) is None  # warming up
    node.wait(1.2)
    for _ in range(5):
        node.wait(1)
        assert node.poll() is None


def test_a_window_whose_trace_was_found_is_not_offered_again(node: Node) -> None:
    node.ask(start_in=5)
    node.poll()
    node.wait(6.5)
    node.slots.withdraw("c1", ["node/main/0"], node.now)  # what the agent says once it has the file
    assert node.fact().status is TriggerStatus.CONSUMED
    node.wait(2)
    assert node.poll() is None


def test_a_cancelled_capture_is_not_offered_again(node: Node) -> None:
    node.ask(start_in=5)
    node.poll()
    node.slots.withdraw("c1", ["node/main/0"], node.now)
    node.wait(5.5)
    assert node.poll() is None


def test_one_unwritable_request_is_refused_before_any_is_taken(node: Node) -> None:
    good, bad = a_request(), a_request(target_id="node/main/1", output_path="/a/x=y/trace.json")
    with pytest.raises(InvalidSpec):
        node.slots.ask([good, bad], node.now)
    assert node.slots.facts("c1", node.now) == []
    assert node.poll() is None


class AnyOrder(RuleBasedStateMachine):
    """Whatever the order of requests, polls, withdrawals and time: no worker is ever given what Kineto would drop."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots()
        self.now = T0
        self.given: dict[tuple[str, str], int] = {}
        self.taken_until: dict[int, int] = {}
        self.withdrawn: set[tuple[str, str]] = set()
        self.seen: dict[tuple[str, str], TriggerStatus] = {}
        self.requests: dict[tuple[str, str], TriggerRequest] = {}

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += int(seconds * NS)

    @rule(pid=st.integers(1, 2), capture=st.integers(0, 4), start_in=st.one_of(st.none(), st.floats(0, 8)))
    def agent_asks(self, pid: int, capture: int, start_in: float | None) -> None:
        key = (f"c{capture}", f"node/main/{pid}")
        start = 0 if start_in is None else self.now + int(start_in * NS)
        request = a_request(capture_id=key[0], target_id=key[1], pid=pid, spec=SPEC, start_at_ns=start)
        self.requests.setdefault(key, request)
        self.slots.ask([self.requests[key]], self.now)

    @rule(pid=st.integers(1, 2), free=st.booleans())
    def worker_polls(self, pid: int, free: bool) -> None:
        offer = self.slots.poll((JOB, pid), f"address{pid}", free, self.now)
        if offer is None:
            return
        assert free
        request = offer._record.request
        key = (request.capture_id, request.target_id)
        assert request.pid == pid
        assert key not in self.withdrawn
        again = key in self.given
        # Only a repeat of the very same window may come while that window runs.
        assert again or self.now >= self.taken_until.get(pid, 0)
        if offer.start_at_ns is not None:
            assert offer.start_at_ns - self.now >= 2.5 * NS
        self.slots.handed_over(offer, self.now)
        self.given[key] = self.given.get(key, 0) + 1
        assert self.given[key] <= 2
        start = offer.start_at_ns or self.now + 3 * NS
        self.taken_until[pid] = start + NS

    @rule(pid=st.integers(1, 2), capture=st.integers(0, 4))
    def coordinator_cancels(self, pid: int, capture: int) -> None:
        key = (f"c{capture}", f"node/main/{pid}")
        (fact,) = self.slots.withdraw(key[0], [key[1]], self.now)
        assert (fact.status is TriggerStatus.CONSUMED) == (key in self.given)
        self.withdrawn.add(key)

    @invariant()
    def facts_are_observed_and_final_ones_stay(self) -> None:
        for capture in range(5):
            for fact in self.slots.facts(f"c{capture}", self.now):
                key = (fact.capture_id, fact.target_id)
                assert (fact.status is TriggerStatus.CONSUMED) == (key in self.given)
                before = self.seen.get(key)
                if before in (TriggerStatus.CONSUMED, TriggerStatus.WITHDRAWN):
                    assert fact.status is before
                self.seen[key] = fact.status


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
