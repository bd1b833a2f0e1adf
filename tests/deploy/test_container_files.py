"""The two container files: what can be seen without an engine, and their commands in an environment made that way."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from container_file import Stage, stages_of
from kubernetes_objects import kustomized, pod_templates

import sameshot
from sameshot.cli.main import application
from sameshot.steps.image import IMAGE

REPO = Path(__file__).parents[2]
CLUSTER, STEPS = (REPO / "deploy/containers" / f"{name}.Containerfile" for name in ("cluster", "steps"))
TAGS = {CLUSTER: f"sameshot/cluster:{sameshot.__version__}", STEPS: IMAGE}
both = pytest.mark.parametrize("path", [CLUSTER, STEPS], ids=lambda path: path.stem)


def built(path: Path) -> tuple[Stage, Stage]:
    build, final = stages_of(path)
    return build, final


@both
def test_all_that_is_copied_is_there(path: Path) -> None:
    build, final = built(path)
    for origin, sources, _ in build.copies:
        assert origin is None
        for source in sources:
            assert (REPO / source).exists(), source
    assert [(origin, sources) for origin, sources, _ in final.copies] == [("build", ["/opt/sameshot"])]
    assert build.name == "build"


@both
def test_the_build_context_has_all_that_a_wheel_is_made_of(path: Path) -> None:
    """hatch reads these from pyproject.toml; what it misses is an error in the middle of a build."""
    build, _ = built(path)
    copied = {source for _, sources, _ in build.copies for source in sources}
    text = (REPO / "pyproject.toml").read_text()
    packages = re.search(r"^\[tool\.hatch\.build\.targets\.wheel\]\npackages = \[(.*)\]", text, re.MULTILINE)
    assert packages is not None
    needed = {each.split("/")[0] for each in re.findall(r'"([^"]+)"', packages[1])} | {"README.md", "LICENSE"}
    assert needed | {"pyproject.toml", "constraints.txt"} == copied


@both
def test_it_runs_as_a_user_by_number_who_is_not_root(path: Path) -> None:
    _, final = built(path)
    assert final.user is not None
    assert final.user.isdigit()
    assert int(final.user) > 0
    names = [name for name, _ in final.instructions]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert final.entrypoint == ["sameshot"]


@both
def test_nothing_is_installed_at_run_time(path: Path) -> None:
    _, final = built(path)
    assert final.all("RUN") == []
    assert final.environment["PATH"].startswith("/opt/sameshot/bin:")
    assert final.environment["PYTHONDONTWRITEBYTECODE"] == "1"  # the root file system is read-only


@both
def test_the_base_is_one_python_in_both_stages_that_of_the_constraints(path: Path) -> None:
    build, final = built(path)
    assert build.base == final.base  # a virtual environment points at the interpreter that made it
    match = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim-[a-z]+", build.base)
    assert match is not None, build.base  # a version and a distribution, never `latest`
    assert match[1] == "3.11"
    assert "constraint constraints.txt" in " ".join(build.all("RUN"))


@both
def test_it_says_its_own_tag(path: Path) -> None:
    assert f"-f {path.relative_to(REPO)} -t {TAGS[path]} " in path.read_text()


def test_every_command_line_in_the_yaml_is_one_of_ours() -> None:
    """Parsed by the real command line, with the variables that the kubelet would put in."""
    import typer

    seen = set()
    for overlay in ("cluster-wide", "namespaces", "dev"):
        for _, template in pod_templates(kustomized(REPO / "deploy/overlays" / overlay)):
            for container in template["spec"]["containers"]:
                assert "command" not in container  # the image's entry point, and nobody else's
                words = [re.sub(r"\$\((\w+)\)", r"\1", word) for word in container["args"]]
                names = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
                assert names <= {each["name"] for each in container.get("env", [])}
                group = typer.main.get_command(application(words))
                command = getattr(group, "commands", {}).get(words[0], group)
                command.make_context(words[0], words[1:] if command is not group else words)
                seen.add(words[0])
    assert seen == {"agent", "webhook", "operator", "gc"}


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("path", "commands"),
    [
        (CLUSTER, ["agent", "coordinator", "operator", "webhook", "gc", "arm", "capture", "analyze", "status"]),
        (STEPS, ["step", "step capture", "step analyze-rank", "step reduce", "step compare", "step cancel"]),
    ],
    ids=["cluster", "steps"],
)
def test_its_commands_run_in_an_environment_made_the_same_way(path: Path, commands: list[str], tmp_path: Path) -> None:
    """The install line of the file itself, in a fresh environment, from a copy of what the file copies."""
    build, final = built(path)
    source, place = tmp_path / "src", tmp_path / "venv"
    source.mkdir()
    for _, names, _ in build.copies:
        for name in names:
            if (REPO / name).is_dir():
                shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(REPO / name, source / name)
    venv.create(place, with_pip=True)
    (line,) = build.all("RUN")
    steps = [shlex.split(step) for step in line.split("&&")]
    assert steps[0] == ["python", "-m", "venv", "/opt/sameshot"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for step in steps[1:]:
        words = [word.replace("/opt/sameshot", str(place)) for word in step]
        if words[1] == "install":
            words = [word for word in words if word != "--no-cache-dir"]
        done = subprocess.run(words, cwd=source, env=environment, capture_output=True, text=True)
        if done.returncode and re.search(r"NewConnectionError|No matching distribution|Temporary failure", done.stderr):
            pytest.skip(f"the package index can't be reached: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr[-3000:]
    shutil.rmtree(source)  # as in the final stage
    environment |= {name: value for name, value in final.environment.items() if name != "PATH"}
    unprivileged = ["setpriv", "--reuid", str(final.user), "--regid", str(final.user), "--clear-groups"]
    if os.geteuid() or shutil.which("setpriv") is None or not _readable(tmp_path):
        unprivileged = []
    for command in commands:
        done = subprocess.run(
            [*unprivileged, place / "bin" / final.entrypoint[0], *command.split(), "--help"],
            env=environment, capture_output=True, text=True, cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        assert "Usage:" in done.stdout
    # What a command imports only when it runs.
    modules = {
        CLUSTER: ["sameshot.agent.server", "sameshot.agent.poddirs", "sameshot.agent.metrics",
                  "sameshot.coordinator.cluster", "sameshot.coordinator.metrics", "sameshot.operator.run",
                  "sameshot.operator.metrics", "sameshot.webhook.server", "sameshot.arm.kinds", "sameshot.gc.sweep",
                  "sameshot.storage.uploads", "sameshot.analysis.run", "sameshot.client.cluster"],
        STEPS: ["sameshot.steps.analyze", "sameshot.analysis.run", "sameshot.storage.s3"],
    }[path]  # fmt: skip
    done = subprocess.run(
        [place / "bin/python", "-c", f"import {', '.join(modules)}; import sys; print(sys.version_info[:2])"],
        env=environment, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list((place / "bin").glob("pip*"))
    assert sys.version_info[:2] >= (3, 11)


def _readable(path: Path) -> bool:
    """Whether other users get there."""
    return all(each.stat().st_mode & 0o005 == 0o005 for each in [path, *path.parents])
