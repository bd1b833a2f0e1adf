"""What a person should know first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sameshot.analysis.job.sums import merge_named
from sameshot.analysis.results import (
    Confidence,
    Finding,
    FindingKind,
    NamedTime,
    Part,
    Summary,
    Verdict,
)
from sameshot.analysis.text import count, ms, percent, some_of, uncapitalised
from sameshot.analysis.waiting.cause import because

_SIGNIFICANT = 0.1  # of all GPU time: less is no finding
_WORTH_NAMING = 0.005  # of a sum: a part below this is not listed
_MOST, _SOME = 0.5, 0.05  # of a sum, in one operator
_MOST_LINKS = 3

PART_WORDS: dict[Part, str] = {
    Part.OPERATORS: "in operators",
    Part.COMMUNICATION: "in communication",
    Part.DATA_WAIT: "waiting for data",
    Part.RUNTIME: "in CUDA calls",
    Part.BACKWARD_THREAD: "waiting for the backward thread",
    Part.UNTRACED: "untraced (Python, sleep or blocked)",
}


def findings(summary: Summary) -> list[Finding]:
    """What a person should know first, most important first; one short sentence each."""
    found = [*_missing(summary), *_lateness(summary), *_costs(summary), *_slow_links(summary), *_times(summary)]
    return [msgspec.structs.replace(one, sentence=one.sentence.rstrip(".")) for one in found]


def headline(summary: Summary) -> list[str]:
    """The lines that a terminal shows: findings first, then what to be careful about."""
    return [
        *(one.sentence for one in summary.findings),
        *(f"warning: {uncapitalised(warning)}" for warning in summary.warnings),
    ]


def _missing(summary: Summary) -> Iterator[Finding]:
    if summary.missing:
        names = some_of(
            [f"{name} ({m.reason})" for name, m in zip(summary.missing_ranks, summary.missing, strict=True)]
        )
        yield Finding(
            FindingKind.MISSING_RANKS,
            f"{len(summary.missing)} of {count(summary.expected_ranks, 'rank')} "
            f"{'has' if len(summary.missing) == 1 else 'have'} {summary.lacks}: {names}; "
            f"all numbers rest on the other {summary.analysed_ranks}",
        )


def _lateness(summary: Summary) -> Iterator[Finding]:
    late = summary.late
    for rank in late.ranks:
        why = because(rank)
        sentence = f"{rank.sentence}{'; ' + why if why else ''} (confidence {rank.confidence.value})"
        yield Finding(FindingKind.LATE_RANK, sentence, rank.label)
    if late.verdict is Verdict.NONE:
        yield Finding(FindingKind.LATENESS, f"no rank is late: {uncapitalised(late.reason)}")
    elif late.verdict is Verdict.UNKNOWN:
        yield Finding(FindingKind.LATENESS, f"which rank is late can't be said: {uncapitalised(late.reason)}")


def _times(summary: Summary) -> Iterator[Finding]:
    """Facts: how long a step takes, and where the time of main threads and of GPUs goes."""
    if (step := summary.step_time) is not None:
        spread = f"most between {ms(step.p10)} and {ms(step.p90)}; " if step.count >= 10 else ""
        yield Finding(
            FindingKind.STEP_TIME,
            f"a step takes {ms(step.median)} (median; {spread}{count(step.count, 'step')} on "
            f"{count(summary.step_ranks, 'rank')}{_doubt(summary)})",
        )
    if summary.parts.total:
        shares = ", ".join(
            f"{percent(summary.parts.get(part) / summary.parts.total)} {PART_WORDS[part]}"
            for part in Part
            if summary.parts.get(part) >= _WORTH_NAMING * summary.parts.total
        )
        rests = count(sum(rank.main_thread is not None for rank in summary.ranks), "rank")
        yield Finding(FindingKind.MAIN_THREADS, f"main threads: {shares} ({rests})")
    if (device := summary.device) is not None and device.total:
        copying = device.memory if device.memory >= _WORTH_NAMING * device.total else 0
        pieces = (
            ("computing", device.compute),
            ("only communicating", device.communication),
            ("only copying", copying),
            ("idle", device.idle),
        )
        shares = ", ".join(f"{percent(value / device.total)} {what}" for what, value in pieces if value)
        yield Finding(FindingKind.GPUS, f"GPUs: {shares} ({count(summary.device_ranks, 'rank')})")


def _doubt(summary: Summary) -> str:
    """How sure it is that these are steps, where it is not."""
    worst = min(
        (r.step_confidence for r in summary.ranks if r.step_count), key=lambda one: one.degree, default=Confidence.HIGH
    )
    return "" if worst is Confidence.HIGH else f"; inferred, confidence {worst.value}"


def mostly(operators: Sequence[NamedTime], total: int) -> str:
    """Which operator most of `total` was in, or how much of it was in the first one; nothing where that is little."""
    share = operators[0].self_time / total if operators and total else 0.0
    if share >= _MOST:
        return f", mostly in {operators[0].name}"
    return f", {percent(share)} of it in {operators[0].name}" if share >= _SOME else ""


def _costs(summary: Summary) -> list[Finding]:
    """What else costs time on many ranks, most expensive first. Each says how many ranks it rests on."""
    costs: list[tuple[int, Finding]] = []
    waits = [(rank, wait) for rank in summary.ranks if (wait := rank.data_wait) is not None]
    bound = [(rank, wait) for rank, wait in waits if wait.bound]
    if bound:
        rank, wait = max(bound, key=lambda pair: pair[1].share)
        felt = sum(wait.raw if wait.felt is None else wait.felt for _, wait in bound)
        some = f"{len(bound)} of {count(len(waits), 'rank')} {'is' if len(bound) == 1 else 'are'} data-bound"
        which = f" ({rank.label}; {some})" if len(waits) > 1 else ""
        sentence = f"{uncapitalised(wait.sentence).rstrip('.')}{which}"
        costs.append((felt, Finding(FindingKind.DATA_WAIT, sentence, rank.label)))
    device = summary.device
    if device is not None and device.total:
        hosts = [host for rank in summary.ranks if (host := rank.host_bound) is not None]
        total = sum(host.total for host in hosts)
        if total >= _SIGNIFICANT * device.total:
            inside = mostly(merge_named(host.operators for host in hosts), total)
            share = percent(total / device.total)
            rests = count(len(hosts), "rank")
            sentence = f"host-bound: GPUs wait {share} of the time for the thread that launches{inside} ({rests})"
            costs.append((total, Finding(FindingKind.HOST_BOUND, sentence)))
        if device.communication >= _SIGNIFICANT * device.total:
            share = percent(device.communication / device.total)
            waited = ""
            if summary.waiting_exposed:
                rests = count(sum(rank.waited is not None for rank in summary.ranks), "rank")
                waited = f"; of it, waiting for later ranks is {_gpu_time(summary.waiting_exposed)} ({rests} compared)"
            whole = f"{_gpu_time(device.communication)} on {count(summary.device_ranks, 'rank')}"
            sentence = f"exposed communication: {share} of GPU time, {whole}{waited}"
            costs.append((device.communication, Finding(FindingKind.COMMUNICATION, sentence)))
    return [finding for _, finding in sorted(costs, key=lambda item: -item[0])]


def _slow_links(summary: Summary) -> list[Finding]:
    return [Finding(FindingKind.SLOW_LINK, link.sentence, link.group) for link in summary.slow_links[:_MOST_LINKS]]


def _gpu_time(ns: int) -> str:
    """Summed over ranks: GPU-ms, GPU-s."""
    return f"{ms(ns).replace(' ', ' GPU-', 1)}"
