"""What else a person should know, each sentence with the place on the page that proves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sameshot.analysis.job.cautions import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import FindingLine, Link
from sameshot.analysis.report.view import View
from sameshot.analysis.results import Finding, FindingKind
from sameshot.analysis.text import count, ms

_SIGNIFICANT = 0.05  # of the window: a share below this is no finding
_UNEVEN = 0.2  # above the median


def findings(view: View) -> tuple[FindingLine, ...]:
    """The findings of the summary with the place that proves each, then what the measures say beyond them.

    The verdict and the missing ranks stand above already; of a single rank, that it waits for data is the verdict.
    """
    above = {FindingKind.MISSING_RANKS, FindingKind.LATE_RANK, FindingKind.LATENESS}
    if view.single:
        above.add(FindingKind.DATA_WAIT)
    found = [_proven(view, finding) for finding in view.summary.findings if finding.kind not in above]
    order = {"bad": 0, "warn": 1, "good": 2, "": 3}
    return tuple(sorted((*found, *_pauses(view), *_uneven(view)), key=lambda item: order[item.grade]))


class _Proof(NamedTuple):
    """What a finding rests on, and where that is shown."""

    link: Link
    grade: str = ""
    basis: str = ""
    more: str = ""


def _proven(view: View, finding: Finding) -> FindingLine:
    prove = _PROOFS.get(finding.kind)
    text = words.capitalised(finding.sentence).rstrip(".") + "."
    if prove is None:
        return FindingLine("", text, "", ())
    proof = prove(view, finding)
    return FindingLine(proof.grade, f"{text} {proof.more}".rstrip(), proof.basis, (proof.link,))


def _slow_link(view: View, finding: Finding) -> _Proof:
    ranks = max((len(link.labels) for link in view.summary.slow_links if link.group == finding.about), default=0)
    return _Proof(Link("slow links", "slow-links", finding.about or ""), "bad", count(ranks, "rank"))


def _data_wait(view: View, finding: Finding) -> _Proof:
    fetches = sum(r.data_wait.fetches for r in view.summary.ranks if r.data_wait and r.label == finding.about)
    basis = f"{fetches} fetch{'' if fetches == 1 else 'es'} on {finding.about}"
    return _Proof(Link("data wait", "data-waits", finding.about or ""), "warn", basis, DATA_WAIT_CAVEAT)


def _host_bound(view: View, finding: Finding) -> _Proof:
    gaps = sum(rank.host_bound.gaps for rank in view.summary.ranks if rank.host_bound is not None)
    return _Proof(Link("host-bound", "host-bound"), "warn", count(gaps, "gap"))


_PROOFS: dict[FindingKind, Callable[[View, Finding], _Proof]] = {
    FindingKind.SLOW_LINK: _slow_link,
    FindingKind.DATA_WAIT: _data_wait,
    FindingKind.HOST_BOUND: _host_bound,
    FindingKind.COMMUNICATION: lambda view, finding: _Proof(Link("GPU time", "gpus")),
    FindingKind.STEP_TIME: lambda view, finding: _Proof(Link("step times", "steps")),
    FindingKind.MAIN_THREADS: lambda view, finding: _Proof(Link("parts", "main-threads")),
    FindingKind.GPUS: lambda view, finding: _Proof(Link("GPU time", "gpus")),
}


def _pauses(view: View) -> Iterator[FindingLine]:
    pauses = [
        (rank, pause)
        for rank in view.summary.ranks
        for pause in rank.pauses
        if pause.total >= _SIGNIFICANT * max(rank.window, 1)
    ]
    if not pauses:
        return
    rank, pause = max(pauses, key=lambda pair: pair[1].total)
    what = words.title_of(pause.kind, words.PAUSES)
    yield FindingLine(
        "warn",
        f"{words.capitalised(rank.label)} pauses for {what}: {ms(pause.total)} in {count(pause.count, 'pause')}, "
        f"the longest {ms(pause.longest)}.",
        f"event {pause.longest_event} of {rank.label}",
        (Link("pauses", "pauses", rank.label),),
    )


def _uneven(view: View) -> Iterator[FindingLine]:
    """Large differences in what ranks do. How long they communicate differs because they wait: that is no finding."""
    longest = max((rank.window for rank in view.summary.ranks), default=0)
    found = [
        row
        for row in view.summary.imbalance
        if (row.excess or 0) >= _UNEVEN and row.maximum - row.median >= _SIGNIFICANT * longest
        if row.label not in view.late and "communicat" not in row.measure
    ]
    for row in sorted(found, key=lambda row: row.median - row.maximum)[:2]:
        yield FindingLine(
            "",
            f"{words.capitalised(row.measure)} is uneven: {ms(row.maximum)} on {row.label}, the median is "
            f"{ms(row.median)}.",
            count(row.ranks, "rank"),
            (Link("imbalance", "imbalances"),),
        )
