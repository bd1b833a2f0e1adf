"""What nobody came for leaves the spool after its TTL, with a word; what is still to be delivered stays."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from agent_lab import AWorker, Caller, Lab, in_loop, until

from sameshot.agent.metrics import AgentMetrics
from sameshot.model import FailureReason, TargetState

WEEK_S = 7 * 86_400


def later(agent: Any, seconds: float) -> None:
    """The agent's spool looks at what is old as if it were so much later."""
    agent.ttl._clock = lambda: time.time() + seconds


def files(lab: Lab) -> dict[str, int]:
    return {str(path.relative_to(lab.spool)): path.stat().st_size for path in lab.spool.rglob("*") if not path.is_dir()}


def counted(agent: Any) -> dict[str, float]:
    found = {}
    for family in AgentMetrics(agent).collect():
        for sample in family.samples:
            if "spool" in sample.name:
                found[sample.name.removeprefix("sameshot_agent_spool_")] = sample.value
    return found


async def failed_to_archive(lab: Lab, caller: Caller) -> tuple[str, AWorker, str]:
    """(capture, worker, why); with so short an allowance it fails at once, on a busy machine before it was read."""
    worker = lab.worker()
    lab.archive.write_bytes(b"no folder can be made here")
    capture = await caller.dispatch(worker)
    worker.write_trace(capture)
    failure = (await caller.until_failed(capture, worker)).failure
    assert failure is not None
    assert failure.reason in (FailureReason.ARCHIVE_FAILED, FailureReason.VERIFY_TIMEOUT)
    return capture, worker, failure.reason.value


@in_loop
async def test_a_trace_that_could_not_be_archived_is_kept_for_the_ttl_and_then_goes_with_a_warning(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab.agent(allowance_share=0.01, columns=False) as caller:
        capture, worker, why = await failed_to_archive(lab, caller)
        agent = caller.agent
        kept = {name: size for name, size in files(lab).items() if Path(name).name in ("raw.json", "stored")}
        assert len(kept) == (2 if why == "ARCHIVE_FAILED" else 1)
        later(agent, WEEK_S - 60)
        agent.ttl.sweep()
        assert kept.items() <= files(lab).items()
        before = counted(agent)
        assert (before["kept_traces"], before["lost_files_total"], before["lost_bytes_total"]) == (1, 0, 0)

        later(agent, WEEK_S + 60)
        with caplog.at_level(logging.WARNING, "sameshot.agent.spoolttl"):
            agent.ttl.sweep()
            agent.ttl.sweep()
        [said] = [each.getMessage() for each in caplog.records if each.name == "sameshot.agent.spoolttl"]
        for word in (f"{sum(kept.values())} bytes", capture, worker.target_id, f"never archived ({why})"):
            assert word in said
        assert not [name for name in files(lab) if Path(name).name in ("raw.json", "stored", "columns")]
        after = counted(agent)
        assert (after["kept_traces"], after["lost_files_total"]) == (0, len(kept))
        assert after["lost_bytes_total"] == sum(kept.values())
        assert (await caller.fact(capture, worker)).state is TargetState.FAILED, "what became of it is still known"
        assert [each.event for each in agent.journal.entries() if each.capture_id == capture][-1] == "expired"


@in_loop
async def test_what_is_still_on_its_way_is_never_too_old(lab: Lab) -> None:
    worker = lab.worker()
    lab.archive.write_bytes(b"no folder can be made here")
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        worker.write_trace(capture)
        await until(lambda: caller.agent.archive.failures >= 1, "its upload is tried")
        before = files(lab)
        later(caller.agent, 100 * WEEK_S)
        caller.agent.ttl.sweep()
        assert files(lab).keys() == before.keys()
        lab.archive.unlink()
        await caller.until_archived(capture, worker)


@in_loop
async def test_what_was_archived_and_not_removed_goes_without_a_word(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        worker.write_trace(capture)
        await caller.until_archived(capture, worker)
        [target] = caller.agent.book.get(capture).targets.values()  # type: ignore[union-attr]
        await until(lambda: not target.raw.exists(), "its room is given back")
        target.raw.write_bytes(b"a disk that failed to remove it")
        later(caller.agent, WEEK_S + 60)
        caller.agent.ttl.sweep()
        assert not target.raw.exists()
        assert counted(caller.agent)["lost_files_total"] == 0
    assert not [each for each in caplog.records if each.name == "sameshot.agent.spoolttl"]


@in_loop
async def test_leftovers_of_agents_that_were_killed_go_and_what_the_agent_lives_by_stays(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, unfinished = lab.spool / "captures" / "d" / "t", lab.spool / "captures" / "e"
    damaged.mkdir(parents=True)
    unfinished.mkdir()
    (damaged / "raw.json").write_bytes(b"x" * 1000)
    (damaged.parent / "capture.json").write_bytes(b"{")
    outside = lab.root / "outside"
    outside.write_bytes(b"not ours")
    (unfinished / "link").symlink_to(outside)
    for name in (".probe-77", ".rates.json.tmp", "rates.json", "pods.json", "somebody.txt"):
        (lab.spool / name).write_bytes(b"{}")
    async with lab.agent() as caller:
        worker = lab.worker()
        capture = await caller.dispatch(worker)
        caller.agent.ttl.sweep()
        assert damaged.exists()
        assert (lab.spool / ".probe-77").exists()
        later(caller.agent, WEEK_S + 60)
        caller.agent.ttl.sweep()
        assert sorted(os.listdir(lab.spool / "captures")) == [capture]
        assert {".probe-77", ".rates.json.tmp"}.isdisjoint(os.listdir(lab.spool))
        assert {"agent.lock", "rates.json", "pods.json", "somebody.txt"} <= set(os.listdir(lab.spool))
        assert outside.read_bytes() == b"not ours"
        assert counted(caller.agent)["lost_bytes_total"] >= 1001
    assert "1001 bytes, files ['capture.json', 'raw.json']" in caplog.text


@in_loop
async def test_an_agent_looks_by_itself(lab: Lab) -> None:
    async with lab.agent(allowance_share=0.01, columns=False, spool_ttl_s=0.4) as caller:
        await failed_to_archive(lab, caller)
        await until(lambda: caller.agent.ttl.lost_files > 0, "it has gone")
