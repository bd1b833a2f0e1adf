"""Needs a node that runs pods, and to run on that node, as root: the agent is a process of this machine.

    SAMESHOT_TEST_IMAGE     an image that is on the node already (imagePullPolicy: Never), with a /bin/sh
    SAMESHOT_TEST_MOUNTS    what the image lacks of Python and torch: folders of the node, separated by commas, mounted
                            read-only under their own paths. Any user must be able to read them
    SAMESHOT_TEST_PYTHON    the interpreter with torch, as a pod sees it; default: the one that runs the tests, which
                            must then lie below these folders, with its library and, in a virtual environment, with
                            the Python that this was made from
    SAMESHOT_KUBELET_ROOT   default: /var/lib/kubelet
    SAMESHOT_TEST_NODE      which node this is; default: the only one, or that of this machine's name
    SAMESHOT_TEST_HOST_NETWORK=1    pods use the node's network: where there is no network plugin

No scheduler, Service network or DNS is needed: pods name their node, and each of them is a job of its own. The agent
has the rights of `deploy/agent` and nothing else: its ClusterRole, its two capabilities. Every pod is deleted at the
end of its test, and the kubelet has removed its volume before the next one begins.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer, Namespace, Refused
from bounded import bounded_argv
from kubernetes_objects import documents_in
from live import free_port, wait_for
from pods import CAPABILITIES

from sameshot.api.views import CaptureView
from sameshot.arm.hookmap import hook_configmap
from sameshot.arm.kinds import arm_object
from sameshot.client import Client
from sameshot.local.services import Service, ServiceCommand, sameshot_argv
from sameshot.model import BoundBy, CaptureSpec, CaptureState, FailureReason, JobRef, TargetState

Json = dict[str, Any]
pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(600)]

RBAC = Path(__file__).parents[2] / "deploy" / "agent" / "rbac.yaml"
PYTHON = os.environ.get("SAMESHOT_TEST_PYTHON", sys.executable)
MOUNTS = [each for each in os.environ.get("SAMESHOT_TEST_MOUNTS", "").split(",") if each]
HOST_NETWORK = os.environ.get("SAMESHOT_TEST_HOST_NETWORK") == "1"
KUBELET_ROOT = Path(os.environ.get("SAMESHOT_KUBELET_ROOT", "/var/lib/kubelet"))
PATIENCE_S = 240.0  # an image's first start, and the import of torch
# Reasons for which a container waits that no waiting mends here: the image is there or not, the spec stays as it is.
HOPELESS = {
    "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "InvalidImageName",
    "RunContainerError",
}  # fmt: skip

# Trains for ever, alone or with the others of its pod.
TRAIN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
while True:
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 3:
        open(f"/sameshot/training-{os.environ['RANK']}", "w").close()
    time.sleep(0.02)
"""


