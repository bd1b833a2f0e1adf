"""A capture against the previous one of its series, and what a DAG does about a regression.

SameshotCompareOperator(task_id="compare", capture=capture.output, threshold=0.1)                  # fails

compare = SameshotCompareOperator(
    task_id="compare", capture=capture.output, threshold=0.1,
    on_regression="branch", if_regressed="open_ticket", otherwise="promote",
)
compare >> [open_ticket, promote, tidy_up]         # tidy_up runs either way
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sameshot.errors import InvalidSpec
from sameshot.steps import options
from sameshot_airflow.compat import AirflowFailException, DownstreamTasksSkipped, SkipMixin
from sameshot_airflow.links import SameshotComparisonLink, SameshotManifestLink
from sameshot_airflow.operators.base import FinishedCaptureOperator, typed_failures

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Operator


class OnRegression(enum.StrEnum):
    FAIL = "fail"  # for good: a retry would find the same
    REPORT = "report"  # the verdict is in the XCom and the log
    BRANCH = "branch"


class SameshotCompareOperator(FinishedCaptureOperator, SkipMixin):
    """Compares a capture with an earlier one of the same series: that which the history names as the previous
    successful one, or `before`. Best run after `SameshotReduceOperator` or `SameshotAnalyzeOperator`, whose row in the
    history says which series the capture is of.

    A regression is a step time that rose by more than noise *and* by the threshold or more. Where there is nothing to
    compare with, or too little to tell noise from change, nothing fails and no branch of a regression is taken; the
    message says so.

    XCom: a `sameshot.steps.results.CompareResult`; also when the task fails.

    :param before: the manifest of the capture to compare with; default: the series' previous successful one.
    :param min_ranks: as for the capture: where it is set, the earlier capture may lack ranks, too.
    :param threshold: as a share of the earlier step time: 0.1 is ten percent.
    :param on_regression: `fail`, `report` (the result says it) or `branch` (not in what is mapped: Airflow does not
        follow branches there).
    :param if_regressed: with `branch`: ids of the tasks or task groups directly downstream that run only if there is a
        regression.
    :param otherwise: with `branch`: those that run only if there is none. What is downstream and named by neither runs
        either way.

    The others are those of `FinishedCaptureOperator`.
    """

    template_fields: Sequence[str] = (*FinishedCaptureOperator.template_fields, "before", "min_ranks", "threshold")
    operator_extra_links = (SameshotComparisonLink(), SameshotManifestLink())
    inherits_from_skipmixin = True

    def __init__(
        self,
        *,
        before: str | None = None,
        min_ranks: int | str | None = None,
        threshold: float | str = 0.1,
        on_regression: OnRegression | str = OnRegression.FAIL,
        if_regressed: str | Iterable[str] = (),
        otherwise: str | Iterable[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.before = before
        self.min_ranks = min_ranks
        self.threshold = threshold
        self.on_regression = OnRegression(on_regression)
        self.if_regressed = _ids(if_regressed)
        self.otherwise = _ids(otherwise)
        if self.on_regression is OnRegression.BRANCH and self.get_closest_mapped_task_group() is not None:
            raise ValueError(f"{self.task_id}: {_NO_BRANCH}")
        branches = bool(self.if_regressed or self.otherwise)
        if branches != (self.on_regression is OnRegression.BRANCH):
            raise ValueError(
                f'{self.task_id}: on_regression="branch" and the ids of tasks in `if_regressed` or `otherwise` belong '
                "together."
            )

    def execute(self, context: Context) -> dict[str, object]:
        from sameshot.steps.compare import compare
        from sameshot.steps.results import CompareVerdict, to_builtins

        if self.on_regression is OnRegression.BRANCH and _mapped(context):
            raise AirflowFailException(f"{self.task_id}: {_NO_BRANCH}")
        branches = {True: self._tasks(self.if_regressed), False: self._tasks(self.otherwise)}
        manifest_uri, digest = self.manifest()
        with typed_failures():
            result = compare(
                manifest_uri,
                self.where_results_go(),
                expected_sha256=digest,
                before=options.text(self.before, "before"),
                min_ranks=options.whole(self.min_ranks, "min_ranks"),
                threshold=_share(self.threshold),
                progress=self.progress(),
            )
        for sentence in result.sentences:
            self.log.info("%s", sentence)
        self.log.log(logging.INFO if result.verdict in _GOOD else logging.WARNING, "%s", result.message)
        regressed = result.verdict is CompareVerdict.REGRESSED
        if regressed and self.on_regression is OnRegression.FAIL:
            self.fail_with(context, result, result.message)
        if self.on_regression is OnRegression.BRANCH:
            try:
                self.skip(context["ti"], _only_in(branches[not regressed], branches[regressed]))
            except DownstreamTasksSkipped:  # how a task says what to skip; its return value would be lost
                self.keep(context, result)
                raise
        return to_builtins(result)

    def _tasks(self, ids: Sequence[str]) -> list[Operator]:
        """The tasks of these ids, a task group's being its first ones; each must be directly downstream."""
        found = []
        for name in ids:
            dag = self.dag
            group = dag.task_group_dict.get(name)
            tasks = list(group.get_roots()) if group is not None else [dag.get_task(name)] if dag.has_task(name) else []
            if not tasks or any(task.task_id not in self.downstream_task_ids for task in tasks):
                raise AirflowFailException(
                    f"{self.task_id} can't branch to {name!r}: there is no such task or task group directly downstream "
                    f"of it. Downstream are {', '.join(sorted(self.downstream_task_ids)) or 'none'}."
                )
            found += tasks
        return found


def _mapped(context: Context) -> bool:
    index = context["ti"].map_index
    return index is not None and index >= 0


def _share(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise InvalidSpec(f"threshold: {value!r} is not a share of the step time; write 0.1 for ten percent.") from None


# https://github.com/apache/airflow/issues/67265: what is skipped is looked up where no mapped task has left it.
_NO_BRANCH = (
    "Airflow does not follow the branch of a mapped task, or of one in a mapped group: all tasks downstream would run. "
    'Use on_regression="report", and let them look at the verdict.'
)

_GOOD = ("same", "faster", "first")


def _ids(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _only_in(dropped: Sequence[Operator], taken: Sequence[Operator]) -> list[Operator]:
    """The tasks of the branch that is not taken, without those that come after the taken one as well."""
    kept = {task.task_id for task in taken}.union(*(task.get_flat_relative_ids(upstream=False) for task in taken))
    return [task for task in dropped if task.task_id not in kept]
