"""The agent beside real torch processes, armed by the real hook, through the real broker."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from agent_lab import JOB, Lab, until

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto, to_proto
from sameshot.local.arming import armed_environment
from sameshot.model import CaptureSpec, FailureReason, Registration, TargetFact, TargetState

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

_TRAINING = """
import os, time, torch
model = torch.nn.Linear(64, 64)
while True:
    model(torch.randn(32, 64)).sum().backward()
    time.sleep(0.002)
"""


@contextlib.contextmanager
def trainers(lab: Lab, ranks: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    script = lab.root / "train.py"
    script.write_text(_TRAINING)
    started = []
    try:
        for rank in range(ranks):
            clean = {name: value for name, value in os.environ.items() if not name.startswith(("SAMESHOT_", "KINETO_"))}
            environment = armed_environment(clean, job=JOB, node="node-a", folder=lab.dir, local_world_size=ranks)
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
            }
            log = (lab.root / f"rank{rank}.log").open("wb")
            with log:
                started.append(subprocess.Popen([sys.executable, str(script)], env=environment, stdout=log, stderr=log))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_real_workers_are_captured_and_a_killed_one_is_told_within_seconds(lab: Lab) -> None:
    async def scenario() -> None:
        async with lab.process() as agent, agent.caller() as caller:
            with trainers(lab, 2) as processes:

                async def current() -> list[Registration]:
                    found = (await caller.workers()).values()
                    polled = [each for each in found if each.current and each.HasField("last_poll_age_s")]
                    return [from_proto(each.registration, Registration) for each in polled] if len(polled) == 2 else []

                workers = sorted(await until(current, "two polling workers", 120), key=lambda one: one.rank or 0)
                assert [one.pid for one in workers] == [process.pid for process in processes]

                capture = lab.capture_id()
                await _dispatch(caller, capture, workers)
                facts = await _until_done(caller, capture, 2)
                for one in workers:
                    artifact = facts[one.target_id].artifact
                    assert artifact is not None, facts[one.target_id]
                    path = lab.archive / JOB.path / capture / artifact.uri
                    trace = json.loads(gzip.decompress(path.read_bytes()))
                    assert trace["PT_PROFILER_JOB_NAME"] == f"sameshot/{one.uuid}"
                    assert not artifact.late_start

                capture = lab.capture_id()
                await _dispatch(caller, capture, workers)
                victim, other = workers

                async def consumed() -> bool:
                    return (await caller.facts(capture))[victim.target_id].state is TargetState.CONSUMED

                await until(consumed, "a fetched config")
                processes[0].kill()
                killed_at = time.monotonic()
                facts = await _until_done(caller, capture, 1)
                told_after = time.monotonic() - killed_at
                failure = facts[victim.target_id].failure
                assert failure is not None
                assert failure.reason is FailureReason.WORKER_EXITED
                assert told_after < 10
                facts = await _until_done(caller, capture, 2)
                assert facts[other.target_id].artifact is not None
                assert not any((lab.dir / "captures").iterdir())

    asyncio.run(asyncio.wait_for(scenario(), 280))


async def _dispatch(caller: object, capture: str, workers: list[Registration]) -> None:
    spec = CaptureSpec(duration_ms=500, warmup_ms=0)
    await caller.stub.Dispatch(  # type: ignore[attr-defined]
        pb.DispatchRequest(
            job=to_proto(JOB, pb.JobRef()),
            capture_id=capture,
            spec=to_proto(spec, pb.CaptureSpec()),
            start_at_ns=time.time_ns() + 5_000_000_000,
            announce_timeout_ms=60_000,
            targets=[pb.DispatchTarget(target_id=one.target_id, registration=one.uuid) for one in workers],
        )
    )


async def _until_done(caller: object, capture: str, count: int) -> dict[str, TargetFact]:
    async def look() -> dict[str, TargetFact] | None:
        facts: dict[str, TargetFact] = await caller.facts(capture)  # type: ignore[attr-defined]
        return facts if sum(fact.state.terminal for fact in facts.values()) >= count else None

    found = await until(look, f"{count} targets at their end", 90)
    assert found is not None
    return found
