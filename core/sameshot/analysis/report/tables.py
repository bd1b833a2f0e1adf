"""Tables and charts with a line per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Cell,
    Column,
    Piece,
    Row,
    Table,
)
from sameshot.analysis.report.view import View, label, most
from sameshot.analysis.results import NamedTime, RankRow
from sameshot.analysis.text import ms


def with_all(view: View, pieces: tuple[Piece, ...], rows: list[BarRow], value: str = "") -> tuple[BarRow, ...]:
    """The sum over all ranks first, where there are several."""
    return tuple(rows) if view.single else (BarRow("all ranks", "", pieces, value), *rows)


def per_rank(
    view: View,
    ident: str,
    caption: str,
    columns: tuple[Column, ...],
    rows: Callable[[RankRow], Iterator[tuple[Cell, ...]]],
    *,
    by: int,
    note: str = "",
    first: int = 8,
) -> Table | None:
    """A table of ranks (or of streams of ranks), those with most of column `by` first; None without any row."""
    found = [(rank, cells) for rank in view.summary.ranks for cells in rows(rank)]
    if len(view.summary.ranks) > 24:
        found.sort(key=lambda pair: -float(pair[1][by - 1].value or 0))
    kept, left_out = most(found)
    if not kept:
        return None
    return Table(
        ident,
        caption,
        (words.words("rank"), *columns),
        tuple(Row((label(rank), *cells), view.marked(rank.label)) for rank, cells in kept),
        note=note,
        first=first,
        left_out=left_out,
    )


def few(names: Sequence[str], limit: int = 6) -> str:
    """The first names, in one line."""
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "") or "–"


def listed(items: tuple[NamedTime, ...]) -> str:
    """The largest few, in one line."""
    return ", ".join(f"{item.name} {ms(item.self_time)}" for item in items[:3]) or "–"
