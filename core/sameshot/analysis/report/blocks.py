"""What a page is made of: plain values, no HTML and no numbers to compute.

A report is a list of `Section`s, a section a list of blocks; `page` places them. Whoever wants a page with the same
look (the comparison of two captures) makes its own blocks. Text is text: it is escaped in one place, when it is placed.
"""

from __future__ import annotations

import msgspec


class Column(msgspec.Struct, frozen=True):
    """A column of a table. `unit` is that of the cells' exact values ("ns", "bytes", "" for counts and shares)."""

    title: str
    numeric: bool = False
    unit: str = ""
    hint: str = ""
    css: str = ""
    quiet: bool = False  # its title is only said, not shown


class Cell(msgspec.Struct, frozen=True):
    """What stands in a table. `value` is exact and what sorting goes by; None sorts last (numbers) or by the text."""

    text: str
    value: float | str | None = None
    css: str = ""
    title: str = ""
    pieces: tuple[Piece, ...] = ()  # a small bar instead of text
    href: str = ""  # to another page, by a click only: whoever makes the cell lets through http(s) and relative ones

    @property
    def known(self) -> bool:
        return self.text != "–" or bool(self.pieces)


class Piece(msgspec.Struct, frozen=True):
    """One piece of a stacked bar; `share` is of the whole bar, 0 to 1. `css` names what it is, by its colour."""

    css: str
    share: float
    text: str


class Row(msgspec.Struct, frozen=True):
    cells: tuple[Cell, ...]
    marked: bool = False  # it is about a rank that was named


class Table(msgspec.Struct, frozen=True):
    """Rows in the order of their importance; the first `first` of them are shown before somebody asks for all."""

    ident: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    first: int = 20
    left_out: str = ""  # what is not in the page at all, and where it is

    def trimmed(self) -> Table:
        """Without the columns in which nothing is known."""
        keep = [i for i in range(len(self.columns)) if not i or any(row.cells[i].known for row in self.rows)]
        if len(keep) == len(self.columns):
            return self
        return msgspec.structs.replace(
            self,
            columns=tuple(self.columns[i] for i in keep),
            rows=tuple(Row(tuple(row.cells[i] for i in keep), row.marked) for row in self.rows),
        )


class BarRow(msgspec.Struct, frozen=True):
    label: str
    detail: str
    pieces: tuple[Piece, ...]
    value: str
    marked: bool = False


class Legend(msgspec.Struct, frozen=True):
    css: str
    title: str


class Bars(msgspec.Struct, frozen=True):
    """Stacked bars, one a rank. `alt` says in words what they show."""

    ident: str
    alt: str
    rows: tuple[BarRow, ...]
    legend: tuple[Legend, ...] = ()
    note: str = ""
    numbers: bool = True  # pieces show their share


class SpreadRow(msgspec.Struct, frozen=True):
    """A distribution; positions in percent of the drawing's width."""

    label: str
    low: float
    p10: float
    median: float
    p90: float
    high: float
    value: str
    text: str
    marked: bool = False


class Spreads(msgspec.Struct, frozen=True):
    ident: str
    alt: str
    rows: tuple[SpreadRow, ...]
    end: str  # what the right end of the scale stands for; the left end is 0
    note: str = ""


class Tick(msgspec.Struct, frozen=True):
    at: float  # percent of the width
    text: str


class Lane(msgspec.Struct, frozen=True):
    """One line of a picture. `marks` are moments in percent of the width (where steps begin)."""

    label: str
    marked: bool = False
    detail: str = ""


class Picture(msgspec.Struct, frozen=True):
    """Lanes over time, one line of pixels or more each. `png` is the whole picture, base64."""

    ident: str
    title: str
    alt: str
    png: str
    lanes: tuple[Lane, ...]
    lane_height: int  # CSS pixels
    ticks: tuple[Tick, ...]
    span: int  # ns that the width stands for
    legend: tuple[Legend, ...]
    labels: bool  # lanes are high enough for a name each
    note: str = ""


class Dot(msgspec.Struct, frozen=True):
    """One value of a course; `x` from the left and `y` from below, in percent. `text` says all of it."""

    x: float
    y: float
    text: str
    marked: bool = False


class Level(msgspec.Struct, frozen=True):
    """A height that holds from `begin` to `end`."""

    begin: float
    end: float
    y: float


class Course(msgspec.Struct, frozen=True):
    """How one number went, from left to right, drawn from zero. `alt` says in words what there is to see. `turn` is
    where it changed, and `grade` ("bad" or "good") how that is to be taken."""

    ident: str
    title: str
    alt: str
    dots: tuple[Dot, ...]
    levels: tuple[Level, ...]
    across: tuple[Tick, ...]  # below the drawing
    up: tuple[Tick, ...]  # beside it, from below
    turn: float | None = None
    grade: str = "bad"
    note: str = ""


class Tile(msgspec.Struct, frozen=True):
    title: str
    value: str
    detail: str
    exact: str = ""
    href: str = ""


class Tiles(msgspec.Struct, frozen=True):
    tiles: tuple[Tile, ...]


class Text(msgspec.Struct, frozen=True):
    """Paragraphs, or the points of a list."""

    paragraphs: tuple[str, ...]
    points: bool = False


class Link(msgspec.Struct, frozen=True):
    """To the place on this page that proves a sentence; `find` goes into that table's filter."""

    text: str
    target: str
    find: str = ""


class FindingLine(msgspec.Struct, frozen=True):
    """One sentence and what it rests on. `grade`: "bad", "warn", "good" or "" (just a fact)."""

    grade: str
    text: str
    basis: str
    links: tuple[Link, ...]


class Findings(msgspec.Struct, frozen=True):
    items: tuple[FindingLine, ...]


class Notice(msgspec.Struct, frozen=True):
    """What one has to know before reading on. `kind`: "missing" or "warning"."""

    kind: str
    strong: str
    text: str
    blocks: tuple[Block, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """The answer. `grade`: "good", "bad" or "open"."""

    grade: str
    title: str
    paragraphs: tuple[str, ...]
    pill: str = ""
    basis: str = ""
    links: tuple[Link, ...] = ()
    blocks: tuple[Block, ...] = ()


class Fold(msgspec.Struct, frozen=True):
    """Blocks behind a line that opens them."""

    title: str
    blocks: tuple[Block, ...]
    open: bool = False


Block = Table | Bars | Spreads | Picture | Course | Tiles | Text | Findings | Notice | Verdict | Fold


class Section(msgspec.Struct, frozen=True):
    """A part of the page with a heading. `short` is its name in the list of contents ("" = not listed)."""

    ident: str
    title: str
    blocks: tuple[Block, ...]
    note: str = ""
    short: str = ""


class Page(msgspec.Struct, frozen=True):
    """Everything on one page. `lead` stands above the list of contents, without cards around it."""

    title: str  # of the window or tab
    heading: str
    meta: str
    pill: str
    pill_grade: str
    lead: tuple[Block, ...]
    sections: tuple[Section, ...]
    footer: tuple[str, ...]
