"""Analysis as tasks of Flyte 2, in local runs as a user has them: what is shown, who is named, what is tried again, and
what is known from before."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flyte2_lab import Action, Ran, User
from gloo_job import GlooJob, archive
from series_on_disk import capture as captured_in_a_series

from sameshot.manifest import decode
from sameshot.steps.places import shards
from sameshot_flyte.references import Capture
from sameshot_flyte.work import NO_COMPARISON, NOTHING_CAPTURED

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

MINE = """
import dataclasses
import json
from functools import partial
from pathlib import Path

import flyte
import pyarrow as pa
from flyte.io import DataFrame

from sameshot_flyte.flyte2 import SameshotCapture, tasks
from sameshot_flyte.references import Capture


@dataclasses.dataclass(kw_only=True)
class Before(SameshotCapture):
    '''A capture that was made before, as a file says.'''

    async def execute(self, *args, **inputs):
        Path("asked.json").write_text(json.dumps(inputs))
        return Capture(**json.loads(Path("capture.json").read_text()))


TASKS = tasks("mine", retries=2, capture=Before(name="before"))
analyze_rank, reduce, analyze, compare, profile_job = (
    TASKS.analyze_rank, TASKS.reduce, TASKS.analyze, TASKS.compare, TASKS.profile_job
)

own = flyte.TaskEnvironment("own", depends_on=[TASKS.env])


@own.task
async def slowest(ranks: DataFrame) -> int:
    table = await ranks.open(pa.Table).all()
    return max(table.to_pylist(), key=lambda row: row["lateness_per_step_ns"])["rank"]


@own.task
async def late_rank(manifest_uri: str, manifest_sha256: str, results: str, shards: list[str]) -> int:
    of = {"manifest_uri": manifest_uri, "manifest_sha256": manifest_sha256, "results": results}
    mapped = flyte.map.aio(partial(analyze_rank, fetch_pattern="", **of), shards, concurrency=2)
    _, _, ranks = await reduce.aio(**of, analysed=[each async for each in mapped])
    return await slowest(ranks)
"""


RECORDED = """
import functools
import json
from pathlib import Path

import flyte

from sameshot_flyte import work


def told(what, given):
    with Path("told.jsonl").open("a") as file:
        file.write(json.dumps([what, given], default=str) + "\\n")


def recorded(name):
    real = getattr(work, name)

    @functools.wraps(real)
    def body(manifest_uri, manifest_sha256, results, *more, **given):
        told(name, {"of": [manifest_uri, manifest_sha256, results], "more": more, **given})
        return real(manifest_uri, manifest_sha256, results, *more, **given)

    setattr(work, name, body)


for each in ("analyze_rank", "reduce", "analyze", "compare"):
    recorded(each)

mapper = type(flyte.map)


def mapped(self, *args, aio=mapper.aio, **more):
    told("map", {name: more[name] for name in ("concurrency", "return_exceptions")})
    return aio(self, *args, **more)


mapper.aio = mapped
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    user.writes("mine.py", MINE)
    yield user
    user.leaves()


def gloo(folder: Path, seed: int = 1, late: int = 2) -> Path:
    """A capture of four ranks, one of them late."""
    return archive(folder / "archive", GlooJob(seed=seed, late={late: 30.0}).traces())


def of(manifest: Path, results: Path) -> dict[str, str]:
    """What analyses are asked with."""
    return {
        "manifest_uri": str(manifest),
        "manifest_sha256": decode(manifest.read_bytes()).sha256,
        "results": str(results),
    }


def profiles(user: User, captured: Path | Capture, context: Mapping[str, Any] = {}, **inputs: Any) -> Ran:
    """`profile_job` of a capture that was made before."""
    if isinstance(captured, Path):
        manifest = decode(captured.read_bytes())
        count = sum(target.artifact is not None for target in manifest.targets)
        captured = Capture(
            capture_id=manifest.capture.capture_id,
            manifest_uri=str(captured),
            manifest_sha256=manifest.sha256,
            shards=shards(count),
        )
    user.writes("capture.json", json.dumps(dataclasses.asdict(captured)))
    asked = {"address": "nobody:7000", "results": str(user.folder / "results"), **inputs}
    return user.runs("mine", "profile_job", context=context, **asked)


