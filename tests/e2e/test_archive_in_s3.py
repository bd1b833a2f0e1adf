"""The same chain with an object store as the archive: a real HTTP S3 endpoint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from live import running_job
from s3 import make_bucket, moto_server, s3_environment

from sameshot.local.services import sameshot_argv
from sameshot.model import CaptureState

pytestmark = [pytest.mark.live, pytest.mark.full]


def test_a_capture_is_delivered_to_s3_and_verified_from_there(tmp_path: Path) -> None:
    with moto_server() as endpoint, s3_environment(endpoint):
        bucket = make_bucket(endpoint, "traces")
        with running_job(tmp_path, nodes=1, setup={"archive": "s3://traces/dev"}) as job:
            view = job.capture()
            assert view.state is CaptureState.SUCCEEDED, view
            assert view.manifest_uri == f"s3://traces/dev/{job.local.job.path}/{view.capture_id}/manifest.json"
            assert job.start(request_key="unused", start_delay_ms=0).capture_id != view.capture_id
        stored = {each["Key"]: each["Size"] for each in bucket.list_objects_v2(Bucket="traces")["Contents"]}
        folder = f"dev/{job.local.job.path}/{view.capture_id}"
        assert f"{folder}/manifest.json" in stored
        for fact in view.targets:
            assert fact.artifact is not None
            assert stored[f"{folder}/{fact.artifact.uri}"] == fact.artifact.size

        assert verify(view.manifest_uri).returncode == 0
        uri = next(fact.artifact.uri for fact in view.targets if fact.artifact)
        data = bytearray(bucket.get_object(Bucket="traces", Key=f"{folder}/{uri}")["Body"].read())
        data[len(data) // 2] ^= 1
        bucket.put_object(Bucket="traces", Key=f"{folder}/{uri}", Body=bytes(data))
        failed = verify(view.manifest_uri)
        assert failed.returncode == 4, failed.stdout + failed.stderr
        assert uri in failed.stdout


def verify(uri: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(sameshot_argv("manifest", "verify", uri), capture_output=True, text=True, timeout=60)
