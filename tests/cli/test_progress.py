"""What a person sees of a capture: a live table on a terminal, one line per change elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

from sameshot.api.views import CaptureView
from sameshot.cli.progress import follow
from sameshot.model import CaptureState, Failure, FailureReason, Identity, JobRef, TargetFact, TargetState


def views() -> Iterator[CaptureView]:
    """Two ranks: both fetch their config, then one is archived and the other's process dies."""
    for state, facts in [
        (CaptureState.COLLECTING, [fact(0, TargetState.CONSUMED), fact(1, TargetState.CONSUMED)]),
        (CaptureState.PARTIAL, [fact(0, TargetState.ARCHIVED), fact(1, TargetState.FAILED)]),
    ]:
        yield CaptureView(
            capture_id="c" * 32, job=JobRef("local", "bert", "u"), state=state, expected=2, targets=tuple(facts)
        )


def fact(rank: int, state: TargetState) -> TargetFact:
    failure = Failure(FailureReason.WORKER_EXITED, "its lock was released", TargetState.CONSUMED)
    return TargetFact(
        target_id=f"node-0/main/{rank}",
        identity=Identity(rank=rank),
        state=state,
        failure=failure if state is TargetState.FAILED else None,
    )


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    last = follow(views(), Console(file=out, force_terminal=terminal, width=200, color_system=None))
    assert last is not None
    assert last.state is CaptureState.PARTIAL
    return out.getvalue()


def test_a_terminal_shows_every_rank_by_state_and_where_it_ended() -> None:
    final = shown(terminal=True).rpartition("PARTIAL")[2]
    delivered, failed = (next(line for line in final.splitlines() if f"node-0/main/{rank}" in line) for rank in (0, 1))
    assert delivered.count("●") == 6  # dispatched, queued, consumed, announced, verified, archived
    assert "✗" not in delivered
    assert failed.count("●") == 3
    assert failed.count("✗") == 1
    assert "WORKER_EXITED: its lock was released" in failed


def test_a_pipe_gets_one_line_for_each_change_and_no_line_twice() -> None:
    lines = [line for line in shown(terminal=False).splitlines() if line.startswith("  rank")]
    assert lines == [
        "  rank 0 (node-0/main/0): CONSUMED",
        "  rank 1 (node-0/main/1): CONSUMED",
        "  rank 0 (node-0/main/0): ARCHIVED",
        "  rank 1 (node-0/main/1): FAILED: WORKER_EXITED: its lock was released",
    ]
