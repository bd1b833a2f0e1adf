"""Tables for people: nothing that one may want to copy is ever cut off."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:  # 0.04 s of CPU: only whoever draws pays for it
    from rich.console import Console
    from rich.table import Table

# Piped output has no width of its own; ids and URIs must come through whole.
PIPED_WIDTH = 240

# What would ring, delete or overwrite on a terminal; names in traces are anybody's. The same that rich leaves out.
_CONTROLS = re.compile("[\x07\x08\x0b\x0c\r]")


def say(line: str) -> None:
    """One line on standard output, of any length and whole."""
    typer.echo(_CONTROLS.sub("", line))


def console(*, quiet: bool = False) -> Console:
    from rich.console import Console

    made = Console(quiet=quiet)
    return made if made.is_terminal else Console(quiet=quiet, width=PIPED_WIDTH)


def table(*columns: str, whole: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `whole` never wrap, the others fold."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=column in whole, overflow="fold")
    return made
