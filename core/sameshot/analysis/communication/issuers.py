"""Which call on the host issued a device's communication."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.frame import Bools, Frame, Rows
from sameshot.analysis.intervals import EMPTY, Ints
from sameshot.analysis.names import Cat
from sameshot.trace.columns.chunk import MISSING

NOWHERE = -1
_NESTING = 4  # c10d::… holds record_param_comms holds nccl:…; one that has ended may come before


class HostCalls(NamedTuple):
    """Host events that issue communication, of any kind of event."""

    start: Ints
    end: Ints
    lane: Ints
    event: Ints
    name: Ints
    external: Ints

    @classmethod
    def of(cls, frame: Frame) -> HostCalls:
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

    def where(self, keep: Bools) -> HostCalls:
        return HostCalls(*(column[keep] for column in self))


def issued_by(frame: Frame, kernels: Rows, calls: HostCalls) -> Ints:
    """For each kernel which of the host's calls issued it, or NOWHERE."""
    found = np.full(len(kernels), NOWHERE, dtype=np.int64)
    if not len(kernels) or not len(calls.start):
        return found
    # Old traces write the correlation as a kernel's external id: those numbers mean nothing on the host.
    linked = (kernels.external_id > 0) & (kernels.external_id != kernels.correlation)
    at, same = _find(calls.external, kernels.external_id)
    found = np.where(linked & same, at, found)
    rest = np.flatnonzero(found == NOWHERE)
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


def pick(values: Ints, at: Ints) -> Ints:
    """The values at these places; nowhere stays nowhere."""
    return np.append(values, NOWHERE)[at]


def _innermost(calls: HostCalls, moment: Ints, lane: Ints) -> Ints:
    """The latest started call on the same lane that holds each moment; calls of one lane are nested or disjoint."""
    found = np.full(len(moment), NOWHERE, dtype=np.int64)
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
            holds = (candidate >= 0) & (calls.end[call] >= moment[mine]) & (found[mine] == NOWHERE)
            found[mine[holds]] = call[holds]
    return found
