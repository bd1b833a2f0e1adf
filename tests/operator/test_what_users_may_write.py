"""Objects that users of a namespace make as large, as many and as misleading as they can: what they cost the operator,
and that nobody else's job feels it."""

from __future__ import annotations

import json
import logging
import time
import tracemalloc
from typing import Any

import pytest
from operator_lab import Lab, armed_pod, played

from sameshot.arm.hookmap import hook_configmap
from sameshot.kube import names
from sameshot.kube.pods import Pod
from sameshot.model import JobRef
from sameshot.operator import coordinatorpod, objects
from sameshot.operator import known as known_things
from sameshot.operator.config import OperatorConfig
from sameshot.operator.hooks import Hook, hook_of, judge
from sameshot.operator.kept import MOST_BYTES, MOST_KEYS, kept
from sameshot.operator.known import Known
from sameshot.operator.seen import Seen
from sameshot.operator.sources import FOLLOWED, Source

Json = dict[str, Any]
CONFIG = OperatorConfig(archive="s3://traces")
JOB = JobRef("ml", "llama", "0-1-2", 0)
NOISE = "\1" * 200_000  # 1.2 MB of JSON


def raw(thing: Json) -> bytes:
    return json.dumps(thing).encode()


def meta(name: str, namespace: str = "ml", **more: Any) -> Json:
    return {"name": name, "namespace": namespace, "uid": "1", "resourceVersion": "1", **more}


# ---- how large


def test_pods_of_a_megabyte_are_kept_in_a_few_kilobytes() -> None:
    thing = armed_pod("p", "ml", None, 2, {}, {"sameshot.dev/series": "s" * 5000})
    thing["metadata"] |= {"uid": "u-1", "resourceVersion": "7"}
    thing["spec"]["containers"][0]["env"] = [{"name": f"V{i:05d}", "value": "x"} for i in range(30_000)]
    given = raw(thing)
    assert len(given) > 850_000
    tracemalloc.start()
    found = [kept(Source.ARMED, given) for _ in range(40)]
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now < 40 * 10_000
    assert peak < 2_000_000, "nor are there Python's values of it for a moment"
    assert found[0] is not None
    pod = found[0]["pod"]
    assert isinstance(pod, Pod)
    assert (pod.name, pod.local_world_size) == ("p", 2)
    assert found[0]["metadata"]["resourceVersion"] == "7"
    assert len(found[0]["series"]) == 253


def test_a_pod_with_an_owner_of_any_length_is_left_out() -> None:
    thing = armed_pod("p", "ml", {"apiVersion": "x/v1", "kind": "X", "metadata": meta("n" * 254)}, 1, {}, {})
    thing["metadata"]["uid"] = "u-1"
    found = kept(Source.ARMED, raw(thing))
    assert found is not None
    assert found["pod"] is None


LARGE: dict[Source, Json] = {
    Source.BINDINGS: {
        **objects.binding(JOB, CONFIG, "cr"),
        "subjects": [{"kind": "User", "name": "n" * 10_000}] * 100,
    },
    Source.POLICIES: {"metadata": meta("p"), "spec": {"maxDurationMs": 5, "x": NOISE}},
    Source.HOOKS: {"metadata": meta("sameshot-hook"), "data": {f"key-{i}": NOISE[:5000] for i in range(100)}},
    Source.COORDINATORS: {
        "metadata": meta(names.coordinator_of(JOB)),
        "spec": {"job": {"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": "0-1-2", "attempt": 0}},
        "status": {"conditions": [{"type": "T", "status": "True", "reason": "R", "message": NOISE}]},
    },
    Source.NAMESPACES: {"metadata": {"name": "ml", "uid": "1"}},
}


@pytest.mark.parametrize("source", list(LARGE), ids=lambda each: each.name.lower())
def test_whatever_users_make_large_is_kept_small(source: Source) -> None:
    thing = LARGE[source]
    thing["metadata"].setdefault("annotations", {})["noise"] = NOISE
    thing["metadata"]["managedFields"] = [{"fieldsV1": {"f:x": NOISE}}]
    found = kept(source, raw(thing))
    assert found is not None
    assert found["metadata"]["name"] == thing["metadata"]["name"]
    assert len(raw(found)) < MOST_BYTES


def test_all_that_users_may_write_is_slimmed_and_nothing_of_it_is_followed_by_kopf() -> None:
    assert {source for source, one in FOLLOWED.items() if one.users} == {
        Source.ARMED, Source.COORDINATORS, Source.POLICIES, Source.HOOKS, Source.BINDINGS,
    }  # fmt: skip


