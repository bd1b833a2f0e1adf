"""Waits for a capture in the triggerer: no worker slot is held while the window is recorded and files are verified.

All that it needs is in its arguments, so another triggerer takes over where one is restarted; the capture goes on
meanwhile, as its coordinator and agents do the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

VERSION = 1

_ENDING: set[asyncio.Future[None]] = set()  # an event loop keeps no hold of its tasks


class SameshotCaptureTrigger(BaseTrigger):
    """Fires one event (see `settle`) when the capture has ended, or when its deadline has passed and it was cancelled.

    A person who marks the deferred task or clears it cancels the capture (`on_kill`; Airflow 3.3 and newer, earlier
    versions tell a trigger nothing and the capture ends by itself). Nothing else does: not a restart of the triggerer,
    nor its shutdown.

    :param request: a `sameshot.steps.request.CaptureRequest` as plain values. Its address is resolved here, so the
        triggerer must reach the coordinator.
    :param capture_id: the capture; cancels go by it, never by the request key.
    :param manifest_uri: where its manifest will be. If the coordinator is gone for good, that tells how it ended.
    :param deadline: seconds since the epoch. Airflow's own timeout of a deferral ends a trigger without a word, so the
        operator sets it some minutes later, for the case that no triggerer runs at all.
    :param version: of these arguments. What later versions add, or earlier ones had, is logged and ignored, so that
        tasks which were deferred before an upgrade come back.
    """

    def __init__(
        self,
        request: dict[str, Any],
        capture_id: str,
        manifest_uri: str = "",
        deadline: float | None = None,
        version: int = VERSION,
        **others: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.request = request
        self.capture_id = capture_id
        self.manifest_uri = manifest_uri
        self.deadline = deadline
        self.version = version
        if others:
            self.log.warning("arguments of another version are ignored: %s", ", ".join(sorted(others)))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{SameshotCaptureTrigger.__module__}.{SameshotCaptureTrigger.__qualname__}",
            {
                "request": self.request,
                "capture_id": self.capture_id,
                "manifest_uri": self.manifest_uri,
                "deadline": self.deadline,
                "version": self.version,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        import time

        from sameshot.errors import SameshotError
        from sameshot.steps.request import CaptureRequest
        from sameshot_airflow.settle import failed, settle

        try:
            request = CaptureRequest.of(self.request)
        except SameshotError as error:
            yield TriggerEvent(failed(error))  # type: ignore[no-untyped-call]
            return
        deadline = time.time() + request.timeout_s if self.deadline is None else self.deadline
        self.log.info("following capture %s at %s", self.capture_id, request.address)
        yield TriggerEvent(await settle(request, self.capture_id, self.manifest_uri, deadline, self.log.info))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Cancels the capture, by its id, if it was a person who took the task away (see `stop`). It may run after the
        next attempt has begun: that has another capture.

        A triggerer cancels the trigger's task anew at each of its rounds, a second apart, until it has ended
        (`cancelling_triggers` in airflow/jobs/triggerer_job_runner.py, 3.3), so also while this runs: what is to be
        done is done in a task of its own.
        """
        ending = asyncio.ensure_future(self._end())
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)

    async def _end(self) -> None:
        from sameshot.steps.request import CaptureRequest
        from sameshot_airflow import settle, stop

        request = CaptureRequest.of(self.request)
        if self.task_instance is not None and not await stop.by_a_person(self.task_instance, request, self.capture_id):
            self.log.info("the task still waits, maybe in another triggerer: capture %s goes on", self.capture_id)
            return
        self.log.info(await settle.cancelled(request, self.capture_id, settle.CANCEL_WAIT_S))

    async def cleanup(self) -> None:
        """Nothing: it also runs when the triggerer is restarted, and then the capture must go on."""
