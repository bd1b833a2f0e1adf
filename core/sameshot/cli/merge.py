"""`sameshot merge`: the traces of several ranks as one, on one clock, for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.bars import bar
from sameshot.cli.options import Output, OutputOption, milliseconds, print_json, rank_list
from sameshot.cli.tables import say


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Example: sameshot merge demo-out/archive/local/demo/0/<capture id> --ranks 0,2-3 --from 100ms "
        "--to 300ms --out merged.json.gz, then open the file in ui.perfetto.dev"
    )(merge)


def merge(
    manifest: Annotated[str, typer.Argument(help="Path or URI of a manifest, or of the folder that holds it.")],
    ranks: Annotated[
        str | None, typer.Option(help="Which ranks, for example 0,2-3; all by default.", show_default=False)
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Leave out what ends before, counted from the first window.", show_default=False),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Leave out what begins after.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="The file to write, always gzip.")] = Path("merged.json.gz"),
    output: OutputOption = Output.TABLE,
) -> None:
    """Write chosen ranks' traces into one, aligned by the clock offsets that the collectives prove."""
    from sameshot.analysis.merged import merge_capture

    window = tuple(None if text is None else milliseconds(text) * 1_000_000 for text in (begin, end))
    chosen = None if ranks is None else rank_list(ranks)
    with bar("merging") as advance:
        found = merge_capture(manifest, out, ranks=chosen, window_ns=(window[0], window[1]), progress=advance)
    if output is Output.JSON:
        print_json(found)
        return
    for part in found.parts:
        say(f"{part.label}: {part.events} events, {part.clock}")
    say(f"{found.path}: open it in ui.perfetto.dev")
