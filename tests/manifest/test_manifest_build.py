"""What a manifest says of its targets, and the contradictions that are never published."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.errors import InvalidSpec, ManifestError
from sameshot.manifest import Provenance, Target, build, decode, encode, manifest_key, timestamp
from sameshot.model import Columns, FailureReason, Identity, JobRef, Outcome, RawBytes
from support.manifests import (
    SHA,
    START_NS,
    archived,
    failed,
    make_artifact,
    make_capture,
    make_identity,
    partial,
    whole,
)

relaxed = settings(deadline=None, max_examples=60)  # the machine may be busy


def test_targets_are_sorted_by_rank_with_unknown_ranks_last() -> None:
    unknown = [
        Target(name, make_identity(None, registration=name), artifact=make_artifact(9, uri=f"{name}.gz"))
        for name in ("pod-b/x/0", "pod-a/x/0")
    ]
    targets = [archived(10), archived(2), *unknown, archived(0)]
    random.Random(0).shuffle(targets)
    manifest = build(make_capture(world_size=None), targets)
    assert [target.identity.rank for target in manifest.targets] == [0, 2, 10, None, None]
    assert [target.target_id for target in manifest.targets[3:]] == ["pod-a/x/0", "pod-b/x/0"]


def test_totals_name_every_missing_rank() -> None:
    manifest = build(make_capture(world_size=6, outcome=Outcome.PARTIAL), [archived(1), failed(2), archived(4)])
    totals = manifest.totals
    assert (totals.expected, totals.archived, totals.failed) == (3, 2, 1)
    assert totals.missing_ranks == (0, 2, 3, 5)


def test_the_common_window_is_what_all_artifacts_cover() -> None:
    assert whole().capture.common_window_ns == 1_000_000_000 - 1_000_000
    apart = [
        archived(0, window_start_ns=START_NS, window_end_ns=START_NS + 10),
        archived(1, window_start_ns=START_NS + 2_600_000_010, window_end_ns=START_NS + 2_700_000_000),
    ]
    manifest = build(make_capture(), apart)
    assert manifest.capture.common_window_ns == -2_600_000_000
    assert decode(encode(manifest)) == manifest
    none = build(make_capture(outcome=Outcome.FAILED), [failed(0), failed(1)])
    assert none.capture.common_window_ns is None


def test_a_capture_without_targets_is_refused() -> None:
    with pytest.raises(ManifestError, match="empty"):
        build(make_capture(outcome=Outcome.FAILED), [])


@pytest.mark.parametrize(
    ("outcome", "targets"),
    [
        (Outcome.SUCCEEDED, [archived(0), failed(1)]),
        (Outcome.SUCCEEDED, [archived(0)]),  # a smaller set than the world
        (Outcome.SUCCEEDED, [failed(0), failed(1)]),
        (Outcome.PARTIAL, [archived(0), archived(1)]),
        (Outcome.PARTIAL, [failed(0), failed(1)]),
        (Outcome.FAILED, [archived(0), failed(1)]),
        (Outcome.UNKNOWN, [archived(0), archived(1)]),
    ],
)
def test_an_outcome_that_the_targets_contradict_is_refused(outcome: Outcome, targets: list[Target]) -> None:
    with pytest.raises(ManifestError, match=f"outcome is {outcome}"):
        build(make_capture(outcome=outcome), targets)


@pytest.mark.parametrize("targets", [[archived(0), archived(1)], [archived(0), failed(1)], [failed(0), failed(1)]])
def test_a_cancelled_capture_may_have_archived_anything(targets: list[Target]) -> None:
    assert build(make_capture(outcome=Outcome.CANCELLED), targets).capture.outcome is Outcome.CANCELLED


def test_a_target_has_an_artifact_or_a_failure_and_never_both() -> None:
    neither = Target("node-a/main/0", make_identity(0))
    both = msgspec.structs.replace(archived(0), failure=failed(0).failure)
    for target in (neither, both):
        with pytest.raises(ManifestError, match=r"node-a/main/0.*an artifact or a failure, and not both"):
            build(make_capture(), [target, archived(1)])


def test_a_target_is_named_once() -> None:
    with pytest.raises(ManifestError, match="twice"):
        build(make_capture(), [archived(0), msgspec.structs.replace(archived(1), target_id="node-a/main/0")])


def test_two_targets_never_share_a_file() -> None:
    """Two pods both write `_1.json`: one trace has then overwritten the other."""
    for other in (
        archived(1, uri=make_artifact(0).uri),
        archived(1, columns=Columns(make_artifact(0).uri, 1, SHA, "v1")),
    ):
        with pytest.raises(ManifestError, match="name the same file"):
            build(make_capture(), [archived(0), other])


def twin(of: int, **identity: object) -> Target:
    """A second artifact, of the same worker but for what is given."""
    changed = msgspec.structs.replace(make_identity(of), **identity)
    return Target("node-b/main/0", changed, artifact=make_artifact(of, uri="node-b/main/0/trace.json.gz"))


@pytest.mark.parametrize(
    ("second", "world_size", "why"),
    [
        (twin(0, registration="another"), None, r"node-b/main/0.*and.*node-a/main/0.*trace of rank 0"),
        (twin(0, rank=1), 2, r"node-b/main/0.*and.*node-a/main/0.*trace of registration 0000"),
        (twin(0, rank=None), None, "trace of registration 0000"),
        (twin(2), 2, "rank 2 in a world of 2"),
    ],
)
def test_a_capture_has_one_trace_per_rank_and_process_and_none_beyond_its_world(
    second: Target, world_size: int | None, why: str
) -> None:
    outcome = Outcome.CANCELLED  # whatever the outcome
    with pytest.raises(ManifestError, match=why):
        build(make_capture(world_size=world_size, outcome=outcome), [archived(0), second])
    imported = make_capture(world_size=world_size, outcome=outcome, provenance=Provenance.IMPORTED)
    manifest = build(imported, [archived(0), second])
    assert decode(encode(manifest)) == manifest


def test_a_failure_beside_the_trace_of_its_rank_is_told() -> None:
    gone = Target("node-b/main/0", make_identity(0), failure=failed(0).failure)
    capture = make_capture(world_size=1, outcome=Outcome.PARTIAL)
    assert build(capture, [archived(0), gone]).totals.archived == 1


ESCAPES = ["../trace.json", "a/../../b", "/etc/passwd", "s3://bucket/x", "file:///x", "a//b", "", ".", "a\\b", "a\nb"]


@pytest.mark.parametrize("uri", ESCAPES)
def test_a_uri_that_leads_out_of_the_folder_is_refused(uri: str) -> None:
    raw = failed(1, FailureReason.INVALID, raw=RawBytes(uri, 1, SHA))
    for targets in (
        [archived(0, uri=uri), archived(1)],
        [archived(0), archived(1, columns=Columns(uri, 1, SHA, "v1"))],
        [archived(0), raw],
    ):
        with pytest.raises(ManifestError, match="URI"):
            build(make_capture(outcome=Outcome.PARTIAL if raw in targets else Outcome.SUCCEEDED), targets)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sha256": "ABCD"},
        {"sha256": SHA.upper()},
        {"raw_sha256": ""},
        {"size": -1},
        {"raw_size": 2**63},
        {"window_end_ns": START_NS - 1},
        {"window_end_ns": 2**63},
    ],
)
def test_an_impossible_artifact_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ManifestError, match=r"node-a/main/0"):
        build(make_capture(), [archived(0, **wrong), archived(1)])


@pytest.mark.parametrize(
    "moment",
    ["2026-09-21 14:13:28Z", "2026-09-21T14:13:28", "2026-09-21T14:13:28+02:00", "2026-13-01T00:00:00Z", "now"],
)
def test_a_moment_is_utc_or_refused(moment: str) -> None:
    with pytest.raises(ManifestError, match="converged_at"):
        build(make_capture(converged_at=moment), [archived(0), archived(1)])


def test_a_timestamp_is_rfc3339_in_utc() -> None:
    assert timestamp(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert build(make_capture(converged_at=timestamp(START_NS)), [archived(0), archived(1)])


def test_the_manifest_stands_below_its_job_attempt() -> None:
    assert manifest_key(JobRef("team", "train", "uid", 2), "c1") == "team/train/2/c1/manifest.json"
    for job, capture_id in (
        (JobRef("..", "train", "u"), "c"),
        (JobRef("a", "b/c", "u"), "c"),
        (JobRef("a", "b", "u"), ""),
    ):
        with pytest.raises(InvalidSpec):
            manifest_key(job, capture_id)


@relaxed
@given(st.permutations(list(partial().targets)))
def test_the_order_in_which_facts_came_changes_nothing(targets: list[Target]) -> None:
    assert encode(build(partial().capture, targets)) == encode(partial())


def test_a_rank_that_nobody_registered_has_only_its_rank() -> None:
    target = decode(encode(partial())).targets[2]
    assert target.identity == Identity(rank=2)
    assert target.failure is not None
    assert target.failure.reason is FailureReason.NEVER_REGISTERED
