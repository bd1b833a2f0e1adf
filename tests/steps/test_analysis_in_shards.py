"""Analysis spread over tasks: each rank in exactly one of them, the same answer as in one process, and no answer from
parts that are missing, stale or changed."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from gloo_job import GlooJob, archive, failed
from hypothesis import given
from hypothesis import strategies as st
from import_run import import_run
from make_job import GpuJob, Slow
from redated import redate

from sameshot import analysis
from sameshot.errors import CaptureFailed, ManifestError, StorageError, UnknownCapture, UsageError, VerificationFailed
from sameshot.manifest import Job, build, decode, encode
from sameshot.model import Outcome
from sameshot.steps.analyze import analyze, analyze_rank, reduce, split
from sameshot.steps.history import rows
from sameshot.steps.history.trend import trend
from sameshot.steps.places import ranks_folder, shards
from sameshot.steps.results import AnalysisResult, from_builtins, shortened, to_builtins

CAPTURE = "captures/local/demo/0/c-1"


def gloo(folder: Path, **more: Any) -> Path:
    """A capture of four ranks, rank 2 late; `more` is for `archive`."""
    return archive(folder / "archive", GlooJob(seed=1, late={2: 30.0}).traces(), **more)


def gpu(folder: Path) -> Path:
    job = GpuJob(hosts=2, gpus=2, steps=10, slow=(Slow(rank=3, cause="host", ms=8),))
    return import_run(folder, job.run(), job="demo") / "manifest.json"


def fanned_out(manifest: Path, results: Path, parts: tuple[str, ...], **more: Any) -> AnalysisResult:
    for shard in parts:
        analyze_rank(str(manifest), shard, str(results))
    return reduce(str(manifest), str(results), **more)


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def summary_of(result: AnalysisResult) -> dict[str, Any]:
    found = json.loads(path_of(result.summary_uri).read_text())
    del found["generated_at"]
    return found


def tables_of(folder: Path) -> dict[str, Any]:
    return {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


# -- who analyses what


@given(st.integers(0, 300), st.integers(1, 80))
def test_every_rank_is_in_exactly_one_shard(ranks: int, n: int) -> None:
    seen = sorted(index for i in range(n) for index in split(f"{i}/{n}", ranks))
    assert seen == list(range(ranks))


@given(st.integers(0, 5000))
def test_the_shards_that_a_capture_names_cover_it_evenly(ranks: int) -> None:
    parts = [list(split(shard, ranks)) for shard in shards(ranks)]
    assert sorted(index for part in parts for index in part) == list(range(ranks))
    assert len(parts) == min(ranks, 64)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("shard", ["", "1", "2/2", "-1/2", "0/0", "a/b", "0/2/3", " 0/2", "1/-2"])
def test_what_is_no_shard_is_refused_before_anything_is_read(tmp_path: Path, shard: str) -> None:
    with pytest.raises(UsageError, match="i/n"):
        analyze_rank(str(tmp_path / "nowhere"), shard, str(tmp_path / "results"))


def test_a_shard_beyond_the_ranks_has_nothing_to_do(tmp_path: Path) -> None:
    found = analyze_rank(str(gloo(tmp_path)), "5/6", str(tmp_path / "results"))
    assert (found.ranks, found.exit_code) == ("", 0)


def test_a_shard_says_which_ranks_it_did_as_they_are_done(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    manifest = gloo(tmp_path)
    found = analyze_rank(str(manifest), "1/2", str(tmp_path / "results"), progress=lambda *args: told.append(args))
    assert told == [(1, 2, "node-0/main/1"), (2, 2, "node-1/main/1")]
    assert (found.ranks, found.shard) == ("1, 3", "1/2")
    assert found.manifest_sha256 == decode(manifest.read_bytes()).sha256
    assert sorted(path.name for path in path_of(found.summaries_uri).iterdir()) == [
        "1.json", "1.tables", "3.json", "3.tables",
    ]  # fmt: skip


# -- the same answer


@pytest.mark.parametrize("capture", [gloo, gpu])
@pytest.mark.parametrize("parts", [("1/2", "0/2"), ("0/4", "1/4", "3/4", "2/4")])
def test_tasks_together_find_what_one_process_finds(
    tmp_path: Path, capture: Callable[[Path], Path], parts: tuple[str, ...]
) -> None:
    manifest = capture(tmp_path)
    apart = fanned_out(manifest, tmp_path / "apart", parts)
    whole = analyze(str(manifest), str(tmp_path / "whole"))
    assert summary_of(apart) == summary_of(whole)
    for name in ("headline", "findings", "missing", "analysed", "exit_code", "message", "series"):
        assert getattr(apart, name) == getattr(whole, name)
    command = analysis.analyze(str(manifest), tmp_path / "command")  # `sameshot analyze`, which knows no shards
    assert summary_of(apart) == {
        k: v for k, v in json.loads(msgspec.json.encode(command)).items() if k != "generated_at"
    }
    tables = tables_of(path_of(apart.report_uri).parent / "tables")
    assert (
        tables == tables_of(path_of(whole.report_uri).parent / "tables") == tables_of(tmp_path / "command" / "tables")
    )
    assert len(tables) == 7
    assert bool(tables["cuda_kernel_launch_stats.parquet"].num_rows) == (capture is gpu)


def test_the_answer_is_written_where_the_result_says(tmp_path: Path) -> None:
    found = fanned_out(gloo(tmp_path), tmp_path / "results", ("0/1",))
    assert path_of(found.report_uri) == tmp_path / "results" / CAPTURE / "report.html"
    assert "rank 2" in path_of(found.report_uri).read_text()
    assert found.headline.late == "2"
    assert found.headline.lateness == "late"
    assert "rank 2" in found.findings[0]
    assert (found.outcome, found.expected, found.analysed, found.exit_code) == (Outcome.SUCCEEDED, 4, 4, 0)
    assert from_builtins(json.loads(json.dumps(to_builtins(found))), AnalysisResult) == found


def test_everything_may_be_done_again_and_changes_nothing(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    first = fanned_out(manifest, results, ("0/2", "1/2"))
    before = files_below(results)
    again = fanned_out(manifest, results, ("1/2", "0/2", "0/2"))
    assert again == first
    after = files_below(results)
    assert after.keys() == before.keys()
    dated = {f"{CAPTURE}/summary.json", f"{CAPTURE}/report.html"}
    assert {name for name in after if after[name] != before[name]} <= dated


def test_a_running_event_loop_does_not_matter(tmp_path: Path) -> None:
    async def engine() -> AnalysisResult:
        return fanned_out(gloo(tmp_path), tmp_path / "results", ("0/1",))

    assert asyncio.run(engine()).analysed == 4


# -- no answer from the wrong parts


def not_analysed(found: AnalysisResult) -> dict[str, str]:
    """Targets that have a trace and are missing all the same, and why, as the summary on disk says."""
    missing = json.loads(path_of(found.summary_uri).read_text())["missing"]
    return {each["target_id"]: each["detail"] for each in missing if each["reason"] == "NOT_ANALYSED"}


def test_a_shard_that_did_not_run_is_a_missing_rank_and_the_report_of_the_others_is_there(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), str(tmp_path / "results")
    for shard in ("0/4", "2/4", "3/4"):
        analyze_rank(str(manifest), shard, results)
    found = reduce(str(manifest), results)
    assert (found.exit_code, found.analysed, found.missing, found.outcome) == (3, 3, "1", Outcome.SUCCEEDED)
    assert "3 of 4 ranks analysed, all are needed; not analysed: rank 1" in found.message
    assert found.headline.late == "2", "what the others say is not lost"
    assert not_analysed(found) == {
        "node-0/main/1": "Its trace is in the manifest, but it was not analysed. Run analyze_rank with shard 1/4 again."
    }
    page = path_of(found.report_uri).read_text()
    assert "1 of 4 ranks has not been analysed." in page
    assert "Run analyze_rank with shard 1/4 again" in page
    assert "no verified trace" not in page
    assert rows(results, "local", "demo")[0].analysed_ranks == 3
    enough = reduce(str(manifest), results, min_ranks=3)
    assert (enough.exit_code, enough.missing) == (0, "1")
    assert "which is enough (at least 3 asked for); not analysed: rank 1" in enough.message
    assert reduce(str(manifest), results, min_ranks=4).exit_code == 3
    analyze_rank(str(manifest), "1/4", results)
    whole = reduce(str(manifest), results)
    assert (whole.exit_code, whole.analysed, whole.missing) == (0, 4, "")
    assert rows(results, "local", "demo")[0].analysed_ranks == 4


def test_ranks_that_nobody_analysed_are_all_named_and_from_none_there_is_no_report(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), str(tmp_path / "results")
    with pytest.raises(VerificationFailed, match=r"rank 0 .*ranks 0-3.*shard 0/4, 1/4, 2/4, 3/4 again"):
        reduce(str(manifest), results, min_ranks=1)
    assert not (tmp_path / "results" / CAPTURE / "report.html").exists()
    analyze_rank(str(manifest), "1/2", results)
    found = reduce(str(manifest), results)
    assert (found.exit_code, found.missing) == (3, "0, 2")
    assert all("shard 0/2 again" in detail for detail in not_analysed(found).values())


def test_the_report_says_why_a_rank_could_not_be_analysed(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    trace = manifest.parent / "rank1.json.gz"
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-4] + b"\0\0\0\0")
    for shard in ("0/4", "2/4", "3/4"):
        analyze_rank(str(manifest), shard, str(results))
    with pytest.raises(VerificationFailed):
        analyze_rank(str(manifest), "1/4", str(results))
    found = reduce(str(manifest), str(results), min_ranks=3)
    assert (found.exit_code, found.missing) == (0, "1")
    (detail,) = not_analysed(found).values()
    assert re.search(r"could not be analysed \(.*rank1.json.gz.*Once that is mended, run .* shard 1/4 again", detail)
    assert re.search(r"not analysed: rank 1 \(The trace of rank 1.*once that is mended, run its", found.message)
    trace.write_bytes(whole)
    analyze_rank(str(manifest), "1/4", str(results))
    assert not_analysed(reduce(str(manifest), str(results))) == {}, "an old error says nothing of a new summary"


def test_summaries_of_another_manifest_are_not_looked_at(tmp_path: Path) -> None:
    results = tmp_path / "results"
    old = archive(tmp_path / "old", GlooJob(seed=1, late={2: 30.0}).traces())
    new = archive(tmp_path / "new", GlooJob(seed=2, late={1: 30.0}).traces())  # the same job and capture id
    analyze_rank(str(old), "0/1", str(results))
    analyze_rank(str(new), "0/2", str(results))
    assert reduce(str(new), str(results)).missing == "1, 3"
    analyze_rank(str(new), "1/2", str(results))
    assert reduce(str(new), str(results)).headline.late == "1"
    assert reduce(str(old), str(results)).headline.late == "2"


def changed(data: bytes) -> bytes:
    found = json.loads(data)
    found["summary"]["parts"]["operators_ns"] += 1
    return json.dumps(found).encode()


def reformatted(data: bytes) -> bytes:
    return json.dumps(json.loads(data), indent=1).encode()


def of_another_version(data: bytes) -> bytes:
    return data.replace(b"sameshot.dev/step/rank/v1", b"sameshot.dev/step/rank/v9")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (changed, "changed after it was made"),
        (reformatted, "changed after it was made"),
        (lambda data: data[: len(data) // 2], "no sound file"),
        (lambda data: b"", "no sound file"),
        (of_another_version, "rank/v9"),
    ],
)
def test_a_summary_that_is_not_what_was_written_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], says: str
) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    folder = path_of(analyze_rank(str(manifest), "0/1", str(results)).summaries_uri)
    file = folder / "3.json"
    file.write_bytes(damage(file.read_bytes()))
    found = reduce(str(manifest), str(results))
    assert (found.exit_code, found.missing, found.analysed) == (3, "3", 3)
    (detail,) = not_analysed(found).values()
    assert re.search(rf"{says}.*shard [03]/[14] again", detail)
    analyze_rank(str(manifest), "0/1", str(results))
    assert reduce(str(manifest), str(results)).analysed == 4


def test_a_summary_made_of_other_bytes_than_the_manifest_states_is_refused(tmp_path: Path) -> None:
    """One that is whole, and of a trace of this target, and not of this trace."""
    manifest, results = gloo(tmp_path), tmp_path / "results"
    folder = path_of(analyze_rank(str(manifest), "0/1", str(results)).summaries_uri)
    found = json.loads((folder / "3.json").read_bytes())
    found["summary"]["trace"]["raw_sha256"] = "ab" * 32
    summary = json.dumps(found["summary"], separators=(",", ":")).encode()
    whole = json.dumps({**found, "summary_sha256": hashlib.sha256(summary).hexdigest(), "summary": None}).encode()
    (folder / "3.json").write_bytes(whole.replace(b'"summary": null', b'"summary": ' + summary))
    reduced = reduce(str(manifest), str(results))
    assert (reduced.exit_code, reduced.missing) == (3, "3")
    assert "has the summary of another trace" in not_analysed(reduced)["node-1/main/1"]


def test_the_summary_of_one_rank_does_not_pass_for_that_of_another(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    folder = path_of(analyze_rank(str(manifest), "0/1", str(results)).summaries_uri)
    (folder / "0.json").write_bytes((folder / "1.json").read_bytes())
    found = reduce(str(manifest), str(results))
    assert (found.exit_code, found.missing) == (3, "0")
    assert "has the file of node-0/main/1" in not_analysed(found)["node-0/main/0"]


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"\0", lambda data: None])
def test_tables_that_are_not_those_of_the_summary_are_refused(tmp_path: Path, damage: Callable[[bytes], Any]) -> None:
    manifest, results = gpu(tmp_path), tmp_path / "results"
    folder = path_of(analyze_rank(str(manifest), "0/1", str(results)).summaries_uri)
    file = folder / "2.tables"
    data = damage(file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    found = reduce(str(manifest), str(results))
    assert (found.exit_code, found.missing) == (3, "2")
    (detail,) = not_analysed(found).values()
    assert re.search(r"tables.*again", detail)


def test_the_tables_of_one_rank_do_not_pass_for_those_of_another(tmp_path: Path) -> None:
    manifest, results = gpu(tmp_path), tmp_path / "results"
    folder = path_of(analyze_rank(str(manifest), "0/1", str(results)).summaries_uri)
    (folder / "2.tables").write_bytes((folder / "1.tables").read_bytes())
    found = reduce(str(manifest), str(results))
    assert (found.exit_code, found.missing) == (3, "2")
    (detail,) = not_analysed(found).values()
    assert "other tables than its summary states" in detail


@pytest.mark.parametrize(
    ("pattern", "missing", "says"),
    [
        (None, "1, 3", "was analysed with .*'next_batch', not with .*DataLoader. Run .* shard 1/2 again"),
        ("next_batch", "0, 2", "was analysed with .*DataLoader, not with .*'next_batch'. Run .* shard 0/2 again"),
    ],
)
def test_only_ranks_that_were_analysed_with_the_fetch_pattern_of_the_report_are_in_it(
    tmp_path: Path, pattern: str | None, missing: str, says: str
) -> None:
    manifest, results = gloo(tmp_path), str(tmp_path / "results")
    analyze_rank(str(manifest), "0/2", results)
    analyze_rank(str(manifest), "1/2", results, fetch_pattern="next_batch")
    found = reduce(str(manifest), results, fetch_pattern=pattern)
    assert (found.exit_code, found.analysed, found.missing) == (3, 2, missing)
    assert all(re.search(says, detail) for detail in not_analysed(found).values())
    with pytest.raises(VerificationFailed, match=r"analysed with .*, not with the fetch pattern 'other'"):
        reduce(str(manifest), results, fetch_pattern="other")


# -- what a cache says was analysed, and is not there


def first_shards(count: int = 4) -> list[str]:
    return [f"{i}/4" for i in range(count)]


def test_ranks_that_are_known_to_be_analysed_and_are_gone_are_analysed_by_reduce(tmp_path: Path) -> None:
    manifest = gloo(tmp_path)
    first = fanned_out(manifest, tmp_path / "first", ("0/2", "1/2"))
    found = reduce(str(manifest), str(tmp_path / "gone"), analysed=["1/2", "0/2"])
    assert summary_of(found) == summary_of(first)
    tables = [tables_of(path_of(each.report_uri).parent / "tables") for each in (first, found)]
    assert tables[0] == tables[1]
    assert not_analysed(found) == {}
    again = reduce(str(manifest), str(tmp_path / "gone"))
    assert summary_of(again) == summary_of(first), "what was analysed there is kept"


def test_only_what_is_gone_of_the_shards_that_came_back_is_analysed_by_reduce(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    folder = path_of(analyze_rank(str(manifest), "0/4", str(results)).summaries_uri)
    there = (folder / "0.json").stat().st_mtime_ns
    told: list[tuple[int, int, str]] = []
    found = reduce(str(manifest), str(results), analysed=first_shards(3), progress=lambda *args: told.append(args))
    assert (found.exit_code, found.missing) == (3, "3"), "shard 3/4 did not come back: its rank is missed"
    assert told == [(1, 4, "node-0/main/0"), (2, 4, "node-0/main/1"), (3, 4, "node-1/main/0")]
    assert (folder / "0.json").stat().st_mtime_ns == there
    (folder / "1.tables").write_bytes(b"damaged")
    assert reduce(str(manifest), str(results), analysed=["1/4"]).missing == "3"


def test_ranks_that_were_analysed_with_another_fetch_pattern_since_are_analysed_anew(tmp_path: Path) -> None:
    """As of a cache that knows them, and of a run with the other pattern in between."""
    manifest, results = gloo(tmp_path), tmp_path / "results"
    first = summary_of(fanned_out(manifest, results, ("0/4", "1/4", "2/4", "3/4")))
    for shard in first_shards():
        analyze_rank(str(manifest), shard, str(results), fetch_pattern="gloo:all_reduce")
    other = summary_of(reduce(str(manifest), str(results), fetch_pattern="gloo:all_reduce"))
    assert other != first, "the pattern makes a difference"
    assert summary_of(reduce(str(manifest), str(results), analysed=first_shards())) == first
    again = reduce(str(manifest), str(results), analysed=first_shards(), fetch_pattern="gloo:all_reduce")
    assert summary_of(again) == other


def test_a_trace_that_reduce_can_not_analyse_takes_no_other_rank_along(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), str(tmp_path / "results")
    for rank in range(4):
        trace = manifest.parent / f"rank{rank}.json.gz"
        trace.write_bytes(trace.read_bytes()[:-4] + b"\0\0\0\0")
        if rank == 1:
            found = reduce(str(manifest), results, analysed=first_shards())
            assert (found.exit_code, found.missing) == (3, "0-1")
            details = list(not_analysed(found).values())
            assert [
                re.search(r"rank(\d).json.gz.*Once that is mended, run .* shard (\d)/4", each)[0] for each in details
            ]
    shutil.rmtree(results)
    with pytest.raises(VerificationFailed, match=r"rank 0 .*could not be analysed.*ranks 0-3.*Once that is mended"):
        reduce(str(manifest), results, analysed=first_shards())


def test_reduce_is_not_told_nonsense(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    with pytest.raises(UsageError, match="i/n"):
        reduce(str(manifest), str(results), analysed=["all"])
    with pytest.raises(UsageError, match="no regular expression"):
        reduce(str(manifest), str(results), analysed=["0/1"], fetch_pattern="(")
    assert not results.exists()


def test_a_store_that_does_not_answer_is_no_lack_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("sameshot.steps.analyze")

    def silent(*_: Any, **__: Any) -> Any:
        raise StorageError("the archive does not answer")

    monkeypatch.setattr(module, "map_targets", silent)
    with pytest.raises(StorageError, match="does not answer"):
        reduce(str(gloo(tmp_path)), str(tmp_path / "results"), analysed=["0/1"])
    assert not list((tmp_path / "results").rglob("*.error"))


@pytest.mark.parametrize(
    "named",
    [{"capture_id": ".."}, {"capture_id": "../../../../x"}, {"job": Job("..", "demo", "u", 0)},
     {"job": Job("local", "../demo", "u", 0)}, {"job": Job("local", "a\\b", "u", 0)}],
    ids=str,
)  # fmt: skip
def test_a_manifest_with_names_that_lead_elsewhere_is_refused(tmp_path: Path, named: dict[str, Any]) -> None:
    """Manifests are also imported, and trying again never helps."""
    manifest, results = gloo(tmp_path), tmp_path / "deep" / "results"
    found = decode(manifest.read_bytes())
    manifest.write_bytes(encode(build(msgspec.structs.replace(found.capture, **named), list(found.targets))))
    for call in (
        lambda: analyze_rank(str(manifest), "0/1", str(results)),
        lambda: reduce(str(manifest), str(results)),
        lambda: analyze(str(manifest), str(results)),
    ):
        with pytest.raises(ManifestError, match="no names of a folder"):
            call()
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("step", ["analyze_rank", "reduce", "analyze"])
def test_another_manifest_than_the_expected_one_is_refused(tmp_path: Path, step: str) -> None:
    manifest, results = str(gloo(tmp_path)), tmp_path / "results"
    call = {
        "analyze_rank": lambda sha256: analyze_rank(manifest, "0/1", str(results), expected_sha256=sha256),
        "reduce": lambda sha256: reduce(manifest, str(results), expected_sha256=sha256),
        "analyze": lambda sha256: analyze(manifest, str(results), expected_sha256=sha256),
    }[step]
    with pytest.raises(VerificationFailed, match="expected was " + "ab" * 32):
        call("ab" * 32)
    assert not results.exists()
    if step != "reduce":
        call(decode(Path(manifest).read_bytes()).sha256)
        assert results.exists()


def test_a_manifest_that_is_replaced_while_it_is_analysed_gives_no_numbers_under_the_old_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of the result is that of the manifest by which each trace was proven."""
    manifest = archive(tmp_path / "a", GlooJob(seed=1, late={2: 30.0}).traces())
    other = archive(tmp_path / "b", GlooJob(seed=2, late={1: 30.0}).traces())
    digest = decode(manifest.read_bytes()).sha256
    module = importlib.import_module("sameshot.steps.analyze")
    read = module.open_published

    def then_replaced(*arguments: Any) -> Any:
        found = read(*arguments)
        shutil.rmtree(manifest.parent)
        shutil.copytree(other.parent, manifest.parent)
        return found

    monkeypatch.setattr(module, "open_published", then_replaced)
    with pytest.raises(VerificationFailed, match="rank 0"):
        analyze(str(manifest), str(tmp_path / "results"), expected_sha256=digest)
    assert not (tmp_path / "results" / CAPTURE).exists()
    monkeypatch.undo()
    assert analyze(str(manifest), str(tmp_path / "results")).headline.late == "1"


