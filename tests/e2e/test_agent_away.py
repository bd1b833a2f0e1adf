"""A killed node agent goes on where it was; a frozen one costs its own targets, and nobody else's time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from live import LiveJob, wait_for

from sameshot.api.views import CaptureView
from sameshot.model import CaptureState, FailureReason, TargetState

pytestmark = pytest.mark.live


@pytest.mark.full
def test_an_agent_killed_while_verifying_goes_on_after_its_restart(job: LiveJob) -> None:
    service = job.local.services["agent-0"]
    killed, restarts = service.pid, service.restarts
    view = job.start()
    wait_for(lambda: verifiers(killed), "the agent has a verifier")
    for verifier in verifiers(killed):
        verifier.suspend()  # its work is never done, however small the trace is
    waiting = job.wait_until(view, TargetState.ANNOUNCED, node=0)
    assert {fact.state for fact in waiting.targets if fact.identity.node == "node-0"} == {TargetState.ANNOUNCED}
    orphans = verifiers(killed)
    os.kill(killed, signal.SIGKILL)

    ended = job.wait(view)
    assert ended.state is CaptureState.SUCCEEDED, ended
    assert service.restarts == restarts + 1
    assert service.pid != killed
    wait_for(lambda: not any(orphan.is_running() for orphan in orphans), "the old verifiers are gone")
    assert sorted(job.traces_of(ended)) == [0, 1, 2, 3]
    assert job.capture().state is CaptureState.SUCCEEDED


def test_a_frozen_agent_fails_only_its_own_targets_and_delays_nobody(job: LiveJob) -> None:
    before = job.capture()
    with frozen(job.local.services["agent-1"].pid):
        during = job.capture()
    wait_for(lambda: agents_answer(job), "the agent answers again")
    after = job.capture()

    assert before.state is after.state is CaptureState.SUCCEEDED
    assert during.state is CaptureState.PARTIAL
    assert during.published
    for fact in during.targets:
        if fact.identity.node == "node-0":
            assert fact.state is TargetState.ARCHIVED
        else:
            assert fact.failure is not None
            assert fact.failure.reason is FailureReason.AGENT_UNREACHABLE
            known = next(each for each in before.targets if each.target_id == fact.target_id)
            assert fact.identity == known.identity
    usual, meanwhile = elapsed(job, before), elapsed(job, during)
    for event in ("dispatched", "consumed", "archived"):
        # "No later": up to what two captures of this machine differ by anyway.
        assert meanwhile[event] <= usual[event] * 1.25 + 0.5, (event, usual, meanwhile)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def verifiers(agent: int) -> list[psutil.Process]:
    """The agent's reading processes, once they are set up (they lower their priority last)."""
    children = psutil.Process(agent).children()
    return [child for child in children if "sameshot.agent.verifyworker" in child.cmdline() and child.nice() > 0]


def agents_answer(job: LiveJob) -> bool:
    with job.local.client() as client:
        return all(agent.reachable for agent in client.workers().agents)


def elapsed(job: LiveJob, view: CaptureView) -> dict[str, float]:
    """Event → seconds from the request until the last target of node-0 was there."""
    mine = {fact.target_id for fact in view.targets if fact.identity.node == "node-0"}
    journal = job.journal(view)
    return {
        event: max(journal[event, target] for target in mine) - view.accepted_at_ns / 1e9
        for event in ("dispatched", "consumed", "archived")
    }