def page_in(action: Action) -> str:
    """Our page in the one that Flyte shows."""
    assert action.report is not None
    (framed,) = re.findall(r'srcdoc="([^"]*)"', action.report)
    return html.unescape(framed)


def damaged(manifest: Path, rank: int = 1) -> tuple[Path, bytes]:
    """A trace that is not what its manifest states; its file, and what it was."""
    trace = manifest.parent / f"rank{rank}.json.gz"
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-4] + b"\0\0\0\0")
    return trace, whole


def test_a_report_is_the_page_of_its_task_and_its_ranks_are_a_table(user: User, tmp_path: Path) -> None:
    ran = user.runs("mine", "analyze", **of(gloo(tmp_path), tmp_path / "results"))
    assert ran.error is None
    assert (ran.outputs["analysis"]["expected"], ran.outputs["analysis"]["analysed"]) == (4, 4)
    assert ran.outputs["analysis"]["late"] == "2"
    report = next((tmp_path / "results").rglob("report.html")).read_text()
    assert Path(ran.outputs["report"]).read_text() == report
    (action,) = user.actions(ran)["mine.analyze"]
    assert page_in(action) == report
    assert action.report is not None
    assert "http" not in action.report.replace(html.escape(report), ""), "nothing around it asks for anything"
    assert [(row["rank"], row["missing"]) for row in ran.outputs["ranks"]] == [(rank, None) for rank in range(4)]
    assert max(ran.outputs["ranks"], key=lambda row: row["lateness_per_step_ns"])["rank"] == 2


def test_one_damaged_trace_loses_no_other_rank_and_is_named(user: User, tmp_path: Path) -> None:
    manifest = gloo(tmp_path)
    damaged(manifest)
    ran = profiles(user, manifest, min_ranks=3)
    assert ran.error is None
    assert (ran.outputs["analysis"]["analysed"], ran.outputs["analysis"]["missing"]) == (3, "1")
    assert ran.outputs["analysis"]["late"] == "2", "what the others say is not lost"
    missing = {row["rank"]: row["missing"] for row in ran.outputs["ranks"]}
    assert missing == {0: None, 1: "NOT_ANALYSED", 2: None, 3: None}
    actions = user.actions(ran)
    assert [each.status for each in actions["mine.analyze_rank"]] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert "rank1.json.gz" in actions["mine.analyze_rank"][1].error
    assert actions["mine.analyze_rank"][1].attempts == 1, "the same bytes would be as damaged again"
    assert "1 of 4 ranks has not been analysed" in page_in(actions["mine.profile_job"][0])


def test_too_few_ranks_fail_the_job_after_the_report_of_the_others_was_shown(user: User, tmp_path: Path) -> None:
    manifest = gloo(tmp_path)
    damaged(manifest)
    ran = profiles(user, manifest)
    assert ran.error is not None
    assert ran.error["code"] == "PartialCapture"
    assert "Capture c-1 of job local/demo: 3 of 4 ranks analysed, all are needed" in ran.error["message"]
    assert "not analysed: rank 1 (The trace of rank 1" in ran.error["message"]
    assert next((tmp_path / "results").rglob("report.html")).as_uri() in ran.error["message"]
    (reduced,) = user.actions(ran)["mine.reduce"]
    assert (reduced.status, reduced.attempts) == ("failed", 1)
    assert "1 of 4 ranks has not been analysed" in page_in(reduced)
    assert user.actions(ran)["mine.profile_job"][0].attempts == 1


def test_where_no_rank_can_be_analysed_the_job_says_why(user: User, tmp_path: Path) -> None:
    manifest = gloo(tmp_path)
    for rank in range(4):
        damaged(manifest, rank)
    ran = profiles(user, manifest, min_ranks=1)
    assert ran.error is not None
    assert ran.error["code"] == "VerificationFailed"
    assert "rank0.json.gz" in ran.error["message"]
    assert len(user.actions(ran)["mine.analyze_rank"]) == 4
    assert "mine.reduce" not in user.actions(ran)


