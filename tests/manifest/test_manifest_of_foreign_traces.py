"""Traces that somebody else wrote become a capture: which file is whose is said, checked, and never guessed."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from make_trace import make_events, make_trace, window_of

from sameshot.cli.main import invoke
from sameshot.errors import UsageError
from sameshot.manifest import Manifest, Provenance, Target, decode
from sameshot.model import BoundBy, Encoding, FailureReason, Outcome
from sameshot.trace.capture_check import inspect_capture, locate
from sameshot.trace.imported import Import, Imported, files_by_pattern, import_traces

UUID = "0199c0de-0000-7000-8000-000000000001"


def trace_of(rank: int, *, states_rank: bool = True, **options: Any) -> bytes:
    """Distinct for each rank, as real ones are."""
    options.setdefault("events", 20 + rank)
    return make_trace(rank=rank if states_rank else None, trace_name=f"of rank {rank}", **options)


def write(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return {name: folder / name for name in files}


def take(tmp_path: Path, ranks: dict[int, bytes], **options: Any) -> Imported:
    files = write(tmp_path / "in", {f"{rank}.json": data for rank, data in ranks.items()})
    return import_traces(Import(files={rank: files[f"{rank}.json"] for rank in ranks}, out=tmp_path / "cap", **options))


def refused(tmp_path: Path, ranks: dict[int, bytes], **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        take(tmp_path, ranks, **options)
    assert {path.name for path in tmp_path.iterdir()} <= {"in"}, "something was left behind"
    return str(caught.value)


def by_rank(manifest: Manifest) -> dict[int | None, Target]:
    return {target.identity.rank: target for target in manifest.targets}


def sound(path: Path) -> None:
    report = inspect_capture(*locate(str(path)))
    assert not report.failed, report.failed


# -- what becomes of the files ------------------------------------------------------------------------------------


def test_sound_files_become_a_capture_that_says_it_was_imported(tmp_path: Path) -> None:
    traces = {0: trace_of(0, world_size=2), 1: gzip.compress(trace_of(1, world_size=2), mtime=0)}
    imported = take(tmp_path, traces, job="bert", namespace="nlp", series="nightly", caller="ada", nodes={1: "n1"})
    assert imported.path == tmp_path / "cap" / "manifest.json"
    manifest = decode(imported.path.read_bytes())
    assert manifest == imported.manifest
    capture = manifest.capture
    assert (capture.provenance, capture.outcome, capture.world_size) == (Provenance.IMPORTED, Outcome.SUCCEEDED, 2)
    assert (capture.job.namespace, capture.job.name, capture.job.series) == ("nlp", "bert", "nightly")
    assert capture.caller == "ada"
    assert capture.spec is None, "nobody knows what was asked for"
    assert json.loads(imported.path.read_bytes())["capture"]["spec"] is None
    for rank, target in enumerate(manifest.targets):
        assert target.target_id == f"rank/{rank}"
        assert (target.identity.rank, target.identity.host) == (rank, "node-a")
        assert target.identity.node == (None, "n1")[rank]
        assert target.identity.bound_by is BoundBy.PATH
        artifact = target.artifact
        assert artifact is not None
        assert artifact.encoding is Encoding.GZIP
        raw = trace_of(rank, world_size=2)
        assert gzip.decompress((imported.path.parent / artifact.uri).read_bytes()) == raw
        assert (artifact.raw_size, artifact.raw_sha256) == (len(raw), hashlib.sha256(raw).hexdigest())
        assert (artifact.window_start_ns, artifact.window_end_ns) == window_of(20 + rank)
    sound(imported.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cap", "in"]


def test_the_same_files_make_the_same_capture_and_other_ranks_another(tmp_path: Path) -> None:
    traces = {rank: trace_of(rank, states_rank=False) for rank in range(2)}
    ids = [
        take(tmp_path / name, given).manifest.capture.capture_id
        for name, given in {"a": traces, "b": traces, "c": {0: traces[1], 1: traces[0]}}.items()
    ]
    assert ids[0] == ids[1] != ids[2]


def test_traces_of_armed_workers_keep_the_identity_that_is_in_their_bytes(tmp_path: Path) -> None:
    imported = take(tmp_path, {3: make_trace(UUID)})
    [target] = imported.manifest.targets
    assert (target.identity.registration, target.identity.bound_by) == (UUID, BoundBy.BYTES)
    sound(imported.path)


def test_ranks_of_the_world_without_a_file_are_failed_targets_by_name(tmp_path: Path) -> None:
    for options, traces in (
        ({"world_size": 4}, {rank: trace_of(rank, states_rank=False) for rank in (0, 2)}),
        ({}, {rank: trace_of(rank, world_size=4) for rank in (0, 2)}),
    ):
        folder = tmp_path / str(len(options))
        manifest = take(folder, traces, **options).manifest
        assert manifest.capture.outcome is Outcome.PARTIAL
        assert manifest.totals.missing_ranks == (1, 3)
        for rank in (1, 3):
            target = by_rank(manifest)[rank]
            assert target.target_id == f"rank/{rank}"
            assert target.failure is not None
            assert target.failure.reason is FailureReason.MISSING
            assert f"rank {rank}" in target.failure.detail


def test_without_any_word_about_the_world_nothing_is_claimed_about_it(tmp_path: Path) -> None:
    manifest = take(tmp_path, {rank: trace_of(rank, states_rank=False) for rank in (0, 5)}).manifest
    assert manifest.capture.world_size is None
    assert [target.identity.rank for target in manifest.targets] == [0, 5]


def test_a_broken_file_fails_its_rank_with_its_bytes_kept_and_the_others_go_on(tmp_path: Path) -> None:
    broken = {1: trace_of(1)[:-30], 2: b"", 3: gzip.compress(trace_of(3))[:-9]}
    imported = take(tmp_path, {0: trace_of(0), **broken})
    assert imported.manifest.capture.outcome is Outcome.PARTIAL
    targets = by_rank(imported.manifest)
    assert targets[0].artifact is not None
    for rank, (reason, word) in {
        1: (FailureReason.INVALID, "truncated at byte"),
        2: (FailureReason.EMPTY, "empty"),
        3: (FailureReason.INVALID, "compression at byte"),
    }.items():
        failure = targets[rank].failure
        assert failure is not None
        assert failure.reason is reason
        assert word in failure.detail
        assert failure.raw is not None
        assert (imported.path.parent / failure.raw.uri).read_bytes() == broken[rank]
        assert not (imported.path.parent / f"rank-{rank}").exists()
    sound(imported.path)


def test_a_trace_that_says_it_is_another_rank_or_of_another_world_is_wrong_identity(tmp_path: Path) -> None:
    imported = take(tmp_path, {0: trace_of(0), 1: trace_of(2), 2: trace_of(2, events=9, world_size=8)}, world_size=4)
    targets = by_rank(imported.manifest)
    assert targets[0].artifact is not None
    for rank, words in {1: "says it is rank 2", 2: "a world of 8 ranks, expected was 4"}.items():
        failure = targets[rank].failure
        assert failure is not None
        assert failure.reason is FailureReason.WRONG_IDENTITY
        assert words in failure.detail
    assert imported.manifest.totals.missing_ranks == (1, 2, 3)
    sound(imported.path)


def test_only_broken_files_make_a_failed_capture_that_still_keeps_them(tmp_path: Path) -> None:
    imported = take(tmp_path, {0: b"{"})
    assert imported.manifest.capture.outcome is Outcome.FAILED
    assert (imported.path.parent / "failed/rank-0/raw").read_bytes() == b"{"


# -- what is refused as a whole -----------------------------------------------------------------------------------


def test_one_trace_for_two_ranks_is_refused_however_it_is_packed(tmp_path: Path) -> None:
    data = trace_of(0, states_rank=False)
    assert "Ranks 0 and 1 were given the same trace" in refused(tmp_path / "a", {0: data, 1: data})
    assert "Ranks 0 and 1 were given the same trace" in refused(tmp_path / "b", {0: data, 1: gzip.compress(data)})
    claims = trace_of(0)  # fails as rank 1, and is refused all the same
    assert "Ranks 0 and 1 were given the same trace" in refused(tmp_path / "c", {0: claims, 1: claims})
    file = write(tmp_path / "d", {"a.json": data})["a.json"]
    (tmp_path / "d" / "link").symlink_to(file)
    with pytest.raises(UsageError, match="Ranks 2 and 4 were given the same file"):
        import_traces(Import(files={2: file, 4: tmp_path / "d" / "link"}, out=tmp_path / "out"))


def test_two_traces_of_one_worker_are_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, {0: make_trace(UUID, events=3), 1: make_trace(UUID, events=4)})
    assert f"both written by the worker {UUID}" in said


def test_traces_of_two_jobs_are_refused(tmp_path: Path) -> None:
    assert "4 (rank 0) and 8 (rank 1)" in refused(tmp_path, {0: trace_of(0), 1: trace_of(1, world_size=8)})
    assert "a world of 2 ranks, but rank 3" in refused(
        tmp_path, {0: trace_of(0, world_size=2), 3: trace_of(3, states_rank=False)}
    )
    assert "which is not in a world of 2" in refused(tmp_path, {2: trace_of(2)}, world_size=2)
    hostile = make_trace(rank=0, world_size=999_999_999)
    assert "--world-size" in refused(tmp_path, {0: hostile})


def test_a_folder_that_holds_something_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "cap").mkdir()
    take(tmp_path, {0: trace_of(0)})  # an empty one is fine
    before = (tmp_path / "cap/manifest.json").read_bytes()
    with pytest.raises(UsageError, match="not empty"):
        take(tmp_path, {0: trace_of(0, events=5)})
    assert (tmp_path / "cap/manifest.json").read_bytes() == before


def test_what_is_no_readable_file_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, word in ((tmp_path / "nothing", "No such file"), (tmp_path, "regular"), (tmp_path / "fifo", "regular")):
        with pytest.raises(UsageError, match=word) as caught:
            import_traces(Import(files={7: path}, out=tmp_path / "cap"))
        assert "rank 7" in str(caught.value)
    assert not (tmp_path / "cap").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    files = write(tmp_path / "in", {f"{rank}": trace_of(rank) for rank in range(3)})

    def interrupt(done: int, of: int, target: Target) -> None:
        assert (of, target.artifact is not None) == (3, True)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_traces(
            Import(files={rank: files[f"{rank}"] for rank in range(3)}, out=tmp_path / "cap"), progress=interrupt
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_ctrl_c_ends_the_reading_processes_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    events = json.dumps(make_events(4000)[2:4002]).encode()[1:-1]
    big = b'{"traceEvents": [' + b",".join([events] * 60) + b"]}"
    files = write(tmp_path / "in", {f"{rank}": big.replace(b"{", b'{"n": %d, ' % rank, 1) for rank in range(2)})
    script = (
        "import sys; from pathlib import Path; from sameshot.trace.imported import Import, import_traces\n"
        "if __name__ == '__main__':\n"
        "    files = {rank: Path(path) for rank, path in enumerate(sys.argv[2:])}\n"
        "    import_traces(Import(files=files, out=Path(sys.argv[1])), workers=2)\n"
    )
    (tmp_path / "script.py").write_text(script)
    parent = psutil.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "cap"), *map(str, files.values())],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".cap.*.part/rank-*/trace.json.gz")):  # both read, or soon
            assert time.monotonic() < deadline
            assert parent.poll() is None, parent.stderr.read().decode()
            time.sleep(0.01)
        children = parent.children(recursive=True)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of them
        parent.communicate(timeout=30)
        assert parent.returncode == -signal.SIGINT
        assert not psutil.wait_procs(children, timeout=30)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "script.py"]


# -- which file is whose ------------------------------------------------------------------------------------------


def test_a_pattern_says_where_the_rank_stands_and_nothing_else_is_read_from_names(tmp_path: Path) -> None:
    write(
        tmp_path,
        dict.fromkeys(["rank0.json.gz", "rank007.json.gz", "rank1.json", "xrank2.json.gz", "rank.json.gz"], b"x"),
    )
    found = files_by_pattern("rank{rank}.json.gz", tmp_path)
    assert {rank: path.name for rank, path in found.items()} == {0: "rank0.json.gz", 7: "rank007.json.gz"}


def test_a_pattern_may_lead_into_folders_and_leave_parts_open(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(["r12/host1_77.pt.trace.json", "r3/b.pt.trace.json", "r3/notes.txt"], b"x"))
    found = files_by_pattern("r{rank}/*.pt.trace.json", tmp_path)
    assert {rank: path.parent.name for rank, path in found.items()} == {12: "r12", 3: "r3"}
    write(tmp_path / "flat", dict.fromkeys(["a_12_x.json", "b_3_x.json"], b"x"))
    assert sorted(files_by_pattern("*{rank}_x.json", tmp_path / "flat")) == [3, 12], "never the 2 of 12"
    write(tmp_path / "odd", {"a[1]{b}.4.json": b"x", "a1b.5.json": b"x"})
    with pytest.raises(UsageError):
        files_by_pattern("a[1].{rank}.json", tmp_path / "odd")


def test_two_names_for_one_rank_are_refused(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(["rank1.json", "rank01.json"], b"x"))
    with pytest.raises(UsageError, match=r"rank 1 by the pattern.*rank01\.json.*rank1\.json"):
        files_by_pattern("rank{rank}.json", tmp_path)


@pytest.mark.parametrize("pattern", ["*.json", "{rank}{rank}", "rank1.json", "../{rank}.json", "/{rank}"])
def test_a_pattern_without_one_rank_or_without_a_match_is_refused(tmp_path: Path, pattern: str) -> None:
    write(tmp_path / "in", {"rank1.json": b"x"})
    write(tmp_path, {"3.json": b"x"})
    with pytest.raises(UsageError):
        files_by_pattern(pattern, tmp_path / "in")


# -- the command --------------------------------------------------------------------------------------------------


def test_two_commands_lead_from_files_to_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {f"rank{rank}.json": trace_of(rank, world_size=2) for rank in range(2)})
    assert invoke(["manifest", "create", "--out", "cap", "0=rank0.json", "1=rank1.json"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 ranks are there" in said
    [command] = [line.removeprefix("next: ") for line in said.splitlines() if line.startswith("next: ")]
    assert command == "sameshot analyze cap --out report"
    assert invoke(command.split()[1:]) == 0
    assert (tmp_path / "report/report.html").is_file()
    summary = json.loads((tmp_path / "report/summary.json").read_text())
    assert (summary["capture"]["provenance"], summary["capture"].get("asked_window")) == ("imported", None)
    assert summary["analysed_ranks"] == 2


def test_the_exit_code_tells_a_partial_import_from_one_without_any_sound_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"in/r0.json": trace_of(0), "in/r1.json": b"{}", "bad.json": b"x"})
    assert invoke(["manifest", "create", "--out", "a", "--pattern", "r{rank}.json", "in"]) == 3
    said = capsys.readouterr().out
    assert "rank 1: INVALID" in said
    assert "no file was given for ranks 2-3" in said
    assert invoke(["manifest", "create", "--out", "b", "0=bad.json"]) == 4
    assert "analyze" not in capsys.readouterr().out
    assert invoke(["manifest", "create", "--out", "c", "--world-size", "1", "-o", "json", "0=bad.json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["totals"]["missing_ranks"], told["manifest"]) == ("FAILED", [0], "c/manifest.json")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["a.json"], "never guessed"),
        (["0=a.json", "0=b.json"], "Two files were given for rank 0"),
        (["-1=a.json"], "No such option"),
        (["x=a.json"], "RANK=FILE"),
        (["0=a.json", "--host", "0"], "RANK=NAME"),
        (["0=a.json", "--node", "0-1=a", "--node", "1=b"], "Two nodes were given for rank 1"),
        (["0=a.json", "--node", "5=a", "--world-size", "2"], "rank 5"),
        (["--pattern", "r{rank}", "a", "b"], "exactly one folder"),
        (["0=a.json", "--job", "../x"], "not usable as a name"),
    ],
)
def test_what_can_not_be_meant_is_a_usage_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"a.json": trace_of(0), "b.json": trace_of(1)})
    assert invoke(["manifest", "create", "--out", "cap", *arguments]) == 2
    assert word in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "cap").exists()