def test_of_hooks_that_are_as_they_should_be_one_text_is_kept_and_others_are_still_told_apart() -> None:
    want = hook_of("ml", "crd")
    want["metadata"] |= {"uid": "1", "resourceVersion": "1"}
    found, again = (kept(Source.HOOKS, raw(want)) for _ in range(2))
    assert found is not None
    assert again is not None
    for key, text in hook_configmap()["data"].items():
        assert found["data"][key] is text
        assert again["data"][key] is text
    assert judge(want, found, labelled=True, alive=0) is Hook.FINE
    more = {**want, "data": {**want["data"], **{f"z{i}": "x" for i in range(MOST_KEYS * 2)}}}
    other = {**want, "data": {**want["data"], min(want["data"]): "import evil"}}
    for changed in (more, other):
        have = kept(Source.HOOKS, raw(changed))
        assert judge(want, have, labelled=True, alive=0) is Hook.MEND


# ---- how many


def test_of_each_kind_in_a_namespace_so_many_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen(lambda *_: None, most=3)
    for i in range(5):
        seen.put(Source.POLICIES, {"metadata": meta(f"p{i}", "evil")})
    seen.put(Source.POLICIES, {"metadata": meta("other", "ml")})
    assert seen.count(Source.POLICIES) == 4
    assert seen.full == 1
    assert [each.levelno for each in caplog.records] == [logging.WARNING], "told once"
    seen.drop(Source.POLICIES, ("evil", "p0"))
    seen.put(Source.POLICIES, {"metadata": meta("p4", "evil")})
    assert seen.get(Source.POLICIES, "evil", "p4") is not None


# ---- whose


def a_known(pods: Any = ()) -> tuple[Known, Seen]:
    class Armed:
        def of(self, key: Any) -> Any:
            return pods

        def keys(self) -> Any:
            return []

    found: list[Known] = []
    seen = Seen(lambda source, before, after: found[0].note(source, before, after) and None)
    found.append(Known(CONFIG, seen, Armed(), lambda *_: None))  # type: ignore[arg-type]
    return found[0], seen


def labelled(thing: Json, namespace: str, name: str) -> Json:
    return {**thing, "metadata": {**thing["metadata"], "namespace": namespace, "name": name, "uid": "1"}}


@pytest.mark.parametrize(
    ("source", "kind"),
    [(Source.CONFIGS, "configmaps"), (Source.SERVICES, "services"), (Source.BINDINGS, "rolebindings")],
    ids=lambda each: str(each),
)
def test_what_only_has_a_jobs_labels_is_none_of_its(source: Source, kind: str) -> None:
    known, _ = a_known()
    own = objects.binding(JOB, CONFIG, "cr") if kind == "rolebindings" else objects.service(
        objects.Attempt(JOB, "", CONFIG_POLICY, b""), CONFIG
    )  # fmt: skip
    where, name = own["metadata"]["namespace"], own["metadata"]["name"]
    assert known.note(source, None, labelled(own, where, name)) == {("ml", JOB.uid)}
    for other in (labelled(own, "evil", name), labelled(own, where, f"{name}1"), labelled(own, where, "x")):
        assert known.note(source, None, other) == set()


CONFIG_POLICY = objects.CapturePolicy()


def test_thousands_of_bindings_in_a_jobs_name_bring_it_no_attempts() -> None:
    known, _ = a_known()
    at = time.process_time()
    for attempt in range(5_000):
        job = JobRef("ml", "llama", JOB.uid, attempt)
        known.note(Source.BINDINGS, None, objects.binding(job, CONFIG, "cr"))
    assert known.attempts(("ml", JOB.uid)) == []
    assert time.process_time() - at < 5


def test_of_thousands_of_attempts_so_many_are_looked_at_at_once_and_those_with_a_pod_first() -> None:
    known, _ = a_known()
    for attempt in range(3_000):
        job = JobRef("ml", "llama", JOB.uid, attempt)
        given = objects.Attempt(job, "", CONFIG_POLICY, b"")
        known.note(Source.SERVICES, None, objects.service(given, CONFIG))
        if attempt in (7, 9):
            known.note(Source.PODS, None, coordinatorpod.pod(given, CONFIG))
    found = known.attempts(("ml", JOB.uid))
    assert len(found) == known_things.MOST_ATTEMPTS
    assert {7, 9} < set(found)
    assert found[0] == 2_999


@played()
async def test_bindings_that_somebody_else_labels_as_attempts_of_a_job_are_not_even_kept(lab: Lab) -> None:
    job = lab.job("llama")
    for attempt in range(300):
        other = JobRef("ml", "llama", job.uid, attempt)
        thing = objects.binding(other, CONFIG, "cr")
        del thing["metadata"]["ownerReferences"]
        thing["metadata"]["namespace"] = "evil"
        lab.api.make(thing)
    operator = await lab.operate()
    await lab.until(lambda: lab.phase(job) == "Ready")
    assert operator.keeper.known.attempts(("ml", job.uid)) == [0]
    assert [each["metadata"]["namespace"] for each in operator.seen.all(Source.BINDINGS)] == ["ml"]
