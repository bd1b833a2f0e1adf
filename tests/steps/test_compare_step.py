"""A capture against the one before it in its series: what counts as a regression, and what never does."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_run import import_run
from make_job import GpuJob, Slow
from manifests import failed, make_capture
from redated import redate

from sameshot.analysis.compare import Change, Outcome
from sameshot.errors import SameshotError, StorageError, UnknownCapture, UsageError, VerificationFailed
from sameshot.manifest import Manifest, build, decode, encode
from sameshot.model import Activity, CaptureSpec
from sameshot.model import Outcome as JobOutcome
from sameshot.steps.analyze import analyze, analyze_rank, reduce
from sameshot.steps.compare import compare, differences, verdict
from sameshot.steps.history import append, rows
from sameshot.steps.places import ranks_folder
from sameshot.steps.results import CompareVerdict

MS = 1_000_000


def step(outcome: Outcome, share: float | None) -> Change:
    return Change("step time", "job", "step", 100 * MS, 110 * MS, 10 * MS, MS, share, outcome, 40, 40)


# -- what the change of a step means


@pytest.mark.parametrize(
    ("outcome", "share", "expected"),
    [
        (Outcome.SLOWER, 0.3, CompareVerdict.REGRESSED),
        (Outcome.SLOWER, 0.1, CompareVerdict.REGRESSED),  # "threshold or more"
        (Outcome.SLOWER, 0.0999, CompareVerdict.SLOWER),
        (Outcome.SLOWER, None, CompareVerdict.SLOWER),
        (Outcome.SAME, 0.3, CompareVerdict.SAME),  # within noise
        (Outcome.UNKNOWN, 0.3, CompareVerdict.UNKNOWN),  # noise is not known
        (Outcome.FASTER, -0.3, CompareVerdict.FASTER),
    ],
)
def test_only_a_sure_slowdown_of_the_threshold_or_more_is_a_regression(
    outcome: Outcome, share: float | None, expected: CompareVerdict
) -> None:
    assert verdict(step(outcome, share), 0.1) is expected


@given(
    st.sampled_from(list(Outcome)),
    st.none() | st.floats(-1, 10),
    st.floats(0, 1),
    st.sampled_from([(), ("the jobs had 2 and 4 ranks",)]),
)
def test_a_regression_is_never_claimed_without_proof(
    outcome: Outcome, share: float | None, threshold: float, unlike: tuple[str, ...]
) -> None:
    claimed = verdict(step(outcome, share), threshold, unlike) is CompareVerdict.REGRESSED
    assert claimed == (outcome is Outcome.SLOWER and share is not None and share >= threshold and not unlike)


def test_without_steps_nothing_is_known() -> None:
    assert verdict(None, 0.1) is CompareVerdict.UNKNOWN


def test_captures_that_measure_different_things_are_told_apart() -> None:
    plain = make_capture(world_size=8, spec=CaptureSpec())
    assert differences(plain, make_capture(world_size=8, spec=CaptureSpec(duration_ms=5000))) == ()
    swapped = CaptureSpec(activities=(Activity.CUDA, Activity.CPU))
    assert differences(plain, make_capture(world_size=8, spec=swapped)) == ()
    assert "8 and 16 ranks" in differences(plain, make_capture(world_size=16, spec=CaptureSpec()))[0]
    assert "with_stack" in differences(plain, make_capture(world_size=8, spec=CaptureSpec(with_stack=True)))[0]
    # nothing is known against an imported capture
    assert differences(plain, make_capture(world_size=None, spec=None)) == ()


@pytest.mark.parametrize("threshold", [-0.1, math.nan, math.inf])
def test_an_impossible_threshold_is_refused_before_anything_is_read(tmp_path: Path, threshold: float) -> None:
    with pytest.raises(UsageError, match="threshold"):
        compare(str(tmp_path / "nowhere"), str(tmp_path), threshold=threshold)


# -- a series of three: the same, the same with other chance, and 8 ms slower; each run has its own job name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with the captures of five runs, taken an hour apart, and the results of all but the last."""
    folder = tmp_path_factory.mktemp("series")
    size = {"hosts": 1, "gpus": 2, "steps": 24}
    slow = (Slow(rank=1, cause="host", ms=8),)
    for hour, job in enumerate(
        (
            GpuJob(**size, seed=1),  # type: ignore[arg-type]
            GpuJob(**size, seed=2),  # type: ignore[arg-type]
            GpuJob(**size, seed=3, slow=slow),  # type: ignore[arg-type]
            GpuJob(hosts=1, gpus=4, steps=24, seed=4, slow=slow),
        )
    ):
        capture = import_run(folder / f"run{hour}", job.run(), series="nightly", job=f"run-{hour}")
        redate(capture / "manifest.json", hour)
        analyze(str(capture), str(folder / "results"))
    return folder