def test_a_damaged_trace_is_named_and_the_other_ranks_of_its_shard_are_kept(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), tmp_path / "results"
    trace = manifest.parent / "rank2.json.gz"
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-4] + b"\0\0\0\0")
    with pytest.raises(VerificationFailed, match=r"rank 2 \(node-1/main/0\)"):
        analyze_rank(str(manifest), "0/2", str(results))
    folder = results / CAPTURE / ranks_folder(decode(manifest.read_bytes()).sha256)
    assert {path.name for path in folder.iterdir()} == {"0.json", "0.tables", "2.error"}
    trace.write_bytes(whole)
    assert fanned_out(manifest, results, ("0/2", "1/2")).analysed == 4


def test_where_results_are_written_nothing_may_stand_in_the_way(tmp_path: Path) -> None:
    manifest = gloo(tmp_path)
    (tmp_path / "results").write_text("a file, not a folder")
    with pytest.raises(StorageError):
        analyze_rank(str(manifest), "0/1", str(tmp_path / "results"))
    with pytest.raises(UsageError, match="No place for results"):
        analyze_rank(str(manifest), "0/1", "")
    with pytest.raises(UnknownCapture):
        analyze_rank(str(tmp_path / "none"), "0/1", str(tmp_path / "other"))


# -- ranks that the capture lacks