class Node:
    """This machine, as one of the cluster's nodes."""

    def __init__(self, namespace: Namespace, name: str, image: str, folder: Path) -> None:
        self.namespace, self.server, self.name, self.folder = namespace, namespace.server, name, folder
        self.archive = folder / "archive"
        self._image = image
        self._pods = f"/api/v1/namespaces/{namespace.name}/pods"
        self._started: list[Json] = []
        self.agent: Service

    def run(self, name: str, command: list[str], env: dict[str, str]) -> Json:
        """Start an armed pod; the object as the server has it."""
        plain: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace.name},
            "spec": {
                "nodeName": self.name,
                "hostNetwork": HOST_NETWORK,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "volumes": [
                    {"name": "tmp", "emptyDir": {}},
                    *({"name": f"host-{number}", "hostPath": {"path": path}} for number, path in enumerate(MOUNTS)),
                ],
                "containers": [
                    {
                        "name": "trainer",
                        "image": self._image,
                        "imagePullPolicy": "Never",
                        "command": command,
                        "env": [{"name": key, "value": value} for key, value in env.items()],
                        "securityContext": {"runAsUser": 10_001, "allowPrivilegeEscalation": False},
                        "volumeMounts": [
                            {"name": "tmp", "mountPath": "/tmp"},
                            *(
                                {"name": f"host-{number}", "mountPath": path, "readOnly": True}
                                for number, path in enumerate(MOUNTS)
                            ),
                        ],
                    }
                ],
            },
        }
        made = self.server.call("POST", self._pods, arm_object(plain).thing).thing
        self._started.append(made)
        return made

    def train(self, name: str, ranks: int = 1) -> Json:
        """One rank as process 1 of its pod, or several below torchrun."""
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HOME": "/tmp"}
        port = str(free_port() if HOST_NETWORK else 29500)  # its own loopback, or everybody's
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if ranks == 1:
            return self.run(name, [PYTHON, "-c", TRAIN], env | alone)
        script = f"exec(compile({TRAIN!r}, 'train.py', 'exec'))"
        write = f'printf %s "$TRAIN" > /tmp/train.py; exec {PYTHON} -m torch.distributed.run'
        launch = f"{write} --master-port {port} --nproc-per-node {ranks} /tmp/train.py"
        return self.run(name, ["/bin/sh", "-c", launch], env | {"TRAIN": script})

    def delete(self, pod: Json, grace_s: int = 0) -> None:
        self.server.call("DELETE", f"{self._pods}/{pod['metadata']['name']}", gracePeriodSeconds=str(grace_s))

    def clear(self) -> None:
        """Delete every pod that was started, and wait until neither server nor kubelet has anything of it."""
        started, self._started = self._started, []
        for pod in started:
            with contextlib.suppress(Refused):  # told below, where it is there still
                self.delete(pod, grace_s=1)
        for pod in started:
            what = f"{pod['metadata']['name']} is gone, and the kubelet has removed {self.volume(pod)}"
            wait_for(functools.partial(self._is_gone, pod), what, 120)

    def _is_gone(self, pod: Json) -> bool:
        return self.status(pod) is None and not self.volume(pod).exists()

    def status(self, pod: Json) -> Json | None:
        """None: there is no such pod any more."""
        try:
            found = self.server.call("GET", f"{self._pods}/{pod['metadata']['name']}").thing
        except Refused as error:
            if error.status == 404:
                return None
            raise
        status: Json = found.get("status") or {}
        return status if found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def volume(self, pod: Json) -> Path:
        """The pod's own on this node."""
        return KUBELET_ROOT / "pods" / str(pod["metadata"]["uid"]) / "volumes/kubernetes.io~empty-dir/sameshot"

    def until_training(self, pod: Json, ranks: int = 1) -> Path:
        """Until every rank makes steps; the pod's volume on this node."""
        name, volume = pod["metadata"]["name"], self.volume(pod)

        def trains() -> bool:
            status = self.status(pod)
            if (why := never(status)) is not None:
                pytest.fail(f"pod {name} does not train: {why}\n{status}\n{self.events(pod)}\n{self.logs(pod)}")
            return len(list(volume.glob("training-*"))) == ranks

        try:
            wait_for(trains, f"{ranks} ranks of {name} make steps", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status(pod)}\n{self.events(pod)}\n{self.logs(pod)}") from None
        return volume

    def events(self, pod: Json) -> list[str]:
        """What kubelet and others say of it (a folder that is missing, a network that isn't ready)."""
        path = f"/api/v1/namespaces/{self.namespace.name}/events"
        listed = self.server.call("GET", path, fieldSelector=f"involvedObject.uid={pod['metadata']['uid']}").thing
        return [f"{each.get('reason')}: {each.get('message')}" for each in listed["items"]]

    def logs(self, pod: Json) -> str:
        try:
            return str(self.server.call("GET", f"{self._pods}/{pod['metadata']['name']}/log").thing)[-3000:]
        except Refused as error:
            return str(error)

    @contextlib.contextmanager
    def coordinator(self, pod: Json) -> Iterator[Client]:
        """Of the job that this very pod is."""
        meta = pod["metadata"]
        ready = self.folder / f"coordinator-{meta['name']}.address"
        argv = sameshot_argv(
            "coordinator", "--name", meta["name"], "--namespace", meta["namespace"], "--uid", meta["uid"],
            "--archive", str(self.archive), "--address-file", str(ready), "--end-with-stdin",
            "--agent", self.agent.wait_ready(60),
        )  # fmt: skip
        log = self.folder / f"coordinator-{meta['name']}.log"
        service = Service(ServiceCommand("coordinator", argv, log, ready), dict(os.environ))
        try:
            with Client(service.wait_ready(60), caller="test") as client:
                wait_for(lambda: any(one.current for one in client.workers().workers), "a worker is registered", 60)
                yield client
        finally:
            service.stop()

    def traces(self, pod: Json, view: CaptureView) -> dict[int, Json]:
        meta = pod["metadata"]
        folder = self.archive / JobRef(meta["namespace"], meta["name"], meta["uid"]).path / view.capture_id
        return {
            fact.identity.rank: json.loads(gzip.decompress((folder / fact.artifact.uri).read_bytes()))
            for fact in view.targets
            if fact.artifact is not None and fact.identity.rank is not None
        }


