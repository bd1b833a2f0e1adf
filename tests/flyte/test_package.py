"""A user's file, packaged without a Flyte anywhere: what a back end is told, and what the pods of its tasks do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gloo_job import GlooJob, archive
from s3 import make_bucket, moto_server

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyteidl.admin.launch_plan_pb2 import LaunchPlan
from flyteidl.admin.task_pb2 import TaskSpec
from flyteidl.admin.workflow_pb2 import WorkflowSpec
from flyteidl.core.errors_pb2 import ContainerError, ErrorDocument
from flyteidl.core.literals_pb2 import LiteralMap
from flyteidl.core.tasks_pb2 import TaskTemplate
from flyteidl.core.workflow_pb2 import Node
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

import sameshot
from sameshot.manifest import decode
from sameshot_flyte.asked import INPUTS
from sameshot_flyte.references import Analysis

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "plugins" / "flyte" / "examples" / "flytekit_profile.py"
OURS = "sameshot_flyte.flyte1.analysis"
BIN = Path(sys.executable).parent


@dataclass
class Package:
    """What is in it, by name."""

    folder: Path
    tasks: dict[str, TaskTemplate] = field(default_factory=dict)
    workflows: dict[str, WorkflowSpec] = field(default_factory=dict)
    plans: dict[str, LaunchPlan] = field(default_factory=dict)


def environment(folder: Path) -> dict[str, str]:
    """Of somebody with a home of their own, where flytekit may leave what it leaves, and no configuration of Flyte."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("FLYTE")}
    return told | {"HOME": str(folder), "TMPDIR": str(folder)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("package")
    shutil.copy(EXAMPLE, folder)
    subprocess.run(
        [
            BIN / "pyflyte", "--pkgs", EXAMPLE.stem, "package", "--image", "registry.local/ours:1", "--force",
            "--source", ".", "--output", "package.tgz",
        ],
        cwd=folder, env=environment(folder), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    found = Package(folder)
    with tarfile.open(folder / "package.tgz") as packed:
        for member in packed.getmembers():
            stream = packed.extractfile(member)
            assert stream is not None
            data, kind = stream.read(), member.name.removesuffix(".pb")[-1]
            if kind == "1":
                task = TaskSpec.FromString(data).template
                assert task.id.name not in found.tasks, "two of a name"
                found.tasks[task.id.name] = task
            elif kind == "2":
                workflow = WorkflowSpec.FromString(data)
                found.workflows[workflow.template.id.name] = workflow
            else:
                plan = LaunchPlan.FromString(data)
                found.plans[plan.id.name] = plan
    return found


def nodes(package: Package, workflow: str) -> dict[str, Node]:
    """By the name of the task that each runs, without its module."""
    template = package.workflows[workflow].template
    found = {}
    for node in template.nodes:
        task = node.array_node.node.task_node if node.HasField("array_node") else node.task_node
        found[task.reference_id.name.rpartition(".")[2].partition("_")[0]] = node
    return found


def defaults(plan: LaunchPlan) -> dict[str, Any]:
    """Those of its inputs that have one."""
    parameters = plan.spec.default_inputs.parameters
    return {
        name: getattr(primitive := each.default.scalar.primitive, primitive.WhichOneof("value"))
        for name, each in parameters.items()
        if each.HasField("default")
    }


# -- tasks


def test_the_capture_is_a_task_of_the_connector_and_is_never_cached(package: Package) -> None:
    task = package.tasks["sameshot.capture"]
    assert task.type == "sameshot_capture"
    assert task.WhichOneof("target") is None  # no container: nothing to start
    assert not task.metadata.discoverable
    assert task.metadata.retries.retries > 0
    assert set(task.interface.inputs.variables) == set(INPUTS)
    assert list(task.interface.outputs.variables) == ["capture"]
    attributes = task.interface.outputs.variables["capture"].type.structure.dataclass_type
    assert {"manifest_uri", "manifest_sha256", "shards"} <= set(attributes)  # what the next tasks are bound to


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("analyze_rank", ["manifest_uri"]),
        ("reduce", ["manifest_uri"]),
        ("analyze", ["manifest_uri", "workers"]),
        ("compare", None),
    ],
)
@pytest.mark.parametrize("module", [OURS, EXAMPLE.stem])
def test_analyses_are_cached_by_the_digest_and_never_by_the_address(
    package: Package, module: str, name: str, ignored: list[str] | None
) -> None:
    told = package.tasks[f"{module}.{name}"].metadata
    assert told.retries.retries == 3
    assert told.discoverable == (ignored is not None)
    assert list(told.cache_ignore_input_vars) == (ignored or [])
    assert told.discovery_version == (f"sameshot-{sameshot.__version__}" if ignored else "")
    assert told.generates_deck.value == (name != "analyze_rank")


