"""Communication of one rank: process groups, time by kind and size, and the sequences that are matched across ranks.

Device communication is a kernel (NCCL, RCCL, …). What it carries stands on the kernel itself in newer traces; in others
only on the host event that issued it (`record_param_comms`, `nccl:*`), which is found by the external id that both
state, else as the innermost one around the launch call. A graph's replay has neither: its kernels belong to the group
of their GPU stream where all others of that stream belong to one (torch gives each group a stream of its own).

gloo's collectives are spans on worker threads that state neither group nor size.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.intervals import EMPTY, Ints, Spans, union
from sameshot.analysis.names import Cat, Collective
from sameshot.analysis.results import CommunicationRow, Group, Spread, Stream
from sameshot.trace.columns.chunk import MISSING

_LONGEST_STREAM = 20_000  # collectives kept per stream: the summary has to stay small
_NOWHERE = -1
_NESTING = 4  # c10d::… holds record_param_comms holds nccl:…; one that has ended may come before


class Traffic(NamedTuple):
    """What `measure` found; the fields of the same names in `RankSummary`."""

    groups: tuple[Group, ...]
    communication: tuple[CommunicationRow, ...]
    streams: tuple[Stream, ...]


class _Calls(NamedTuple):
    """Communication of one source as columns, sorted by start; texts are codes into the lists beside them."""

    source: str
    start: Ints
    end: Ints
    kind: Ints  # into list(Collective)
    uneven: Bools  # an all-to-all with split sizes
    group: Ints  # into `groups`
    dtype: Ints  # into `dtypes`; _NOWHERE: not stated
    nelems: Ints  # what `bytes` counts, in elements; MISSING
    stated: Ints  # elements as stated, the same on every rank; MISSING
    seq: Ints
    event: Ints  # index in traceEvents
    groups: list[Group]
    dtypes: list[str]


_KINDS = list(Collective)
_KIND_CODE = {kind: code for code, kind in enumerate(_KINDS)}
# Only of these is the recorded size the same on every rank, so that it helps to match.
_EQUAL_SIZES = np.isin(
    np.arange(len(_KINDS)),
    [
        _KIND_CODE[kind]
        for kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.BROADCAST, Collective.ALL_TO_ALL)
    ],
)


def measure(
    frame: Frame,
    *,
    window: tuple[int, int],
    fetching: Spans | None = None,
    working: Spans | None = None,
) -> Traffic:
    """Communication within `window` (ns of the frame).

    `fetching`: when the main thread waited for data. `working`: when operators ran on it (gloo's exposed time is what
    is left of its spans).
    """
    first, last = window
    nccl, gloo = _device_calls(frame), _gloo_calls(frame)
    kernels = frame.rows(Cat.KERNEL)
    compute = kernels[~frame.named(names.is_communication_kernel)[kernels.name]] if len(kernels) else kernels
    work = union((compute.spans, frame.rows(Cat.MEMORY).spans))
    groups: list[Group] = []
    rows: list[CommunicationRow] = []
    streams: list[Stream] = []
    for calls, other in ((gloo, working if working is not None else Spans()), (nccl, work)):
        if not len(calls.start):
            continue
        groups += [calls.groups[code] for code in np.unique(calls.group).tolist()]
        rows += _rows(calls, other)
        communicating = Spans.of(calls.start, calls.end)
        for code in np.unique(calls.group).tolist():
            at = np.flatnonzero(calls.group == code)
            stream, kept = _stream(calls, code, at, first, last)
            if calls.source != "gloo":
                stream = _with_gaps(stream, calls, kept, first, work, communicating, fetching)
            streams.append(stream)
    rows.sort(key=lambda row: (-row.total, row.group, row.kind.value, row.bytes or 0))
    streams.sort(key=lambda stream: (stream.source, stream.key))
    return Traffic(tuple(sorted(groups, key=lambda g: g.key)), tuple(rows), tuple(streams))


# ---- what was called


def _device_calls(frame: Frame) -> _Calls:
    kernels = frame.rows(Cat.KERNEL)
    rows = kernels[frame.named(names.is_communication_kernel)[kernels.name]] if len(kernels) else kernels
    message = _message_rows(frame, rows.event)
    issuers = np.full(len(rows), _NOWHERE, dtype=np.int64)  # codes of names
    rest = np.flatnonzero(message == _NOWHERE)
    if len(rest):
        calls = _HostCalls.of(frame)
        stated = calls.where(_message_rows(frame, calls.event) != _NOWHERE)
        issuer = _issued_by(frame, rows[rest], stated)
        message[rest] = _message_rows(frame, _pick(stated.event, issuer))
        issuer = _issued_by(frame, rows[rest], calls)
        issuers[rest] = _pick(calls.name, issuer)
    kind, uneven = _kinds(frame, rows, message, issuers)
    return _columns(frame, "nccl", rows, message, kind, uneven)


def _gloo_calls(frame: Frame) -> _Calls:
    """All gloo spans in order of start: its threads take work from one queue, in the order of issue."""
    annotations = frame.rows(Cat.ANNOTATION)
    rows = annotations[frame.named(names.is_gloo_span)[annotations.name]] if len(annotations) else annotations
    message = _message_rows(frame, rows.event)
    kind, uneven = _kinds(frame, rows, message, np.full(len(rows), _NOWHERE, dtype=np.int64))
    return _columns(frame, "gloo", rows, message, kind, uneven)


def _message_rows(frame: Frame, events: Ints) -> Ints:
    """For each event its row in `frame.messages`, or _NOWHERE."""
    known = frame.messages.event
    if not len(known) or not len(events):
        return np.full(len(events), _NOWHERE, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, events), len(known) - 1)
    return np.where(known[at] == events, at, _NOWHERE)


class _HostCalls(NamedTuple):
    """Host events that issue communication, of any kind of event."""

    start: Ints
    end: Ints
    lane: Ints
    event: Ints
    name: Ints
    external: Ints

    @classmethod
    def of(cls, frame: Frame) -> _HostCalls:
        parts = []
        for cat in (Cat.OPERATOR, Cat.ANNOTATION):
            rows = frame.rows(cat)
            if len(rows):
                rows = rows[frame.named(names.is_collective_call)[rows.name]]
                external = rows.external_id if len(rows.external_id) == len(rows) else np.full(len(rows), MISSING)
                parts.append((rows.start, rows.end, rows.lane, rows.event, rows.name, external))
        if not parts:
            return cls(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
        return cls(*(np.concatenate(columns).astype(np.int64) for columns in zip(*parts, strict=True)))

    def where(self, keep: Bools) -> _HostCalls:
        return _HostCalls(*(column[keep] for column in self))


def _issued_by(frame: Frame, kernels: Rows, calls: _HostCalls) -> Ints:
    """For each kernel which of the host's calls issued it, or _NOWHERE."""
    found = np.full(len(kernels), _NOWHERE, dtype=np.int64)
    if not len(kernels) or not len(calls.start):
        return found
    # Old traces write the correlation as a kernel's external id: those numbers mean nothing on the host.
    linked = (kernels.external_id > 0) & (kernels.external_id != kernels.correlation)
    at, same = _find(calls.external, kernels.external_id)
    found = np.where(linked & same, at, found)
    rest = np.flatnonzero(found == _NOWHERE)
    launches = frame.rows(Cat.RUNTIME)
    if not len(rest) or not len(launches):
        return found
    launches = launches[np.isin(launches.correlation, kernels.correlation[rest]) & (launches.correlation != MISSING)]
    if not len(launches):
        return found
    launch, has = _find(launches.correlation, kernels.correlation[rest])
    rest, launch = rest[has], launch[has]
    found[rest] = _innermost(calls, launches.start[launch], launches.lane[launch].astype(np.int64))
    return found


