"""One cluster for all tests here: what `deploy/` applies runs as it stands, one job of two ranks trains."""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import NODE_ADDRESS, ClusterLab
from kubernetes_objects import kustomized
from live import wait_for
from moto.server import ThreadedMotoServer
from pods import REPO, RunningPod, needs_pods
from s3 import make_bucket

from sameshot.arm import labels
from sameshot.kube import names
from sameshot.model import JobRef

Json = dict[str, Any]
DEPLOY = REPO / "deploy"
NODE = "node-a"


@dataclasses.dataclass
class Chain:
    lab: ClusterLab
    store: Any  # boto3, to look at the archive from outside
    job: JobRef
    ranks: list[RunningPod]
    kubeconfig: Path
    environment: dict[str, str]

    @property
    def crashed(self) -> bool:
        """Torch itself has crashed a rank, which is no failure of ours (docs/troubleshooting.md)."""
        return any(pod.crashed for pod in self.ranks)

    def train_again(self) -> None:
        for pod in self.ranks:
            pod.delete()
            pod.log.unlink()  # the next pod of this name goes on with it
        self.ranks = self.lab.train(self.job, NODE, NODE)

    def until_training(self) -> None:
        """Both ranks make steps (a window that begins before would be empty), and the operator knows of both."""
        self.ready()

        def trains() -> bool:
            for pod in self.ranks:
                assert pod.alive, pod.said()[-3000:]
            return all("step 3" in pod.said() for pod in self.ranks[:1])

        wait_for(trains, "training makes steps", 120)
        self.lab.until(
            lambda: (self.coordinator().get("status") or {}).get("registered") == 2, "both ranks are registered", 60
        )

    def coordinator(self, job: JobRef | None = None) -> Json:
        """The job's CaptureCoordinator."""
        job = job or self.job
        return self.lab.api.get("capturecoordinators.sameshot.dev", job.namespace, names.coordinator_of(job))

    def ready(self, job: JobRef | None = None, *, within_s: float = 90) -> Json:
        def there() -> Json | None:
            found = self.coordinator(job)
            return found if (found.get("status") or {}).get("phase") == "Ready" else None

        found: Json = self.lab.until(there, "the coordinator is Ready", within_s)
        return found

    def sameshot(self, *arguments: str) -> Any:
        """A person's command; its JSON."""
        done = self.lab.sameshot(*arguments, kubeconfig=self.kubeconfig, **self.environment)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.lab.story()}"
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterLab]:
    needs_pods()
    folder = tmp_path_factory.mktemp("cluster")
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    with ClusterLab(folder, NODE) as lab:
        yield lab


@pytest.fixture(scope="module")
def chain(lab: ClusterLab) -> Iterator[Chain]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    archive = ThreadedMotoServer(ip_address=NODE_ADDRESS, port=0, verbose=False)
    archive.start()
    try:
        host, port = archive.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        store = make_bucket(endpoint, "traces")
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        lab.api.apply(_deployed(environment))
        job = lab.job()
        ranks = lab.train(job, NODE, NODE)
        jane = lab.api.kubeconfig(lab.folder / "jane.config", "jane", namespace="ml")
        yield Chain(lab, store, job, ranks, jane, environment)
    finally:
        archive.stop()


@pytest.fixture
def training(chain: Chain) -> Chain:
    if chain.crashed:  # at the end of the test before
        chain.train_again()
    chain.until_training()
    return chain


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A test that failed because torch crashed is run once more, and the crash is reported (as in tests/e2e)."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        chain = pyfuncitem.funcargs.get("chain")
        if not isinstance(chain, Chain) or not chain.crashed:
            raise
        warnings.warn(f"torch crashed a worker (SIGSEGV); {pyfuncitem.name} runs again after: {error}", stacklevel=1)
        chain.train_again()
        chain.until_training()
        return pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}) or True


def _deployed(environment: dict[str, str]) -> list[Json]:
    """The overlay for a whole cluster, but for the webhook (its certificates come from cert-manager), the archive that
    whoever installs it names, and jane, who may edit in `ml` and connect to coordinators."""
    made = [
        each
        for each in kustomized(DEPLOY / "overlays/cluster-wide")
        if "webhook" not in each["metadata"]["name"]
        and not each["apiVersion"].startswith(("cert-manager", "admission"))
    ]
    operator = next(each for each in made if each["kind"] == "Deployment")
    [container] = operator["spec"]["template"]["spec"]["containers"]
    container["args"] += ["--endpoint=pod-ip"]  # there are no Services' addresses here
    made += kustomized(DEPLOY / "namespace")
    armed = {"name": "ml", "labels": {labels.ARM_LABEL: labels.ENABLED}}
    made.append({"apiVersion": "v1", "kind": "Namespace", "metadata": armed})
    for namespace in (names.SYSTEM_NAMESPACE, names.AGENTS_NAMESPACE, names.COORDINATORS_NAMESPACE, "ml"):
        made.append(_object("v1", "ConfigMap", namespace, "sameshot-archive", data={"url": "s3://traces/prod"}))
        name = "sameshot-results" if namespace == "ml" else "sameshot-archive"
        made.append(_object("v1", "Secret", namespace, name, stringData=environment))
    for namespace, kind, role in (
        ("ml", "ClusterRole", "edit"),
        (names.COORDINATORS_NAMESPACE, "Role", "sameshot-connect"),
    ):
        made.append(
            _object(
                "rbac.authorization.k8s.io/v1", "RoleBinding", namespace, "jane",
                roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
            )
        )  # fmt: skip
    return made


def _object(api_version: str, kind: str, namespace: str, name: str, **more: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}
