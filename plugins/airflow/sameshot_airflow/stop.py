"""Did a person take a deferred task away, or did another triggerer take it over?

Airflow calls a trigger's `on_kill` whenever a triggerer finds that a trigger it runs is no longer its own (3.3:
`update_triggers` and `run_trigger` in airflow/jobs/triggerer_job_runner.py). That is so when a person has marked or
cleared the task, and also when this triggerer had stalled for longer than `triggerer_health_check_threshold`, and
another one follows the capture by now. Then nothing must be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sameshot.steps.request import CaptureRequest

log = logging.getLogger(__name__)

DEFERRED = "deferred"
PATIENCE_S = 5.0  # for each question; Airflow allows an on_kill 30 s, and the cancel needs some of them


async def by_a_person(ti: Any, request: CaptureRequest) -> bool:
    """False only where the task is known to be deferred still, by the same attempt: who can't tell obeys."""
    if await _state(ti) != DEFERRED:
        return True
    return await _asked_again(request)


async def _state(ti: Any) -> str | None:
    """The task's state in Airflow's database now; None: none (it was cleared), or not to be found out."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
    for _ in range(2):  # whoever has just come back from a stall may find others busy, too
        try:
            async with asyncio.timeout(PATIENCE_S):
                states = await asyncio.to_thread(
                    RuntimeTaskInstance.get_task_states,
                    dag_id=ti.dag_id,
                    map_index=ti.map_index,
                    task_ids=[ti.task_id],
                    run_ids=[ti.run_id],
                )
            state: str | None = states[ti.run_id][name]
        except Exception as error:  # whatever stands in the way of asking
            log.warning("task %s can't be looked up: %s %s", name, type(error).__name__, error)
        else:
            return state
    return None


async def _asked_again(request: CaptureRequest) -> bool:
    """Whether the task was cleared and the next attempt is deferred, too: it has asked for a capture of its own."""
    from sameshot.errors import SameshotError
    from sameshot.steps.preflight import dialled
    from sameshot_airflow.keys import task_of

    try:
        async with asyncio.timeout(PATIENCE_S), dialled(request.address, caller=request.caller, uid=request.uid) as job:
            keys = {view.request_key for view in await job.captures()}
    except (SameshotError, TimeoutError):
        return False
    task = task_of(request.request_key)
    return any(key != request.request_key and task_of(key) == task for key in keys)
