"""Captures in Flyte 2's local runs: there is no back end, so the task itself retries, raises and cancels."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyte2_lab import User, python
from live import LiveJob, running_job, wait_for

from sameshot.client import CaptureView
from sameshot.model import CaptureState

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

MINE = """
import asyncio
import signal
import sys
import threading

import flyte

from sameshot_flyte import polled
from sameshot_flyte.flyte2 import SameshotConnector, capture, capture_env

env = flyte.TaskEnvironment("mine", depends_on=[capture_env])
LONG = {"duration": "10s", "warmup": "5s", "activities": "cpu"}
QUICK = {"duration": "300ms", "warmup": "0s", "activities": "cpu"}

looked = threading.Event()
look = SameshotConnector.get

async def told(self, resource_meta, **more):
    seen = await look(self, resource_meta, **more)
    print("SEEN", seen.phase, flush=True)
    looked.set()
    return seen

SameshotConnector.get = told

@env.task
async def twice(address: str) -> list[str]:
    return [each.capture_id for each in await asyncio.gather(*(capture(address=address, **QUICK) for _ in range(2)))]

tries = []

@env.task(retries=1)
async def clumsy(address: str) -> str:
    picture = await capture(address=address, **QUICK)
    tries.append(picture.capture_id)
    if len(tries) == 1:
        raise RuntimeError("of its own")
    assert set(tries) == {picture.capture_id}
    return picture.capture_id

@env.task
async def impatient(address: str) -> str:
    taking = asyncio.ensure_future(capture(address=address, **LONG))
    while not (looked.is_set() or taking.done()):
        await asyncio.sleep(0.05)
    taking.cancel()
    try:
        await taking
    except asyncio.CancelledError:
        return "stopped"
    return "not stopped"

if __name__ == "__main__":
    flyte.init()
    how, address, raw, name = sys.argv[1:]
    context = flyte.with_runcontext(mode="local", raw_data_path=raw, name=name)

    async def main():
        await context.run.aio(capture, address=address, **LONG)

    if how == "unanswered":
        begin = polled.create_from

        async def lost(*args, **more):
            await begin(*args, **more)
            await asyncio.sleep(60)

        polled.create_from = lost
    if how == "handled":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    if how == "asyncio":
        asyncio.run(main())
    else:
        context.run(capture, address=address, **LONG)
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    one = User(tmp_path)
    one.writes("mine.py", MINE)
    yield one
    one.leaves()