def capture(client: Client, **spec: Any) -> CaptureView:
    return client.start_capture(CaptureSpec.of({"duration_ms": 500, "activities": ["cpu"], **spec}))


def never(status: Json | None) -> str | None:
    """Why a pod that says this of itself will never train; None: it may yet."""
    if status is None:
        return "it is gone"
    if status.get("phase") not in (None, "Pending", "Running"):
        return f"{status['phase']} {status.get('reason', '')} {status.get('message', '')}".strip()
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    return None


def not_in_pods(python: Path, mounts: Sequence[str]) -> str | None:
    """Why pods would not have the interpreter that runs these tests; None: as far as can be told they have it."""
    folders = [Path(each) for each in mounts]
    for each in (python, python.resolve(), Path(sys.prefix), Path(sysconfig.get_path("stdlib"))):
        if not any(each.is_relative_to(folder) for folder in folders):
            return f"{each} lies below none of SAMESHOT_TEST_MOUNTS ({','.join(mounts)})"
        within = [part for part in each.parents if any(part.is_relative_to(folder) for folder in folders)]
        if closed := [part for part in within if not part.stat().st_mode & 0o001]:
            return f"{closed[-1]} is closed to the user that pods run as"
    return None


@pytest.fixture(scope="module")
def machine(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """This machine with an agent on it."""
    image = os.environ.get("SAMESHOT_TEST_IMAGE")
    if not image:
        pytest.skip("SAMESHOT_TEST_IMAGE is not set: name an image that is on this node already, with a /bin/sh")
    if os.geteuid() != 0 or not (KUBELET_ROOT / "pods").is_dir():
        pytest.skip(
            f"these tests run on a node, as root: there is no {KUBELET_ROOT}/pods here, or this user is not root"
        )
    if "SAMESHOT_TEST_PYTHON" not in os.environ and (why := not_in_pods(Path(PYTHON), MOUNTS)) is not None:
        pytest.skip(f"{why}; name all folders of the Python that runs the tests, or SAMESHOT_TEST_PYTHON in the image")
    if not namespace.server.verifies:
        pytest.skip("the kubeconfig says insecure-skip-tls-verify, and an agent always verifies: give its authority")
    name = this_node(namespace.server)
    namespace.server.call("POST", f"/api/v1/namespaces/{namespace.name}/configmaps", hook_configmap(namespace.name))
    node = Node(namespace, name, image, tmp_path_factory.mktemp("node"))
    with agent_of(node) as node.agent:
        yield node


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """The same, without pods of other tests."""
    try:
        yield machine
    finally:
        machine.clear()


def this_node(server: ApiServer) -> str:
    names = [each["metadata"]["name"] for each in server.nodes()]
    told = os.environ.get("SAMESHOT_TEST_NODE")
    if told is None:
        told = names[0] if len(names) == 1 else socket.gethostname().lower()
    if told not in names:
        pytest.skip(f"none of the nodes {names} is this machine ({told}): set SAMESHOT_TEST_NODE")
    return str(told)


@contextlib.contextmanager
def agent_of(node: Node) -> Iterator[Service]:
    """The agent with the token, the role and the capabilities that it has in a cluster."""
    with contextlib.ExitStack() as stack:
        server, folder, here = node.server, node.folder, node.namespace.name
        (folder / "token").write_text(token_of_an_agent(node.namespace, stack))
        address = folder / "agent.address"
        argv = sameshot_argv(
            "agent", "--node", node.name, "--kubelet-root", str(KUBELET_ROOT), "--archive", str(node.archive),
            "--spool", str(KUBELET_ROOT / f"sameshot-spool-{here}"), "--api-server", server.url,
            "--api-token-file", str(folder / "token"),
            *(("--api-ca-file", server.ca_file) if server.ca_file is not None else ()),
            "--listen", f"127.0.0.1:{free_port()}", "--address-file", str(address), "--end-with-stdin",
        )  # fmt: skip
        stack.callback(shutil.rmtree, KUBELET_ROOT / f"sameshot-spool-{here}", ignore_errors=True)
        command = ServiceCommand("agent", bounded_argv(CAPABILITIES, *argv), folder / "agent.log", address)
        service = Service(command, dict(os.environ))
        stack.callback(service.stop)
        service.wait_ready(60)
        yield service


def token_of_an_agent(namespace: Namespace, stack: contextlib.ExitStack) -> str:
    """A ServiceAccount with the agent's own ClusterRole, for an hour."""
    server, here = namespace.server, namespace.name
    rules = next(each["rules"] for each in documents_in(RBAC) if each["kind"] == "ClusterRole")
    roles = "/apis/rbac.authorization.k8s.io/v1"
    meta, group = {"name": here}, "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": here},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": here}],
    }
    for plural, thing in (("clusterroles", role), ("clusterrolebindings", binding)):
        server.call("POST", f"{roles}/{plural}", thing)
        stack.callback(server.call, "DELETE", f"{roles}/{plural}/{here}")
    accounts = f"/api/v1/namespaces/{here}/serviceaccounts"
    server.call("POST", accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent"}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return str(server.call("POST", f"{accounts}/agent/token", asked).thing["status"]["token"])


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, None),
        ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, None),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, None),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull"}}}]},
            "ErrImageNeverPull",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "x"}}}],
            },
            "CreateContainerConfigError: x",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "Failed Evicted"),
        (None, "gone"),
    ],
)
def test_a_pod_that_can_never_train_is_told_at_once(status: Json | None, why: str | None) -> None:
    told = never(status)
    assert (told is None) if why is None else (told is not None and why in told)


