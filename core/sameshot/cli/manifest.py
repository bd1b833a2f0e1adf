"""`sameshot manifest verify`: read everything that a manifest names again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from sameshot.cli.options import Output, OutputOption, print_json
from sameshot.cli.tables import console


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Check the receipt of a capture.", no_args_is_help=True)
    group.callback()(_group)  # keeps `manifest` a group while it has one command
    group.command(epilog="Example: sameshot manifest verify demo-out/archive/local/demo/0/<capture id>/manifest.json")(
        verify
    )
    app.add_typer(group, name="manifest")


def _group() -> None:
    pass


def verify(
    manifest: Annotated[str, typer.Argument(help="Path or URI of a manifest, or of the folder that holds it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Check size, digests and identity of every file. Exit code 4 when anything differs."""
    from sameshot.trace.capture_check import inspect_capture, locate

    storage, key = locate(manifest)
    report = inspect_capture(storage, key)
    if output is Output.JSON:
        print_json({"uri": report.uri, "ok": not report.failed, "targets": report.targets})
    else:
        screen = console()
        for target in report.targets:
            rank = "?" if target.rank is None else target.rank
            problems = "; ".join(target.problems)
            screen.print(
                Text(
                    f"rank {rank} ({target.target_id}): "
                    + (problems or f"ok, {target.files} files, {target.size} bytes")
                ),
                soft_wrap=True,
            )
        bad = len(report.failed)
        screen.print(f"{len(report.targets)} targets, {bad} with problems" if bad else "all files are as stated")
    raise typer.Exit(4 if report.failed else 0)
