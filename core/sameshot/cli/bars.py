"""A bar on a terminal while files are read one after the other; silent elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int, int, str], None]
"""Called with (done, of how many, what was done last)."""


@contextlib.contextmanager
def bar(what: str) -> Iterator[Advance]:
    """On standard error, gone when it is done."""
    if not sys.stderr.isatty():  # before rich is imported, which costs 0.06 s of CPU
        yield lambda done, of, last: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sameshot.cli.shown import shown

    screen = Console(stderr=True)
    progress = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    with progress:
        task = progress.add_task("", total=None)
        yield lambda done, of, last: progress.update(task, completed=done, total=of, description=shown(last))