@pytest.fixture
def series(made: Path, tmp_path: Path) -> Path:
    """A copy of its own, whose files may be removed. (The history names the manifests of the original.)"""
    shutil.copytree(made / "results", tmp_path / "results")
    return tmp_path


def manifest_at(made: Path, hour: int) -> str:
    return str(made / f"run{hour}" / "capture" / "manifest.json")


def manifest_of(made: Path, hour: int) -> Manifest:
    return decode(Path(manifest_at(made, hour)).read_bytes())


def id_of(made: Path, hour: int) -> str:
    return manifest_of(made, hour).capture.capture_id


def results_of(root: Path, made: Path, hour: int) -> Path:
    return root / "results" / "captures" / "local" / f"run-{hour}" / "0" / id_of(made, hour)


def test_a_planted_slowdown_is_a_regression_against_the_run_before(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 2), str(series / "results"))
    assert found.verdict is CompareVerdict.REGRESSED
    assert (found.before_capture_id, found.after_capture_id) == (id_of(made, 1), id_of(made, 2))
    assert found.series == "nightly"
    assert found.step_before_ns is not None
    assert found.step_after_ns is not None
    assert found.step_after_ns - found.step_before_ns == pytest.approx(8 * MS, abs=2.5 * MS)  # planted: 8 ms
    assert found.slowdown == pytest.approx(found.step_after_ns / found.step_before_ns - 1, abs=1e-3)
    assert "Regression" in found.message
    assert found.exit_code == 0
    folder = results_of(series, made, 2)
    assert found.comparison_uri == (folder / "comparison.html").as_uri()
    written = json.loads((folder / "comparison.json").read_text())
    assert written["step"]["delta_ns"] == pytest.approx(found.step_after_ns - found.step_before_ns, abs=1)
    assert "run-1" in (folder / "comparison.html").read_text()


def test_a_slowdown_below_the_threshold_is_said_and_no_regression(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 2), str(series / "results"), threshold=0.9)
    assert found.verdict is CompareVerdict.SLOWER
    assert found.sentences[0].startswith("A step got slower")


def test_two_runs_of_the_same_speed_are_the_same(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 1), str(series / "results"), threshold=0.01)
    assert found.verdict is CompareVerdict.SAME
    assert found.before_capture_id == id_of(made, 0)


def test_the_first_capture_of_a_series_has_nothing_before_it(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 0), str(series / "results"))
    assert (found.verdict, found.exit_code, found.before_capture_id) == (CompareVerdict.FIRST, 0, "")
    assert not (results_of(series, made, 0) / "comparison.html").exists()


def test_an_earlier_capture_may_be_named(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 2), str(series / "results"), before=manifest_at(made, 0))
    assert (found.verdict, found.before_capture_id) == (CompareVerdict.REGRESSED, id_of(made, 0))
    back = compare(manifest_at(made, 0), str(series / "results"), before=manifest_at(made, 2))
    assert back.verdict is CompareVerdict.FASTER
    with pytest.raises(UsageError, match="same capture"):
        compare(manifest_at(made, 0), str(series / "results"), before=manifest_at(made, 0))


