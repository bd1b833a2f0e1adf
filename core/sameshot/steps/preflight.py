"""Can this job be captured now? Asked before a capture is started, so that a caller gets a reason and not a failure.

`obstacle` decides, from what the coordinator said; the rest asks, and waits. An obstacle is one of our typed errors:
JobEnded, NotArmed, OtherAttempt (the job is not available) or JobBusy (another capture of it is running), and its
message names the job. What the caller wants to be done about it stands in the request (`action_for`).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from sameshot.api.transport import Endpoint
from sameshot.api.views import in_use
from sameshot.client import AsyncClient, CaptureView, JobDescription, WorkersView, jobs, resolve
from sameshot.client.cluster import is_kube, remembered
from sameshot.client.wire import os_user
from sameshot.errors import (
    JobBusy,
    JobEnded,
    NoSuchJob,
    NotArmed,
    OtherAttempt,
    SameshotError,
    Unreachable,
)
from sameshot.model import CaptureState, JobRef, Phase
from sameshot.steps.request import Action, CaptureRequest
from sameshot.threads import DaemonThreads

T = TypeVar("T")

Say = Callable[[str], None]
"""Told in a sentence what is being waited for, or what was observed."""

_SOONEST_S, _LATEST_S = 1.0, 10.0  # between two looks at a job that one waits for
# Captures in these states have, or wait for, the job's profilers; a converged one does not.
OCCUPIED = (CaptureState.WAITING, CaptureState.DISPATCHING, CaptureState.COLLECTING)


def action_for(request: CaptureRequest, error: SameshotError) -> Action:
    """What this request wants to be done about an obstacle; any other error is a failure. Pure.

    Who waits for a job waits for its coordinator, too. Silence is never a reason to skip: the job may be there.
    """
    if isinstance(error, JobBusy):
        return Action.WAIT if error.own else request.if_busy
    if isinstance(error, NoSuchJob):
        return request.if_unavailable
    if isinstance(error, Unreachable) and request.if_unavailable is Action.WAIT:
        return Action.WAIT
    return Action.FAIL


async def check(client: AsyncClient, request: CaptureRequest) -> None:
    """Raises the obstacle, where there is one: JobEnded, NotArmed, OtherAttempt, JobBusy.

    Also Unreachable, where neither the coordinator nor any agent can say.
    """
    description = await client.describe()
    if wrong := other_job(request, description.job):
        raise wrong
    workers, captures = await asyncio.gather(client.workers(), client.captures(unsettled=True))
    if found := obstacle(request, description, workers, captures):
        raise found


def obstacle(
    request: CaptureRequest, description: JobDescription, workers: WorkersView, captures: Sequence[CaptureView]
) -> SameshotError | None:
    """What stands in the way, the most lasting first. Pure."""
    return (
        other_job(request, description.job)
        or nobody_there(description.job, workers)
        or busy(request, description, captures)
        or resting(description)
    )


def busy(request: CaptureRequest, description: JobDescription, captures: Sequence[CaptureView]) -> JobBusy | None:
    """Another task's capture runs and this request does not want to queue behind it, or the job's policy lets no more
    of them queue, whosever they are. Pure."""
    who = description.caller
    queue = [each for each in captures if each.state in OCCUPIED and not is_ours(request, each, who)]
    others = [each for each in queue if not is_kin(request, each, who)]
    if others and request.if_busy is not Action.WAIT:
        return busy_with(description.job.name, others)
    if len(queue) < max(description.policy.max_captures_at_once, 1):
        return None
    return busy_with(description.job.name, others or queue, own=not others)


def busy_with(job: str, others: Sequence[CaptureView], *, own: bool = False) -> JobBusy:
    return JobBusy(in_use(job, others), own=own)


def resting(description: JobDescription) -> JobBusy | None:
    """The job's policy asks for a pause between captures, and it is not over. Pure."""
    if not description.pause_ms:
        return None
    return JobBusy(
        f"The policy of job {description.job.name} asks for {description.policy.min_interval_ms} ms between captures: "
        f"none may begin for {description.pause_ms} ms. Nothing was started; try again then."
    )


def is_ours(request: CaptureRequest, view: CaptureView, caller: str = "") -> bool:
    """`caller` is who asks, as the coordinator says: in a cluster the account of a token, whatever the request says.
    Empty: it did not say, and believes what it is told."""
    return (view.request_key, view.caller) == (request.request_key, caller or request.caller or os_user())


def is_kin(request: CaptureRequest, view: CaptureView, caller: str = "") -> bool:
    """What the same task asked for, now or before a person wanted a new picture: then it is being cancelled, as a rule,
    and the new one takes its turn. `caller` as for `is_ours`."""
    same = view.request_key.startswith(request.family) if request.family else view.request_key == request.request_key
    return same and view.caller == (caller or request.caller or os_user())


def other_job(request: CaptureRequest, job: JobRef) -> OtherAttempt | None:
    """The coordinator serves another job, or another attempt, than the request names. Pure."""
    asked = {"job": request.job, "uid": request.uid, "attempt": request.attempt}
    served = {"job": job.name, "uid": job.uid, "attempt": job.attempt}
    differs = [name for name, value in asked.items() if value is not None and value != served[name]]
    if not differs:
        return None
    wanted = ", ".join(f"{name} {asked[name]}" for name in differs)
    there = ", ".join(f"{name} {served[name]}" for name in differs)
    return OtherAttempt(
        f"The coordinator at {request.address} serves job {job}, with {there}, and {wanted} was asked for. "
        "Nothing was captured."
    )