def test_outputs_are_a_reference_a_page_and_a_table_with_named_columns(package: Package) -> None:
    outputs = package.tasks[f"{OURS}.reduce"].interface.outputs.variables
    assert sorted(outputs) == ["analysis", "ranks", "report"]
    assert outputs["report"].type.blob.format == "html"
    columns = [each.name for each in outputs["ranks"].type.structured_dataset_type.columns]
    assert columns[:2] == ["rank", "label"]
    assert outputs["ranks"].type.structured_dataset_type.format in ("", "parquet")


def test_tasks_ask_for_no_more_than_a_flyte_that_nobody_configured_allows(package: Package) -> None:
    asked = package.tasks[f"{OURS}.analyze_rank"].container.resources
    # flyte-core: limits.memory 1Gi, cpu 2
    for each in (asked.requests, asked.limits):
        assert {(one.name, one.value) for one in each} == {(1, "1"), (3, "1Gi")}


def test_secrets_are_where_they_were_asked_for_and_nowhere_else(package: Package) -> None:
    wanted = {
        ("sameshot", "access-key-id", "AWS_ACCESS_KEY_ID"),
        ("sameshot", "secret-access-key", "AWS_SECRET_ACCESS_KEY"),
    }
    for name, task in package.tasks.items():
        secrets = {(each.group, each.key, each.env_var) for each in task.security_context.secrets}
        assert secrets == (wanted if name.startswith(EXAMPLE.stem) else set()), name


# -- workflows


@pytest.mark.parametrize(
    ("workflow", "concurrency"),
    [("sameshot_flyte.flyte1.workflow.profile_job", 8), (f"{EXAMPLE.stem}.profile_on_demand", 16)],
)
def test_ranks_are_mapped_so_that_one_is_enough(package: Package, workflow: str, concurrency: int) -> None:
    node = nodes(package, workflow)["map"]
    assert node.array_node.parallelism == concurrency
    ratio = node.array_node.min_success_ratio
    # propeller: ceil(ratio × shards), of at most 64
    assert {ranks: -(-ratio * ranks // 1) for ranks in (1, 2, 63, 64)} == {1: 1, 2: 1, 63: 1, 64: 1}
    bound = {each.var: each.binding for each in node.inputs}
    assert bound["shard"].promise.attr_path[0].string_value == "shards"
    assert bound["manifest_sha256"].promise.attr_path[0].string_value == "manifest_sha256"
    name = node.array_node.node.task_node.reference_id.name
    outputs = package.tasks[name].interface.outputs.variables["o0"].type
    kinds = {each.simple for each in outputs.collection_type.union_type.variants}
    assert kinds == {3, 0}  # a text, or nothing of a rank that failed


def test_what_is_overridden_on_the_map_goes_to_its_tasks(package: Package) -> None:
    node = nodes(package, f"{EXAMPLE.stem}.profile_on_demand")["map"].array_node.node
    assert {each.value for each in node.task_node.overrides.resources.limits} == {"2", "8Gi"}


def test_reduce_comes_after_the_map_and_compare_after_reduce(package: Package) -> None:
    found = nodes(package, "sameshot_flyte.flyte1.workflow.profile_job")
    assert set(found) == {"capture", "map", "reduce", "compare"}
    assert found["map"].id in found["reduce"].upstream_node_ids
    assert found["reduce"].id in found["compare"].upstream_node_ids


# -- launch plans


def test_every_option_of_a_capture_is_an_input_of_the_workflow_with_the_same_default(package: Package) -> None:
    plan = package.plans["sameshot_flyte.flyte1.workflow.profile_job"]
    parameters = plan.spec.default_inputs.parameters
    assert {name for name, each in parameters.items() if each.required} == {"address", "results"}
    found = defaults(plan)
    for name, (_, default) in INPUTS.items():
        assert name in parameters
        assert default is ... or found[name] == default
    assert found["threshold"] < 0
    for name, each in parameters.items():  # what a form says beside its field
        assert len(each.var.description) > len(name), name


def test_the_schedule_has_all_that_it_needs_and_everything_can_be_changed(package: Package) -> None:
    plan = package.plans["profile_bert_nightly"]
    assert plan.spec.entity_metadata.schedule.cron_schedule.schedule == "0 3 * * *"
    assert plan.spec.workflow_id.name == "sameshot_flyte.flyte1.workflow.profile_job"
    found = defaults(plan)
    assert not any(each.required for each in plan.spec.default_inputs.parameters.values())
    assert not plan.spec.fixed_inputs.literals
    assert (found["duration"], found["if_unavailable"], found["threshold"]) == ("5s", "skip", 0.1)
    assert found["address"] == "bert-coordinator.training.svc:7000"


# -- what the pods of these tasks do


def literal(value: Any) -> Any:
    kind = list[str] if isinstance(value, list) else type(value)
    context = FlyteContextManager.current_context()
    return TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind)).to_flyte_idl()


