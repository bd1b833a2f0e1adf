"""One group's collectives: for each of its hosts, a line through how far its ends lie from the typical end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sameshot.analysis.clocks.graph import Edges
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.matched import Matched

Floats = npt.NDArray[np.float64]

LEAST_POINTS = 5  # synchronisation points of a host in one group
SIGMAS = 3.0
_MEDIAN = 1.2533  # standard error of a median, in those of a mean
_NORMAL = 1.4826  # standard deviation of normal noise, in median absolute deviations
_FLOOR = 2_000.0  # ns; no edge is better than this: ends differ systematically, too
_LEAST_NOISE = 200.0  # ns; so that perfect ends don't divide by zero
_BISQUARE = 4.685  # tuning constant of Tukey's weights
_ROUNDS = 6
_FAR = 5.0  # residuals; noise reaches no farther
_MANY = 0.15  # of the points farther than that, in a row: the clock was set meanwhile, or ran at another rate
_NEIGHBOURS = 5  # no more than LEAST_POINTS


class GroupLines(NamedTuple):
    """One group's collectives: for each of its hosts, a line through how far its ends lie from the typical end."""

    hosts: Ints
    line: _Line
    strays: tuple[Ints, Floats]  # ranks, and how far their ends are off their host's


class _Line(NamedTuple):
    """apart ≈ value + slope · (T - at), per host."""

    at: float
    value: Floats
    slope: Floats
    centre: Floats  # mean T
    width: Floats  # standard deviation of T
    noise: Floats  # standard deviation of one end
    residual: Floats  # median absolute deviation
    points: Ints
    resolved: npt.NDArray[np.bool_]
    aside: Floats  # share of the points that lie beyond what noise explains; 0 where they are few enough for outliers
    step: Floats  # ns; their median distance from the line


def lines_of(one: Matched, begins: Ints, of_rank: Ints) -> GroupLines | None:
    rows = np.setdiff1d(np.arange(len(one.ranks)), np.asarray(one.assumed, dtype=np.int64))
    index = np.asarray(one.ranks, dtype=np.int64)[rows]
    hosts, host_row = np.unique(of_rank[index], return_inverse=True)
    columns = np.flatnonzero(one.is_symmetric)
    if len(hosts) < 2 or len(columns) < LEAST_POINTS:
        return None
    ends = (one.start + one.dur)[np.ix_(rows, columns)] + begins[index][:, None]
    known = one.present[np.ix_(rows, columns)]
    by_rank = np.where(known, ends, np.nan).astype(np.float64)
    if len(hosts) == len(rows):
        by_host = by_rank[np.argsort(host_row)]
        strays = (index, np.zeros(len(index)))
    else:
        by_host = np.stack([_median(by_rank[host_row == h], axis=0) for h in range(len(hosts))])
        strays = (index, _median(by_rank - by_host[host_row], axis=1))
    # Every host against the one with most records, then all against the typical end of each collective.
    most = int(np.isfinite(by_host).sum(axis=1).argmax())
    against = by_host - by_host[most]
    enough = np.isfinite(against).sum(axis=1) >= LEAST_POINTS
    if enough.sum() < 2:
        return None
    hosts, by_host, against = hosts[enough], by_host[enough], against[enough]
    time = _median(by_host - _median(against, axis=1)[:, None], axis=0)
    both = np.isfinite(by_host).sum(axis=0) > 1
    time, by_host = time[both], by_host[:, both]
    if (np.isfinite(by_host).sum(axis=1) < LEAST_POINTS).any():
        return None
    # The median of few hosts is one of them, whose own noise would then be invisible: from there to a robust mean.
    line = _fit(time, by_host - time, float(time.mean()))
    for _ in range(2):
        off = by_host - time - line.value[:, None] - line.slope[:, None] * (time - line.at)
        known = np.isfinite(off)
        scale = _BISQUARE * max(_NORMAL * float(np.median(np.abs(off[known]))), _LEAST_NOISE)
        weight = np.where(known, np.clip(1 - (np.nan_to_num(off) / scale) ** 2, 0, None) ** 2, 0.0)
        time = time + (weight * np.nan_to_num(off)).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-9)
        line = _fit(time, by_host - time, line.at)
    return GroupLines(hosts, line, strays)


def moved_to(frame: GroupLines, at: float) -> GroupLines:
    """The same lines, told at another moment."""
    line = frame.line
    if not np.isfinite(at):  # another component: no common moment with the reference
        return frame
    value = np.where(line.resolved, line.value + line.slope * (at - line.at), line.value)
    return frame._replace(line=line._replace(at=at, value=value))


