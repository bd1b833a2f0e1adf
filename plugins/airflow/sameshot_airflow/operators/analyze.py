"""Analysing a capture: rank by rank in mapped tasks and then reduced, or all of it in one task.

    shards = SameshotShardsOperator(task_id="shards", capture=capture.output)
    ranks = SameshotAnalyzeRankOperator.partial(
        task_id="analyze", capture=capture.output, map_index_template="ranks {{ task.shard }}"
    ).expand(shard=shards.output)
    report = SameshotReduceOperator(task_id="reduce", capture=capture.output)
    ranks >> report

or

    SameshotAnalyzeOperator(task_id="analyze", capture=capture.output)

`profile_job` of `task_groups` puts these together. The work is done in the process of the task.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from sameshot.steps import options
from sameshot_airflow.compat import AirflowSkipException
from sameshot_airflow.links import SameshotManifestLink, SameshotReportLink
from sameshot_airflow.operators.base import FinishedCaptureOperator, capture_of, typed_failures

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sameshot.steps.results import AnalysisResult


class SameshotShardsOperator(BaseOperator):
    """The ranks of a capture as a list to map over, `["0/4", "1/4", …]`: Airflow maps over whole results only, and a
    capture's result holds more than its shards.

    :param capture: the XCom of a `SameshotCaptureOperator`.
    """

    template_fields: Sequence[str] = ("capture",)
    template_fields_renderers = {"capture": "json"}  # noqa: RUF012
    ui_color = "#e8f1fa"

    def __init__(self, *, capture: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.capture = capture

    def execute(self, context: Context) -> list[str]:
        found = capture_of(self.capture)
        if not found.shards:
            raise AirflowSkipException(f"The capture has no traces to analyse: {found.message or found.outcome}")
        return list(found.shards)


class SameshotAnalyzeRankOperator(FinishedCaptureOperator):
    """Summarises one shard of a capture's ranks; to be mapped over the capture's shards. `SameshotReduceOperator` makes
    the report from all of them.

    XCom: a `sameshot.steps.results.RankResult`. Fails without a retry where the manifest or a trace is not what it
    should be; a retry does the shard again, from the same bytes.

    :param shard: `i/n`: every n-th rank that has a trace, from the i-th on; `0/1` is all of them.
    :param fetch_pattern: a regular expression for the annotations that fetch the next batch, where it is not torch's
        DataLoader.

    The others are those of `FinishedCaptureOperator`.
    """

    template_fields: Sequence[str] = (*FinishedCaptureOperator.template_fields, "shard", "fetch_pattern")

    def __init__(self, *, shard: str = "0/1", fetch_pattern: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard = shard
        self.fetch_pattern = fetch_pattern

    def execute(self, context: Context) -> dict[str, object]:
        from sameshot.steps.analyze import analyze_rank
        from sameshot.steps.results import to_builtins

        manifest_uri, digest = self.manifest()
        with typed_failures():
            result = analyze_rank(
                manifest_uri,
                self.shard,
                self.where_results_go(),
                expected_sha256=digest,
                fetch_pattern=options.text(self.fetch_pattern, "fetch_pattern"),
                progress=self.progress(),
            )
        self.log.info("Ranks %s: %s Kept below %s.", result.ranks or "unknown", result.message, result.summaries_uri)
        return to_builtins(result)


class _ReportingOperator(FinishedCaptureOperator):
    """What makes a report: how good the capture must be, and what the history is told."""

    template_fields: Sequence[str] = (
        *FinishedCaptureOperator.template_fields,
        "min_ranks",
        "history",
        "image",
        "commit",
        "fetch_pattern",
    )
    operator_extra_links = (SameshotReportLink(), SameshotManifestLink())

    def __init__(
        self,
        *,
        min_ranks: int | str | None = None,
        history: bool | str = True,
        image: str | None = None,
        commit: str | None = None,
        fetch_pattern: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.min_ranks = min_ranks
        self.history = history
        self.image = image
        self.commit = commit
        self.fetch_pattern = fetch_pattern

    def options(self) -> dict[str, Any]:
        return {
            "min_ranks": options.whole(self.min_ranks, "min_ranks"),
            "history": options.flag(self.history, "history"),
            "image": options.text(self.image, "image"),
            "commit": options.text(self.commit, "commit"),
            "fetch_pattern": options.text(self.fetch_pattern, "fetch_pattern"),
            "progress": self.progress(),
        }

    def conclude(self, context: Context, result: AnalysisResult) -> dict[str, object]:
        """Say what was found; fail where ranks are missing that were not given up."""
        from sameshot.steps.results import to_builtins

        for sentence in (*result.findings, result.trend):
            if sentence:
                self.log.info("%s", sentence)
        self.log.info("Report: %s", result.report_uri)
        if result.exit_code:
            self.fail_with(context, result, result.message)
        self.log.log(logging.WARNING if result.missing else logging.INFO, "%s", result.message)
        return to_builtins(result)


class SameshotReduceOperator(_ReportingOperator):
    """Makes the job-wide report from the summaries of all ranks, and adds a row to the history of the series.

    XCom: a `sameshot.steps.results.AnalysisResult` (where the report is, headline numbers, the trend). Where ranks are
    missing, the report is written and the task fails and names them, unless at least `min_ranks` were analysed: then
    it warns.

    :param min_ranks: so many ranks are good enough; default: all are needed.
    :param history: whether the series' history gets a row.
    :param image: the image that was trained with, for the history.
    :param commit: the commit that was trained with, for the history.
    :param fetch_pattern: as for `SameshotAnalyzeRankOperator`, and the same: ranks that were analysed with another one
        are missing.

    The others are those of `FinishedCaptureOperator`.
    """

    def execute(self, context: Context) -> dict[str, object]:
        from sameshot.steps.analyze import reduce

        manifest_uri, digest = self.manifest()
        with typed_failures():
            result = reduce(manifest_uri, self.where_results_go(), expected_sha256=digest, **self.options())
        return self.conclude(context, result)


class SameshotAnalyzeOperator(_ReportingOperator):
    """Analyses a whole capture in one task: `SameshotAnalyzeRankOperator` for every rank and `SameshotReduceOperator`,
    with the same results. For small captures, and inside mapped task groups, where Airflow can't map once more.

    :param workers: processes that read traces side by side; default: one, unless the traces are large. Each needs
        memory of its own.

    The others are those of `SameshotReduceOperator`.
    """

    def __init__(self, *, workers: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workers = workers

    def execute(self, context: Context) -> dict[str, object]:
        from sameshot.steps.analyze import analyze

        manifest_uri, digest = self.manifest()
        with typed_failures():
            result = analyze(
                manifest_uri,
                self.where_results_go(),
                expected_sha256=digest,
                workers=self.workers,
                **self.options(),
            )
        return self.conclude(context, result)
