"""Analysis by containers, as the compiled IR states them, and by the lightweight components: the same outputs."""

# KFP reads annotations as values: no `from __future__ import annotations` here.

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from gloo_job import GlooJob, archive, failed
from kfp import dsl, local
from kfp_containers import IR, Container, Ran
from s3 import FaultyProxy, make_bucket, moto_server, s3_client, s3_environment

from sameshot.manifest import build, decode, encode
from sameshot_kfp import Components, results

OWN = {"SAMESHOT_RESULTS_AWS_ACCESS_KEY_ID": "RESULTSKEY", "SAMESHOT_RESULTS_AWS_SECRET_ACCESS_KEY": "secret"}


def published(folder: Path, seed: int = 1, **more: Any) -> dict[str, str]:
    """A capture of a gloo job, as the capture's outputs name it."""
    manifest = archive(folder / f"archive-{seed}", GlooJob(seed=seed, late={2: 30.0}).traces(), **more)
    return {"manifest_uri": str(manifest), "manifest_sha256": json.loads(manifest.read_bytes())["sha256"]}


def run(name: str, folder: Path, inputs: dict[str, Any]) -> Ran:
    return Container(IR, name).run(folder / name, inputs)


def reported(folder: Path, of: dict[str, Any], **more: Any) -> Ran:
    """All ranks in one shard, and the report."""
    rank = run("analyze-rank", folder, {**of, "shard": "0/1"})
    assert (rank.code, rank.parameters["done"]) == (0, "0/1"), rank.log
    return run("reduce", folder, {**of, "shards": ["0/1"], **more})


def test_the_report_is_shown_in_the_run_with_its_first_numbers(tmp_path: Path) -> None:
    of = published(tmp_path) | {"results": str(tmp_path / "results")}
    ran = reported(tmp_path, of)
    assert ran.code == 0, ran.log
    kept = Path(ran.parameters["report_uri"].removeprefix("file://"))
    assert ran.files["report"] == kept.read_bytes()
    summary = json.loads((kept.parent / "summary.json").read_bytes())
    numbers = ran.metadata["metrics"]
    assert (numbers["expected"], numbers["analysed"]) == (summary["expected_ranks"], summary["analysed_ranks"])
    assert numbers["step_time_ns"] > 0
    assert "gpu_busy_share" not in numbers  # unknown of a job without GPUs, and so no number
    assert "late" not in numbers
    assert json.loads(ran.files["metrics"]) == numbers
    assert ran.parameters["findings"]
    assert ran.parameters["history_uri"]


def test_a_report_without_all_ranks_fails_unless_they_are_enough(tmp_path: Path) -> None:
    of = published(tmp_path, failures=(failed(4),)) | {"results": str(tmp_path / "results")}
    ran = reported(tmp_path, of)
    assert ran.code == 3, ran.log
    assert list((tmp_path / "results").rglob("report.html"))  # written all the same
    ran = run("reduce", tmp_path / "again", {**of, "min_ranks": 4.0, "history": False})
    assert ran.code == 0, ran.log
    assert (ran.parameters["missing"], ran.parameters["history_uri"]) == ("4", "")


def test_another_manifest_than_was_captured_is_refused(tmp_path: Path) -> None:
    of = published(tmp_path) | {"results": str(tmp_path / "results"), "manifest_sha256": "0" * 64}
    ran = run("analyze-rank", tmp_path, {**of, "shard": "0/1"})
    assert ran.code == 4
    assert "Traceback" not in ran.log


def test_a_shard_that_was_not_analysed_is_named(tmp_path: Path) -> None:
    of = published(tmp_path) | {"results": str(tmp_path / "results")}
    assert run("analyze-rank", tmp_path, {**of, "shard": "0/2"}).code == 0
    ran = run("reduce", tmp_path / "all", {**of, "shards": ["0/2"]})
    assert ran.code == 3, ran.log
    assert "not analysed: rank 1, rank 3" in ran.log
    ran = run("reduce", tmp_path / "enough", {**of, "shards": ["0/2"], "min_ranks": 2})
    assert (ran.code, ran.parameters["missing"]) == (0, "1, 3"), ran.log


