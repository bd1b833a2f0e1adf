"""Real traces of other people, and tiny sets with one oddity each: right or silent, never wrong, never a crash."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from gloo_job import manifest_of

from sameshot.analysis import RankSummary, Summary, map_rank, reduce_ranks
from sameshot.analysis.report import render
from sameshot.analysis.results import DeviceTimes, Part, Verdict
from sameshot.errors import TraceError
from sameshot.manifest import Target
from sameshot.model import Artifact, Encoding, Identity

US = 1000


def target_of(path: Path, rank: int) -> Target:
    stored = path.read_bytes()
    packed = stored[:2] == b"\x1f\x8b"
    raw = gzip.decompress(stored) if packed else stored
    return Target(
        f"import/{rank}",
        Identity(rank=rank),
        artifact=Artifact(
            uri=path.name,
            size=len(stored),
            sha256=hashlib.sha256(stored).hexdigest(),
            encoding=Encoding.GZIP if packed else Encoding.IDENTITY,
            raw_size=len(raw),
            raw_sha256=hashlib.sha256(raw).hexdigest(),
            window_start_ns=0,
            window_end_ns=1,
        ),
    )


def analysed(*paths: Path) -> tuple[list[RankSummary], Summary]:
    targets = [target_of(path, rank) for rank, path in enumerate(paths)]
    ranks = [map_rank(path, target) for path, target in zip(paths, targets, strict=True)]
    summary = reduce_ranks(manifest_of(targets), ranks)
    assert render(summary)
    for rank in ranks:
        assert rank.parts.total == rank.window
        assert rank.device is None or rank.device.total == rank.window
    return ranks, summary


def test_a_starving_data_loader_is_seen_and_a_fed_one_is_not(shared_data: Path) -> None:
    folder = shared_data / "traces" / "resnet50_dataloader"
    starving = analysed(folder / "num_workers_0.json.gz")[0][0]
    fed = analysed(folder / "num_workers_4.json.gz")[0][0]
    assert starving.steps.count == fed.steps.count == 6
    assert starving.parts.get(Part.DATA_WAIT) > 0.3 * starving.window
    assert fed.parts.get(Part.DATA_WAIT) < 0.05 * fed.window


def test_recorded_groups_and_sizes_key_the_collectives(shared_data: Path) -> None:
    ranks, summary = analysed(shared_data / "traces" / "single" / "a100_nccl_2ranks_rank0.json.gz")
    assert [stream.key for stream in ranks[0].streams] == ["group 0 [0, 1]"]
    assert len(ranks[0].streams[0].dur) == 21
    assert {row.kind for row in summary.collectives} == {"all_reduce", "broadcast"}
    assert ranks[0].steps.count == 3


@pytest.mark.parametrize(
    "name",
    ["gloo300_cpu_rank34", "a100_event_sync_multi_stream", "mi250_minitoy", "h100_bert_small", "nccl128_sampled_rank0"],
)
def test_single_ranks_of_any_vendor_are_summarised(shared_data: Path, name: str) -> None:
    ranks, summary = analysed(shared_data / "traces" / "single" / f"{name}.json.gz")
    assert ranks[0].trace.unknown_categories == {}
    assert summary.late.verdict is Verdict.UNKNOWN


def test_two_of_128_ranks_get_no_verdict_from_sends_and_receives(shared_data: Path) -> None:
    folder = shared_data / "traces" / "single"
    _, summary = analysed(*(folder / f"nccl128_sampled_rank{rank}.json.gz" for rank in (0, 1)))
    assert summary.late.verdict is Verdict.UNKNOWN


def test_the_clean_two_rank_set_gives_the_numbers_worked_out_by_hand(shared_data: Path) -> None:
    """3 steps of 190 µs: gemm 40 µs, NCCL 60 (rank 1: 80) µs of which 30 overlap, elementwise 20 µs."""
    folder = shared_data / "traces" / "oddities" / "00_ok"
    ranks, summary = analysed(folder / "rank0.json", folder / "rank1.json")
    assert ranks[0].device is not None
    assert ranks[1].device is not None
    assert ranks[0].device == DeviceTimes(
        compute=180 * US,
        communication=90 * US,
        memory=0,
        idle=300 * US,
        kernels=9,
        overlapped=3 * 60 * US - 90 * US,
    )
    assert ranks[1].device.communication + ranks[1].device.overlapped == 3 * 80 * US
    row = summary.collectives[0]
    assert (row.matched, row.wait, row.transfer) == (3, 3 * 20 * US, 3 * 60 * US)
    assert (row.last_arriver, row.last_arriver_share) == ("rank 0", 1.0)
    assert summary.late.verdict is Verdict.UNKNOWN, "three steps are too few"


def test_no_oddity_crashes_or_costs_a_rank(shared_data: Path) -> None:
    for folder in sorted((shared_data / "traces" / "oddities").iterdir()):
        paths = sorted(folder.iterdir())
        if folder.name == "05b_no_traceEvents_key":
            with pytest.raises(TraceError):
                analysed(*paths)
            continue
        ranks, summary = analysed(*paths)
        assert len(summary.ranks) == 2, folder.name
        assert summary.late.ranks == (), folder.name
        assert all(rank.device is not None for rank in ranks), folder.name


def test_what_an_oddity_hides_is_said(shared_data: Path) -> None:
    folder = shared_data / "traces" / "oddities"

    def oddities(name: str) -> list[dict[str, int]]:
        return [rank.trace.oddities for rank in analysed(*sorted((folder / name).iterdir()))[0]]

    assert oddities("00_ok") == [{}, {}]
    assert any("no usable duration, left out" in found for found in oddities("11_dur_missing_one_kernel"))
    assert any("negative duration, left out" in found for found in oddities("12_negative_dur"))
    assert any("timestamp written as text" in found for found in oddities("13_ts_strings"))


@pytest.mark.parametrize("name", ["list_form.json", "cpu_only.json", "no_distinfo.json", "ok.json", "ok.json.gz"])
def test_valid_forms_of_a_trace_are_read(shared_data: Path, name: str) -> None:
    ranks, _ = analysed(shared_data / "traces" / "broken" / name)
    assert ranks[0].parts.get(Part.OPERATORS) > 0
