"""`sameshot step compare`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sameshot.cli.step.frame import ResultDirOption, ResultOption, reporting
from sameshot.cli.step.given import StepCommand
from sameshot.cli.step.published import KEPT, ExpectedOption, ManifestArgument, OutOption, ResultsOption, lines
from sameshot.errors import Regressed
from sameshot.lean import import_numpy
from sameshot.steps.results import CompareResult, CompareVerdict


def register(group: typer.Typer) -> None:
    group.command(
        cls=StepCommand,
        epilog="Examples: sameshot step compare s3://traces/dev/bert/0/<id>/manifest.json "
        "--results s3://results/profiling --fail-on-regression | sameshot step compare tuesday/manifest.json "
        "--before monday/manifest.json --results out --threshold 0.05 --result compare.json",
    )(compare)


def compare(
    manifest: ManifestArgument,
    results: ResultsOption,
    expected_sha256: ExpectedOption = None,
    before: Annotated[
        str | None,
        typer.Option(
            help="Manifest of the earlier capture; default: the one before in the history of the series.",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="How much slower a step must be for a regression, as a share: 0.1 is 10 %.")
    ] = 0.1,
    accept_partial: Annotated[
        bool, typer.Option("--accept-partial", help="Compare with an earlier capture that lacks ranks, too.")
    ] = False,
    min_ranks: Annotated[
        int | None,
        typer.Option(
            help="As for capture and reduce: with it, too, either capture may lack ranks.", show_default=False
        ),
    ] = None,
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit code 4 for a regression; else 0 whatever the verdict.")
    ] = False,
    out: OutOption = None,
    result: ResultOption = None,
    result_dir: ResultDirOption = None,
) -> None:
    """Compare a capture with the one before it in its series.

    The verdict in the result is regressed, slower, same, faster, unknown or first. It is regressed only where a step
    takes longer by more than noise and by the threshold or more.
    """
    with reporting("compare", result, result_dir, of=CompareResult) as report:
        report.knows(after_manifest_uri=manifest)
        report.when_signalled = KEPT
        import_numpy()
        from sameshot.steps.compare import compare as step

        found = step(
            manifest,
            results,
            expected_sha256=expected_sha256,
            before=before,
            threshold=threshold,
            accept_partial=accept_partial,
            min_ranks=min_ranks,
            out=out,
            progress=lines("read"),
        )
        if fail_on_regression and found.verdict is CompareVerdict.REGRESSED:
            report.done(msgspec.structs.replace(found, exit_code=Regressed.exit_code), Regressed.__name__)
        else:
            report.done(found)
