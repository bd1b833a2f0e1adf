"""Needs an API server, and a machine whose loopback address the tests may use. A capture is asked for as people, step
pods and engines ask: by the job's name. Coordinators are processes here, found through their CaptureCoordinator; agents
are scripted, so no training is needed. What workers do is tried elsewhere.

    SAMESHOT_TEST_IMAGE     with it a coordinator also runs as a pod on a node, and is reached by port-forward (see
                            test_pods_on_real_nodes for MOUNTS, PYTHON and HOST_NETWORK)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_at_hand import Cluster, accounts_of, apply
from cluster_parts import Training, job_of, pod_on, runs, training
from coordinator_pod import NOWHERE, needs_an_image, objects, running
from kubernetes_objects import schema_problems
from test_pods_on_real_nodes import this_node

import sameshot as package
from sameshot.client import connect
from sameshot.coordinator.configfile import ClusterConfig
from sameshot.errors import Denied, NoSuchJob
from sameshot.kube import names
from sameshot.kube.coordinators import path_of
from sameshot.local.services import sameshot_argv
from sameshot.model import JobRef
from sameshot.steps.capture import capture
from sameshot.steps.jobs import find_jobs
from sameshot.steps.request import Action, CaptureRequest
from sameshot.steps.rights import rights

Json = dict[str, Any]
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def job(sameshot: Cluster) -> Iterator[Training]:
    with sameshot.scope() as inner:
        namespace = inner.namespace("ml")
        apply(inner, accounts_of(namespace))
        for account in ("sameshot", "sameshot-viewer"):
            inner.until_captures(namespace, account)
        with training(inner, namespace, "llama") as found:
            yield found


def address_of(job: Training, name: str = "llama", **more: str) -> str:
    """With the kubeconfig said: Kubernetes' client reads `KUBECONFIG` when it is imported, which may be long ago."""
    query = {"kubeconfig": os.environ["KUBECONFIG"], "route": "direct", **more}
    said = "&".join(f"{key.replace('_', '-')}={value}" for key, value in query.items())
    return f"kube:{job.job.namespace}/{name}?{said}".replace("/?", "?")


def request(address: str, **more: Any) -> CaptureRequest:
    return CaptureRequest(address=address, request_key=f"test/{uuid.uuid4().hex}", timeout_s=60, **more)


def test_a_person_with_a_kubeconfig_captures_by_the_job_s_name(job: Training) -> None:
    result = capture(request(address_of(job)))
    assert (result.outcome, result.archived, result.missing) == ("SUCCEEDED", 2, "")
    with connect(address_of(job)) as client:
        told = client.describe()
        view = client.get(result.capture_id)
    assert told.job == job.job
    assert told.caller == view.caller == f"system:serviceaccount:{job.job.namespace}:{names.CALLERS_ACCOUNT}"


def test_jobs_of_a_namespace_are_found_with_the_labels_of_the_job_s_own_object(job: Training) -> None:
    where = address_of(job, "")
    (found,) = find_jobs(where, {"team": "nlp"})
    assert (found.name, found.uid, found.namespace) == (job.job.name, job.job.uid, job.job.namespace)
    assert find_jobs(where, {"team": "vision"}) == []


def test_a_job_that_is_not_there_is_said_so_within_seconds(job: Training) -> None:
    with pytest.raises(NoSuchJob):
        connect(address_of(job, "nobody", wait="0s")).describe()


def test_who_waits_for_a_job_waits_for_its_coordinator_too(job: Training) -> None:
    """Nobody knows of the job at first; then its pod is there, and later its coordinator."""
    said: list[str] = []
    asked = request(address_of(job, "later", wait="0s"), if_unavailable=Action.WAIT)  # no wait but the request's own
    with job.coordinator.cluster.scope() as inner, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(capture, asked, said.append)
        inner.until(lambda: said, "it says what it waits for")
        with training(inner, job.job.namespace, "later"):
            result = waiting.result(60)
    assert (result.outcome, result.archived) == ("SUCCEEDED", 2)
    assert said[0].startswith("waiting: No job later"), said


def test_who_only_views_sees_and_starts_nothing(job: Training) -> None:
    with connect(address_of(job, service_account="sameshot-viewer")) as client:
        assert client.describe().job == job.job
        with pytest.raises(Denied):
            client.start_capture(request("x").spec)


