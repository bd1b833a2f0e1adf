"""The clocks of all hosts against the reference host's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sameshot.analysis.clocks.graph import Edges, Solution, components, solve
from sameshot.analysis.clocks.lines import LEAST_POINTS, SIGMAS, GroupLines, edges_of, lines_of, moved_to
from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.hosts import host_of
from sameshot.analysis.matching.matched import Matched
from sameshot.analysis.results import Clocks, HostClock, RankSummary
from sameshot.analysis.text import count, ms, percent

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
    frames = [frame for one in matched if (frame := lines_of(one, begins, of_rank)) is not None]
    edges = edges_of(frames)
    component = components(len(hosts), len(frames), edges)
    reference = component.index(0)
    # The frames' own times differ by as much as the clocks. Only a first solution tells where the common moment lies in
    # each, and only then can offsets that drift be compared.
    moment = float(begins[of_rank == reference].min() + ends[of_rank == reference].max()) / 2
    coarse = solve(len(hosts), len(frames), edges, reference)
    frames = [moved_to(frame, moment + coarse.frames[index]) for index, frame in enumerate(frames)]
    edges = edges_of(frames)
    solution = solve(len(hosts), len(frames), edges, reference)
    strays = _stray_notes(_strays(frames, len(ranks)), of_rank, ranks)
    windows = _Windows(begins, ends, of_rank)
    few = {host: _most_shared(matched, of_rank, host) for host in range(len(hosts)) if not (edges.host == host).any()}
    clocks = tuple(
        _reference(host, int(edges.points[edges.host == index].sum()), base + round(moment), strays.get(index, ""))
        if index == reference
        else _host_clock(
            index, host, component[index], solution, edges, windows, base, moment, few, strays.get(index, "")
        )
        for index, host in enumerate(hosts)
    )
    return Clocks(hosts[reference], clocks, _note(clocks, hosts[reference], matched, max(few.values(), default=0)))


def _most_shared(matched: Sequence[Matched], of_rank: Ints, host: int) -> int:
    """The most symmetric collectives of one group that this host and another one recorded, without assuming anything
    of their clocks."""
    most = 0
    for one in matched:
        rows = np.setdiff1d(np.arange(len(one.ranks)), np.asarray(one.assumed, dtype=np.int64))
        mine = of_rank[np.asarray(one.ranks, dtype=np.int64)[rows]] == host
        if mine.any() and not mine.all():
            present = one.present[rows][:, one.is_symmetric]
            most = max(most, int((present[mine].any(axis=0) & present[~mine].any(axis=0)).sum()))
    return most


def _too_few(shared: int) -> str:
    return f"only {count(shared, 'collective')} could be matched (it takes {LEAST_POINTS})"


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
    few: Mapping[int, int],
    stray: str,
) -> HostClock:
    mine = edges.host == index
    points, groups = int(edges.points[mine].sum()), int(mine.sum())
    residual = float(np.average(edges.residual[mine], weights=edges.points[mine])) if groups else None
    ahead = float(solution.hosts[index])
    if component != 0 or residual is None:
        why = "unaligned: no matched collective of hosts in different places connects it with the reference"
        if few.get(index):
            why = f"unaligned: {_too_few(few[index])} of hosts in different places"
        elif groups:
            why = "unaligned: no chain of matched collectives leads from it to the reference"
        spread = None if residual is None else round(residual)
        return HostClock(host, component, None, None, spread, None, points, _joined(why, stray))
    reach = windows.reach(index, moment + ahead)
    drift, drift_error = float(solution.drifts[index]), float(solution.drift_errors[index])
    # Every link of the chain is resolved; over all of it, the drift must still be, or at least be beyond doubt.
    resolved = np.isfinite(drift) and (drift_error * 2 * reach < residual or abs(drift) > 2 * SIGMAS * drift_error)
    error = SIGMAS * float(solution.errors[index]) + residual + float(solution.cycles[index])
    error += (SIGMAS * drift_error if resolved else float(solution.steepest[index])) * reach
    step = float(solution.steps[index])
    error += step
    about = f"{count(points, 'synchronisation point')} in {count(groups, 'group')}"
    if not resolved:
        about += "; too few to tell a drift"
    if step:
        share = percent(float(edges.aside[mine].max() or edges.aside.max()))
        about += f"; {share} of them lie {ms(step)} off the others: a clock was set meanwhile, or ran at another rate"
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


def _strays(frames: Sequence[GroupLines], ranks: int) -> dict[int, float]:
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


def _note(clocks: Sequence[HostClock], reference: str, matched: Sequence[Matched], shared: int) -> str:
    aligned = [clock for clock in clocks if clock.offset is not None]
    lost = len(clocks) - len(aligned)
    if len(aligned) == 1:
        why = "no symmetric collective of ranks on different hosts could be matched"
        if shared:
            why = f"{_too_few(shared)} of ranks on different hosts"
        elif any(one.assumes_clocks for one in matched):
            why += " without assuming that their clocks agree, which can't measure them"
        return f"The clocks of {count(len(clocks), 'host')} could not be compared: {why}."
    worst = max(clock.expected_error or 0 for clock in aligned)
    note = f"{count(len(aligned), 'host')} compared with {reference}, expected error at most {ms(worst)}"
    return f"{note}; {count(lost, 'host')} unaligned." if lost else f"{note}."
