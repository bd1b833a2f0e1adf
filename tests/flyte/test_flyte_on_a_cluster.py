"""A connector in a cluster: the job by its name, the account of the connector's pod, for whichever task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster_parts import captured_by_an_engine
from polled_lab import looks

from sameshot_flyte.asked import Place
from sameshot_flyte.phases import Phase
from sameshot_flyte.polled import create_from


@pytest.mark.full
def test_a_connector_captures_as_its_own_account_whatever_the_task_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with captured_by_an_engine(tmp_path, "sameshot-connector") as (job, environment):
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        monkeypatch.delenv("KUBECONFIG", raising=False)
        inputs = {"address": f"kube:{job.job.namespace}/llama", "duration": "1s", "caller": "somebody-else"}

        async def captured() -> None:
            place = Place("p", "d", "execution", "n0")
            asked = await create_from(inputs, place, caller="connector")
            status = await looks(asked)
            assert (status.phase, status.result and status.result.archived) == (Phase.SUCCEEDED, 2), status
            again = await create_from(inputs, place, caller="connector")  # another replica, or a retry
            assert again.capture_id == asked.capture_id

        asyncio.run(captured())
        assert job.captured_by() == ["sameshot-connector"]
