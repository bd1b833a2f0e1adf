"""A job that capture steps can be tried on: a scripted node, a real coordinator, and requests for it.

async with training(tmp_path) as (agent, client):
    result = await run(request(client, "k1"))
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sameshot.client import AsyncClient
from sameshot.model import TargetFact
from sameshot.steps.request import CaptureRequest
from sameshot.storage import Storage
from support.coordination import SPEC, coordinating
from support.fake_agent import FakeAgent, Script, worker


@contextlib.asynccontextmanager
async def training(
    folder: Path, ranks: int = 2, *, armed: bool = True, **coordinator: Any
) -> AsyncIterator[tuple[FakeAgent, AsyncClient]]:
    """One node with so many ranks (none, unless `armed`) and its coordinator; the archive is `folder`/archive."""
    archive = folder / "archive"
    async with FakeAgent("node-0", Storage.open(str(archive))) as agent:
        agent.workers = [worker(rank=rank, world_size=ranks) for rank in range(ranks)] if armed else []
        async with coordinating(archive, [agent], **coordinator) as client:
            yield agent, client


def request(client: AsyncClient, key: str = "k1", **more: Any) -> CaptureRequest:
    """By the same caller as the client, and quick to give up."""
    return CaptureRequest(
        **{"address": client.address, "request_key": key, "spec": SPEC, "caller": "ana", "timeout_s": 60.0, **more}
    )


def by_rank(**scripts: Script) -> Script:
    """`by_rank(r0=deliver, r1=failing(…))`: a script for each rank."""

    def script(agent: FakeAgent, target: TargetFact, looks: int) -> TargetFact:
        return scripts[f"r{target.identity.rank}"](agent, target, looks)

    return script
