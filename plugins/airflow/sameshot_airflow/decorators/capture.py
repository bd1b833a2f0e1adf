"""`@task.sameshot_capture`: a capture whose options a function decides when the task runs.

    @task.sameshot_capture(if_unavailable="skip")
    def longer_windows_at_night(logical_date=None):
        return {"job": "bert", "duration": "4s" if logical_date.hour < 6 else "1s"}

The function returns options of `SameshotCaptureOperator` as a dict; those that it leaves out are the decorator's.
None or an empty dict changes nothing. A retry of the task calls the function again and asks for the same picture, so it
should return the same then: another one under the same request key is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.definitions.context import context_merge

from sameshot_airflow.compat import AirflowFailException, determine_kwargs
from sameshot_airflow.operators.capture import SameshotCaptureOperator, announcing

if TYPE_CHECKING:
    from airflow.sdk import Context

OPTIONS = frozenset(SameshotCaptureOperator.template_fields) - {"sameshot_conn_id"}


class SameshotCaptureDecoratedOperator(DecoratedOperator, SameshotCaptureOperator):
    """Calls the function, takes what it returns as options, and captures.

    :param python_callable: the decorated function
    :param op_args: its positional arguments (templated)
    :param op_kwargs: its keyword arguments (templated)
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *SameshotCaptureOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {**DecoratedOperator.template_fields_renderers}
    custom_operator_name: str = "@task.sameshot_capture"
    overwrite_rtif_after_execution: bool = True  # the UI shows the options that the function gave

    def __init__(
        self,
        *,
        python_callable: Callable[..., Mapping[str, Any] | None],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def execute(self, context: Context) -> Any:
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        given = self.python_callable(*self.op_args, **kwargs)
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise AirflowFailException(
                f"{self.python_callable.__name__} returned {type(given).__name__}, not a dict of capture options."
            )
        if unknown := sorted(set(map(str, given)) - OPTIONS):
            raise AirflowFailException(
                f"{self.python_callable.__name__} returned no options of a capture: {', '.join(unknown)}; known are "
                f"{', '.join(sorted(OPTIONS))}."
            )
        for name, value in given.items():
            setattr(self, name, self.render_template(value, context))
        return super().execute(context)


def sameshot_capture_task(
    python_callable: Callable[..., Mapping[str, Any] | None] | None = None, **kwargs: Any
) -> TaskDecorator:
    """What `@task.sameshot_capture` is; options of the operator may be given here, too.

    Airflow takes a function that is annotated to return a dict for one with several outputs; here the dict is what to
    ask for, and the output is the capture's result.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=SameshotCaptureDecoratedOperator,
        **announcing(kwargs),
    )