def test_a_job_of_another_size_is_compared_and_not_judged(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 3), str(series / "results"), before=manifest_at(made, 0))
    assert found.verdict is CompareVerdict.UNKNOWN
    assert "2 and 4 ranks" in found.message
    assert found.step_before_ns is not None


def test_the_earlier_capture_is_not_needed_in_the_archive(made: Path, series: Path, tmp_path: Path) -> None:
    """Summaries are kept beside the report, and traces are deleted some day."""
    hidden = made / "run1-gone"
    (made / "run1").rename(hidden)
    try:
        kept = compare(manifest_at(made, 2), str(series / "results"))
    finally:
        hidden.rename(made / "run1")
    assert (kept.verdict, kept.before_capture_id) == (CompareVerdict.REGRESSED, id_of(made, 1))


def test_without_kept_summaries_the_archive_is_read_and_says_the_same(made: Path, series: Path) -> None:
    kept = compare(manifest_at(made, 2), str(series / "results"))
    shutil.rmtree(results_of(series, made, 1) / "ranks")
    shutil.rmtree(results_of(series, made, 2) / "ranks")
    assert compare(manifest_at(made, 2), str(series / "results")) == kept


def test_a_kept_summary_that_was_changed_is_not_believed(made: Path, series: Path) -> None:
    kept = compare(manifest_at(made, 2), str(series / "results"))
    folder = results_of(series, made, 1) / ranks_folder(manifest_of(made, 1).sha256)
    file = folder / "0.json"
    data = json.loads(file.read_bytes())
    edges = data["summary"]["steps"]["edges_ns"]
    data["summary"]["steps"]["edges_ns"] = [edge * 2 for edge in edges]  # would look half as slow as it was
    file.write_text(json.dumps(data))
    assert compare(manifest_at(made, 2), str(series / "results")) == kept


def test_a_kept_manifest_that_was_changed_is_not_believed(made: Path, series: Path) -> None:
    """It would say of other ranks or another time what the summaries beside it never said."""
    kept = compare(manifest_at(made, 2), str(series / "results"))
    file = results_of(series, made, 1) / ranks_folder(manifest_of(made, 1).sha256) / "manifest.json"
    found = decode(file.read_bytes())
    file.write_bytes(encode(build(msgspec.structs.replace(found.capture, caller="forged"), list(found.targets))))
    assert compare(manifest_at(made, 2), str(series / "results")) == kept
    (made / "run1").rename(made / "hidden")
    try:
        found_now = compare(manifest_at(made, 2), str(series / "results"))
    finally:
        (made / "hidden").rename(made / "run1")
    assert found_now.before_capture_id == id_of(made, 0), "the forged one is not that of the row"
    assert "it is not there any more" in found_now.message


def test_an_earlier_capture_without_a_single_trace_leaves_the_one_before_it(
    made: Path, series: Path, tmp_path: Path
) -> None:
    """A row may say SUCCEEDED of a manifest that lists nothing to analyse: rows are written by whoever may."""
    found = manifest_of(made, 1)
    lost = [
        msgspec.structs.replace(each, artifact=None, failure=failed(each.identity.rank or 0).failure)
        for each in found.targets
    ]
    capture = msgspec.structs.replace(found.capture, outcome=JobOutcome.FAILED, common_window_ns=None)
    empty = build(capture, lost)
    (tmp_path / "empty.json").write_bytes(encode(empty))
    results = str(series / "results")
    shutil.rmtree(results_of(series, made, 1))
    row = next(each for each in rows(results, "local", "nightly") if each.capture_id == id_of(made, 1))
    uri = str(tmp_path / "empty.json")
    append(results, msgspec.structs.replace(row, manifest_uri=uri, manifest_sha256=empty.sha256))
    told = compare(manifest_at(made, 2), results)
    assert told.before_capture_id == id_of(made, 0)
    assert "No rank of capture" in told.message


