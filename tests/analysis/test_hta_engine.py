"""HTA as an engine: its failures are named results of one rank or analysis, and never ours.

Where HTA has to crash or hang, a stand-in takes its place on the Python path: a package `hta` whose loader does what
the trace says. Everything else is HTA itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hta_lab import capture_of

from sameshot.analysis import analyze
from sameshot.analysis.hta.engine import run_hta
from sameshot.analysis.hta.result import ANALYSES, LOADING, HtaFailure, HtaResult
from sameshot.cli.main import main
from sameshot.errors import UsageError, VerificationFailed
from sameshot.manifest import Manifest
from sameshot.model import Identity
from sameshot.storage import Storage

needs_hta = pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="pip install 'sameshot[hta]'")


def trace(path: Path, name: str = "gemm", **extra: Any) -> Path:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 2,
              "args": {"correlation": 1}}  # fmt: skip
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10, "dur": 20,
              "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    path.write_text(json.dumps({"traceName": path.name, **extra, "traceEvents": [launch, kernel]}))
    return path


def cpu_only(path: Path) -> Path:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [operator, operator | {"args": {"External id": 1}}]}))
    return path


@needs_hta
def test_a_rank_that_hta_cannot_analyse_costs_only_itself(tmp_path: Path) -> None:
    files = {0: trace(tmp_path / "a.json"), 3: cpu_only(tmp_path / "b.json"), 5: trace(tmp_path / "c.json")}
    # A bare array is a legal trace that HTA can't load.
    files[6] = tmp_path / "d.json"
    files[6].write_text(json.dumps(json.loads(files[0].read_text())["traceEvents"]))
    manifest, storage = capture_of(tmp_path, files)
    found = run_hta(manifest, storage, tmp_path / "out")
    assert (found.version, found.ranks) == ("0.5.0", (0, 3, 5))
    sentences = {f.sentence for f in found.failures}
    assert sentences == {
        "HTA could not load the trace of rank 6: AttributeError: 'list' object has no attribute 'items'",
        "The temporal breakdown of HTA failed on rank 3: IndexError: single positional indexer is out-of-bounds",
        "The idle time breakdown of HTA failed on rank 3: ValueError: No objects to concatenate",
    }
    temporal = found.table("temporal_breakdown")
    assert temporal is not None
    assert [row[:4] for row in temporal.rows] == [(0, 0, 20, 0), (5, 0, 20, 0)]
    overlap = found.table("comm_comp_overlap")
    assert overlap is not None
    assert overlap.rows[0] == (0, None)  # NaN: no communication
    assert {path.name for path in (tmp_path / "out").iterdir()} == {table.file for table in found.tables}


@needs_hta
def test_the_command_shows_hta_beside_our_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture_of(tmp_path, {0: trace(tmp_path / "a.json"), 1: cpu_only(tmp_path / "b.json")})
    command = [
        "analyze",
        str(tmp_path / "capture"),
        "--out",
        str(tmp_path / "out"),
        "--engine",
        "hta",
        "--hta-rounding",
    ]
    monkeypatch.setattr(sys, "argv", ["sameshot", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "HolisticTraceAnalysis 0.5.0" in page
    assert "The temporal breakdown of HTA failed on rank 1: IndexError" in page
    kept = msgspec.json.decode((tmp_path / "out" / "hta.json").read_bytes(), type=HtaResult)
    assert {(f.analysis, f.rank) for f in kept.failures} == {("temporal_breakdown", 1), ("idle_time_breakdown", 1)}
    names = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    tables = {*ANALYSES, "gpu_kernel_type_breakdown"}
    assert names == {f"{prefix}{table}.parquet" for table in tables for prefix in ("", "hta_")}


def test_without_hta_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture_of(tmp_path, {0: trace(tmp_path / "a.json")})
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "hta" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'sameshot\[hta\]'") as raised:
        analyze(str(tmp_path / "capture"), tmp_path / "out", hta=True)
    assert raised.value.exit_code == 2
    assert not (tmp_path / "out").exists()  # said before any trace is read
    analyze(str(tmp_path / "capture"), tmp_path / "out")
    assert not list((tmp_path / "out" / "tables").glob("hta_*"))


def test_bytes_that_the_manifest_does_not_state_never_reach_hta(tmp_path: Path) -> None:
    manifest, storage = capture_of(tmp_path, {0: trace(tmp_path / "a.json")})
    artifact = manifest.targets[0].artifact
    assert artifact is not None
    path = tmp_path / "capture" / artifact.uri
    path.write_bytes(trace(tmp_path / "other.json", name="other").read_bytes())
    with pytest.raises(VerificationFailed, match=r"rank 0.*HTA was not run"):
        run_hta(manifest, storage, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@needs_hta
def test_a_target_without_a_rank_of_its_own_is_left_out_and_named(tmp_path: Path) -> None:
    manifest, storage = capture_of(tmp_path, {rank: trace(tmp_path / f"{rank}.json") for rank in range(4)})
    ranks = {0: 0, 1: None, 2: 7, 3: 7}
    targets = [
        msgspec.structs.replace(t, target_id=f"t{i}", identity=Identity(rank=ranks[i]))
        for i, t in enumerate(manifest.targets)
    ]
    found = run_hta(msgspec.structs.replace(manifest, targets=tuple(targets)), storage, tmp_path / "out")
    assert found.ranks == (0,)
    assert {(f.analysis, f.rank, f.error) for f in found.failures} == {
        (LOADING, None, "no rank"),
        (LOADING, 7, "ambiguous"),
    }


# ---- a stand-in that crashes


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `hta` that obeys the trace: {"load": "kill"} and the like at the top level of rank's file."""
    package = tmp_path / "path" / "hta"
    (package / "common").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'stand-in'\n")
    (package / "common" / "__init__.py").write_text("")
    (package / "common" / "trace.py").write_text(
        textwrap.dedent(
            """
            import json, os, signal, time
            import pandas as pd

            def obey(order):
                if order == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if order == "exit":
                    raise SystemExit("no more memory for you")
                while order == "hang":
                    time.sleep(1)

            class Trace:
                def __init__(self, files, trace_dir):
                    self.files, self.traces, self.orders = files, {}, {}
                def parse_single_rank(self, rank):
                    self.orders[rank] = json.load(open(self.files[rank]))
                    obey(self.orders[rank].get("load"))
                    self.traces[rank] = pd.DataFrame({"index": [0]})
                def align_and_filter_trace(self, include_last_profiler_step):
                    pass
            """
        )
    )
    (package / "trace_analysis.py").write_text(
        textwrap.dedent(
            """
            import pandas as pd
            from hta.common.trace import obey

            class TraceAnalysis:
                def get_temporal_breakdown(self, visualize):
                    for rank in self.t.traces:
                        obey(self.t.orders[rank].get("temporal"))
                    return pd.DataFrame({"rank": sorted(self.t.traces)})
                def get_comm_comp_overlap(self, visualize):
                    return pd.DataFrame({"rank": sorted(self.t.traces)})
                def get_gpu_kernel_breakdown(self, visualize):
                    return self.get_comm_comp_overlap(False), self.get_comm_comp_overlap(False)
                def get_idle_time_breakdown(self, ranks, visualize):
                    return self.get_comm_comp_overlap(False), None
                def get_cuda_kernel_launch_stats(self, ranks, visualize):
                    return {rank: pd.DataFrame({"dur": [1]}) for rank in ranks}
                def get_queue_length_summary(self, ranks):
                    return None
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return package


def ordered(tmp_path: Path, **orders: Any) -> tuple[Manifest, Storage]:
    files = {rank: trace(tmp_path / f"{rank}.json", **(orders.get(f"r{rank}") or {})) for rank in range(3)}
    return capture_of(tmp_path, files)


@needs_hta
@pytest.mark.parametrize(
    ("order", "error"),
    [("kill", "killed"), ("exit", "crashed"), pytest.param("hang", "timeout", marks=pytest.mark.full)],
)
def test_a_rank_on_which_the_load_dies_is_left_out_and_the_rest_is_done(
    tmp_path: Path, stand_in: Path, order: str, error: str
) -> None:
    manifest, storage = ordered(tmp_path, r1={"load": order})
    found = run_hta(manifest, storage, tmp_path / "out", limit_s=15 if order == "hang" else None)
    assert found.version == "stand-in"
    assert found.ranks == (0, 2)
    (failure,) = found.failures
    assert (failure.analysis, failure.rank, failure.error) == (LOADING, 1, error)
    if order == "kill":
        assert failure.sentence == (
            "HTA could not load the trace of rank 1: killed: the process was ended by SIGKILL (out of memory?)"
        )
    if order == "exit":
        assert failure.detail == "no more memory for you"
    table = found.table("temporal_breakdown")
    assert table is not None
    assert table.rows == ((0,), (2,))
    assert len(found.tables) == 6  # no table of queues from this one
    assert not [p for p in psutil.Process().children(recursive=True) if "hta.worker" in " ".join(p.cmdline())]


@needs_hta
def test_an_analysis_that_dies_is_named_and_the_others_are_done(tmp_path: Path, stand_in: Path) -> None:
    manifest, storage = ordered(tmp_path, r2={"temporal": "kill"})
    found = run_hta(manifest, storage, tmp_path / "out")
    assert found.ranks == (0, 1, 2)
    assert [(f.analysis, f.rank, f.error) for f in found.failures] == [("temporal_breakdown", None, "killed")]
    assert {table.name for table in found.tables} >= {"idle_time_breakdown", "comm_comp_overlap"}
    assert found.table("temporal_breakdown") is None


@needs_hta
def test_dying_after_all_is_done_costs_nothing(tmp_path: Path, stand_in: Path) -> None:
    analysis = stand_in / "trace_analysis.py"
    analysis.write_text(
        analysis.read_text() + "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGSEGV)\n"
    )
    manifest, storage = ordered(tmp_path)
    found = run_hta(manifest, storage, tmp_path / "out")
    assert (found.failures, found.ranks, len(found.tables)) == ((), (0, 1, 2), 6)


@needs_hta
def test_a_broken_installation_is_one_failure(tmp_path: Path, stand_in: Path) -> None:
    (stand_in / "__init__.py").write_text("raise ImportError('libfoo.so.7 is missing')\n")
    manifest, storage = ordered(tmp_path)
    began = time.monotonic()
    found = run_hta(manifest, storage, tmp_path / "out")
    assert found.failures == (HtaFailure(LOADING, None, "crashed", "ImportError: libfoo.so.7 is missing"),)
    assert found.failures[0].sentence == "HTA could not be run: crashed: ImportError: libfoo.so.7 is missing"
    assert (found.tables, found.ranks) == ((), ())
    assert time.monotonic() - began < 60


def test_failures_read_as_sentences() -> None:
    failure = HtaFailure("gpu_kernel_breakdown", 3, "KeyError", "'dur'")
    assert failure.sentence == "The kernel breakdown of HTA failed on rank 3: KeyError: 'dur'"
