"""What every pod of a workflow may and gets: nothing more than its step needs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import typer

from sameshot.cli.step import register
from sameshot.errors import UsageError
from sameshot.steps.contract import ARGO
from sameshot.steps.results import AnalysisResult, CancelResult, CaptureResult, CompareResult, RankResult
from sameshot_argo.interface import ANALYZE_RANK, CANCEL, CAPTURE, COMPARE, REDUCE, STEPS, Step
from sameshot_argo.objects import rights, workflow_template
from sameshot_argo.settings import Settings

PODS: dict[str, dict[str, Any]] = {
    each["name"]: each for each in workflow_template().to_dict()["spec"]["templates"] if "container" in each
}
RESULTS = {CAPTURE: CaptureResult, CANCEL: CancelResult, ANALYZE_RANK: RankResult, REDUCE: AnalysisResult,
           COMPARE: CompareResult}  # fmt: skip


def command(step: Step) -> Any:
    app = typer.Typer()
    register(app)
    return typer.main.get_command(app).commands["step"].commands[step.command]  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", STEPS, ids=[each.name for each in STEPS])
def test_each_takes_options_and_gives_fields_that_its_step_has(step: Step) -> None:
    options = {name for each in command(step).params for name in each.opts}
    used = [
        each.split("=")[0] for each in PODS[step.name]["container"]["args"] if each.startswith("--") and each != "--"
    ]
    assert set(used) <= options
    assert len(set(used)) == len(used)
    own = {"--result", "--result-dir", "--out", "--job", "--uid", "--wait", "--no-history", "-j"}  # not for workflows
    own |= {"--analysed"}  # where a cache knows pods' work: Argo has none
    assert {each for each in options if each.startswith("-")} - set(used) <= own
    fields = {field.name for field in msgspec.structs.fields(RESULTS[step])} | {"error"}
    assert {each.name for each in step.outputs} <= fields


@pytest.mark.parametrize("pod", PODS.values(), ids=list(PODS))
def test_each_is_restricted(pod: dict[str, Any]) -> None:
    """Kubernetes' "restricted" Pod Security Standard, and no writing outside its own scratch space."""
    container = pod["container"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 8737,  # without it the kubelet refuses Argo's init and wait, whose image names no user
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
    assert pod["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert container["volumeMounts"] == [{"name": "scratch", "mountPath": "/tmp"}]
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert pod["activeDeadlineSeconds"]
    assert "memoize" not in pod  # an answer of yesterday is no capture
    assert container["command"] == ["sameshot"]
    assert not any(word in each for each in container["args"] for word in ("sh -c", "$("))


def test_a_cluster_that_gives_each_namespace_its_users_is_not_told_one() -> None:
    for each in workflow_template(Settings(run_as_user=None)).to_dict()["spec"]["templates"]:
        if "container" in each:
            assert each["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    with pytest.raises(UsageError, match="without root"):
        Settings(run_as_user=0)


def test_who_is_content_with_some_ranks_says_so_to_every_step_that_asks() -> None:
    """What follows from it the steps decide: also `compare`, of the earlier capture."""
    (profile,) = [each for each in workflow_template().to_dict()["spec"]["templates"] if each["name"] == "profile"]
    told = {
        step["name"]: {each["name"]: each["value"] for each in step["arguments"]["parameters"]}
        for (step,) in profile["steps"]
    }
    for name, pod in (("capture", "capture-pod"), ("reduce", "reduce"), ("compare", "compare")):
        assert told[name]["min_ranks"] == "{{inputs.parameters.min_ranks}}"
        assert "--min-ranks={{inputs.parameters.min_ranks}}" in PODS[pod]["container"]["args"]


def secrets(pod: dict[str, Any]) -> set[str]:
    asked = [each["valueFrom"]["secretKeyRef"] for each in pod["container"]["env"] if "valueFrom" in each]
    assert all(each["optional"] for each in asked)
    return {each["name"] for each in asked}


def test_only_who_writes_results_has_the_credential_for_it() -> None:
    assert {name: secrets(pod) for name, pod in PODS.items()} == {
        "capture-pod": {"sameshot-archive"},
        "cancel": set(),
        "analyze-rank": {"sameshot-archive", "sameshot-results"},
        "reduce": {"sameshot-archive", "sameshot-results"},
        "compare": {"sameshot-archive", "sameshot-results"},
    }


@pytest.mark.parametrize("name", ["capture-pod", "cancel"])
def test_capture_and_cancel_mean_the_request_key_of_the_contract(name: str) -> None:
    (given,) = [each for each in PODS[name]["container"]["args"] if each.startswith("--key=")]
    written = given.removeprefix("--key=").replace("{{workflow.uid}}", "u-1").replace("{{inputs.parameters.key}}", "k")
    assert written == ARGO.request_key(workflow_uid="u-1", key="k")


def test_no_text_of_a_user_can_become_another_option() -> None:
    for pod in PODS.values():
        arguments = pod["container"]["args"]
        ends = arguments.index("--") if "--" in arguments else len(arguments)
        assert all("{{" not in each or each.startswith("--") for each in arguments[:ends])


def test_a_run_may_report_its_outputs_have_a_token_of_its_own_and_capture_and_nothing_else() -> None:
    account, role, binding, captures = rights(Settings(service_account="sa"), namespace="ml")
    assert role["rules"] == [
        {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["sa"], "verbs": ["create"]},
    ]
    assert captures["roleRef"]["name"] == "sameshot-user"
    assert captures["subjects"] == binding["subjects"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "sa", "namespace": "ml"}]
    assert account["metadata"]["name"] == "sa"