def test_a_python_that_pods_do_not_have_is_told(tmp_path: Path) -> None:
    assert "lies below none of" in (not_in_pods(Path(sys.executable), ["/nowhere"]) or "")
    python, library = Path(sys.executable), sysconfig.get_path("stdlib")
    mine = [sys.prefix, str(python.parent), str(python.resolve().parent), library]
    assert "lies below none of" not in (not_in_pods(python, mine) or "")
    tmp_path.chmod(0o700)
    (tmp_path / "python").touch()
    assert "is closed to the user" in (not_in_pods(tmp_path / "python", [*mine, str(tmp_path)]) or "")


def test_two_pods_of_one_node_with_equal_pids_are_captured_each_for_itself(node: Node) -> None:
    pods = [node.train(name) for name in ("first", "second")]
    for pod in pods:
        node.until_training(pod)
    with node.coordinator(pods[0]) as one, node.coordinator(pods[1]) as two:
        begun = [capture(client) for client in (one, two)]
        views = [client.wait(view.capture_id) for client, view in zip((one, two), begun, strict=True)]
    for pod, view in zip(pods, views, strict=True):
        assert view.state is CaptureState.SUCCEEDED, view
        [fact] = view.targets
        assert fact.identity.pid == 1
        assert (fact.identity.pod, fact.identity.pod_uid) == (pod["metadata"]["name"], pod["metadata"]["uid"])
        assert (fact.identity.node, fact.identity.bound_by) == (node.name, BoundBy.BYTES)
        assert node.traces(pod, view)[0]["PT_PROFILER_JOB_NAME"] == f"sameshot/{fact.identity.registration}"
    assert len({view.targets[0].identity.registration for view in views}) == 2


def test_ranks_below_a_launcher_are_captured_before_and_after_the_agent_was_killed(node: Node) -> None:
    pod = node.train("launched", ranks=2)
    node.until_training(pod, ranks=2)
    with node.coordinator(pod) as client:

        def polling() -> int:
            workers = client.workers().workers
            return sum(one.alive and one.current and one.last_poll_age_s is not None for one in workers)

        wait_for(lambda: polling() == 2, "both are registered", 60)
        first = client.wait(capture(client).capture_id)
        killed = node.agent.restarts
        os.kill(node.agent.pid, 9)
        wait_for(lambda: node.agent.restarts > killed and polling() == 2, "the next agent serves them", 60)
        second = client.wait(capture(client).capture_id)
    assert (first.state, second.state) == (CaptureState.SUCCEEDED, CaptureState.SUCCEEDED), (first, second)
    assert sorted(node.traces(pod, second)) == [0, 1]
    status = node.server.call("GET", f"/api/v1/namespaces/{node.namespace.name}/pods/launched").thing["status"]
    assert status["phase"] == "Running"
    assert [each["restartCount"] for each in status["containerStatuses"]] == [0]


def test_a_pod_that_is_deleted_in_its_window_is_a_worker_that_exited_and_leaves_nothing(node: Node) -> None:
    pod = node.train("doomed")
    volume = node.until_training(pod)
    with node.coordinator(pod) as client:
        view = capture(client, duration_ms=5000)

        def recording() -> bool:
            return any(fact.state is TargetState.CONSUMED for fact in client.get(view.capture_id).targets)

        wait_for(recording, "the window is fetched")
        node.delete(pod)
        [fact] = client.wait(view.capture_id).targets
    assert fact.failure is not None
    assert fact.failure.reason is FailureReason.WORKER_EXITED
    wait_for(lambda: not volume.exists(), "the kubelet removed the pod's volume", 120)  # nothing of ours keeps it busy
