"""Between ranks: who waits for whom, how long steps take, what collectives cost, slow links, imbalance, clocks."""

from __future__ import annotations

from sameshot.analysis.measures import BandwidthRow
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Bars,
    Block,
    Cell,
    Finding,
    Findings,
    Link,
    Piece,
    Row,
    Section,
    SpreadRow,
    Spreads,
    Table,
)
from sameshot.analysis.report.view import View, label, most
from sameshot.analysis.summary import CollectiveRow
from sameshot.analysis.text import count, ms, percent, size


def waiting(view: View) -> Section | None:
    """Who makes the others wait: bars by caused waiting, and the same per rank as numbers."""
    summary, blocks = view.summary, list[Block]()
    if view.stragglers:
        blocks.append(_caused(view))
    known = [rank for rank in summary.ranks if rank.waited is not None or rank.last_arrivals is not None]
    costs = {s.label: s for s in summary.stragglers}
    if known:
        of = summary.late.rests_on_collectives
        rows = sorted(
            known,
            key=lambda r: (
                -(costs[r.label].caused if r.label in costs else 0),
                -(r.lateness_per_step or 0),
                -(r.last_arrivals or 0),
            ),
        )  # fmt: skip
        kept, left_out = most(rows, what="ranks")
        blocks.append(
            Table(
                "waits",
                "Waiting by rank",
                (
                    words.words("rank"),
                    words.words("node"),
                    words.times("made others wait", "Waiting of all other ranks, summed, where this one came last"),
                    words.numbers("came last", "At how many matched collectives"),
                    words.numbers("share", "Of the matched collectives"),
                    words.times("waited itself", "For ranks that came later"),
                    words.times("late per step", "Median: later than the typical rank"),
                ),
                tuple(
                    Row(
                        (
                            label(rank),
                            words.text(rank.node, "tight"),
                            words.time(costs[rank.label].caused if rank.label in costs else None),
                            words.number(rank.last_arrivals),
                            words.share(rank.last_arrivals / of if of and rank.last_arrivals is not None else None),
                            words.time(rank.waited),
                            words.time(rank.lateness_per_step),
                        ),
                        view.marked(rank.label),
                    )
                    for rank in kept
                ),
                left_out=left_out,
            )
        )
    elif costs:
        kept_costs, left_out = most(sorted(summary.stragglers, key=lambda s: -s.caused), what="ranks")
        blocks.append(
            Table(
                "waits",
                "Waiting by rank",
                (words.words("rank"), words.words("node"), words.times("made others wait"), words.numbers("came last"),
                 words.numbers("of")),
                tuple(
                    Row(
                        (Cell(s.label), words.text(s.node), words.time(s.caused), words.number(s.last),
                         words.number(s.of)),
                        view.marked(s.label),
                    )
                    for s in kept_costs
                ),
                left_out=left_out,
            )
        )  # fmt: skip
    if not blocks:
        return None
    whole = f" All waiting together: {ms(summary.waiting)}." if summary.waiting is not None else ""
    rests = (
        f" Rests on {count(summary.late.rests_on_collectives, 'matched collective')} of "
        f"{view.ranks(summary.late.rests_on_ranks)}."
        if summary.late.rests_on_collectives
        else ""
    )
    return Section(
        "waiting",
        "Who waits for whom",
        tuple(blocks),
        note="At each matched collective the rank with the shortest duration came last; the others waited for it."
        + whole
        + rests,
        short="Waiting",
    )


def _caused(view: View) -> Bars:
    top = view.stragglers[:12]
    largest = top[0].caused
    rest = view.stragglers[12:]
    return Bars(
        "stragglers",
        "Waiting that each rank caused, the costliest first",
        tuple(
            BarRow(
                s.label,
                s.node or "",
                (
                    Piece(
                        "caused",
                        s.caused / largest,
                        f"{s.label}: the others waited {ms(s.caused)}, {percent(s.share)} of all waiting; "
                        f"it came last at {s.last} of {s.of}",
                    ),
                ),
                ms(s.caused),
                view.marked(s.label),
            )
            for s in top
        ),
        numbers=False,
        note="Waiting that each rank caused, summed over the ranks that waited for it."
        + (f" The other {len(rest)} together: {ms(sum(s.caused for s in rest))}." if rest else ""),
    )


