"""Who waits for whom, and how long steps take."""

from __future__ import annotations

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Bars,
    Block,
    Cell,
    Legend,
    Piece,
    Row,
    Section,
    SpreadRow,
    Spreads,
    Table,
)
from sameshot.analysis.report.view import View, label, most
from sameshot.analysis.results import RankRow, Straggler
from sameshot.analysis.text import count, ms, percent


def waiting(view: View) -> Section | None:
    """Who makes the others wait: bars by caused waiting, and the same per rank as numbers."""
    summary, blocks = view.summary, list[Block]()
    if view.stragglers:
        blocks.append(_caused(view))
    known = [rank for rank in summary.ranks if rank.waited is not None or rank.last_arrivals is not None]
    if known or view.stragglers:
        blocks.append(_by_rank(view, known))
    if summary.moments:
        blocks.append(_moments(view))
    if not blocks:
        return None
    whole = f" All waiting together: {ms(summary.waiting)}." if summary.waiting is not None else ""
    of = max((s.of for s in summary.stragglers), default=summary.late.rests_on_collectives)
    rests = f" Rests on {count(of, 'matched collective')} of {view.ranks(summary.late.rests_on_ranks)}." if of else ""
    return Section(
        "waiting",
        "Who waits for whom",
        tuple(blocks),
        note="At each matched collective the rank with the shortest duration came last; the others waited for it."
        + whole
        + rests,
        short="Waiting",
    )


def _moments(view: View) -> Table:
    """Event by event: whoever doubts the sentences can look them up in the traces."""
    return Table(
        "moments",
        "The costliest moments",
        (
            words.words("came last"),
            words.times("at", "After the start of that rank's own window"),
            words.numbers("event", "Index in traceEvents of the rank that came last"),
            words.words("waited longest"),
            words.numbers("its event", "Index in traceEvents of the rank that waited longest"),
            words.times("it waited"),
            words.times("all waited", "Summed over all other ranks"),
            words.times("transfer", "Duration on the rank that came last"),
            words.words("collective"),
            words.words("group"),
            words.words("because"),
        ),
        tuple(
            Row(
                (
                    Cell(moment.last, css="tight"),
                    words.time(moment.start),
                    words.index(moment.event),
                    Cell(moment.victim, css="tight"),
                    words.index(moment.victim_event),
                    words.time(moment.victim_wait),
                    words.time(moment.waiting),
                    words.time(moment.transfer),
                    Cell(moment.kind, css="tight"),
                    Cell(moment.group, css="faint"),
                    words.UNKNOWN
                    if moment.cause == "unknown"
                    else Cell(words.title_of(moment.cause, words.CAUSES), css="tight"),
                ),
                view.marked(moment.last),
            )
            for moment in view.summary.moments
        ),
        note="One collective a line, with the events on both sides: their indices count in traceEvents of each rank's "
        "trace.",
        first=6,
    )


def _by_rank(view: View, known: list[RankRow]) -> Table:
    costs = {s.label: s for s in view.summary.stragglers}
    every = {rank.label: rank for rank in known}
    labels = sorted(
        {**every, **costs},
        key=lambda name: (
            -(costs[name].caused if name in costs else 0),
            -((every[name].lateness_per_step or 0) if name in every else 0),
        ),
    )
    kept, left_out = most(labels, what="ranks")
    return Table(
        "waits",
        "Waiting by rank",
        (
            words.words("rank"),
            words.words("node"),
            words.times("made others wait", "Waiting of all other ranks, summed, where this one came last"),
            words.times(
                "perhaps", "The same, in groups of which a rank was not compared: it may have come later still"
            ),
            words.words("mostly because"),
            words.numbers("came last", "At matched symmetric collectives, by more than noise"),
            words.numbers("of", "Matched symmetric collectives"),
            words.times("passed on", "Waiting for it that was due to a rank of another group"),
            words.times("waited itself", "For ranks that came later"),
            words.times("late per step", "Median: later than the typical rank"),
        ),
        tuple(_waits(view, every.get(name), costs.get(name)) for name in kept),
        left_out=left_out,
    )


def _waits(view: View, rank: RankRow | None, cost: Straggler | None) -> Row:
    name = rank.label if rank is not None else cost.label if cost is not None else ""
    why = _causes(view, cost) if cost is not None and cost.caused else {}
    node = rank.node if rank is not None else cost.node if cost is not None else None
    return Row(
        (
            label(rank) if rank is not None else Cell(name, css="tight"),
            words.text(node, "tight"),
            words.time(cost.caused if cost is not None else None),
            words.time(cost.perhaps or None if cost is not None else None),
            words.text(words.title_of(max(why, key=lambda c: why[c]), words.CAUSES) if why else None, "tight"),
            words.number(cost.last if cost is not None else rank.last_arrivals if rank is not None else None),
            words.number(cost.of if cost is not None else None),
            words.time(cost.relayed or None if cost is not None else None),
            words.time(rank.waited if rank is not None else None),
            words.time(rank.lateness_per_step if rank is not None else None),
        ),
        view.marked(name),
    )


def _caused(view: View) -> Bars:
    top = view.stragglers[:12]
    rest = view.stragglers[12:]
    causes = [str(cause) for cause in words.CAUSES if any(cause in _causes(view, s) for s in top)]
    why = causes != ["unknown"]
    return Bars(
        "stragglers",
        "Waiting that each rank caused, the costliest first",
        tuple(
            BarRow(
                s.label,
                s.node or "",
                tuple(
                    Piece(
                        f"why-{cause}",
                        ns / top[0].caused,
                        f"{s.label}, {words.title_of(cause, words.CAUSES)}: the others waited {ms(ns)}; in all "
                        f"{ms(s.caused)}, {percent(s.share)} of all waiting; it came last at {s.last} of {s.of}",
                    )
                    for cause in words.CAUSES
                    if (ns := _causes(view, s).get(cause, 0)) > 0
                ),
                ms(s.caused),
                view.marked(s.label),
            )
            for s in top
        ),
        legend=tuple(Legend(f"why-{cause}", words.title_of(cause, words.CAUSES)) for cause in causes if why),
        numbers=False,
        note=f"Waiting that each rank caused{', by why it was late' if why else ''}, summed over the ranks that waited "
        "for it." + (f" The other {len(rest)} together: {ms(sum(s.caused for s in rest))}." if rest else ""),
    )


def _causes(view: View, straggler: Straggler) -> dict[str, int]:
    """Why this rank was late, in ns of the others' waiting. Where only the verdict knows (gloo), as it says."""
    known = {cause: ns for cause, ns in straggler.causes.items() if ns > 0}
    if set(known) <= {"unknown"}:
        named = next((str(rank.cause) for rank in view.summary.late.ranks if rank.label == straggler.label), "unknown")
        return {named: straggler.caused}
    return known


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
