"""Two hundred armed jobs: they converge, cost nothing when idle, and one that fails delays no other."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from operator_lab import QUICK, Lab, played

pytestmark = pytest.mark.full


@played(max_coordinators=0, timings=msgspec.structs.replace(QUICK, call_s=10.0, ask_s=0.5, retry_longest_s=120.0))
async def test_two_hundred_jobs_converge_and_cost_nothing_then(lab: Lab) -> None:
    jobs = [lab.job(f"job-{i}") for i in range(200)]
    bad = lab.job("bad")
    lab.api.make({"apiVersion": "sameshot.dev/v1alpha1", "kind": "CaptureCoordinator",
                  "metadata": {"name": lab.name(bad), "namespace": "ml"}, "spec": {"job": {
                      "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "attempt": 0}}})  # fmt: skip
    begun = time.monotonic()
    operator = await lab.operate()
    await lab.until(lambda: sum(lab.phase(each) == "Ready" for each in jobs) == 200, 90, 0.5)
    await lab.until(lambda: sum(lab.status(each).get("registered") == 1 for each in jobs) == 200, 30, 0.5)
    took = time.monotonic() - begun
    assert operator.queue.resting == 1, "the one that can't be made"
    requests = len(lab.asked())
    print(f"200 jobs in {took:.1f} s, {requests / 200:.1f} requests a job")
    assert requests < 200 * 15

    # The bad one asks twice now and then (it can't be made; whose is it?), nobody else at all.
    await asyncio.sleep(0.5)
    since = len(lab.api.log)
    await asyncio.sleep(3.0)
    idle = [each for each in lab.asked(since) if each.name != lab.name(bad) and each.status != 409]
    assert [each for each in idle if (each.verb, each.resource, each.name) != ("get", "jobs", "bad")] == []

    late = lab.job("late")
    at = time.monotonic()
    await lab.until(lambda: lab.phase(late) == "Ready")
    print(f"one more in {time.monotonic() - at:.2f} s")
