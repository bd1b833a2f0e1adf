"""A retry that comes when the job's run is over: what its key has already is found in the archive, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sameshot.client.local import JobInfo, write_job_file
from sameshot.errors import JobEnded, NoSuchJob, RequestKeyConflict, StorageError, Unreachable
from sameshot.model import CaptureSpec, FailureReason, JobRef, Outcome
from sameshot.steps.begin import begin
from sameshot.steps.capture import run
from sameshot.steps.request import Action, CaptureRequest
from support.coordination import SPEC, in_loop
from support.fake_agent import JOB, deliver, failing
from support.step_requests import request, training


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    return root


def ended(root: Path, archive: str, *, job: JobRef = JOB, run_id: str = "r1", coordinator: str = "unix:/none") -> None:
    (root / run_id).mkdir()
    info = JobInfo(job=job, series="nightly", coordinator=coordinator, archive=archive, pid=2**22 + 1)
    write_job_file(root / run_id, info)


def retry(**more: Any) -> CaptureRequest:
    return CaptureRequest(**{"address": "local:train", "request_key": "k1", "spec": SPEC, "caller": "ana", **more})


@contextlib.asynccontextmanager
async def nobody_started() -> AsyncIterator[None]:
    with pytest.raises(JobEnded, match="train has ended"):
        yield


@in_loop
async def test_the_capture_of_the_same_key_is_found_in_the_archive(tmp_path: Path, root: Path) -> None:
    async with training(tmp_path) as (_, client):
        first = await run(request(client))
    ended(root, str(tmp_path / "archive"))
    for address in ("local:train", "local:r1", "local"):
        for action in (Action.FAIL, Action.SKIP, Action.WAIT):
            asked = retry(address=address, if_unavailable=action, uid=JOB.uid if address == "local" else None)
            lines: list[str] = []
            again = await run(asked, lines.append)
            assert again == first
            assert any("in the archive (same request key)" in line for line in lines)


@in_loop
async def test_the_latest_good_one_of_several_is_taken_whatever_has_no_manifest(tmp_path: Path, root: Path) -> None:
    """The first failed, the second was cancelled at once and left nothing, the third is good."""
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.MISSING)
        assert (await run(request(client))).outcome is Outcome.FAILED
        workers, agent.workers = agent.workers, []
        nothing = await client.wait((await client.start_capture(SPEC, "k1")).capture_id)
        assert (nothing.n, nothing.expected) == (2, 0)
        agent.workers, agent.script = workers, deliver
        third = await run(request(client))
        assert (third.n, third.exit_code) == (3, 0)
    ended(root, str(tmp_path / "archive"))
    assert await run(retry()) == third


@in_loop
async def test_another_key_caller_or_run_has_no_capture_there(tmp_path: Path, root: Path) -> None:
    async with training(tmp_path) as (agent, client):
        await run(request(client))
        agent.script = failing(FailureReason.MISSING)
        await run(request(client, "failed"))
    ended(root, str(tmp_path / "archive"))
    for other in (retry(request_key="k2"), retry(caller="bob"), retry(request_key="failed")):
        async with nobody_started():
            await begin(other)
        skipped = await run(msgspec.structs.replace(other, if_unavailable=Action.SKIP))
        assert skipped.skipped
    for other in (retry(uid="9" * 32), retry(job="gpt", address="local"), retry(attempt=7)):
        with pytest.raises(NoSuchJob):
            await begin(other)
    with pytest.raises(RequestKeyConflict, match="k1"):
        await begin(retry(spec=CaptureSpec(duration_ms=2000)))


@in_loop
async def test_an_archive_that_can_not_be_asked_is_no_reason_to_skip(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(uri: str) -> None:
        raise StorageError("503")

    monkeypatch.setattr("sameshot.steps.kept.read_manifest", away)
    ended(root, str(tmp_path / "archive"))
    with pytest.raises(StorageError):
        await run(retry(if_unavailable=Action.SKIP))


@pytest.mark.full
@in_loop
async def test_a_coordinator_that_does_not_answer_any_more_is_not_needed_either(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sameshot.steps.patience.PATIENCE_S", 0.3)
    async with training(tmp_path) as (_, client):
        first = await run(request(client))
    ended(root, str(tmp_path / "archive"), coordinator=f"unix:{tmp_path}/none.sock")
    monkeypatch.setattr("sameshot.client.local.is_locked", lambda *_: True)  # the run lives, its coordinator does not
    assert await run(retry()) == first
    with pytest.raises(Unreachable):
        await begin(retry(request_key="k2"))
