"""What the steps that work on a published capture have in common: its manifest, where results go, and progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.step.frame import say

ManifestArgument = Annotated[
    str, typer.Argument(help="Path or URI of the capture's manifest, or of the folder that holds it.")
]

ResultsOption = Annotated[
    str,
    typer.Option(
        "--results",
        envvar="SAMESHOT_RESULTS",
        help="Where results are kept: a path, file:///path or s3://bucket/prefix, outside the archive.",
    ),
]

ExpectedOption = Annotated[
    str | None,
    typer.Option(
        "--expected-sha256",
        help="The manifest's digest, as the capture step gave it; another manifest is refused.",
        show_default=False,
    ),
]

MinRanksOption = Annotated[
    int | None,
    typer.Option(help="So many analysed ranks are enough; default: all ranks.", show_default=False),
]

FetchOption = Annotated[
    str | None,
    typer.Option(
        help="Regular expression of the annotations that fetch a batch, where it is not torch's DataLoader.",
        show_default=False,
    ),
]

HistoryOption = Annotated[
    bool, typer.Option("--history/--no-history", help="Add the capture to the history of its series.")
]

ImageOption = Annotated[
    str | None, typer.Option(help="The image that was trained with, for the history.", show_default=False)
]

CommitOption = Annotated[
    str | None, typer.Option(help="The commit that was trained with, for the history.", show_default=False)
]

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Also write the pages and files into this local folder, for artifacts.", show_default=False
    ),
]

KEPT = "What was written is whole and stays; run the step again for the rest."
"""What a signal leaves."""

_EVERY_S = 1.0


def lines(what: str) -> Callable[[int, int, str], None]:
    """Progress as lines on standard error: the last rank, and before it at most one line a second."""
    last = -_EVERY_S

    def told(done: int, of: int, target: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done == of or now - last >= _EVERY_S:
            last = now
            say(f"{what} {done}/{of}: {target}")

    return told
