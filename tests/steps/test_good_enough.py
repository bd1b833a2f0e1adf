"""Whether a capture is good enough, for every state it may be in: only what was proven counts."""

from __future__ import annotations

import msgspec
import pytest

from sameshot.api.views import CaptureView
from sameshot.model import (
    Artifact,
    CaptureSpec,
    CaptureState,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    TargetFact,
    TargetState,
)
from sameshot.steps.results import TEXT_LIMIT
from sameshot.steps.verdict import judge, missing
from support.fake_agent import JOB

TRACE = Artifact("t", 1, "0" * 64, Encoding.GZIP, 1, "0" * 64, 0, 1)


def target(rank: int | None, failure: Failure | None = None, target_id: str | None = None) -> TargetFact:
    state = TargetState.ARCHIVED if failure is None else TargetState.FAILED
    artifact = TRACE if failure is None else None
    return TargetFact(target_id or f"node/main/{rank}", Identity(rank=rank), state, artifact=artifact, failure=failure)


def lost(rank: int | None, reason: FailureReason, detail: str = "it went away.", **more: str) -> TargetFact:
    return target(rank, Failure(reason, detail), **more)


def capture(state: CaptureState, *targets: TargetFact, **changes: object) -> CaptureView:
    view = CaptureView(
        capture_id="c" * 32,
        job=JOB,
        spec=CaptureSpec(duration_ms=1000),
        state=state,
        published=state.terminal,
        manifest_uri="file:///archive/manifest.json",
        targets=targets,
        expected=len(targets),
        archived=sum(each.artifact is not None for each in targets),
        failed=sum(each.failure is not None for each in targets),
        common_window_ns=900_000_000,
        converged_at_ns=1,
    )
    return msgspec.structs.replace(view, **changes)


FOUR = (
    target(0),
    target(1),
    lost(2, FailureReason.WORKER_EXITED),
    lost(3, FailureReason.MISSING, "no file by the deadline"),
)
ALL = tuple(target(rank) for rank in range(4))
NONE = tuple(lost(rank, FailureReason.MISSING) for rank in range(4))


@pytest.mark.parametrize(
    ("view", "min_ranks", "code"),
    [
        # every state of a capture that is published as far as it can be
        (capture(CaptureState.WAITING), None, 75),
        (capture(CaptureState.DISPATCHING, *ALL), None, 75),
        (capture(CaptureState.COLLECTING, *ALL), None, 75),
        (capture(CaptureState.PUBLISHING, *ALL), None, 75),
        (capture(CaptureState.SUCCEEDED, *ALL), None, 0),
        (capture(CaptureState.PARTIAL, *FOUR), None, 3),
        (capture(CaptureState.FAILED, *NONE), None, 4),
        (capture(CaptureState.CANCELLED, *FOUR), None, 7),
        (capture(CaptureState.UNKNOWN, published=False), None, 5),
        # not in the archive: nobody may go on, whatever the state says
        (capture(CaptureState.SUCCEEDED, *ALL, published=False), None, 75),
        (capture(CaptureState.PARTIAL, *FOUR, published=False), None, 75),
        (capture(CaptureState.PARTIAL, *FOUR, published=False), 1, 75),
        (capture(CaptureState.FAILED, *NONE, published=False), None, 75),
        (capture(CaptureState.CANCELLED, *FOUR, published=False), None, 75),
        # nobody was there to be asked: there is no manifest and never will be
        (capture(CaptureState.FAILED, published=False), None, 6),
        (capture(CaptureState.CANCELLED, published=False), None, 7),
        # a minimum of ranks
        (capture(CaptureState.PARTIAL, *FOUR), 1, 0),
        (capture(CaptureState.PARTIAL, *FOUR), 2, 0),
        (capture(CaptureState.PARTIAL, *FOUR), 3, 3),
        (capture(CaptureState.PARTIAL, *FOUR), 400, 3),
        (capture(CaptureState.SUCCEEDED, *ALL), 8, 0),  # a job of four ranks has no more
        (capture(CaptureState.FAILED, *NONE), 1, 4),
        (capture(CaptureState.CANCELLED, *FOUR), 1, 7),  # never good enough
        (capture(CaptureState.CANCELLED, *ALL), 1, 7),
        (capture(CaptureState.UNKNOWN, published=False), 1, 5),
        (capture(CaptureState.COLLECTING, *ALL), 1, 75),
    ],
)
def test_each_end_has_its_verdict(view: CaptureView, min_ranks: int | None, code: int) -> None:
    verdict = judge(view, min_ranks)
    assert verdict.exit_code == code
    assert verdict.message
    assert len(verdict.message) <= TEXT_LIMIT
    if code:
        assert not verdict.warning


