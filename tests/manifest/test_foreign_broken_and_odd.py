"""Every broken file and every odd set, imported and loaded: which are refused and as what, and what the others say.

Each of the three steps of the clean set has on the device, in µs: a gemm from 10 to 50, an all-reduce from 40 to 100
(120 on rank 1), an elementwise kernel from 70 to 90. So compute takes 3 · (40 + 20) = 180 µs, 10 + 20 of each
all-reduce run beside it, and 3 · 30 = 90 (rank 1: 150) µs of communication are exposed.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sameshot.analysis import RankSummary, analyze
from sameshot.errors import CaptureFailed, UsageError
from sameshot.manifest import Target
from sameshot.model import FailureReason
from sameshot.trace.capture_check import inspect_capture, locate
from sameshot.trace.imported import Import, Imported, import_traces
from support.one_rank import map_one

INVALID, EMPTY, OTHER = FailureReason.INVALID, FailureReason.EMPTY, FailureReason.WRONG_IDENTITY
BROKEN = {
    "bare_quote.json": (INVALID, "json at byte 62725 (event 201)"),
    "bitflip.json.gz": (INVALID, "compression at byte"),
    "brace_only.json": (INVALID, "no_events_key"),
    "ctrl_char.json": (INVALID, "json at byte 62731 (event 201)"),
    "empty.json": (EMPTY, "empty at byte 0"),
    "invalid_utf8.json": (INVALID, "utf8 at byte 62729 (event 201)"),
    "metadata_only.json": (EMPTY, "without a single recorded event"),
    "nan.json": (INVALID, "non_finite at byte 3588 (event 0)"),
    "no_events.json": (EMPTY, "without a single recorded event"),
    "truncated.json.gz": (INVALID, "compression at byte 153317"),
    "truncated_tail.json": (INVALID, "truncated at byte 151269 (event 400)"),
    "two_members.json.gz": (INVALID, "compression at byte 153317"),
}
SOUND = ("ok.json", "ok.json.gz", "cpu_only.json", "no_distinfo.json", "list_form.json")
CLAIMS_0 = "rank5_claims_rank0.json"


def take(tmp_path: Path, files: dict[int, Path], **options: Any) -> Imported:
    imported = import_traces(Import(files=files, out=tmp_path / "cap", **options))
    assert not inspect_capture(*locate(str(imported.path))).failed
    return imported


def target_of(imported: Imported, rank: int) -> Target:
    return next(target for target in imported.manifest.targets if target.identity.rank == rank)


def loaded(imported: Imported, rank: int) -> RankSummary:
    target = target_of(imported, rank)
    assert target.artifact is not None
    assert target.artifact.columns is not None, imported.trouble
    return map_one(str(imported.path), target.target_id)


def events_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    events: list[dict[str, Any]] = document if isinstance(document, list) else document["traceEvents"]
    return events


def test_no_file_and_no_set_was_forgotten(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "traces/broken").iterdir()} == {*BROKEN, *SOUND, CLAIMS_0}
    assert {path.name for path in (shared_data / "traces/oddities").iterdir()} == {*ODD, *REFUSED}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_kept_and_said_to_be_what_it_is(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = shared_data / "traces/broken" / name
    imported = take(tmp_path, {0: path})
    failure = target_of(imported, 0).failure
    assert failure is not None
    reason, words = BROKEN[name]
    assert failure.reason is reason
    assert words in failure.detail
    assert failure.raw is not None
    assert (imported.path.parent / failure.raw.uri).read_bytes() == path.read_bytes()
    with pytest.raises(CaptureFailed, match=reason.value):
        analyze(str(imported.path), None)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_file_is_loaded_with_all_its_events(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = shared_data / "traces/broken" / name
    imported = take(tmp_path, {0: path})
    summary = loaded(imported, 0)
    events = events_of(path)
    assert summary.trace.events == len(events)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert (summary.device.kernels if summary.device else 0) == len(kernels)
    bare = import_traces(Import(files={0: path}, out=tmp_path / "bare", columns=False))
    assert map_one(str(bare.path), "rank/0") == summary


def test_a_file_that_claims_another_rank_is_that_ranks_only(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "traces/broken" / CLAIMS_0
    failure = target_of(take(tmp_path / "as 5", {5: path}), 5).failure
    assert failure is not None
    assert failure.reason is OTHER
    assert "says it is rank 0, expected was rank 5" in failure.detail
    assert loaded(take(tmp_path / "as 0", {0: path}), 0).trace.events == len(events_of(path))


# Per rank: exposed compute and communication of the device in µs, kernels, and what was odd.
CLEAN: tuple[Any, ...] = ((180, 90, 9, {}), (180, 150, 9, {}))
ONE_GEMM_LESS = 180 - 40, 90 + 10, 8  # 10 of its 40 µs hid a part of the all-reduce
ODD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("00_ok", "01_minified_no_space", "06_no_distributedInfo", "16b_stream_null", "17_stream0"), CLEAN),
    **dict.fromkeys(
        ("19_no_ProfilerStep", "22_cuda_sync_events", "23_old_nccl_name", "27_uncompressed_named_gz"), CLEAN
    ),
    "11_dur_missing_one_kernel": ((*ONE_GEMM_LESS, {"no usable duration, left out": 1}), CLEAN[1]),
    "12_negative_dur": ((*ONE_GEMM_LESS, {"negative duration, left out": 1}), CLEAN[1]),
    "13_ts_strings": ((180, 90, 9, {"timestamp written as text": 30}), CLEAN[1]),
    "14_submicrosecond_kernels": ((3 * (1.15 + 0.6), 3 * 1.15, 9, {}),) * 2,
    "30_duplicate_correlation": ((180, 90, 9, {"host calls that share a correlation id": 3}), CLEAN[1]),
}
REFUSED = {"05b_no_traceEvents_key": (INVALID, "no_events_key"), "07_same_rank": (OTHER, "says it is rank 0")}


def files_of(folder: Path) -> dict[int, Path]:
    """Ranks 0 and 1, in the order of names, which our own data keeps."""
    return dict(enumerate(sorted(folder.iterdir())))


@pytest.mark.parametrize("name", ODD)
def test_an_odd_set_gives_the_answer_worked_out_by_hand(shared_data: Path, tmp_path: Path, name: str) -> None:
    imported = take(tmp_path, files_of(shared_data / "traces/oddities" / name))
    assert imported.manifest.totals.missing_ranks == ()
    assert imported.manifest.capture.world_size == (None if name == "06_no_distributedInfo" else 2)
    for rank, (compute, communication, kernels, odd) in enumerate(ODD[name]):
        summary = loaded(imported, rank)
        device = summary.device
        assert device is not None
        assert (device.compute, device.communication) == (round(compute * 1000), round(communication * 1000))
        assert device.kernels == kernels
        assert summary.trace.oddities == odd
        assert summary.trace.unknown_categories == {}
        assert summary.trace.events == len(events_of(files_of(shared_data / "traces/oddities" / name)[rank]))


@pytest.mark.parametrize("name", REFUSED)
def test_of_a_set_with_a_bad_file_the_other_rank_stays(shared_data: Path, tmp_path: Path, name: str) -> None:
    imported = take(tmp_path, files_of(shared_data / "traces/oddities" / name))
    failure = target_of(imported, 1).failure
    assert failure is not None
    assert failure.reason is REFUSED[name][0]
    assert REFUSED[name][1] in failure.detail
    assert imported.manifest.totals.missing_ranks == (1,)
    device = loaded(imported, 0).device
    assert device is not None
    assert (device.compute, device.communication) == (180_000, 90_000)
    assert [rank.rank for rank in analyze(str(imported.path), None).missing] == [1]


def test_the_same_packed_file_twice_is_refused(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "traces/broken/ok.json.gz"
    (tmp_path / "copy.gz").write_bytes(path.read_bytes())
    with pytest.raises(UsageError, match="Ranks 0 and 1 were given the same trace"):
        take(tmp_path, {0: path, 1: tmp_path / "copy.gz"})
