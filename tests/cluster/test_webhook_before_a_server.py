"""Needs an API server only, one that can reach this machine: it asks the real webhook, under the shipped configuration.

The server calls `https://$SAMESHOT_TEST_WEBHOOK_HOST:<port>` (default: 127.0.0.1, for a control plane on this machine;
for one in a container, as kind has it, an address of this machine that is reached from there). Where nothing ever
arrives here the tests fail; they skip only where nobody named a host and the server is another machine, which can't be
expected to reach this one. Only pods of the test's own namespace are looked at.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import ipaddress
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_server import ApiServer, Namespace, Refused
from arm_lab import fixture
from kubernetes_objects import kustomized
from tls import Authority

from sameshot.arm import labels
from sameshot.arm.kinds import templates_of
from sameshot.arm.template import arm_template
from sameshot.webhook import review
from sameshot.webhook.server import WebhookConfig, listening

Json = dict[str, Any]
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HOST = os.environ.get("SAMESHOT_TEST_WEBHOOK_HOST", "127.0.0.1")
IN_FORCE_WITHIN_S = 60.0


class Webhook:
    """The real one, in a thread; `asked` are the requests that came."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.authority.issue(folder, HOST)
        self.asked: list[review.Request] = []
        self.address = ""
        self._ready, self._ending = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(folder),), name="webhook", daemon=True
        )
        self._thread.start()
        assert self._ready.wait(30)

    async def _serve(self, folder: Path) -> None:
        config = WebhookConfig(certificate=folder / "tls.crt", key=folder / "tls.key", listen="*:0")
        async with listening(config, self._answer) as webhook:
            self.address = f"https://{HOST}:{webhook.address.rpartition(':')[2]}"
            self._ready.set()
            await self._ending.wait()

    def _answer(self, body: bytes) -> tuple[bytes, review.Request, review.Verdict]:
        answered = review.answer(body)
        self.asked.append(answered[1])
        return answered

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(30)


@contextlib.contextmanager
def registered(api: ApiServer, webhook: Webhook, namespace: str) -> Iterator[None]:
    """The shipped configuration, but for where the webhook is and whose pods it sees."""
    (shipped,) = [each for each in kustomized(DEPLOY / "webhook/base") if each["kind"].endswith("WebhookConfiguration")]
    configuration = copy.deepcopy(shipped)
    configuration["metadata"]["name"] = f"sameshot-test-{uuid.uuid4().hex[:8]}"
    (hook,) = configuration["webhooks"]
    hook["clientConfig"] = {
        "url": f"{webhook.address}/arm",
        "caBundle": base64.b64encode(webhook.authority.pem).decode(),
    }
    hook["namespaceSelector"]["matchExpressions"].append(
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}
    )
    api.call("POST", CONFIGURATIONS, configuration, fieldValidation="Strict")
    try:
        yield
    finally:
        api.call("DELETE", f"{CONFIGURATIONS}/{configuration['metadata']['name']}")


