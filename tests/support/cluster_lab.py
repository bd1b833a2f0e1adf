"""A cluster's nodes and controllers, played on this machine around the emulated API server: real processes, real paths.

    with ClusterLab(tmp_path, "node-a") as lab:
        lab.api.apply(kustomized(DEPLOY / "overlays/cluster-wide"))      # Deployments, DaemonSets and Jobs begin to run
        lab.wait_ready("sameshot-system", "app.kubernetes.io/name=sameshot-operator")
        lab.train("node-a", "node-a")                                    # an armed job of two ranks, by `pods.Kubelet`
        lab.sameshot("status", "-n", "ml", ...)                          # a command, as a person beside the cluster

A container is what its object says: the command (an image's entry point is this venv's `sameshot`), arguments and
environment with $(NAMES), downward API, ConfigMaps and Secrets (materialised as the kubelet does, `..data` and all, and
renewed when they change), emptyDirs, host paths (below the node's own root), projected tokens with audience and
renewal; its user, its capabilities; process 1 of namespaces of its own (`scripts/pod_init.py`) at an address of the
pods' network, or the node's with `hostNetwork`. Readiness is what its probe says. What crashes is started again.

Everything is in one network namespace that is no machine's, the test's own thread included from `__enter__` on: parts
may listen at 0.0.0.0. There are no Services' addresses and no DNS there. Not played: resources, network policies, pod
security, scheduling (a pod goes to the first node), images. `needs_pods()` where namespaces can't be made.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import dataclasses
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster_api import ClusterApi
from cluster_store import Problem
from pods import SCRIPTS, TRAIN, Kubelet, Network, RunningPod

from sameshot.arm.kinds import arm_object
from sameshot.model import JobRef

Json = dict[str, Any]
REPO = Path(__file__).resolve().parent.parent.parent
SOURCE = str(REPO / "core")
NODE_ADDRESS = "10.244.0.1"
ENTRY_POINT = [sys.executable, "-m", "sameshot.cli.main"]
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TERMINATION_LOG = "/dev/termination-log"
IMAGE_USER = 10_002  # of an image that its pod names no user for
RENEWED_AFTER = 0.8
_CLONE_NEWNET = 0x40000000
_ETC = ("ssl", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "nsswitch.conf",
        "localtime", "mime.types", "alternatives", "host.conf", "hosts")  # fmt: skip


class _NotYet(Exception):
    """A pod waits for something, as a kubelet says in an event."""


class PodProcess:
    """One pod of one container, and the thread that keeps it as its object says."""

    def __init__(self, lab: ClusterLab, thing: Json) -> None:
        self.lab = lab
        self.thing = thing
        self.meta, self.spec = thing["metadata"], thing["spec"]
        self.container = self.spec["containers"][0]
        self.folder = lab.root / self.spec["nodeName"] / "var/lib/kubelet/pods" / self.meta["uid"]
        self.log = lab.folder / "logs" / f"{self.meta['namespace']}.{self.meta['name']}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.restarts = 0
        self.address = ""
        self._tokens: dict[tuple[str, str], tuple[str, float]] = {}  # (volume, path) → token, to be renewed at
        self._ready = self._said = False
        self._paused = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pod {self.meta['name']}", daemon=True)

    @property
    def key(self) -> tuple[str, str]:
        return self.meta["namespace"], self.meta["name"]

    def start(self) -> None:
        self._thread.start()

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        """SIGKILL for its process 1; a pod that restarts is started again."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """It hears nothing and says nothing, but is there."""
        os.kill(self.pid, signal.SIGSTOP)

    def end(self) -> None:
        """Its object goes, or the lab does."""
        self._ending.set()

    def join(self) -> None:
        self._thread.join(60)

    # --- its thread

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    self._write_volumes()
                except _NotYet as reason:
                    self._waits(str(reason))
                    self._ending.wait(0.1)
                    continue
                self._begin()
                self._stay()
                if not self._ended():
                    return
        except Exception as error:
            if not self.lab.closing:
                with self.log.open("a") as log:
                    print(f"[lab] {type(error).__name__}: {error}", file=log)
                self._status("Failed", {"terminated": {"exitCode": 128, "reason": str(error)[:200]}})
                raise
        finally:
            self._finish()

    def _begin(self) -> None:
        told = {
            "rootfs": str(self._make(self.folder / "rootfs")),
            "system": _system(),
            "own_devices": True,
            "mounts": [
                *(self._mount(each) for each in self.container.get("volumeMounts") or ()),
                *self._account_mount(),
                (str(self._said_last(new=True)), self.container.get("terminationMessagePath", TERMINATION_LOG), False),
            ],
            "cwd": self.container.get("workingDir", "/tmp"),
            **self._user(),
            "umask": 0o022,
            "command": self._command(),
            "env": self._environment(),
        }
        shared = ["--net"] if not self.spec.get("hostNetwork") else []
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--pid", *shared, "--ipc", "--uts", "--fork", "--kill-child",
                 sys.executable, "-I", str(SCRIPTS / "pod_init.py"), json.dumps(told)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
            )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError(f"the container did not start: {self.said()[-1000:]}")
        self.pid = int(line)
        with self.lab.lock:
            self.address = NODE_ADDRESS if self.spec.get("hostNetwork") else self.lab.network.connect(self.pid)
        self._ready = self._said = False
        self._tell()
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def _stay(self) -> None:
        """Until the process has ended; meanwhile its probe is asked and its volumes are renewed."""
        assert self.process is not None
        looked = 0.0
        while self.process.poll() is None and not self._ending.is_set():
            ready = self._probe()
            if ready != self._ready or not self._said:
                self._ready, self._said = ready, True
                self._tell()
            if time.monotonic() - looked > 0.5:
                looked = time.monotonic()
                with contextlib.suppress(_NotYet):
                    self._write_volumes()
            self._ending.wait(0.1)

    def _ended(self) -> bool:
        """Whether it is to be started again."""
        assert self.process is not None
        if self._ending.is_set():
            return False
        code = self.process.wait()
        code = 128 - code if code < 0 else code
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        again = {"Always": True, "OnFailure": code != 0}.get(self.spec["restartPolicy"], False)
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
        message = self._said_last().read_text(errors="replace")[:4096]
        if not message and code and self.container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = self.said()[-2048:]
        terminated |= {"message": message} if message else {}
        self._ready = False
        if not again:
            self._status("Failed" if code else "Succeeded", {"terminated": terminated})
            return False
        self.restarts += 1
        self._status("Running", {"waiting": {"reason": "CrashLoopBackOff"}}, last={"terminated": terminated})
        self._ending.wait(min(0.2 * 2**self.restarts, 5.0))
        return True

    def _finish(self) -> None:
        """Its end with grace; then its directories and its object go."""
        if self.process is not None and self.process.poll() is None:
            found = self.lab.api.find("pods", *self.key) or {"metadata": {}}
            grace = found["metadata"].get("deletionGracePeriodSeconds", 0)
            if not self.lab.closing:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(grace)
            self.kill()
            self.process.wait()
        if not self._ending.is_set():
            return  # it has ended by itself: its object stays
        self._end_object()

    def _end_object(self) -> None:
        if not self.lab.closing:
            with contextlib.suppress(Problem):
                precondition = {"uid": self.meta["uid"]}
                self.lab.api.delete("pods", *self.key, gracePeriodSeconds=0, preconditions=precondition)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _said_last(self, *, new: bool = False) -> Path:
        path = self.folder / "termination-log"
        if new:
            path.write_text("")
            path.chmod(0o666)
        return path

    # --- what it is told

    def _command(self) -> list[str]:
        command, args = self.container.get("command"), self.container.get("args") or []
        environment = self._environment()
        words = [_expanded(each, environment) for each in (*(command or ["sameshot"]), *args)]
        if words[0] == "sameshot":
            words[:1] = ENTRY_POINT
        if words[0] in ("python", "python3"):
            words[0] = sys.executable
        context = self.container.get("securityContext") or {}
        if self._user()["uid"] == 0:
            kept = ["-all", *(f"+{each.lower()}" for each in (context.get("capabilities") or {}).get("add") or ())]
            words = ["setpriv", "--bounding-set", ",".join(kept), *words]
        return words

    def _user(self) -> Json:
        pod, own = self.spec.get("securityContext") or {}, self.container.get("securityContext") or {}
        uid = own.get("runAsUser", pod.get("runAsUser", IMAGE_USER))
        gid = own.get("runAsGroup", pod.get("runAsGroup", uid))
        return {"uid": uid, "gid": gid, "groups": [gid, *([pod["fsGroup"]] if "fsGroup" in pod else [])]}

    def _environment(self) -> dict[str, str]:
        made = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": SOURCE,
            "KUBERNETES_SERVICE_HOST": self.lab.api.host,
            "KUBERNETES_SERVICE_PORT": str(self.lab.api.port),
        }
        for each in self.container.get("envFrom") or ():
            for what, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
                if what in each:
                    made |= self._data(plural, each[what]["name"], each[what].get("optional", False)) or {}
        for each in self.container.get("env") or ():
            source = each.get("valueFrom") or {}
            if "fieldRef" in source:
                made[each["name"]] = self._field(source["fieldRef"]["fieldPath"])
            elif (found := _key_of(source)) is not None:
                plural, reference = found
                data = self._data(plural, reference["name"], reference.get("optional", False)) or {}
                if reference["key"] in data:
                    made[each["name"]] = data[reference["key"]]
                elif not reference.get("optional"):
                    raise _NotYet(f"{plural} {reference['name']} has no key {reference['key']}")
            elif "valueFrom" not in each:
                made[each["name"]] = _expanded(each.get("value", ""), made)
        return made

    def _field(self, path: str) -> str:
        if path == "status.podIP":
            return self.address or "0.0.0.0"
        if path == "status.hostIP":
            return NODE_ADDRESS
        head, bracket, key = path.partition("['")
        found: Any = self.thing
        for part in head.split("."):
            found = (found or {}).get(part)
        return str(((found or {}).get(key.removesuffix("']")) if bracket else found) or "")

    def _data(self, plural: str, name: str, optional: bool) -> dict[str, str] | None:
        data = self._bytes(plural, name, optional)
        return None if data is None else {key: value.decode() for key, value in data.items()}

    def _bytes(self, plural: str, name: str, optional: bool) -> dict[str, bytes] | None:
        found = self.lab.api.find(plural, self.meta["namespace"], name)
        if found is None:
            if optional:
                return None
            raise _NotYet(f'{plural} "{name}" not found')
        data = found.get("data") or {}
        if plural == "secrets":
            return {key: base64.b64decode(value) for key, value in data.items()}
        binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
        return binary | {key: value.encode() for key, value in data.items()}

    # --- its volumes

    def _write_volumes(self) -> None:
        self._environment()  # what it needs must be there, too
        for volume in self.spec.get("volumes") or ():
            place = self._place(volume)
            if "emptyDir" in volume:
                self._make(place, 0o2777 if self._group is not None else 0o777)
            elif "hostPath" in volume:
                kind = volume["hostPath"].get("type", "")
                if kind == "DirectoryOrCreate":
                    place.mkdir(parents=True, exist_ok=True)
                elif kind == "Directory" and not place.is_dir():
                    raise _NotYet(f"hostPath type check failed: {volume['hostPath']['path']} is not a directory")
            else:
                source = next(iter(set(volume) - {"name"}))
                files: dict[str, bytes] = {}
                for each in volume[source].get("sources") or [{source: volume[source]}]:
                    files |= self._files(volume["name"], each)
                self._write(place, files, volume[source].get("defaultMode", 0o644))
        if self._has_account:
            files = self._files("account", {"serviceAccountToken": {"path": "token"}})
            root = self._bytes("configmaps", "kube-root-ca.crt", False) or {}
            self._write(self._account, {**files, **root, "namespace": self.meta["namespace"].encode()}, 0o644)

    def _files(self, volume: str, source: Json) -> dict[str, bytes]:
        if (token := source.get("serviceAccountToken")) is not None:
            key = (volume, token["path"])
            if key not in self._tokens or time.time() >= self._tokens[key][1]:
                lasts = token.get("expirationSeconds", 3600)
                account = self.lab.api.get("serviceaccounts", self.meta["namespace"], self.spec["serviceAccountName"])
                more = {"audiences": (token["audience"],)} if "audience" in token else {}
                made, ends = self.lab.api.tokens.account(account, lasts_s=lasts, pod=self.thing, **more)
                self._tokens[key] = made, ends - (1 - RENEWED_AFTER) * lasts
            return {token["path"]: self._tokens[key][0].encode()}
        if (down := source.get("downwardAPI")) is not None:
            return {each["path"]: self._field(each["fieldRef"]["fieldPath"]).encode() for each in down["items"]}
        kind, plural = ("configMap", "configmaps") if "configMap" in source else ("secret", "secrets")
        about = source[kind]
        data = self._bytes(plural, about.get("name") or about["secretName"], about.get("optional", False))
        if data is None:
            return {}
        if (items := about.get("items")) is None:
            return data
        missing = [each["key"] for each in items if each["key"] not in data]
        if missing and not about.get("optional"):
            raise _NotYet(f"references non-existent key: {missing}")
        return {each["path"]: data[each["key"]] for each in items if each["key"] in data}

    def _write(self, place: Path, files: Mapping[str, bytes], mode: int) -> None:
        """As the kubelet: a new directory of its own, and one symlink that leads to it, swapped."""
        place.mkdir(parents=True, exist_ok=True)
        now, data = place / f"..{time.time_ns()}", place / "..data"
        if data.exists() and _content(data.resolve()) == dict(files):
            return
        now.mkdir(mode=0o755)
        if self._group is not None:
            mode |= 0o440 if mode & 0o400 else 0
        for name, content in files.items():
            path = now / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)
            os.chown(path, 0, self._group if self._group is not None else 0)
        before = data.resolve() if data.exists() else None
        (place / "..data_tmp").symlink_to(now.name)
        (place / "..data_tmp").rename(data)
        for top in {name.split("/")[0] for name in files}:
            if not (place / top).is_symlink():
                (place / top).symlink_to(f"..data/{top}")
        for old in place.iterdir():
            if old.is_symlink() and old.name != "..data" and not old.exists():
                old.unlink()
        if before is not None:
            shutil.rmtree(before)

    @property
    def _group(self) -> int | None:
        return (self.spec.get("securityContext") or {}).get("fsGroup")

    @property
    def _account(self) -> Path:
        return self.folder / "volumes/kubernetes.io~projected/kube-api-access"

    @property
    def _has_account(self) -> bool:
        account = self.lab.api.find("serviceaccounts", self.meta["namespace"], self.spec["serviceAccountName"]) or {}
        wanted = self.spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        return wanted and not any(
            each["mountPath"].rstrip("/") == ACCOUNT for each in self.container.get("volumeMounts") or ()
        )

    def _place(self, volume: Json) -> Path:
        if "hostPath" in volume:
            return self.lab.root / self.spec["nodeName"] / volume["hostPath"]["path"].lstrip("/")
        kind = "empty-dir" if "emptyDir" in volume else next(iter(set(volume) - {"name"})).lower()
        return self.folder / "volumes" / f"kubernetes.io~{kind}" / volume["name"]

    def _mount(self, mount: Json) -> tuple[str, str, bool]:
        volume = next(each for each in self.spec["volumes"] if each["name"] == mount["name"])
        source = self._place(volume)
        if "subPath" in mount:
            source /= mount["subPath"]
        # Files of the API are read-only for every container, whatever its object says.
        fixed = "emptyDir" not in volume and "hostPath" not in volume
        return str(source), mount["mountPath"], fixed or bool(mount.get("readOnly"))

    def _account_mount(self) -> list[tuple[str, str, bool]]:
        return [(str(self._account), ACCOUNT, True)] if self._has_account else []

    def _make(self, path: Path, mode: int | None = None) -> Path:
        if not path.exists():
            path.mkdir(parents=True)
            if mode is not None:
                if self._group is not None:
                    os.chown(path, 0, self._group)
                path.chmod(mode)
        return path

    # --- what it tells the API server

    def _probe(self) -> bool:
        probe = self.container.get("readinessProbe") or self.container.get("startupProbe")
        if probe is None:
            return True
        about = probe.get("tcpSocket") or probe.get("httpGet") or probe.get("grpc")
        if about is None:
            return True
        port = about["port"]
        if isinstance(port, str):
            port = next(each["containerPort"] for each in self.container["ports"] if each.get("name") == port)
        host = about.get("host") or self.address
        try:
            if "httpGet" not in probe:
                socket.create_connection((host, port), 1).close()
                return True
            asked = http.client.HTTPConnection(host, port, timeout=1)
            asked.request("GET", about.get("path", "/"))
            return 200 <= asked.getresponse().status < 400
        except OSError:
            return False

    def _tell(self) -> None:
        self._status("Running", {"running": {"startedAt": _now()}})

    def _waits(self, why: str) -> None:
        self._status("Pending", {"waiting": {"reason": "ContainerCreating", "message": why}})

    def _status(self, phase: str, state: Json, *, last: Json | None = None) -> None:
        ready = {"type": "Ready", "status": str(self._ready), "lastTransitionTime": _now()}
        container = {
            "name": self.container["name"],
            "ready": self._ready,
            "restartCount": self.restarts,
            "state": state,
        }
        status: Json = {
            "phase": phase,
            "hostIP": NODE_ADDRESS,
            "startTime": self.meta["creationTimestamp"],
            "conditions": [ready, {**ready, "type": "ContainersReady"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [container | ({"lastState": last} if last else {})],
        }
        if self.address:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        with contextlib.suppress(Problem):
            found = self.lab.api.get("pods", *self.key)
            if found["metadata"]["uid"] == self.meta["uid"]:
                self.lab.api.set_status("pods", *self.key, status)


class ClusterLab:
    def __init__(self, folder: Path, *nodes: str) -> None:
        self.folder = folder
        self.nodes = nodes or ("node-a",)
        self.lock = threading.Lock()
        self.closing = False
        self.root = Path(tempfile.mkdtemp(prefix="sameshot-lab-"))
        self.root.chmod(0o755)
        self.pods: dict[str, PodProcess] = {}  # by uid
        self._played: set[tuple[str, str]] = set()  # pods that somebody else runs
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ClusterLab:
        try:
            self._stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            self.network = Network()
            self._stack.callback(self.network.close)
            self.network._ip("addr", "add", f"{NODE_ADDRESS}/24", "dev", "cni0")
            self.network._ip("link", "set", "lo", "up")
            self._stack.enter_context(_inside(self.network._process.pid))
            self.api = self._stack.enter_context(ClusterApi(host=NODE_ADDRESS, collects=True))
            self.api.store.graceful_pods = True
            self.api.logs = self._logs
            adapter = _Adapter(self.api)
            for name in self.nodes:
                self.api.make({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            self.kubelets = {
                name: Kubelet(name, self.root / name / "var/lib/kubelet", adapter, self.network)  # type: ignore[arg-type]
                for name in self.nodes
            }
            for kubelet in self.kubelets.values():
                self._stack.callback(kubelet.close)
            self._stack.callback(self._close)
            self._thread = threading.Thread(target=self._reconcile, name="cluster-lab", daemon=True)
            self._thread.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what a test asks

    def pod(self, namespace: str, labels: str = "", *, within_s: float = 60) -> PodProcess:
        """The running pod (one) with these labels, once its process is there."""

        def there() -> PodProcess | None:
            for each in self.api.list("pods", namespace, labels=labels):
                found = self.pods.get(each["metadata"]["uid"])
                if found is not None and found.pid and not each["metadata"].get("deletionTimestamp"):
                    return found
            return None

        return self.until(there, f"a pod with {labels} in {namespace}", within_s)

    def wait_ready(self, namespace: str, labels: str = "", *, within_s: float = 60) -> PodProcess:
        found = self.pod(namespace, labels, within_s=within_s)
        self.until(lambda: found._ready, f"pod {found.key} is ready", within_s)
        return found

    def until(self, holds: Any, why: str, within_s: float = 60) -> Any:
        try:
            return self.api.wait_for(holds, why, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def story(self) -> str:
        """For a test that fails: the ends of all logs."""
        logs = sorted((self.folder / "logs").glob("*.log")) if (self.folder / "logs").exists() else []
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def sameshot(
        self, *arguments: str, kubeconfig: Path | None = None, timeout_s: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of a person beside the cluster."""
        with self.started(*arguments, kubeconfig=kubeconfig, **environment) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                raise AssertionError(f"sameshot {arguments} still ran: {out}\n{err}\n{self.story()}") from None
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    @contextlib.contextmanager
    def started(
        self, *arguments: str, kubeconfig: Path | None = None, **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        """The same, while it runs."""
        env = {
            **os.environ,
            "PYTHONPATH": SOURCE,
            **environment,
            **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
        }
        process = subprocess.Popen(
            [*ENTRY_POINT, *arguments], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

    # --- a job that trains

    def job(self, name: str = "train", namespace: str = "ml") -> JobRef:
        """A batch Job whose pods the lab's `train` makes, and no controller."""
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "x"}]}}
        made = self.api.make(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"managedBy": "example.com/played", "template": template},
            }
        )
        return JobRef(namespace, name, made["metadata"]["uid"])

    def train(self, job: JobRef, *places: str, args: tuple[str, ...] = ()) -> list[RunningPod]:
        """Armed pods of a job, one rank each, on these nodes; they find each other by the first one's address."""
        shared = self.folder / "shared"
        shared.mkdir(exist_ok=True)
        shared.chmod(0o777)
        with self.lock:
            master, running = self.network.next_address(), []
            for rank, place in enumerate(places):
                armed = self._armed(job, rank, len(places), master, args)
                meta = armed["metadata"]
                self._played.add((meta["namespace"], meta["name"]))
                made = self.api.make(armed)
                told = {**made, "_extra_mounts": [(str(shared), "/shared", False)], "_umask": 0o022}
                running.append(self.kubelets[place].run(told))
        return running

    def _armed(self, job: JobRef, rank: int, size: int, master: str, args: tuple[str, ...]) -> Json:
        env = {
            "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_ADDR": master, "MASTER_PORT": 29500,
            "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "eth0",
        }  # fmt: skip
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid, "controller": True}
        container = {
            "name": "trainer",
            "image": "example.com/train",
            "command": [sys.executable, str(TRAIN), "--finish", "/shared/finish", "--pause", "0.02", *args],
            "env": [{"name": key, "value": str(value)} for key, value in env.items()],
            "securityContext": {"runAsUser": 10_001, "readOnlyRootFilesystem": True},
        }
        plain = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{job.name}-{rank}", "namespace": job.namespace, "ownerReferences": [owner]},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        return dict(arm_object(plain).thing)

    # --- controllers and the kubelets' loop

    def _reconcile(self) -> None:
        while not self.closing:
            try:
                for kind in ("deployments.apps", "daemonsets.apps", "jobs.batch"):
                    for each in self.api.list(kind):
                        if not each["metadata"].get("deletionTimestamp"):
                            _CONTROLLERS[kind](self, each)
                self._kubelets()
            except Problem as error:
                if error.status not in (403, 404, 409):
                    raise
            time.sleep(0.05)

    def _kubelets(self) -> None:
        there = {}
        for thing in self.api.list("pods"):
            meta = thing["metadata"]
            if (meta["namespace"], meta["name"]) in self._played:
                continue
            there[meta["uid"]] = thing
            if meta["uid"] not in self.pods and not meta.get("deletionTimestamp"):
                if not thing["spec"].get("nodeName"):
                    bound = {"spec": {"nodeName": self.nodes[0]}}
                    thing = self.api.change("pods", meta["namespace"], meta["name"], bound)
                self.pods[meta["uid"]] = PodProcess(self, thing)
                self.pods[meta["uid"]].start()
        for uid, pod in list(self.pods.items()):
            if uid not in there:
                pod.end()
            elif there[uid]["metadata"].get("deletionTimestamp"):
                pod.end()
                if not pod._thread.is_alive():
                    pod._end_object()

    def _make_pod(self, owner: Json, template: Json, **more: Any) -> Json:
        meta = template.get("metadata") or {}
        reference = {
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        spec = {**json.loads(json.dumps(template["spec"])), **more}
        return self.api.make(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{owner['metadata']['name'][:50]}-{random.randrange(1 << 20):05x}",
                    "namespace": owner["metadata"]["namespace"],
                    "labels": meta.get("labels") or {},
                    "annotations": meta.get("annotations") or {},
                    "ownerReferences": [reference],
                },
                "spec": spec,
            }
        )

    def _of(self, owner: Json) -> list[Json]:
        return [
            pod
            for pod in self.api.list("pods", owner["metadata"]["namespace"])
            if any(one["uid"] == owner["metadata"]["uid"] for one in pod["metadata"].get("ownerReferences") or ())
        ]

    def _deployment(self, thing: Json) -> None:
        pods, wanted = self._of(thing), thing["spec"].get("replicas", 1)
        template = json.dumps(thing["spec"]["template"], sort_keys=True)
        for pod in pods:  # Recreate: an older template's pod goes first
            old = self._templates.get(pod["metadata"]["uid"], template) != template
            if (old or len(pods) > wanted) and not pod["metadata"].get("deletionTimestamp"):
                self.api.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if not pods and wanted:
            made = self._make_pod(thing, thing["spec"]["template"])
            self._templates[made["metadata"]["uid"]] = template

    @property
    def _templates(self) -> dict[str, str]:
        return self.__dict__.setdefault("_made_from", {})

    def _daemon_set(self, thing: Json) -> None:
        served = {pod["spec"].get("nodeName") for pod in self._of(thing)}
        for node in self.nodes:
            if node not in served:
                self._make_pod(thing, thing["spec"]["template"], nodeName=node)

    def _batch_job(self, thing: Json) -> None:
        meta, spec, status = thing["metadata"], thing["spec"], thing.get("status") or {}
        if spec.get("managedBy", "kubernetes.io/job-controller") != "kubernetes.io/job-controller":
            return
        if spec.get("suspend") or any(one["status"] == "True" for one in status.get("conditions") or ()):
            return
        pods = self._of(thing)
        phases = [(pod.get("status") or {}).get("phase") for pod in pods]
        failed, done = phases.count("Failed"), phases.count("Succeeded")
        told: Json = {"startTime": meta["creationTimestamp"], "active": len(pods) - failed - done}
        told |= {"failed": failed} if failed else {}
        if done:
            told |= {
                "succeeded": done,
                "completionTime": _now(),
                "conditions": [_condition("SuccessCriteriaMet"), _condition("Complete")],
            }
        elif (reason := _failed_for_good(spec, pods)) or failed > spec["backoffLimit"]:
            reason = reason or "BackoffLimitExceeded"
            told["conditions"] = [_condition("FailureTarget", reason), _condition("Failed", reason)]
        elif failed == len(pods):
            self._make_pod(thing, spec["template"])
            told["active"] = 1
        if any(status.get(key) != value for key, value in told.items()):
            self.api.set_status("jobs.batch", meta["namespace"], meta["name"], told)

    def _logs(self, namespace: str, name: str) -> str | None:
        found = next((pod for pod in self.pods.values() if pod.key == (namespace, name)), None)
        return None if found is None or not found.pid else found.said()

    def _close(self) -> None:
        self.closing = True
        self._thread.join(10)
        for pod in self.pods.values():
            pod.end()
        for pod in self.pods.values():
            pod.join()


