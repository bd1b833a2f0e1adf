"""From a manifest to a report: only verified bytes count, and what is missing comes first."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from gloo_job import GlooJob, archive, failed, manifest_of, span, target_id, trace

from sameshot.analysis import SUMMARY_SCHEMA, Summary, analyze, headline, map_rank, reduce_ranks
from sameshot.errors import CaptureFailed, ManifestError, TraceError, UnknownCapture, VerificationFailed
from sameshot.manifest import decode
from sameshot.model import FailureReason

LATE = GlooJob(seed=1, late={2: 30.0})


def test_a_capture_becomes_a_summary_and_a_report(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    done: list[tuple[int, int, str]] = []
    summary = analyze(str(manifest), tmp_path / "out", progress=lambda *args: done.append(args))
    assert done == [(i + 1, 4, target_id(i)) for i in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "summary.json", "tables"]
    written = msgspec.json.decode((tmp_path / "out" / "summary.json").read_bytes(), type=Summary)
    assert written == summary
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["schema"] == SUMMARY_SCHEMA
    assert [rank.rank for rank in written.late.ranks] == [2]
    assert written.capture.manifest_sha256 == decode(manifest.read_bytes()).sha256
    assert (written.analysed_ranks, written.expected_ranks, written.missing) == (4, 4, ())


def test_the_folder_or_a_uri_names_a_capture_as_well(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    assert analyze(str(manifest.parent), None).analysed_ranks == 4
    assert analyze(manifest.as_uri(), None).analysed_ranks == 4


def test_nothing_is_written_without_a_folder(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    before = sorted(os.listdir(manifest.parent))
    analyze(str(manifest), None)
    assert sorted(os.listdir(manifest.parent)) == before


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    one, two = analyze(str(manifest), None, workers=1), analyze(str(manifest), None, workers=2)
    assert msgspec.structs.replace(one, generated_at="") == msgspec.structs.replace(two, generated_at="")


def test_ranks_mapped_one_by_one_reduce_to_the_same(tmp_path: Path) -> None:
    path = archive(tmp_path / "capture", LATE.traces())
    manifest = decode(path.read_bytes())
    summaries = [map_rank(path.parent / t.artifact.uri, t) for t in manifest.targets if t.artifact]
    wire = [msgspec.json.decode(msgspec.json.encode(s), type=type(s)) for s in reversed(summaries)]
    reduced, whole = reduce_ranks(manifest, wire), analyze(str(path), None)
    blank = {"generated_at": "", "capture": whole.capture}
    assert msgspec.structs.replace(reduced, **blank) == msgspec.structs.replace(whole, **blank)


def test_files_that_the_manifest_does_not_name_are_ignored(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    (manifest.parent / "rank4.json").write_text("{ not json")
    (manifest.parent / "rank5.json.gz").write_bytes((manifest.parent / "rank0.json.gz").read_bytes())
    assert analyze(str(manifest), None).analysed_ranks == 4


@pytest.mark.parametrize("at", [0, 100, -1])
def test_one_flipped_byte_is_refused_by_name(tmp_path: Path, at: int) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    stored = manifest.parent / "rank3.json.gz"
    data = bytearray(stored.read_bytes())
    data[at] ^= 0x01
    stored.write_bytes(data)
    with pytest.raises(VerificationFailed, match=r"rank 3 \(node-1/main/1\)"):
        analyze(str(manifest), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing is reported from bytes that nobody vouches for"


def test_another_valid_trace_in_its_place_is_refused(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    (manifest.parent / "rank3.json.gz").write_bytes((manifest.parent / "rank2.json.gz").read_bytes())
    with pytest.raises(VerificationFailed, match="rank 3"):
        analyze(str(manifest), None)


def test_the_same_trace_packed_differently_is_refused(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    stored = manifest.parent / "rank3.json.gz"
    stored.write_bytes(gzip.compress(gzip.decompress(stored.read_bytes()), 9, mtime=0))
    with pytest.raises(VerificationFailed, match="rank 3"):
        analyze(str(manifest), None)


def test_the_decoded_bytes_are_compared_too(tmp_path: Path) -> None:
    path = archive(tmp_path / "capture", LATE.traces())
    manifest = decode(path.read_bytes())
    target = manifest.targets[0]
    assert target.artifact is not None
    lying = msgspec.structs.replace(
        target, artifact=msgspec.structs.replace(target.artifact, raw_sha256=hashlib.sha256(b"else").hexdigest())
    )
    with pytest.raises(VerificationFailed, match="decodes to"):
        map_rank(path.parent / target.artifact.uri, lying)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    (manifest.parent / "rank1.json.gz").unlink()
    with pytest.raises(VerificationFailed, match=r"rank 1 .*rank1\.json\.gz"):
        analyze(str(manifest), None)


def test_bytes_as_stated_that_are_no_trace_say_where(tmp_path: Path) -> None:
    traces = {0: LATE.traces()[0], 1: b'{"traceEvents": [{"ph": "X"}, nonsense]}'}
    manifest = archive(tmp_path / "capture", traces)
    with pytest.raises(TraceError, match="rank 1") as caught:
        analyze(str(manifest), None)
    assert caught.value.byte_offset is not None


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", LATE.traces())
    manifest.write_text(manifest.read_text().replace('"demo"', '"other"'))
    with pytest.raises(ManifestError):
        analyze(str(manifest), None)


def test_a_capture_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownCapture):
        analyze(str(tmp_path / "nothing" / "manifest.json"), None)


def test_a_missing_rank_is_named_before_anything_else(tmp_path: Path) -> None:
    traces = LATE.traces()
    del traces[3]
    manifest = archive(tmp_path / "capture", traces, failures=(failed(3, detail="the worker was killed"),))
    summary = analyze(str(manifest), tmp_path / "out")
    assert summary.missing_ranks == ("rank 3",)
    assert headline(summary)[0] == (
        "1 of 4 ranks has no verified trace: rank 3 (WORKER_EXITED); all numbers rest on the other 3"
    )
    assert [rank.rank for rank in summary.late.ranks] == [2], "the others are still compared"
    assert summary.late.rests_on_ranks == 3
    page = (tmp_path / "out" / "report.html").read_text()
    body = page[page.index("<body>") :]
    assert body.index("no verified trace") < body.index("Rank 2 is late")
    assert "the worker was killed" in body
    assert "3 ranks" in body
    assert "4 ranks)" not in body


def test_a_rank_that_the_manifest_forgot_is_missing_too(tmp_path: Path) -> None:
    traces = LATE.traces()
    manifest = decode(archive(tmp_path / "c", traces).read_bytes())
    wider = msgspec.structs.replace(manifest, capture=msgspec.structs.replace(manifest.capture, world_size=6))
    summaries = [map_rank(tmp_path / "c" / t.artifact.uri, t) for t in wider.targets[1:] if t.artifact]
    summary = reduce_ranks(wider, summaries)
    assert [(m.rank, m.reason) for m in summary.missing] == [
        (0, "NOT_ANALYSED"),
        (4, "NOT_IN_MANIFEST"),
        (5, "NOT_IN_MANIFEST"),
    ]
    assert (summary.analysed_ranks, summary.expected_ranks) == (3, 6)


def test_a_capture_without_any_trace_has_failed(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "capture", {}, failures=(failed(0), failed(1, FailureReason.MISSING)))
    with pytest.raises(CaptureFailed, match=r"rank 0 .*WORKER_EXITED.*rank 1 .*MISSING"):
        analyze(str(manifest), tmp_path / "out")


def test_the_report_is_one_file_that_asks_nobody_for_anything(tmp_path: Path) -> None:
    analyze(str(archive(tmp_path / "capture", LATE.traces())), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<script") == 1, "ours"
    assert not re.search(r"<(iframe|object|embed|form|base)\b", page)
    assert not re.search(r"(?:src|href|action)\s*=\s*[\"'](?!data:|#)", page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert page.count("Rank 2 is late") >= 2, "in the title and on the page"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "</style><script>alert(1)</script>"
    traces = {
        rank: trace([span(evil, 0, 5, pid=1, tid=1), span("aten::mm", 6, 5, cat=evil, pid=1, tid=1)]) for rank in (0, 1)
    }
    analyze(str(archive(tmp_path / "capture", traces)), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<script") == 1, "ours"
    assert "&lt;script&gt;" in page


def test_an_older_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("old")
    analyze(str(archive(tmp_path / "capture", LATE.traces())), out)
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert sorted(os.listdir(out)) == ["report.html", "summary.json", "tables"]


def test_two_traces_of_one_rank_are_told_apart(tmp_path: Path) -> None:
    path = archive(tmp_path / "capture", GlooJob(ranks=2, seed=1).traces())
    targets = [
        msgspec.structs.replace(target, identity=msgspec.structs.replace(target.identity, rank=0))
        for target in decode(path.read_bytes()).targets
    ]
    manifest = decode(path.read_bytes())
    summaries = [map_rank(path.parent / t.artifact.uri, t) for t in targets if t.artifact]
    summary = reduce_ranks(msgspec.structs.replace(manifest, targets=tuple(targets)), summaries)
    assert len({rank.label for rank in summary.ranks}) == 2
    assert any("More than one trace claims rank 0" in warning for warning in summary.warnings)


def test_a_thousand_ranks_fit_on_the_page(tmp_path: Path) -> None:
    path = archive(tmp_path / "capture", LATE.traces())
    manifest = decode(path.read_bytes())
    four = [map_rank(path.parent / t.artifact.uri, t) for t in manifest.targets if t.artifact]
    many = [
        msgspec.structs.replace(
            four[2 if rank == 700 else rank % 2],
            target_id=f"n{rank}",
            identity=msgspec.structs.replace(four[0].identity, rank=rank),
        )
        for rank in range(1000)
    ]
    targets = [failed(rank) for rank in range(3)]
    summary = reduce_ranks(manifest_of(targets), many)
    assert [rank.rank for rank in summary.late.ranks] == [700]
    from sameshot.analysis.report import render

    page = render(summary)
    assert "rank 700" in page
    assert "of 1000 ranks" in page
    assert len(page) < 3_000_000


def test_plain_traces_are_read_like_packed_ones(tmp_path: Path) -> None:
    path = archive(tmp_path / "capture", LATE.traces())
    target = decode(path.read_bytes()).targets[0]
    assert target.artifact is not None
    raw = gzip.decompress((path.parent / target.artifact.uri).read_bytes())
    (tmp_path / "plain.json").write_bytes(raw)
    plain = msgspec.structs.replace(
        target,
        artifact=msgspec.structs.replace(target.artifact, size=len(raw), sha256=hashlib.sha256(raw).hexdigest()),
    )
    assert map_rank(tmp_path / "plain.json", plain) == map_rank(path.parent / target.artifact.uri, target)


def test_the_fields_of_a_summary_are_a_promise(tmp_path: Path) -> None:
    """Scripts read these. A renamed or removed field needs a new number in the schema's name."""
    analyze(str(archive(tmp_path / "capture", LATE.traces())), tmp_path / "out")
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["schema"] == "sameshot.dev/summary/v1"
    assert {
        "capture", "expected_ranks", "analysed_ranks", "missing", "warnings", "findings", "common_window_ns",
        "cross_rank", "late", "step_time", "step_ranks", "parts", "device", "device_ranks", "ranks", "operators",
        "kernels", "collectives", "alignments", "notes", "generator", "generated_at", "schema",
        "clocks", "stragglers", "waiting_ns", "waiting_exposed_ns", "bandwidth", "slow_links", "imbalance", "groups",
        "moments",
    } == set(found)  # fmt: skip
    assert {"verdict", "reason", "ranks", "rests_on_ranks", "rests_on_steps", "threshold_ns", "method"} <= set(
        found["late"]
    )
    assert found["late"]["verdict"] == "late"
    late = found["late"]["ranks"][0]
    assert {"rank", "lateness_per_step_ns", "cause", "confidence", "sentence", "excess"} <= set(late)
    assert (late["rank"], late["cause"], late["confidence"]) == (2, "untraced", "high")
    assert set(found["parts"]) == {
        "operators_ns", "communication_ns", "data_wait_ns", "runtime_ns", "backward_thread_ns", "untraced_ns",
    }  # fmt: skip


