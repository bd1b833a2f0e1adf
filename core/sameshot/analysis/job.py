"""`reduce`: the summaries of all ranks and the manifest in, one job-wide `Summary` out. Pure."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

import sameshot
from sameshot.analysis import late
from sameshot.analysis.bandwidth import bandwidth, slow_links
from sameshot.analysis.cause import because
from sameshot.analysis.clocks import measure as measure_clocks
from sameshot.analysis.clocks import to_reference
from sameshot.analysis.hosts import host_of
from sameshot.analysis.imbalance import imbalance
from sameshot.analysis.late import Evidence
from sameshot.analysis.match import collective_rows, match_streams
from sameshot.analysis.moments import costliest
from sameshot.analysis.results import (
    CaptureInfo,
    Clocks,
    Confidence,
    DeviceTimes,
    MissingRank,
    NamedTime,
    Part,
    PartTimes,
    RankRow,
    RankSummary,
    Spread,
    StepMethod,
    Summary,
    Verdict,
)
from sameshot.analysis.stragglers import arrivals, exposed_waiting, stragglers, waiting, with_causes, with_waits
from sameshot.analysis.text import count, ms, percent
from sameshot.manifest import Manifest, Provenance, Target, timestamp
from sameshot.model import Artifact, Identity

_TOP = 20
_MOST_ROWS = 1_000
_NOTABLE = 64
_SIGNIFICANT = 0.1  # of all GPU time: less is no finding
_MOST, _SOME = 0.5, 0.05
_RANKING = [Confidence.NONE, Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH]
_MOST_LINKS = 3
_MOST_NAMES = 12
_ALL_DETAILS = 256  # of more ranks, tables per rank are kept for notable ones and some evenly spread ones
_ALL_TIMELINES = 1_024  # of more ranks, timelines as well
_DETAILS = "operators kernels untraced_python idle kernel_rows copies queues pauses communication"


def reduce_ranks(manifest: Manifest, summaries: list[RankSummary], *, location: str = "") -> Summary:
    """Compare the ranks of one capture.

    Ranks of the manifest for which no summary is given are missing; so are those that it lists as failed.
    `location` only says in the report where the manifest was read.
    """
    ranks = sorted(summaries, key=lambda s: (s.identity.rank is None, s.identity.rank or 0, s.target_id))
    targets = {target.target_id: target for target in manifest.targets}
    missing = _missing(manifest, {rank.target_id for rank in ranks})
    common = _common_window(ranks, None)
    # Windows that share no time by one clock share none; by the clocks of several hosts, collectives have to tell.
    several = len({host_of(rank) for rank in ranks}) > 1
    matched, alignments = match_streams(ranks) if common is not None and (common > 0 or several) else ([], [])
    clocks = measure_clocks(ranks, matched) if ranks else None
    common = _common_window(ranks, clocks)
    cross_rank = len(ranks) > 1 and common is not None and (common > 0 or bool(matched))
    expected = max(manifest.totals.expected, manifest.capture.world_size or 0)
    labels = _labels(ranks)
    came = arrivals(ranks, matched, expected)
    evidence = late.gather(ranks, came)
    verdict = late.judge(ranks, evidence, cross_rank=cross_rank, common=common)
    blamed = with_causes(stragglers(ranks, came, labels), verdict.ranks)
    rates = bandwidth(ranks, came)
    uneven = imbalance(ranks, labels)
    notable = {*(r.label for r in verdict.ranks), *(b.label for b in blamed[:_NOTABLE]), *(u.label for u in uneven)}
    rows = _rows(ranks, targets, labels, evidence, notable, _begins(ranks, clocks))
    devices = [rank.device for rank in ranks if rank.device is not None]
    summary = Summary(
        generator=f"sameshot {sameshot.__version__}",
        generated_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        capture=_capture(manifest, location),
        expected_ranks=expected,
        analysed_ranks=len(ranks),
        missing=missing,
        warnings=tuple(_warnings(manifest, ranks, targets, common)),
        findings=(),
        common_window=common,
        cross_rank=cross_rank,
        late=verdict,
        step_time=_spread(np.concatenate([np.diff(r.steps.edges) for r in ranks if r.steps.count]).tolist())
        if any(r.steps.count for r in ranks)
        else None,
        step_ranks=sum(r.steps.count > 0 for r in ranks),
        parts=_sum_parts(rank.parts for rank in ranks),
        device=_sum_devices(devices),
        device_ranks=len(devices),
        ranks=tuple(rows),
        operators=_merge_named(rank.operators for rank in ranks),
        kernels=_merge_named(rank.kernels for rank in ranks),
        collectives=tuple(with_waits(collective_rows(ranks, matched), came, labels)),
        alignments=tuple(alignments),
        notes=tuple(_notes(ranks)),
        clocks=clocks,
        stragglers=tuple(blamed),
        waiting=waiting(came),
        waiting_exposed=exposed_waiting(came),
        bandwidth=tuple(rates[:_MOST_ROWS]),
        slow_links=tuple(slow_links(ranks, came, rates, labels)),
        imbalance=tuple(uneven),
        groups=tuple({group.key: group for rank in ranks for group in rank.groups}.values()),
        moments=tuple(costliest(ranks, came, labels)),
    )
    return msgspec.structs.replace(summary, findings=tuple(findings(summary)))


def findings(summary: Summary) -> list[str]:
    """What a person should know first, most important first; one short sentence each."""
    found = []
    if summary.missing:
        names = _listed(
            [f"{name} ({m.reason})" for name, m in zip(summary.missing_ranks, summary.missing, strict=True)]
        )
        found.append(
            f"{len(summary.missing)} of {count(summary.expected_ranks, 'rank')} "
            f"{'has' if len(summary.missing) == 1 else 'have'} no verified trace: {names}; "
            f"all numbers rest on the other {summary.analysed_ranks}"
        )
    found += [_late_sentence(summary, index) for index in range(len(summary.late.ranks))]
    if summary.late.verdict is Verdict.NONE:
        found.append(f"no rank is late: {_uncapitalised(summary.late.reason)}")
    elif summary.late.verdict is Verdict.UNKNOWN:
        found.append(f"which rank is late can't be said: {_uncapitalised(summary.late.reason)}")
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
        costs.append((felt, f"{_uncapitalised(wait.sentence).rstrip('.')}{which}"))
    device = summary.device
    if device is not None and device.total:
        hosts = [host for rank in summary.ranks if (host := rank.host_bound) is not None]
        total = sum(host.total for host in hosts)
        if total >= _SIGNIFICANT * device.total:
            inside = mostly(_merge_named(host.operators for host in hosts), total)
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
    return [*summary.findings, *(f"warning: {_uncapitalised(warning)}" for warning in summary.warnings)]


DATA_WAIT_CAVEAT = "Waiting for data says nothing about whether the batch size is already at its ceiling."

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


def _uncapitalised(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _capture(manifest: Manifest, location: str) -> CaptureInfo:
    capture = manifest.capture
    captured = capture.provenance is Provenance.CAPTURED
    return CaptureInfo(
        capture_id=capture.capture_id,
        manifest=location,
        manifest_sha256=manifest.sha256,
        provenance=capture.provenance.value,
        namespace=capture.job.namespace,
        job=capture.job.name,
        job_uid=capture.job.uid,
        attempt=capture.job.attempt,
        series=capture.job.series,
        outcome=capture.outcome.value,
        world_size=capture.world_size,
        asked_window=None if capture.spec is None or not captured else capture.spec.duration_ms * 1_000_000,
        frozen_at=capture.frozen_at,
    )


def _missing(manifest: Manifest, analysed: set[str]) -> tuple[MissingRank, ...]:
    """Failed targets, archived ones that were not analysed, and ranks of the world that no target stands for."""
    found = []
    for target in manifest.targets:
        if target.target_id in analysed:
            continue
        failure = target.failure
        found.append(
            MissingRank(
                rank=target.identity.rank,
                target_id=target.target_id,
                where=where(target.identity),
                reason=failure.reason.value if failure is not None else "NOT_ANALYSED",
                detail=failure.detail if failure is not None else "Its trace is in the manifest but was not analysed.",
            )
        )
    named = {target.identity.rank for target in manifest.targets}
    found += [
        MissingRank(
            rank=rank,
            target_id=f"rank/{rank}",
            where="",
            reason="NOT_IN_MANIFEST",
            detail="The job's world size includes this rank, but the manifest has no target for it.",
        )
        for rank in range(manifest.capture.world_size or 0)
        if rank not in named
    ]
    return tuple(sorted(found, key=lambda m: (m.rank is None, m.rank or 0, m.target_id)))


def where(identity: Identity) -> str:
    """Pod and node as far as they are known."""
    if identity.pod and identity.node:
        return f"{identity.pod} on {identity.node}"
    return identity.pod or identity.node or ""


def _begins(ranks: Sequence[RankSummary], clocks: Clocks | None) -> list[int]:
    """When each window began: by the reference clock if all hosts could be aligned with it, else by their own."""
    of_host = {clock.host: clock for clock in clocks.hosts} if clocks is not None else {}
    aligned = [
        None if (clock := of_host.get(host_of(rank))) is None else to_reference(clock, rank.window_start_ns)
        for rank in ranks
    ]
    if any(begin is None for begin in aligned):
        return [rank.window_start_ns for rank in ranks]
    return [begin for begin in aligned if begin is not None]


def _common_window(ranks: Sequence[RankSummary], clocks: Clocks | None) -> int | None:
    """Time that all analysed windows share, by aligned clocks as far as there are any; negative: the gap between
    them."""
    if not ranks:
        return None
    begins = _begins(ranks, clocks)
    return min(begin + rank.window for begin, rank in zip(begins, ranks, strict=True)) - max(begins)


def _warnings(
    manifest: Manifest, ranks: Sequence[RankSummary], targets: dict[str, Target], common: int | None
) -> Iterable[str]:
    spec = manifest.capture.spec if manifest.capture.provenance is Provenance.CAPTURED else None
    asked = spec.duration_ms * 1_000_000 if spec is not None else 0
    window = asked or int(np.median([rank.window for rank in ranks] or [0]))
    if len(ranks) > 1 and common is not None:
        if common <= 0:
            yield (
                f"The windows of these {count(len(ranks), 'rank')} share no time (by their clocks {ms(-common)} lie "
                "between them): ranks are not compared with each other."
            )
        elif 2 * common < window:
            yield (
                f"All {count(len(ranks), 'rank')} share only {ms(common)} of a {ms(window)} window: "
                "comparisons between ranks rest on little."
            )
    tardy = [r.label for r in ranks if (a := _artifact(targets, r)) is not None and a.late_start]
    if tardy:
        yield f"The offered start could not be met on {_listed(tardy)}: {_its(tardy)} window began late."
    doubles = [
        f"rank {rank}" for rank, n in Counter(r.identity.rank for r in ranks).items() if n > 1 and rank is not None
    ]
    if doubles:
        yield f"More than one trace claims {_listed(doubles)}; each is shown under its target's name as well."
    unknown: Counter[str] = Counter()
    for rank in ranks:
        unknown.update(rank.trace.unknown_categories)
    if unknown:
        listed = ", ".join(f"{name!r} ({times})" for name, times in unknown.most_common(8))
        yield f"Events of unknown categories were counted but not interpreted: {listed}."
    if ranks and not any(rank.steps.count for rank in ranks):
        yield f"No training steps could be recognised: {_uncapitalised(ranks[0].steps.note)}"


def _listed(names: Sequence[str]) -> str:
    """A few names, or the first of many and how many more there are."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"