_CONTROLLERS = {
    "deployments.apps": ClusterLab._deployment,
    "daemonsets.apps": ClusterLab._daemon_set,
    "jobs.batch": ClusterLab._batch_job,
}


@dataclasses.dataclass(frozen=True)
class _Adapter:
    """The API server as `pods.Kubelet` knows it."""

    api: ClusterApi

    def put(self, thing: Json) -> Json:
        return self.api.put(thing)

    def delete(self, thing: Json) -> None:
        meta = thing["metadata"]
        with contextlib.suppress(Problem):
            self.api.delete("pods", meta["namespace"], meta["name"], gracePeriodSeconds=0)


@contextlib.contextmanager
def _inside(pid: int) -> Iterator[None]:
    """This thread, and whatever it starts, in the network namespace of that process."""
    libc = ctypes.CDLL(None, use_errno=True)
    ours = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(theirs, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(ours, _CLONE_NEWNET)
    finally:
        os.close(ours)
        os.close(theirs)


def _system() -> list[str]:
    folders = ["/usr", "/bin", "/sbin", "/lib", "/lib64", *(f"/etc/{each}" for each in _ETC)]
    return list(dict.fromkeys([*folders, sys.base_prefix, sys.prefix, str(REPO)]))


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) where it is known; $$(NAME) stands for itself."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)",
        lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]),
        text,
    )


def _key_of(source: Json) -> tuple[str, Json] | None:
    for name, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if name in source:
            return plural, source[name]
    return None


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _failed_for_good(spec: Json, pods: list[Json]) -> str:
    """By the Job's podFailurePolicy: an exit code after which it is not tried again."""
    codes = {
        one["state"]["terminated"]["exitCode"]
        for pod in pods
        for one in pod.get("status", {}).get("containerStatuses") or ()
        if "terminated" in one["state"]
    }
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        wanted = rule.get("onExitCodes") or {}
        if rule["action"] == "FailJob" and wanted.get("operator") == "In" and codes & set(wanted["values"]) - {0}:
            return "PodFailurePolicy"
    return ""


def _condition(kind: str, reason: str = "") -> Json:
    return {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": _now()}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
