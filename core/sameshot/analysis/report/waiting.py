"""Who waits for whom, and how long steps take."""

from __future__ import annotations

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Bars,
    Block,
    Cell,
    Piece,
    Row,
    Section,
    SpreadRow,
    Spreads,
    Table,
)
from sameshot.analysis.report.view import View, label, most
from sameshot.analysis.text import count, ms, percent


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
