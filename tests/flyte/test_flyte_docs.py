"""docs/flyte.md says what the tasks take and give, how a capture stands, and commands that there are."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyte2_lab import User

from sameshot.model import CaptureState
from sameshot.steps.results import CaptureResult
from sameshot_flyte import polled, references, work
from sameshot_flyte.asked import INPUTS, Place
from sameshot_flyte.phases import NOT_BEGUN, UNDER_WAY, Phase, ended, refused

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "flyte.md").read_text()
PROSE = " ".join(PAGE.split())
README = (ROOT / "README.md").read_text()
EXAMPLES = ROOT / "plugins" / "flyte" / "examples"
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OF_FLYTEKIT = [text for text in PYTHON if "flytekit" in text]
OF_FLYTE2 = [text for text in PYTHON if "import flyte\n" in text]
COMMANDS = [
    line.partition("#")[0].strip()
    for text in (PAGE, README[README.index("## From Flyte") : README.index("## From Kubeflow")])
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE)
]


def table(after: str) -> list[list[str]]:
    """The rows of the first table after this text, without its head."""
    lines = PAGE[PAGE.index(after) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    body: list[list[str]] = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        body.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return body


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# -- tables


def test_every_input_is_listed_with_its_default() -> None:
    listed: dict[str, Any] = {}
    for names, default, _ in table("## Inputs"):
        for name in quoted(names):
            listed[name] = ... if default == "required" else ast.literal_eval(default.strip("`"))
    assert listed == {name: default for name, (_, default) in INPUTS.items()}
    for name, (kind, default) in INPUTS.items():
        assert default is ... or type(listed[name]) is kind, name


def test_the_fields_of_outputs_are_listed_in_their_order() -> None:
    listed = {quoted(name)[0]: quoted(names) for name, names in table("## Outputs")}
    assert set(listed) == {"Capture", "Analysis", "Comparison"}
    for name, names in listed.items():
        assert names == [field.name for field in fields(getattr(references, name))], name


def test_the_columns_of_the_table_of_ranks_are_listed_with_their_types() -> None:
    listed = {name: kind for names, kind, _ in table("a table with one row for each rank") for name in quoted(names)}
    assert listed == {name: kind.__name__ for name, kind in work.ROWS.items()}
    assert list(listed) == list(work.ROWS)


def test_the_phases_of_captures_that_are_not_over_are_those_of_the_table() -> None:
    (begun, phase), *others = table("## How a capture stands")
    assert begun.startswith("has not begun")
    assert quoted(phase) == [NOT_BEGUN.value]
    listed = {}
    for states, phase in others:
        for state in re.findall(r"\b[A-Z]+\b", states):
            listed[CaptureState(state)] = Phase(quoted(phase)[0])
    assert listed == dict(UNDER_WAY)


def test_the_phases_in_the_end_are_those_of_the_table() -> None:
    rows = table("and in the end, by the")
    listed: dict[tuple[int, bool], Phase] = {}
    for code, capture, phase in rows:
        listed[int(code), "input `timeout` had passed" in capture] = Phase(quoted(phase)[0])
    assert len(listed) == len(rows)
    for (code, late), phase in listed.items():
        assert ended(CaptureResult(exit_code=code, timed_out=late)) is phase, (code, late)
        if code and not late:
            assert refused(code) is phase, code
    steps = (ROOT / "docs" / "steps.md").read_text()
    steps = steps[steps.index("| exit code | means") : steps.index("## capture")]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", steps, re.MULTILINE)}
    assert {code for code, _ in listed} == codes


def test_the_request_keys_are_those_that_are_made() -> None:
    at = ("ml", "production", "f3a9b2")
    assert f"`{Place(*at, 'n0').request_key}`" in PAGE
    nested = Place(*at, "n2.n0").request_key
    assert f"`…/{'/'.join(nested.split('/')[-2:])}`" in PAGE


def test_numbers_are_those_of_the_code() -> None:
    from sameshot.steps.finish import CANCEL_ALLOWANCE_S
    from sameshot.steps.glance import ANSWER_S

    create = polled._BEGIN_S + polled.LAST_WORD_S
    delete = polled._CANCEL_S + ANSWER_S  # the archive is asked, too
    assert max(create, polled._GET_S, delete) == 8.5
    assert "A call of ours ends within 8.5 s" in PROSE
    assert (polled.PATIENCE_S, CANCEL_ALLOWANCE_S) == (30, 30)
    assert "Where none has begun for 30 s" in PROSE
    assert "has 30 s to be confirmed" in PROSE


def test_settings_of_tasks_are_those_of_the_code() -> None:
    analysis = pytest.importorskip("sameshot_flyte.flyte1.analysis", reason="flytekit 1.16 ends at Python 3.12")
    from sameshot.steps.places import MOST_SHARDS
    from sameshot_flyte.flyte1 import task, workflow

    assert f"`retries` say ({task.RETRIES}, so three attempts)" in PROSE
    assert f"how many ranks are read at once ({workflow.CONCURRENCY})" in PROSE
    assert f"`min_success_ratio` is one of {MOST_SHARDS}" in PROSE
    (row,) = (row for row in table("## The two faces") if row[0] == "retries of the analysis")
    assert row[1] == str(analysis.RETRIES)
    assert (analysis.RESOURCES.cpu, analysis.RESOURCES.mem) == ("1", "1Gi")
    assert "a task asks for 1 CPU and 1 GiB" in PROSE


@pytest.mark.full
def test_settings_of_flyte_2_are_those_of_the_code(tmp_path: Path) -> None:
    code = """
