"""`sameshot capture --namespace … --job …` from a laptop: through an API server's port-forward to a coordinator that
only starts while it is waited for."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from canned_coordinator import Canned
from cluster_api import ClusterApi
from tls import Authority

from sameshot.api.sameshot_pb2_grpc import add_CoordinatorServicer_to_server
from sameshot.api.transport import ServerTls, bind
from sameshot.api.views import CaptureView
from sameshot.cli.main import invoke
from sameshot.kube import names
from sameshot.model import CaptureState, JobRef

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
JOB = JobRef("ml", "llama-7b", "0b6d4f6e-1c11-4a57-9d9c-0a7c5f1f5a11", 0)
NAME = names.coordinator_of(JOB)
VIEW = CaptureView(capture_id="0197f3a2c4d17e0a8b54d6f1c2a3b4c5", job=JOB, state=CaptureState.WAITING)
ENDED = CaptureView(capture_id=VIEW.capture_id, job=JOB, state=CaptureState.CANCELLED, withdrawn="all was withdrawn")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One that serves by TLS, and the status that the operator writes of it."""
    folder, authority = tmp_path_factory.mktemp("tls"), Authority()
    authority.issue(folder, names.coordinator_host(JOB))
    loop = asyncio.new_event_loop()

    async def start() -> tuple[Any, str]:
        server = grpc.aio.server()
        add_CoordinatorServicer_to_server(Canned(StartCapture=VIEW, CancelCapture=ENDED), server)  # type: ignore[no-untyped-call]
        tls = ServerTls(folder / "tls.crt", folder / "tls.key")
        address = bind(server, "127.0.0.1:0", "the coordinator", tls)
        await server.start()
        return server, address

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server, address = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    yield {
        "phase": "Ready",
        "endpoint": address,
        "serverName": names.coordinator_host(JOB),
        "caBundle": base64.b64encode(authority.pem).decode(),
        "pod": {"namespace": "ml", "name": NAME, "port": int(address.rpartition(":")[2])},
    }
    asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture(scope="module")
def api() -> Iterator[ClusterApi]:
    with ClusterApi() as server:
        server.apply_folder(DEPLOY / "crds")
        server.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        server.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sameshot", "namespace": "ml"}})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": NAME, "namespace": "ml"},
            "spec": {"containers": [{"name": "main", "image": "x"}], "serviceAccountName": "sameshot"},
            "status": {"phase": "Running", "podIP": "127.0.0.1"},
        }
        server.make(pod)
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB.name, "uid": JOB.uid, "attempt": 0}
        server.make(
            {
                "apiVersion": names.API_VERSION,
                "kind": "CaptureCoordinator",
                "metadata": {"name": NAME, "namespace": "ml"},
                "spec": {"job": job},
            }
        )
        yield server


@pytest.fixture
def kubeconfig(api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from sameshot.client.cluster.dialing import DIALER

    for name in ("SAMESHOT_NAMESPACE", "SAMESHOT_ADDRESS", "KUBERNETES_SERVICE_HOST", "SAMESHOT_API_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sameshot.client.cluster.dialing.FIRST_PAUSE_S", 0.05)
    DIALER.forget()
    return str(api.kubeconfig(tmp_path / "config", namespace="ml"))


def becomes(api: ClusterApi, status: dict[str, Any]) -> None:
    api.set_status("capturecoordinators.sameshot.dev", "ml", NAME, status)


@contextlib.contextmanager
def once_asked(api: ClusterApi, act: Any) -> Iterator[None]:
    """Something happens as soon as somebody has asked for the job's coordinator."""
    since = len(api.log)

    def wait() -> None:
        api.wait_for(lambda: any(one.resource == names.COORDINATORS for one in api.log[since:]))
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join(30)


def test_a_cold_start_is_waited_for_and_that_is_said(
    api: ClusterApi, coordinator: dict[str, Any], kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(api, {"phase": "Pending", "endpoint": None, "pod": None, "caBundle": None, "serverName": None})
    arguments = ["capture", "-n", "ml", "--job", "llama-7b", "--kubeconfig", kubeconfig]
    with once_asked(api, lambda: becomes(api, coordinator)):
        assert invoke(arguments) == 0
    shown = capsys.readouterr()
    assert "waiting: the coordinator of job llama-7b" in shown.err
    again = f"sameshot watch {VIEW.capture_id} -n ml --job llama-7b --kubeconfig {kubeconfig}"
    assert again in shown.out  # the hint names the same job


def test_the_namespace_is_that_of_the_kubeconfig_where_only_a_cluster_is_named(
    api: ClusterApi, coordinator: dict[str, Any], kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(api, coordinator)
    arguments = ["cancel", VIEW.capture_id, "--job", "llama-7b", "--kubeconfig", kubeconfig]
    assert invoke(arguments) == 0
    assert "CANCELLED: all was withdrawn" in capsys.readouterr().out


def test_what_does_not_start_within_the_limit_can_be_tried_again(
    api: ClusterApi, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(api, {"phase": "Pending", "endpoint": None, "pod": None})
    arguments = ["capture", "-n", "ml", "--job", "llama-7b", "--kubeconfig", kubeconfig, "--wait-for", "200ms"]
    assert invoke(arguments) == 75
    assert "is not ready" in capsys.readouterr().err


def test_a_job_that_nobody_knows_and_a_right_that_is_missing_have_exit_codes_of_their_own(
    api: ClusterApi, coordinator: dict[str, Any], kubeconfig: str, tmp_path: Path
) -> None:
    becomes(api, coordinator)
    assert invoke(["captures", "-n", "ml", "--job", "bert", "--kubeconfig", kubeconfig, "--wait-for", "0s"]) == 6
    jane = str(api.kubeconfig(tmp_path / "jane", "jane"))
    assert invoke(["captures", "-n", "ml", "--job", "llama-7b", "--kubeconfig", jane]) == 77


def test_interrupting_the_wait_starts_nothing(
    api: ClusterApi, kubeconfig: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(api, {"phase": "Pending", "endpoint": None, "pod": None})

    told: list[str] = []

    def interrupted(line: str, **_: Any) -> None:
        told.append(line)
        if line.startswith("waiting"):
            raise KeyboardInterrupt

    monkeypatch.setattr("sameshot.cli.where.say", interrupted)
    assert invoke(["capture", "-n", "ml", "--job", "llama-7b", "--kubeconfig", kubeconfig]) == 130
    assert "capture" not in capsys.readouterr().out
    assert told[-1] == "The coordinator was not waited for any longer; nothing was asked of it."
