"""Every archived trace proves whose it is, and a receipt that was tampered with is found out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from checks import check_capture
from live import LiveJob, top_level

from sameshot import manifest
from sameshot.api.views import CaptureView
from sameshot.errors import TraceError
from sameshot.local.services import sameshot_argv
from sameshot.model import BoundBy, CaptureState, InvalidKind
from sameshot.trace.capture_check import locate
from sameshot.trace.verify import Expectation, verify

INDEPENDENT = Path(__file__).parent.parent.parent / "docs" / "verify_manifest.py"

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def taken(_shared_job: LiveJob) -> tuple[LiveJob, CaptureView, CaptureView]:
    """Two captures, one after the other, of the same running processes."""
    views = _shared_job.capture(), _shared_job.capture()
    if _shared_job.crashed:  # torch itself, see conftest.py
        _shared_job.restart()
        views = _shared_job.capture(), _shared_job.capture()
    return _shared_job, *views


def test_four_ranks_are_four_processes_on_the_nodes_that_run_them(
    taken: tuple[LiveJob, CaptureView, CaptureView],
) -> None:
    job, first, second = taken
    workers = job.registrations()
    for view in (first, second):
        assert view.state is CaptureState.SUCCEEDED, view
        assert [fact.identity.rank for fact in view.targets] == [0, 1, 2, 3]
        assert [fact.identity.node for fact in view.targets] == ["node-0", "node-0", "node-1", "node-1"]
        assert len({fact.identity.pid for fact in view.targets}) == 4
        for fact in view.targets:
            rank, pid = fact.identity.rank, fact.identity.pid
            assert rank is not None
            assert (pid, fact.identity.registration) == (workers[rank].pid, workers[rank].uuid)
            assert psutil.Process(pid).environ()["RANK"] == str(rank)  # the kernel's word, not ours
            assert fact.identity.bound_by is BoundBy.BYTES
    assert first.capture_id != second.capture_id
    assert first.generation == second.generation


def test_each_trace_carries_its_registration_and_its_pid_in_its_bytes(
    taken: tuple[LiveJob, CaptureView, CaptureView],
) -> None:
    job, view, _ = taken
    workers = job.registrations()
    traces = job.traces_of(view)
    assert sorted(traces) == [0, 1, 2, 3]
    for rank, trace in traces.items():
        assert top_level(trace)["PT_PROFILER_JOB_NAME"] == f"sameshot/{workers[rank].uuid}"
        recorded_pids = {each["pid"] for each in json.loads(trace)["traceEvents"] if each.get("cat") == "cpu_op"}
        assert recorded_pids == {workers[rank].pid}


def test_another_ranks_bytes_are_a_wrong_identity(
    taken: tuple[LiveJob, CaptureView, CaptureView], tmp_path: Path
) -> None:
    job, view, _ = taken
    workers, traces = job.registrations(), job.traces_of(view)
    offered = tmp_path / "trace.json"
    offered.write_bytes(traces[1])
    verify(offered, Expectation(registration=workers[1].uuid, rank=1))  # as its own rank's it is fine
    for bound_by in BoundBy:
        with pytest.raises(TraceError) as refused:
            verify(offered, Expectation(registration=workers[0].uuid, rank=0, bound_by=bound_by))
        assert refused.value.kind == InvalidKind.IDENTITY
        assert workers[1].uuid in str(refused.value)


def test_an_independent_check_of_size_and_digest_agrees_with_both_manifests(
    taken: tuple[LiveJob, CaptureView, CaptureView],
) -> None:
    job, first, second = taken
    for view in (first, second):
        checked = subprocess.run(
            [sys.executable, "-I", INDEPENDENT, job.manifest_of(view)], capture_output=True, text=True, timeout=60
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        check_capture(*locate(str(job.manifest_of(view))))


def flip_a_byte(folder: Path) -> None:
    trace = trace_of(folder, 2)
    data = bytearray(trace.read_bytes())
    data[len(data) // 2] ^= 1
    trace.write_bytes(data)


def remove_a_trace(folder: Path) -> None:
    trace_of(folder, 2).unlink()


def swap_two_ranks(folder: Path) -> None:
    one, other, aside = trace_of(folder, 0), trace_of(folder, 1), folder / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def edit_the_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    edited = json.loads(path.read_bytes())
    edited["capture"]["world_size"] = 3
    path.write_text(json.dumps(edited))


@pytest.mark.parametrize("harm", [flip_a_byte, remove_a_trace, swap_two_ranks, edit_the_manifest])
def test_manifest_verify_fails_after(
    harm: Callable[[Path], None], taken: tuple[LiveJob, CaptureView, CaptureView], tmp_path: Path
) -> None:
    job, view, _ = taken
    copy = tmp_path / "moved"  # a capture may be moved as a whole
    shutil.copytree(job.folder_of(view), copy)
    check_capture(*locate(str(copy)))
    harm(copy)
    failed = subprocess.run(
        sameshot_argv("manifest", "verify", str(copy / "manifest.json")), capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 4, failed.stdout + failed.stderr
    independent = subprocess.run(
        [sys.executable, "-I", INDEPENDENT, copy / "manifest.json"], capture_output=True, text=True, timeout=60
    )
    assert independent.returncode == 4, independent.stdout + independent.stderr
    check_capture(*locate(str(job.folder_of(view))))


def test_files_that_the_manifest_does_not_name_are_ignored(
    taken: tuple[LiveJob, CaptureView, CaptureView], tmp_path: Path
) -> None:
    job, view, _ = taken
    copy = tmp_path / "moved"
    shutil.copytree(job.folder_of(view), copy)
    (copy / "trace.json").write_text("not a trace")
    files = [target.files for target in check_capture(*locate(str(copy))).targets]
    assert files == [2] * 4  # a trace and its columns


def trace_of(folder: Path, rank: int) -> Path:
    receipt = manifest.decode((folder / "manifest.json").read_bytes())
    (artifact,) = (each.artifact for each in receipt.targets if each.identity.rank == rank)
    assert artifact is not None
    return folder / artifact.uri
