"""Where the main threads' time went, and waiting for the next batch."""

from __future__ import annotations

from collections.abc import Iterator

from sameshot.analysis.job.cautions import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Bars,
    Block,
    Cell,
    Piece,
    Row,
    Section,
    Table,
    Text,
)
from sameshot.analysis.report.tables import per_rank, with_all
from sameshot.analysis.report.view import View, label, most
from sameshot.analysis.results import Part, PartTimes, RankRow
from sameshot.analysis.text import ms, percent


def main_threads(view: View) -> Section | None:
    parts = view.summary.parts
    if not parts.total:
        return None
    present = [part for part in Part if parts.get(part)]
    blocks: list[Block] = [
        Bars(
            "main-parts",
            "Parts of each main thread's window",
            with_all(view, parts_pieces(parts), [
                BarRow(r.label, r.node or "", parts_pieces(r.parts), ms(r.window), view.marked(r.label))
                for r in view.shown
            ]),
            legend=words.legend(list(present), words.PARTS),
            note=view.some,
        )
    ]  # fmt: skip
    pauses, left_out = most(
        sorted(((r, p) for r in view.summary.ranks for p in r.pauses), key=lambda pair: -pair[1].total)
    )
    if pauses:
        blocks.append(
            Table(
                "pauses",
                "Visible pauses",
                (words.words("rank"), words.words("kind"), words.numbers("count"), words.times("together"),
                 words.times("longest"), words.numbers("event", "Index of the longest one in traceEvents")),
                tuple(
                    Row(
                        (label(r), Cell(words.title_of(p.kind, words.PAUSES)), words.number(p.count),
                         words.time(p.total), words.time(p.longest),
                         words.index(p.longest_event)),
                        view.marked(r.label),
                    )
                    for r, p in pauses
                ),
                left_out=left_out,
            )
        )  # fmt: skip
    python = [r for r in view.shown if r.untraced_python]
    if python:
        blocks.append(
            Table(
                "python",
                "Python where no operator ran",
                (words.words("rank"), words.name("function"), words.times("time"), words.numbers("count")),
                tuple(
                    Row(
                        (label(r), Cell(item.name, css="name"), words.time(item.self_time), words.number(item.count)),
                        view.marked(r.label),
                    )
                    for r in python
                    for item in r.untraced_python[:5]
                ),
            )
        )
    caveat = f" {DATA_WAIT_CAVEAT}" if parts.data_wait else ""
    return Section(
        "main-threads",
        "Where the main threads' time went",
        tuple(blocks),
        note="Each moment of a rank's window belongs to exactly one part. Untraced means that no event was recorded: "
        f"Python code, sleeping, or a blocking call.{caveat}",
        short="Main threads",
    )


def parts_pieces(parts: PartTimes) -> tuple[Piece, ...]:
    whole = parts.total
    return tuple(
        Piece(str(part), value / whole, f"{words.title_of(part, words.PARTS)}: {ms(value)} ({percent(value / whole)})")
        for part in Part
        if whole and (value := parts.get(part)) > 0
    )


def data(view: View) -> Section | None:
    """Waiting for the next batch; what it does not tell stands beside it."""
    known = [(rank, rank.data_wait) for rank in view.summary.ranks if rank.data_wait is not None]
    if not known:
        return None

    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        if (found := rank.data_wait) is not None:
            yield (
                words.number(found.fetches),
                words.time(found.raw),
                words.time(found.felt),
                words.time(found.hidden),
                words.share(found.share),
                words.time(found.felt_per_step.median if found.felt_per_step else None),
                words.time(found.raw_per_step.median if found.raw_per_step else None),
                words.number(found.copies),
                Cell({True: "data-bound", False: "no", None: "can't be said"}[found.bound], css="tight"),
                Cell(found.method),
            )

    table = per_rank(
        view,
        "data-waits",
        "Waiting for the next batch",
        (words.numbers("fetches"), words.times("in the fetch"), words.times("felt", "Of it, the GPU was idle for it"),
         words.times("hidden", "The GPU had other work meanwhile"), words.numbers("of window"),
         words.times("felt per step", "Median"), words.times("in the fetch per step", "Median"),
         words.numbers("blocking copies", "Host to device, synchronous or pageable"), words.words("bound"),
         words.words("known from")),
        rows,
        by=5,
    )  # fmt: skip
    if table is None:
        return None
    sentences = list(dict.fromkeys(words.capitalised(found.sentence) for _, found in known if found.sentence))[:4]
    return Section(
        "data",
        "Waiting for data",
        (*((Text(tuple(sentences)),) if sentences else ()), table),
        note=DATA_WAIT_CAVEAT,
        short="Data",
    )