def _its(names: Sequence[str]) -> str:
    return "its" if len(names) == 1 else "their"


def _artifact(targets: dict[str, Target], rank: RankSummary) -> Artifact | None:
    target = targets.get(rank.target_id)
    return None if target is None else target.artifact


def _notes(ranks: Sequence[RankSummary]) -> Iterable[str]:
    if any(rank.steps.method is StepMethod.OPTIMIZER for rank in ranks):
        yield (
            "A wall-clock window has no ProfilerStep marks, because nobody calls profiler.step(): steps are inferred "
            "from the ends of Optimizer.step."
        )
    notes: defaultdict[str, list[str]] = defaultdict(list)
    for rank in ranks:
        if rank.steps.method in (StepMethod.UNKNOWN, StepMethod.REPEATING) or "(" in rank.steps.note:
            notes[rank.steps.note].append(rank.label)
        for oddity, times in rank.trace.oddities.items():
            notes[f"Strange values in the trace: {oddity} ({times})."].append(rank.label)
        for stream in rank.streams:
            if stream.left_out:
                notes[
                    f"{stream.left_out} collective(s) of {stream.key} were still running when the recording ended (or "
                    "were too many) and are left out."
                ].append(rank.label)
    for note, labels in notes.items():
        yield f"{_listed(labels)}: {note}"
    if len(ranks) > _ALL_DETAILS:
        without = "tables" if len(ranks) <= _ALL_TIMELINES else "tables and timelines"
        yield (
            f"Of {len(ranks)} ranks, {without} are kept here only for those that stand out and for {_NOTABLE} evenly "
            "spread ones; sums rest on all."
        )
    if ranks and not any(rank.device is not None for rank in ranks):
        yield "No GPU activity was recorded: the breakdown is of main threads."
    untraced = "Untraced time has no event but those of Python: Python code, sleeping or blocking calls."
    if not any("python_function" in rank.trace.by_category for rank in ranks):
        untraced = (
            "Untraced time has no event: Python code, sleeping or blocking calls. Record Python stacks to see what "
            "runs there."
        )
    yield untraced
    yield DATA_WAIT_CAVEAT


