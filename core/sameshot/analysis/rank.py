"""`map`: one verified trace in, one small `RankSummary` out. Pure; nothing here knows about other ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.collect import Collective, Collector, Table
from sameshot.analysis.intervals import EMPTY, Ints, Spans, self_segments, union
from sameshot.analysis.measures import DeviceTimes, NamedTime
from sameshot.analysis.names import Cat
from sameshot.analysis.steps import Mark, infer_steps
from sameshot.analysis.summary import (
    Part,
    PartTimes,
    RankSummary,
    Steps,
    Stream,
    Timeline,
    TraceFacts,
)
from sameshot.model import Identity

_TOP = 20
_BUCKETS = 480
_LONGEST_STREAM = 20_000  # collectives kept per stream: the summary has to stay small


def summarise(
    events: Collector,
    *,
    target_id: str,
    identity: Identity,
    base_ns: int,
    window_ns: tuple[int, int],
    raw_size: int,
    raw_sha256: str,
) -> RankSummary:
    """Turn the collected columns of one trace into its summary.

    `base_ns` is the trace's base time (0: unknown). `window_ns` is what the verifier found (CLOCK_REALTIME): the same
    window as in the manifest, from the first to the last recorded event of any kind.
    """
    first, last = (moment - base_ns for moment in window_ns)
    main = _main_thread(events)
    spans = _part_spans(events, main, first, last)
    edges = np.asarray([first, last], dtype=np.int64)
    return RankSummary(
        target_id=target_id,
        identity=identity,
        window_start_ns=window_ns[0],
        window_end_ns=window_ns[1],
        trace=TraceFacts(
            events=events.events,
            by_category=dict(sorted(events.by_category.items())),
            unknown_categories=dict(sorted(events.unknown.items())),
            oddities=dict(sorted(events.oddities.items())),
            raw_size=raw_size,
            raw_sha256=raw_sha256,
        ),
        main_thread=None if main is None else "/".join(str(part) for part in events.lanes.values[main]),
        parts=_times(spans, edges)[0],
        device=_device(events, last - first),
        operators=_top_operators(events),
        kernels=_top_kernels(events),
        untraced_python=_python(events, main, spans[Part.UNTRACED]),
        steps=_steps(events, main, spans, first),
        streams=_streams(events, first),
        timeline=_timeline(spans, first, last),
    )


def _matching(events: Collector, *patterns: str) -> Ints:
    """Ids of the names that one of these predicates of `names` accepts."""
    return np.asarray(
        [i for i, name in enumerate(events.names.values) if any(_PREDICATES[p](name) for p in patterns)], dtype=np.int64
    )


_PREDICATES: dict[str, Callable[[str], bool]] = {
    "step": lambda name: bool(names.PROFILER_STEP.match(name) or names.OPTIMIZER_STEP.match(name)),
    "fetch": lambda name: bool(names.DATA_FETCH.match(name)),
    "communication": names.is_host_communication,
    "backward": lambda name: name.startswith(names.BACKWARD_PREFIX),
}


def _main_thread(events: Collector) -> int | None:
    """The thread that runs the training loop: it has the marks; else it is the process's first, else the busiest."""
    marks = _matching(events, "step", "fetch")
    votes: defaultdict[int, int] = defaultdict(int)
    busy: defaultdict[int, int] = defaultdict(int)
    for cat in (Cat.ANNOTATION, Cat.OPERATOR):
        table = events.tables[cat]
        lanes = table.lane
        for lane in lanes[np.isin(table.name, marks)].tolist():
            votes[lane] += 1
        for lane in np.unique(lanes).tolist():
            busy[lane] += table.spans(lanes == lane).total if cat is Cat.OPERATOR else 0
    if votes:
        return max(votes, key=lambda lane: (votes[lane], -lane))
    firsts = [lane for lane in busy if str(events.lanes.values[lane][0]) == str(events.lanes.values[lane][1])]
    return max(firsts or list(busy), key=lambda lane: (busy[lane], -lane), default=None)


