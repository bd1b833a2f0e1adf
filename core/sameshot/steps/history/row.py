"""One capture in one row: who, when, how complete, and the numbers that one looks at first.

A row says nothing that is not in the capture's manifest and summary, and nothing about when or where it was analysed:
the same capture analysed again by the same version gives the same row.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from sameshot.errors import UsageError
from sameshot.model import Outcome
from sameshot.steps.history.alike import recorded
from sameshot.steps.results import Headline, ranges

if TYPE_CHECKING:  # numpy comes with the analysis, and rows are read without
    from sameshot.analysis.results import Summary
    from sameshot.manifest import Manifest

SCHEMA = "sameshot.dev/history/v1"


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One analysed capture of a series. None is unknown, never zero.

    `captured_at` is RFC 3339 in UTC to the microsecond (`2026-01-31T12:00:00.000000Z`; other forms are brought into
    this one, so that rows sort as texts): see `captured_at`. `commit` and `image` are what the trainer ran, where
    whoever analysed knew it. The options at the end are what the capture was recorded with: unknown of imported ones,
    and in rows of versions that did not keep them (the manifest says it). Raises UsageError for a row that could not be
    found again.
    """

    schema: str = SCHEMA
    namespace: str
    series: str  # the job's name where it has no series
    job: str
    job_uid: str
    attempt: int
    capture_id: str
    captured_at: str
    manifest_uri: str
    manifest_sha256: str
    outcome: Outcome
    expected_ranks: int
    analysed_ranks: int
    world_size: int | None = None
    image: str | None = None
    commit: str | None = None
    report_uri: str | None = None
    generator: str  # the version whose definitions the numbers follow
    headline: Headline = Headline()
    activities: str | None = None  # sorted: `cpu,cuda`
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_memory: bool | None = None
    with_flops: bool | None = None
    duration_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("namespace", "series", "capture_id"):
            if not getattr(self, name):
                raise UsageError(f"A row of the history needs a {name.replace('_', ' ')}; it is empty.")
        msgspec.structs.force_setattr(self, "captured_at", canonical(self.captured_at))

    @property
    def key(self) -> tuple[str, str]:
        """What rows of a series are ordered by: when they were captured, and for a tie the capture's id."""
        return self.captured_at, self.capture_id


def row_of(
    summary: Summary, manifest: Manifest, *, report_uri: str | None = None, image: str | None = None,
    commit: str | None = None,
) -> HistoryRow:  # fmt: skip
    """The row of one analysed capture; `summary` must be that of `manifest`."""
    capture = manifest.capture
    job = capture.job
    how = recorded(capture)
    return HistoryRow(
        namespace=job.namespace,
        series=job.series or job.name,
        job=job.name,
        job_uid=job.uid,
        attempt=job.attempt,
        capture_id=capture.capture_id,
        captured_at=captured_at(manifest),
        manifest_uri=summary.capture.manifest,
        manifest_sha256=manifest.sha256,
        outcome=capture.outcome,
        expected_ranks=summary.expected_ranks,
        analysed_ranks=summary.analysed_ranks,
        world_size=capture.world_size,
        image=image or None,
        commit=commit or None,
        report_uri=report_uri or None,
        generator=summary.generator,
        headline=headline_of(summary),
        activities=how.activities,
        with_stack=how.with_stack,
        record_shapes=how.record_shapes,
        profile_memory=how.profile_memory,
        with_flops=how.with_flops,
        duration_ms=how.duration_ms,
    )


def captured_at(manifest: Manifest) -> str:
    """When this capture was taken, as `HistoryRow.captured_at`; never the time of the analysis.

    When its targets were frozen; where nobody froze any (imported traces), when the first window began, by the clock
    of its host; without a single trace, when the capture converged.
    """
    from sameshot.manifest import timestamp

    capture = manifest.capture
    starts = [target.artifact.window_start_ns for target in manifest.targets if target.artifact is not None]
    return canonical(capture.frozen_at or (timestamp(min(starts)) if starts else capture.converged_at))


def canonical(moment: str) -> str:
    """RFC 3339 in UTC, to the microsecond (what is finer is cut off). Raises UsageError for anything else."""
    try:
        parsed = datetime.datetime.fromisoformat(moment)
        if parsed.tzinfo is None:
            raise ValueError("it has no time zone")
        utc = parsed.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{moment!r} is no moment like 2026-01-31T12:00:00Z: {error}.") from None
    return utc.isoformat(timespec="microseconds") + "Z"


def headline_of(summary: Summary) -> Headline:
    """The numbers of a capture that one looks at first. None where a number is unknown or makes no sense.

    - `step_time_ns`: median of the durations of all whole steps inside the windows, over all analysed ranks together.
    - `step_spread_ns`: 90th minus 10th percentile of the same durations; None of fewer than two.
    - `steps`: how many durations that were.
    - `gpu_busy_share`: share of the GPU time in which a kernel, copy or memset ran. GPU time: the windows of all ranks
      in whose traces a GPU worked, summed; a rank's several GPUs count as one.
    - `communication_exposed_share`: share of the GPU time in which only communication kernels ran; waiting for late
      ranks is in it.
    - `data_wait_share`: what fetching the next batch cost (GPU idle from the fetch's begin to the first kernel of the
      new batch; without a GPU the main thread's time in the fetch), summed, over the summed windows, of the ranks in
      which fetches were seen. None: none was seen, which is not the same as no waiting.
    - `host_bound_share`: share of the GPU time (as above, of the ranks for which it is known) in which the GPU was idle
      for the launching thread.
    - `waiting_ns`: the waiting for later ranks at matched collectives, summed over ranks, as a share of the windows of
      the ranks that were compared, times `step_time_ns`: what one rank waits in one step. At least so much, as time
      outside the common window counts as waiting for nobody. None where nothing was matched or no step is known.
    - `late`: the ranks that were named as holding others up; `lateness`: the verdict (`late`, `none`, `unknown`).
    """
    step, device, ranks = summary.step_time, summary.device, summary.ranks
    fetched = [(rank.window, rank.data_wait) for rank in ranks if rank.data_wait is not None]
    hosts = [(rank.device.total, rank.host_bound.total) for rank in ranks if rank.device and rank.host_bound]
    compared = sum(rank.window for rank in ranks if rank.waited is not None)
    waiting = None
    if summary.waiting is not None and compared and step is not None:
        waiting = round(summary.waiting / compared * step.median)
    return Headline(
        step_time_ns=None if step is None else step.median,
        step_spread_ns=None if step is None or step.count < 2 else step.p90 - step.p10,
        steps=0 if step is None else step.count,
        gpu_busy_share=None if device is None else _share(device.total - device.idle, device.total),
        communication_exposed_share=None if device is None else _share(device.communication, device.total),
        data_wait_share=_share(
            sum(wait.raw if wait.felt is None else wait.felt for _, wait in fetched),
            sum(window for window, _ in fetched),
        ),
        host_bound_share=_share(sum(spent for _, spent in hosts), sum(whole for whole, _ in hosts)),
        waiting_ns=waiting,
        late=_named(summary),
        lateness=summary.late.verdict.value,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _named(summary: Summary) -> str:
    """The late ranks; one that nobody knows the rank of, by its label."""
    known = ranges(late.rank for late in summary.late.ranks if late.rank is not None)
    return ", ".join(filter(None, (known, *(late.label for late in summary.late.ranks if late.rank is None))))
