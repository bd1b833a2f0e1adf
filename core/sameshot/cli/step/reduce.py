"""`sameshot step reduce`."""

from __future__ import annotations

from typing import Annotated

import typer

from sameshot.cli.step.frame import ResultDirOption, ResultOption, reporting
from sameshot.cli.step.given import StepCommand
from sameshot.cli.step.published import (
    KEPT,
    CommitOption,
    ExpectedOption,
    FetchOption,
    HistoryOption,
    ImageOption,
    ManifestArgument,
    MinRanksOption,
    OutOption,
    ResultsOption,
    lines,
)
from sameshot.lean import import_numpy
from sameshot.steps.results import AnalysisResult


def register(group: typer.Typer) -> None:
    group.command(
        cls=StepCommand,
        epilog="Examples: sameshot step reduce s3://traces/dev/bert/0/<id>/manifest.json "
        "--results s3://results/profiling --result reduce.json | sameshot step reduce cap/manifest.json --results out "
        "--min-ranks 7 --commit $GIT_COMMIT",
    )(reduce)


def reduce(
    manifest: ManifestArgument,
    results: ResultsOption,
    expected_sha256: ExpectedOption = None,
    fetch_pattern: FetchOption = None,
    analysed: Annotated[
        str,
        typer.Option(
            help="Shards that analyze-rank came back with, as in 0/4,1/4: what of those is gone, or was made with "
            "another pattern, is analysed here.",
            show_default=False,
        ),
    ] = "",
    min_ranks: MinRanksOption = None,
    history: HistoryOption = True,
    image: ImageOption = None,
    commit: CommitOption = None,
    out: OutOption = None,
    result: ResultOption = None,
    result_dir: ResultDirOption = None,
) -> None:
    """Make the job-wide report from what analyze-rank found on all ranks.

    Exit code 3: fewer ranks than are needed were captured, or analysed; the report of the others is written all the
    same, and the message says which shard to run again. Exit code 4: not one was analysed.
    """
    with reporting("reduce", result, result_dir, of=AnalysisResult) as report:
        report.knows(manifest_uri=manifest)
        report.when_signalled = KEPT
        import_numpy()
        from sameshot.steps.analyze import reduce as step

        report.done(
            step(
                manifest,
                results,
                expected_sha256=expected_sha256,
                fetch_pattern=fetch_pattern,
                analysed=[each.strip() for each in analysed.split(",") if each.strip()],
                min_ranks=min_ranks,
                history=history,
                image=image,
                commit=commit,
                out=out,
                progress=lines("read"),
            )
        )
