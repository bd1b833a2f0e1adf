"""Waits in the triggerer until a job can be captured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

VERSION = 1


class SameshotJobTrigger(BaseTrigger):
    """Fires `{"kind": "ready"}` when nothing stands in the way of a request, as far as can be seen; at the deadline,
    or for what the request does not want to wait for, `{"kind": "error", …}` with the obstacle that was left.

    :param request: a `sameshot.steps.request.CaptureRequest` as plain values.
    :param deadline: seconds since the epoch.
    :param whole: wait for whatever stands in the way (`sameshot.steps.ready`).
    :param all_ranks: with `whole`, until every rank of the job is registered.
    :param version: of these arguments; what other versions have is logged and ignored.
    """

    def __init__(
        self,
        request: dict[str, Any],
        deadline: float,
        whole: bool = False,
        all_ranks: bool = True,
        version: int = VERSION,
        **others: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.request = request
        self.deadline = deadline
        self.whole = whole
        self.all_ranks = all_ranks
        self.version = version
        if others:
            self.log.warning("arguments of another version are ignored: %s", ", ".join(sorted(others)))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{SameshotJobTrigger.__module__}.{SameshotJobTrigger.__qualname__}",
            {
                "request": self.request,
                "deadline": self.deadline,
                "whole": self.whole,
                "all_ranks": self.all_ranks,
                "version": self.version,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from sameshot_airflow.settle import failed, load

        await load("sameshot.steps.ready")
        from sameshot.errors import SameshotError
        from sameshot.steps.preflight import wait_until_clear
        from sameshot.steps.ready import wait_until_ready
        from sameshot.steps.request import CaptureRequest

        try:
            request = CaptureRequest.of(self.request)
            if self.whole:
                await wait_until_ready(request, self.deadline, self.log.info, all_ranks=self.all_ranks)
            else:
                await wait_until_clear(request, self.deadline, self.log.info)
        except SameshotError as error:
            yield TriggerEvent(failed(error))  # type: ignore[no-untyped-call]
            return
        yield TriggerEvent({"kind": "ready"})  # type: ignore[no-untyped-call]