@pytest.fixture(scope="module")
def webhook(api: ApiServer, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """One that this server really asks."""
    with (
        contextlib.closing(Webhook(tmp_path_factory.mktemp("webhook"))) as made,
        registered(api, made, namespace.name),
    ):
        until_asked(made, api, namespace)
        yield made


def until_asked(webhook: Webhook, api: ApiServer, namespace: Namespace) -> None:
    """Servers learn of a configuration a little later."""
    until = time.monotonic() + IN_FORCE_WITHIN_S
    while not webhook.asked:
        namespace.dry_run(asking(fixture("pod")))
        if time.monotonic() > until:
            why = (
                f"in {IN_FORCE_WITHIN_S:.0f} s the API server {api.url} never asked {webhook.address}: it does not "
                "reach it (set SAMESHOT_TEST_WEBHOOK_HOST), or does not believe it (its log says `failed calling "
                "webhook`)"
            )
            if "SAMESHOT_TEST_WEBHOOK_HOST" in os.environ or is_here(api.url):
                pytest.fail(why)
            pytest.skip(why)
        time.sleep(0.5)


def is_here(url: str) -> bool:
    """Whether a server's URL is one of loopback."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def asking(pod: Json) -> Json:
    pod = copy.deepcopy(pod)
    pod["metadata"].setdefault("labels", {})[labels.ARM_LABEL] = labels.ENABLED
    return pod


def pods_of(name: str) -> list[Json]:
    return [
        {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template.get("metadata", {}), "name": f"x{at}"}}
        for at, (_, template) in enumerate(templates_of(fixture(name)))
    ]


@pytest.mark.parametrize("name", ["pod", "job", "cronjob", "statefulset", "deployment", "volcanojob"])
def test_the_server_takes_the_patch_and_the_pod_is_armed(name: str, webhook: Webhook, namespace: Namespace) -> None:
    for pod in pods_of(name):
        taken = namespace.dry_run(asking(pod))
        assert labels.ARMED in taken.thing["metadata"]["annotations"]
        assert labels.NOT_ARMED not in taken.thing["metadata"]["annotations"]
        again = arm_template(taken.thing)
        assert not again.changed, "what came back counts as armed, whole"
        assert webhook.asked[-1].name == pod["metadata"]["name"]


def test_a_refusal_is_a_warning_and_an_annotation_and_the_pod_is_taken(webhook: Webhook, namespace: Namespace) -> None:
    pod = asking(fixture("pod"))
    for container in pod["spec"]["containers"]:
        container.pop("command", None)
        container["env"] = [each for each in container.get("env", []) if each["name"] != "PYTHONPATH"]
    taken = namespace.dry_run(pod)
    assert "`command`" in taken.thing["metadata"]["annotations"][labels.NOT_ARMED]
    assert labels.ARMED not in taken.thing["metadata"]["annotations"]
    assert any("not armed for captures" in each for each in taken.warnings)


def test_a_pod_that_does_not_ask_is_not_even_seen(webhook: Webhook, namespace: Namespace) -> None:
    before = len(webhook.asked)
    for mark in (None, labels.DISABLED):
        pod = fixture("pod")
        pod["metadata"].setdefault("labels", {}).pop(labels.ARM_LABEL, None)
        if mark is not None:
            pod["metadata"]["labels"][labels.ARM_LABEL] = mark
        taken = namespace.dry_run(pod)
        assert labels.ARMED not in (taken.thing["metadata"].get("annotations") or {})
    assert len(webhook.asked) == before


def test_while_the_webhook_is_away_pods_start_as_they_are(
    api: ApiServer, namespace: Namespace, webhook: Webhook, tmp_path: Path
) -> None:
    """Under another configuration, whose webhook has ended."""
    with (
        contextlib.closing(Webhook(tmp_path)) as gone,
        api.namespace(f"sameshot-test-{uuid.uuid4().hex[:8]}", level="privileged") as other,
        registered(api, gone, other.name),
    ):
        until_asked(gone, api, other)
        gone.close()
        began = time.monotonic()
        taken = other.dry_run(asking(fixture("pod")))
        assert labels.ARMED not in (taken.thing["metadata"].get("annotations") or {})
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://[::1]:6443", True),
        ("https://localhost:6443", True),
        ("https://10.0.0.1:6443", False),
        ("https://api.example.com", False),
    ],
)
def test_a_server_of_this_machine_is_known_by_its_url(url: str, here: bool) -> None:
    """Then a webhook that is never asked is a failure."""
    assert is_here(url) is here


@pytest.mark.parametrize("folder", ["agent", "webhook/base"])
def test_the_server_takes_what_is_shipped(folder: str, api: ApiServer, namespace: Namespace) -> None:
    """Strictly validated; in the test's namespace, since the shipped ones are not made."""
    for thing in kustomized(DEPLOY / folder):
        if "namespace" in thing["metadata"]:
            namespace.dry_run(thing)
            continue
        group = thing["apiVersion"]
        path = f"/apis/{group}" if "/" in group else f"/api/{group}"
        with contextlib.suppress(AlreadyThere):
            create(api, f"{path}/{api.resource(thing)}", thing)


class AlreadyThere(Exception):
    """It is installed on this cluster."""


def create(api: ApiServer, path: str, thing: Json) -> None:
    """As a dry run."""
    try:
        api.call("POST", path, thing, dryRun="All", fieldValidation="Strict")
    except Refused as error:
        if error.status == 409:
            raise AlreadyThere from None
        raise
