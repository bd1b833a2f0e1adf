"""The devices at the resolution of a screen."""

from __future__ import annotations

import itertools

import numpy as np

from sameshot.analysis.device.temporal import Occupancy
from sameshot.analysis.results import Timeline

BUCKETS = 480
PARTS = ("compute", "communication", "memory", "idle")


def device_timeline(found: Occupancy, window: tuple[int, int]) -> Timeline | None:
    """What filled most of each bucket. None: the window is too short to be cut up."""
    first, last = window
    if last - first < BUCKETS:
        return None
    width, rest = divmod(last - first, BUCKETS)
    at = np.arange(BUCKETS + 1)
    edges = first + at * width + at * rest // BUCKETS
    compute, kernels, busy = (spans.within(edges) for spans in (found.compute, found.kernels, found.busy))
    filled = np.stack((compute, kernels - compute, busy - kernels, np.diff(edges) - busy))
    largest = np.argmax(filled, axis=0).tolist()
    return Timeline(
        buckets=BUCKETS, runs=tuple((PARTS[part], len(list(run))) for part, run in itertools.groupby(largest))
    )
