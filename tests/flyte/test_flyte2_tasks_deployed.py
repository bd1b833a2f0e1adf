"""What `flyte deploy` would send of the example, without a back end, and containers started just as that says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyte2_lab import User
from gloo_job import GlooJob, archive

from sameshot.manifest import decode
from sameshot_flyte.asked import INPUTS
from sameshot_flyte.work import ROWS

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "plugins" / "flyte" / "examples" / "flyte2_profile.py"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    shutil.copy(EXAMPLE, user.work)
    yield user
    user.leaves()


@pytest.fixture
def specs(user: User) -> dict[str, Any]:
    """Task → its `TaskSpec`."""
    found: dict[str, Any] = user.drives("deploy", module="flyte2_profile")["specs"]
    return found


def variables(spec: dict[str, Any], side: str) -> dict[str, Any]:
    return {each["key"]: each["value"]["type"] for each in spec["taskTemplate"]["interface"][side]["variables"]}


def test_the_example_deploys_its_tasks_and_the_capture_as_a_task_of_the_connector(specs: dict[str, Any]) -> None:
    kinds = {name: spec["taskTemplate"]["type"] for name, spec in specs.items()}
    ours = ("analyze_rank", "reduce", "analyze", "compare", "profile_job")
    assert kinds == {f"profiling.{name}": "python" for name in ours} | {"sameshot_capture": "sameshot_capture"}
    assert "image" not in specs["sameshot_capture"]["taskTemplate"].get("container", {}), "it takes no pod"
    assert variables(specs["sameshot_capture"], "inputs").keys() == INPUTS.keys()


def test_only_analysis_is_cached_and_only_by_what_makes_a_difference(specs: dict[str, Any]) -> None:
    said = {name.removeprefix("profiling."): spec["taskTemplate"]["metadata"] for name, spec in specs.items()}
    cached = {name: told["cacheIgnoreInputVars"] for name, told in said.items() if told.get("discoverable")}
    assert cached == {
        "analyze_rank": ["manifest_uri"],
        "reduce": ["manifest_uri"],
        "analyze": ["manifest_uri", "workers"],
    }
    for name, ignored in cached.items():
        assert set(ignored) <= variables(specs[f"profiling.{name}"], "inputs").keys()


def test_reports_retries_and_what_a_container_is_given_are_as_written(specs: dict[str, Any]) -> None:
    told = {name: spec["taskTemplate"] for name, spec in specs.items()}
    shown = {name for name, task in told.items() if task["metadata"].get("generatesDeck")}
    assert shown == {f"profiling.{name}" for name in ("reduce", "analyze", "compare", "profile_job")}
    retried = {name: task["metadata"].get("retries", {}).get("retries", 0) for name, task in told.items()}
    assert retried.pop("profiling.profile_job") == 0, "its tasks are retried, and it by Flyte where its node is lost"
    assert set(retried.values()) == {2}
    for name in retried.keys() - {"sameshot_capture"}:
        task = told[name]
        assert task["metadata"]["retries"]["backoff"] == {"base": "10s", "factor": 3.0, "cap": "120s"}
        assert task["container"]["image"] == "registry.example.com/sameshot-flyte2:1"
        secrets = {each["envVar"]: each["key"] for each in task["securityContext"]["secrets"]}
        assert secrets == {
            "SAMESHOT_RESULTS_AWS_ACCESS_KEY_ID": "results-key-id",
            "SAMESHOT_RESULTS_AWS_SECRET_ACCESS_KEY": "results-key",
        }


def requested(spec: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in spec["taskTemplate"]["container"]["resources"]["requests"]}


def test_the_job_waits_in_a_pod_that_is_smaller_than_those_that_read_traces(user: User, specs: dict[str, Any]) -> None:
    asked = {name.removeprefix("profiling."): requested(spec) for name, spec in specs.items() if "." in name}
    assert asked.pop("profile_job") == {"CPU": "250m", "MEMORY": "512Mi"}
    assert list(asked.values()) == [{"CPU": "1", "MEMORY": "2Gi"}] * 4
    user.writes(
        "mine.py",
        "import flyte\nfrom sameshot_flyte.flyte2 import tasks\n"
        "TASKS = tasks('mine', resources_of_the_job=flyte.Resources(cpu=2, memory='3Gi'))\nenv = TASKS.env\n",
    )
    specs = user.drives("deploy", module="mine")["specs"]
    assert requested(specs["mine.profile_job"]) == {"CPU": "2", "MEMORY": "3Gi"}
    assert requested(specs["mine.reduce"]) == {"CPU": "1", "MEMORY": "2Gi"}


def test_everything_about_a_capture_is_an_input_of_the_job_and_outputs_are_typed(specs: dict[str, Any]) -> None:
    profile, reduce = specs["profiling.profile_job"], specs["profiling.reduce"]
    inputs = variables(profile, "inputs")
    assert INPUTS.keys() | {"results", "threshold", "concurrency"} <= inputs.keys()
    # What each output is, as Flyte has it: a dataclass, a file, a table with the columns by name.
    outputs = variables(reduce, "outputs")
    assert outputs["analysis"]["metadata"]["title"] == "Analysis"
    assert "blob" in outputs["report"]
    columns = {
        each["name"]: each["literalType"]["simple"] for each in outputs["ranks"]["structuredDatasetType"]["columns"]
    }
    assert columns == {name: "INTEGER" if kind is int else "STRING" for name, kind in ROWS.items()}
    assert {"capture", "analysis", "comparison", "report", "ranks"} <= variables(profile, "outputs").keys()


def test_the_schedule_is_for_the_job_alone_and_gives_every_input(user: User, specs: dict[str, Any]) -> None:
    told = user.drives("triggers", module="flyte2_profile")["triggers"]
    assert told.keys() == {"profiling.profile_job"}
    (trigger,) = told["profiling.profile_job"]
    assert trigger["automationSpec"]["schedule"]["cron"] == {"expression": "0 2 * * *", "timezone": "UTC"}
    given = {each["name"]: each["value"]["scalar"]["primitive"] for each in trigger["spec"]["inputs"]["literals"]}
    assert given.keys() == variables(specs["profiling.profile_job"], "inputs").keys()
    assert given["if_unavailable"] == {"stringValue": "skip"}
    assert given["min_ranks"] == {"integer": "0"}  # not said in the example: the task's own


def test_tasks_of_ones_own_are_the_only_ones_there(user: User) -> None:
    """`flyte deploy --all` deploys all that is loaded: two environments of a name would be refused, and a second set of
    tasks surprise."""
    code = "import sys, flyte2_profile; print('sameshot_flyte.flyte2.ready' in sys.modules)"
    done = user.command("python", "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_the_tasks_as_they_come_deploy_and_are_what_the_package_names(user: User) -> None:
    user.writes("mine.py", "from sameshot_flyte.flyte2 import env")
    specs = user.drives("deploy", module="mine")["specs"]
    args = specs["sameshot.profile_job"]["taskTemplate"]["container"]["args"]
    assert args[args.index("--resolver") + 2 :] == [
        *("module", "sameshot_flyte.flyte2.ready", "environment", "sameshot", "task", "profile_job")
    ]
    names = "analyze_rank, reduce, analyze, compare, profile_job"
    code = f"from sameshot_flyte import {names}; print(*(each.name for each in ({names})))"
    done = user.command("python", "-c", code)
    assert done.stdout.split() == [f"sameshot.{name}" for name in names.split(", ")], done.stderr


SCRIPT = """
import pathlib
import flyte
from sameshot_flyte.flyte2 import tasks