def fields_of(kind: Any, seen: dict[type[msgspec.Struct], list[str]]) -> dict[type[msgspec.Struct], list[str]]:
    """Every struct that `kind` is made of, with its names in JSON."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in seen:
            found = msgspec.structs.fields(kind)
            seen[kind] = [field.encode_name for field in found]
            for field in found:
                fields_of(field.type, seen)
    else:
        for inner in get_args(kind):
            fields_of(inner, seen)
    return seen


COUNTS = {
    "analysed_ranks", "attempt", "buckets", "collectives", "count", "device_ranks", "events", "expected_ranks",
    "kernels", "lag", "last_arrivals", "matched", "rank", "ranks", "raw_size", "rests_on_collectives", "rests_on_ranks",
    "rests_on_steps", "step_count", "step_ranks", "unmatched", "world_size", "bytes", "calls", "component", "fetches",
    "event", "gaps", "graph_kernels", "graph_launches", "last", "longer_than_kernel", "longest_event", "maximum", "of",
    "points", "size", "victim_event", "victims", "without_launch",
}  # fmt: skip


def test_every_field_of_a_summary_is_documented_and_every_time_has_its_unit() -> None:
    text = (Path(__file__).parents[2] / "docs" / "summary.md").read_text()
    structs = fields_of(Summary, {})
    assert len(structs) > 12
    for struct, names in structs.items():
        section = text.partition(f"`{struct.__name__}`\n")[2].partition("\n#")[0]
        assert section, f"{struct.__name__} is not in docs/summary.md"
        assert [name for name in names if f"`{name}`" not in section] == [], struct.__name__
        for field in msgspec.structs.fields(struct):
            is_number = field.type is int or (get_origin(field.type) is UnionType and int in get_args(field.type))
            assert not is_number or field.encode_name in COUNTS or field.encode_name.endswith("_ns"), field


def test_the_limits_of_what_data_wait_tells_stand_beside_it(tmp_path: Path) -> None:
    analyze(str(archive(tmp_path / "capture", GlooJob(ranks=2).traces())), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    tile = page[page.index('<span class="t">data wait</span>') :].partition("</li>")[0]
    bars = page[page.index("Where the main threads") :].partition("</section>")[0]
    for part in (tile, bars):
        assert "says nothing about whether the batch size is already at its ceiling" in part
