"""Analysis of an archived capture in a workflow: a pod per shard, and results written with the Secret for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from argo_checks import problems
from argo_executor import Executor
from gloo_job import GlooJob, archive, failed
from hera.workflows import DAG, Workflow
from s3 import make_bucket, moto_server, s3_client

from sameshot_argo.objects import workflow_template
from sameshot_argo.tasks import analyze_rank, reduce

pytestmark = pytest.mark.full  # many processes

TEMPLATE = workflow_template().to_dict()
SHARDS = ["0/2", "1/2"]


def analysing(manifest: Path, results: str, **more: Any) -> dict[str, Any]:
    with Workflow(generate_name="mine-", entrypoint="main") as made, DAG(name="main"):
        shards = analyze_rank(of=str(manifest), shard="{{item}}", with_param=json.dumps(SHARDS), results=results)
        shards >> reduce(of=str(manifest), results=results, **more)
    document: dict[str, Any] = made.to_dict()
    assert problems(document, [TEMPLATE]) == []
    return document


def test_results_are_written_with_the_credential_of_their_secret_and_kept_as_artifacts(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "archive", GlooJob(seed=1, late={2: 30.0}).traces())
    with moto_server() as endpoint:
        make_bucket(endpoint, "results")
        secret = {
            "AWS_ACCESS_KEY_ID": "writer",
            "AWS_SECRET_ACCESS_KEY": "w",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
        }
        argo = Executor([TEMPLATE], tmp_path, environment={}, secrets={"sameshot-results": secret})
        root = argo.run(analysing(manifest, "s3://results/profiling"))
        assert root.phase == "Succeeded", root.shown()
        told = root["reduce"].parameters
        assert (told["analysed"], json.loads(told["headline"])["late"]) == ("4", "2")
        assert told["report_uri"].startswith("s3://results/profiling/captures/")
        key = told["report_uri"].removeprefix("s3://results/")
        stored = s3_client(endpoint).get_object(Bucket="results", Key=key)["Body"].read()
        assert root["reduce"].artifacts["report"].read_bytes() == stored


def test_where_no_artifact_can_be_kept_the_templates_without_any_make_the_report(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "archive", GlooJob(seed=1).traces())
    shipped = Path(__file__).parents[2] / "deploy" / "argo"
    ended = {}
    for kind in ("", "no-artifacts"):
        template = yaml.safe_load((shipped / kind / "workflow-template.yaml").read_text())
        argo = Executor([template], tmp_path / f"argo-{kind}", environment={}, repository=False)
        ended[kind] = argo.run(analysing(manifest, str(tmp_path / f"results-{kind}")))
    reduced = ended[""]["reduce"]
    assert (reduced.phase, len(reduced.attempts), ended[""].phase) == ("Error", 1, "Error"), ended[""].shown()
    assert ended["no-artifacts"].phase == "Succeeded", ended["no-artifacts"].shown()
    assert ended["no-artifacts"]["reduce"].artifacts == {}
    report = Path(ended["no-artifacts"]["reduce"].parameters["report_uri"].removeprefix("file://"))
    assert b"<html" in report.read_bytes()[:1000].lower()


def test_too_few_ranks_fail_it_and_the_report_is_an_artifact_all_the_same(tmp_path: Path) -> None:
    traces = GlooJob(seed=1).traces()
    del traces[1]
    manifest = archive(tmp_path / "archive", traces, failures=(failed(1),))
    root = Executor([TEMPLATE], tmp_path, environment={}).run(analysing(manifest, str(tmp_path / "results")))
    assert (root.phase, root["reduce"].phase, root["reduce"].exit_code) == ("Failed", "Failed", 3), root.shown()
    told = root["reduce"].parameters
    assert (told["error"], told["analysed"], told["missing"]) == ("PartialCapture", "3", "1")
    assert b"<html" in root["reduce"].artifacts["report"].read_bytes()[:1000].lower()
    assert len(root["reduce"].attempts) == 1


def test_a_shard_that_was_never_done_is_named(tmp_path: Path) -> None:
    manifest = archive(tmp_path / "archive", GlooJob(seed=1).traces())
    document = analysing(manifest, str(tmp_path / "results"))
    (main,) = document["spec"]["templates"]
    main["dag"]["tasks"][0]["withParam"] = '["0/2"]'
    root = Executor([TEMPLATE], tmp_path, environment={}).run(document)
    assert (root.phase, root["reduce"].exit_code) == ("Failed", 3), root.shown()
    assert (root["reduce"].parameters["missing"], root["reduce"].parameters["analysed"]) == ("1, 3", "2")
