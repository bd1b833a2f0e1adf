"""Ways to an API server: a pod needs nothing but the base installation, a kubeconfig is used as kubectl uses it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_api import ClusterApi
from dialled_cluster import Dialled
from tls import Authority

from sameshot.client import Client, cluster
from sameshot.client.cluster import dialing, parse
from sameshot.client.cluster.access import open_access
from sameshot.errors import Denied, UsageError
from sameshot.kube.api import ApiError
from sameshot.kube.coordinators import path_of


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dialled]:
    with ClusterApi() as api, Dialled(api, tmp_path_factory.mktemp("cluster")) as lab:
        yield lab


IN_A_POD = """
import sys
for name in ("kubernetes", "websocket", "yaml", "urllib3", "requests", "certifi", "aiohttp"):
    sys.modules[name] = None  # as if it were not installed
from sameshot import connect
with connect("kube:ml/bare") as client:
    print(client.describe().job)
"""


def test_a_pod_needs_nothing_but_the_base_installation(lab: Dialled, tmp_path: Path) -> None:
    job = lab.job("bare")
    lab.in_pod("runner")
    environment, account = lab.pod_environment("runner")
    environment = {
        **os.environ, "SAMESHOT_API_SERVER": lab.api.url,
        "SAMESHOT_API_TOKEN_FILE": str(account / "token"), "SAMESHOT_API_CA_FILE": str(account / "ca.crt"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", IN_A_POD], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(job), done.stderr


def test_without_the_extra_a_kubeconfig_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.delitem(sys.modules, "sameshot.client.cluster.kubeconfig", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'sameshot\[kubernetes\]'"):
        dialing.Dialer().dial("kube:ml/a?kubeconfig=/nowhere")


def test_importing_the_client_brings_nothing_of_clusters() -> None:
    script = (
        "import sys, sameshot.client, sameshot.steps; "
        "print([name for name in sys.modules if name.startswith(('kubernetes', 'websocket', 'yaml', 'urllib3',"
        " 'sameshot.kube.api', 'sameshot.client.cluster.dialing', 'sameshot.client.cluster.tunnel'))])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def kubeconfig(lab: Dialled, path: Path, users: dict[str, Any], contexts: dict[str, Any], current: str = "") -> str:
    ca = base64.b64encode(lab.api.authority.pem).decode()
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": current or next(iter(contexts)),
                "clusters": [{"name": "c", "cluster": {"server": lab.api.url, "certificate-authority-data": ca}}],
                "users": [{"name": name, "user": user} for name, user in users.items()],
                "contexts": [{"name": name, "context": {"cluster": "c", **more}} for name, more in contexts.items()],
            }
        )
    )
    return str(path)


def test_a_context_says_who_asks_and_in_which_namespace(lab: Dialled, tmp_path: Path) -> None:
    job = lab.job("in-context")
    for name in ("jane", "root"):
        lab.person(name, role="sameshot-user" if name == "jane" else None)
    users = {name: {"token": lab.api.token_for(name)} for name in ("jane", "root")}
    contexts = {"prod/x": {"user": "jane", "namespace": "ml"}, "other": {"user": "root"}}
    path = kubeconfig(lab, tmp_path / "config", users, contexts, "other")
    since = len(lab.api.log)
    with Client(dialing.Dialer().dial(f"kube:ml/in-context?kubeconfig={path}&context=prod/x")) as client:
        assert client.describe().job == job
    assert {each.user for each in lab.api.log[since:]} == {"jane"}
    assert cluster.own_namespace("prod/x", path) == "ml"
    assert cluster.own_namespace(None, path) == "default"
    for asked in ("kube:ml/a?context=prod", "kube:ml/a?context=prod&route=direct"):
        with pytest.raises(UsageError, match="context prod"):
            dialing.Dialer().dial(f"{asked}&kubeconfig={path}")


def test_a_login_program_is_asked_again_when_what_it_gave_has_expired(lab: Dialled, tmp_path: Path) -> None:
    job = lab.job("logged-in")
    lab.person("lena")
    status = {"token": lab.api.token_for("lena"), "expirationTimestamp": "2026-01-01T00:00:00Z"}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    login = tmp_path / "login"
    login.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\ncat <<'E'\n{json.dumps(answer)}\nE\n")
    login.chmod(0o700)
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": str(login), "interactiveMode": "Never",
    }  # fmt: skip
    path = kubeconfig(lab, tmp_path / "config", {"lena": {"exec": exec_}}, {"c": {"user": "lena"}})
    with Client(dialing.Dialer().dial(f"kube:ml/logged-in?kubeconfig={path}")) as client:
        assert client.describe().job == job
    asked = (tmp_path / "asked").read_text().count("asked")
    assert asked >= 3  # at first, and again for each request: list, token, port-forward
    login.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(Denied, match="log in again"):
        dialing.Dialer().dial(f"kube:ml/logged-in?kubeconfig={path}")


def test_a_client_certificate_goes_with_the_port_forward_too(lab: Dialled, tmp_path: Path) -> None:
    pair = Authority().pair("jane")
    user = {
        "client-certificate-data": base64.b64encode(pair.certificate).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }
    path = kubeconfig(lab, tmp_path / "config", {"jane": user}, {"c": {"user": "jane"}})
    found = open_access(parse(f"kube:ml/a?kubeconfig={path}"))
    upgrade = found.upgrade()
    assert Path(upgrade.sslopt["certfile"]).read_bytes() == pair.certificate
    assert Path(upgrade.sslopt["keyfile"]).read_bytes() == pair.key
    assert Path(upgrade.sslopt["ca_certs"]).read_bytes() == lab.api.authority.pem
    assert upgrade.server == lab.api.url.replace("https", "wss")


def test_the_official_client_answers_as_our_own(lab: Dialled, tmp_path: Path) -> None:
    for n in range(3):
        lab.job(f"paged-{n}", namespace="pages")
    theirs = open_access(parse(f"kube:ml/a?kubeconfig={lab.api.kubeconfig(tmp_path / 'admin')}")).api
    ours = lab.api.kube()
    for api in (theirs, ours):
        (page,) = api.list(path_of("pages"), {})
        assert len(page.items) == 3
        (page,) = api.list(path_of("pages"), {"labelSelector": "sameshot.dev/job-uid=none"})
        assert page.items == ()
        with pytest.raises(ApiError) as missing:
            api.get(path_of("pages", "c-none-0"))
        assert missing.value.status == 404
    made = theirs.send("POST", "/api/v1/namespaces", {"metadata": {"name": "made"}})
    assert json.loads(made)["metadata"]["name"] == "made"
    with pytest.raises(ApiError) as conflict:
        theirs.send("POST", "/api/v1/namespaces", {"metadata": {"name": "made"}})
    assert conflict.value.status == 409
