"""The JSON of a manifest: exact names, exact bytes, and every edit noticed."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sameshot.errors import ManifestError
from sameshot.manifest import SCHEMA, Capture, Job, Manifest, Provenance, Target, build, decode, digest, encode
from sameshot.model import (
    Activity,
    Artifact,
    BoundBy,
    CaptureSpec,
    Columns,
    Encoding,
    Failure,
    FailureReason,
    Identity,
    Outcome,
    RawBytes,
    TargetState,
)
from support.manifests import archived, make_capture, partial, whole

relaxed = settings(deadline=None, max_examples=60)  # the machine may be busy
GOLDEN = Path(__file__).parent / "golden"


def sealed(body: dict[str, Any]) -> bytes:
    """The file of an object whose digest is right, whatever it says."""
    return json.dumps(body | {"sha256": digest(body)}, ensure_ascii=False).encode()


def wire(manifest: Manifest) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encode(manifest))
    return body


# Golden files: the format that others read.


def test_the_golden_manifest_is_what_this_version_writes() -> None:
    data = (GOLDEN / "capture/manifest.json").read_bytes()
    manifest = decode(data)
    assert encode(manifest) == data
    assert encode(build(manifest.capture, reversed(manifest.targets))) == data


NAMES = {
    "capture": "capture_id request_key caller n provenance job world_size backend generation spec start_at_ns "
    "common_window_ns frozen_at converged_at outcome",
    "job": "namespace name uid attempt series",
    "spec": "duration_ms activities with_stack record_shapes profile_memory with_flops warmup_ms start_delay_ms",
    "identity": "rank local_rank pod pod_uid node container host pid registration bound_by",
    "artifact": "uri size sha256 encoding raw_size raw_sha256 media_type window_start_ns window_end_ns late_start "
    "columns",
    "columns": "uri size sha256 schema",
    "failure": "reason detail last_state raw",
    "raw": "uri size sha256",
    "totals": "expected archived failed missing_ranks",
}


def named(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """`holder[name]`, after a look at its names."""
    value: dict[str, Any] = holder[name]
    assert sorted(value) == sorted(NAMES[name].split())
    return value


def test_field_names_on_the_wire_are_the_documented_ones() -> None:
    body = json.loads((GOLDEN / "capture/manifest.json").read_bytes())
    assert list(body) == ["schema", "capture", "targets", "totals", "sha256"]
    assert body["schema"] == "sameshot.dev/manifest/v1"
    capture = named(body, "capture")
    named(capture, "job")
    assert named(capture, "spec")["activities"] == ["cpu", "cuda"]
    good, bad, never = body["targets"]
    assert set(good) == {"target_id", "identity", "artifact"}
    assert set(bad) == set(never) == {"target_id", "identity", "failure"}
    identity, artifact = named(good, "identity"), named(good, "artifact")
    named(artifact, "columns")
    failure = named(bad, "failure")
    named(failure, "raw")
    named(body, "totals")
    assert failure["last_state"] == "ANNOUNCED"
    assert named(never, "failure")["raw"] is None
    assert never["identity"] == {**dict.fromkeys(identity), "rank": 2, "bound_by": "bytes"}
    for text in (capture["start_at_ns"], capture["common_window_ns"], artifact["window_start_ns"]):
        assert isinstance(text, str)
        assert str(int(text)) == text


def test_a_newer_minor_version_survives_a_round_trip_with_every_unknown_field() -> None:
    data = (GOLDEN / "newer-minor.json").read_bytes()
    assert b"v1.7" in data
    manifest = decode(data)
    assert encode(manifest) == data
    assert digest(json.loads(data)) == manifest.sha256
    assert manifest.extra["capture"]["spec"] == {"with_telepathy": True}
    assert manifest.extra["targets"]["node-a/main/0"]["artifact"]["columns"] == {"rows_ns": "12"}
    assert set(manifest.extra) == {"signature", "capture", "targets", "totals"}


def test_the_text_may_be_formatted_freely() -> None:
    manifest = partial()
    body = wire(manifest)
    backwards = json.dumps(dict(reversed(body.items())), separators=(",", ":"), ensure_ascii=True)
    assert decode(backwards.encode()) == manifest


def test_a_foreign_writer_may_spell_out_the_absent_half_as_null() -> None:
    body = wire(partial())
    body["targets"][0]["failure"] = None
    body["targets"][1]["artifact"] = None
    data = sealed(body)
    manifest = decode(data)
    assert manifest.targets == partial().targets
    assert json.loads(encode(manifest)) == json.loads(data)


# Refusals.


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"[]", "no JSON object"),
        (b"{", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"schema": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": [1, {"b": 1.0}]}', "float"),
        (b'{"a": 1e3}', "float"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "'c' twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"{}", "schema is None"),
        (b'{"schema": "sameshot.dev/manifest/v1", "x": "\\ud800"}', "no canonical form"),
    ],
)
def test_what_is_no_strict_json_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        decode(data)


@pytest.mark.parametrize(
    "schema", ["sameshot.dev/manifest/v2", "sameshot.dev/manifest/v10", "sameshot.dev/manifest/v2.1"]
)
def test_an_unknown_major_version_is_refused_before_anything_else(schema: str) -> None:
    with pytest.raises(ManifestError, match="use a newer one"):
        decode(json.dumps({"schema": schema, "anything": "else"}).encode())


@pytest.mark.parametrize(
    "schema", [None, 1, "", "v1", "sameshot.dev/manifest/v1x", "sameshot.dev/manifest/v١", "other/v1"]
)
def test_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(ManifestError, match="schema is"):
        decode(json.dumps({"schema": schema}).encode())


def test_a_manifest_without_targets_is_refused() -> None:
    body = wire(whole())
    body["targets"] = []
    body["totals"] = {"expected": 0, "archived": 0, "failed": 0, "missing_ranks": [0, 1]}
    body["capture"] |= {"common_window_ns": None, "outcome": "FAILED"}
    with pytest.raises(ManifestError, match="empty"):
        decode(sealed(body))


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, name, value = path

    def change(body: Any) -> None:
        for step in way:
            body = body[step]
        body[name] = value

    return change


def _drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, name = path

    def change(body: Any) -> None:
        for step in way:
            body = body[step]
        del body[name]

    return change


WRONG = {
    "targets out of order": lambda body: body["targets"].reverse(),
    "a target twice": lambda body: body["targets"].append(body["targets"][2]),
    "a target that is no object": _set("targets", 0, 7),
    "targets that are no list": _set("targets", {}),
    "totals that count otherwise": _set("totals", "archived", 3),
    "a missing rank left out": _set("totals", "missing_ranks", [1]),
    "SUCCEEDED with a failed rank": _set("capture", "outcome", "SUCCEEDED"),
    "UNKNOWN": _set("capture", "outcome", "UNKNOWN"),
    "another common window": _set("capture", "common_window_ns", "1"),
    "nanoseconds as a number": _set("targets", 0, "artifact", "window_start_ns", 5),
    "nanoseconds with a plus": _set("capture", "start_at_ns", "+5"),
    "nanoseconds with a leading zero": _set("capture", "start_at_ns", "05"),
    "nanoseconds beyond 64 bits": _set("capture", "start_at_ns", "9223372036854775808"),
    "negative zero": _set("capture", "start_at_ns", "-0"),
    "both halves": lambda body: body["targets"][0].update(failure=body["targets"][1]["failure"]),
    "neither half": _drop("targets", 0, "artifact"),
    "a URI that escapes": _set("targets", 0, "artifact", "uri", "../x"),
    "an absolute URI": _set("targets", 0, "artifact", "columns", "uri", "/x"),
    "a URI with a scheme": _set("targets", 1, "failure", "raw", "uri", "s3://x/y"),
    "a state as a number": _set("targets", 1, "failure", "last_state", 4),
    "a state that is none": _set("targets", 1, "failure", "last_state", "DONE"),
    "a reason that is none": _set("targets", 1, "failure", "reason", "BAD_LUCK"),
    "a size as a string": _set("targets", 0, "artifact", "size", "10"),
    "true as a size": _set("targets", 0, "artifact", "size", True),
    "an unknown encoding": _set("targets", 0, "artifact", "encoding", "rot13"),
    "late_start as a number": _set("targets", 0, "artifact", "late_start", 0),
    "a rank as a string": _set("targets", 0, "identity", "rank", "0"),
    "a negative rank": _set("targets", 0, "identity", "rank", -1),
    "an impossible spec": _set("capture", "spec", "duration_ms", 0),
    "an unknown activity": _set("capture", "spec", "activities", ["gpu"]),
    "no capture": _drop("capture"),
    "no spec": _drop("capture", "spec"),
    "no job uid": _drop("capture", "job", "uid"),
    "no sha256 of a file": _drop("targets", 0, "artifact", "sha256"),
    "no totals": _drop("totals"),
    "a world beyond reason": _set("capture", "world_size", 10**15),
    "no provenance that we know": _set("capture", "provenance", "dreamt"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_contradiction_is_refused_even_under_a_right_digest(change: Callable[[dict[str, Any]], None]) -> None:
    body = wire(partial())
    decode(sealed(body))
    change(body)
    with pytest.raises(ManifestError):
        decode(sealed(body))


# Properties.


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


LEAVES = sorted(leaves(wire(partial())), key=repr)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@relaxed
@given(st.sampled_from(LEAVES), json_values)
def test_any_edited_field_is_noticed(path: tuple[Any, ...], value: Any) -> None:
    body = wire(partial())
    before = copy.deepcopy(body)
    _set(*path, value)(body)
    same = json.dumps(body, sort_keys=True) == json.dumps(before, sort_keys=True)
    if same:
        assert decode(json.dumps(body).encode()) == partial()
    else:
        with pytest.raises(ManifestError):
            decode(json.dumps(body).encode())


@relaxed
@given(st.sampled_from(LEAVES))
def test_any_dropped_field_is_noticed(path: tuple[Any, ...]) -> None:
    body = wire(partial())
    _drop(*path)(body)
    with pytest.raises(ManifestError):
        decode(json.dumps(body).encode())


@relaxed
@given(st.integers(0, len(encode(partial())) - 1), st.integers(1, 255))
def test_no_flipped_byte_goes_through_as_another_manifest(at: int, bits: int) -> None:
    data = bytearray(encode(partial()))
    data[at] ^= bits
    with contextlib.suppress(ManifestError):
        assert decode(bytes(data)) == partial()  # one blank for another


@relaxed
@given(st.integers(0, len(encode(partial())) - 2))
def test_a_truncated_manifest_is_refused(length: int) -> None:
    with pytest.raises(ManifestError):
        decode(encode(partial())[:length])


@relaxed
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_manifest_are_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError):
        decode(data)


@relaxed
@given(st.sampled_from(LEAVES), json_values)
def test_a_resealed_edit_is_read_or_refused_but_never_breaks_the_reader(path: tuple[Any, ...], value: Any) -> None:
    body = wire(partial())
    _set(*path, value)(body)
    try:
        data = sealed(body)
        manifest = decode(data)
    except ManifestError:
        return
    assert json.loads(encode(manifest)) == json.loads(data)


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\\/:", exclude_categories=["C", "Z"]), min_size=1, max_size=8
)
hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
sizes = st.integers(0, 2**63 - 1)
moments = st.integers(-(2**63), 2**63 - 1)
maybe = lambda strategy: st.none() | strategy  # noqa: E731
identities = st.builds(
    Identity,
    rank=maybe(st.integers(0, 5)),
    local_rank=maybe(st.integers(0, 5)),
    pod=maybe(st.text()),
    node=maybe(names),
    pid=maybe(st.integers(0, 2**22)),
    registration=maybe(names),
    bound_by=st.sampled_from(BoundBy),
)


@st.composite
def targets(draw: st.DrawFn, index: int) -> Target:
    name = f"{index}-{draw(names)}"
    identity = draw(identities)
    if draw(st.booleans()):
        start, end = sorted((draw(moments), draw(moments)))
        columns = draw(maybe(st.builds(Columns, st.just(f"{name}.parquet"), sizes, hexes, st.text())))
        encoding = draw(st.sampled_from(Encoding))
        digests = draw(hexes), draw(hexes)
        artifact = Artifact(
            f"{name}/trace", draw(sizes), digests[0], encoding, draw(sizes), digests[1], start, end,
            late_start=draw(st.booleans()), columns=columns,
        )  # fmt: skip
        return Target(name, identity, artifact=artifact)
    raw = draw(maybe(st.builds(RawBytes, st.just(f"{name}/raw"), sizes, hexes)))
    reason, state = draw(st.sampled_from(FailureReason)), draw(st.sampled_from(TargetState))
    return Target(name, identity, failure=Failure(reason, draw(st.text()), state, raw))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    chosen = [draw(targets(index)) for index in range(draw(st.integers(1, 4)))]
    capture = Capture(
        capture_id=draw(names), request_key=draw(maybe(st.text())), caller=draw(st.text()), n=draw(st.integers(0, 9)),
        provenance=Provenance.IMPORTED,  # which may state any ranks
        job=Job(draw(names), draw(names), draw(names), draw(st.integers(0, 9)), draw(maybe(names))),
        world_size=draw(maybe(st.integers(1, 6))), backend=draw(names), generation=draw(maybe(names)),
        spec=CaptureSpec(duration_ms=draw(st.integers(1, 9)), activities=(Activity.CPU,)),
        start_at_ns=draw(maybe(moments)), frozen_at=draw(maybe(st.just("2026-01-01T00:00:00Z"))),
        converged_at="2026-01-01T00:00:00.123456789Z", outcome=Outcome.CANCELLED,
    )  # fmt: skip
    return build(capture, chosen)


@relaxed
@given(manifests())
def test_what_was_built_reads_back_equal_and_encodes_to_the_same_bytes(manifest: Manifest) -> None:
    data = encode(manifest)
    assert decode(data) == manifest
    assert encode(decode(data)) == data
    assert data.endswith(b"}\n")


@relaxed
@given(
    manifests(), st.dictionaries(st.text(min_size=1).map("x-".__add__), json_values, min_size=1, max_size=2), st.data()
)
def test_unknown_fields_anywhere_survive(manifest: Manifest, unknown: dict[str, Any], data: st.DataObject) -> None:
    body = wire(manifest)
    places: list[Any] = [body, body["capture"], body["capture"]["job"], body["capture"]["spec"], body["totals"]]
    for target in body["targets"]:
        inner = target.get("artifact") or target["failure"]
        places += [target, target["identity"], inner, *(value for value in inner.values() if isinstance(value, dict))]
    for place in data.draw(st.lists(st.sampled_from(range(len(places))), min_size=1, unique=True)):
        places[place].update(unknown)
    again = decode(sealed(body))
    assert json.loads(encode(again)) == json.loads(sealed(body))
    assert again.targets == manifest.targets
    assert again.capture == manifest.capture


def test_a_float_is_refused_when_written_too() -> None:
    with pytest.raises(ManifestError, match=r"a\.b\[1\] is the float"):
        digest({"a": {"b": [1, 0.5]}})


def test_non_ascii_names_are_digested_as_utf8() -> None:
    manifest = build(make_capture(caller="Zoë 🚀"), [archived(0), archived(1)])
    assert "Zoë 🚀".encode() in encode(manifest)
    assert decode(encode(manifest)) == manifest
    assert manifest.schema == SCHEMA
