"""Pods are seen as soon as they are told, however long it takes to learn whose they are."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from kube_api import a_pod, an_object
from live import wait_for

from sameshot.kube import owners
from sameshot.kube.api import Change, Listed
from sameshot.kube.owners import FAILED_FOR_S, Owners
from sameshot.kube.podlist import PodList
from sameshot.kube.pods import PodObject, pod_of

JOB = an_object("Job", "llama", api_version="batch/v1")


def pod(name: str) -> bytes:
    thing = a_pod(name, node="n", owner=JOB)
    thing["metadata"].update(uid=f"u-{name}", resourceVersion="5")
    return json.dumps(thing).encode()


class Server:
    """Tells three pods of one Job at once, and of the Job when it is let: what `answer` is, raised or returned."""

    def __init__(self) -> None:
        self.may_answer, self._ended = threading.Event(), threading.Event()
        self.answer: dict[str, Any] | Exception = JOB
        self.asked = 0

    def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        self.asked += 1
        self.may_answer.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[Listed]:
        yield Listed(tuple(msgspec.Raw(pod(name)) for name in ("a", "b", "c")), "4")

    def watch(self, path: str, query: Mapping[str, str], version: str) -> Iterator[Change]:
        yield Change("ADDED", msgspec.Raw(pod("later")))
        yield Change("DELETED", msgspec.Raw(pod("a")))
        self._ended.wait(20)

    def send(self, method: str, path: str, body: object = None, *, content_type: str = "") -> bytes:
        raise AssertionError("nothing is written")

    def close(self) -> None:
        self.may_answer.set()
        self._ended.set()


def test_an_owner_that_is_not_told_keeps_no_pod_from_being_seen() -> None:
    server = Server()
    pods = PodList(server, namespace="ml")
    try:
        assert pods.start(0.3)
        wait_for(lambda: {each.pod.name for each in pods.armed()} == {"b", "c", "later"}, "what changes is seen, too")
        assert {each.job for each in pods.armed()} == {None}
        server.may_answer.set()
        wait_for(lambda: all(each.final for each in pods.armed()), "whose they are is known")
        assert {each.job.name for each in pods.armed() if each.job is not None} == {"llama"}
        assert server.asked == 1
    finally:
        pods.close()


def test_who_waits_for_the_list_has_the_jobs_too_where_they_are_told() -> None:
    server = Server()
    server.may_answer.set()
    pods = PodList(server, namespace="ml")
    try:
        assert pods.start(10)
        assert [each.job is not None for each in pods.armed() if each.pod.name in "bc"] == [True, True]
    finally:
        pods.close()


@pytest.mark.parametrize("trouble", [TimeoutError("no answer"), http.client.IncompleteRead(b"")], ids=["none", "half"])
def test_an_owner_that_failed_is_not_asked_for_again_for_seconds_whatever_number_of_pods_it_has(
    trouble: Exception,
) -> None:
    now, server = 1000.0, Server()
    server.may_answer.set()
    server.answer = trouble
    known = Owners(server, clock=lambda: now)
    found = [pod_of(msgspec.json.decode(pod(name), type=PodObject)) for name in ("a", "b", "c")]
    for each in found:
        assert each is not None
        with pytest.raises(type(trouble)):
            known.job_of(each)
    assert server.asked == 1
    now += FAILED_FOR_S + 0.1
    server.answer = JOB
    assert [known.job_of(each).final for each in found if each is not None] == [True] * 3
    assert server.asked == 2
    assert FAILED_FOR_S < owners.UNREAD_FOR_S
