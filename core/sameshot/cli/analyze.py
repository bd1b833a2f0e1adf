"""`sameshot analyze`: from a manifest to findings and a report."""

from __future__ import annotations

import enum
import gc
from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.bars import bar
from sameshot.cli.options import Output, OutputOption, WorkersOption, print_json
from sameshot.cli.tables import say
from sameshot.lean import import_numpy


class Engine(enum.StrEnum):
    NATIVE = "native"
    HTA = "hta"


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot analyze demo-out/archive/local/demo/0/<capture id>/manifest.json --out report | "
        "sameshot analyze s3://traces/dev/local/bert/0/<capture id> --out report | sameshot analyze cap --out report "
        "(cap made by sameshot manifest create)"
    )(analyze)


def analyze(
    manifest: Annotated[str, typer.Argument(help="Path or URI of a manifest, or of the folder that holds it.")],
    out: Annotated[Path, typer.Option(help="Folder for report.html, summary.json and tables.")] = Path(
        "sameshot-report"
    ),
    engine: Annotated[
        Engine, typer.Option(help="hta: run HolisticTraceAnalysis as well (pip install 'sameshot[hta]').")
    ] = Engine.NATIVE,
    hta_rounding: Annotated[
        bool,
        typer.Option("--hta-rounding", help="Compute tables/*.parquet as HTA does, in whole µs, to compare with it."),
    ] = False,
    fetch_pattern: Annotated[
        str | None,
        typer.Option(
            help="Regular expression of the annotations that fetch a batch, where it is not torch's DataLoader.",
            show_default=False,
        ),
    ] = None,
    workers: WorkersOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Analyse a capture. Exit code 3 when a rank is missing from it: the report then says which."""
    gc.disable()
    import_numpy()
    from sameshot.analysis import analyze as analyze_capture
    from sameshot.analysis import headline
    from sameshot.analysis.hta.tables import Rounding

    gc.freeze()  # what was imported stays: to look through it again and again is 5 % of a small analysis
    gc.enable()
    rounding = Rounding.HTA if hta_rounding else Rounding.EXACT
    with bar("reading") as advance:
        summary = analyze_capture(
            manifest,
            out,
            workers=workers,
            progress=advance,
            rounding=rounding,
            hta=engine is Engine.HTA,
            fetch_pattern=fetch_pattern,
        )
    if output is Output.JSON:
        print_json(summary)
    else:
        for line in headline(summary):
            say(line)
        say(f"report: {out / 'report.html'}, numbers: {out / 'summary.json'}")
    raise typer.Exit(3 if summary.missing else 0)
