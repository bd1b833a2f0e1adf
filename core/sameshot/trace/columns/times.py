"""Microseconds as written → integer nanoseconds, a column at a time; the same numbers as `window.to_ns`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sameshot.trace.columns.chunk import MISSING, Ints
from sameshot.trace.window import EXACT_US, FAR_NS, to_ns

Bools = npt.NDArray[np.bool_]
Stated = Any
"""`array("q")`: whole µs. `array("d")`: fractions, and whole numbers that a float holds exactly. A list: anything."""

MISSING_US = float(MISSING)
_FAR_US = (FAR_NS - 1) // 1000


class Times(msgspec.Struct, frozen=True):
    """`ns` with MISSING. Masks are None where no event has the property.

    `unusable` events state something that is no time; of these, `endless` ones state a positive number. `lossy` ones
    are floats so large that they no longer carry single ns.
    """

    ns: Ints
    unusable: int
    texts: int
    fractions: int
    lossy: Bools | None
    endless: Bools | None


def narrow(values: list[Any]) -> Stated:
    """The same values in the narrowest form. Not stated is MISSING, also as a float."""
    if values and values[0].__class__ is float:
        try:
            floats = array("d", values)
        except (TypeError, OverflowError):
            return values
        view = np.frombuffer(floats, np.float64)
        large = np.abs(view) >= EXACT_US
        if large.any():
            large &= view != MISSING_US
            if any(values[at].__class__ is int for at in np.flatnonzero(large).tolist()):
                return values  # a whole number that a float may not hold
        return floats
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return values


def times(parts: Sequence[Stated]) -> Times:
    """The parts of a column, one after the other."""
    found = []
    for kind, group in groupby(parts, key=_kind):
        if kind == "q":
            found.append(_whole(np.concatenate([np.frombuffer(part, np.int64) for part in group])))
        elif kind == "d":
            found.append(_fractions(np.concatenate([np.frombuffer(part, np.float64) for part in group])))
        else:
            found += [_any(part) for part in group]
    if len(found) == 1:
        return found[0]
    return Times(
        ns=np.concatenate([part.ns for part in found]) if found else np.empty(0, np.int64),
        unusable=sum(part.unusable for part in found),
        texts=sum(part.texts for part in found),
        fractions=sum(part.fractions for part in found),
        lossy=_joined([part.lossy for part in found], found),
        endless=_joined([part.endless for part in found], found),
    )


def _kind(part: Stated) -> str:
    return part.typecode if isinstance(part, array) else ""


def _joined(masks: list[Bools | None], parts: list[Times]) -> Bools | None:
    if all(mask is None for mask in masks):
        return None
    return np.concatenate(
        [np.zeros(len(part.ns), np.bool_) if mask is None else mask for mask, part in zip(masks, parts, strict=True)]
    )


def _whole(us: Ints) -> Times:
    bad = (us > _FAR_US) | (us < -_FAR_US)
    if not bad.any():
        return Times(us * 1000, 0, 0, 0, None, None)
    endless = us > _FAR_US
    ns = np.where(bad, 0, us) * 1000
    ns[bad] = MISSING
    return Times(ns, int((bad & (us != MISSING)).sum()), 0, 0, None, endless if endless.any() else None)


def _fractions(us: npt.NDArray[np.float64]) -> Times:
    missing = us == MISSING_US
    fractions = len(us) - int(missing.sum())
    bad = ~(np.abs(us) < float(FAR_NS // 1000))
    if any_bad := bool(bad.any()):
        stated, us = us, np.where(bad, 0.0, us)
    # Not rint(us * 1000): from 2^42 µs on that product is itself rounded, to half ns, and misses by 1 ns.
    whole = np.floor(us)
    ns: Ints = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000.0).astype(np.int64)
    lossy = np.abs(us) >= EXACT_US
    if not any_bad:
        return Times(ns, 0, 0, fractions, lossy if lossy.any() else None, None)
    ns[bad] = MISSING
    endless = bad & (stated > 0)
    return Times(
        ns,
        int((bad & ~missing).sum()),
        0,
        fractions,
        lossy if lossy.any() else None,
        endless if endless.any() else None,
    )


def _any(values: list[Any]) -> Times:
    """Values of all kinds, one by one."""
    ns: Ints = np.full(len(values), MISSING, np.int64)
    lossy, endless = np.zeros(len(values), np.bool_), np.zeros(len(values), np.bool_)
    unusable = texts = fractions = 0
    for at, value in enumerate(values):
        if value is None or value == MISSING:
            continue
        if (exact := to_ns(value)) is None:
            unusable += 1
            endless[at] = isinstance(value, int | float) and value > 0
            continue
        ns[at] = exact
        texts += value.__class__ is str
        fractions += value.__class__ is float
        lossy[at] = value.__class__ is float and abs(value) >= EXACT_US
    return Times(ns, unusable, texts, fractions, lossy if lossy.any() else None, endless if endless.any() else None)