def test_an_earlier_capture_that_is_gone_everywhere_leaves_the_one_before_it(made: Path, series: Path) -> None:
    shutil.rmtree(results_of(series, made, 1))
    hidden = made / "run1-gone"
    (made / "run1").rename(hidden)
    try:
        found = compare(manifest_at(made, 2), str(series / "results"))
        assert (found.verdict, found.before_capture_id) == (CompareVerdict.REGRESSED, id_of(made, 0))
        with pytest.raises(UnknownCapture):
            compare(manifest_at(made, 2), str(series / "results"), before=manifest_at(made, 1))
    finally:
        hidden.rename(made / "run1")


def _with_another_rank(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes().replace(b'"rank": 1', b'"rank": 7', 1))


def _kept(manifest: Path) -> list[Path]:
    """Everything beside the manifest: traces, and what was made of them."""
    return [path for path in manifest.parent.rglob("*") if path.is_file() and path != manifest]


def _without_traces(manifest: Path) -> None:
    for path in _kept(manifest):
        path.unlink()


def _with_cut_traces(manifest: Path) -> None:
    for path in _kept(manifest):
        path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_with_another_rank, "can't be used"),
        (lambda manifest: manifest.write_bytes(b""), "can't be used"),
        (_without_traces, "can't be used"),
        (_with_cut_traces, "can't be used"),
        (lambda manifest: manifest.unlink(), "not there any more"),
    ],
)
def test_an_earlier_capture_that_is_damaged_leaves_the_one_before_it_and_is_named(
    made: Path, series: Path, damage: Callable[[Path], object], why: str
) -> None:
    """Otherwise each comparison would fail until somebody repaired an old capture."""
    shutil.rmtree(results_of(series, made, 1))
    shutil.copytree(made / "run1", made / "whole")
    try:
        damage(Path(manifest_at(made, 1)))
        found = compare(manifest_at(made, 2), str(series / "results"))
        with pytest.raises(SameshotError):
            compare(manifest_at(made, 2), str(series / "results"), before=manifest_at(made, 1))
    finally:
        shutil.rmtree(made / "run1")
        (made / "whole").rename(made / "run1")
    assert (found.verdict, found.before_capture_id) == (CompareVerdict.REGRESSED, id_of(made, 0))
    assert f"Passed over: capture {id_of(made, 1)}: it" in found.message
    assert why in found.message


@pytest.mark.parametrize(
    "uri", ["s3:///nothing", "gopher://x/manifest.json", "/nowhere/manifest.json"], ids=["bucket", "scheme", "path"]
)
def test_an_earlier_capture_at_an_address_that_is_none_leaves_the_one_before_it(
    made: Path, series: Path, uri: str
) -> None:
    shutil.rmtree(results_of(series, made, 1))
    results = str(series / "results")
    row = next(each for each in rows(results, "local", "nightly") if each.capture_id == id_of(made, 1))
    append(results, msgspec.structs.replace(row, manifest_uri=uri))
    assert compare(manifest_at(made, 2), results).before_capture_id == id_of(made, 0)


def test_a_row_whose_names_lead_elsewhere_leaves_the_one_before_it(made: Path, series: Path) -> None:
    results = str(series / "results")
    row = next(each for each in rows(results, "local", "nightly") if each.capture_id == id_of(made, 1))
    append(results, msgspec.structs.replace(row, job="../../.."))
    found = compare(manifest_at(made, 2), results)
    assert found.before_capture_id == id_of(made, 0)
    assert "it can't be used" in found.message