def partial(folder: Path) -> Path:
    traces = GlooJob(seed=1, late={2: 30.0}).traces()
    del traces[1]
    return archive(folder / "archive", traces, failures=(failed(1, detail="the pod was evicted"),))


@pytest.mark.parametrize("way", ["apart", "whole"])
def test_a_missing_rank_makes_the_step_fail_by_name_and_the_report_is_there(tmp_path: Path, way: str) -> None:
    manifest, results = partial(tmp_path), tmp_path / "results"

    def run(min_ranks: int | None) -> AnalysisResult:
        if way == "whole":
            return analyze(str(manifest), str(results), min_ranks=min_ranks)
        return fanned_out(manifest, results, ("0/2", "1/2"), min_ranks=min_ranks)

    found = run(None)
    assert (found.exit_code, found.missing, found.outcome) == (3, "1", Outcome.PARTIAL)
    assert re.search(r"3 of 4 ranks analysed, all are needed.*rank 1 \(WORKER_EXITED\)", found.message)
    assert "the pod was evicted" in path_of(found.report_uri).read_text()
    assert rows(str(results), "local", "demo")[0].analysed_ranks == 3
    enough = run(3)
    assert (enough.exit_code, enough.missing) == (0, "1")
    assert "rank 1 (WORKER_EXITED)" in enough.message
    assert run(4).exit_code == 3