def _find(values: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Where each wanted value stands among `values`, and whether it does."""
    order = np.argsort(values, kind="stable")
    at = order[np.minimum(np.searchsorted(values[order], wanted), len(order) - 1)]
    return at, values[at] == wanted


def _pick(values: Ints, at: Ints) -> Ints:
    """The values at these places; nowhere stays nowhere."""
    return np.append(values, _NOWHERE)[at]


def _innermost(calls: _HostCalls, moment: Ints, lane: Ints) -> Ints:
    """The latest started call on the same lane that holds each moment; calls of one lane are nested or disjoint."""
    found = np.full(len(moment), _NOWHERE, dtype=np.int64)
    for one in np.unique(lane).tolist():
        at = np.flatnonzero(calls.lane == one)
        mine = np.flatnonzero(lane == one)
        if not len(at):
            continue
        at = at[np.argsort(calls.start[at], kind="stable")]
        before = np.searchsorted(calls.start[at], moment[mine], side="right") - 1
        for back in range(_NESTING):
            candidate = before - back
            call = at[np.maximum(candidate, 0)]
            holds = (candidate >= 0) & (calls.end[call] >= moment[mine]) & (found[mine] == _NOWHERE)
            found[mine[holds]] = call[holds]
    return found


def _kinds(frame: Frame, rows: Rows, message: Ints, issuers: Ints) -> tuple[Ints, Bools]:
    """Kind by the recorded name of the collective, else by the host's call, else by the span's own name."""
    kind = np.empty(len(rows), dtype=np.int64)
    uneven = np.zeros(len(rows), dtype=np.bool_)
    known: dict[tuple[str | None, str | None, str], tuple[int, bool]] = {}
    recorded = frame.messages.collective
    for index, (name, row, issuer) in enumerate(
        zip(rows.name.tolist(), message.tolist(), issuers.tolist(), strict=True)
    ):
        key = (
            recorded[row] if row != _NOWHERE else None,
            frame.names[issuer] if issuer != _NOWHERE else None,
            frame.names[name],
        )
        found = known.get(key)
        if found is None:
            kinds = (names.collective_kind(text) for text in key if text)
            chosen = next((k for k in kinds if k is not Collective.OTHER), Collective.OTHER)
            found = known[key] = (_KIND_CODE[chosen], key[0] is not None and names.has_uneven_parts(key[0]))
        kind[index], uneven[index] = found
    return kind, uneven


def _columns(frame: Frame, source: str, rows: Rows, message: Ints, kind: Ints, uneven: Bools) -> _Calls:
    messages = frame.messages
    stated = message != _NOWHERE

    def number(column: Ints) -> Ints:
        return np.where(stated, column[message], MISSING) if len(column) else np.full(len(rows), MISSING)

    in_nelems, out_nelems, size = (number(c) for c in (messages.in_nelems, messages.out_nelems, messages.group_size))
    gathered = np.where(
        out_nelems > 0, out_nelems, np.where((in_nelems > 0) & (size > 0), in_nelems * np.maximum(size, 1), MISSING)
    )
    is_gather = kind == _KIND_CODE[Collective.ALL_GATHER]
    groups, group = _groups(frame, source, rows, message)
    dtypes: dict[str, int] = {}
    dtype = [
        _NOWHERE if row == _NOWHERE or (text := messages.dtype[row]) is None else dtypes.setdefault(text, len(dtypes))
        for row in message.tolist()
    ]
    return _Calls(
        source=source,
        start=rows.start,
        end=rows.end,
        kind=kind,
        uneven=uneven,
        group=group,
        dtype=np.asarray(dtype, dtype=np.int64),
        nelems=np.where(is_gather, gathered, in_nelems),
        stated=np.where(is_gather, gathered, np.where(_EQUAL_SIZES[kind] & ~uneven, in_nelems, MISSING)),
        seq=number(messages.seq),
        event=rows.event,
        groups=groups,
        dtypes=list(dtypes),
    )


def _groups(frame: Frame, source: str, rows: Rows, message: Ints) -> tuple[list[Group], Ints]:
    """Groups as recorded, by name and ranks; what names none is kept apart by GPU stream."""
    messages = frame.messages
    groups: dict[str, int] = {}
    found: list[Group] = []
    code = np.full(len(rows), _NOWHERE, dtype=np.int64)
    seen: dict[tuple[str | None, str | None], int] = {}
    for index, row in enumerate(message.tolist()):
        if row == _NOWHERE or messages.group_name[row] is None:
            continue
        name, ranks = messages.group_name[row], messages.group_ranks[row]
        known = seen.get((name, ranks))
        if known is None:
            known = seen[name, ranks] = len(found)
            size = int(messages.group_size[row])
            key = f"group {name}" if ranks is None else f"group {name} {ranks}"
            groups[key] = known
            found.append(
                Group(key, name, ranks, messages.group_description[row], None if size in (MISSING, 0) else size)
            )
        code[index] = known
    nameless = np.unique(rows.lane[code == _NOWHERE]).tolist()
    alone = []
    for lane in nameless:
        here = rows.lane == lane
        named = np.unique(code[here & (code != _NOWHERE)])
        if source == "gloo" or not len(named):
            alone.append(lane)
        elif len(named) == 1:
            code[here] = named[0]
        else:
            alone.append(lane)
    if source == "gloo":
        if alone:
            code[code == _NOWHERE] = len(found)
            found.append(Group("gloo", None, None, None, None))
        return found, code
    # Numbers of streams differ between ranks, their order does not.
    for place, lane in enumerate(sorted(alone, key=lambda one: _lane_order(frame.lanes[one]))):
        code[(rows.lane == lane) & (code == _NOWHERE)] = len(found)
        found.append(Group(f"communication stream {place}", None, None, None, None))
    return found, code


def _lane_order(lane: tuple[object, object]) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(str(v)), "") if str(v).lstrip("-").isdigit() else (1, 0, str(v)) for v in lane)


# ---- rows: by group, kind, size and type


def _rows(calls: _Calls, other: Spans) -> list[CommunicationRow]:
    keys = np.stack((calls.group, calls.kind, calls.nelems, calls.dtype))
    unique, where = np.unique(keys, axis=1, return_inverse=True)
    where = where.reshape(-1)
    order = np.argsort(where, kind="stable")
    edges = np.concatenate(([0], np.cumsum(np.bincount(where, minlength=unique.shape[1]))))
    found = []
    for index, (group, kind, nelems, dtype) in enumerate(unique.T.tolist()):
        at = order[edges[index] : edges[index + 1]]
        spans = Spans.of(calls.start[at], calls.end[at])
        covered = int((other.before(spans.end) - other.before(spans.start)).sum())
        duration = calls.end[at] - calls.start[at]
        named = calls.dtypes[dtype] if dtype != _NOWHERE else None
        found.append(
            CommunicationRow(
                source=calls.source,
                group=calls.groups[group].key,
                kind=_KINDS[kind],
                bytes=message_bytes(None if nelems == MISSING else nelems, named),
                dtype=named,
                count=len(at),
                total=int(duration.sum()),
                exposed=spans.total - covered,
                duration=_spread(duration),
            )
        )
    return found


def message_bytes(nelems: int | None, dtype: str | None) -> int | None:
    """Elements of a torch type in bytes; None where either is unknown. No size is null, not 0."""
    if nelems is None or nelems <= 0 or dtype is None:
        return None
    width = names.DTYPE_BYTES.get(dtype)
    return None if width is None else nelems * width


def _spread(values: Ints) -> Spread:
    p10, median, p90 = (int(v) for v in np.percentile(values, (10, 50, 90)))
    return Spread(len(values), median, p10, p90, int(values.min()), int(values.max()))


# ---- streams: what is matched across ranks


def _stream(calls: _Calls, group: int, at: Ints, first: int, last: int) -> tuple[Stream, Ints]:
    # A host span that ends last of all was cut off by the end of the recording; the GPU reports whole kernels only.
    kept = at[calls.end[at] < last] if calls.source == "gloo" else at
    left_out = len(at) - len(kept) + max(len(kept) - _LONGEST_STREAM, 0)
    kept = kept[:_LONGEST_STREAM]
    keys = np.stack((calls.kind[kept], calls.uneven[kept], calls.stated[kept], calls.dtype[kept]))
    unique, begin, where = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(begin)  # signatures in order of appearance
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    seq = calls.seq[kept]
    numbered = len(kept) > 0 and bool((seq != MISSING).all()) and len(np.unique(seq)) == len(seq)
    stream = Stream(
        key=calls.groups[group].key,
        source=calls.source,
        signatures=tuple(_signature(calls, *unique[:, index].tolist()) for index in order.tolist()),
        signature=tuple(place[where.reshape(-1)].tolist()),
        start=tuple((calls.start[kept] - first).tolist()),
        dur=tuple((calls.end[kept] - calls.start[kept]).tolist()),
        seq=tuple(seq.tolist()) if numbered else None,
        left_out=left_out,
        event=tuple(calls.event[kept].tolist()) if len(calls.event) else (),
    )
    return stream, kept


def _signature(calls: _Calls, kind: int, uneven: int, stated: int, dtype: int) -> str:
    parts = [_KINDS[kind].value + (names.UNEVEN if uneven else "")]
    if stated != MISSING:
        parts.append(str(stated))
    if dtype != _NOWHERE:
        parts.append(calls.dtypes[dtype])
    return " ".join(parts)


def _with_gaps(
    stream: Stream, calls: _Calls, kept: Ints, first: int, work: Spans, communicating: Spans, waiting: Spans | None
) -> Stream:
    """Add what the device did from the start of the previous collective of the stream (or of the window) to each."""
    if not len(kept):
        return stream
    until = calls.start[kept]
    since = np.concatenate(([min(first, until[0])], until[:-1]))
    busy = union((work, communicating))
    end = np.minimum(calls.end[kept], np.append(until[1:], calls.end[kept][-1]))

    def inside(spans: Spans) -> Ints:
        return spans.before(until) - spans.before(since)

    exposed = end - until - (work.before(end) - work.before(until))
    compute = inside(work)
    own = np.concatenate(([0], exposed[:-1]))
    data = inside(waiting - busy) if waiting is not None and len(waiting) else np.zeros(len(until), dtype=np.int64)
    return msgspec.structs.replace(
        stream,
        exposed=tuple(exposed.tolist()),
        compute=tuple(compute.tolist()),
        other=tuple(np.maximum(inside(busy) - compute - own, 0).tolist()),
        data=tuple(data.tolist()),
    )