def test_a_later_capture_that_is_damaged_is_an_error(made: Path, series: Path) -> None:
    shutil.rmtree(results_of(series, made, 2))
    shutil.copytree(made / "run2", made / "whole")
    try:
        _with_cut_traces(Path(manifest_at(made, 2)))
        with pytest.raises(VerificationFailed):
            compare(manifest_at(made, 2), str(series / "results"))
    finally:
        shutil.rmtree(made / "run2")
        (made / "whole").rename(made / "run2")


def test_a_store_that_does_not_answer_is_an_error_and_no_reason_to_take_another_capture(
    made: Path, series: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system's error for a moment; that nobody may read it is for good."""
    shutil.rmtree(results_of(series, made, 1))
    real = Path.open
    trouble: list[OSError] = []

    def failing(self: Path, *arguments: Any, **options: Any) -> Any:
        if "run1" in self.parts:
            raise trouble[0]
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", failing)
    trouble[:] = [OSError(errno.EIO, "Input/output error")]
    with pytest.raises(StorageError, match="Input/output"):
        compare(manifest_at(made, 2), str(series / "results"))
    trouble[:] = [PermissionError(errno.EACCES, "Permission denied")]
    found = compare(manifest_at(made, 2), str(series / "results"))
    assert found.before_capture_id == id_of(made, 0)
    assert "it may not be read" in found.message


def test_a_capture_that_was_never_analysed_can_be_compared(made: Path, series: Path) -> None:
    """The comparison does not depend on the row of the capture itself."""
    shutil.rmtree(results_of(series, made, 2))
    (series / "results" / "history" / "local" / "nightly" / f"{id_of(made, 2)}.parquet").unlink()
    found = compare(manifest_at(made, 2), str(series / "results"))
    assert (found.verdict, found.before_capture_id) == (CompareVerdict.REGRESSED, id_of(made, 1))


def test_another_manifest_than_the_expected_one_is_not_compared(made: Path, series: Path) -> None:
    with pytest.raises(VerificationFailed, match="expected was"):
        compare(manifest_at(made, 2), str(series / "results"), expected_sha256="ab" * 32)
    assert not (results_of(series, made, 2) / "comparison.html").exists()


def test_summaries_of_single_shards_are_no_comparison(made: Path, series: Path, tmp_path: Path) -> None:
    """Half of the ranks would be half of the truth: the rest comes from the archive."""
    analyze_rank(manifest_at(made, 0), "0/2", str(tmp_path / "half"))
    half = compare(manifest_at(made, 2), str(tmp_path / "half"), before=manifest_at(made, 0))
    whole = compare(manifest_at(made, 2), str(series / "results"), before=manifest_at(made, 0))
    assert (half.verdict, half.slowdown, half.step_before_ns) == (whole.verdict, whole.slowdown, whole.step_before_ns)


def test_an_earlier_capture_without_all_ranks_is_passed_over_unless_it_is_accepted(
    made: Path, series: Path, tmp_path: Path
) -> None:
    run = GpuJob(hosts=1, gpus=2, steps=24, seed=5).run()
    capture = import_run(tmp_path / "half", run, without=(0,), world_size=2, series="nightly", job="half")
    redate(capture / "manifest.json", 1, minute=30)
    assert analyze(str(capture), str(series / "results")).missing == "0"
    strict = compare(manifest_at(made, 2), str(series / "results"))
    assert strict.before_capture_id == id_of(made, 1)
    assert not any("lacks" in sentence for sentence in strict.sentences)
    lenient = compare(manifest_at(made, 2), str(series / "results"), accept_partial=True)
    assert lenient.before_capture_id == decode((capture / "manifest.json").read_bytes()).capture.capture_id
    assert lenient.verdict is CompareVerdict.REGRESSED
    assert lenient.sentences[-1] == "The earlier capture lacks rank 0"


# -- captures that were recorded otherwise are passed over


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fast; the same on demand with stacks; 8 ms slower; slower still the same: nightly captures and one by hand."""
    folder = tmp_path_factory.mktemp("mixed")
    slow = (Slow(rank=1, cause="host", ms=8),)
    for hour, (late, spec) in enumerate(
        (((), CaptureSpec()), ((), CaptureSpec(with_stack=True)), (slow, CaptureSpec()), (slow, CaptureSpec()))
    ):
        run = GpuJob(hosts=1, gpus=2, steps=24, seed=hour, slow=late).run()
        capture = import_run(folder / f"run{hour}", run, series="nightly", job=f"run-{hour}")
        redate(capture / "manifest.json", hour, spec=spec)
        analyze(str(capture), str(folder / "results"))
    return folder


def test_a_capture_with_other_options_in_between_hides_no_regression(mixed: Path) -> None:
    results = str(mixed / "results")
    alone = compare(manifest_at(mixed, 1), results)
    assert (alone.verdict, alone.before_capture_id) == (CompareVerdict.UNKNOWN, id_of(mixed, 0))
    assert "with_stack" in alone.message
    found = compare(manifest_at(mixed, 2), results)
    assert (found.verdict, found.before_capture_id) == (CompareVerdict.REGRESSED, id_of(mixed, 0))
    assert f"Passed over: capture {id_of(mixed, 1)}" in found.message
    assert "with_stack" in found.message
    last = compare(manifest_at(mixed, 3), results)
    assert (last.verdict, last.before_capture_id) == (CompareVerdict.SAME, id_of(mixed, 2))
    assert "Passed over" not in last.message


def test_rows_that_do_not_state_their_options_are_judged_by_their_manifests(mixed: Path, tmp_path: Path) -> None:
    """As versions that kept no options have written them."""
    shutil.copytree(mixed / "results", tmp_path / "results")
    unknown = dict.fromkeys(("activities", "with_stack", "record_shapes", "profile_memory", "with_flops"))
    for row in rows(str(tmp_path / "results"), "local", "nightly"):
        append(str(tmp_path / "results"), msgspec.structs.replace(row, world_size=None, **unknown))
    found = compare(manifest_at(mixed, 2), str(tmp_path / "results"))
    assert (found.verdict, found.before_capture_id) == (CompareVerdict.REGRESSED, id_of(mixed, 0))
    assert "with_stack" in found.message


def test_no_manifest_is_read_of_a_row_that_states_other_options(mixed: Path, tmp_path: Path) -> None:
    shutil.copytree(mixed / "results", tmp_path / "results")
    shutil.rmtree(results_of(tmp_path, mixed, 1))
    (mixed / "run1").rename(mixed / "hidden")
    try:
        found = compare(manifest_at(mixed, 2), str(tmp_path / "results"))
    finally:
        (mixed / "hidden").rename(mixed / "run1")
    assert found.verdict is CompareVerdict.REGRESSED
    assert "with_stack" in found.message, "not: it is not there"


def test_where_no_earlier_capture_is_alike_nothing_is_judged(made: Path, series: Path) -> None:
    found = compare(manifest_at(made, 3), str(series / "results"))
    assert (found.verdict, found.before_capture_id) == (CompareVerdict.UNKNOWN, id_of(made, 2))
    assert "2 and 4 ranks" in found.message
    assert f"Passed over: capture {id_of(made, 1)} (and 1 more): the jobs had 2 and 4 ranks." in found.message


def test_where_no_earlier_capture_can_be_read_nothing_is_known(made: Path, series: Path) -> None:
    """It is not the first of its series, and nobody can tell what it should be compared with."""
    shutil.rmtree(results_of(series, made, 0))
    (made / "run0").rename(made / "hidden")
    try:
        found = compare(manifest_at(made, 1), str(series / "results"))
    finally:
        (made / "hidden").rename(made / "run0")
    assert (found.verdict, found.before_capture_id, found.comparison_uri) == (CompareVerdict.UNKNOWN, "", "")
    assert f"Passed over: capture {id_of(made, 0)}: it is not there any more." in found.message


# -- ranks that could not be analysed, and other fetch patterns


def test_a_rank_that_could_not_be_analysed_is_missed_where_that_is_accepted_and_else_read_from_its_trace(
    made: Path, series: Path, tmp_path: Path
) -> None:
    results = str(tmp_path / "half")
    analyze_rank(manifest_at(made, 2), "0/2", results)
    reduce(manifest_at(made, 2), results, min_ranks=1)
    lenient = compare(manifest_at(made, 2), results, before=manifest_at(made, 0), accept_partial=True)
    assert lenient.sentences[-1] == "The later capture lacks rank 1"
    strict = compare(manifest_at(made, 2), results, before=manifest_at(made, 0))
    assert strict.verdict is CompareVerdict.REGRESSED
    assert not any("lacks" in sentence for sentence in strict.sentences)


def test_an_earlier_capture_of_which_a_rank_was_not_analysed_is_passed_over_unless_it_is_accepted(
    made: Path, series: Path
) -> None:
    results = str(series / "results")
    shutil.rmtree(results_of(series, made, 1))
    analyze_rank(manifest_at(made, 1), "0/2", results)
    assert reduce(manifest_at(made, 1), results, min_ranks=1).exit_code == 0
    assert compare(manifest_at(made, 2), results).before_capture_id == id_of(made, 0)
    lenient = compare(manifest_at(made, 2), results, accept_partial=True)
    assert lenient.before_capture_id == id_of(made, 1)
    assert "The earlier capture lacks rank 1" in lenient.sentences
    content = compare(manifest_at(made, 2), results, min_ranks=1)  # with some ranks of the one, and of the other
    assert (content.before_capture_id, content.sentences) == (lenient.before_capture_id, lenient.sentences)


def test_ranks_without_a_kept_summary_are_analysed_with_the_fetch_pattern_of_the_others(
    made: Path, tmp_path: Path
) -> None:
    results = str(tmp_path / "fetched")
    pattern = "no such annotation"
    for hour in (0, 2):
        analyze(manifest_at(made, hour), results, fetch_pattern=pattern)
    kept = compare(manifest_at(made, 2), results, before=manifest_at(made, 0))
    assert not any("fetch patterns" in sentence for sentence in kept.sentences)
    written = results_of(tmp_path, made, 2).as_posix().replace("/results/", "/fetched/")
    whole = json.loads(Path(written, "comparison.json").read_text())
    for hour in (0, 2):
        shutil.rmtree(Path(results_of(tmp_path, made, hour).as_posix().replace("/results/", "/fetched/"), "ranks"))
        assert compare(manifest_at(made, 2), results, before=manifest_at(made, 0)) == kept
        again = json.loads(Path(written, "comparison.json").read_text())
        assert again | {"generated_at": ""} == whole | {"generated_at": ""}
        analyze(manifest_at(made, hour), results, fetch_pattern=pattern)
    analyze(manifest_at(made, 0), results)
    mixed = compare(manifest_at(made, 2), results, before=manifest_at(made, 0))
    assert "different fetch patterns" in mixed.sentences[-1]


def test_summaries_of_two_fetch_patterns_are_not_joined(made: Path, tmp_path: Path) -> None:
    results, pattern = str(tmp_path / "results"), "no such annotation"
    for hour in (0, 2):
        analyze(manifest_at(made, hour), results, fetch_pattern=pattern)
    whole = compare(manifest_at(made, 2), results, before=manifest_at(made, 0))
    analyze_rank(manifest_at(made, 2), "1/2", results)  # as of a run with another pattern that came no further
    again = compare(manifest_at(made, 2), results, before=manifest_at(made, 0))
    assert again == whole, "the rank is read from its trace, with the pattern of the other"
    lenient = compare(manifest_at(made, 2), results, before=manifest_at(made, 0), accept_partial=True)
    assert lenient.sentences[-1] == "The later capture lacks rank 1"
