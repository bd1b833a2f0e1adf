"""A capture as its manifest tells it: the same value as a coordinator answers, when there is no coordinator to ask."""

from __future__ import annotations

import datetime

from sameshot.api.views import CaptureView
from sameshot.manifest import Manifest
from sameshot.model import CaptureSpec, CaptureState, TargetFact, TargetState


def view_of(read: Manifest, uri: str) -> CaptureView:
    """Whoever ran it; `uri` is where the manifest was read."""
    capture = read.capture
    return CaptureView(
        capture_id=capture.capture_id,
        job=capture.job.ref,
        series=capture.job.series or "",
        caller=capture.caller,
        request_key=capture.request_key or "",
        n=capture.n,
        spec=capture.spec or CaptureSpec(),
        state=CaptureState(capture.outcome.value),
        backend=capture.backend,
        world_size=capture.world_size,
        generation=capture.generation or "",
        start_at_ns=capture.start_at_ns,
        common_window_ns=capture.common_window_ns,
        frozen_at_ns=_ns(capture.frozen_at),
        converged_at_ns=_ns(capture.converged_at),
        published=True,
        manifest_uri=uri,
        expected=read.totals.expected,
        archived=read.totals.archived,
        failed=read.totals.failed,
        targets=tuple(
            TargetFact(
                target_id=each.target_id,
                identity=each.identity,
                state=TargetState.ARCHIVED if each.artifact is not None else TargetState.FAILED,
                artifact=each.artifact,
                failure=each.failure,
                late_start=None if each.artifact is None else each.artifact.late_start,
            )
            for each in read.targets
        ),
    )


def _ns(moment: str | None) -> int | None:
    if moment is None:
        return None
    since = datetime.datetime.fromisoformat(moment) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1) * 1000
