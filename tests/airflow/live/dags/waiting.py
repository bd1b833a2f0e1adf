"""Nothing of ours: a task that waits on a trigger."""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator


class Wait(BaseOperator):
    template_fields = ("seconds",)

    def __init__(self, *, seconds: str, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds

    def execute(self, context: object) -> None:
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

        self.defer(trigger=TimeDeltaTrigger(datetime.timedelta(seconds=float(self.seconds))), method_name="done")

    def done(self, context: object, event: object) -> str:
        return "waited"


with DAG("waiting", schedule=None, params={"seconds": 5}):
    Wait(task_id="wait", seconds="{{ params.seconds }}")
