"""What a person reads first: missing ranks, the verdict, warnings, tiles, and findings with their evidence."""

from __future__ import annotations

from sameshot.analysis.cause import because
from sameshot.analysis.job import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Bars,
    Block,
    Cell,
    Link,
    Notice,
    Piece,
    Row,
    Table,
    Tile,
    Tiles,
)
from sameshot.analysis.report.blocks import Verdict as VerdictBlock
from sameshot.analysis.report.view import View, most
from sameshot.analysis.summary import LateRank, Part, Verdict
from sameshot.analysis.text import count, ms, percent

_GRADE = {Verdict.LATE: "bad", Verdict.NONE: "good", Verdict.UNKNOWN: "open"}


def missing(view: View) -> Notice | None:
    summary = view.summary
    if not summary.missing:
        return None
    number = len(summary.missing)
    kept, left_out = most(summary.missing, what="ranks")
    return Notice(
        "missing",
        f"{number} of {count(summary.expected_ranks, 'rank')} {'has' if number == 1 else 'have'} no verified trace.",
        f"Everything below rests on the other {summary.analysed_ranks}.",
        (
            Table(
                "missing",
                "Missing ranks",
                (words.words("rank"), words.words("where"), words.words("reason"), words.words("detail")),
                tuple(
                    Row(
                        (
                            Cell(m.target_id if m.rank is None else f"rank {m.rank}", css="tight"),
                            Cell(m.where or m.target_id, css="tight"),
                            Cell(m.reason, css="mono"),
                            Cell(m.detail, css="wide"),
                        )
                    )
                    for m in kept
                ),
                first=8,
                left_out=left_out,
            ),
        ),
    )


def title(view: View) -> str:
    """The verdict in a few words."""
    found = view.summary.late
    if found.verdict is Verdict.NONE:
        return "No rank is late"
    if view.summary.analysed_ranks < 2:
        return "One rank, nothing to compare"
    if found.verdict is Verdict.UNKNOWN:
        return "Which rank is late can't be said"
    labels = [rank.label for rank in found.ranks]
    if len(labels) > 4:
        return f"{len(labels)} ranks are late"
    *others, last = labels
    return words.capitalised(f"{', '.join(others)} and {last} are late" if others else f"{last} is late")


def verdict(view: View) -> VerdictBlock:
    summary = view.summary
    found = summary.late
    paragraphs = [_sentence(view, rank) for rank in found.ranks[:8]] or [found.reason]
    if len(found.ranks) > 8:
        paragraphs.append(f"{len(found.ranks) - 8} more late ranks are in the tables below.")
    paragraphs += _cost(view)
    charts = tuple(chart for rank in found.ranks[:3] if (chart := _excess(rank)) is not None)
    basis = ""
    if found.rests_on_steps or found.rests_on_collectives:
        why = f"{found.reason} " if found.ranks else ""
        basis = (
            f"{why}Rests on {view.ranks(found.rests_on_ranks)}, {count(found.rests_on_steps, 'matched step')} and "
            f"{count(found.rests_on_collectives, 'matched collective')}."
        )
    return VerdictBlock(
        _GRADE[found.verdict],
        title(view),
        tuple(paragraphs),
        pill=f"confidence {found.ranks[0].confidence.value}" if found.ranks else "",
        basis=basis,
        links=tuple(_proof(view, found.ranks[0].label if found.ranks else "")),
        blocks=charts,
    )


def _sentence(view: View, rank: LateRank) -> str:
    """The sentence below the title, without what the title says already."""
    sentence = rank.sentence.partition(": ")[2] if len(view.summary.late.ranks) == 1 else rank.sentence
    why = because(rank)
    text = words.capitalised((sentence or rank.sentence).rstrip("."))
    where = f" on {rank.node}" if rank.node and rank.node not in text and rank.node not in rank.label else ""
    if where:
        text = f"{words.capitalised(rank.label)}{where}: {text[:1].lower()}{text[1:]}"
    return f"{text}{'; ' + why if why else ''}."


def _cost(view: View) -> list[str]:
    """What waiting for the named ranks (or, without any, for the costliest) cost in all, and in what."""
    summary = view.summary
    costs = [s for s in view.stragglers if s.label in view.late] or view.stragglers[:1]
    if not costs or not summary.waiting:
        return []
    caused = sum(s.caused for s in costs)
    if not view.late and caused < 0.5 * summary.waiting:
        return []
    who = costs[0].label if len(costs) == 1 else f"these {len(costs)} ranks"
    others = count(max(summary.late.rests_on_ranks or summary.analysed_ranks, 2) - 1, "other rank")
    what = sorted(
        (row for row in summary.collectives if row.wait and row.last_arriver in {s.label for s in costs}),
        key=lambda row: -(row.wait or 0),
    )
    inside = f", mostly in {what[0].kind.replace('_', '-')}" if what else ""
    whom = f"the {others}" if len(costs) == 1 else "the others"
    share = percent(caused / summary.waiting)
    return [f"Waiting for {who} cost {whom} {ms(caused)} in this window{inside}: {share} of all waiting."]