def test_without_a_single_trace_there_is_nothing_to_analyse(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "archive", {}, failures=(failed(0), failed(1)))
    for call in (
        lambda: analyze_rank(str(manifest), "0/1", str(tmp_path / "results")),
        lambda: reduce(str(manifest), str(tmp_path / "results")),
        lambda: analyze(str(manifest), str(tmp_path / "results")),
    ):
        with pytest.raises(CaptureFailed, match=r"rank 0 .*WORKER_EXITED"):
            call()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("workers", [0, -1])
def test_no_process_at_all_can_not_read_traces(tmp_path: Path, workers: int) -> None:
    with pytest.raises(UsageError, match=f"workers is {workers}"):
        analyze(str(gloo(tmp_path)), str(tmp_path / "results"), workers=workers)
    assert not (tmp_path / "results").exists()


def test_no_ranks_at_all_can_not_be_enough(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="min_ranks is 0"):
        analyze(str(gloo(tmp_path)), str(tmp_path / "results"), min_ranks=0)
    assert not (tmp_path / "results").exists()


# -- history


def test_a_capture_has_one_row_however_often_it_is_analysed(tmp_path: Path) -> None:
    manifest, results = gloo(tmp_path), str(tmp_path / "results")
    first = analyze(str(manifest), results, image="train:7", commit="1a2b3c")
    fanned_out(manifest, Path(results), ("0/1",), image="train:7", commit="1a2b3c")
    known = rows(results, "local", "demo")
    assert [row.capture_id for row in known] == ["c-1"]
    assert (known[0].image, known[0].commit, known[0].headline) == ("train:7", "1a2b3c", first.headline)
    assert known[0].report_uri == first.report_uri
    assert path_of(first.history_uri).is_file()


