"""Every rank with its window and its trace, what was odd in the files, HTA's tables, and how the numbers came about."""

from __future__ import annotations

from collections import Counter

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import Block, Cell, Fold, Row, Section, Table, Text
from sameshot.analysis.report.view import View, label
from sameshot.analysis.text import ms, size

_FIRST_RANKS = 24


def ranks(view: View) -> Section | None:
    summary = view.summary
    if not summary.ranks:
        return None
    blocks: list[Block] = [
        Table(
            "rank-list",
            "Every rank",
            (words.words("rank"), words.words("target"), words.words("node"),
             words.times("window begins", "After the first one, by the hosts' clocks"), words.times("window"),
             words.numbers("steps"), words.times("step", "Median"), words.words("steps are known from"),
             words.numbers("collectives"), words.numbers("kernels"), words.numbers("events"),
             words.numbers("trace", unit="bytes")),
            tuple(
                Row(
                    (
                        label(rank),
                        Cell(rank.target_id, css="mono tight"),
                        words.text(rank.node, "tight"),
                        Cell(
                            ("+" + ms(rank.starts_after) if rank.starts_after else "first")
                            + (", late start" if rank.late_start else ""),
                            value=rank.starts_after,
                            title=rank.window_start_at,
                        ),
                        words.time(rank.window),
                        words.number(rank.step_count or None),
                        words.time(rank.step_time.median if rank.step_time else None),
                        Cell(
                            words.title_of(rank.step_method, words.STEPS)
                            + (f" ({rank.step_confidence.value})" if rank.step_count else ""),
                            css="tight",
                            title=rank.step_note if len(summary.ranks) <= 64 else "",
                        ),
                        words.number(rank.collectives),
                        words.number(rank.device.kernels if rank.device else None),
                        words.number(rank.trace.events),
                        Cell(size(rank.trace.raw_size), value=rank.trace.raw_size),
                    ),
                    view.marked(rank.label),
                )
                for rank in summary.ranks
            ),
            first=_FIRST_RANKS,
        )
    ]  # fmt: skip
    odd = _odd(view)
    if odd is not None:
        blocks.append(odd)
    blocks.append(Fold("Events by category", (_categories(view),)))
    return Section("ranks", "Every rank and its trace", tuple(blocks), short="Ranks")


def _odd(view: View) -> Table | None:
    """Strange values and unknown categories: counted, never dropped in silence."""
    ranks = view.summary.ranks
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for rank in ranks:
        for what, counts in (
            ("strange value", rank.trace.oddities),
            ("unknown category", rank.trace.unknown_categories),
        ):
            for key, times in counts.items():
                found.setdefault((what, key), []).append((rank.label, times))
    if not found:
        return None
    return Table(
        "oddities",
        "What was odd in the traces",
        (words.words("what"), words.name("which"), words.numbers("times"), words.numbers("ranks"),
         words.words("where")),
        tuple(
            Row(
                (
                    Cell(what, css="tight"),
                    Cell(key or "(empty)"),
                    words.number(sum(times for _, times in where)),
                    words.number(len(where)),
                    Cell(
                        "all ranks"
                        if len(where) == len(ranks) > 1
                        else ", ".join(name for name, _ in where[:6]) + (", …" if len(where) > 6 else "")
                    ),
                )
            )
            for (what, key), where in sorted(found.items(), key=lambda pair: -sum(t for _, t in pair[1]))
        ),
        first=12,
    )  # fmt: skip


def _categories(view: View) -> Table:
    events: Counter[str] = Counter()
    ranks: Counter[str] = Counter()
    for rank in view.summary.ranks:
        events.update(rank.trace.by_category)
        ranks.update(rank.trace.by_category.keys())
    return Table(
        "categories",
        "Events by category",
        (words.words("category"), words.numbers("events"), words.numbers("ranks")),
        tuple(
            Row((Cell(category or "(none)", css="mono"), words.number(times), words.number(ranks[category])))
            for category, times in events.most_common()
        ),
    )


def method(view: View) -> Section:
    summary = view.summary
    return Section(
        "method",
        "How these numbers came about",
        (Text(tuple(dict.fromkeys((summary.late.method, *summary.notes))), points=True),),
        short="Method",
    )
