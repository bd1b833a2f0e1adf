"""What else a person should know, each sentence with the place on the page that proves it."""

from __future__ import annotations

from sameshot.analysis.job import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Finding,
    Link,
)
from sameshot.analysis.report.view import View
from sameshot.analysis.text import count, ms, percent

_SIGNIFICANT = 0.05  # of the window: a share below this is no finding


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
        if not any(_plain(sentence).startswith(known) for known in said) and not _is_verdict(sentence)
    ]
    text = " ".join(summary.findings)
    found += [item for item in _measured(view) if item.text.rstrip(".") not in text]
    order = {"bad": 0, "warn": 1, "good": 2, "": 3}
    return tuple(sorted(found, key=lambda item: order[item.grade]))


def _plain(sentence: str) -> str:
    return sentence.rstrip(".").lower()


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
    """What the measures say that no sentence of the summary does: slow links, data, host, pauses, imbalance."""
    summary = view.summary
    found = [
        Finding(
            "bad",
            f"{words.capitalised(link.sentence).rstrip('.')}.",
            count(len(link.labels), "rank"),
            (Link("slow links", "slow-links", link.group),),
        )
        for link in summary.slow_links[:3]
    ]
    bound = [(rank, wait) for rank in summary.ranks if (wait := rank.data_wait) is not None and wait.bound]
    if bound:
        rank, wait = max(bound, key=lambda pair: pair[1].share)
        found.append(
            Finding(
                "warn",
                words.capitalised(wait.sentence.rstrip("."))
                + (f" ({rank.label}; {view.ranks(len(bound))} are data-bound)." if not view.single else ".")
                + f" {DATA_WAIT_CAVEAT}",
                f"{wait.fetches} fetch{'' if wait.fetches == 1 else 'es'}",
                (Link("data wait", "data-waits", rank.label),),
            )
        )
    hosts = [
        (rank, host) for rank in summary.ranks if (host := rank.host_bound) is not None and host.share >= _SIGNIFICANT
    ]
    if hosts:
        rank, host = max(hosts, key=lambda pair: pair[1].share)
        inside = f", mostly in {host.operators[0].name}" if host.operators else ""
        found.append(
            Finding(
                "warn",
                f"GPUs wait for the thread that launches: {percent(host.share)} of the window on {rank.label}{inside}.",
                f"{count(host.gaps, 'gap')}, {view.ranks(len(hosts))}",
                (Link("host-bound", "host-bound", rank.label),),
            )
        )
    pauses = [(rank, p) for rank in summary.ranks for p in rank.pauses if p.total >= _SIGNIFICANT * max(rank.window, 1)]
    if pauses:
        rank, pause = max(pauses, key=lambda pair: pair[1].total)
        what = {"gc": "garbage collection"}.get(pause.kind, pause.kind)
        found.append(
            Finding(
                "warn",
                f"{words.capitalised(rank.label)} pauses for {what}: {ms(pause.total)} in "
                f"{count(pause.count, 'pause')}, the longest {ms(pause.longest)}.",
                f"event {pause.longest_event} of {rank.label}",
                (Link("pauses", "pauses", rank.label),),
            )
        )
    uneven = [row for row in summary.imbalance if (row.excess or 0) >= 0.2 and row.maximum]
    found += [
        Finding(
            "",
            f"{words.capitalised(row.label)} has the most {words.title_of(row.measure, {})}: {ms(row.maximum)}, "
            f"{percent(row.excess or 0)} above the median of {ms(row.median)}.",
            count(row.ranks, "rank"),
            (Link("imbalance", "imbalances"),),
        )
        for row in sorted(uneven, key=lambda r: -(r.excess or 0))[:2]
    ]
    return found