@pytest.fixture
def name() -> Iterator[str]:
    """Of a run that `user` does not name. What it leaves behind goes where the SDK can't be told."""
    one = f"sameshot-{uuid.uuid4().hex[:12]}"
    yield one
    shutil.rmtree(Path("/tmp/flyte/metadata", one), ignore_errors=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    with tempfile.TemporaryDirectory(prefix="ss-", dir="/tmp") as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESHOT_RUNTIME_DIR", runtime)
        with running_job(tmp_path_factory.mktemp("job"), nodes=1, script_args=("--pause", "0.02")) as running:
            yield running


@pytest.fixture
def known(job: LiveJob) -> set[str]:
    return {each.capture_id for each in captures(job)}


def captures(job: LiveJob, known: set[str] = frozenset()) -> list[CaptureView]:  # type: ignore[assignment]
    """Those that are not known yet."""
    with job.local.client() as client:
        return [each for each in client.captures() if each.capture_id not in known]


@pytest.mark.live
def test_a_local_run_looks_again_and_again_and_hands_out_the_capture(job: LiveJob, known: set[str], user: User) -> None:
    asked = {"address": job.local.address, "duration": "1s", "warmup": "4s", "activities": "cpu"}
    ran = user.runs("mine", "capture", **asked)
    assert ran.error is None
    (view,) = captures(job, known)
    found = ran.outputs["capture"]
    assert (found["capture_id"], found["outcome"], found["archived"]) == (view.capture_id, "SUCCEEDED", 2)
    assert found["manifest_sha256"] == json.loads(job.manifest_of(view).read_bytes())["sha256"]
    looks = [line for line in ran.log.splitlines() if line.startswith("SEEN")]
    assert len(looks) > 1
    assert user.actions(ran)["sameshot_capture"][0].attempts == 1
    assert not user.actions(ran)["sameshot_capture"][0].hit


@pytest.mark.live
def test_two_captures_of_one_run_are_two_though_all_inputs_are_the_same(
    job: LiveJob, known: set[str], user: User
) -> None:
    ran = user.runs("mine", "twice", address=job.local.address)
    assert ran.error is None, ran.log
    views = captures(job, known)
    assert len(views) == 2
    assert {each.capture_id for each in views} == set(ran.outputs["o0"])


@pytest.mark.live
def test_a_task_that_is_tried_again_finds_its_capture_again(job: LiveJob, known: set[str], user: User) -> None:
    ran = user.runs("mine", "clumsy", address=job.local.address)
    assert ran.error is None, ran.log
    assert user.actions(ran)["mine.clumsy"][0].attempts == 2
    (view,) = captures(job, known)
    assert ran.outputs == {"o0": view.capture_id}


@pytest.mark.live
def test_another_run_of_the_same_name_takes_a_picture_of_its_own(
    job: LiveJob, known: set[str], user: User, name: str
) -> None:
    """Names of runs are the user's own; `--name nightly` every night is no retry."""
    asked = {"address": job.local.address, "duration": "300ms", "warmup": "0s", "activities": "cpu"}
    for _ in range(2):
        wish = {"name": name, "raw": str(user.folder / "raw"), "module": "mine", "task": "capture"}
        assert user.drives("run", **wish, inputs=asked)["error"] is None
    assert len(captures(job, known)) == 2


@pytest.mark.live
def test_a_task_that_is_cancelled_cancels_its_capture(job: LiveJob, known: set[str], user: User) -> None:
    ran = user.runs("mine", "impatient", address=job.local.address)
    assert ran.outputs == {"o0": "stopped"}, ran.log
    (view,) = captures(job, known)
    assert view.state is CaptureState.CANCELLED


@pytest.mark.live
@pytest.mark.parametrize("how", ["sync", "asyncio", "unanswered"])
def test_ctrl_c_cancels_the_capture(job: LiveJob, known: set[str], user: User, name: str, how: str) -> None:
    argv = [str(python()), "mine.py", how, job.local.address, str(user.folder / "raw"), name]
    process = subprocess.Popen(argv, cwd=user.work, env=user.environment)
    try:
        wait_for(lambda: captures(job, known) or process.poll() is not None, "it has begun")
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.wait(30)
    assert process.returncode == -signal.SIGINT
    (view,) = captures(job, known)
    assert view.state is CaptureState.CANCELLED


@pytest.mark.live
@pytest.mark.parametrize("how", ["sync", "handled"])
def test_a_process_that_is_just_ended_leaves_the_capture_unless_it_says_how_to_end(
    job: LiveJob, known: set[str], user: User, name: str, how: str
) -> None:
    argv = [str(python()), "mine.py", how, job.local.address, str(user.folder / "raw"), name]
    process = subprocess.Popen(argv, cwd=user.work, env=user.environment)
    try:
        wait_for(lambda: captures(job, known) or process.poll() is not None, "it has begun")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait(30)
    (view,) = captures(job, known)
    if how == "handled":
        assert (process.returncode, view.state) == (3, CaptureState.CANCELLED)
        return
    assert process.returncode == -signal.SIGTERM
    assert not view.state.terminal, "as the task's docstring says"
    with job.local.client() as client:
        client.cancel(view.capture_id)
    wait_for(lambda: captures(job, known)[0].state is CaptureState.CANCELLED, "it is over")


def test_one_capture_that_cannot_be_ended_keeps_no_other_from_it(user: User) -> None:
    user.writes(
        "two.py",
        """
from sameshot_flyte.flyte2 import here


class Polled:
    async def delete(self, asked):
        print("told", flush=True)
        raise RuntimeError("no SameshotError")


with here.running() as one, here.running() as other:
    for each in (one, other):
        each.asked, each.polled = object(), Polled()
    here._end_all()
    print("over")
""",
    )
    done = user.command("python", "two.py")
    assert done.stdout.splitlines()[:2] == ["told", "told"], done.stderr
    assert "over" in done.stdout
    assert "The capture may go on: RuntimeError: no SameshotError" in done.stdout + done.stderr


def test_a_failure_that_may_pass_ends_with_an_error_after_its_retries(user: User) -> None:
    ran = user.runs("mine", "capture", address="local:nobody", duration="1s")
    assert ran.error is not None
    assert "nobody" in ran.error["message"]
    (action,) = user.actions(ran)["sameshot_capture"]
    assert action.attempts == 3  # one, and two retries


def test_a_failure_for_good_is_not_tried_again(user: User) -> None:
    ran = user.runs("mine", "capture", address="local:nobody", duration="soon")
    assert ran.error is not None
    assert "duration: 'soon' is not a duration" in ran.error["message"]
    (action,) = user.actions(ran)["sameshot_capture"]
    assert action.attempts == 1


def test_what_a_capture_task_must_not_be_told_is_refused_where_it_is_written(user: User) -> None:
    user.writes(
        "wrong.py",
        """
import flyte
from sameshot_flyte.flyte2 import SameshotCapture, capture
from sameshot.errors import UsageError

for make in (
    lambda: SameshotCapture(name="a", cache="auto"),
    lambda: capture.override(cache="auto"),
    lambda: SameshotCapture(name="b", archive_base_url="s3://bucket"),
    lambda: capture(address="local:any"),
):
    try:
        make()
    except Exception as error:
        print(type(error).__name__, error)
assert capture.override(retries=4).retries.count == 4
""",
    )
    done = user.command("python", "wrong.py")
    assert done.returncode == 0, done.stderr
    cached, overridden, link, outside = done.stdout.splitlines()
    assert cached.startswith("UsageError The capture task 'a' is told to cache")
    assert overridden.startswith("UsageError The capture task 'sameshot_capture' is told to cache")
    assert link.startswith("UsageError The archive_base_url of the capture task 'b' is not an http")
    assert "works in runs alone" in outside


def test_a_connector_service_that_loads_ours_loads_no_tasks_and_nothing_heavy(user: User) -> None:
    user.writes(
        "light.py",
        """
import sys
import flyte.connectors
before = set(sys.modules)
from importlib.metadata import entry_points
(ours,) = entry_points(group="flyte.connectors", name="sameshot")
ours.load()
new = set(sys.modules) - before
heavy = ("isal", "numpy", "obstore", "pandas", "torch", "sameshot.analysis", "sameshot_flyte.work")
print([name for name in (*heavy, "sameshot_flyte.flyte2.task", "sameshot_flyte.flyte2.workflow") if name in new])
print(flyte.connectors.ConnectorRegistry.get_connector("sameshot_capture").name)
""",
    )
    done = user.command("python", "light.py")
    assert done.stdout.splitlines() == ["[]", "sameshot"], done.stderr
