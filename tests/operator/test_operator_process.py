"""`sameshot operator` as a Deployment runs it: its own image, its metrics and probes, an end in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cluster_api import ClusterApi
from operator_lab import OPERATOR, armed_pod, batch_job, shipped

from sameshot.kube import names
from sameshot.model import JobRef


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.full
def test_the_command_keeps_coordinators_with_its_own_image_and_ends_when_told(tmp_path: Path) -> None:
    with ClusterApi() as api:
        api.apply(shipped())
        own = {"name": "sameshot-operator-1", "namespace": names.SYSTEM_NAMESPACE}
        containers = [{"name": "operator", "image": "registry/sameshot:7"}]
        api.make({"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": {"containers": containers}})
        made = api.make(batch_job("llama", "ml"))
        api.make(armed_pod("llama-0", "ml", made, 1, {}, {}))
        job = JobRef("ml", "llama", made["metadata"]["uid"], 0)
        port = 29_465
        command = [
            sys.executable, "-m", "sameshot.cli.main", "operator", "--archive", "s3://traces", "--api-server", api.url,
            "--api-token-file", str(api.token_file(OPERATOR)), "--api-ca-file", str(api.ca_file),
            "--metrics", f"127.0.0.1:{port}", "--endpoint", "pod-ip", "--grace", "1s",
        ]  # fmt: skip
        environment = {**os.environ, "POD_NAME": own["name"], "POD_NAMESPACE": own["namespace"]}
        log = (tmp_path / "log").open("w")
        api.away()
        process = subprocess.Popen(command, env=environment, stderr=log)
        try:
            alive = f"http://127.0.0.1:{port}/healthz"
            assert api.wait_for(lambda: fetched(alive)[0], within_s=60) == 200, "alive, whether an API server is or not"
            assert fetched(f"http://127.0.0.1:{port}/readyz")[0] == 503
            api.wait_for(lambda: "the image of its own pod can't be had yet" in (tmp_path / "log").read_text())
            api.come_back()
            where = (names.COORDINATORS_NAMESPACE, names.coordinator_of(job))
            pod = api.wait_for(lambda: api.find("pods", *where), within_s=60)
            assert pod["spec"]["containers"][0]["image"] == "registry/sameshot:7"
            assert [each["name"] for each in pod["spec"]["containers"][0]["ports"]] == ["grpc", "probe", "metrics"]
            assert fetched(alive) == (200, "ok\n")
            assert fetched(f"http://127.0.0.1:{port}/readyz") == (200, "ok\n")
            status, text = fetched(f"http://127.0.0.1:{port}/metrics")
            assert status == 200
            assert 'sameshot_operator_coordinators{phase="Pending"} 1.0' in text
            assert 'sameshot_operator_armed_pods{job="known"} 1.0' in text
            process.send_signal(signal.SIGTERM)
            ends = time.monotonic()
            assert process.wait(20) == 0
            assert time.monotonic() - ends < 10
        finally:
            process.kill()
            process.wait()
            log.close()
        said = (tmp_path / "log").read_text()
        assert "Traceback" not in said, said
        assert "OS signals" not in said
        assert api.list("pods", "ml")[0]["metadata"].get("finalizers") is None
