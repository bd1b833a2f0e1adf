"""`sameshot step analyze`."""

from __future__ import annotations

import typer

from sameshot.cli.options import WorkersOption
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
        epilog="Examples: sameshot step analyze s3://traces/dev/bert/0/<id>/manifest.json "
        "--results s3://results/profiling --result analyze.json | sameshot step analyze cap/manifest.json "
        "--results out --no-history",
    )(analyze)


def analyze(
    manifest: ManifestArgument,
    results: ResultsOption,
    expected_sha256: ExpectedOption = None,
    min_ranks: MinRanksOption = None,
    history: HistoryOption = True,
    image: ImageOption = None,
    commit: CommitOption = None,
    out: OutOption = None,
    fetch_pattern: FetchOption = None,
    workers: WorkersOption = None,
    result: ResultOption = None,
    result_dir: ResultDirOption = None,
) -> None:
    """Analyse a whole capture in one step: analyze-rank for every rank, then reduce, with the same results.

    Exit code 3: the capture has fewer ranks than are needed; the report of the others is written all the same.
    """
    with reporting("analyze", result, result_dir, of=AnalysisResult) as report:
        report.knows(manifest_uri=manifest)
        report.when_signalled = KEPT
        import_numpy()
        from sameshot.steps.analyze import analyze as step

        report.done(
            step(
                manifest,
                results,
                expected_sha256=expected_sha256,
                min_ranks=min_ranks,
                history=history,
                image=image,
                commit=commit,
                out=out,
                fetch_pattern=fetch_pattern,
                workers=workers,
                progress=lines("analysed"),
            )
        )