def test_shards_that_the_cache_knows_and_that_are_gone_are_analysed_by_reduce(tmp_path: Path) -> None:
    of = published(tmp_path) | {"results": str(tmp_path / "results")}
    ran = run("reduce", tmp_path / "gone", {**of, "shards": ["0/2", "1/2"]})
    assert (ran.code, ran.parameters["analysed"]) == (0, 4), ran.log
    assert run("reduce", tmp_path / "none", {**of, "shards": [], "fetch_pattern": "next"}).code == 4
    ran = run("reduce", tmp_path / "other", {**of, "shards": ["0/2"], "fetch_pattern": "next", "min_ranks": 2})
    assert (ran.code, ran.parameters["missing"]) == (0, "1, 3"), ran.log


def test_both_faces_give_the_same_outputs(tmp_path: Path) -> None:
    of = published(tmp_path)
    before = published(tmp_path, seed=2)["manifest_uri"]
    container, function = tmp_path / "by-containers", tmp_path / "by-functions"
    by_container = {
        "reduce": reported(tmp_path, {**of, "results": str(container)}),
        "compare": run("compare", tmp_path, {**of, "results": str(container), "before": before}),
    }
    components = Components.local()

    @dsl.pipeline
    def analysed(manifest_uri: str, manifest_sha256: str, results: str, before: str) -> None:
        given = {"manifest_uri": manifest_uri, "manifest_sha256": manifest_sha256, "results": results}
        rank = components.analyze_rank(shard="0/1", **given)
        report = components.reduce(shards=["0/1"], **given).after(rank)
        components.compare(before=before, **given).after(report)

    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(tmp_path / "kfp"),
        workspace_root=str(tmp_path / "w"),
    )
    analysed(**of, results=str(function), before=before)
    for name, ran in by_container.items():
        (path,) = (tmp_path / "kfp").rglob(f"{name}/executor_output.json")
        artifacts = json.loads(path.read_text())["artifacts"]
        metadata = {artifact: each["artifacts"][0]["metadata"] for artifact, each in artifacts.items()}
        assert same(metadata, function) == same(ran.metadata, container)
        texts = {parameter: (path.parent / parameter).read_text() for parameter in ran.parameters}
        read = {
            parameter: text if isinstance(ran.parameters[parameter], str) else json.loads(text)
            for parameter, text in texts.items()
        }
        assert same(read, function) == same(ran.parameters, container)
        for artifact in ran.files:
            assert bool((path.parent / artifact).read_bytes()) == bool(ran.files[artifact])


def same(value: Any, results: Path) -> Any:
    """Without the place where results lie; on KFP's wire numbers are doubles."""
    return json.loads(json.dumps(value).replace(str(results), "RESULTS"), parse_int=float)


