"""Tables for people: nothing that one may want to copy is ever cut off."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

# Piped output has no width of its own; ids and URIs must come through whole.
PIPED_WIDTH = 240


def console(*, quiet: bool = False) -> Console:
    made = Console(quiet=quiet)
    return made if made.is_terminal else Console(quiet=quiet, width=PIPED_WIDTH)


def table(*columns: str, whole: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `whole` never wrap, the others fold."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=column in whole, overflow="fold")
    return made