def steps(view: View) -> Section | None:
    summary = view.summary
    known = [(rank, rank.step_time) for rank in view.shown if rank.step_time is not None]
    if summary.step_time is None or not known:
        return None
    top = max(spread.maximum for _, spread in known) or 1
    rows = tuple(
        SpreadRow(
            label=rank.label,
            low=100 * spread.minimum / top,
            p10=100 * spread.p10 / top,
            median=100 * spread.median / top,
            p90=100 * spread.p90 / top,
            high=100 * spread.maximum / top,
            value=ms(spread.median),
            text=f"{rank.label}: median {ms(spread.median)}, 8 of 10 between {ms(spread.p10)} and {ms(spread.p90)}, "
            f"all between {ms(spread.minimum)} and {ms(spread.maximum)}; {count(spread.count, 'step')}",
            marked=view.marked(rank.label),
        )
        for rank, spread in known
    )
    methods = sorted({words.title_of(rank.step_method, words.STEPS) for rank, _ in known})
    confidence = sorted({rank.step_confidence.value for rank, _ in known})
    return Section(
        "steps",
        "Step time",
        (Spreads("step-times", "Step times by rank", rows, ms(top), view.some),),
        note=f"{count(summary.step_time.count, 'step')} of {view.ranks(summary.step_ranks)}, known from "
        f"{' or '.join(methods)} (confidence {' or '.join(confidence)}). Line: all steps; box: 8 of 10; mark: median.",
        short="Steps",
    )


def collectives(view: View) -> Section | None:
    summary, blocks = view.summary, list[Block]()
    if summary.collectives:
        blocks.append(_collectives(view))
    if summary.slow_links:
        blocks.append(
            Findings(
                tuple(
                    Finding(
                        "bad",
                        words.capitalised(link.sentence),
                        f"{count(len(link.labels), 'rank')}",
                        (Link("bandwidth", "bandwidth", link.group),),
                    )
                    for link in summary.slow_links[:20]
                )
            )
        )
    if summary.bandwidth:
        blocks.append(_bandwidth(summary.bandwidth, {group.key: group.name or group.key for group in summary.groups}))
    if summary.groups:
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
                    Cell(
                        "durations alone do not tell" if row.matched else "not matched", css="faint", pieces=_split(row)
                    ),
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


def clocks(view: View) -> Section | None:
    """Clocks of the hosts, and how collectives of different ranks were matched."""
    summary, blocks = view.summary, list[Block]()
    note = ""
    if (found := summary.clocks) is not None and found.hosts:
        note = found.note
        hosts, left_out = most(found.hosts, what="hosts")
        blocks.append(
            Table(
                "hosts",
                f"Clocks against {found.reference}" if found.reference else "Clocks of the hosts",
                (
                    words.words("host"),
                    words.times("offset", "Add it to this host's times"),
                    words.numbers("drift ns/s"),
                    words.times("residual", "Median, at the points that were matched"),
                    words.times("expected error"),
                    words.numbers("points"),
                    words.numbers("component", "Only hosts of one component can be compared"),
                    words.words("remark"),
                ),
                tuple(
                    Row(
                        (
                            Cell(host.host),
                            Cell("unaligned") if host.offset is None else words.time(host.offset),
                            words.real(host.drift),
                            words.time(host.residual),
                            words.time(host.expected_error),
                            words.number(host.points),
                            words.number(host.component),
                            words.text(host.note, "faint wide"),
                        )
                    )
                    for host in hosts
                ),
                first=12,
                left_out=left_out,
            )
        )
    if summary.alignments:
        kept, left_out = most(summary.alignments, 100, "pairs")
        blocks.append(
            Table(
                "alignments",
                "How collectives were matched",
                (
                    words.words("rank"),
                    words.words("group"),
                    words.words("compared with"),
                    words.words("matched by"),
                    words.numbers("shift", "Its first collective is the reference's so many-th"),
                    words.numbers("matched"),
                    words.times("misfit", "Median difference of the times between ends"),
                    words.times("ends later by", "By the hosts' clocks"),
                    words.words("remark"),
                ),
                tuple(
                    Row(
                        (
                            Cell(a.label, css="tight"),
                            words.text(a.stream, "faint tight"),
                            Cell(a.reference, css="tight"),
                            Cell(a.method),
                            words.number(a.lag),
                            words.number(a.matched),
                            words.time(a.residual),
                            words.time(a.clock_offset),
                            words.text(a.note, "faint wide"),
                        )
                    )
                    for a in kept
                ),
                first=12,
                left_out=left_out,
            )
        )
    return Section("clocks", "Clocks and matching", tuple(blocks), note=note, short="Clocks") if blocks else None
