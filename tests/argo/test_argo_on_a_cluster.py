"""The pods of a workflow in a cluster: the job by its name, the workflow's own account, whatever mounts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from argo_executor import Executor
from cluster_parts import captured_by_an_engine
from hera.workflows import Step, Steps, Workflow

from sameshot_argo.objects import workflow_template
from sameshot_argo.tasks import cancel, capture


@pytest.mark.full
def test_a_workflow_s_pods_capture_and_cancel_as_its_account(tmp_path: Path) -> None:
    with captured_by_an_engine(tmp_path, "sameshot-workflow") as (job, environment):
        address = f"kube:{job.job.namespace}/llama"
        tasks = [
            capture("capture", address=address, duration="1s"),
            cancel("cancel", address=address, key="capture"),
        ]
        with (
            Workflow(generate_name="mine-", entrypoint="main", service_account_name="sameshot-workflow") as made,
            Steps(name="main"),
        ):
            for each in tasks:
                Step(name=each.name, arguments=each.arguments, template=each.template, template_ref=each.template_ref)
        argo = Executor([workflow_template().to_dict()], tmp_path / "argo", environment=environment)
        root = argo.run(made.to_dict())
        assert root.phase == "Succeeded", root.shown()
        told = root["capture"].parameters
        assert (told["outcome"], told["archived"]) == ("SUCCEEDED", "2")
        assert root["cancel"].parameters["was_over"] == "true", "the exit hook's container knows the key, too"
        assert job.captured_by() == ["sameshot-workflow"]
