"""`map`: one verified trace in, one small `RankSummary` out. Pure; nothing here knows about other ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from sameshot.analysis import communication, device, host
from sameshot.analysis.device.temporal import Occupancy, device_parts, occupancy
from sameshot.analysis.device.work import Work, gather
from sameshot.analysis.frame import Frame
from sameshot.analysis.host.data_wait import data_wait, feel, find_fetches
from sameshot.analysis.host.pauses import pauses
from sameshot.analysis.host.steps import find_steps
from sameshot.analysis.intervals import EMPTY, Spans
from sameshot.analysis.results import Part, RankSummary, Steps, TraceFacts
from sameshot.model import Identity


def summarise(
    frame: Frame,
    *,
    target_id: str,
    identity: Identity,
    base_ns: int,
    window_ns: tuple[int, int],
    raw_size: int,
    raw_sha256: str,
    fetch_pattern: str | None = None,
    work: Work | None = None,
) -> RankSummary:
    """Turn the frame of one trace into its summary.

    `base_ns` is the trace's base time (0: unknown). `window_ns` is what the verifier found (CLOCK_REALTIME): the same
    window as in the manifest, from the first to the last recorded event of any kind. `fetch_pattern` says which
    annotations fetch data, where it is not torch's DataLoader. `work` is what `gather` made of the frame, where it is
    known.
    """
    first, last = (moment - base_ns for moment in window_ns)
    main = host.main_thread(frame)
    window = (first, last)
    fetches = find_fetches(frame, main, window, fetch_pattern)
    spans = host.part_spans(frame, main, first, last, Spans() if fetches is None else fetches.spans)
    work = gather(frame) if work is None else work
    running = occupancy(work, window)
    felt = feel(frame, work, running, main, fetches)
    on_device = device.measure(frame, window=window, felt=felt.idle, work=work, found=running)
    traffic = communication.measure(frame, window=window, fetching=spans[Part.DATA_WAIT], working=spans[Part.OPERATORS])
    fetch = EMPTY if fetches is None else fetches.spans.start
    steps = _steps(find_steps(frame, main, first, fetch), spans, running if frame.device else None, window)
    edges = np.asarray(steps.edges, dtype=np.int64) + first
    oddities = Counter(frame.oddities)
    oddities.update(on_device.oddities)
    return RankSummary(
        target_id=target_id,
        identity=identity,
        window_start_ns=window_ns[0],
        window_end_ns=window_ns[1],
        trace=TraceFacts(
            events=frame.events,
            by_category=dict(sorted(frame.by_category.items())),
            unknown_categories=dict(sorted(frame.unknown.items())),
            oddities=dict(sorted(oddities.items())),
            raw_size=raw_size,
            raw_sha256=raw_sha256,
            base_time=base_ns,
        ),
        main_thread=None if main is None else "/".join(str(part) for part in frame.lanes[main]),
        parts=host.times(spans, np.asarray([first, last], dtype=np.int64))[0],
        device=on_device.device,
        operators=host.top_operators(frame),
        kernels=host.top_kernels(frame),
        untraced_python=host.python_in(frame, main, spans[Part.UNTRACED]),
        steps=steps,
        streams=traffic.streams,
        groups=traffic.groups,
        communication=traffic.communication,
        timeline=host.timeline(spans, first, last),
        idle=on_device.idle,
        kernel_rows=on_device.kernel_rows,
        copies=on_device.copies,
        launches=on_device.launches,
        queues=on_device.queues,
        host_bound=on_device.host_bound,
        device_timeline=on_device.device_timeline,
        pauses=pauses(frame, main, spans[Part.DATA_WAIT]),
        data_wait=data_wait(fetches, felt if frame.device else None, window, edges),
    )


def _steps(found: Steps, spans: dict[Part, Spans], running: Occupancy | None, window: tuple[int, int]) -> Steps:
    """With what the main thread and the devices did in each step, and edges after the window's start.

    Edges beyond the window, which only columns made by others have, are at its border.
    """
    if not found.edges:
        return found
    edges = np.clip(np.asarray(found.edges, dtype=np.int64), *window)
    return Steps(
        found.method,
        found.confidence,
        found.note,
        tuple((edges - window[0]).tolist()),
        parts=tuple(host.times(spans, edges)),
        device=() if running is None else device_parts(running, edges),
    )
