"""`sameshot compare`: what a later capture does slower than an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.bars import bar
from sameshot.cli.options import Output, OutputOption, print_json
from sameshot.cli.tables import say
from sameshot.lean import import_numpy


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot compare monday/manifest.json tuesday/manifest.json --out diff | "
        "sameshot compare s3://traces/dev/bert/0/<id> s3://traces/dev/bert/0/<id> -o json"
    )(compare)


def compare(
    before: Annotated[str, typer.Argument(help="Manifest of the earlier capture: path or URI, or its folder.")],
    after: Annotated[str, typer.Argument(help="Manifest of the later capture.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for comparison.html and comparison.json; without it nothing is written."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what got slower, by how much, where, and whether that is more than noise.

    Exit code 3 when a rank is missing from either capture: the comparison then says which.
    """
    import_numpy()
    from sameshot.analysis.compare.run import compare_captures, write

    with bar("reading") as advance:
        found = compare_captures(before, after, cache=None if out is None else out / "columns", progress=advance)
    if out is not None:
        write(found, out)
    if output is Output.JSON:
        print_json(found)
    else:
        for line in found.sentences:
            say(line)
        for line in found.warnings:
            say(f"note: {line}")
        if out is not None:
            say(f"comparison: {out / 'comparison.html'}, numbers: {out / 'comparison.json'}")
    raise typer.Exit(3 if found.incomplete else 0)