def test_a_rank_that_was_mended_is_not_hidden_by_what_is_known_from_before(user: User, tmp_path: Path) -> None:
    manifest = gloo(tmp_path)
    trace, whole = damaged(manifest)
    assert profiles(user, manifest, min_ranks=3).outputs["analysis"]["analysed"] == 3
    trace.write_bytes(whole)
    ran = profiles(user, manifest, min_ranks=3)
    assert (ran.outputs["analysis"]["analysed"], ran.outputs["analysis"]["missing"]) == (4, "")
    actions = user.actions(ran)
    assert [each.hit for each in actions["mine.analyze_rank"]] == [True, False, True, True]
    assert [each.hit for each in actions["mine.reduce"]] == [False]
    again = profiles(user, manifest, min_ranks=3)
    assert again.outputs["analysis"] == ran.outputs["analysis"]
    hits = {task: {each.hit for each in actions} for task, actions in user.actions(again).items()}
    assert hits == {
        "before": {False},
        "mine.analyze_rank": {True},
        "mine.reduce": {True},
        "mine.profile_job": {False},
    }


def test_another_fetch_pattern_makes_another_report_and_the_first_again_its_own(user: User, tmp_path: Path) -> None:
    manifest, other = gloo(tmp_path), "gloo:all_reduce"
    first, second = profiles(user, manifest), profiles(user, manifest, fetch_pattern=other)
    assert [each.hit for each in user.actions(second)["mine.reduce"]] == [False]
    waits = [[row["data_wait_ns"] for row in each.outputs["ranks"]] for each in (first, second)]
    assert waits[0] != waits[1]
    # The ranks are known, and what was kept of them is of the other pattern; this report was not made yet.
    for pattern, known in (("", first), (other, second)):
        ran = profiles(user, manifest, fetch_pattern=pattern, min_ranks=3)
        hits = {task: {each.hit for each in actions} for task, actions in user.actions(ran).items()}
        assert (hits["mine.analyze_rank"], hits["mine.reduce"]) == ({True}, {False})
        assert ran.outputs["ranks"] == known.outputs["ranks"]


def test_ranks_that_are_known_and_whose_results_were_deleted_are_analysed_for_a_new_report(
    user: User, tmp_path: Path
) -> None:
    manifest = gloo(tmp_path)
    first = profiles(user, manifest)
    shutil.rmtree(user.folder / "results")
    ran = profiles(user, manifest, min_ranks=3)
    assert {each.hit for each in user.actions(ran)["mine.analyze_rank"]} == {True}
    assert ran.outputs["ranks"] == first.outputs["ranks"]
    assert list((user.folder / "results").rglob("report.html"))


def test_a_report_that_is_known_and_whose_file_is_gone_loses_no_profile_and_says_what_to_do(
    user: User, tmp_path: Path
) -> None:
    manifest = gloo(tmp_path)
    first = profiles(user, manifest)
    gone = Path(first.outputs["report"])
    gone.unlink()
    ran = profiles(user, manifest)
    assert ran.error is None, ran.log
    assert [each.hit for each in user.actions(ran)["mine.reduce"]] == [True]
    assert ran.outputs["analysis"] == first.outputs["analysis"]
    assert ran.outputs["ranks"] == first.outputs["ranks"]
    said = page_in(user.actions(ran)["mine.profile_job"][0])
    assert f"The report at {gone} could not be read (FileNotFoundError" in html.unescape(said)
    assert first.outputs["analysis"]["report_uri"] in said
    assert not gone.exists()
    made = profiles(user, manifest, context={"disable_run_cache": True})
    assert Path(made.outputs["report"]).read_text() == page_in(user.actions(made)["mine.profile_job"][0])


def test_in_local_runs_an_overwritten_cache_is_no_other_and_a_disabled_one_makes_all_anew(
    user: User, tmp_path: Path
) -> None:
    """So says the SDK's local controller, and so say our pages."""
    asked, results = of(gloo(tmp_path), tmp_path / "results"), tmp_path / "results"
    user.runs("mine", "analyze", **asked)
    shutil.rmtree(results)
    overwritten = user.runs("mine", "analyze", context={"overwrite_cache": True}, **asked)
    assert [each.hit for each in user.actions(overwritten)["mine.analyze"]] == [True]
    assert not results.exists()
    disabled = user.runs("mine", "analyze", context={"disable_run_cache": True}, **asked)
    assert [each.hit for each in user.actions(disabled)["mine.analyze"]] == [False]
    assert list(results.rglob("report.html"))


