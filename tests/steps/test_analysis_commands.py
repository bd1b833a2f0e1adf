"""`sameshot step analyze-rank`, `reduce`, `analyze` and `compare`: flags in, a small file and an exit code out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gloo_job import GlooJob, archive, failed
from import_run import import_run
from make_job import GpuJob, Slow
from redated import redate
from s3 import Fault, FaultyProxy, make_bucket, moto_server, s3_environment

from sameshot.cli.main import invoke
from sameshot.manifest import decode
from sameshot.steps.history import rows
from sameshot.steps.results import AnalysisResult, CompareResult, RankResult, from_builtins


def step(*arguments: object, result: Path) -> tuple[int, dict[str, Any]]:
    code = invoke(["step", *map(str, arguments), "--result", str(result)])
    return code, json.loads(result.read_text())


def capture(folder: Path, **more: Any) -> Path:
    return archive(folder / "archive", GlooJob(seed=1, late={2: 30.0}).traces(), **more)


def test_shards_and_reduce_give_results_that_other_processes_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, results = capture(tmp_path), tmp_path / "results"
    digest = decode(manifest.read_bytes()).sha256
    for shard in ("0/2", "1/2"):
        code, told = step(
            "analyze-rank", manifest, "--shard", shard, "--results", results, "--expected-sha256", digest,
            result=tmp_path / "rank.json",
        )  # fmt: skip
        assert (code, told["exit_code"], told["error"]) == (0, 0, "")
        assert from_builtins(told, RankResult).shard == shard
    shown = capsys.readouterr()
    assert shown.out == ""  # a result is a file; what people read is on standard error
    assert "analysed 2/2: node-1/main/1" in shown.err
    code, told = step("reduce", manifest, "--results", results, "--commit", "1a2b3c", result=tmp_path / "reduce.json")
    found = from_builtins(told, AnalysisResult)
    assert (code, found.headline.late, found.analysed) == (0, "2", 4)
    assert rows(str(results), "local", "demo")[0].commit == "1a2b3c"
    assert (tmp_path / "reduce.json").stat().st_size < 3000  # indented; the result itself is below 2000


def test_analyze_does_all_of_it_and_takes_the_place_of_results_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMESHOT_RESULTS", str(tmp_path / "results"))
    code, told = step("analyze", capture(tmp_path), "--no-history", result=tmp_path / "analyze.json")
    assert (code, told["headline"]["late"], told["history_uri"]) == (0, "2", "")
    assert (tmp_path / "results" / "captures").is_dir()
    assert not (tmp_path / "results" / "history").exists()


def test_missing_ranks_are_exit_code_3_unless_the_others_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = GlooJob(seed=1).traces()
    del traces[1]
    manifest = archive(tmp_path / "archive", traces, failures=(failed(1),))
    code, told = step("analyze", manifest, "--results", tmp_path / "results", result=tmp_path / "a.json")
    assert (code, told["exit_code"], told["error"], told["missing"]) == (3, 3, "PartialCapture", "1")
    assert "rank 1 (WORKER_EXITED)" in capsys.readouterr().err
    code, told = step(
        "reduce", manifest, "--results", tmp_path / "results", "--min-ranks", 3, result=tmp_path / "a.json"
    )
    assert (code, told["exit_code"], told["missing"]) == (0, 0, "1")


def test_reduce_is_told_the_fetch_pattern_and_which_shards_were_analysed(tmp_path: Path) -> None:
    reduce = ("reduce", capture(tmp_path), "--results", tmp_path / "results")
    code, told = step(*reduce, "--analysed=0/4, 2/4", "--fetch-pattern=next", result=tmp_path / "r.json")
    assert (code, told["missing"]) == (3, "1, 3")
    code, told = step(*reduce, "--min-ranks", 2, "--fetch-pattern=next", "--analysed=", result=tmp_path / "r.json")
    assert (code, told["missing"]) == (0, "1, 3")
    code, told = step(*reduce, "--min-ranks", 2, "--fetch-pattern=", result=tmp_path / "r.json")
    assert (code, told["error"]) == (4, "VerificationFailed")
    assert "'next'" in told["message"]
    code, told = step(*reduce, "--analysed=all", result=tmp_path / "r.json")
    assert (code, told["error"]) == (2, "UsageError")


def test_an_error_is_in_the_result_file_too(tmp_path: Path) -> None:
    manifest, results = capture(tmp_path), tmp_path / "results"
    code, told = step("reduce", manifest, "--results", results, result=tmp_path / "r.json")
    assert (code, told["exit_code"], told["error"]) == (4, 4, "VerificationFailed")
    assert "shard 0/4" in told["message"]
    assert told["manifest_uri"] == str(manifest)
    code, told = step("analyze-rank", manifest, "--shard", "4/4", "--results", results, result=tmp_path / "r.json")
    assert (code, told["error"], told["shard"]) == (2, "UsageError", "4/4")
    code, told = step("compare", tmp_path / "none.json", "--results", results, result=tmp_path / "r.json")
    assert (code, told["error"]) == (5, "UnknownCapture")


@pytest.mark.parametrize("name", ["analyze-rank", "reduce", "analyze", "compare"])
def test_every_step_says_how_it_is_called(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["step", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"sameshot step {name} " in " ".join(shown.split())
    assert "--results" in shown


def test_a_regression_is_exit_code_0_or_4_as_the_caller_wants(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for hour, slow in enumerate(((), (Slow(rank=1, cause="host", ms=8),))):
        run = GpuJob(hosts=1, gpus=2, steps=16, seed=hour, slow=slow).run()
        manifest = import_run(tmp_path / f"run{hour}", run, series="nightly", job=f"run-{hour}") / "manifest.json"
        redate(manifest, hour)
        assert invoke(["step", "analyze", str(manifest), "--results", str(results)]) == 0
    code, told = step("compare", manifest, "--results", results, result=tmp_path / "c.json")
    assert (code, from_builtins(told, CompareResult).verdict) == (0, "regressed")
    code, told = step("compare", manifest, "--results", results, "--fail-on-regression", result=tmp_path / "c.json")
    assert (code, told["exit_code"], told["error"], told["verdict"]) == (4, 4, "Regressed", "regressed")
    code, told = step(
        "compare", manifest, "--results", results, "--fail-on-regression", "--threshold", 5, result=tmp_path / "c.json"
    )
    assert (code, told["verdict"]) == (0, "slower")


@pytest.mark.full
def test_a_terminated_step_says_so_keeps_what_was_done_and_can_be_run_again(tmp_path: Path) -> None:
    local = archive(tmp_path / "archive", GlooJob(seed=1).traces()).parent
    with moto_server() as endpoint, FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
        client = make_bucket(endpoint, "archive")
        for path in local.iterdir():
            client.put_object(Bucket="archive", Key=f"job/{path.name}", Body=path.read_bytes())
        proxy.add(Fault.SLOW, times=100, method="GET", query="rank2", delay_s=60)
        command = [
            sys.executable, "-m", "sameshot.cli.main", "step", "analyze-rank", "s3://archive/job", "--shard", "0/2",
            "--results", str(tmp_path / "results"), "--result", str(tmp_path / "rank.json"),
        ]  # fmt: skip
        with subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while not proxy.count(query="rank2", method="GET") and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert process.wait(timeout=60) == 143
            took_s = time.monotonic() - began
        told = json.loads((tmp_path / "rank.json").read_text())
    assert (told["exit_code"], told["error"]) == (143, "Terminated")
    assert "run the step again" in told["message"]
    assert [path.name for path in sorted((tmp_path / "results").rglob("*.json"))] == ["0.json"]
    assert took_s < 25  # within the grace period of a pod


def test_what_is_published_can_be_had_as_local_files_too(tmp_path: Path) -> None:
    """Engines show files of a step's container as artifacts; an empty option of a template is none."""
    manifest, results, out = capture(tmp_path), tmp_path / "results", tmp_path / "pod" / "out"
    step("analyze-rank", manifest, "--shard=0/1", "--expected-sha256=", "--results", results, result=tmp_path / "r")
    code, told = step("reduce", manifest, "--results", results, "--min-ranks=", f"--out={out}", result=tmp_path / "r")
    assert code == 0
    published = Path(told["report_uri"].removeprefix("file://")).parent
    for name in ("report.html", "summary.json"):
        assert (out / name).read_bytes() == (published / name).read_bytes()
    assert {path.name for path in (out / "tables").iterdir()} == {
        path.name for path in (published / "tables").iterdir()
    }

    (tmp_path / "file").write_text("")
    code, told = step("analyze", manifest, "--results", results, "--out", tmp_path / "file", result=tmp_path / "r")
    assert (code, told["error"]) == (2, "UsageError")
    assert "written, but not to" in told["message"]
