"""Objects that somebody made as deep as an API server takes: they hide no other, and lose nothing that is read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from kube_api import a_pod

from sameshot.kube.api import Change, Listed, pages
from sameshot.kube.deep import MOST_LEVELS, decoded, shallow
from sameshot.kube.podlist import PodList

DEPTH = 9_990  # API servers take 10,000 levels
DEEP = b'{"f:a":' * DEPTH + b"{}" + b"}" * DEPTH


def test_what_is_nested_too_deep_is_null_and_all_else_as_it_was() -> None:
    given = b'{"a":[1,{"b":"x]}\\\\\\"{["}],"deep":%s,"c":{"d":[2]}}' % DEEP
    with pytest.raises(RecursionError):
        msgspec.json.decode(given)
    found: dict[str, Any] = decoded(given, dict)
    assert (found["a"], found["c"]) == ([1, {"b": 'x]}\\"{['}], {"d": [2]})
    inner, count = found["deep"], 0
    while inner is not None:
        inner, count = inner["f:a"], count + 1
    assert count == MOST_LEVELS - 1


def test_json_that_is_not_deep_stays_as_it_is() -> None:
    for text in (b'{"a":[1,{"b":"x]"}]}', b'"[[["', b"[]", b'  {"a" : "\\\\"} '):
        assert shallow(text) == text
    level = b"[" * MOST_LEVELS + b"1" + b"]" * MOST_LEVELS
    assert shallow(level) == level
    assert json.loads(shallow(b"[%s]" % level)) == json.loads(level.replace(b"[1]", b"[null]"))


class Server:
    """One page, and one change; then it is quiet."""

    def __init__(self, page: bytes, change: bytes) -> None:
        self._page, self._change = page, change
        self._ended = threading.Event()

    def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        return self._page

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[Listed]:
        return pages(self.get, path, query)

    def watch(self, path: str, query: Mapping[str, str], version: str) -> Iterator[Change]:
        yield Change("ADDED", msgspec.Raw(self._change))
        self._ended.wait(20)

    def send(self, method: str, path: str, body: object = None, *, content_type: str = "") -> bytes:
        raise AssertionError("nothing is written")

    def close(self) -> None:
        self._ended.set()


def nested(name: str) -> bytes:
    """An armed pod with fields that nobody reads."""
    thing = a_pod(name, node="n")
    thing["metadata"]["resourceVersion"] = "5"
    thing["metadata"]["managedFields"] = [{"fieldsV1": "HERE"}]
    return json.dumps(thing).encode().replace(b'"HERE"', DEEP)


def test_a_pod_that_is_nested_as_deep_as_can_be_hides_no_other() -> None:
    plain = json.dumps(a_pod("plain", node="n")).encode()
    page = b'{"metadata":{"resourceVersion":"4"},"items":[%s,%s]}' % (nested("deep"), plain)
    server = Server(page, nested("later"))
    pods = PodList(server, namespace=None)
    try:
        assert pods.start(10)
        ends = threading.Event()
        for _ in range(200):
            if len(pods.armed()) == 3:
                break
            ends.wait(0.05)
        assert {each.pod.name for each in pods.armed()} == {"deep", "plain", "later"}
    finally:
        pods.close()