class Pod:
    """One container of a task as a back end would start it, in a folder with the user's file."""

    def __init__(
        self, package: Package, task: str, folder: Path, inputs: Mapping[str, Any], store: str = "", **more: str
    ) -> None:
        folder.mkdir()
        self.outputs = folder / "outputs"
        template = package.tasks[task]
        literals = {name: literal(value) for name, value in inputs.items()}
        (folder / "inputs.pb").write_bytes(LiteralMap(literals=literals).SerializeToString())
        places = {
            "{{.input}}": folder / "inputs.pb",
            "{{.outputPrefix}}": f"{store or folder}/outputs",
            "{{.rawOutputDataPrefix}}": f"{store or folder}/raw",
            "{{.checkpointOutputPrefix}}": folder / "checkpoints",
            "{{.prevCheckpointPrefix}}": '""',
        }
        args = [str(places.get(each, each)) for each in template.container.args]
        told = environment(folder) | {"BATCH_JOB_ARRAY_INDEX_VAR_NAME": "WHICH", "WHICH": "1"} | more
        done = subprocess.run(
            [BIN / args[0], *args[1:]], cwd=package.folder, env=told, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr

    @property
    def error(self) -> ContainerError:
        return ErrorDocument.FromString((self.outputs / "error.pb").read_bytes()).error

    @property
    def literals(self) -> Mapping[str, Any]:
        return LiteralMap.FromString((self.outputs / "outputs.pb").read_bytes()).literals


@pytest.fixture
def captured(tmp_path: Path) -> dict[str, Any]:
    manifest = archive(tmp_path / "archive", GlooJob(seed=1, late={2: 30.0}).traces())
    digest = decode(manifest.read_bytes()).sha256
    return {"manifest_uri": str(manifest), "manifest_sha256": digest, "results": str(tmp_path / "results")}


@pytest.mark.parametrize("module", [OURS, EXAMPLE.stem])
def test_a_pod_finds_its_task_and_leaves_the_report_as_deck(
    package: Package, captured: dict[str, Any], tmp_path: Path, module: str
) -> None:
    more = {
        "min_ranks": 0, "history": True, "trained_image": "", "commit": "", "fetch_pattern": "", "workers": 0,
    }  # fmt: skip
    pod = Pod(package, f"{module}.analyze", tmp_path / "pod", captured | more)
    report = next((tmp_path / "results").rglob("report.html")).read_text()
    assert (pod.outputs / "deck.html").read_text() == report
    analysis = Literal.from_flyte_idl(pod.literals["analysis"])
    found = TypeEngine.to_python_value(FlyteContextManager.current_context(), analysis, Analysis)
    assert (found.analysed, found.late) == (4, "2")


def mapped(package: Package, module: str) -> str:
    (name,) = (each for each in package.tasks if each.startswith(f"{module}.map_"))
    return name


@pytest.mark.parametrize("module", [OURS, EXAMPLE.stem])
def test_each_pod_of_the_map_takes_its_own_shard(
    package: Package, captured: dict[str, Any], tmp_path: Path, module: str
) -> None:
    inputs = captured | {"shard": ["0/4", "1/4", "2/4", "3/4"], "fetch_pattern": ""}
    pod = Pod(package, mapped(package, module), tmp_path / "pod", inputs)
    assert pod.literals["o0"].scalar.primitive.string_value == "1/4"
    assert {path.name for path in (tmp_path / "results").rglob("*.json")} == {"1.json"}


def test_of_a_pod_that_failed_flyte_knows_whether_another_may_do_better(
    package: Package, captured: dict[str, Any], tmp_path: Path
) -> None:
    inputs = captured | {"shard": ["0/4", "1/4"], "fetch_pattern": ""}
    wrong = Pod(package, mapped(package, OURS), tmp_path / "wrong", inputs | {"manifest_sha256": "0" * 64})
    assert wrong.error.kind == ContainerError.NON_RECOVERABLE
    assert captured["manifest_sha256"] in wrong.error.message
    (tmp_path / "results").write_text("a file, where a folder should be")
    busy = Pod(package, mapped(package, OURS), tmp_path / "busy", inputs)
    assert busy.error.kind == ContainerError.RECOVERABLE
    assert "results" in busy.error.message


def test_too_few_ranks_fail_the_pod_for_good_and_the_report_is_its_deck(
    package: Package, captured: dict[str, Any], tmp_path: Path
) -> None:
    inputs = captured | {"shard": ["0/4", "1/4", "2/4", "3/4"], "fetch_pattern": ""}
    Pod(package, mapped(package, OURS), tmp_path / "map", inputs)
    more = {
        "analysed": ["1/4"], "min_ranks": 2, "history": True, "trained_image": "", "commit": "",
    }  # fmt: skip
    pod = Pod(package, f"{OURS}.reduce", tmp_path / "pod", captured | more)
    assert pod.error.kind == ContainerError.NON_RECOVERABLE
    assert "at least 2 are needed" in pod.error.message
    assert "1 of 4" in (pod.outputs / "deck.html").read_text()


def test_a_deck_in_an_object_store_is_what_browsers_show_and_do_not_download(
    package: Package, captured: dict[str, Any], tmp_path: Path
) -> None:
    more = {
        "min_ranks": 0, "history": True, "trained_image": "", "commit": "", "fetch_pattern": "", "workers": 0,
    }  # fmt: skip
    with moto_server() as endpoint:
        bucket = make_bucket(endpoint, "flyte")
        Pod(
            package, f"{OURS}.analyze", tmp_path / "pod", captured | more, "s3://flyte/run",
            FLYTE_AWS_ENDPOINT=endpoint, FLYTE_AWS_ACCESS_KEY_ID="test", FLYTE_AWS_SECRET_ACCESS_KEY="test",
            AWS_REGION="us-east-1",
        )  # fmt: skip
        deck = bucket.get_object(Bucket="flyte", Key="run/outputs/deck.html")
        assert deck["ContentType"] == "text/html"
        assert deck["Body"].read() == next((tmp_path / "results").rglob("report.html")).read_bytes()
        kept = [each["Key"] for each in bucket.list_objects_v2(Bucket="flyte", Prefix="run/raw/")["Contents"]]
        assert sum(key.endswith("/report.html") for key in kept) == 1
        assert sum(key.endswith(".parquet") or "00000" in key for key in kept) == 1
