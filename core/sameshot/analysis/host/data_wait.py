"""Waiting for the next batch: how long the main thread was in the fetch, and how much of it the GPU felt.

    raw    = |fetch spans of the main thread|
    felt   = |GPU idle ∩ [fetch start, start of the first kernel that this thread launched after the fetch's end]|
    hidden = raw - felt, or 0 where the way from the fetch to that kernel makes felt the longer one

A fetch during which the GPU still works through what was queued costs nothing; one that leaves it idle costs until the
first kernel of the new batch runs. Copies of the batch to the device are no idle time; those on which something had to
wait (synchronous, pageable, or on the stream that computes) are stated beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np

from sameshot.analysis import names
from sameshot.analysis.device.temporal import Occupancy
from sameshot.analysis.device.work import NO_CALL, Work
from sameshot.analysis.frame import Frame, Rows
from sameshot.analysis.host.parts import on
from sameshot.analysis.intervals import EMPTY, Ints, Spans, union
from sameshot.analysis.names import Cat
from sameshot.analysis.results import DataWait
from sameshot.analysis.stats import spread
from sameshot.analysis.text import ms, percent

DATALOADER, ANNOTATION, INFERRED = "dataloader", "annotation", "inferred"

_BOUND_FROM = 0.10  # of the step time
_FEW = 2  # fetches; one alone may be the first of an epoch


class Fetches(msgspec.Struct, frozen=True):
    """When the main thread was fetching a batch, sorted and disjoint, and how that is known."""

    method: str
    spans: Spans


class Felt(msgspec.Struct, frozen=True):
    """What the devices felt of it: idle time, and time in copies on which something waited."""

    idle: Spans
    copies: Spans


def find_fetches(frame: Frame, main: int | None, window: tuple[int, int], pattern: str | None = None) -> Fetches | None:
    """Spans of the main thread that fetch data; None where nothing looks like it.

    Annotations that match `pattern` (a regular expression, searched for) if one is given; else the DataLoader's own
    marks; else names that say so: recorded Python frames of a loader, or annotations such as `## data_load ##`.
    """
    whole = Spans.single(*window)
    if pattern is not None:
        chosen = re.compile(pattern)
        return _named(frame, main, whole, ANNOTATION, lambda name: chosen.search(name) is not None, _MARKS)
    return (
        _named(frame, main, whole, DATALOADER, names.is_fetch, _MARKS)
        or _named(frame, main, whole, INFERRED, names.is_loader_frame, (Cat.PYTHON,))
        or _named(frame, main, whole, INFERRED, names.sounds_like_fetch, (Cat.ANNOTATION,))
    )


_MARKS = (Cat.ANNOTATION, Cat.OPERATOR)  # older traces record annotations as operators


def _named(
    frame: Frame, main: int | None, whole: Spans, method: str, predicate: Callable[[str], bool], cats: tuple[Cat, ...]
) -> Fetches | None:
    mask = frame.named(predicate)
    if main is None or not mask.any():
        return None
    rows = (frame.rows(cat) for cat in cats)
    spans = union(on(each[mask[each.name]], main).spans for each in rows) & whole
    return Fetches(method, spans) if len(spans) else None


def feel(frame: Frame, work: Work, found: Occupancy, main: int | None, fetches: Fetches | None) -> Felt:
    """What the devices felt of the fetches. `found` is when something ran on them."""
    if fetches is None or main is None or not len(work.rows):
        return Felt(Spans(), Spans())
    until = _next_kernel(work, main, fetches.spans.end)
    waits = Spans.of(fetches.spans.start, np.where(until < 0, fetches.spans.end, until))
    return Felt(waits - found.busy, (_blocking_copies(frame, work).spans & waits) - found.kernels)


def _next_kernel(work: Work, main: int, after: Ints) -> Ints:
    """Start of the first kernel that the main thread launched after each of these moments; -1 where it did not."""
    at = np.flatnonzero(work.linked & work.kernel)[::-1]
    earliest: Ints = np.full(len(work.runtime), -1, dtype=np.int64)
    earliest[work.call[at]] = at  # of several pieces of one call the last written stays: the one that started first
    call = np.flatnonzero((earliest >= 0) & (work.runtime.lane == main))
    launched, starts = work.runtime.start[call], work.rows.start[earliest[call]]
    index = np.searchsorted(launched, after)
    return np.append(starts, -1)[index]


def _blocking_copies(frame: Frame, work: Work) -> Rows:
    """Copies to the device on which the host or the computation has to wait."""
    copies = np.flatnonzero(work.memory & frame.named(names.is_copy_to_device)[work.rows.name])
    if not len(copies):
        return work.rows[:0]
    pageable = frame.named(names.is_pageable)[work.rows.name[copies]]
    call = work.call[copies]
    synchronous = call != NO_CALL
    synchronous[synchronous] = ~frame.named(names.is_asynchronous)[work.runtime.name[call[synchronous]]]
    compute = ~work.memory & ~work.communication
    critical: Ints = EMPTY
    if compute.any():
        busy = np.bincount(work.rows.lane[compute], weights=work.rows.dur[compute])
        critical = np.asarray([busy.argmax()])
    return work.rows[copies[pageable | synchronous | np.isin(work.rows.lane[copies], critical)]]


def data_wait(fetches: Fetches | None, felt: Felt | None, window: tuple[int, int], edges: Ints) -> DataWait | None:
    """The figures of one rank; None where no fetch was seen, which is not the same as no waiting.

    `felt` is None without a GPU: then the main thread's waiting is all there is. `edges` are those of the steps.
    """
    if fetches is None:
        return None
    length = window[1] - window[0]
    raw = fetches.spans.total
    cost = raw if felt is None else felt.idle.total
    per_step = None
    if len(edges) > 1 and felt is not None:
        per_step = spread(felt.idle.within(edges))
    bound, sentence = _verdict(fetches, felt, length, edges)
    return DataWait(
        method=fetches.method,
        fetches=len(fetches.spans),
        raw=raw,
        felt=None if felt is None else felt.idle.total,
        hidden=None if felt is None else max(raw - felt.idle.total, 0),
        copies=0 if felt is None else felt.copies.total,
        share=cost / length if length else 0.0,
        felt_per_step=per_step,
        raw_per_step=spread(fetches.spans.within(edges)) if len(edges) > 1 else None,
        bound=bound,
        sentence=sentence,
    )


def _verdict(fetches: Fetches, felt: Felt | None, length: int, edges: Ints) -> tuple[bool | None, str]:
    """Data-bound: a tenth of the time or more would be saved if each batch were there at once, on the device.

    That is less than what was felt: after the fetch the host also needs time to launch the first kernel.
    """
    saved = fetches.spans if felt is None else (felt.idle & fetches.spans) | felt.copies
    how = " (fetches are inferred from names)" if fetches.method == INFERRED else ""
    if len(edges) > 1:
        whole, parts, unit = int(edges[-1] - edges[0]), len(edges) - 1, "step"
        spent = int(saved.within(edges[[0, -1]])[0])
    else:
        whole, parts, unit = length, 1, "window"
        spent = saved.total
    if whole <= 0 or len(fetches.spans) < _FEW:
        return None, f"Too few fetches to say whether data sets the pace{how}."
    bound = spent >= _BOUND_FROM * whole
    who = "the main thread waits" if felt is None else "the GPU waits"
    verdict = "Data-bound" if bound else "Not data-bound"
    return bound, (
        f"{verdict}: of {'a' if parts > 1 else 'the'} {ms(whole / parts)} {unit} {who} {ms(spent / parts)} "
        f"({percent(spent / whole)}) for the next batch{how}."
    )