def nobody_there(job: JobRef, view: WorkersView) -> SameshotError | None:
    """No worker can be asked for a window: they have gone, there never were any, or nobody can tell. Pure."""
    silent = [each for each in view.agents if not each.reachable]
    if any(each.alive and each.current and each.registration.phase is not Phase.EXITING for each in view.workers):
        return None
    if silent or not view.agents:
        who = ", ".join(each.node or each.address for each in silent[:3]) or "none is known"
        return Unreachable(
            f"Whether job {job.name} has workers is not known: {len(silent)} of its {len(view.agents)} agents do not "
            f"answer ({who}). Nothing was captured; try again."
        )
    if view.workers:
        return JobEnded(
            f"Job {job.name} has ended: all of its {len(view.workers)} registered workers have gone. Nothing was "
            "captured."
        )
    return NotArmed(
        f"No worker of job {job.name} is registered on any of {len(view.agents)} nodes: it was not armed, or has not "
        "imported torch yet. Nothing was captured; see `sameshot doctor`."
    )


# ---- asking and waiting


@asynccontextmanager
async def dialled(
    address: str,
    *,
    caller: str | None = None,
    uid: str | None = None,
    attempt: int | None = None,
    wait_s: float | None = 0.0,
    say: Say | None = None,
) -> AsyncIterator[AsyncClient]:
    """A client of the coordinator that the address means now. In a cluster one that is just starting is waited for as
    long as `wait_s` says (None: as the address does). Raises NoSuchJob, as JobEnded where that is known."""
    if not is_kube(address):
        to = resolved(address, uid)
    elif (known := remembered(address, uid=uid, attempt=attempt)) is not None:
        to = known  # nobody has to be asked, so no thread has to wait
    else:
        to = await in_thread(
            lambda leave: resolve(address, uid=uid, attempt=attempt, say=say, wait_s=wait_s, leave=leave)
        )
    async with AsyncClient(to, caller=caller) as client:
        yield client


def resolved(address: str, uid: str | None = None, attempt: int | None = None) -> Endpoint:
    """What can be connected to. Of several jobs of this machine, or attempts in a cluster, the one with this `uid` (and
    `attempt`) is meant, and never another.

    Raises NoSuchJob, as JobEnded where the job's run is known to be over; UsageError where several jobs match.
    """
    scheme, _, name = address.partition(":")
    if scheme != "local":
        return resolve(address, uid=uid, attempt=attempt, wait_s=0.0)
    if uid is None:
        try:
            return resolve(address)
        except NoSuchJob as error:
            missing = error
    else:
        running = jobs()
        for each in running:
            if each.job.uid == uid and name in ("", each.job.name, each.run):
                return Endpoint(each.coordinator)
        others = f" Running are: {', '.join(each.job.name for each in running)}." if running else ""
        called = f"called {name!r} " if name else ""
        missing = NoSuchJob(f"No job {called}with uid {uid} runs on this machine.{others}")
    ended = jobs(also_ended=True) if name or uid else []
    for each in ended:
        if not each.alive and name in ("", each.job.name, each.run) and uid in (None, each.job.uid):
            raise JobEnded(
                f"Job {each.job.name} has ended: its run on this machine ({each.run}) is over. "
                "Nothing can be captured any more."
            ) from missing
    raise missing


_threads: dict[int, DaemonThreads] = {}
"""Of this process: a fork has none. Nobody waits at the end for an API server that is silent."""
_AT_ONCE = 64  # each may wait for a minute


async def in_thread(act: Callable[[threading.Event], T]) -> T:
    """What blocks, out of the loop's way. Who is cancelled here does not leave it waiting for minutes."""
    leave = threading.Event()
    threads = _threads.setdefault(os.getpid(), DaemonThreads(_AT_ONCE, "sameshot-dial"))
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, act, leave)
    finally:
        leave.set()


async def wait_until_clear(request: CaptureRequest, deadline_s: float, say: Say | None = None) -> None:
    """Returns when nothing stands in the way of this request, as far as could be seen a moment ago.

    Only for what the request wants to wait for, and until `deadline_s` (absolute, seconds since the epoch): then, and
    for any other obstacle at once, that is raised. A coordinator that is away is waited for, too.
    """
    said = ""
    async for _ in pauses(deadline_s):
        try:
            async with dialled(
                request.address, caller=request.caller, uid=request.uid, attempt=request.attempt
            ) as client:
                return await check(client, request)
        except (NoSuchJob, JobBusy) as error:
            if action_for(request, error) is not Action.WAIT:
                raise
            obstacle_now: SameshotError = error
        except Unreachable as error:
            obstacle_now = error
        if say is not None and str(obstacle_now) != said:
            said = str(obstacle_now)
            say(f"waiting: {said}")
    raise obstacle_now


async def pauses(deadline: float, first_s: float = _SOONEST_S, longest_s: float = _LATEST_S) -> AsyncIterator[float]:
    """Once now, then after growing pauses with jitter, so that many waiters don't ask in step; the last time at
    `deadline` (absolute, seconds since the epoch). Yields the seconds that are left."""
    pause = first_s
    while True:
        left = deadline - time.time()
        yield max(left, 0.0)
        left = deadline - time.time()
        if left <= 0:
            return
        await asyncio.sleep(min(left, pause * random.uniform(0.75, 1.25)))
        pause = min(pause * 1.5, longest_s)
