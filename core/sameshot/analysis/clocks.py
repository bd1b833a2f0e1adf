"""How far apart the clocks of the hosts are, measured at the ends of symmetric collectives.

A symmetric collective ends on all its ranks at nearly the same moment. So in the frame of one group g, with T_k the
typical end of its k-th collective,

    end_hk = T_k + (o_h - c_g) + (r_h - q_g) · (T_k - M) + noise         h a host, k a collective of g

where o_h and r_h are how far a host's clock is ahead at the moment M and how fast it gains, and c_g, q_g are the
frame's own. A robust line over k gives o_h - c_g and r_h - q_g for every host of the group: the edges of a graph whose
nodes are hosts and groups (`clock_graph`). Inside a connected component the offsets follow by least squares over all
edges; what cycles leave over is the check. Between components nothing is known: such hosts are *unaligned*.

Collectives inside one host say nothing about another, and matches that assumed that clocks agree are not used: they
can't measure what they assume. A drift is told only where it is resolved, its standard error times the window being
below the residual in every group on the way to the reference.

    expected error = 3 × the standard error along the best path to the reference: of the offset, and of the drift over
                     the farthest part of the window
                     + the residual: ends may differ systematically by as much as they scatter
                     + what cycles through the host leave over
                     + what a drift that is too small to be resolved may change until the end of the window
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sameshot.analysis.clock_graph import Edges, Solution, components, solve
from sameshot.analysis.hosts import host_of
from sameshot.analysis.intervals import Ints
from sameshot.analysis.match import Matched
from sameshot.analysis.results import Clocks, HostClock, RankSummary
from sameshot.analysis.text import count, ms

Floats = npt.NDArray[np.float64]

_LEAST_POINTS = 5  # synchronisation points of a host in one group
_SIGMAS = 3.0
_MEDIAN = 1.2533  # standard error of a median, in those of a mean
_NORMAL = 1.4826  # standard deviation of normal noise, in median absolute deviations
_FLOOR = 2_000.0  # ns; no edge is better than this: ends differ systematically, too
_LEAST_NOISE = 200.0  # ns; so that perfect ends don't divide by zero
_BISQUARE = 4.685  # tuning constant of Tukey's weights
_ROUNDS = 6
_STRAY = 200_000.0  # ns; a process whose ends are this far off those of its host is named


def to_reference(clock: HostClock, at_ns: int) -> int | None:
    """A moment by this host's CLOCK_REALTIME, by the reference's; None: the host is unaligned."""
    if clock.offset is None:
        return None
    drift = 0.0 if clock.drift is None or clock.at is None else clock.drift * ((at_ns - clock.at) / 1e9)
    return at_ns + clock.offset + round(drift)


def measure(ranks: Sequence[RankSummary], matched: Sequence[Matched]) -> Clocks:
    """One clock per host, against the reference: the first host of the largest component."""
    by_rank = [host_of(rank) for rank in ranks]
    hosts = list(dict.fromkeys(by_rank))
    if len(hosts) < 2:
        return _one_host(hosts)
    place = {host: index for index, host in enumerate(hosts)}
    of_rank = np.asarray([place[host] for host in by_rank], dtype=np.int64)
    base = min(rank.window_start_ns for rank in ranks)
    begins = np.asarray([rank.window_start_ns - base for rank in ranks], dtype=np.int64)
    ends = np.asarray([rank.window_end_ns - base for rank in ranks], dtype=np.int64)
    frames = [frame for one in matched if (frame := _frame(one, begins, of_rank)) is not None]
    edges = _edges(frames)
    component = components(len(hosts), len(frames), edges)
    reference = component.index(0)
    # The frames' own times differ by as much as the clocks. Only a first solution tells where the common moment lies in
    # each, and only then can offsets that drift be compared.
    moment = float(begins[of_rank == reference].min() + ends[of_rank == reference].max()) / 2
    coarse = solve(len(hosts), len(frames), edges, reference)
    frames = [_moved(frame, moment + coarse.frames[index]) for index, frame in enumerate(frames)]
    edges = _edges(frames)
    solution = solve(len(hosts), len(frames), edges, reference)
    strays = _stray_notes(_strays(frames, len(ranks)), of_rank, ranks)
    windows = _Windows(begins, ends, of_rank)
    clocks = tuple(
        _reference(host, int(edges.points[edges.host == index].sum()), base + round(moment), strays.get(index, ""))
        if index == reference
        else _host_clock(index, host, component[index], solution, edges, windows, base, moment, strays.get(index, ""))
        for index, host in enumerate(hosts)
    )
    return Clocks(hosts[reference], clocks, _note(clocks, hosts[reference], matched))


class _Frame(NamedTuple):
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


def _frame(one: Matched, begins: Ints, of_rank: Ints) -> _Frame | None:
    rows = np.setdiff1d(np.arange(len(one.ranks)), np.asarray(one.assumed, dtype=np.int64))
    index = np.asarray(one.ranks, dtype=np.int64)[rows]
    hosts, host_row = np.unique(of_rank[index], return_inverse=True)
    columns = np.flatnonzero(one.is_symmetric)
    if len(hosts) < 2 or len(columns) < _LEAST_POINTS:
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
    enough = np.isfinite(against).sum(axis=1) >= _LEAST_POINTS
    if enough.sum() < 2:
        return None
    hosts, by_host, against = hosts[enough], by_host[enough], against[enough]
    time = _median(by_host - _median(against, axis=1)[:, None], axis=0)
    both = np.isfinite(by_host).sum(axis=0) > 1
    time, by_host = time[both], by_host[:, both]
    if (np.isfinite(by_host).sum(axis=1) < _LEAST_POINTS).any():
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
    return _Frame(hosts, line, strays)


def _moved(frame: _Frame, at: float) -> _Frame:
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
    value = np.where(resolved, value, middle)
    return _Line(at, value, slope, centre + at, width, noise, residual * np.sqrt(share), points, resolved)


def _edges(frames: Sequence[_Frame]) -> Edges:
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


class _Windows(NamedTuple):
    begins: Ints
    ends: Ints
    of_rank: Ints

    def reach(self, host: int, at: float) -> float:
        """The farthest distance of a moment of this host's windows from `at`."""
        mine = self.of_rank == host
        return float(max(self.ends[mine].max() - at, at - self.begins[mine].min(), 0.0))


