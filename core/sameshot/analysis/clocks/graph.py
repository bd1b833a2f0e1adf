"""Offsets of hosts from a graph of hosts and groups.

Every edge joins a host with the frame of a group and tells (value ± error) how far the host's clock is ahead of that
frame. Least squares over all edges of a component, reweighted so that an edge which contradicts the others loses its
say; the errors are those along the best path to the reference, which more edges can only improve.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sameshot.analysis.intervals import Ints

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_OUTLIER = 4.0  # errors of an edge beyond which it loses weight
_ROUNDS = 12


class Edges(NamedTuple):
    """One entry per (host, frame). Values in ns, slopes in ns per ns."""

    host: Ints
    frame: Ints
    value: Floats
    slope: Floats
    value_error: Floats
    slope_error: Floats
    resolved: Bools  # is the slope worth anything?
    residual: Floats
    aside: Floats  # share of the points that a line does not explain
    step: Floats  # how far those lie from it
    points: Ints


class Solution(NamedTuple):
    """Relative to the reference host; NaN: not connected with it."""

    hosts: Floats  # how far each host's clock is ahead
    frames: Floats
    errors: Floats  # standard errors of `hosts`
    drifts: Floats  # how fast each host's clock gains; NaN where no chain of resolved slopes leads to the reference
    drift_errors: Floats
    steepest: Floats  # how fast each host's clock may gain at most, by all slopes, resolved or not (one standard error)
    cycles: Floats  # root mean square of what the other edges leave over at each host; 0 where there are none
    steps: Floats  # what points that no line explains add to each host's error, on the way from the reference
    contradicted: Bools  # an edge of this host was given little weight


def components(hosts: int, frames: int, edges: Edges) -> list[int]:
    """For each host the number of its connected component; 0 has most hosts, of several the first."""
    parent = list(range(hosts + frames))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for host, frame in zip(edges.host.tolist(), edges.frame.tolist(), strict=True):
        parent[root(host)] = root(hosts + frame)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for host in range(hosts):
        members[root(host)].append(host)
    ordered = sorted(members.values(), key=lambda each: (-len(each), each[0]))
    numbers = {host: number for number, each in enumerate(ordered) for host in each}
    return [numbers[host] for host in range(hosts)]


def solve(hosts: int, frames: int, edges: Edges, reference: int) -> Solution:
    """Offsets and drifts of all hosts and frames that are connected with the reference."""
    nodes = hosts + frames
    here, there = edges.host, edges.frame + hosts
    start, errors = _best_paths(nodes, here, there, edges.value, edges.value_error, reference)
    inside = np.isfinite(start[here])
    ahead, weight = _least_squares(start, here[inside], there[inside], edges.value[inside], edges.value_error[inside])
    left = np.abs(edges.value[inside] - (ahead[here[inside]] - ahead[there[inside]]))
    degree = np.bincount(here[inside], minlength=nodes)
    square = np.bincount(here[inside], weights=weight * left**2, minlength=nodes)
    cycles = np.sqrt(square / np.maximum(np.bincount(here[inside], weights=weight, minlength=nodes), 1e-12))
    light = np.bincount(here[inside], weights=weight < 0.5, minlength=nodes) > 0
    steep = inside & edges.resolved
    drift, drift_errors = _best_paths(
        nodes, here[steep], there[steep], edges.slope[steep], edges.slope_error[steep], reference
    )
    joined = steep & np.isfinite(drift[here])
    drift, _ = _least_squares(drift, here[joined], there[joined], edges.slope[joined], edges.slope_error[joined])
    rough, rough_errors = _best_paths(nodes, here, there, edges.slope, edges.slope_error, reference)
    # Errors add up as squares along a path, these as they are.
    _, roots = _best_paths(nodes, here, there, edges.value, np.sqrt(edges.step), reference)
    return Solution(
        hosts=ahead[:hosts],
        frames=ahead[hosts:],
        errors=errors[:hosts],
        drifts=drift[:hosts],
        drift_errors=drift_errors[:hosts],
        steepest=(np.abs(rough) + rough_errors)[:hosts],
        cycles=np.where(degree > 1, cycles, 0.0)[:hosts],
        steps=(roots**2)[:hosts],
        contradicted=light[:hosts],
    )


def _best_paths(
    nodes: int, here: Ints, there: Ints, value: Floats, error: Floats, reference: int
) -> tuple[Floats, Floats]:
    """Sum of values along the path of least variance from the reference to every node, and its standard error."""
    neighbours: defaultdict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for one, other, ahead, sigma in zip(here.tolist(), there.tolist(), value.tolist(), error.tolist(), strict=True):
        # value = node `one` - node `other`
        neighbours[one].append((other, -ahead, sigma * sigma))
        neighbours[other].append((one, ahead, sigma * sigma))
    found, variance = np.full(nodes, np.nan), np.full(nodes, np.nan)
    queue = [(0.0, reference, 0.0)]
    while queue:
        so_far, node, ahead = heappop(queue)
        if np.isfinite(variance[node]):
            continue
        found[node], variance[node] = ahead, so_far
        for other, more, square in neighbours[node]:
            if np.isnan(variance[other]):
                heappush(queue, (so_far + square, other, ahead + more))
    return found, np.sqrt(variance)


def _least_squares(start: Floats, here: Ints, there: Ints, value: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Improve values that a tree gave by all edges, all of them between nodes that it reached; the reference (exactly 0
    in `start`) stays. Also the edges' final weights, 1 for full."""
    solved = start.copy()
    weight = np.ones(len(value))
    if len(value) <= np.isfinite(start).sum() - 1:  # a tree: there is nothing to balance
        return solved, weight
    precision = 1.0 / error**2
    reference = int(np.flatnonzero(start == 0.0)[0])
    for _ in range(_ROUNDS):
        left = value - (solved[here] - solved[there])
        weight = 1.0 / np.maximum(np.abs(left) / (_OUTLIER * error), 1.0)
        step = _balance(len(start), here, there, weight * precision, left, reference)
        solved = solved + step
        if np.nanmax(np.abs(step) / error.min()) < 1e-3:
            break
    return solved, weight


def _balance(nodes: int, here: Ints, there: Ints, weight: Floats, left: Floats, reference: int) -> Floats:
    """Conjugate gradients on the weighted Laplacian, the reference held at 0."""

    def spread(flow: Floats) -> Floats:
        out: Floats = np.bincount(here, weights=flow, minlength=nodes).astype(np.float64)
        out -= np.bincount(there, weights=flow, minlength=nodes)
        out[reference] = 0.0
        return out

    diagonal = np.bincount(here, weights=weight, minlength=nodes) + np.bincount(there, weights=weight, minlength=nodes)
    diagonal = np.where(diagonal > 0, diagonal, 1.0)
    found = np.zeros(nodes)
    rest = spread(weight * left)
    towards = rest / diagonal
    energy = float(rest @ towards)
    goal = energy * 1e-12
    for _ in range(4 * nodes):
        if energy <= goal or energy == 0.0:
            break
        moved = spread(weight * (towards[here] - towards[there]))
        curve = float(towards @ moved)
        if curve <= 0:
            break
        found += towards * (energy / curve)
        rest -= moved * (energy / curve)
        scaled = rest / diagonal
        new = float(rest @ scaled)
        towards = scaled + towards * (new / energy)
        energy = new
    return found
