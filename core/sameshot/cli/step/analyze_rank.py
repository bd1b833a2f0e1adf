"""`sameshot step analyze-rank`."""

from __future__ import annotations

from typing import Annotated

import typer

from sameshot.cli.step.frame import ResultDirOption, ResultOption, reporting
from sameshot.cli.step.given import StepCommand
from sameshot.cli.step.published import KEPT, ExpectedOption, FetchOption, ManifestArgument, ResultsOption, lines
from sameshot.lean import import_numpy
from sameshot.steps.results import RankResult


def register(group: typer.Typer) -> None:
    group.command(
        "analyze-rank",
        cls=StepCommand,
        epilog="Examples: sameshot step analyze-rank s3://traces/dev/bert/0/<id>/manifest.json --shard 0/4 "
        "--results s3://results/profiling | sameshot step analyze-rank cap/manifest.json --shard 0/1 --results out "
        "--expected-sha256 $DIGEST --result rank.json",
    )(analyze_rank)


def analyze_rank(
    manifest: ManifestArgument,
    results: ResultsOption,
    shard: Annotated[
        str, typer.Option(help="i/n: every n-th rank with a trace, from the i-th on. 0/1 is all of them.")
    ],
    expected_sha256: ExpectedOption = None,
    fetch_pattern: FetchOption = None,
    result: ResultOption = None,
    result_dir: ResultDirOption = None,
) -> None:
    """Summarise the ranks of one shard of a capture; `sameshot step reduce` makes the report from all of them.

    May be repeated, and shards may run at the same time.
    """
    with reporting("analyze-rank", result, result_dir, of=RankResult) as report:
        report.knows(manifest_uri=manifest, shard=shard)
        report.when_signalled = KEPT
        import_numpy()
        from sameshot.steps.analyze import analyze_rank as step

        report.done(
            step(
                manifest,
                shard,
                results,
                expected_sha256=expected_sha256,
                fetch_pattern=fetch_pattern,
                progress=lines("analysed"),
            )
        )
