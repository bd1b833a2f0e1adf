"""Captures that lack ranks, that meet others, and that are asked of the past."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from airflow_lab import Lab

from sameshot.model import CaptureState, TargetState


def test_two_runs_at_once_take_turns_and_both_succeed(lab: Lab) -> None:
    runs = [lab.run("one_capture", duration="3s") for _ in range(2)]
    views = [lab.wait_capture(run) for run in runs]
    assert any(view.state is CaptureState.WAITING for view in views)
    for run in runs:
        lab.api.wait_run("one_capture", run, "success")
    first, second = sorted((lab.captures_for(run)[0] for run in runs), key=lambda view: view.start_at_ns or 0)
    assert [first.state, second.state] == [CaptureState.SUCCEEDED] * 2
    assert first.capture_id != second.capture_id
    # One after the other: the second was offered its start after the first one's window.
    assert first.start_at_ns is not None
    assert second.start_at_ns is not None
    assert second.start_at_ns >= first.start_at_ns + 3_000_000_000
    assert [len(lab.in_archive(run)) for run in runs] == [1, 1]


def test_a_rank_that_dies_fails_the_task_unless_the_rest_is_enough(lab: Lab, tmp_path: Path) -> None:
    # Without a launcher and without collectives nobody ends the other rank.
    with lab.another_job("widowed", tmp_path, launcher="none", script_args=("--apart", "--pause", "0.05")) as job:
        run = lab.run("one_capture", job="widowed", duration="4s")
        view = job.wait_until(lab.wait_capture(run, job=job), TargetState.CONSUMED)
        os.kill(job.pids()[1], signal.SIGKILL)
        lab.api.wait_run("one_capture", run, "failed")
        log = lab.api.log("one_capture", run, "capture")
        (ended,) = lab.captures_for(run, job)
        assert (ended.capture_id, ended.state, ended.archived) == (view.capture_id, CaptureState.PARTIAL, 1)
        kept = lab.api.xcom("one_capture", run, "capture")
        assert (kept["missing"], kept["exit_code"]) == ("1", 3)
        assert "1 of 2 ranks of widowed have no verified trace: 1." in kept["message"]
        assert "1 of 2 ranks of widowed have no verified trace: 1. rank 1: WORKER_EXITED" in log
        assert lab.api.asset_events("one_capture", run) == []

        # It is still dead: the same again, with a person who is content with one rank.
        run = lab.run("one_capture", job="widowed", duration="1s", min_ranks=1)
        lab.api.wait_run("one_capture", run, "success")
        passed = lab.api.xcom("one_capture", run, "capture")
        assert (passed["outcome"], passed["missing"], passed["archived"]) == ("PARTIAL", "1", 1)
        warnings = [line for line in lab.api.log("one_capture", run, "capture").splitlines() if " WARNING " in line]
        assert any(passed["warning"] in line and "rank 1" in line for line in warnings)
        assert len(lab.api.asset_events("one_capture", run)) == 1


def test_a_backfill_is_refused_unless_it_is_allowed(lab: Lab) -> None:
    """One can't photograph the past."""
    for dag_id in ("daily_capture", "daily_capture_allowed"):
        lab.server.wait_dag(dag_id)
        assert lab.api.runs(dag_id) == []
    refused = lab.server.backfill("daily_capture", "2026-01-02")
    allowed = lab.server.backfill("daily_capture_allowed", "2026-01-02")
    lab.api.wait_run("daily_capture", refused, "failed")
    lab.api.wait_run("daily_capture_allowed", allowed, "success")

    log = lab.api.log("daily_capture", refused, "capture")
    assert f"Run {refused} belongs to a backfill. One can't photograph the past: nothing was captured." in log
    assert [view.state for view in lab.captures_for(f"daily_capture_allowed/{allowed}")] == [CaptureState.SUCCEEDED]
    assert [view.state for view in lab.captures_for(f"daily_capture/{refused}")] == []
