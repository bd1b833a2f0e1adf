"""`profile_job`: from a running training job to its report, ready to be run, and to be scheduled by a launch plan.

Everything about the capture is an input of the workflow, so that it is changed for a launch plan, or for a single
execution, without registering anything again.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from flytekit import map_task, workflow
from flytekit.types.file import HTMLPage

from sameshot_flyte.flyte1.analysis import ONE_IS_ENOUGH, Ranks, analyze_rank, compare, reduce
from sameshot_flyte.flyte1.task import capture
from sameshot_flyte.forms import described
from sameshot_flyte.references import Analysis, Capture, Comparison

CONCURRENCY = 8
"""Ranks that are read at the same time."""


class Profile(NamedTuple):
    """What is there in the end. After a capture that was skipped as asked for, `capture.message` says why, and the
    rest that there was nothing to do. `comparison_report` says so, too, where nothing was compared."""

    capture: Capture
    analysis: Analysis
    report: HTMLPage
    ranks: Ranks
    comparison: Comparison
    comparison_report: HTMLPage


@workflow
@described
def profile_job(
    address: str,
    results: str,
    job: str = "",
    uid: str = "",
    attempt: int = -1,
    duration: str = "2s",
    activities: str = "cpu,cuda",
    with_stack: bool = False,
    record_shapes: bool = False,
    warmup: str = "1s",
    min_ranks: int = 0,
    if_unavailable: str = "fail",
    if_busy: str = "wait",
    timeout: str = "15m",
    caller: str = "",
    fetch_pattern: str = "",
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
    threshold: float = -1.0,
    accept_partial: bool = False,
) -> Profile:
    """Capture a window of every rank of a running job, analyse the ranks side by side, and report on all of them.

    A rank whose trace can't be analysed loses no other; the report names it, and fails unless enough are left.
    """
    picture = capture(
        address=address,
        job=job,
        uid=uid,
        attempt=attempt,
        duration=duration,
        activities=activities,
        with_stack=with_stack,
        record_shapes=record_shapes,
        warmup=warmup,
        min_ranks=min_ranks,
        if_unavailable=if_unavailable,
        if_busy=if_busy,
        timeout=timeout,
        caller=caller,
    )
    one_shard = partial(
        analyze_rank,
        manifest_uri=picture.manifest_uri,
        manifest_sha256=picture.manifest_sha256,
        results=results,
        fetch_pattern=fetch_pattern,
    )
    analysed = map_task(one_shard, concurrency=CONCURRENCY, min_success_ratio=ONE_IS_ENOUGH)(shard=picture.shards)
    made = reduce(
        manifest_uri=picture.manifest_uri,
        manifest_sha256=picture.manifest_sha256,
        results=results,
        analysed=analysed,
        fetch_pattern=fetch_pattern,
        min_ranks=min_ranks,
        history=history,
        trained_image=trained_image,
        commit=commit,
    )
    compared = compare(
        manifest_uri=picture.manifest_uri,
        manifest_sha256=picture.manifest_sha256,
        results=results,
        threshold=threshold,
        accept_partial=accept_partial,
        min_ranks=min_ranks,
        analysis=made.analysis,
    )
    return Profile(picture, made.analysis, made.report, made.ranks, compared.comparison, compared.report)
