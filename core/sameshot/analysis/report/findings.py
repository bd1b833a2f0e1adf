"""What else a person should know, each sentence with the place on the page that proves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sameshot.analysis.job.cautions import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Finding,
    Link,
)
from sameshot.analysis.report.view import View
from sameshot.analysis.text import count, ms

_SIGNIFICANT = 0.05  # of the window: a share below this is no finding
_UNEVEN = 0.2  # above the median


def findings(view: View) -> tuple[Finding, ...]:
    """The sentences of the summary with the place that proves each, then what the measures say beyond them.

    The verdict and the missing ranks stand above already.
    """
    summary = view.summary
    said = {_plain(summary.findings[0])} if summary.missing and summary.findings else set[str]()
    for rank in summary.late.ranks:
        said.add(_plain(rank.sentence))
    found = [
        _linked(view, sentence)
        for sentence in summary.findings
        if not any(_plain(sentence).startswith(known) for known in said) and not _is_verdict(view, sentence)
    ]
    order = {"bad": 0, "warn": 1, "good": 2, "": 3}
    return tuple(sorted((*found, *_pauses(view), *_uneven(view)), key=lambda item: order[item.grade]))


def _plain(sentence: str) -> str:
    return sentence.rstrip(".").lower()


def _is_verdict(view: View, sentence: str) -> bool:
    """Of a single rank, that it waits for data is the verdict."""
    starts = ("no rank is late", "which rank is late can't be said")
    return sentence.startswith((*starts, "data-bound") if view.single else starts)


class _Proof(NamedTuple):
    """What a sentence that begins like this rests on."""

    grade: str
    basis: str
    links: tuple[Link, ...]
    more: str = ""


def _linked(view: View, sentence: str) -> Finding:
    """A sentence of the summary and what proves it, known by how it begins; an unknown one stands alone."""
    proof = _proof(view, sentence)
    text = words.capitalised(sentence).rstrip(".") + "."
    return Finding(proof.grade, f"{text} {proof.more}".rstrip(), proof.basis, proof.links)


def _proof(view: View, sentence: str) -> _Proof:
    summary = view.summary
    for link in summary.slow_links:
        if _plain(link.sentence) == _plain(sentence):
            return _Proof("bad", count(len(link.labels), "rank"), (Link("slow links", "slow-links", link.group),))
    bound = [(rank, wait) for rank in summary.ranks if (wait := rank.data_wait) is not None and wait.bound]
    if bound and _plain(sentence).startswith(_plain(max(bound, key=lambda pair: pair[1].share)[1].sentence)):
        rank, wait = max(bound, key=lambda pair: pair[1].share)
        fetches = f"{wait.fetches} fetch{'' if wait.fetches == 1 else 'es'} on {rank.label}"
        return _Proof("warn", fetches, (Link("data wait", "data-waits", rank.label),), DATA_WAIT_CAVEAT)
    if sentence.startswith("host-bound") and any(rank.host_bound for rank in summary.ranks):
        gaps = sum(rank.host_bound.gaps for rank in summary.ranks if rank.host_bound is not None)
        return _Proof("warn", count(gaps, "gap"), (Link("host-bound", "host-bound"),))
    for start, links in _PROOFS:
        if sentence.startswith(start):
            return _Proof("", "", links)
    return _Proof("", "", ())


_PROOFS: tuple[tuple[str, tuple[Link, ...]], ...] = (
    ("a step takes", (Link("step times", "steps"),)),
    ("main threads", (Link("parts", "main-threads"),)),
    ("exposed communication", (Link("GPU time", "gpus"),)),
    ("GPUs", (Link("GPU time", "gpus"),)),
)


def _pauses(view: View) -> Iterator[Finding]:
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
    yield Finding(
        "warn",
        f"{words.capitalised(rank.label)} pauses for {what}: {ms(pause.total)} in {count(pause.count, 'pause')}, "
        f"the longest {ms(pause.longest)}.",
        f"event {pause.longest_event} of {rank.label}",
        (Link("pauses", "pauses", rank.label),),
    )


def _uneven(view: View) -> Iterator[Finding]:
    """Large differences in what ranks do. How long they communicate differs because they wait: that is no finding."""
    longest = max((rank.window for rank in view.summary.ranks), default=0)
    found = [
        row
        for row in view.summary.imbalance
        if (row.excess or 0) >= _UNEVEN and row.maximum - row.median >= _SIGNIFICANT * longest
        if row.label not in view.late and "communicat" not in row.measure
    ]
    for row in sorted(found, key=lambda row: row.median - row.maximum)[:2]:
        yield Finding(
            "",
            f"{words.capitalised(row.measure)} is uneven: {ms(row.maximum)} on {row.label}, the median is "
            f"{ms(row.median)}.",
            count(row.ranks, "rank"),
            (Link("imbalance", "imbalances"),),
        )
