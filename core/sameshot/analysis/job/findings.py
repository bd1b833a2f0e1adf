"""What a person should know first."""

from __future__ import annotations

from collections.abc import Sequence

from sameshot.analysis.job.sums import merge_named
from sameshot.analysis.job.words import some_of, uncapitalised
from sameshot.analysis.results import (
    Confidence,
    NamedTime,
    Part,
    Summary,
    Verdict,
)
from sameshot.analysis.text import count, ms, percent
from sameshot.analysis.waiting.cause import because

_SIGNIFICANT = 0.1  # of all GPU time: less is no finding
_MOST, _SOME = 0.5, 0.05
_RANKING = [Confidence.NONE, Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH]
_MOST_LINKS = 3


def findings(summary: Summary) -> list[str]:
    """What a person should know first, most important first; one short sentence each."""
    found = []
    if summary.missing:
        names = some_of(
            [f"{name} ({m.reason})" for name, m in zip(summary.missing_ranks, summary.missing, strict=True)]
        )
        found.append(
            f"{len(summary.missing)} of {count(summary.expected_ranks, 'rank')} "
            f"{'has' if len(summary.missing) == 1 else 'have'} no verified trace: {names}; "
            f"all numbers rest on the other {summary.analysed_ranks}"
        )
    found += [_late_sentence(summary, index) for index in range(len(summary.late.ranks))]
    if summary.late.verdict is Verdict.NONE:
        found.append(f"no rank is late: {uncapitalised(summary.late.reason)}")
    elif summary.late.verdict is Verdict.UNKNOWN:
        found.append(f"which rank is late can't be said: {uncapitalised(summary.late.reason)}")
    found += _costs(summary)
    if (step := summary.step_time) is not None:
        spread = f"most between {ms(step.p10)} and {ms(step.p90)}; " if step.count >= 10 else ""
        found.append(
            f"a step takes {ms(step.median)} (median; {spread}{count(step.count, 'step')} on "
            f"{count(summary.step_ranks, 'rank')}{_doubt(summary)})"
        )
    if summary.parts.total:
        shares = ", ".join(
            f"{percent(summary.parts.get(part) / summary.parts.total)} {PART_WORDS[part]}"
            for part in Part
            if summary.parts.get(part) >= 0.005 * summary.parts.total
        )
        found.append(f"main threads: {shares} ({count(summary.analysed_ranks, 'rank')})")
    if (device := summary.device) is not None and device.total:
        copying = device.memory if device.memory >= 0.005 * device.total else 0
        pieces = (
            ("computing", device.compute),
            ("only communicating", device.communication),
            ("only copying", copying),
            ("idle", device.idle),
        )
        shares = ", ".join(f"{percent(value / device.total)} {what}" for what, value in pieces if value)
        found.append(f"GPUs: {shares} ({count(summary.device_ranks, 'rank')})")
    return [sentence.rstrip(".") for sentence in found]


def _doubt(summary: Summary) -> str:
    """How sure it is that these are steps, where it is not."""
    worst = min((r.step_confidence for r in summary.ranks if r.step_count), key=_RANKING.index, default=Confidence.HIGH)
    return "" if worst is Confidence.HIGH else f"; inferred, confidence {worst.value}"


def mostly(operators: Sequence[NamedTime], total: int) -> str:
    """Which operator most of `total` was in, or how much of it was in the first one; nothing where that is little."""
    share = operators[0].self_time / total if operators and total else 0.0
    if share >= _MOST:
        return f", mostly in {operators[0].name}"
    return f", {percent(share)} of it in {operators[0].name}" if share >= _SOME else ""


def _costs(summary: Summary) -> list[str]:
    """What else costs time on many ranks, most expensive first. Each says how many ranks it rests on."""
    costs: list[tuple[int, str]] = []
    waits = [(rank, wait) for rank in summary.ranks if (wait := rank.data_wait) is not None]
    bound = [(rank, wait) for rank, wait in waits if wait.bound]
    if bound:
        rank, wait = max(bound, key=lambda pair: pair[1].share)
        felt = sum(wait.raw if wait.felt is None else wait.felt for _, wait in bound)
        some = f"{len(bound)} of {count(len(waits), 'rank')} {'is' if len(bound) == 1 else 'are'} data-bound"
        which = f" ({rank.label}; {some})" if len(waits) > 1 else ""
        costs.append((felt, f"{uncapitalised(wait.sentence).rstrip('.')}{which}"))
    device = summary.device
    if device is not None and device.total:
        hosts = [host for rank in summary.ranks if (host := rank.host_bound) is not None]
        total = sum(host.total for host in hosts)
        if total >= _SIGNIFICANT * device.total:
            inside = mostly(merge_named(host.operators for host in hosts), total)
            share = percent(total / device.total)
            rests = count(len(hosts), "rank")
            costs.append(
                (total, f"host-bound: GPUs wait {share} of the time for the thread that launches{inside} ({rests})")
            )
        if device.communication >= _SIGNIFICANT * device.total:
            share = percent(device.communication / device.total)
            waited = ""
            if summary.waiting_exposed:
                rests = count(sum(rank.waited is not None for rank in summary.ranks), "rank")
                waited = f"; of it, waiting for later ranks is {_gpu_time(summary.waiting_exposed)} ({rests} compared)"
            whole = f"{_gpu_time(device.communication)} on {count(summary.device_ranks, 'rank')}"
            costs.append((device.communication, f"exposed communication: {share} of GPU time, {whole}{waited}"))
    found = [sentence for _, sentence in sorted(costs, key=lambda item: -item[0])]
    return found + [link.sentence for link in summary.slow_links[:_MOST_LINKS]]


def _gpu_time(ns: int) -> str:
    """Summed over ranks: GPU-ms, GPU-s."""
    return f"{ms(ns).replace(' ', ' GPU-', 1)}"


def headline(summary: Summary) -> list[str]:
    """The lines that a terminal shows: findings first, then what to be careful about."""
    return [*summary.findings, *(f"warning: {uncapitalised(warning)}" for warning in summary.warnings)]


PART_WORDS: dict[Part, str] = {
    Part.OPERATORS: "in operators",
    Part.COMMUNICATION: "in communication",
    Part.DATA_WAIT: "waiting for data",
    Part.RUNTIME: "in CUDA calls",
    Part.BACKWARD_THREAD: "waiting for the backward thread",
    Part.UNTRACED: "untraced (Python, sleep or blocked)",
}


def _late_sentence(summary: Summary, index: int) -> str:
    rank = summary.late.ranks[index]
    why = because(rank)
    return f"{rank.sentence}{'; ' + why if why else ''} (confidence {rank.confidence.value})"