def test_who_wants_no_history_gets_none(tmp_path: Path) -> None:
    found = analyze(str(gloo(tmp_path)), str(tmp_path / "results"), history=False)
    assert found.history_uri == found.trend == ""
    assert not (tmp_path / "results" / "history").exists()


def test_a_row_that_can_not_be_written_is_an_error_and_the_report_is_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "history").write_text("a file, not a folder")
    with pytest.raises(StorageError, match="history"):
        analyze(str(gloo(tmp_path)), str(tmp_path / "results"))
    assert (tmp_path / "results" / CAPTURE / "report.html").is_file()


def test_the_report_shows_the_trend_of_the_series_with_this_capture_in_it(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    size = {"hosts": 1, "gpus": 2, "steps": 8}
    found = []
    for hour in range(9):
        slow = (Slow(rank=1, cause="host", ms=20),) if hour >= 6 else ()
        run = GpuJob(**size, seed=hour, slow=slow).run()  # type: ignore[arg-type]
        capture = import_run(tmp_path / f"run{hour}", run, series="nightly", job=f"run-{hour}")
        redate(capture / "manifest.json", hour)
        found.append(analyze(str(capture), results))
    assert "1 capture" in found[0].trend
    broke = rows(results, "local", "nightly")[6]
    assert broke.job == "run-6"
    assert found[-1].trend == shortened(trend(rows(results, "local", "nightly")).sentence)
    assert broke.capture_id in found[-1].trend
    assert broke.capture_id not in found[5].trend
    page = path_of(found[-1].report_uri).read_text()
    assert found[-1].trend.split(":")[0] in unescape(page)
    assert "run-0" in page