def test_reports_are_read_with_the_credential_of_results_and_manifests_with_that_of_the_archive(tmp_path: Path) -> None:
    manifest = Path(published(tmp_path)["manifest_uri"])
    with moto_server() as endpoint:
        for bucket in ("archive-k", "results-k"):
            make_bucket(endpoint, bucket)
        for path in manifest.parent.rglob("*"):
            if path.is_file():
                key = f"ns/job/{path.relative_to(manifest.parent).as_posix()}"
                s3_client(endpoint).put_object(Bucket="archive-k", Key=key, Body=path.read_bytes())
        of = {
            "manifest_uri": "s3://archive-k/ns/job/manifest.json",
            "manifest_sha256": json.loads(manifest.read_bytes())["sha256"],
            "results": "s3://results-k/all",
        }
        with FaultyProxy(endpoint) as proxy, s3_environment(proxy.url):
            with mock.patch.dict(os.environ, {**OWN, "AWS_ACCESS_KEY_ID": "ARCHIVEKEY"}):
                ran = reported(tmp_path, of)
                told = {"capture_id": "c", "outcome": "SUCCEEDED", "shards": ["0/1"], **dict.fromkeys(TEXTS, "")}
                copied = results.capture({**told, **of, "expected": 4, "archived": 4}).files["manifest"]
            used: dict[str, set[str]] = {"archive-k": set(), "results-k": set()}
            for seen in proxy.seen:
                bucket = "archive-k" if "archive-k" in seen.path else "results-k"
                used[bucket].add(seen.headers["authorization"].split("Credential=")[1].split("/")[0])
    assert ran.code == 0, ran.log
    assert ran.parameters["report_uri"].startswith("s3://results-k/all/captures/")
    assert ran.files["report"].lower().startswith(b"<!doctype html")
    assert copied.data == manifest.read_bytes()
    assert used == {"archive-k": {"ARCHIVEKEY"}, "results-k": {"RESULTSKEY"}}


TEXTS = ("request_key", "series", "missing", "warning", "message")


def test_who_is_content_with_fewer_ranks_compares_with_such_a_capture(tmp_path: Path) -> None:
    jobs = {"first": (failed(4),), "second": ()}
    for at, (name, failures) in enumerate(jobs.items(), 1):
        made = Path(published(tmp_path / name, failures=failures)["manifest_uri"])
        found = decode(made.read_bytes())
        of_its_own = {"capture_id": f"{at:032x}", "frozen_at": f"2026-11-30T0{at}:00:00Z"}
        made.write_bytes(encode(build(msgspec.structs.replace(found.capture, **of_its_own), list(found.targets))))
        of = {"manifest_uri": str(made), "manifest_sha256": decode(made.read_bytes()).sha256}
        of["results"] = str(tmp_path / "results")
        assert reported(tmp_path / name, of, min_ranks=4).code == 0
    strict = run("compare", tmp_path / "strict", of)
    assert strict.parameters["verdict"] == "first", strict.log
    content = run("compare", tmp_path / "content", {**of, "min_ranks": 4.0})
    assert content.parameters["before_capture_id"] == f"{1:032x}", content.log


def test_without_a_threshold_nothing_is_compared(tmp_path: Path) -> None:
    of = published(tmp_path) | {
        "results": str(tmp_path / "results"),
        "before": published(tmp_path, seed=2)["manifest_uri"],
    }
    ran = run("compare", tmp_path / "not", {**of, "threshold": -1.0, "fail_on_regression": True})
    assert (ran.code, ran.parameters["verdict"], ran.metadata["metrics"]) == (0, "", {}), ran.log
    assert b"No threshold was given" in ran.files["report"]
    assert not (tmp_path / "results").exists()
    ran = run("compare", tmp_path / "any", {**of, "threshold": 0.0})  # whatever is more than noise
    assert ran.parameters["verdict"], ran.log


@pytest.mark.parametrize("fail", [True, False])
def test_a_regression_fails_the_task_only_where_that_is_wanted(tmp_path: Path, fail: bool) -> None:
    slow = archive(tmp_path / "slow", GlooJob(seed=1, late={2: 300.0}).traces())
    of = {"manifest_uri": str(slow), "manifest_sha256": json.loads(slow.read_bytes())["sha256"]}
    before = published(tmp_path)["manifest_uri"]
    ran = run(
        "compare",
        tmp_path,
        {**of, "results": str(tmp_path / "results"), "before": before, "fail_on_regression": fail, "threshold": 0.1},
    )
    if fail:
        assert ran.code == 4, ran.log
    else:
        assert (ran.code, ran.parameters["verdict"]) == (0, "regressed"), ran.log
        assert ran.metadata["metrics"]["slowdown"] > 0.1
        assert ran.files["report"].lower().startswith(b"<!doctype html")
