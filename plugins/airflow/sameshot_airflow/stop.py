"""Did a person take a deferred task away, or did another triggerer take it over?

Airflow calls a trigger's `on_kill` whenever a triggerer finds that a trigger it runs is no longer its own (3.3:
`update_triggers` and `run_trigger` in airflow/jobs/triggerer_job_runner.py). That is so when a person has marked or
cleared the task, and also when this triggerer had stalled for longer than `triggerer_health_check_threshold`, and
another one follows the capture by now. Then nothing must be cancelled.

A task that is deferred is not cancelled, unless it is seen to have asked for a capture of its own since. One that was
cleared and waits again without any (for its job, or for a triggerer that has just gone) leaves its old capture to end
by itself, at its own deadline: the new one takes its turn after it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sameshot.steps.request import CaptureRequest

log = logging.getLogger(__name__)

DEFERRED = "deferred"
PATIENCE_S = 10.0  # for each question: a triggerer that was never asked before takes some seconds to answer


async def by_a_person(ti: Any, request: CaptureRequest, capture_id: str) -> bool:
    """False where the task is known to be deferred and nothing shows that it was cleared. Whoever can't find out its
    state obeys."""
    if await _state(ti) != DEFERRED:
        return True
    return await _asked_again(request, capture_id)


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


async def _asked_again(request: CaptureRequest, capture_id: str) -> bool:
    """Whether the same task has a capture under way that it asked for after this one: it was cleared, and waits again.

    Those that it asked for before it was cleared an earlier time prove nothing, nor do those of another task.
    """
    from sameshot.errors import SameshotError
    from sameshot.steps.preflight import dialled, is_kin, is_ours

    if not request.family:
        return False
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            dialled(request.address, caller=request.caller, uid=request.uid, attempt=request.attempt) as job,
        ):
            ours, running = await job.get(capture_id), await job.captures(unsettled=True)
    except (SameshotError, TimeoutError):
        return False
    return any(
        is_kin(request, view, ours.caller)
        and not is_ours(request, view, ours.caller)
        and view.accepted_at_ns > ours.accepted_at_ns
        for view in running
    )