def test_a_capture_is_known_by_its_digest_wherever_it_lies(user: User, tmp_path: Path) -> None:
    results = tmp_path / "results"
    manifest = gloo(tmp_path)
    first = user.runs("mine", "analyze", **of(manifest, results))
    moved = tmp_path / "elsewhere" / "manifest.json"
    shutil.move(manifest.parent, moved.parent)
    again = user.runs("mine", "analyze", **of(moved, results), workers=1)
    assert [each.hit for each in user.actions(again)["mine.analyze"]] == [True]
    assert again.outputs["analysis"] == first.outputs["analysis"]
    assert not manifest.exists()
    other = gloo(tmp_path, seed=2, late=1)  # at the address that the first had
    assert other == manifest
    fresh = user.runs("mine", "analyze", **of(other, results))
    assert [each.hit for each in user.actions(fresh)["mine.analyze"]] == [False]
    assert fresh.outputs["analysis"]["late"] == "1"
    placed = user.runs("mine", "analyze", **of(moved, tmp_path / "other-results"))
    assert [each.hit for each in user.actions(placed)["mine.analyze"]] == [False]
    assert list((tmp_path / "other-results").rglob("report.html"))


def test_what_no_attempt_can_mend_is_tried_once_and_what_one_may_mend_again(user: User, tmp_path: Path) -> None:
    asked = of(gloo(tmp_path), tmp_path / "results")
    ran = user.runs("mine", "analyze", **asked | {"manifest_sha256": "0" * 64})
    assert ran.error is not None
    assert ran.error["code"] == "VerificationFailed"
    assert "expected was 0000" in ran.error["message"]
    assert [each.attempts for each in user.actions(ran)["mine.analyze"]] == [1]
    assert not (tmp_path / "results").exists()

    (tmp_path / "file").write_text("no folder")
    ran = user.runs("mine", "analyze", **asked | {"results": str(tmp_path / "file" / "results")})
    assert ran.error is not None
    assert ran.error["code"] == "StorageError"
    assert [each.attempts for each in user.actions(ran)["mine.analyze"]] == [3]


def told(user: User, what: str) -> list[dict[str, Any]]:
    """What the bodies of tasks were called with."""
    lines = [json.loads(line) for line in (user.work / "told.jsonl").read_text().splitlines()]
    return [given for name, given in lines if name == what]


def test_every_input_of_the_job_comes_where_it_belongs(user: User, tmp_path: Path) -> None:
    """No two inputs of a type have the same values in both runs, so that each is told from any other."""
    user.writes("mine.py", RECORDED + MINE)
    capture = {
        "job": "demo",
        "uid": "u-1",
        "attempt": 7,
        "duration": "3s",
        "activities": "cpu,xpu",
        "with_stack": True,
        "record_shapes": False,
        "warmup": "4s",
        "min_ranks": 3,
        "if_unavailable": "wait",
        "if_busy": "skip",
        "timeout": "9m",
        "caller": "me",
    }
    analysis = {
        "fetch_pattern": "gloo:all_reduce",
        "history": False,
        "trained_image": "registry.example.com/trained:1",
        "commit": "abc",
    }
    comparison = {"threshold": 0.25, "accept_partial": True}
    manifest = gloo(tmp_path)
    ran = profiles(user, manifest, **capture, **analysis, **comparison, concurrency=2)
    assert ran.error is None, ran.log
    of_it = list(of(manifest, user.folder / "results").values())
    asked = json.loads((user.work / "asked.json").read_text())
    assert asked == {"address": "nobody:7000", **capture}
    assert told(user, "map") == [{"concurrency": 2, "return_exceptions": True}]
    ranks = told(user, "analyze_rank")
    assert sorted(each.pop("more")[0] for each in ranks) == ["0/4", "1/4", "2/4", "3/4"]
    assert ranks == [{"of": of_it, "fetch_pattern": "gloo:all_reduce"}] * 4
    (reduced,) = told(user, "reduce")
    del reduced["out"]
    shards = ["0/4", "1/4", "2/4", "3/4"]
    assert reduced == {"of": of_it, "more": [], "analysed": shards, "min_ranks": 3, **analysis}
    (compared,) = told(user, "compare")
    del compared["out"]
    assert compared == {"of": of_it, "more": [], "before": "", "min_ranks": 3, **comparison}
    # Four flags, which two runs tell apart. `flyte.map` would take 0 for all at once.
    capture |= {"with_stack": False, "record_shapes": True}
    analysis["commit"] = "abd"  # or the cache knows the report
    profiles(user, manifest, **capture, **analysis, **comparison, concurrency=0)
    assert json.loads((user.work / "asked.json").read_text()) == {"address": "nobody:7000", **capture}
    assert told(user, "reduce")[1]["history"] is False
    assert told(user, "compare")[1]["accept_partial"] is True
    assert told(user, "map")[1]["concurrency"] == 1


