"""What was called: the communication of one source as columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.communication.groups import groups_of
from sameshot.analysis.communication.issuers import NOWHERE, HostCalls, issued_by, pick
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.names import Cat, Collective
from sameshot.analysis.results import Group
from sameshot.trace.columns.chunk import MISSING


class Calls(NamedTuple):
    """Communication of one source as columns, sorted by start; texts are codes into the lists beside them."""

    source: str
    start: Ints
    end: Ints
    kind: Ints  # into list(Collective)
    uneven: Bools  # an all-to-all with split sizes
    group: Ints  # into `groups`
    dtype: Ints  # into `dtypes`; NOWHERE: not stated
    nelems: Ints  # what `bytes` counts, in elements; MISSING
    stated: Ints  # elements as stated, the same on every rank; MISSING
    seq: Ints
    event: Ints  # index in traceEvents
    groups: list[Group]
    dtypes: list[str]


KINDS = list(Collective)
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
# Only of these is the recorded size the same on every rank, so that it helps to match.
_EQUAL_SIZES = np.isin(
    np.arange(len(KINDS)),
    [
        _KIND_CODE[kind]
        for kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.BROADCAST, Collective.ALL_TO_ALL)
    ],
)


def device_calls(frame: Frame) -> Calls:
    kernels = frame.rows(Cat.KERNEL)
    rows = kernels[frame.named(names.is_communication_kernel)[kernels.name]] if len(kernels) else kernels
    message = _message_rows(frame, rows.event)
    issuers = np.full(len(rows), NOWHERE, dtype=np.int64)  # codes of names
    rest = np.flatnonzero(message == NOWHERE)
    if len(rest):
        calls = HostCalls.of(frame)
        stated = calls.where(_message_rows(frame, calls.event) != NOWHERE)
        issuer = issued_by(frame, rows[rest], stated)
        message[rest] = _message_rows(frame, pick(stated.event, issuer))
        issuer = issued_by(frame, rows[rest], calls)
        issuers[rest] = pick(calls.name, issuer)
    kind, uneven = _kinds(frame, rows, message, issuers)
    return _columns(frame, "nccl", rows, message, kind, uneven)


def gloo_calls(frame: Frame) -> Calls:
    """All gloo spans in order of start: its threads take work from one queue, in the order of issue."""
    annotations = frame.rows(Cat.ANNOTATION)
    rows = annotations[frame.named(names.is_gloo_span)[annotations.name]] if len(annotations) else annotations
    message = _message_rows(frame, rows.event)
    kind, uneven = _kinds(frame, rows, message, np.full(len(rows), NOWHERE, dtype=np.int64))
    return _columns(frame, "gloo", rows, message, kind, uneven)


def _message_rows(frame: Frame, events: Ints) -> Ints:
    """For each event its row in `frame.messages`, or NOWHERE."""
    known = frame.messages.event
    if not len(known) or not len(events):
        return np.full(len(events), NOWHERE, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, events), len(known) - 1)
    return np.where(known[at] == events, at, NOWHERE)


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
            recorded[row] if row != NOWHERE else None,
            frame.names[issuer] if issuer != NOWHERE else None,
            frame.names[name],
        )
        found = known.get(key)
        if found is None:
            kinds = (names.collective_kind(text) for text in key if text)
            chosen = next((k for k in kinds if k is not Collective.OTHER), Collective.OTHER)
            found = known[key] = (_KIND_CODE[chosen], key[0] is not None and names.has_uneven_parts(key[0]))
        kind[index], uneven[index] = found
    return kind, uneven


def _columns(frame: Frame, source: str, rows: Rows, message: Ints, kind: Ints, uneven: Bools) -> Calls:
    messages = frame.messages
    stated = message != NOWHERE

    def number(column: Ints) -> Ints:
        return np.where(stated, column[message], MISSING) if len(column) else np.full(len(rows), MISSING)

    in_nelems, out_nelems, size = (number(c) for c in (messages.in_nelems, messages.out_nelems, messages.group_size))
    gathered = np.where(
        out_nelems > 0, out_nelems, np.where((in_nelems > 0) & (size > 0), in_nelems * np.maximum(size, 1), MISSING)
    )
    is_gather = kind == _KIND_CODE[Collective.ALL_GATHER]
    groups, group = groups_of(frame, source, rows, message)
    dtypes: dict[str, int] = {}
    dtype = [
        NOWHERE if row == NOWHERE or (text := messages.dtype[row]) is None else dtypes.setdefault(text, len(dtypes))
        for row in message.tolist()
    ]
    return Calls(
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
