"""What a capture task is asked for, what tells captures apart, and what Flyte keeps of them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameshot.errors import InvalidSpec, UsageError
from sameshot.model import Activity, CaptureSpec, JobRef
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.results import CaptureResult
from sameshot_flyte.asked import INPUTS, VERSION, Asked, Place, request_of

PLACE = Place("ml", "development", "f1d2", "n0-capture")
HERE = {"address": "10.0.0.7:7000"}


def asked_for(**inputs: Any) -> CaptureRequest:
    return request_of({**HERE, **inputs}, PLACE, "flyte")


# ---- inputs


def test_the_defaults_are_those_of_every_capture_step() -> None:
    assert asked_for() == CaptureRequest(
        address="10.0.0.7:7000", request_key="flyte/ml/development/f1d2/n0-capture/-1", caller="flyte"
    )


def test_writing_the_defaults_changes_nothing() -> None:
    written = {name: default for name, (_, default) in INPUTS.items() if default is not ...}
    assert asked_for(**written) == asked_for()


def test_every_input_has_its_effect() -> None:
    given: dict[str, Any] = {
        "job": "bert",
        "uid": "u1",
        "attempt": 0,
        "duration": "500ms",
        "activities": "cpu",
        "with_stack": True,
        "record_shapes": True,
        "warmup": "2s",
        "min_ranks": 3,
        "if_unavailable": "skip",
        "if_busy": "fail",
        "timeout": "1h",
        "caller": "ana",
    }
    assert set(given) | {"address"} == set(INPUTS)
    assert asked_for(**given) == CaptureRequest(
        address="10.0.0.7:7000",
        request_key=PLACE.request_key,
        spec=CaptureSpec(
            duration_ms=500, activities=(Activity.CPU,), with_stack=True, record_shapes=True, warmup_ms=2000
        ),
        job="bert",
        uid="u1",
        attempt=0,
        caller="ana",
        min_ranks=3,
        if_unavailable=Action.SKIP,
        if_busy=Action.FAIL,
        timeout_s=3600.0,
    )


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ({"min_ranks": 4.0}, {"min_ranks": 4}),  # JSON knows one kind of number
        ({"min_ranks": "4"}, {"min_ranks": 4}),
        ({"min_ranks": 0.0}, {}),
        ({"min_ranks": " 0 "}, {}),
        ({"min_ranks": None}, {}),
        ({"attempt": -1.0}, {}),
        ({"attempt": "-1"}, {}),
        ({"attempt": 0.0}, {"attempt": 0}),
        ({"duration": " 2s "}, {}),
        ({"duration": 2}, {}),
        ({"duration": 0.5}, {"duration": "500ms"}),
        ({"duration": ""}, {}),
        ({"activities": "cpu, cuda"}, {}),
        ({"activities": ["cpu"]}, {"activities": "cpu"}),
        ({"with_stack": "true"}, {"with_stack": True}),
        ({"if_busy": " Skip"}, {"if_busy": "skip"}),
        ({"job": " "}, {}),
        ({"job": "none"}, {}),
        ({"caller": "  "}, {}),
        ({"address": " 10.0.0.7:7000\n"}, {}),
    ],
    ids=str,
)
def test_values_as_forms_and_templates_write_them(written: dict[str, Any], means: dict[str, Any]) -> None:
    assert asked_for(**written) == asked_for(**means)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"address": ""}, "`address` is empty"),
        ({"address": "  "}, "`address` is empty"),
        ({"address": None}, "`address` is empty"),
        ({"address": 7000}, "`address` is 7000 (int), not a text"),
        ({"addres": "x", "jobb": "y"}, "Unknown inputs of a capture task: addres, jobb"),
        ({"min_ranks": 2.5}, "min_ranks: 2.5"),
        ({"min_ranks": -2}, "min_ranks: -2"),
        ({"min_ranks": True}, "min_ranks: True"),
        ({"min_ranks": False}, "min_ranks: False"),
        ({"min_ranks": float("nan")}, "min_ranks: nan"),
        ({"min_ranks": float("inf")}, "min_ranks: inf"),
        ({"attempt": "first"}, "attempt: 'first'"),
        ({"duration": "soon"}, "duration: 'soon'"),
        ({"activities": "gpu"}, "gpu"),
        ({"with_stack": "perhaps"}, "with_stack: 'perhaps'"),
        ({"if_busy": "queue"}, "if_busy: 'queue'"),
        ({"timeout": "0s"}, "timeout"),
        ({"caller": "ü"}, "caller"),
        ({"job": 7}, "`job` is 7 (int), not a text"),
    ],
    ids=str,
)
def test_what_is_no_such_value_is_refused_by_its_name(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked_for(**wrong)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "kube:ml/bert?kubeconfig=/tmp/mine",
        "kube:ml/bert?context=prod&kube%63onfig=%2Ftmp%2Fmine",
        " kube:ml?kubeconfig=/tmp/mine",
    ],
)
def test_no_author_has_the_connector_read_a_kubeconfig(address: str) -> None:
    with pytest.raises(InvalidSpec, match=r"names a kubeconfig.* leave it out"):
        request_of({"address": address}, PLACE, "flyte")


def test_a_context_of_the_connector_s_own_kubeconfig_may_be_named() -> None:
    address = "kube:ml/bert?context=prod&service-account=flyte/sameshot-connector"
    assert request_of({"address": address}, PLACE, "flyte").address == address


def test_an_address_must_be_given() -> None:
    with pytest.raises(UsageError, match="`address` is empty"):
        request_of({}, PLACE, "flyte")


# ---- request keys

TEXT = st.text(st.characters(codec=None, exclude_categories=()), min_size=1, max_size=30) | st.text("/%~-", min_size=1)
PLACES = st.builds(Place, TEXT, TEXT, TEXT, TEXT, st.integers(-1, 3))


@given(PLACES, PLACES)
def test_no_two_places_share_a_key(one: Place, other: Place) -> None:
    assert (one.request_key == other.request_key) == (one == other)


@given(st.tuples(TEXT, TEXT, TEXT, TEXT), st.integers(0, 99))
def test_every_index_of_a_mapped_task_has_its_own(parts: tuple[str, str, str, str], index: int) -> None:
    assert len({Place(*parts, index).request_key, Place(*parts, index + 1).request_key, Place(*parts).request_key}) == 3


@given(PLACES)
def test_every_coordinator_takes_every_key(place: Place) -> None:
    assert place.request_key.isprintable()
    assert len(place.request_key.encode()) <= 512


@given(TEXT, TEXT, st.text(), st.text())
def test_local_runs_are_told_apart_by_task_and_prefix(task: str, other: str, prefix: str, later: str) -> None:
    one = Place.local(task, prefix).request_key
    assert (one == Place.local(other, later).request_key) == ((task, prefix) == (other, later))
    assert one == Place.local(task, prefix).request_key


# ---- what Flyte keeps

TIMES = st.floats(0, 4e9)
NAMES = st.text(max_size=70)
REQUESTS = st.builds(
    CaptureRequest,
    address=NAMES,
    request_key=PLACES.map(lambda place: place.request_key),
    spec=st.builds(
        CaptureSpec, duration_ms=st.integers(1, 10_000), with_stack=st.booleans(), warmup_ms=st.sampled_from([0, 1000])
    ),
    job=st.none() | NAMES,
    uid=st.none() | NAMES,
    attempt=st.none() | st.integers(0, 9),
    caller=st.none() | st.text("abc-", max_size=8),
    min_ranks=st.none() | st.integers(1, 4096),
    if_unavailable=st.sampled_from(Action),
    if_busy=st.sampled_from(Action),
    timeout_s=st.floats(0.001, 1e6),
)
ASKED = st.builds(
    Asked,
    request=REQUESTS,
    since=TIMES,
    deadline=TIMES,
    capture_id=st.sampled_from(["", "0" * 32]),
    manifest_uri=NAMES,
    unanswered=st.booleans(),
    settled=st.none() | st.builds(CaptureResult, message=NAMES, exit_code=st.integers(0, 77)),
    base_url=NAMES,
)


@given(ASKED)
def test_what_was_remembered_is_read_again(asked: Asked) -> None:
    assert Asked.decode(asked.encode()) == asked


# As it lies in the back end of someone whose captures are under way and who upgrades. Never edit; add new ones.
STORED = [
    (
        b'{"version":1,"request":{"address":"127.0.0.1:1","request_key":"flyte/ml/development/f1d2/n0/-1",'
        b'"spec":{"duration_ms":1000,"activities":["cpu","cuda"],"with_stack":false,"record_shapes":false,'
        b'"profile_memory":false,"with_flops":false,"warmup_ms":1000,"start_delay_ms":null},'
        b'"job":"bert","uid":"u1","attempt":0,"caller":"flyte","min_ranks":3,"if_unavailable":"wait","timeout_s":600.0},'
        b'"since":1796020000.5,"deadline":1796020600.5,"capture_id":"c12d0357c011b9e44d54e82693f9b156",'
        b'"manifest_uri":"s3://archive/ml/bert/0/c12d0357c011b9e44d54e82693f9b156/manifest.json","settled":null,'
        b'"base_url":""}'
    ),
    (
        b'{"version":1,"request":{"address":"local:bert","request_key":"flyte/ml/development/f1d2/n0/-1"},'
        b'"since":1796020000.5,"deadline":1796020900.5,"settled":{"request_key":"flyte/ml/development/f1d2/n0/-1",'
        b'"exit_code":6,"message":"No job."}}'
    ),
    (
        b'{"version":1,"request":{"address":"10.0.0.7:7000","request_key":"flyte/ml/development/f1d2/n0/-1"},'
        b'"since":1796020000.5,"deadline":1796020900.5,"capture_id":"","manifest_uri":"","unanswered":true,'
        b'"settled":null,"base_url":"https://traces.example.org"}'
    ),
]


@pytest.mark.parametrize("data", STORED)
def test_states_of_earlier_versions_are_read(data: bytes) -> None:
    asked = Asked.decode(data)
    assert (asked.version, asked.request.request_key) == (VERSION, "flyte/ml/development/f1d2/n0/-1")
    written, kept = msgspec.json.decode(data), msgspec.json.decode(asked.encode())
    assert {name: kept[name] for name in written} == written


@given(ASKED, st.dictionaries(st.text(min_size=1).map(lambda name: f"new_{name}"), st.integers(), max_size=2))
def test_what_a_newer_version_adds_is_no_trouble(asked: Asked, more: dict[str, int]) -> None:
    data = {**msgspec.json.decode(asked.encode()), **more}
    assert Asked.decode(msgspec.json.encode(data)) == asked


def test_another_meaning_is_refused_by_its_version() -> None:
    asked = Asked(version=VERSION + 1, request=asked_for(), since=0, deadline=1)
    with pytest.raises(UsageError, match=f"is of version {VERSION + 1}; this connector reads {VERSION}"):
        Asked.decode(asked.encode())


GARBAGE = [b"", b"{}", b"null", b"[1]", b"\xff\xfe", b'"\xff"', b"[" * 100_000, b'{"a":' * 100_000, b"\x00" * 8]
GARBAGE += [b'{"version":1,"request":{},"since":0,"deadline":0}']
GARBAGE += [b'{"version":1,"request":{"request_key":"k","timeout_s":-1},"since":0,"deadline":0}']
GARBAGE += [b'{"version":1,"request":{"request_key":"k","caller":"\xc3\xbc"},"since":0,"deadline":0}']


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_a_usage_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"state of a capture that can't be read"):
        Asked.decode(data)


@given(st.binary(max_size=60), ASKED, st.data())
def test_no_bytes_raise_anything_else(noise: bytes, asked: Asked, data: st.DataObject) -> None:
    good = asked.encode()
    at = data.draw(st.integers(0, len(good)))
    for each in (noise, good[:at], good[:at] + noise + good[at:]):
        with contextlib.suppress(UsageError):
            Asked.decode(each)


LIMIT = 4096
"""Bytes: back ends keep them in the object of the workflow, which etcd bounds (1.5 MB for all of its nodes)."""


def longest(settled: CaptureResult | None = None) -> Asked:
    """Names as long as Kubernetes and coordinators take them, of characters that take the most room in JSON."""
    place = Place('p"' * 40, 'd"' * 40, 'e"' * 60, 'n"' * 200, 99)
    assert len(place.request_key.encode()) > 500
    request = CaptureRequest(
        address="a" * 253 + ":65535",
        request_key=place.request_key,
        spec=CaptureSpec(duration_ms=3_600_000, with_stack=True, record_shapes=True, warmup_ms=60_000),
        job="j" * 63,
        uid="u" * 36,
        attempt=999,
        caller="c" * 200,
        min_ranks=4096,
        if_unavailable=Action.SKIP,
        if_busy=Action.WAIT,
        timeout_s=123456.789,
    )
    uri = f"s3://{'b' * 63}/{'p' * 64}/{'n' * 63}/{'j' * 63}/999/{'0' * 32}/manifest.json"
    return Asked(
        request=request,
        since=1796020000.123456,
        deadline=1796020600.123456,
        capture_id="" if settled else "0" * 32,
        manifest_uri="" if settled else uri,
        settled=settled,
        base_url=f"https://{'h' * 253}/{'p' * 64}",
    )


def test_it_stays_small_however_long_the_names_are() -> None:
    refused = CaptureResult(request_key=longest().request.request_key, exit_code=6, message='"' * 240)
    assert len(longest().encode()) < 3 * LIMIT / 4
    assert len(longest(refused).encode()) < LIMIT
    usual = Asked(request=asked_for(), since=1796020000.5, deadline=1796020900.5)
    usual = msgspec.structs.replace(
        usual,
        request=msgspec.structs.replace(usual.request, job=JobRef("ml", "bert", "u", 0).name, uid="u" * 36, attempt=0),
        capture_id="0" * 32,
        manifest_uri="s3://archive/ml/bert/0/c12d0357c011b9e44d54e82693f9b156/manifest.json",
    )
    assert len(usual.encode()) < 800