def test_every_input_of_the_analysis_and_of_the_comparison_by_themselves_is_used(user: User, tmp_path: Path) -> None:
    user.writes("mine.py", RECORDED + MINE)
    manifest = gloo(tmp_path)
    asked = of(manifest, tmp_path / "results")
    analysis = {
        "min_ranks": 3,
        "history": False,
        "trained_image": "registry.example.com/trained:1",
        "commit": "abc",
        "fetch_pattern": "gloo:all_reduce",
        "workers": 2,
    }
    ran = user.runs("mine", "analyze", **asked, **analysis)
    assert ran.error is None, ran.log
    (analysed,) = told(user, "analyze")
    del analysed["out"]
    assert analysed == {"of": list(asked.values()), "more": [], **analysis}
    comparison = {"threshold": 0.25, "before": str(manifest), "accept_partial": True, "min_ranks": 2}
    user.runs("mine", "compare", **asked, **comparison)
    (compared,) = told(user, "compare")
    del compared["out"]
    assert compared == {"of": list(asked.values()), "more": [], **comparison}


def test_what_another_version_of_sameshot_analysed_is_analysed_anew(user: User, tmp_path: Path) -> None:
    asked = of(gloo(tmp_path), tmp_path / "results")
    shard = {**asked, "shard": "0/2"}
    reduced = {**asked, "analysed": ["0/2", "1/2"]}
    other = "import sameshot\nsameshot.__version__ = '99.0'\n"
    for version, hit in ((MINE, False), (MINE, True), (other + MINE, False), (other + MINE, True)):
        user.writes("mine.py", version)
        for task, inputs in (("analyze_rank", shard), ("reduce", reduced), ("analyze", asked)):
            ran = user.runs("mine", task, **inputs)
            assert [each.hit for each in user.actions(ran)[f"mine.{task}"]] == [hit], task


def test_of_a_capture_that_was_skipped_it_is_said_that_there_is_nothing(user: User, tmp_path: Path) -> None:
    ran = profiles(user, Capture(message="Skipped: the job has ended."), threshold=0.1)
    assert ran.error is None
    assert ran.outputs["capture"]["message"] == "Skipped: the job has ended."
    assert ran.outputs["analysis"]["message"] == ran.outputs["comparison"]["message"] == NOTHING_CAPTURED
    assert ran.outputs["ranks"] == []
    assert NOTHING_CAPTURED in Path(ran.outputs["report"]).read_text()
    assert NOTHING_CAPTURED in Path(ran.outputs["comparison_report"]).read_text()
    actions = user.actions(ran)
    assert actions.keys() == {"mine.profile_job", "before"}, "no task is started for nothing"
    assert NOTHING_CAPTURED in page_in(actions["mine.profile_job"][0])
    assert not (tmp_path / "results").exists()


def test_a_capture_is_compared_with_the_one_before_it_where_a_threshold_is_given(user: User, tmp_path: Path) -> None:
    first = captured_in_a_series(tmp_path, "c-1")
    slower = captured_in_a_series(tmp_path, "c-2", day=2, compute=40.0)
    ran = profiles(user, first)
    assert (ran.outputs["comparison"]["verdict"], ran.outputs["comparison"]["message"]) == ("", NO_COMPARISON)
    assert "mine.compare" not in user.actions(ran)
    ran = profiles(user, slower, threshold=0.1)
    assert ran.error is None
    comparison = ran.outputs["comparison"]
    assert (comparison["verdict"], comparison["before_capture_id"]) == ("regressed", "c-1")
    assert Path(ran.outputs["comparison_report"]).read_text() == page_in(user.actions(ran)["mine.compare"][0])
    assert Path(ran.outputs["report"]).read_text() == page_in(user.actions(ran)["mine.profile_job"][0])


def test_a_user_maps_the_ranks_in_a_task_of_their_own_and_reads_the_table(user: User, tmp_path: Path) -> None:
    ran = user.runs("mine", "late_rank", **of(gloo(tmp_path), tmp_path / "results"), shards=["1/2", "0/2"])
    assert ran.error is None
    assert ran.outputs == {"o0": 2}
