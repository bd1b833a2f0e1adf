"""The exit task: what a run that did not go well still has going on at a coordinator is cancelled, each by its id.

An exit task of KFP can't be given what the tasks it watches over have found out, so it knows no capture id. It looks
for captures whose request key begins with this run's id. That one cancel fits all: loops, nested pipelines, retries.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sameshot.errors import NoSuchJob, SameshotError
from sameshot.steps.cancel import cancel
from sameshot.steps.contract import KFP
from sameshot.steps.patience import patiently
from sameshot.steps.preflight import dialled
from sameshot.steps.store import wait
from sameshot_kfp.results import Given

WENT_WELL = frozenset({"COMPLETE", "CACHED", "SUCCEEDED"})
"""States of a PipelineTaskFinalStatus after a success. A backend hands on what its metadata store knows last, COMPLETE
or CACHED (kubeflow/pipelines, backend/src/v2/driver/resolve.go, and what its own test asserts,
test_data/sdk_compiled_pipelines/valid/critical/pipeline_with_input_status_state.py). `kfp.local` says SUCCEEDED."""


def cancel_run(values: Mapping[str, Any]) -> tuple[int, Given | None]:
    """Exit code and outputs. 75 when the coordinator can't be reached: then it is not known what goes on."""
    try:
        cancelled, said = _cancelled(values)
    except SameshotError as error:
        print(f"It is not known whether a capture of this run goes on: {error}", file=sys.stderr)
        return error.exit_code, None
    message = " ".join(said)
    print(message, file=sys.stderr)
    return 0, Given({"cancelled": cancelled, "message": message})


def _cancelled(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    if _state(values.get("status")) in WENT_WELL:
        return [], ["All went well, so there is nothing to cancel."]
    address, caller = values["address"], values["caller"] or None
    try:
        going_on = wait(_going_on(address, caller, values["run_id"], values["key"]))
    except NoSuchJob as error:
        return [], [f"There is nothing to cancel: {error}"]
    ended = [cancel(address, capture_id, caller=caller) for capture_id in going_on]
    said = [each.message for each in ended] or ["No capture of this run goes on."]
    return [each.capture_id for each in ended if not each.was_over], said


async def _going_on(address: str, caller: str | None, run_id: str, key: str) -> list[str]:
    """Ids of the run's captures that are still worked on, of all its keys or one."""
    parts = {"run_id": run_id, **({"key": key} if key else {})}

    async def look() -> list[str]:
        async with dialled(address, caller=caller) as client:
            unsettled = await client.captures(unsettled=True)
        return [each.capture_id for each in unsettled if KFP.made_of(each.request_key or "", **parts)]

    return await patiently(look)


def _state(status: Any) -> str | None:
    """Of what KFP hands over: an object in lightweight components, else what was JSON."""
    return status.get("state") if isinstance(status, Mapping) else getattr(status, "state", None)
