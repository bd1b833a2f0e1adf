"""Nothing of ours: tasks that wait, in a pool of one slot, and on a trigger."""

from __future__ import annotations

import datetime

from airflow.sdk import BaseOperator, dag, task


class Wait(BaseOperator):
    template_fields = ("seconds",)

    def __init__(self, *, seconds: str, **options: object) -> None:
        super().__init__(**options)
        self.seconds = seconds

    def execute(self, context: object) -> None:
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

        self.defer(trigger=TimeDeltaTrigger(datetime.timedelta(seconds=float(self.seconds))), method_name="done")

    def done(self, context: object, event: object) -> str:
        return "waited"


@dag(schedule=None, params={"seconds": 5})
def waiting() -> None:
    Wait(task_id="wait", seconds="{{ params.seconds }}")


@dag(schedule=None)
def one_slot() -> None:
    """Runs only while somebody else leaves the pool's only slot free."""

    @task(pool="one_slot")
    def get_in() -> str:
        return "got in"

    get_in()


waiting()
one_slot()
