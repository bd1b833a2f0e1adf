"""Tables for people: nothing that one may want to copy is ever cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sameshot.cli.shown import shown

if TYPE_CHECKING:  # 0.04 s of CPU: only whoever draws pays for it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# Piped output has no width of its own; ids and URIs must come through whole.
PIPED_WIDTH = 240


def say(line: str) -> None:
    """One line on standard output, of any length and whole, as `shown`."""
    typer.echo(shown(line))


def console(*, quiet: bool = False) -> Console:
    """Texts that it is given are printed as they are, `shown`; those of `rich` itself (`Text`) are made by `plain`."""
    from sameshot.cli.screen import Screen

    made = Screen(quiet=quiet)
    return made if made.is_terminal else Screen(quiet=quiet, width=PIPED_WIDTH)


def plain(text: str, style: str = "") -> Text:
    """Of a style of its own, and without markup and control characters on any screen."""
    from rich.text import Text

    return Text(shown(text), style=style)


def table(*columns: str, whole: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `whole` never wrap, the others fold."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=column in whole, overflow="fold")
    return made
