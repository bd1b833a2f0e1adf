"""One definition, two faces, and the YAML that people use who write no Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import components as loader
from kfp.compiler import Compiler
from kfp_containers import COMPILED, DEPLOY, PIPELINES

from sameshot.steps.image import IMAGE
from sameshot_argo.interface import PROFILE_INPUTS
from sameshot_kfp import Components, in_cluster, profile_job
from sameshot_kfp.__main__ import main, rendered
from sameshot_kfp.interface import NO_COMPARISON, STEPS


def ir(component: Any, folder: Path) -> dict[str, Any]:
    """The first document: the pipeline; platforms come after it."""
    Compiler().compile(component, str(folder / "ir.yaml"))
    return dict(next(iter(yaml.safe_load_all((folder / "ir.yaml").read_text()))))


def without_version(text: str) -> str:
    return re.sub(r"^sdkVersion: .*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", STEPS)
def test_both_faces_of_a_component_have_the_same_interface(name: str, tmp_path: Path) -> None:
    container = ir(Components.containers().bare[name], tmp_path)
    lightweight = ir(Components.local().bare[name], tmp_path)
    assert container["root"]["inputDefinitions"] == lightweight["root"]["inputDefinitions"]
    assert container["root"].get("outputDefinitions") == lightweight["root"].get("outputDefinitions")
    assert container["components"] == lightweight["components"]
    step, (component,) = STEPS[name], container["components"].values()
    assert set(component["inputDefinitions"]["parameters"]) == {each.name for each in step.inputs}
    assert set(component["outputDefinitions"]["parameters"]) == {each.name for each in step.outputs}
    assert set(component["outputDefinitions"].get("artifacts", {})) == {each.name for each in step.files}


def test_nothing_is_installed_at_run_time_and_the_image_is_pinned(tmp_path: Path) -> None:
    spec = ir(profile_job(Components.containers()), tmp_path)
    for executor in spec["deploymentSpec"]["executors"].values():
        assert executor["container"]["image"] == IMAGE
        assert executor["container"]["command"] == ["python3", "-m", "sameshot_kfp.run"]
    text = (tmp_path / "ir.yaml").read_text()
    assert "pip" not in text.replace("pipeline", "")
    local = ir(profile_job(Components.local()), tmp_path)
    for executor in local["deploymentSpec"]["executors"].values():
        assert "pip install" not in " ".join(executor["container"]["command"])


def test_what_runs_in_the_container_needs_no_kfp() -> None:
    program = (
        "import sys; sys.modules['kfp'] = None\n"
        "import sameshot_kfp, sameshot_kfp.run\n"
        "print(sorted({'airflow', 'torch', 'pandas', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_the_shipped_yaml_is_what_the_code_says() -> None:
    made = rendered()
    shipped = {path.relative_to(DEPLOY).as_posix(): path.read_text() for path in COMPILED}
    assert sorted(made) == sorted(shipped)
    for name, text in made.items():
        assert without_version(text) == without_version(shipped[name]), f"{name}: python -m sameshot_kfp deploy/kfp"


def test_the_shipped_yaml_is_in_step_only_with_its_own_code() -> None:
    changed = rendered(image="elsewhere/steps:1")["components/capture.yaml"]
    assert without_version(changed) != without_version((DEPLOY / "components/capture.yaml").read_text())


def test_yaml_of_another_registry_names_its_image_only(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--image", "registry.local/steps:1", "--secret", "s3", "--parallelism", "3"]) == 0
    text = (tmp_path / "profile-job.yaml").read_text()
    assert IMAGE not in text
    assert text.count("image: registry.local/steps:1") == len(STEPS)
    assert "parallelismLimit: 3" in text
    assert "secretName: s3\n" in text


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*component*/*.yaml")) + sorted(DEPLOY.glob("*-component.yaml")))
def test_shipped_components_can_be_loaded(path: Path) -> None:
    loaded = loader.load_component_from_file(str(path))
    assert loaded.component_spec.inputs


def tasks(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every task of a pipeline, however deep, by its name."""
    graphs = [spec["root"], *spec["components"].values()]
    return {name: task for graph in graphs for name, task in graph.get("dag", {}).get("tasks", {}).items()}


def test_captures_are_never_cached_and_analysis_is_by_the_manifests_digest() -> None:
    spec = next(iter(yaml.safe_load_all((DEPLOY / "profile-job.yaml").read_text())))
    found = tasks(spec)
    cached = {name for name, task in found.items() if task.get("cachingOptions", {}).get("enableCache")}
    assert {"analyze-rank", "reduce"} <= cached
    assert not {"capture", "cancel", "compare", "sameshot-profile"} & cached
    for name in ("analyze-rank", "reduce"):
        assert {"manifest_uri", "manifest_sha256", "results"} <= set(found[name]["inputs"]["parameters"])
    digest = found["sameshot-analyze"]["inputs"]["parameters"]["manifest_sha256"]["taskOutputParameter"]
    assert digest == {"outputParameterKey": "manifest_sha256", "producerTask": "capture"}


