"""One look at a capture: what the coordinator says, else the archive; what nobody says proves nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import msgspec
import pytest

from sameshot.api.views import CaptureView
from sameshot.errors import Denied, ManifestError, StorageError, UnknownCapture, UsageError
from sameshot.model import CaptureState, Outcome, TargetState
from sameshot.steps import glance
from sameshot.steps import lately as memory
from sameshot.steps.follow import ENDED_GRACE_S
from sameshot.steps.glance import LOOK_S, Glances
from sameshot.steps.lately import Lately, Since
from sameshot.steps.request import CaptureRequest
from support.canned_coordinator import SILENCE, canned
from support.coordination import SPEC, in_loop, until_view
from support.fake_agent import JOB, stay
from support.s3 import s3_environment
from support.silent_network import network_to
from support.step_requests import request, training

NOBODY = "127.0.0.1:1"
LOST = "0" * 32


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "ANSWER_S", 0.4)


@pytest.fixture
def no_jobs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "runs"))


def asked(address: str = NOBODY) -> CaptureRequest:
    return CaptureRequest(address=address, request_key="k1", spec=SPEC, caller="ana", job=JOB.name, uid=JOB.uid)


async def captured(folder: Path) -> CaptureView:
    async with training(folder) as (_, client):
        return await client.wait((await client.start_capture(SPEC, "k1")).capture_id)


# ---- who knows it


@in_loop
async def test_the_coordinator_says_how_it_stands(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        started = await client.start_capture(SPEC, "k1")
        await until_view(client, started.capture_id, lambda view: view.state is CaptureState.COLLECTING)
        seen = await Glances().look(request(client), started.capture_id, started.manifest_uri)
        assert seen.view is not None
        assert (seen.view.state, seen.view.expected, seen.trouble) == (CaptureState.COLLECTING, 2, "")
        assert not (await client.get(started.capture_id)).cancel_requested


@in_loop
async def test_without_a_coordinator_the_manifest_tells_and_its_digest_comes_with_it(tmp_path: Path) -> None:
    done = await captured(tmp_path)
    seen = await Glances().look(asked(), done.capture_id, done.manifest_uri)
    assert seen.view is not None
    assert (seen.view.state, seen.view.archived, seen.view.published) == (CaptureState.SUCCEEDED, 2, True)
    manifest = msgspec.json.decode(Path(done.manifest_uri.removeprefix("file://")).read_bytes())
    assert seen.sha256 == manifest["sha256"]


@in_loop
async def test_a_coordinator_that_is_away_proves_nothing_however_long(tmp_path: Path) -> None:
    clock = Clock()
    glances = Glances(clock)
    for uri in ("", (tmp_path / "none" / "manifest.json").as_uri()):
        for _ in range(3):
            seen = await glances.look(asked(), LOST, uri)
            assert seen.view is None
            assert "can't be reached" in seen.trouble
            clock.now += 3600


@in_loop
async def test_what_neither_knows_is_lost_and_says_whose_it_was(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        uri = (tmp_path / "archive" / "manifest.json").as_uri()
        seen = await Glances().look(request(client), LOST, uri)
    assert seen.view is not None
    assert (seen.view.state, seen.view.outcome, seen.view.job) == (CaptureState.UNKNOWN, Outcome.UNKNOWN, JOB)
    assert (seen.view.manifest_uri, seen.view.request_key) == (uri, "k1")
    assert "Neither the coordinator nor the archive knows" in seen.view.note


@in_loop
async def test_an_archive_that_can_not_say_does_not_make_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(uri: str) -> None:
        raise StorageError("503 of the bucket")

    monkeypatch.setattr("sameshot.steps.follow.read_manifest", away)
    async with canned(GetCapture=UnknownCapture("never had it"), Describe=JOB) as coordinator:
        seen = await Glances().look(asked(coordinator.address), LOST, "s3://b/m.json")
        assert (seen.view, seen.trouble) == (None, "never had it 503 of the bucket")


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN])
@in_loop
async def test_what_a_proxy_says_is_no_end(code: grpc.StatusCode) -> None:
    async with canned(GetCapture=code) as coordinator:
        seen = await Glances().look(asked(coordinator.address), LOST)
    assert seen.view is None
    assert code.name in seen.trouble


@pytest.mark.parametrize("error", [Denied("not yours"), UsageError("no such id")])
@in_loop
async def test_what_asking_again_can_not_mend_is_raised(error: Exception) -> None:
    async with canned(GetCapture=error) as coordinator:
        with pytest.raises(type(error)):
            await Glances().look(asked(coordinator.address), LOST)


@in_loop
async def test_another_captures_manifest_is_never_taken_for_this_ones(tmp_path: Path) -> None:
    done = await captured(tmp_path)
    with pytest.raises(ManifestError, match=done.capture_id):
        await Glances().look(asked(), LOST, done.manifest_uri)


# ---- a job that has gone


@in_loop
async def test_the_archive_has_some_time_before_a_capture_of_a_job_that_has_gone_is_lost(
    tmp_path: Path, no_jobs_here: None
) -> None:
    done, clock = await captured(tmp_path), Clock()
    glances, gone, uri = Glances(clock), asked("local:train"), (tmp_path / "later" / "manifest.json").as_uri()
    for passed in (0.0, ENDED_GRACE_S - 0.1):
        clock.now = 1000.0 + passed
        seen = await glances.look(gone, LOST, uri)
        assert seen.view is None
        assert "No job" in seen.trouble
    clock.now = 1000.0 + ENDED_GRACE_S
    other = await glances.look(gone, done.capture_id, uri)
    assert other.view is None  # each capture has its own time
    seen = await glances.look(gone, LOST, uri)
    assert seen.view is not None
    assert seen.view.state is CaptureState.UNKNOWN
    assert "gone with its job" in seen.view.note

    Path(done.manifest_uri.removeprefix("file://")).parent.rename(tmp_path / "later")
    found = await glances.look(gone, done.capture_id, uri)
    assert found.view is not None
    assert found.view.published


@in_loop
async def test_a_coordinator_that_is_heard_again_ends_that_time(no_jobs_here: None) -> None:
    clock, view = Clock(), CaptureView(capture_id=LOST, job=JOB, state=CaptureState.COLLECTING)
    glances = Glances(clock)
    assert (await glances.look(asked("local:train"), LOST)).view is None
    clock.now += 10
    async with canned(GetCapture=view) as coordinator:
        assert (await glances.look(asked(coordinator.address), LOST)).view == view
    clock.now += 10
    assert (await glances.look(asked("local:train"), LOST)).view is None


@in_loop
async def test_a_look_that_is_cut_off_does_not_begin_that_time_anew(
    no_jobs_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    glances = Glances(clock)
    assert (await glances.look(asked("local:train"), LOST)).view is None
    clock.now += ENDED_GRACE_S
    with monkeypatch.context() as patch:
        reading = asyncio.Event()

        async def hangs(uri: str) -> None:
            reading.set()
            await asyncio.Event().wait()

        patch.setattr("sameshot.steps.follow.read_manifest", hangs)
        looking = asyncio.create_task(glances.look(asked("local:train"), LOST, "s3://b/m.json"))
        await reading.wait()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    seen = await glances.look(asked("local:train"), LOST)
    assert seen.view is not None
    assert seen.view.state is CaptureState.UNKNOWN


# ---- bounded in time


@in_loop
async def test_a_silent_coordinator_and_a_hanging_store_take_no_longer_than_a_look_may(
    tmp_path: Path, little_patience: None
) -> None:
    async with training(tmp_path) as (_, client), network_to(client.address) as network:
        network.fall_silent()
        with s3_environment(f"http://{network.address}"):
            began = time.monotonic()
            seen = await Glances().look(asked(network.address), LOST, "s3://bucket/job/manifest.json")
            assert time.monotonic() - began < 2
    assert seen.view is None
    assert "coordinator" in seen.trouble
    assert "archive did not answer" in seen.trouble


@in_loop
async def test_the_archive_is_asked_behind_a_silent_coordinator(tmp_path: Path, little_patience: None) -> None:
    done = await captured(tmp_path)
    async with canned(GetCapture=SILENCE) as coordinator:
        seen = await Glances().look(asked(coordinator.address), done.capture_id, done.manifest_uri)
    assert seen.view is not None
    assert seen.view.published


@in_loop
async def test_whoever_can_not_say_the_jobs_name_is_not_waited_for(little_patience: None) -> None:
    async with canned(GetCapture=UnknownCapture("never had it"), Describe=SILENCE) as coordinator:
        began = time.monotonic()
        seen = await Glances().look(asked(coordinator.address), LOST)
        assert time.monotonic() - began < 2
    assert seen.view is not None
    assert (seen.view.state, seen.view.job.name, seen.view.job.namespace) == (CaptureState.UNKNOWN, "train", "")


def test_a_look_leaves_engines_that_give_ten_seconds_room_for_more() -> None:
    assert LOOK_S <= 7


# ---- what is remembered


def test_of_too_many_those_go_that_nobody_has_used_for_long() -> None:
    clock = Clock()
    lately: Lately[int] = Lately(clock, limit=2, unused_s=60)
    lately.put("0", 0)
    lately.put("1", 1)
    clock.now += 59
    lately.put("2", 2)  # no room: both may be asked for again
    assert [lately.get(each) for each in "012"] == [0, 1, None]
    clock.now += 30
    assert lately.get("0") == 0
    clock.now += 30
    lately.put("2", 2)
    assert [lately.get(each) for each in "012"] == [0, None, 2]
    lately.put("0", 10)  # again: that needs no room
    assert (lately.get("0"), lately.get("2")) == (10, 2)
    lately.forget("0")
    lately.forget("never there")
    lately.put("3", 3)
    assert [lately.get(each) for each in "0123"] == [None, None, 2, 3]


def test_patience_ends_for_more_than_can_be_remembered() -> None:
    """They take turns; and whose patience has ended makes room for the next."""
    clock = Clock()
    since, silent, ended = Since(clock, limit=10), {str(each) for each in range(25)}, 0
    for _ in range(10):
        for each in sorted(silent):
            if since.seconds(each) >= 60:
                since.forget(each)
                silent.remove(each)
                ended += 1
        clock.now += 30
    assert (ended, silent) == (25, set())


def test_the_bound_is_above_what_one_connector_can_look_at() -> None:
    assert memory.LIMIT >= 10_000
    assert memory.UNUSED_S >= 4 * 30  # Flyte looks every half minute


def test_what_lasts_is_counted_from_the_first_time_and_anew_after_an_end() -> None:
    clock = Clock()
    since = Since(clock)
    assert since.seconds("a") == 0
    clock.now += 7
    assert (since.seconds("a"), since.seconds("b")) == (7, 0)
    since.forget("a")
    assert since.seconds("a") == 0