def test_every_state_is_judged() -> None:
    for state in CaptureState:
        assert judge(capture(state, *FOUR)).message
        assert (judge(capture(state, *ALL)).exit_code == 0) == (state is CaptureState.SUCCEEDED)


def test_a_partial_capture_names_every_missing_rank_and_why() -> None:
    verdict = judge(capture(CaptureState.PARTIAL, *FOUR))
    assert verdict.message == (
        "2 of 4 ranks of train have no verified trace: 2-3. rank 2: WORKER_EXITED, it went away; "
        "rank 3: MISSING, no file by the deadline."
    )


def test_with_a_minimum_the_same_is_a_warning() -> None:
    verdict = judge(capture(CaptureState.PARTIAL, *FOUR), 2)
    assert verdict.exit_code == 0
    assert verdict.message == "2 of 4 ranks have a verified trace."
    assert "2-3" in verdict.warning
    assert "WORKER_EXITED" in verdict.warning


def test_below_the_minimum_both_numbers_and_the_ranks_are_named() -> None:
    message = judge(capture(CaptureState.PARTIAL, *FOUR), 3).message
    assert message.startswith("2 verified traces are fewer than the 3 asked for.")
    assert "2-3" in message


def test_of_a_large_job_the_message_stays_short_and_the_ranges_are_whole() -> None:
    targets = [
        target(rank) if rank % 512 else lost(rank, FailureReason.AGENT_UNREACHABLE, "x" * 500) for rank in range(4096)
    ]
    verdict = judge(capture(CaptureState.PARTIAL, *targets))
    assert len(verdict.message) <= TEXT_LIMIT
    assert "8 of 4096" in verdict.message
    assert "0, 512, 1024, 1536, 2048, 2560, 3072, 3584" in verdict.message
    assert "rank 0: AGENT_UNREACHABLE" in verdict.message


def test_targets_whose_rank_nobody_knows_are_named_by_their_id() -> None:
    view = capture(
        CaptureState.PARTIAL, target(0), lost(None, FailureReason.NEVER_REGISTERED, target_id="pod-7/main/1")
    )
    assert missing(view) == "pod-7/main/1"
    assert "pod-7/main/1: NEVER_REGISTERED" in judge(view).message


def test_what_kind_of_cancel_it_was_and_what_is_kept_is_said() -> None:
    message = judge(capture(CaptureState.CANCELLED, *FOUR, withdrawn="2 of 2 configs were withdrawn.")).message
    assert "2 of 4 traces are kept" in message
    assert "2 of 2 configs were withdrawn." in message


def test_a_complete_capture_whose_ranks_hardly_overlap_passes_with_a_warning() -> None:
    half = judge(capture(CaptureState.SUCCEEDED, *ALL, common_window_ns=500_000_000))
    assert (half.exit_code, half.warning) == (0, "")
    none = judge(capture(CaptureState.SUCCEEDED, *ALL, common_window_ns=-2_600_000_000))
    assert none.exit_code == 0
    assert "-2600 ms of 1000 ms" in none.warning
    assert judge(capture(CaptureState.SUCCEEDED, *ALL, common_window_ns=None)).warning == ""


def test_enough_ranks_that_hardly_overlap_are_warned_of_twice() -> None:
    few = capture(CaptureState.PARTIAL, *FOUR, common_window_ns=120_000_000)
    verdict = judge(few, 2)
    assert verdict.exit_code == 0
    assert verdict.warning.startswith("2 of 4 ranks of train have no verified trace: 2-3.")
    assert "only 120 ms of 1000 ms in common" in verdict.warning
    assert len(verdict.warning) <= TEXT_LIMIT
    assert "in common" not in judge(capture(CaptureState.PARTIAL, *FOUR), 2).warning
