"""How a capture that is polled stands, and what came of it: told by any process, terminal only when it is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from polled_lab import Clock, asking, looks, process

from sameshot.api.views import CaptureView
from sameshot.errors import AlreadyExists, Denied, StorageError, UnknownCapture
from sameshot.model import CaptureSpec, CaptureState, FailureReason, Outcome, TargetState
from sameshot.steps.follow import is_over
from sameshot.steps.glance import Glance, Glances
from sameshot_flyte.asked import Asked
from sameshot_flyte.phases import UNDER_WAY
from sameshot_flyte.polled import PATIENCE_S, Polled, create
from support.canned_coordinator import canned
from support.coordination import in_loop, until, until_view
from support.fake_agent import JOB, deliver, failing, stay
from support.step_requests import by_rank, request, training

LOST = "0" * 32


def followed(address: str, uri: str = "", **more: Any) -> Asked:
    return Asked(request=asking(address), since=0.0, deadline=4e9, capture_id=LOST, manifest_uri=uri, **more)


@in_loop
async def test_the_way_of_a_capture_through_flytes_phases(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        blocking = await client.start_capture(CaptureSpec(duration_ms=1000, start_delay_ms=600_000), "before")
        agent.script = stay(TargetState.QUEUED)
        asked = await create(request(client))
        waiting = await looks(asked, so=lambda status: "waits for capture" in status.message)
        assert waiting.phase == "QUEUED"
        await client.cancel(blocking.capture_id)
        running = await looks(asked, so=lambda status: status.phase == "RUNNING")
        assert "COLLECTING" in running.message
        assert running.result is None
        agent.script = deliver
        done = await looks(asked)
        assert done.phase == "SUCCEEDED"
        assert done.message == "All 2 ranks of train have a verified trace."
        assert done.result is not None
        assert (done.result.outcome, done.result.archived, done.result.shards) == (Outcome.SUCCEEDED, 2, ("0/2", "1/2"))
        assert done.result.manifest_sha256 is not None
        assert done.manifest_uri == running.manifest_uri == asked.manifest_uri
        assert await process().get(Asked.decode(asked.encode())) == done


@pytest.mark.parametrize(("min_ranks", "phase"), [(None, "FAILED"), (2, "FAILED"), (1, "SUCCEEDED")])
@in_loop
async def test_a_partial_capture_is_good_for_whoever_needs_no_more(
    min_ranks: int | None, phase: str, tmp_path: Path
) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = by_rank(r0=deliver, r1=failing(FailureReason.WORKER_EXITED, "it crashed"))
        status = await looks(await create(request(client, min_ranks=min_ranks)))
        assert status.phase == phase
        assert "it crashed" in status.message
        assert status.result is not None
        assert (status.result.outcome, status.result.missing) == (Outcome.PARTIAL, "1")
        assert status.result.shards == ("0/1",)


@in_loop
async def test_a_capture_that_failed_is_worth_another_attempt(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = failing(FailureReason.WORKER_EXITED, "it crashed")
        status = await looks(await create(request(client)))
        assert status.phase == "RETRYABLE_FAILED"
        assert "it crashed" in status.message


@in_loop
async def test_somebodys_cancel_is_final_and_says_what_it_did(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.QUEUED)
        asked = await create(request(client))
        await until_view(client, asked.capture_id, lambda view: view.state is CaptureState.COLLECTING)
        await client.cancel(asked.capture_id)
        status = await looks(asked)
        assert status.phase == "FAILED"
        assert "was cancelled" in status.message
        assert "2 of 2 configs were withdrawn" in status.message
        assert status.result is not None
        assert not status.result.timed_out


@in_loop
async def test_a_capture_that_nobody_knows_any_more_is_lost_and_worth_another_attempt(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        status = await process().get(followed(client.address, (tmp_path / "archive" / "m.json").as_uri()))
        assert status.phase == "RETRYABLE_FAILED"
        assert "it is lost" in status.message
        assert status.result is not None
        assert (status.result.outcome, status.result.exit_code) == (Outcome.UNKNOWN, 5)


@in_loop
async def test_it_has_not_ended_before_its_manifest_is_in_the_archive(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = StorageError("the bucket is away")
        asked = await create(request(client))
        await until_view(client, asked.capture_id, lambda view: view.state.terminal)
        status = await looks(asked, so=lambda status: "the bucket is away" in status.message)
        assert status.phase == "RUNNING"
        assert "SUCCEEDED, 2 of 2 archived, not published" in status.message
        agent.refuse.clear()
        assert (await looks(asked)).phase == "SUCCEEDED"


@in_loop
async def test_what_will_never_be_published_is_not_waited_for(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.refuse["PublishManifest"] = AlreadyExists("there is another one")
        status = await looks(await create(request(client)))
        assert status.phase == "RETRYABLE_FAILED"
        assert "no manifest of it will ever be published" in status.message


# ---- the coordinator is away


@in_loop
async def test_without_a_coordinator_the_archive_tells_and_until_then_it_runs(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        asked = await create(request(client))
        await client.wait(asked.capture_id)
        await until(lambda: agent.calls.count("PublishManifest"))
    folder = Path(asked.manifest_uri.removeprefix("file://")).parent
    folder.rename(tmp_path / "later")
    for _ in range(3):
        status = await process().get(asked)
        assert status.phase == "RUNNING"
        assert "can't be reached" in status.message
    (tmp_path / "later").rename(folder)
    status = await process().get(asked)
    assert status.phase == "SUCCEEDED"
    assert status.result is not None
    assert status.result.manifest_sha256 is not None


@in_loop
async def test_a_manifest_that_a_look_has_read_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with training(tmp_path) as (_, client):
        asked = await create(request(client))
        await client.wait(asked.capture_id)

    async def again(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("sameshot.steps.finish.read_manifest", again)
    assert (await looks(asked)).phase == "SUCCEEDED"


@pytest.mark.parametrize(
    ("error", "phase"), [(Denied("not yours"), "FAILED"), (UnknownCapture("no"), "RETRYABLE_FAILED")]
)
@in_loop
async def test_errors_of_the_coordinator_are_phases(error: Exception, phase: str) -> None:
    async with canned(GetCapture=error) as coordinator:
        assert (await process().get(followed(coordinator.address))).phase == phase


@in_loop
async def test_a_damaged_manifest_is_a_phase_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": "sameshot.dev/manifest/v1"}')
    status = await process().get(followed("127.0.0.1:1", (tmp_path / "manifest.json").as_uri()))
    assert status.phase == "RETRYABLE_FAILED"
    assert "manifest" in status.message


@in_loop
async def test_a_store_that_fails_for_a_moment_does_not_fail_a_published_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StorageError("503 of the bucket")

    async with training(tmp_path) as (_, client):
        asked, clock = await create(request(client)), Clock()
        await until_view(client, asked.capture_id, lambda view: view.published)
        polls = process(clock)
        with monkeypatch.context() as patch:
            patch.setattr("sameshot.client.AsyncClient.manifest", away)
            patch.setattr("sameshot.steps.finish.read_manifest", away)
            for later in (0.0, PATIENCE_S - 1):
                clock.later = later
                status = await polls.get(asked)
                assert status.phase == "RUNNING"
                assert "503 of the bucket" in status.message
            clock.later = PATIENCE_S + 1
            status = await polls.get(asked)
            assert status.phase == "RETRYABLE_FAILED"
            assert "503 of the bucket" in status.message
        assert (await polls.get(asked)).phase == "SUCCEEDED"


@in_loop
async def test_a_store_that_hangs_is_waited_for_in_the_next_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("sameshot_flyte.polled._GET_S", 1.0)
    async with training(tmp_path) as (_, client):
        asked, clock = await create(request(client)), Clock()
        await until_view(client, asked.capture_id, lambda view: view.published)
        polls = process(clock)
        with monkeypatch.context() as patch:
            patch.setattr("sameshot.client.AsyncClient.manifest", hangs)
            patch.setattr("sameshot.steps.finish.read_manifest", hangs)
            assert (await polls.get(asked)).phase == "RUNNING"
            clock.later = PATIENCE_S + 1
            assert (await polls.get(asked)).phase == "RETRYABLE_FAILED"
        assert (await polls.get(asked)).phase == "SUCCEEDED"


# ---- no look raises, and none ends what is not over


class Told(Glances):
    """A look that sees this."""

    def __init__(self, seen: Glance | Exception) -> None:
        super().__init__()
        self._seen = seen

    async def look(self, *_: object) -> Glance:
        if isinstance(self._seen, Exception):
            raise self._seen
        return self._seen


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), OSError("too many open files")], ids=repr)
@in_loop
async def test_a_fault_of_our_own_is_a_phase_too(error: Exception) -> None:
    status = await Polled(Told(error)).get(followed("127.0.0.1:1"))
    assert status.phase == "RETRYABLE_FAILED"
    assert f"{type(error).__name__}: {error}" in status.message


@in_loop
async def test_who_is_cut_off_is_cut_off() -> None:
    class Hangs(Told):
        async def look(self, *_: object) -> Glance:
            await asyncio.Event().wait()
            raise AssertionError

    getting = asyncio.create_task(Polled(Hangs(Glance(None))).get(followed("127.0.0.1:1")))
    await asyncio.sleep(0)
    getting.cancel()
    await asyncio.gather(getting, return_exceptions=True)
    assert getting.cancelled()


VIEWS = st.builds(
    CaptureView,
    capture_id=st.just(LOST),
    job=st.just(JOB),
    state=st.sampled_from(CaptureState),
    published=st.booleans(),
    manifest_uri=st.sampled_from(["", "m"]),
    expected=st.integers(0, 3),
    archived=st.integers(0, 3),
    note=st.text(max_size=20),
).filter(lambda view: not is_over(view))


@given(VIEWS)
def test_no_capture_that_is_not_over_ends_a_task_before_its_deadline(view: CaptureView) -> None:
    status = asyncio.run(Polled(Told(Glance(view))).get(followed("127.0.0.1:1")))
    assert status.phase is UNDER_WAY[view.state]
    assert not status.phase.terminal
    assert status.result is None


@given(st.text(max_size=3000))
def test_a_message_has_its_limit(trouble: str) -> None:
    status = asyncio.run(Polled(Told(Glance(None, trouble))).get(followed("127.0.0.1:1")))
    assert status.phase == "RUNNING"
    assert len(status.message) <= 1000