{made}

if __name__ == "__main__":
    here = pathlib.Path.cwd()
    flyte.init(endpoint="dns:///127.0.0.1:9", insecure=True, project="p", domain="d", org="o", root_dir=here)
    (plan,) = flyte.deploy(env, dry_run=True, version="v1")
    specs = [each.deployed_task.task_template for each in plan.envs["mine"].deployed_entities]
    print(*specs[0].container.args[-6:])
"""


def test_a_script_that_deploys_itself_is_found_by_the_name_of_its_file(user: User) -> None:
    (user.work / "jobs").mkdir()
    user.writes("jobs/nightly.py", SCRIPT.format(made="TASKS = tasks('mine')\nenv = TASKS.env"))
    done = user.command("python", "jobs/nightly.py")
    assert done.stdout.split() == ["module", "jobs.nightly", "environment", "mine", "task", "analyze_rank"], done.stderr


def test_tasks_that_no_container_would_find_are_not_deployed(user: User) -> None:
    user.writes("nightly.py", SCRIPT.format(made="env = tasks('mine').env"))
    done = user.command("python", "nightly.py")
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "DeploymentError" in said
    assert "Keep what `tasks('mine', …)` returns in a variable of the module" in said


def refused(user: User, *argv: str, given: str = "") -> str:
    """What is said where nothing is deployed."""
    done = user.command("python", *argv, given=given)
    assert done.returncode != 0, done.stdout
    said = " ".join((done.stdout + done.stderr).split())
    assert "DeploymentError" in said
    return said


@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_tasks_that_stand_in_no_file_are_not_deployed(user: User, how: str) -> None:
    user.writes("other.py", "")  # with no file at all the SDK itself finds nothing to send
    code = SCRIPT.format(made="import other\nTASKS = tasks('mine')\nenv = TASKS.env")
    said = refused(user, "-c", code) if how == "-c" else refused(user, "-", given=code)
    assert "The tasks stand in the module '__main__', which is no file" in said


def test_tasks_in_a_file_that_is_not_sent_along_are_not_deployed(user: User) -> None:
    """In a folder that is on the path, as that of an editable install."""
    elsewhere = user.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "helper.py").write_text("from sameshot_flyte.flyte2 import tasks\nTASKS = tasks('mine')")
    made = f"import sys\nsys.path.append({str(elsewhere)!r})\nimport helper\nenv = helper.TASKS.env"
    user.writes("nightly.py", SCRIPT.format(made=made))
    said = refused(user, "nightly.py")
    assert f"The tasks stand in {elsewhere / 'helper.py'}, which is not below the root folder" in said


def test_two_environments_of_a_name_in_a_module_are_not_deployed(user: User) -> None:
    """A container would run the tasks of the first, with settings that are not its own."""
    user.writes("nightly.py", SCRIPT.format(made="OLD, TASKS = tasks('mine'), tasks('mine')\nenv = TASKS.env"))
    assert "keeps 2 that `tasks('mine', …)` returned" in refused(user, "nightly.py")
    user.writes("nightly.py", SCRIPT.format(made="TASKS = ALSO = tasks('mine')\nenv = TASKS.env"))
    done = user.command("python", "nightly.py")
    assert done.returncode == 0, "two names of the same: " + done.stderr


def test_a_function_that_makes_tasks_for_others_says_in_which_module_they_stand(user: User) -> None:
    user.writes(
        "company.py",
        "from sameshot_flyte.flyte2 import tasks\n"
        "def standard(name, **more):\n    return tasks(name, secrets=[], **more)\n",
    )
    made = "import company\nTASKS = company.standard('mine'{more})\nenv = TASKS.env"
    user.writes("nightly.py", SCRIPT.format(made=made.format(more="")))
    said = refused(user, "nightly.py")
    assert "The module company has no tasks of the environment mine" in said
    assert "pass on `module=`" in said
    user.writes("nightly.py", SCRIPT.format(made=made.format(more=", module='nightli'")))
    assert "module 'nightli', and none of that name is loaded" in refused(user, "nightly.py")
    user.writes("nightly.py", SCRIPT.format(made=made.format(more=", module=__name__")))
    done = user.command("python", "nightly.py")
    assert done.stdout.split() == ["module", "nightly", "environment", "mine", "task", "analyze_rank"], done.stderr


@pytest.mark.parametrize(
    ("wrong", "kind", "origin", "code"),
    [
        ({}, None, None, None),
        ({"manifest_sha256": "0" * 64}, "NON_RECOVERABLE", "USER", "VerificationFailed"),
        ({"results": "FILE/results"}, "RECOVERABLE", "USER", "StorageError"),
    ],
    ids=["sound", "another manifest", "a store that is not there"],
)
def test_a_container_finds_its_task_and_leaves_what_the_back_end_decides_by(
    user: User, specs: dict[str, Any], tmp_path: Path, wrong: dict[str, str], kind: str | None, origin: str, code: str
) -> None:
    """`a0` with the arguments of the spec, in an empty folder: it unpacks the code that was bundled, and runs the task.

    Marked as one of a cluster's workers, since these make no connection to a back end; they start no tasks.
    """
    manifest = archive(tmp_path / "archive", GlooJob(seed=1, late={2: 30.0}).traces())
    (tmp_path / "file").write_text("no folder")
    wrong = {name: value.replace("FILE", str(tmp_path / "file")) for name, value in wrong.items()}
    asked = {
        "manifest_uri": str(manifest),
        "manifest_sha256": decode(manifest.read_bytes()).sha256,
        "results": str(tmp_path / "results"),
        **wrong,
    }
    pod = tmp_path / "pod"
    (pod / "out").mkdir(parents=True)
    user.drives("write_inputs", module="flyte2_profile", task="analyze", inputs=asked, path=str(pod / "inputs.pb"))
    (user.work / EXAMPLE.name).rename(tmp_path / "gone.py")
    told = {
        "input": str(pod / "inputs.pb"),
        "outputPrefix": str(pod / "out"),
        "rawOutputDataPrefix": str(pod / "raw"),
        "checkpointOutputPrefix": str(pod / "checkpoint"),
        "prevCheckpointPrefix": "",
        "runName": "run",
        "actionName": "action",
    }
    argv = [
        re.sub(r"{{\.(\w+)}}", lambda place: told.get(place[1], place[0]), each)
        for each in specs["profiling.analyze"]["taskTemplate"]["container"]["args"]
    ]
    place = {
        "FLYTE_CLUSTERED_WORKER": "1",
        "FLYTE_INTERNAL_EXECUTION_PROJECT": "p",
        "FLYTE_INTERNAL_EXECUTION_DOMAIN": "d",
        "_U_ORG_NAME": "o",
        "_U_RUN_BASE": str(pod),
    }
    done = user.command(*argv, **place)
    ended = user.drives("read_ended", folder=str(pod / "out"))
    if kind is None:
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(ended["outputs"]) == ["analysis", "ranks", "report"]
        assert "srcdoc" in (pod / "out" / "report.html").read_text()
        return
    error = ended["error"]["error"]
    assert (error.get("kind", "NON_RECOVERABLE"), error["origin"], error["code"]) == (kind, origin, code)
    assert error["message"]