def _part_spans(events: Collector, main: int | None, first: int, last: int) -> dict[Part, Spans]:
    """Give each moment of the window to one part. Earlier parts win: a fetch is data wait, whatever runs inside."""
    operators, annotations, runtime = (events.tables[c] for c in (Cat.OPERATOR, Cat.ANNOTATION, Cat.RUNTIME))
    fetch, step = _matching(events, "fetch"), _matching(events, "step")
    communication, backward = _matching(events, "communication"), _matching(events, "backward")

    def on_main(table: Table, keep: Ints | None = None, drop: Ints = EMPTY) -> Spans:
        mask = (table.lane == main) & ~np.isin(table.name, drop)
        return table.spans(mask if keep is None else mask & np.isin(table.name, keep))

    fetching = union((on_main(operators, fetch), on_main(annotations, fetch)))
    issuing = union((on_main(operators, communication), on_main(annotations, communication)))
    # Older traces record marks and fetches as operators: they wrap work, they are none.
    working = on_main(operators, drop=np.concatenate((fetch, step, communication)))
    elsewhere = operators.spans(np.isin(operators.lane, _lanes_of(operators, backward, main)))
    gloo = Spans.of(
        [c.start for c in events.collectives if c.source == "gloo"],
        [c.end for c in events.collectives if c.source == "gloo"],
    )
    free = Spans.single(first, last)
    spans: dict[Part, Spans] = {}

    def take(part: Part, covered: Spans) -> None:
        nonlocal free
        spans[part] = union((spans.get(part, Spans()), free & covered))
        free = free - covered

    take(Part.DATA_WAIT, fetching)
    take(Part.COMMUNICATION, issuing)
    take(Part.OPERATORS, working)
    take(Part.RUNTIME, on_main(runtime))
    take(Part.BACKWARD_THREAD, elsewhere)
    take(Part.COMMUNICATION, gloo)  # exposed: no operator runs on the main thread meanwhile
    spans[Part.UNTRACED] = free
    return spans


def _lanes_of(operators: Table, backward: Ints, main: int | None) -> Ints:
    lanes = np.unique(operators.lane[np.isin(operators.name, backward)])
    return lanes[lanes != main] if main is not None else EMPTY


def _times(spans: dict[Part, Spans], edges: Ints) -> list[PartTimes]:
    columns = {part.value: spans[part].within(edges).tolist() for part in Part}
    return [PartTimes(**{part: values[i] for part, values in columns.items()}) for i in range(len(edges) - 1)]


def _device(events: Collector, window: int) -> DeviceTimes | None:
    kernels, memory = events.tables[Cat.KERNEL], events.tables[Cat.MEMORY]
    if not len(kernels) and not len(memory):
        return None
    nccl = np.asarray([i for i, name in enumerate(events.names.values) if names.is_nccl_kernel(name)], dtype=np.int64)
    is_nccl = np.isin(kernels.name, nccl)
    compute, communication, copies = kernels.spans(~is_nccl), kernels.spans(is_nccl), memory.spans()
    busy = union((compute, communication, copies))
    return DeviceTimes(
        compute=compute.total,
        communication=(communication - compute).total,
        memory=(copies - union((compute, communication))).total,
        idle=window - busy.total,
        kernels=len(kernels),
        overlapped=(communication & compute).total,
    )


def _top_operators(events: Collector) -> tuple[NamedTime, ...]:
    """Operators of all threads by self time; marks that older traces record as operators are left out."""
    table = events.tables[Cat.OPERATOR]
    start, end, name, lane = table.start, table.end, table.name, table.lane
    wrappers = _matching(events, "step", "fetch")
    mine = np.zeros(len(start), dtype=np.int64)
    for thread in np.unique(lane).tolist():
        at = np.flatnonzero(lane == thread)
        owner, begin, finish = self_segments(start[at], end[at])
        np.add.at(mine, at[owner], finish - begin)
    keep = ~np.isin(name, wrappers)
    return _ranked(events, name[keep], (end - start)[keep], mine[keep])


def _top_kernels(events: Collector) -> tuple[NamedTime, ...]:
    table = events.tables[Cat.KERNEL]
    duration = table.end - table.start
    return _ranked(events, table.name, duration, duration)


def _ranked(events: Collector, name: Ints, total: Ints, mine: Ints) -> tuple[NamedTime, ...]:
    ids, where = np.unique(name, return_inverse=True)
    counts, totals, selves = np.bincount(where), np.zeros_like(ids), np.zeros_like(ids)
    np.add.at(totals, where, total)
    np.add.at(selves, where, mine)
    best = sorted(range(len(ids)), key=lambda i: (-int(selves[i]), -int(totals[i]), str(events.names.values[ids[i]])))
    return tuple(
        NamedTime(names.short(events.names.values[ids[i]]), int(counts[i]), int(totals[i]), int(selves[i]))
        for i in best[:_TOP]
    )


