"""One row per rank; of many ranks, details only of those that stand out and of some others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from sameshot.analysis.job.capture import artifact_of_rank
from sameshot.analysis.job.sums import median_parts
from sameshot.analysis.late import Evidence
from sameshot.analysis.results import (
    RankRow,
    RankSummary,
)
from sameshot.analysis.stats import spread
from sameshot.manifest import Target, timestamp

NOTABLE = 64
ALL_DETAILS = 256  # of more ranks, tables per rank are kept for notable ones and some evenly spread ones
ALL_TIMELINES = 1_024  # of more ranks, timelines as well
_DETAILS = "operators kernels untraced_python idle kernel_rows copies queues pauses communication"


def rank_rows(
    ranks: Sequence[RankSummary],
    targets: dict[str, Target],
    labels: Sequence[str],
    evidence: Sequence[Evidence],
    notable: set[str],
    begins: Sequence[int],
) -> list[RankRow]:
    first = min(begins, default=0)
    waited: Counter[int] = Counter()
    last: Counter[int] = Counter()
    lateness: dict[int, int] = {}
    for one in evidence:  # the widest group comes first: that is the one in which lateness is stated
        middle = np.median(one.lateness, axis=1).tolist() if one.lateness.shape[1] else None
        columns = zip(one.ranks, one.total_wait.tolist(), one.last.tolist(), strict=True)
        for place, (index, total, times) in enumerate(columns):
            waited[index] += total
            last[index] += times
            if middle is not None:
                lateness.setdefault(index, int(middle[place]))
    rows = []
    for index, (rank, label) in enumerate(zip(ranks, labels, strict=True)):
        artifact = artifact_of_rank(targets, rank)
        row = RankRow(
            label=label,
            rank=rank.identity.rank,
            target_id=rank.target_id,
            node=rank.identity.node,
            pod=rank.identity.pod,
            window=rank.window,
            window_start_at=timestamp(rank.window_start_ns),
            starts_after=begins[index] - first,
            late_start=artifact is not None and artifact.late_start,
            main_thread=rank.main_thread,
            parts=rank.parts,
            device=rank.device,
            step_count=rank.steps.count,
            step_method=rank.steps.method,
            step_confidence=rank.steps.confidence,
            step_note=rank.steps.note,
            step_time=spread(np.diff(rank.steps.edges)) if rank.steps.count else None,
            step_parts=median_parts(rank.steps.parts),
            collectives=sum(len(stream.dur) for stream in rank.streams),
            waited=waited.get(index),
            last_arrivals=last.get(index),
            lateness_per_step=lateness.get(index),
            operators=rank.operators,
            kernels=rank.kernels,
            untraced_python=rank.untraced_python,
            timeline=rank.timeline,
            trace=rank.trace,
            launches=rank.launches,
            host_bound=rank.host_bound,
            data_wait=rank.data_wait,
            device_timeline=rank.device_timeline,
            step_edges=rank.steps.edges,
            idle=rank.idle,
            kernel_rows=rank.kernel_rows,
            copies=rank.copies,
            queues=rank.queues,
            pauses=rank.pauses,
            communication=rank.communication,
        )
        spaced = index % -(-len(ranks) // NOTABLE) == 0
        if len(ranks) > ALL_DETAILS and label not in notable and not spaced:
            row = msgspec.structs.replace(row, **dict.fromkeys(_DETAILS.split(), ()))
        if len(ranks) > ALL_TIMELINES and label not in notable and not spaced:
            row = msgspec.structs.replace(row, timeline=None, device_timeline=None, step_edges=())
        rows.append(row)
    return rows