def test_a_capture_is_told_its_run_and_task_as_whole_constants() -> None:
    # The backend replaces these placeholders in task inputs, and only where they are the whole text.
    spec = next(iter(yaml.safe_load_all((DEPLOY / "profile-job.yaml").read_text())))
    capture = tasks(spec)["capture"]["inputs"]["parameters"]
    assert capture["run_id"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
    assert capture["task_name"] == {"runtimeValue": {"constant": "{{$.pipeline_task_name}}"}}
    assert capture["key"] == {"componentInputParameter": "key"}


def test_a_step_that_took_all_of_its_time_can_still_be_retried() -> None:
    # The backend hands backoffMaxDuration to Argo, which counts it from the beginning of the first attempt.
    for path in PIPELINES:
        found = tasks(next(iter(yaml.safe_load_all(path.read_text()))))
        policies = {name: task["retryPolicy"] for name, task in found.items() if "retryPolicy" in task}
        assert {"analyze-rank", "reduce", "compare"} <= set(policies)
        for name, policy in policies.items():
            attempts, pauses = 1 + policy["maxRetryCount"], 10 + 20
            assert (attempts, policy["backoffDuration"], policy["backoffFactor"]) == (3, "10s", 2.0)
            a_long_capture = 2 * 3600
            assert int(policy["backoffMaxDuration"].removesuffix("s")) >= attempts * a_long_capture + pauses, name


def test_the_exit_task_runs_whatever_happened_and_knows_how_it_went() -> None:
    spec = next(iter(yaml.safe_load_all((DEPLOY / "profile-job.yaml").read_text())))
    cancel = spec["root"]["dag"]["tasks"]["cancel"]
    assert cancel["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert cancel["inputs"]["parameters"]["status"] == {"taskFinalStatus": {"producerTask": "exit-handler-1"}}
    assert cancel["inputs"]["parameters"]["key"] == {"componentInputParameter": "key"}


def test_shards_are_fanned_out_and_all_collected(tmp_path: Path) -> None:
    spec = ir(profile_job(Components.containers(), parallelism=5), tmp_path)
    found = tasks(spec)
    assert found["for-loop-1"]["iteratorPolicy"] == {"parallelismLimit": 5}
    assert found["reduce"]["inputs"]["parameters"]["shards"]["taskOutputParameter"]["producerTask"] == "for-loop-1"
    assert found["compare"]["dependentTasks"] == ["reduce"]


def test_a_pipeline_compares_only_where_a_threshold_is_given_as_with_argo() -> None:
    assert {each.name: each.default for each in PROFILE_INPUTS}["threshold"] == ""
    for path in PIPELINES:
        spec = next(iter(yaml.safe_load_all(path.read_text())))
        assert spec["root"]["inputDefinitions"]["parameters"]["threshold"]["defaultValue"] == NO_COMPARISON < 0
        assert "threshold" in tasks(spec)["compare"]["inputs"]["parameters"]


def test_nodes_labels_and_secrets_reach_every_task(tmp_path: Path) -> None:
    prepare = in_cluster(
        secret="keys",
        keys=["AWS_REGION"],
        node_selector={"pool": "cpu"},
        labels={"team": "nlp"},
        tolerations={"batch": "NoSchedule"},
    )
    Compiler().compile(profile_job(Components.containers(prepare=prepare)), str(tmp_path / "ir.yaml"))
    _, platform = yaml.safe_load_all((tmp_path / "ir.yaml").read_text())
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(executors) == 4  # all but the exit task, which is not in this one
    for each in executors.values():
        assert each["nodeSelector"]["labels"] == {"pool": "cpu"}
        assert each["podMetadata"]["labels"] == {
            "app.kubernetes.io/name": "sameshot",
            "app.kubernetes.io/part-of": "sameshot",
            "team": "nlp",
        }
        (secret,) = each["secretAsEnv"]
        assert secret["secretName"] == "keys"
        assert {one["secretKey"]: one["envVar"] for one in secret["keyToEnv"]} == {"AWS_REGION": "AWS_REGION"}
        assert each["tolerations"] == [{"key": "batch", "operator": "Exists", "effect": "NoSchedule"}]


def test_the_shipped_yaml_asks_for_nothing_that_the_oldest_backend_refuses() -> None:
    # Before 2.15 a task with `optional` in its secret fails in the driver, and newer SDKs always write it.
    for path in COMPILED:
        _, *platforms = yaml.safe_load_all(path.read_text())
        for each in platforms:
            for executor in each["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
                assert set(executor) == {"podMetadata"}