def _python(events: Collector, main: int | None, untraced: Spans) -> tuple[NamedTime, ...]:
    """Which Python functions the main thread was in while no operator ran (only where stacks were recorded)."""
    table = events.tables[Cat.PYTHON]
    if main is None or not len(table):
        return ()
    at = np.flatnonzero(table.lane == main)
    start, end, name = table.start[at], table.end[at], table.name[at]
    owner, begin, finish = self_segments(start, end)
    mine = np.zeros(len(at), dtype=np.int64)
    np.add.at(mine, owner, untraced.before(finish) - untraced.before(begin))
    keep = mine > 0
    return _ranked(events, name[keep], (end - start)[keep], mine[keep])[:5]


def _steps(events: Collector, main: int | None, spans: dict[Part, Spans], first: int) -> Steps:
    marks: list[Mark] = []
    step, backward = _matching(events, "step"), _matching(events, "backward")
    for cat in (Cat.ANNOTATION, Cat.OPERATOR):
        table = events.tables[cat]
        at = np.flatnonzero((table.lane == main) & np.isin(table.name, step))
        for start, end, name in zip(table.start[at].tolist(), table.end[at].tolist(), table.name[at], strict=True):
            marks.append((start, end, events.names.values[name]))
    table = events.tables[Cat.OPERATOR]
    found = infer_steps(marks, np.sort(table.start[np.isin(table.name, backward)]))
    if not found.edges:
        return found
    edges = np.asarray(found.edges, dtype=np.int64)
    return Steps(
        found.method,
        found.confidence,
        found.note,
        tuple((edges - first).tolist()),
        tuple(_times(spans, edges)),
    )


def _streams(events: Collector, first: int) -> tuple[Stream, ...]:
    """Sort communication into sequences whose order is the same on every rank: per group, else per GPU stream.

    Nothing in a trace links a gloo span to the operator that issued it, but gloo's threads take work from one queue in
    the order of issue, so all gloo spans together are ordered by their start.
    """
    collectives = events.collectives
    last = max((int(table.end.max()) for table in events.tables.values() if len(table)), default=first)
    by_key: defaultdict[tuple[str, str], list[Collective]] = defaultdict(list)
    unnamed = sorted({c.lane for c in collectives if c.source == "nccl" and c.group is None}, key=_stream_order)
    for collective in sorted(collectives, key=lambda c: (c.start, c.end)):
        if collective.group is not None:
            key = f"group {collective.group}"
        elif collective.source == "nccl":  # stream numbers differ between ranks, their order does not
            key = f"communication stream {unnamed.index(collective.lane)}"
        else:
            key = "gloo"
        by_key[collective.source, key].append(collective)
    return tuple(_stream(source, key, found, first, last) for (source, key), found in sorted(by_key.items()))


def _stream_order(lane: str) -> tuple[int, int | str]:
    return (0, int(lane)) if lane.lstrip("-").isdigit() else (1, lane)


def _stream(source: str, key: str, found: list[Collective], first: int, last: int) -> Stream:
    # A host span that ends last of all was cut off by the end of the recording; the GPU reports whole kernels only.
    kept = [c for c in found if source != "gloo" or c.end < last]
    left_out = len(found) - len(kept) + max(len(kept) - _LONGEST_STREAM, 0)
    kept = kept[:_LONGEST_STREAM]
    signatures: dict[str, int] = {}
    column = [signatures.setdefault(_signature(c), len(signatures)) for c in kept]
    sequence = tuple(c.seq for c in kept if c.seq is not None)
    return Stream(
        key=key,
        source=source,
        signatures=tuple(signatures),
        signature=tuple(column),
        start=tuple(c.start - first for c in kept),
        dur=tuple(c.end - c.start for c in kept),
        seq=sequence if len(sequence) == len(kept) and len(set(sequence)) == len(kept) else None,
        left_out=left_out,
    )


def _signature(collective: Collective) -> str:
    parts = [names.collective_kind(collective.name).value]
    if collective.nelems is not None:
        parts.append(str(collective.nelems))
    if collective.dtype is not None:
        parts.append(collective.dtype)
    return " ".join(parts)


def _timeline(spans: dict[Part, Spans], first: int, last: int) -> Timeline | None:
    if last - first < _BUCKETS:
        return None
    edges = np.linspace(first, last, _BUCKETS + 1).astype(np.int64)
    parts = list(Part)
    largest = np.argmax([spans[part].within(edges) for part in parts], axis=0).tolist()
    runs: list[tuple[Part, int]] = []
    for index in largest:
        if runs and runs[-1][0] is parts[index]:
            runs[-1] = (parts[index], runs[-1][1] + 1)
        else:
            runs.append((parts[index], 1))
    return Timeline(buckets=_BUCKETS, runs=tuple(runs))
