"""What else a person should know, each sentence with the place on the page that proves it."""

from __future__ import annotations

from collections.abc import Iterator

from sameshot.analysis.job import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Finding,
    Link,
)
from sameshot.analysis.report.view import View
from sameshot.analysis.text import count, ms, percent

_SIGNIFICANT = 0.05  # of the window: a share below this is no finding
_UNEVEN = 0.2  # above the median


def findings(view: View) -> tuple[Finding, ...]:
    """The sentences of the summary with the place that proves each, then what the measures say beyond them.

    The verdict and the missing ranks stand above already.
    """
    summary = view.summary
    said = {_plain(view.summary.findings[0])} if summary.missing and summary.findings else set[str]()
    for rank in summary.late.ranks:
        said.add(_plain(rank.sentence))
    found = [
        _linked(view, sentence)
        for sentence in summary.findings
        if not any(_plain(sentence).startswith(known) for known in said)
        and not _is_verdict(sentence)
        and not sentence.startswith(_MEASURED)
    ]
    text = " ".join(summary.findings)
    found += [item for item in _measured(view) if item.text.rstrip(".") not in text]
    order = {"bad": 0, "warn": 1, "good": 2, "": 3}
    return tuple(sorted(found, key=lambda item: order[item.grade]))


def _plain(sentence: str) -> str:
    return sentence.rstrip(".").lower()


_MEASURED = ("data-bound", "host-bound", "slow link")
"""What these sentences of the summary say, `_measured` says with the place that proves it."""


def _is_verdict(sentence: str) -> bool:
    return sentence.startswith(("no rank is late", "which rank is late can't be said"))


_PROOFS: tuple[tuple[str, str, str], ...] = (
    ("a step takes", "step times", "steps"),
    ("main threads", "parts", "main-threads"),
    ("GPUs", "GPU time", "gpus"),
)


def _linked(view: View, sentence: str) -> Finding:
    links = tuple(Link(text, target) for start, text, target in _PROOFS if sentence.startswith(start))
    return Finding("", words.capitalised(sentence).rstrip(".") + ".", "", links)


def _measured(view: View) -> list[Finding]:
    """What the measures say that no sentence of the summary does."""
    return [*_slow_links(view), *_data(view), *_host(view), *_pauses(view), *_uneven(view)]


def _slow_links(view: View) -> Iterator[Finding]:
    for link in view.summary.slow_links[:3]:
        yield Finding(
            "bad",
            f"{words.capitalised(link.sentence).rstrip('.')}.",
            count(len(link.labels), "rank"),
            (Link("slow links", "slow-links", link.group),),
        )


def _data(view: View) -> Iterator[Finding]:
    bound = [(rank, wait) for rank in view.summary.ranks if (wait := rank.data_wait) is not None and wait.bound]
    if not bound or view.single:  # of a single rank it is the verdict
        return
    rank, wait = max(bound, key=lambda pair: pair[1].share)
    sentence = words.capitalised(wait.sentence.rstrip("."))
    are = "is" if len(bound) == 1 else "are"
    others = f"{len(bound)} of {count(view.summary.analysed_ranks, 'rank')} {are} data-bound"
    yield Finding(
        "warn",
        f"{sentence} ({rank.label}; {others}). {DATA_WAIT_CAVEAT}",
        f"{wait.fetches} fetch{'' if wait.fetches == 1 else 'es'}",
        (Link("data wait", "data-waits", rank.label),),
    )


def _host(view: View) -> Iterator[Finding]:
    hosts = [
        (rank, host)
        for rank in view.summary.ranks
        if (host := rank.host_bound) is not None and host.share >= _SIGNIFICANT
    ]
    if not hosts:
        return
    rank, host = max(hosts, key=lambda pair: pair[1].share)
    inside = f", mostly in {host.operators[0].name}" if host.operators else ""
    yield Finding(
        "warn",
        f"GPUs wait for the thread that launches: {percent(host.share)} of the window on {rank.label}{inside}.",
        f"{count(host.gaps, 'gap')}, {view.ranks(len(hosts))}",
        (Link("host-bound", "host-bound", rank.label),),
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
