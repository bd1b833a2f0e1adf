"""A node archives the events of each trace as columns, too; the trace never depends on them."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec
import psutil
import pytest
from agent_lab import JOB, Lab, in_loop, until, write_large_trace

from sameshot.agent.capturebook import Status
from sameshot.model import Artifact, FailureReason, TargetFact, TargetState
from sameshot.trace.columns.read import read_footer


def artifact_of(fact: TargetFact) -> Artifact:
    assert fact.artifact is not None
    return fact.artifact


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@in_loop
async def test_columns_are_archived_beside_the_trace_and_bound_to_it(lab: Lab) -> None:
    worker = lab.worker(rank=3)
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        worker.write_trace(capture)
        artifact = artifact_of(await caller.until_archived(capture, worker))
        columns = artifact.columns
        assert columns is not None
        assert columns.uri == f"rank-3-{worker.registration.uuid[:8]}/columns.parquet"
        stored = lab.archive / JOB.path / capture / columns.uri
        assert (stored.stat().st_size, hashlib.sha256(stored.read_bytes()).hexdigest()) == (
            columns.size,
            columns.sha256,
        )
        footer = read_footer(stored)
        assert (footer.raw_sha256, footer.raw_size) == (artifact.raw_sha256, artifact.raw_size)
        assert footer.schema == columns.schema
        await until(lambda: not {"columns", "stored", "raw.json"} & set(files(lab.spool)), "an empty spool")


@in_loop
async def test_a_node_can_do_without(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent(columns=False) as caller:
        capture = await caller.dispatch(worker)
        worker.write_trace(capture)
        assert artifact_of(await caller.until_archived(capture, worker)).columns is None
        assert files(lab.archive) == ["trace.json.gz"]


@in_loop
async def test_a_broken_trace_has_no_columns(lab: Lab) -> None:
    worker = lab.worker()
    async with lab.agent() as caller:
        capture = await caller.dispatch(worker)
        worker.write_trace(capture, b'{"traceEvents": [')
        fact = await caller.until_failed(capture, worker)
        assert fact.failure is not None
        assert fact.failure.reason is FailureReason.INVALID
        assert files(lab.archive) == ["raw"]


def test_columns_that_can_not_be_written_cost_a_warning_and_nothing_else(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def scenario() -> None:
        worker = lab.worker()
        async with lab.agent() as caller:
            capture = await caller.dispatch(worker)
            target = caller.agent.book.get(capture)
            assert target is not None
            [one] = target.targets.values()
            one.columns.mkdir()  # nothing can be renamed over it
            (one.columns / "occupied").touch()
            worker.write_trace(capture)
            assert artifact_of(await caller.until_archived(capture, worker)).columns is None

    with caplog.at_level(logging.WARNING):
        scenario()
    assert "no columns" in caplog.text


def test_a_verifier_that_dies_over_columns_is_followed_by_one_that_makes_none(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def scenario() -> None:
        worker = lab.worker()
        async with lab.agent() as caller:
            capture = await caller.dispatch(worker)
            large = lab.root / "large"
            write_large_trace(large, worker.registration, 60 << 20)
            large.rename(worker.final_name(capture))
            await until(lambda: list(lab.spool.rglob("columns.*")), "columns under way")
            [scratch] = lab.spool.rglob("columns.*")
            psutil.Process(int(scratch.suffix[1:])).kill()
            assert artifact_of(await caller.until_archived(capture, worker)).columns is None
            await until(lambda: not [*lab.spool.rglob("columns*"), *lab.spool.rglob("stored*")], "a clean spool")

    with caplog.at_level(logging.WARNING):
        scenario()
    assert "no columns" in caplog.text


def test_a_trace_goes_without_columns_that_were_lost_while_the_agent_was_away(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def scenario() -> None:
        one, other = lab.worker(), lab.worker(rank=1, local_rank=1)
        lab.archive.write_text("a file where the archive's folder should be")
        async with lab.agent() as caller:
            capture = await caller.dispatch(one, other)
            for worker in (one, other):
                worker.write_trace(capture)
                await caller.until_state(capture, worker, TargetState.VERIFIED)
        for path in lab.spool.rglob("status.json"):
            verified = msgspec.json.decode(path.read_bytes(), type=Status).verified
            assert verified is not None
            assert verified.columns is not None
        [lost] = [path for path in lab.spool.rglob("columns") if "main_0" in str(path)]
        lost.write_bytes(b"half")
        lab.archive.unlink()
        async with lab.agent() as caller:
            assert artifact_of(await caller.until_archived(capture, one)).columns is None
            assert artifact_of(await caller.until_archived(capture, other)).columns is not None
            assert not caller.agent.pool.pids, "nothing was read again"

    with caplog.at_level(logging.WARNING):
        scenario()
    assert "columns lost" in caplog.text