from sameshot_flyte.flyte2 import workflow
for each in (workflow.RESOURCES, workflow.RESOURCES_OF_THE_JOB):
    print(*each.cpu, *each.memory)
print(workflow.IMAGE, workflow.RETRIES.count)
"""
    done = User(tmp_path).command("python", "-c", code)
    large, small, image = done.stdout.splitlines()
    assert (large, small) == ("1 4 2Gi 8Gi", "250m 1 512Mi 1Gi"), done.stderr
    assert "without more 1 to 4 CPU and 2 to 8 GiB." in PROSE
    assert "`resources_of_the_job`: without more 250m to 1 CPU and 512 MiB to 1 GiB." in PROSE
    name, retries = image.split()
    assert f"What it has without one, `{name}`," in PROSE
    (row,) = (row for row in table("## The two faces") if row[0] == "retries of the analysis")
    assert row[2].startswith(f"{retries}, after")


# -- names, files, links


def test_public_names_are_those_of_the_package() -> None:
    import sameshot_flyte

    said = PAGE[PAGE.index("`SameshotCapture` (the task type)") : PAGE.index("have the same names in both")]
    assert set(quoted(said)) == {*sameshot_flyte.__all__} - {"Analysis", "Capture", "Comparison"}


def test_extras_and_entry_points_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {each for names in re.findall(r"sameshot\[([\w,]+)\]", PAGE) for each in names.split(",")}
    assert {"flyte", "flyte2", "local"} <= named <= set(project["optional-dependencies"])
    assert project["entry-points"]["flytekit.plugins"] == {"sameshot": "sameshot_flyte.flyte1"}
    assert project["entry-points"]["flyte.connectors"] == {"sameshot": "sameshot_flyte.flyte2"}


def test_the_configuration_is_yaml_and_gives_the_task_type_to_the_connector() -> None:
    (objects, back_end) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    deployment, service = yaml.safe_load_all(objects)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert container["readinessProbe"]["grpc"]["port"] == port["containerPort"] == service["spec"]["ports"][0]["port"]
    assert deployment["spec"]["template"]["metadata"]["labels"] == service["spec"]["selector"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    told = yaml.safe_load(back_end)["plugins"]["connector-service"]
    assert told["supportedTaskTypes"] == ["sameshot_capture"]
    assert told["connectors"][told["connectorForTaskTypes"]["sameshot_capture"]]["endpoint"].startswith(
        f"dns:///{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    )


def test_the_image_is_not_run_as_root_and_leaves_the_command_to_flyte() -> None:
    (image,) = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
    assert int(re.findall(r"^USER (\d+)$", image, re.MULTILINE)[0]) > 0
    assert "ENTRYPOINT" not in image


def test_links_within_the_documentation_lead_somewhere() -> None:
    docs = ROOT / "docs"
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]*)#?([^)]*)\)", PAGE):
        path = (docs / target) if target else docs / "flyte.md"
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, (target, anchor)
    assert "(docs/flyte.md)" in README


# -- examples


@pytest.mark.parametrize("at", range(len(OF_FLYTEKIT)))
def test_each_example_of_flytekit_is_a_module_of_tasks(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
    from flytekit import LaunchPlan
    from flytekit.core.context_manager import FlyteEntities
    from flytekit.core.workflow import WorkflowBase

    from sameshot_flyte import SameshotCapture

    monkeypatch.setattr(FlyteEntities, "entities", [*FlyteEntities.entities])
    monkeypatch.setattr(LaunchPlan, "CACHE", {**LaunchPlan.CACHE})
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"page_of_flytekit_{at}"
    (tmp_path / f"{name}.py").write_text(OF_FLYTEKIT[at])
    try:
        module = importlib.import_module(name)
        kinds = (WorkflowBase, LaunchPlan, SameshotCapture)
        made = [each for each in vars(module).values() if isinstance(each, kinds)]
        assert made
        for each in made:
            if isinstance(each, WorkflowBase) and each.name.startswith(name):
                each.compile()
                assert "capture" in [node.flyte_entity.name.rpartition(".")[2] for node in each.nodes]
    finally:
        sys.modules.pop(name, None)


def test_all_of_the_python_is_of_one_sdk_or_the_other() -> None:
    assert sorted(OF_FLYTEKIT + OF_FLYTE2) == sorted(PYTHON)
    assert OF_FLYTE2


# -- commands


def test_the_files_that_commands_name_are_the_examples() -> None:
    named = {name for command in COMMANDS for name in re.findall(r"\b(?:flyte2|flytekit)_profile\b", command)}
    assert named == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.full
@pytest.mark.timeout(300)
def test_pyflyte_knows_the_commands_and_their_options(tmp_path: Path) -> None:
    pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
    for path in EXAMPLES.glob("flytekit_*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    environment = {**os.environ, "HOME": str(tmp_path), "COLUMNS": "200"}

    def told(*words: str) -> str:
        argv = [Path(sys.executable).with_name("pyflyte"), *words, "--help"]
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    seen = _known(
        "pyflyte",
        {
            ("run",): told("run"),
            ("run", "profile_on_demand"): told("run", "flytekit_profile.py", "profile_on_demand"),
            ("run", "analyze"): told("run", "flytekit_profile.py", "analyze"),
            ("run", "profile_bert_nightly"): told("run", "flytekit_profile.py", "nightly"),
            ("package",): told() + told("package"),
        },
    )
    assert seen == {"run profile_on_demand", "run analyze", "run profile_bert_nightly", "package"}
    for words in (("serve", "connector"), ("launchplan",), ("execution",), ("register",), ("run", "remote-launchplan")):
        assert f"pyflyte {' '.join(words)}" in PROSE or words[0] == "run"
        told(*words)
    assert "--activate-launchplans" in told("register")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_flyte_knows_the_commands_and_their_options_and_the_examples_of_flyte_2_are_deployed(tmp_path: Path) -> None:
    user = User(tmp_path, COLUMNS="200")
    user.writes("flyte2_profile.py", (EXAMPLES / "flyte2_profile.py").read_text())

    def told(*words: str) -> str:
        done = user.command("flyte", *words, "--help")
        assert done.returncode == 0, done.stderr
        return done.stdout

    inputs = told("run", "flyte2_profile.py", "profile_job")
    seen = _known(
        "flyte",
        {("run",): told("run"), ("run", "profile_job"): inputs, ("run", "profiling.profile_job"): inputs},
    )
    assert seen == {"run profile_job", "run profiling.profile_job"}
    assert "--recover" in told("rerun")
    told("abort", "run")
    for at, text in enumerate(OF_FLYTE2):
        user.writes(f"page{at}.py", text)
        argv = ["--endpoint", "dns:///127.0.0.1:9", "--insecure", "deploy", "--dry-run", "-p", "p", "-d", "d"]
        done = user.command("flyte", *argv, f"page{at}.py", "env")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "small.small_job" in done.stdout
        assert "profiling.analyze" in done.stdout


def _known(program: str, helps: dict[tuple[str, ...], str]) -> set[str]:
    """The commands of the page that this program was given, of which each option is known to the help of some part."""
    seen = set()
    for command in COMMANDS:
        words = command.split()
        if words[0] != program or "deploy" in words:
            continue
        parts = {part for part in helps if set(part) <= set(words)}
        assert parts, command
        for option in re.findall(r"(?<= )-{1,2}[\w-]+", command):
            known = any(re.search(rf"(?<![\w-]){option}(?![\w-])", helps[part]) for part in parts)
            assert known, (command, option)
        seen.add(" ".join(max(parts, key=len)))
    return seen