def _host_clock(
    index: int,
    host: str,
    component: int,
    solution: Solution,
    edges: Edges,
    windows: _Windows,
    base: int,
    moment: float,
    stray: str,
) -> HostClock:
    mine = edges.host == index
    points, groups = int(edges.points[mine].sum()), int(mine.sum())
    residual = float(np.average(edges.residual[mine], weights=edges.points[mine])) if groups else None
    ahead = float(solution.hosts[index])
    if component != 0 or residual is None:
        why = "unaligned: no matched collective of hosts in different places connects it with the reference"
        if groups:
            why = "unaligned: no chain of matched collectives leads from it to the reference"
        spread = None if residual is None else round(residual)
        return HostClock(host, component, None, None, spread, None, points, _joined(why, stray))
    reach = windows.reach(index, moment + ahead)
    drift, drift_error = float(solution.drifts[index]), float(solution.drift_errors[index])
    # Every link of the chain is resolved; over all of it, the drift must still be, or at least be beyond doubt.
    resolved = np.isfinite(drift) and (drift_error * 2 * reach < residual or abs(drift) > 2 * _SIGMAS * drift_error)
    error = _SIGMAS * float(solution.errors[index]) + residual + float(solution.cycles[index])
    error += (_SIGMAS * drift_error if resolved else float(solution.steepest[index])) * reach
    about = f"{count(points, 'synchronisation point')} in {count(groups, 'group')}"
    if not resolved:
        about += "; too few to tell a drift"
    if solution.contradicted[index]:
        about += "; some groups contradict the others and have little weight"
    return HostClock(
        host=host,
        component=0,
        offset=-round(ahead),
        drift=-drift * 1e9 if resolved else None,
        residual=round(residual),
        expected_error=round(error),
        points=points,
        note=_joined(about, stray),
        at=base + round(moment + ahead),
    )


def _reference(host: str, points: int, at: int, stray: str) -> HostClock:
    return HostClock(host, 0, 0, None, None, 0, points, _joined("the reference", stray), at)


def _one_host(hosts: Sequence[str]) -> Clocks:
    if not hosts:
        return Clocks(None, (), "No rank was analysed.")
    note = "All ranks ran on one host and share its clock: there is nothing to align."
    return Clocks(hosts[0], (HostClock(hosts[0], 0, 0, None, None, 0, 0, "the only host"),), note)


def _strays(frames: Sequence[_Frame], ranks: int) -> dict[int, float]:
    """Processes whose ends lie far off those of other processes on their host, in any group: rank → ns."""
    worst = np.zeros(ranks)
    for frame in frames:
        who, off = frame.strays
        off = np.nan_to_num(off)
        worst[who] = np.where(np.abs(off) > np.abs(worst[who]), off, worst[who])
    return {int(rank): float(worst[rank]) for rank in np.flatnonzero(np.abs(worst) > _STRAY)}


def _stray_notes(strays: dict[int, float], of_rank: Ints, ranks: Sequence[RankSummary]) -> dict[int, str]:
    """Host → what is strange about its processes."""
    found: dict[int, list[str]] = {}
    for rank, off in strays.items():
        found.setdefault(int(of_rank[rank]), []).append(f"{ranks[rank].label} by {ms(abs(off))}")
    return {
        host: f"collectives end at other times than on the other processes of this host: {', '.join(labels[:4])}"
        for host, labels in found.items()
    }


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _note(clocks: Sequence[HostClock], reference: str, matched: Sequence[Matched]) -> str:
    aligned = [clock for clock in clocks if clock.offset is not None]
    lost = len(clocks) - len(aligned)
    if len(aligned) == 1:
        why = "no symmetric collective of ranks on different hosts could be matched"
        if any(one.assumes_clocks for one in matched):
            why += " without assuming that their clocks agree, which can't measure them"
        return f"The clocks of {count(len(clocks), 'host')} could not be compared: {why}."
    worst = max(clock.expected_error or 0 for clock in aligned)
    note = f"{count(len(aligned), 'host')} compared with {reference}, expected error at most {ms(worst)}"
    return f"{note}; {count(lost, 'host')} unaligned." if lost else f"{note}."
