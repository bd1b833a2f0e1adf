"""What collectives cost across ranks: waiting and transfer, bandwidth, slow links, groups; and what is uneven."""

from __future__ import annotations

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Block,
    Cell,
    Piece,
    Row,
    Section,
    Table,
)
from sameshot.analysis.report.tables import few
from sameshot.analysis.report.view import View, most
from sameshot.analysis.results import BandwidthRow, CollectiveRow, SlowLink
from sameshot.analysis.text import ms, percent, size


def collectives(view: View) -> Section | None:
    summary, blocks = view.summary, list[Block]()
    if summary.analysed_ranks > 1 and summary.collectives:
        blocks.append(_collectives(view))
    if summary.slow_links:
        blocks.append(_slow_links(summary.slow_links))
    if summary.bandwidth:
        blocks.append(_bandwidth(summary.bandwidth, {group.key: group.name or group.key for group in summary.groups}))
    if any(group.ranks or group.description or group.size for group in summary.groups):
        groups, left_out = most(summary.groups, what="groups")
        blocks.append(
            Table(
                "groups",
                "Process groups, as recorded",
                (words.words("group"), words.words("description"), words.numbers("ranks"), words.words("which ranks")),
                tuple(
                    Row(
                        (words.text(g.name or g.key, title=g.key), words.text(g.description), words.number(g.size),
                         words.text(g.ranks, "mono wide"))
                    )
                    for g in groups
                ),
                first=8,
                left_out=left_out,
            )
        )  # fmt: skip
    if not blocks:
        return None
    return Section(
        "collectives",
        "Collectives across ranks",
        tuple(blocks),
        note="Transfer is what the last rank to arrive measured; everything beyond it is waiting for that rank. A "
        "collective that mostly waits does not prove a slow network.",
        short="Collectives",
    )


def _collectives(view: View) -> Table:
    kept, left_out = most(view.summary.collectives, 100, "kinds")
    return Table(
        "collective-kinds",
        "Waiting and transfer",
        (
            words.words("kind"),
            words.words("group"),
            words.numbers("ranks"),
            words.numbers("matched"),
            words.numbers("unmatched", "Recorded on some ranks only"),
            words.times("mean wait", "Per collective and rank"),
            words.times("mean transfer", "Per collective"),
            words.words("wait / transfer"),
            words.times("longest wait"),
            words.words("last most often"),
        ),
        tuple(
            Row(
                (
                    words.text(row.signature or row.kind, "tight"),
                    words.text(row.stream, "faint tight"),
                    words.number(row.ranks),
                    words.number(row.matched),
                    words.number(row.unmatched),
                    words.time(row.mean_wait),
                    words.time(row.mean_transfer),
                    Cell("can't be told" if row.matched else "not matched", css="faint", pieces=_split(row)),
                    words.time(row.longest_wait),
                    words.text(
                        row.last_arriver
                        and row.last_arriver
                        + (f" ({percent(row.last_arriver_share)})" if row.last_arriver_share is not None else ""),
                        "tight",
                    ),
                )
            )
            for row in kept
        ),
        first=16,
        left_out=left_out,
    )


def _split(row: CollectiveRow) -> tuple[Piece, ...]:
    if row.mean_wait is None or row.mean_transfer is None:
        return ()
    whole = row.mean_wait + row.mean_transfer
    pieces = (("wait", "waiting for the last rank", row.mean_wait), ("transfer", "transfer", row.mean_transfer))
    return tuple(Piece(css, v / whole, f"{ms(v)} {what}") for css, what, v in pieces if whole and v > 0)


def _slow_links(found: tuple[SlowLink, ...]) -> Table:
    kept, left_out = most(found)
    return Table(
        "slow-links",
        "Slow links",
        (
            words.words("group"),
            words.words("nodes"),
            words.words("ranks"),
            words.words("kind"),
            words.numbers("size", unit="bytes"),
            words.numbers("busbw GB/s"),
            words.numbers("usual GB/s", "Median of comparable groups"),
        ),
        tuple(
            Row(
                (
                    Cell(link.group, css="tight"),
                    Cell(few(link.nodes)),
                    Cell(few(link.labels)),
                    Cell(link.kind.value, css="tight"),
                    Cell(size(link.bytes), value=link.bytes),
                    words.real(link.busbw_gb_per_s),
                    words.real(link.usual_gb_per_s),
                ),
                marked=True,
            )
            for link in kept
        ),
        first=8,
        left_out=left_out,
    )


def _bandwidth(found: tuple[BandwidthRow, ...], groups: dict[str, str]) -> Table:
    kept, left_out = most(found)
    return Table(
        "bandwidth",
        "Bandwidth",
        (
            words.words("kind"),
            words.words("group"),
            words.numbers("size", unit="bytes"),
            words.numbers("ranks"),
            words.words("placement"),
            words.numbers("calls"),
            words.times("transfer", "Median duration on the last rank to arrive"),
            words.numbers("algbw GB/s", "Size / transfer"),
            words.numbers("busbw GB/s", "algbw × the kind's factor: comparable with what the links can do"),
            words.numbers("against alike", "busbw against the median of the same kind, size, ranks and placement"),
        ),
        tuple(
            Row(
                (
                    Cell(row.kind.value, css="tight"),
                    Cell(groups.get(row.group, row.group), css="faint", title=row.group),
                    Cell(size(row.bytes), value=row.bytes),
                    words.number(row.ranks),
                    Cell(row.placement, css="tight"),
                    words.number(row.calls),
                    words.time(row.transfer),
                    words.real(row.algbw_gb_per_s),
                    words.real(row.busbw_gb_per_s),
                    words.share(row.relative),
                ),
                row.relative is not None and row.relative < 0.7,
            )
            for row in kept
        ),
        note="GB are 10⁹ bytes. Time spent waiting for late ranks is not in here.",
        left_out=left_out,
    )


def imbalance(view: View) -> Section | None:
    found = view.summary.imbalance
    if not found:
        return None
    return Section(
        "imbalance",
        "Imbalance",
        (
            Table(
                "imbalances",
                "Measures that differ between ranks",
                (
                    words.words("measure"),
                    words.numbers("ranks"),
                    words.times("median"),
                    words.times("largest"),
                    words.numbers("excess", "(largest − median) / median"),
                    words.words("largest on"),
                ),
                tuple(
                    Row(
                        (
                            Cell(words.title_of(row.measure, {})),
                            words.number(row.ranks),
                            words.time(row.median),
                            words.time(row.maximum),
                            words.share(row.excess),
                            Cell(row.label, css="tight"),
                        ),
                    )
                    for row in sorted(found, key=lambda r: -(r.excess or 0))
                ),
            ),
        ),
        short="Imbalance",
    )