def _proof(view: View, label: str) -> list[Link]:
    found = []
    if any(rank.timeline for rank in view.summary.ranks):
        found.append(Link("timeline", "timeline"))
    if any(rank.waited is not None for rank in view.summary.ranks) or view.summary.stragglers:
        found.append(Link("waiting by rank", "waits", label))
    if view.summary.alignments:
        found.append(Link("matching", "alignments", label))
    return found


def _excess(rank: LateRank) -> Bars | None:
    """What the late rank did more of than its peers, per step."""
    if rank.excess is None:
        return None
    values = [(part, value) for part in Part if (value := rank.excess.get(part)) >= 50_000]
    less = [f"{ms(-value)} less in {words.title_of(part, words.PARTS)}" for part in Part
            if (value := rank.excess.get(part)) <= -50_000]  # fmt: skip
    if not values:
        return None
    top = max(value for _, value in values)
    return Bars(
        f"excess-{rank.rank if rank.rank is not None else 'x'}",
        f"What {rank.label} does more of than the others, per step",
        tuple(
            BarRow(
                words.title_of(part, words.PARTS),
                "",
                (Piece(str(part), value / top, f"{words.title_of(part, words.PARTS)}: {ms(value)} more per step"),),
                f"+{ms(value)}",
            )
            for part, value in sorted(values, key=lambda pair: -pair[1])
        ),
        note=f"{words.capitalised(rank.label)}'s main thread per step, against the median of the others"
        + (f" ({', '.join(less)})" if less else "")
        + (f". Likely cause: {words.title_of(rank.cause, words.CAUSES)}." if rank.cause != "unknown" else "."),
        numbers=False,
    )


def warnings(view: View) -> list[Block]:
    return [Notice("warning", "Careful.", warning) for warning in view.summary.warnings]


def tiles(view: View) -> Tiles:
    summary, found = view.summary, list[Tile]()
    analysed = view.ranks(summary.analysed_ranks)
    if (step := summary.step_time) is not None:
        spread = f"8 of 10 between {ms(step.p10)} and {ms(step.p90)}; " if step.count >= 10 else ""
        found.append(
            Tile(
                "step time",
                ms(step.median),
                f"median; {spread}{count(step.count, 'step')}, {view.ranks(summary.step_ranks)}",
                words.exactly(step.median),
            )
        )
    else:
        found.append(Tile("step time", "unknown", "no training steps could be recognised"))
    device = summary.device
    if device is not None and device.total:
        rests = view.ranks(summary.device_ranks)
        found.append(
            Tile(
                "GPU computing",
                percent(device.compute / device.total),
                f"of the window, {rests}",
                words.exactly(device.compute),
            )
        )
        found.append(
            Tile("GPU idle", percent(device.idle / device.total), f"of the window, {rests}", words.exactly(device.idle))
        )
        if device.overlap is not None:
            found.append(
                Tile(
                    "communication",
                    percent(device.communication / device.total),
                    f"of the window exposed; {percent(device.overlap)} of all communication is hidden by compute",
                    words.exactly(device.communication),
                )
            )
    if summary.parts.total:
        whole = summary.parts.total
        chosen = (Part.DATA_WAIT,) if device is not None else (Part.OPERATORS, Part.COMMUNICATION, Part.DATA_WAIT)
        for part in chosen:
            value = summary.parts.get(part)
            caveat = f". {DATA_WAIT_CAVEAT}" if part is Part.DATA_WAIT else ""
            if device is None or value:
                found.append(
                    Tile(
                        "data wait" if part is Part.DATA_WAIT else words.title_of(part, words.PARTS),
                        percent(value / whole),
                        f"of main-thread time, {analysed}{caveat}",
                        words.exactly(value),
                    )
                )
    if summary.waiting is not None:
        found.append(
            Tile(
                "waiting",
                ms(summary.waiting),
                "for late ranks at collectives, summed over "
                f"{view.ranks(summary.late.rests_on_ranks or summary.analysed_ranks)}",
                words.exactly(summary.waiting),
            )
        )
    if not view.single:
        common, asked = summary.common_window, summary.capture.asked_window
        found.append(
            Tile(
                "common window",
                "none" if common is None or common <= 0 else ms(common),
                f"shared by {count(summary.analysed_ranks, 'rank')}" + (f"; {ms(asked)} asked for" if asked else ""),
                words.exactly(common) if common is not None else "",
            )
        )
    return Tiles(tuple(found))