def _fit(time: Floats, apart: Floats, at: float) -> _Line:
    """Robust straight lines (Tukey's bisquare, reweighted) through each row of `apart`."""
    known = np.isfinite(apart)
    points = known.sum(axis=1)
    x = np.where(known, time - at, 0.0)
    y = np.where(known, apart, 0.0)
    middle = _median(apart, axis=1)
    value, slope = middle.copy(), np.zeros(len(apart))
    weight = known.astype(np.float64)
    share = len(apart) / (len(apart) - 1)  # the typical end holds a part of every host's own noise
    for _ in range(_ROUNDS):
        off = np.where(known, np.abs(apart - value[:, None] - slope[:, None] * x), np.nan)
        scale = np.maximum(_NORMAL * _median(off, axis=1), _LEAST_NOISE)[:, None] * _BISQUARE
        weight = np.where(known, np.clip(1 - (np.nan_to_num(off) / scale) ** 2, 0, None) ** 2, 0.0)
        total = weight.sum(axis=1)
        mean_x, mean_y = (weight * x).sum(axis=1) / total, (weight * y).sum(axis=1) / total
        dx = x - mean_x[:, None]
        square = (weight * dx * dx).sum(axis=1)
        slope = np.where(square > 0, (weight * dx * (y - mean_y[:, None])).sum(axis=1) / np.maximum(square, 1.0), 0.0)
        value = mean_y - slope * mean_x
    residual = _median(np.where(known, np.abs(apart - value[:, None] - slope[:, None] * x), np.nan), axis=1)
    centre = x.sum(axis=1) / points
    width = np.sqrt(np.where(known, (x - centre[:, None]) ** 2, 0.0).sum(axis=1) / points)
    noise = _NORMAL * residual * np.sqrt(share)
    span = np.where(known, time, -np.inf).max(axis=1) - np.where(known, time, np.inf).min(axis=1)
    error = _MEDIAN * noise / (np.sqrt(points) * np.maximum(width, 1.0))
    # A frame's drift is that of all its hosts against each other: either all are resolved or none is.
    resolved = np.full(len(apart), bool((error * span < residual * np.sqrt(share)).all()))
    aside, step = _beyond_noise(time, apart - value[:, None] - slope[:, None] * x, residual)
    residual = residual * np.sqrt(share)
    value = np.where(resolved, value, middle)
    return _Line(at, value, slope, centre + at, width, noise, residual, points, resolved, aside, step)


def _beyond_noise(time: Floats, off: Floats, residual: Floats) -> tuple[Floats, Floats]:
    """Per host the share of points that lie off its line for a while, and how far. Outliers come singly: what counts is
    the median of a few neighbours in time."""
    aside, step = np.zeros(len(off)), np.zeros(len(off))
    order = np.argsort(time)
    least = _FAR * np.maximum(residual, _LEAST_NOISE)
    with np.errstate(invalid="ignore"):
        doubtful = (np.abs(off) > least[:, None]).sum(axis=1) > _MANY * np.isfinite(off).sum(axis=1)
    for row in np.flatnonzero(doubtful).tolist():
        known = off[row, order]
        known = known[np.isfinite(known)]
        smooth = np.abs(np.median(np.lib.stride_tricks.sliding_window_view(known, _NEIGHBOURS), axis=1))
        far = smooth > least[row]
        if far.mean() > _MANY:
            aside[row], step[row] = far.mean(), np.median(smooth[far])
    return aside, step


def edges_of(frames: Sequence[GroupLines]) -> Edges:
    def joined(columns: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
        return np.concatenate(columns) if columns else np.empty(0)

    lines = [frame.line for frame in frames]
    return Edges(
        host=joined([frame.hosts for frame in frames]).astype(np.int64),
        frame=joined([np.full(len(frame.hosts), index) for index, frame in enumerate(frames)]).astype(np.int64),
        value=joined([line.value for line in lines]).astype(np.float64),
        slope=joined([line.slope for line in lines]).astype(np.float64),
        value_error=joined([_value_error(line) for line in lines]).astype(np.float64),
        slope_error=joined([_slope_error(line) for line in lines]).astype(np.float64),
        resolved=joined([line.resolved for line in lines]).astype(np.bool_),
        residual=joined([line.residual for line in lines]).astype(np.float64),
        aside=joined([line.aside for line in lines]).astype(np.float64),
        step=joined([line.step for line in lines]).astype(np.float64),
        points=joined([line.points for line in lines]).astype(np.int64),
    )


def _slope_error(line: _Line) -> Floats:
    error: Floats = _MEDIAN * line.noise / (np.sqrt(line.points) * np.maximum(line.width, 1.0))
    return error


def _value_error(line: _Line) -> Floats:
    """At the moment `line.at`: farther from the points it is less certain."""
    at_centre = _MEDIAN * line.noise / np.sqrt(line.points)
    farther = np.where(line.resolved, _slope_error(line) * np.abs(line.at - line.centre), 0.0)
    error: Floats = np.sqrt(at_centre**2 + farther**2 + (_FLOOR / 2) ** 2)
    return error


def _median(values: Floats, *, axis: int) -> Floats:
    """The median of what is not NaN; NaN where nothing is."""
    ordered = np.sort(values, axis=axis)  # NaN comes last
    many = np.isfinite(values).sum(axis=axis)
    low, high = np.maximum(many - 1, 0) // 2, many // 2
    high = np.where(many > 0, np.minimum(high, np.maximum(many - 1, 0)), 0)
    pick = [np.take_along_axis(ordered, np.expand_dims(at, axis), axis).squeeze(axis) for at in (low, high)]
    return np.asarray((pick[0] + pick[1]) / 2, dtype=np.float64)
