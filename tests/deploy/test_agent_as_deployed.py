"""The agent as its DaemonSet runs it: those arguments, that user and its two capabilities, a root that it can't write.

What a container runtime does is done here by hand: a mount namespace in which everything is read-only but what the
DaemonSet mounts, each at its own path. Without one of the capabilities the agent serves nobody:
`tests/nodes/test_real_pods.py`, with the very capabilities that stand in the DaemonSet.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_objects import kustomized
from live import wait_for
from pods import CAPABILITIES, UID, Nodes, needs_pods
from s3 import make_bucket, moto_server, s3_environment

from sameshot.local.services import Service, ServiceCommand, sameshot_argv
from sameshot.model import CaptureState

AGENT = Path(__file__).parents[2] / "deploy" / "agent"
ARCHIVE = "s3://traces/cluster"
NETWORK = ("--listen=", "--certificate=", "--key=", "--coordinators-namespace=", "--metrics=")

# $1: the kubelet's root of this node, $2: where the DaemonSet mounts it. What follows is run there.
CONTAINER = r"""
set -eu
root=$1 at=$2; shift 2
mount --make-rprivate /
mount -t tmpfs none /mnt && mkdir /mnt/kubelet && mount --bind "$root" /mnt/kubelet
mount -t tmpfs none "${at%/*}" && mkdir "$at" && mount --move /mnt/kubelet "$at" && umount /mnt
mount -t tmpfs -o size=256m none /tmp
cd "$at"
awk '{print $5}' /proc/self/mountinfo | while read -r path; do
    case $path in "$at" | /tmp | /proc* | /sys* | /dev*) ;; *) mount -o remount,bind,ro "$path" ;; esac
done
exec "$@"
"""


def daemon_set() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's spec and its container."""
    (found,) = [each for each in kustomized(AGENT) if each["kind"] == "DaemonSet"]
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_tests_run_agents_with_the_capabilities_of_the_daemon_set() -> None:
    _, container = daemon_set()
    assert [each.lower() for each in container["securityContext"]["capabilities"]["add"]] == list(CAPABILITIES)


@contextlib.contextmanager
def deployed(nodes: Nodes, name: str) -> Iterator[Service]:
    _, container = daemon_set()
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "kubelet"]
    kubelet = nodes[name].root
    values = {"NODE_NAME": name, "SAMESHOT_ARCHIVE": ARCHIVE}
    # Without what is for other machines: those are played in tests/hosts, this one's coordinator is beside it.
    here = [word for word in container["args"] if not word.startswith(NETWORK)]
    arguments = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in here]
    context = container["securityContext"]
    kept = ",".join(f"+{each.lower()}" for each in context["capabilities"]["add"])
    argv = (
        "unshare", "--mount", "sh", "-c", CONTAINER, "container", str(kubelet), mount["mountPath"],
        "setpriv", "--reuid", str(context["runAsUser"]), "--regid", str(context["runAsGroup"]), "--clear-groups",
        "--no-new-privs", "--bounding-set", f"-all,{kept}",
        *sameshot_argv(*arguments, "--api-server", nodes.api.url, "--end-with-stdin",
                       "--address-file", f"{mount['mountPath']}/agent.address"),
    )  # fmt: skip
    log = nodes.folder / f"agent-{name}.log"
    service = Service(
        ServiceCommand(f"agent of {name}", argv, log, kubelet / "agent.address"), {**os.environ, "HOME": "/tmp"}
    )
    try:
        service.wait_ready(60)
        yield service
    finally:
        service.stop()


@pytest.mark.live
@pytest.mark.full
@pytest.mark.timeout(400)
def test_it_captures_a_pod_of_another_user_that_writes_with_umask_077(tmp_path: Path) -> None:
    needs_pods()
    with moto_server() as endpoint, s3_environment(endpoint):
        make_bucket(endpoint, "traces")
        with Nodes(tmp_path, "node-a", archive=ARCHIVE) as nodes:
            pod = nodes["node-a"].run(
                nodes.training_pod("train-0", rank=0, world_size=1, master="127.0.0.1", umask=0o077)
            )
            with deployed(nodes, "node-a") as agent, nodes.coordinator(agent) as job:
                status = Path(f"/proc/{agent.pid}/status").read_text()
                root = Path(f"/proc/{agent.pid}/root")
                job.until_training(1)
                view = job.wait(job.start(duration_ms=500))
                assert view.state is CaptureState.SUCCEEDED, (view, nodes.log("node-a"))
                private = [(pod.volume / name).stat() for name in ("ipc", "workers")]
                assert [(each.st_mode & 0o077, each.st_uid) for each in private] == [(0, UID)] * 2
                written = subprocess.run(["touch", root / "usr/x"], capture_output=True, text=True)
                assert "Read-only file system" in written.stderr
            wait_for(lambda: pod.alive, "training went on")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["0"] * 4
    assert facts["NoNewPrivs"] == "1"
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == int(facts["CapBnd"], 16) == (1 << 18) | (1 << 1)
    assert "Traceback" not in nodes.log("node-a")


@pytest.mark.live
@pytest.mark.full
def test_reading_everybodys_files_would_not_be_enough(tmp_path: Path) -> None:
    """DAC_READ_SEARCH is the smaller right, and a socket can't be bound with it in a directory of somebody else's."""
    needs_pods()
    with Nodes(tmp_path, "node-a") as nodes:
        pod = nodes["node-a"].run(nodes.training_pod("train-0", rank=0, world_size=1, master="127.0.0.1", umask=0o077))
        wait_for(lambda: (pod.volume / "ipc").exists(), "its hook has run")
        with nodes.agent("node-a", capabilities=("sys_chroot", "dac_read_search")):
            wait_for(lambda: "Permission denied" in nodes.log("node-a"), "it says so")
            assert not (pod.volume / "ipc" / "dynolog").exists()