def _labels(ranks: Sequence[RankSummary]) -> list[str]:
    """What each rank is called; a rank that two traces claim, by its target as well."""
    doubles = {label for label, times in Counter(rank.label for rank in ranks).items() if times > 1}
    return [f"{rank.label} {rank.target_id}" if rank.label in doubles else rank.label for rank in ranks]


def _rows(
    ranks: Sequence[RankSummary],
    targets: dict[str, Target],
    labels: Sequence[str],
    evidence: Sequence[Evidence],
    notable: set[str],
    begins: Sequence[int],
) -> list[RankRow]:
    first = min(begins, default=0)
    waited: Counter[int] = Counter()
    last: Counter[int] = Counter()
    lateness: dict[int, int] = {}
    for one in evidence:  # the widest group comes first: that is the one in which lateness is stated
        middle = np.median(one.lateness, axis=1).tolist() if one.lateness.shape[1] else None
        columns = zip(one.ranks, one.total_wait.tolist(), one.last.tolist(), strict=True)
        for place, (index, total, times) in enumerate(columns):
            waited[index] += total
            last[index] += times
            if middle is not None:
                lateness.setdefault(index, int(middle[place]))
    rows = []
    for index, (rank, label) in enumerate(zip(ranks, labels, strict=True)):
        artifact = _artifact(targets, rank)
        row = RankRow(
            label=label,
            rank=rank.identity.rank,
            target_id=rank.target_id,
            node=rank.identity.node,
            pod=rank.identity.pod,
            window=rank.window,
            window_start_at=timestamp(rank.window_start_ns),
            starts_after=begins[index] - first,
            late_start=artifact is not None and artifact.late_start,
            main_thread=rank.main_thread,
            parts=rank.parts,
            device=rank.device,
            step_count=rank.steps.count,
            step_method=rank.steps.method,
            step_confidence=rank.steps.confidence,
            step_note=rank.steps.note,
            step_time=_spread(np.diff(rank.steps.edges).tolist()) if rank.steps.count else None,
            step_parts=_median_parts(rank.steps.parts),
            collectives=sum(len(stream.dur) for stream in rank.streams),
            waited=waited.get(index),
            last_arrivals=last.get(index),
            lateness_per_step=lateness.get(index),
            operators=rank.operators,
            kernels=rank.kernels,
            untraced_python=rank.untraced_python,
            timeline=rank.timeline,
            trace=rank.trace,
            launches=rank.launches,
            host_bound=rank.host_bound,
            data_wait=rank.data_wait,
            device_timeline=rank.device_timeline,
            step_edges=rank.steps.edges,
            idle=rank.idle,
            kernel_rows=rank.kernel_rows,
            copies=rank.copies,
            queues=rank.queues,
            pauses=rank.pauses,
            communication=rank.communication,
        )
        spaced = index % -(-len(ranks) // _NOTABLE) == 0
        if len(ranks) > _ALL_DETAILS and label not in notable and not spaced:
            row = msgspec.structs.replace(row, **dict.fromkeys(_DETAILS.split(), ()))
        if len(ranks) > _ALL_TIMELINES and label not in notable and not spaced:
            row = msgspec.structs.replace(row, timeline=None, device_timeline=None, step_edges=())
        rows.append(row)
    return rows


def _spread(values: Sequence[int]) -> Spread | None:
    if not values:
        return None
    p10, median, p90 = (int(v) for v in np.percentile(values, (10, 50, 90)))
    return Spread(count=len(values), median=median, p10=p10, p90=p90, minimum=min(values), maximum=max(values))


def _median_parts(steps: Sequence[PartTimes]) -> PartTimes | None:
    if not steps:
        return None
    return PartTimes(**{part.value: int(np.median([step.get(part) for step in steps])) for part in Part})


def _sum_parts(all_parts: Iterable[PartTimes]) -> PartTimes:
    sums: Counter[str] = Counter()
    for parts in all_parts:
        sums.update({part.value: parts.get(part) for part in Part})
    return PartTimes(**sums)


def _sum_devices(devices: Sequence[DeviceTimes]) -> DeviceTimes | None:
    if not devices:
        return None
    return DeviceTimes(**{field: sum(getattr(d, field) for d in devices) for field in DeviceTimes.__struct_fields__})


def _merge_named(lists: Iterable[Sequence[NamedTime]]) -> tuple[NamedTime, ...]:
    """Sum equal names over ranks. Each rank gives its own top list, so rarer names may miss a rank's small share."""
    sums: dict[str, tuple[int, int, int]] = {}
    for named in lists:
        for item in named:
            times, total, mine = sums.get(item.name, (0, 0, 0))
            sums[item.name] = (times + item.count, total + item.total, mine + item.self_time)
    ranked = sorted(sums.items(), key=lambda pair: (-pair[1][2], pair[0]))
    return tuple(NamedTime(name, *times) for name, times in ranked[:_TOP])
