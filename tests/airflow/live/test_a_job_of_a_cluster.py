"""A job that Airflow knows only by its name in a cluster: worker and triggerer find its coordinator by themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow_lab import Lab
from cluster_at_hand import KUBECONFIG, Cluster, accounts_of, apply, installed
from cluster_parts import Training, training

CONNECTION = "sameshot_cluster"  # of dags/in_a_cluster.py
DAG_ID = "capture_in_a_cluster"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Training]:
    """A coordinator with TLS that asks for tokens, found through its CaptureCoordinator."""
    with Cluster.emulating(tmp_path) as cluster, installed(cluster) as there:
        namespace = there.namespace("ml")
        apply(there, accounts_of(namespace))
        with training(there, namespace, "llama") as found:
            yield found


def test_it_is_found_and_captured_by_worker_and_triggerer_as_one_account(job: Training, lab: Lab) -> None:
    cluster, where = job.coordinator.cluster, job.job.namespace
    extra = {"kubeconfig": str(cluster.folder / KUBECONFIG)}
    fields = {"conn_type": "sameshot", "host": "kube:" + where + "?route=direct", "extra": json.dumps(extra)}
    lab.api.request("POST", "/connections", json={"connection_id": CONNECTION, **fields})
    try:
        run = lab.run(DAG_ID)
        lab.api.wait_run(DAG_ID, run, "success")
        result = lab.api.xcom(DAG_ID, run, "capture", map_index=0)
        assert (result["outcome"], result["archived"]) == ("SUCCEEDED", 2)
        assert (result["job"]["name"], result["job"]["uid"]) == ("llama", job.job.uid)
        assert "following capture" in lab.api.log(DAG_ID, run, "capture", map_index=0), "the triggerer found it, too"
        with job.coordinator.client_of(where, "sameshot") as client:
            (view,) = client.captures()
        assert view.caller == f"system:serviceaccount:{where}:sameshot"
        assert view.request_key.startswith(f"airflow/{DAG_ID}/{run}/capture/0/")
        told = lab.api.test_connection(connection_id=f"try-{uuid.uuid4().hex}", **fields)
        assert told["status"], told
        assert f"1 armed job runs in namespace {where}: llama." in told["message"]
        assert f"answers system:serviceaccount:{where}:sameshot" in told["message"]
    finally:
        lab.api.request("DELETE", f"/connections/{CONNECTION}")
