"""Communication of one rank: sequences of collectives whose order is the same on every rank."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from sameshot.analysis import names
from sameshot.analysis.frame import Frame
from sameshot.analysis.names import Cat
from sameshot.analysis.summary import Stream
from sameshot.trace.columns.chunk import MISSING

_LONGEST_STREAM = 20_000  # collectives kept per stream: the summary has to stay small


class _Call(msgspec.Struct, frozen=True):
    """One communication span: a gloo span on a worker thread, or an NCCL kernel."""

    start: int
    end: int
    name: str
    source: str
    lane: str
    group: str | None
    nelems: int | None
    dtype: str | None
    seq: int | None


def streams(frame: Frame, first: int, last: int) -> tuple[Stream, ...]:
    """Sort communication into sequences: per group, else per GPU stream. Times are after `first`.

    Nothing in a trace links a gloo span to the operator that issued it, but gloo's threads take work from one queue in
    the order of issue, so all gloo spans together are ordered by their start.
    """
    calls = sorted(_calls(frame), key=lambda c: (c.start, c.end))
    by_key: defaultdict[tuple[str, str], list[_Call]] = defaultdict(list)
    unnamed = sorted({c.lane for c in calls if c.source == "nccl" and c.group is None}, key=_stream_order)
    for call in calls:
        if call.group is not None:
            key = f"group {call.group}"
        elif call.source == "nccl":  # stream numbers differ between ranks, their order does not
            key = f"communication stream {unnamed.index(call.lane)}"
        else:
            key = "gloo"
        by_key[call.source, key].append(call)
    return tuple(_stream(source, key, found, first, last) for (source, key), found in sorted(by_key.items()))


def _calls(frame: Frame) -> list[_Call]:
    found = []
    messages = frame.messages
    for cat, source, chosen in (
        (Cat.KERNEL, "nccl", names.is_nccl_kernel),
        (Cat.ANNOTATION, "gloo", names.is_gloo_span),
    ):
        rows = frame.rows(cat)
        rows = rows[frame.named(chosen)[rows.name]]
        columns = (rows.start.tolist(), rows.end.tolist(), rows.name.tolist(), rows.lane.tolist(), rows.event.tolist())
        for start, end, name, lane, event in zip(*columns, strict=True):
            text, group, nelems, dtype, seq = frame.names[name], None, MISSING, None, MISSING
            if (row := messages.row(event)) is not None:
                group = messages.group_name[row]
                if group is not None and messages.group_ranks[row] is not None:
                    group += f" {messages.group_ranks[row]}"
                nelems, dtype, seq = int(messages.in_nelems[row]), messages.dtype[row], int(messages.seq[row])
                text = messages.collective[row] or text
            found.append(
                _Call(
                    start=start,
                    end=end,
                    name=text,
                    source=source,
                    lane=str(frame.lanes[lane][1]) if source == "nccl" else "gloo threads",
                    group=group,
                    nelems=None if nelems == MISSING else nelems,
                    dtype=dtype,
                    seq=None if seq == MISSING else seq,
                )
            )
    return found


def _stream_order(lane: str) -> tuple[int, int | str]:
    return (0, int(lane)) if lane.lstrip("-").isdigit() else (1, lane)


def _stream(source: str, key: str, found: list[_Call], first: int, last: int) -> Stream:
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


def _signature(call: _Call) -> str:
    parts = [names.collective_kind(call.name).value]
    if call.nelems is not None:
        parts.append(str(call.nelems))
    if call.dtype is not None:
        parts.append(call.dtype)
    return " ".join(parts)
