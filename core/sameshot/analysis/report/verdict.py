"""The answer: which rank makes how many others wait how long, in what, and why; or that nothing was found."""

from __future__ import annotations

from sameshot.analysis.job.cautions import DATA_WAIT_CAVEAT
from sameshot.analysis.job.findings import mostly
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import BarRow, Bars, Link, Piece
from sameshot.analysis.report.blocks import Verdict as VerdictBlock
from sameshot.analysis.report.view import View
from sameshot.analysis.results import LateRank, Part, Verdict
from sameshot.analysis.text import count, ms, percent
from sameshot.analysis.waiting.cause import because

_GRADE = {Verdict.LATE: "bad", Verdict.NONE: "good", Verdict.UNKNOWN: "open"}
_VISIBLE = 50_000  # ns per step: less is no bar
_LARGE = 0.2  # of one rank's window


def title(view: View) -> str:
    """The verdict in a few words."""
    found = view.summary.late
    if found.verdict is Verdict.NONE:
        return "No rank is late"
    if view.summary.analysed_ranks < 2:
        return _alone(view)[0]
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
    alone = summary.analysed_ranks < 2
    if alone:
        paragraphs, grade = _alone(view)[1], _alone(view)[2]
    else:
        paragraphs, grade = [_sentence(view, rank) for rank in found.ranks[:8]] or [found.reason], _GRADE[found.verdict]
    if len(found.ranks) > 8:
        paragraphs.append(f"{len(found.ranks) - 8} more late ranks are in the tables below.")
    paragraphs += _cost(view)
    charts = [chart for rank in found.ranks[:3] for chart in (_excess(rank), _lost(rank)) if chart is not None]
    basis = ""
    if found.rests_on_steps or found.rests_on_collectives:
        units = "matched step" if summary.step_ranks else "matched synchronisation"
        basis = (
            f"{found.reason} " * bool(found.ranks) + f"Rests on {view.ranks(found.rests_on_ranks)}, "
            f"{count(found.rests_on_steps, units)} and {count(found.rests_on_collectives, 'matched collective')}."
        )
    elif alone:
        basis = found.reason
    return VerdictBlock(
        grade,
        title(view),
        tuple(paragraphs),
        pill=f"confidence {found.ranks[0].confidence.value}" if found.ranks else "",
        basis=basis,
        links=tuple(_proof(view, found.ranks[0].label if found.ranks else "")),
        blocks=tuple(charts),
    )


def _alone(view: View) -> tuple[str, list[str], str]:
    """Of a single rank: what its GPU waits for, if that is much. Title, paragraphs, grade."""
    for rank in view.summary.ranks:
        if (wait := rank.data_wait) is not None and wait.bound:
            who = "The GPU waits for data" if rank.device is not None else "The step waits for data"
            return who, [words.capitalised(wait.sentence).rstrip(".") + f". {DATA_WAIT_CAVEAT}"], "bad"
        if (host := rank.host_bound) is not None and host.share >= _LARGE:
            inside = mostly(host.operators, host.total)
            waits = f"For {percent(host.share)} of the window it waits for the thread that launches its work{inside}."
            return "The GPU waits for its host", [waits], "bad"
    return "One rank, nothing to compare", ["Nothing that this rank's hardware waits for stands out."], "open"


def _sentence(view: View, rank: LateRank) -> str:
    """The sentence below the title, without what the title says already."""
    sentence = rank.sentence.partition(": ")[2] if len(view.summary.late.ranks) == 1 else rank.sentence
    why = because(rank)
    text = words.capitalised((sentence or rank.sentence).rstrip("."))
    if rank.node and rank.node not in text and rank.node not in rank.label:
        text = f"{words.capitalised(rank.label)} on {rank.node}: {text[:1].lower()}{text[1:]}"
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
    where = next((rank.collective for rank in summary.late.ranks if rank.collective), None)
    inside = f", most of it in {where}" if where else ""
    share = percent(min(caused / summary.waiting, 1.0))
    summed = f"In the whole window, waiting for {who} cost {ms(caused)}, summed over the ranks that waited"
    return [f"{summed}: {share} of all waiting{inside}."]


def _proof(view: View, label: str) -> list[Link]:
    summary, found = view.summary, list[Link]()
    if summary.analysed_ranks < 2:
        if any(rank.data_wait for rank in summary.ranks):
            found.append(Link("data wait", "data-waits"))
        if any(rank.host_bound for rank in summary.ranks):
            found.append(Link("host-bound", "host-bound"))
    if any(rank.timeline for rank in summary.ranks):
        found.append(Link("timeline", "timeline"))
    if any(rank.waited is not None for rank in summary.ranks) or summary.stragglers:
        found.append(Link("waiting by rank", "waits", label))
    if summary.moments:
        found.append(Link("event by event", "moments", label if any(m.last == label for m in summary.moments) else ""))
    if summary.analysed_ranks > 1 and summary.collectives:
        found.append(Link("collectives", "collectives"))
    if summary.alignments:
        found.append(Link("matching", "alignments", label if any(a.label == label for a in summary.alignments) else ""))
    return found


def _excess(rank: LateRank) -> Bars | None:
    """What the late rank's main thread did more of than its peers', per step."""
    if rank.excess is None:
        return None
    amounts = [(str(part), words.title_of(part, words.PARTS), rank.excess.get(part)) for part in Part]
    return _more(rank, "excess", f"{words.capitalised(rank.label)}'s main thread per step, against the median of the "
                 "others", amounts)  # fmt: skip


def _lost(rank: LateRank) -> Bars | None:
    """The same of its device."""
    if (lost := rank.lost) is None:
        return None
    amounts = [
        ("compute", "computing", lost.compute),
        ("host", "waiting for the host", lost.host),
        ("data_wait", "waiting for data", lost.data_wait),
        ("other_group", "in another group", lost.other_group),
    ]
    return _more(rank, "lost", f"{words.capitalised(rank.label)}'s GPU per step, against its punctual peers", amounts)


def _more(rank: LateRank, ident: str, about: str, amounts: list[tuple[str, str, int]]) -> Bars | None:
    more = sorted((a for a in amounts if a[2] >= _VISIBLE), key=lambda a: -a[2])
    less = [f"{ms(-ns)} less {what}" for _, what, ns in amounts if ns <= -_VISIBLE]
    if not more:
        return None
    cause = f" Likely cause: {words.title_of(rank.cause, words.CAUSES)}." if rank.cause != "unknown" else ""
    return Bars(
        f"{ident}-{rank.rank if rank.rank is not None else 'x'}",
        f"What {rank.label} does more of than the others, per step",
        tuple(
            BarRow(what, "", (Piece(css, ns / more[0][2], f"{what}: {ms(ns)} more per step"),), f"+{ms(ns)}")
            for css, what, ns in more
        ),
        note=about + (f" ({', '.join(less)})" if less else "") + f".{cause}",
        numbers=False,
    )