def own_environment() -> dict[str, str]:
    """Without what says where a cluster is."""
    return {key: value for key, value in os.environ.items() if key != "KUBECONFIG" and not key.startswith("SAMESHOT_")}


def step(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        sameshot_argv("step", *arguments), env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_step_s_pod_captures_with_its_own_account_and_is_that_caller(job: Training, tmp_path: Path) -> None:
    """As in Argo and KFP: `sameshot step capture` with the rights that we ship for them."""
    cluster = job.coordinator.cluster
    with cluster.scope() as inner:
        engine = inner.namespace("engine")
        for each in rights("steps", engine, jobs_in=[job.job.namespace]):
            inner.create(each)
        who = f"system:serviceaccount:{engine}:steps"
        what = f"{names.CAPTURES}.{names.GROUP}"
        inner.until(lambda: inner.may(who, "create", what, namespace=job.job.namespace, name="llama"), "it is in force")
        environment = own_environment() | inner.as_pod(engine, "steps")
        where = ("--address", f"kube:{job.job.namespace}/{job.job.name}")
        key = f"argo/{uuid.uuid4().hex}/profile"
        out = tmp_path / "capture.json"
        done = step(environment, "capture", *where, "--key", key, "--duration", "1s", "--result", str(out))
        assert done.returncode == 0, done.stderr
        result = json.loads(out.read_bytes())
        assert (result["outcome"], result["archived"]) == ("SUCCEEDED", 2)
        with connect(address_of(job)) as client:
            assert client.get(result["capture_id"]).caller == who
        # The same key in the next pod is the same capture; the exit handler knows it by the key, too.
        again = step(environment, "capture", *where, "--key", key, "--duration", "1s", "--result", str(out))
        assert again.returncode == 0, again.stderr
        assert json.loads(out.read_bytes())["capture_id"] == result["capture_id"]
        ended = step(environment, "cancel", *where, "--key", key, "--result", str(out))
        assert ended.returncode == 0, ended.stderr
        assert json.loads(out.read_bytes())["was_over"]


def test_processes_that_capture_as_one_account_are_one_caller(job: Training, tmp_path: Path) -> None:
    """As Airflow's workers and triggerer: each finds the coordinator by itself, and asks a token of the shared one."""
    cluster, where = job.coordinator.cluster, job.job.namespace
    with cluster.scope() as inner:
        engine = inner.namespace("airflow")
        for name in ("worker", "triggerer"):
            inner.account(engine, name)
        apply(inner, rights("shared", engine, callers=["worker", "triggerer"], jobs_in=[where]))
        inner.until_captures(where, who=f"system:serviceaccount:{engine}:shared")
        address, key = f"kube:{where}/{job.job.name}?service-account={engine}/shared", uuid.uuid4().hex
        found = []
        for name in ("worker", "triggerer"):
            out = tmp_path / f"{name}.json"
            asked = ("capture", "--address", address, "--key", key, "--duration", "1s", "--result", str(out))
            done = step(own_environment() | inner.as_pod(engine, name), *asked)
            assert done.returncode == 0, done.stderr
            found.append(json.loads(out.read_bytes())["capture_id"])
        assert found[0] == found[1], "the request key of one is the other's, too"
        alone = step(
            own_environment() | inner.as_pod(engine, "worker"), "capture", "--address", address.partition("?")[0],
            "--key", key,
        )  # fmt: skip
        assert alone.returncode == 77, "by itself it may not capture"


def test_a_pod_without_rights_is_denied_and_told_what_it_takes(job: Training) -> None:
    cluster = job.coordinator.cluster
    with cluster.scope() as inner:
        inner.account(job.job.namespace, "nobody")
        environment = own_environment() | inner.as_pod(job.job.namespace, "nobody")
        done = step(environment, "capture", "--address", f"kube:{job.job.namespace}/llama", "--key", "k")
    assert done.returncode == 77, done.stderr
    assert "sameshot-user" in done.stderr


def test_a_coordinator_s_pod_is_reached_by_the_server_s_port_forward(job: Training) -> None:
    """The emulated server forwards to the process that stands for the pod; a real one needs the pod itself."""
    cluster, where = job.coordinator.cluster, job.job.namespace
    with cluster.scope() as inner:
        if cluster.emulated is None:
            image, node = needs_an_image(), this_node(cluster.api)
            thing = inner.armed_job(where, "forwarded")
            inner.stack.enter_context(running(inner, thing, job_of(thing), image=image, node=node))
            served = job_of(thing)
        else:
            thing, found = job.pod, job.coordinator
            served = found.job
            name = names.coordinator_of(served)
            stand_in = inner.create(pod_on(job.pod["spec"]["nodeName"], names.COORDINATORS_NAMESPACE, name))
            runs(inner, stand_in)
            place = {"namespace": names.COORDINATORS_NAMESPACE, "name": name}
            port = int(found.address.rpartition(":")[2])
            path = path_of(where, names.coordinator_of(served), status=True)
            inner.api.patch(path, {"status": {"pod": {**place, "port": port}, "endpoint": f"{NOWHERE}:1"}})
            inner.stack.callback(inner.api.patch, path, {"status": {"pod": None, "endpoint": found.address}})
        # Somebody with `edit` where the job is, and a way to coordinators: no more.
        person = inner.account(inner.namespace("people"), "lena")
        inner.bind(where, "edit", person)
        inner.bind(names.COORDINATORS_NAMESPACE, "sameshot-connect", person, kind="Role")
        _, _, home, _ = person.split(":")
        inner.until(
            lambda: inner.may(person, "list", "capturecoordinators.sameshot.dev", namespace=where),
            "edit has taken ours in, and is in force",
        )
        inner.until(
            lambda: inner.may(person, "create", "pods/portforward", namespace=names.COORDINATORS_NAMESPACE),
            "it is in force",
        )
        mine = str(inner.kubeconfig_of(home, "lena"))
        with connect(address_of(job, served.name, route="port-forward", uid=served.uid, kubeconfig=mine)) as client:
            told = client.describe()
            assert (told.job, told.caller) == (served, f"system:serviceaccount:{where}:{names.CALLERS_ACCOUNT}")
            view = client.wait(client.start_capture(request("x").spec).capture_id, timeout_s=120)
        assert view.state.terminal


def test_objects_of_a_coordinator_s_pod_are_of_kubernetes() -> None:
    """What only a real node runs is at least well-formed."""
    ref = JobRef("ml", "llama", str(uuid.uuid4()))
    made = objects(ref, image="x", node="n", port=7443, api_server="https://h:1", tls=(b"c", b"k"), ca=b"ca")
    assert [problem for each in made for problem in schema_problems(each)] == []
    config = json.loads(made[0]["data"]["config.json"])
    assert msgspec.convert(config, ClusterConfig).job == ref


def test_airflow_s_task_captures_it_deferred_and_triggered(job: Training, tmp_path: Path) -> None:
    """Where Airflow is installed, else the step alone is tried (above). `dag.test()` runs the trigger, too."""
    job.coordinator.cluster.not_too_slow("tests/airflow has one against it already")
    pytest.importorskip("airflow", reason="Airflow is not installed: pip install 'sameshot[airflow]'")
    connection = {
        "conn_type": "sameshot",
        "host": "kube:" + job.job.namespace + "?route=direct",
        "extra": {"kubeconfig": os.environ["KUBECONFIG"].partition(os.pathsep)[0]},
    }
    from airflow_home import hermetic_environment

    environment = {
        **hermetic_environment(tmp_path),
        "AIRFLOW_CONN_SAMESHOT_DEFAULT": json.dumps(connection),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(package.__file__).parents[1])]),
    }
    (tmp_path / "dags").mkdir()
    done = subprocess.run([sys.executable, "-c", _DAG], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["outcome"], result["archived"]) == ("SUCCEEDED", 2)
    with connect(address_of(job)) as client:
        assert client.get(result["capture_id"]).request_key.startswith("airflow/")


_DAG = """
import json
from pathlib import Path
import os
from airflow.utils.db import initdb

initdb()
from dag_file import dag_file, run_dag

SOURCE = '''
from airflow.sdk import DAG
from sameshot_airflow.operators.capture import SameshotCaptureOperator
with DAG("once", schedule=None) as dag:
    SameshotCaptureOperator(task_id="capture", job="llama", duration="1s")
'''
with dag_file(Path(os.environ["AIRFLOW_HOME"]), SOURCE) as dags:
    run = run_dag(dags["once"])
    assert run.states == {"capture": "success"}, run
    print()
    print(json.dumps(run.results["capture"]))
"""
