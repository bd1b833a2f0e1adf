"""`sameshot arm` as people run it: what goes to standard output, what to standard error, and the exit code."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from arm_lab import FIXTURES, env_of, is_armed

from sameshot.arm.hookmap import hook_configmap
from sameshot.cli.main import invoke

JOB = str(FIXTURES / "job.yaml")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sameshot(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str, given: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = invoke(["arm", *arguments])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def one(text: str, kind: str) -> dict[str, Any]:
    (found,) = [each for each in yaml.safe_load_all(text) if each is not None and each["kind"] == kind]
    return found


def test_a_file_goes_in_and_the_armed_one_comes_out_with_the_hook_in_front(sameshot: Run) -> None:
    code, out, err = sameshot("-f", JOB)
    assert (code, err) == (0, "")
    assert [each["kind"] for each in yaml.safe_load_all(out)] == ["ConfigMap", "Job"]
    assert one(out, "ConfigMap") == hook_configmap("team-a")
    assert is_armed(one(out, "Job")["spec"]["template"])
    assert "# the launcher of each pod" in out


def test_standard_input_is_a_file_too(sameshot: Run) -> None:
    assert sameshot("-f", "-", given=Path(JOB).read_bytes()) == sameshot("-f", JOB)


def test_without_a_file_it_does_not_wait_for_input(sameshot: Run) -> None:
    code, out, err = sameshot()
    assert (code, out) == (2, "")
    assert "-f FILE" in err


def test_disarm_gives_the_file_back(sameshot: Run) -> None:
    _, armed, _ = sameshot("-f", JOB)
    code, out, err = sameshot("-f", "-", "--disarm", given=armed.encode())
    assert (code, out, err) == (0, Path(JOB).read_text(), "")


def test_disarm_tells_what_somebody_changed_and_where(sameshot: Run) -> None:
    _, armed, _ = sameshot("-f", JOB)
    changed = armed.replace("value: '8'", "value: '4'").replace('value: "8"', "value: '4'")
    assert changed != armed
    code, out, err = sameshot("-f", "-", "--disarm", given=changed.encode())
    assert (code, out) == (0, Path(JOB).read_text())
    assert "document 2, Job bert-…, spec.template: since it was armed, variable of container main" in err
    assert "SAMESHOT_LOCAL_WORLD_SIZE was changed" in err


def test_what_is_not_armed_is_disarmed_to_itself(sameshot: Run) -> None:
    assert sameshot("-f", JOB, "--disarm")[:2] == (0, Path(JOB).read_text())


def test_a_diff_shows_every_change_and_nothing_else(sameshot: Run, tmp_path: Path) -> None:
    code, out, _ = sameshot("-f", JOB, "--diff", "--no-hook")
    assert code == 0
    assert out.startswith(f"--- {JOB}\n+++ {JOB} (changed)\n@@ ")
    copy = tmp_path / "job.yaml"
    copy.write_text(Path(JOB).read_text())
    if shutil.which("patch"):
        subprocess.run(["patch", "-s", str(copy)], input=out, text=True, check=True, timeout=30)
        assert copy.read_text() == sameshot("-f", JOB, "--no-hook")[1]
    armed = tmp_path / "armed.yaml"
    armed.write_text(sameshot("-f", JOB)[1])
    assert sameshot("-f", str(armed), "--diff")[1] == ""


def test_a_dry_run_only_says_what_would_be_done(sameshot: Run) -> None:
    code, out, err = sameshot("-f", JOB, "--dry-run")
    assert (code, out) == (0, "")
    assert "1 pod template armed; the hook's ConfigMap for team-a is in front" in err
    code, out, err = sameshot("-f", "-", "--dry-run", given=sameshot("-f", JOB)[1].encode())
    assert (code, out) == (0, "")
    assert "as before: nothing changes" in err
    assert "nothing in it is armed" in sameshot("-f", JOB, "--disarm", "--dry-run")[2]


def test_the_hook_alone(sameshot: Run) -> None:
    code, out, err = sameshot("--hook-only", "--namespace", "team-x")
    assert (code, err) == (0, "")
    assert yaml.safe_load(out) == hook_configmap("team-x")
    assert "namespace" not in yaml.safe_load(sameshot("--hook-only")[1])["metadata"]
    assert sameshot("--hook-only", "-f", JOB)[0] == 2


def test_the_namespace_is_for_objects_that_name_none(sameshot: Run) -> None:
    _, out, _ = sameshot("-f", str(FIXTURES / "cronjob.yaml"), "-n", "mine")
    assert one(out, "ConfigMap")["metadata"]["namespace"] == "mine"
    assert "namespace" not in one(out, "CronJob")["metadata"]
    assert one(sameshot("-f", JOB, "-n", "mine")[1], "ConfigMap")["metadata"]["namespace"] == "team-a"


def test_without_the_hook(sameshot: Run) -> None:
    assert [each["kind"] for each in yaml.safe_load_all(sameshot("-f", JOB, "--no-hook")[1])] == ["Job"]


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--local-world-size", "4"], "SAMESHOT_LOCAL_WORLD_SIZE", "4"),
        (["--local-world-size", "auto"], "SAMESHOT_LOCAL_WORLD_SIZE", "auto"),
        (["--single"], "SAMESHOT_SINGLE", "1"),
        (["--arm-spawned"], "SAMESHOT_ARM_SPAWNED", "1"),
        (["--container", "main"], "SAMESHOT_CONTAINER", "main"),
        (["--pythonpath", "/image"], "PYTHONPATH", "/sameshot-hook:/image"),
        (["--pythonpath", ""], "PYTHONPATH", "/sameshot-hook"),
    ],
)
def test_each_decision_arrives(sameshot: Run, arguments: list[str], name: str, value: str) -> None:
    code, out, _ = sameshot("-f", JOB, *arguments)
    assert code == 0
    assert env_of(one(out, "Job")["spec"]["template"])[name] == value


def test_a_template_path_is_for_kinds_that_are_not_known(sameshot: Run) -> None:
    both = Path(JOB).read_text() + "---\n" + (FIXTURES / "unknown.yaml").read_text()
    code, out, err = sameshot("-f", "-", given=both.encode())
    assert code == 0
    assert "document 2, Experiment odd: this kind is not known" in err
    assert not is_armed(one(out, "Experiment")["spec"]["roles"]["leader"]["workers"][0]["pod"])
    code, out, err = sameshot("-f", "-", "--template-path", "spec.roles.*.workers[*].pod", given=both.encode())
    assert (code, err) == (0, "")
    assert is_armed(one(out, "Experiment")["spec"]["roles"]["leader"]["workers"][0]["pod"])
    assert is_armed(one(out, "Job")["spec"]["template"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", str(FIXTURES / "mpijob.yaml")], "document 1, MPIJob horovod: MPIJob is not supported yet"),
        (["-f", str(FIXTURES / "trainjob.yaml")], "document 1, TrainJob qwen: a TrainJob has no pod template"),
        (["-f", "/nowhere/at/all.yaml"], "/nowhere/at/all.yaml can't be read: No such file"),
        (["-f", JOB, "--container", "nobody"], "document 1, Job bert-…: spec.template: There is no container nobody"),
        (["-f", JOB, "--local-world-size", "0"], "--local-world-size is '0'"),
        (["-f", JOB, "--template-pat", "x"], "No such option"),
    ],
)
def test_what_is_refused_prints_nothing_and_exits_2(sameshot: Run, arguments: list[str], said: str) -> None:
    code, out, err = sameshot(*arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_bytes_that_are_no_text_are_refused(sameshot: Run) -> None:
    code, out, err = sameshot("-f", "-", given=b"\xff\xfe")
    assert (code, out) == (2, "")
    assert "not UTF-8" in err


def test_line_ends_of_windows_stay(sameshot: Run) -> None:
    given = Path(JOB).read_text().replace("\n", "\r\n").encode()
    _, out, _ = sameshot("-f", "-", "--no-hook", given=given)
    assert out.count("\r\n") == out.count("\n")
    assert sameshot("-f", "-", "--disarm", given=out.encode())[1].encode() == given


def test_help_has_examples(sameshot: Run) -> None:
    code, out, _ = sameshot("--help")
    assert code == 0
    assert "kubectl apply -f -" in " ".join(out.split())


def test_without_pyyaml_it_says_what_to_install(sameshot: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for module in ("yamlstream", "yamlparts", "yamltext"):
        monkeypatch.delitem(sys.modules, f"sameshot.arm.{module}", raising=False)
    for arguments in (["-f", JOB], ["--hook-only"]):
        code, out, err = sameshot(*arguments)
        assert (code, out) == (2, "")
        assert "pip install 'sameshot[kubernetes]'" in err


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl to read it with")
def test_kubectl_reads_the_same_objects(sameshot: Run, tmp_path: Path) -> None:
    """Kubernetes' own reader of YAML, without a server."""
    names = ("pod", "job", "cronjob", "statefulset", "deployment")
    plain = "---\n".join((FIXTURES / f"{name}.yaml").read_text() for name in names)
    # Names that one reader of YAML or another takes for numbers and booleans, and that arming repeats elsewhere.
    plain = plain.replace("name: notebook\n", "name: '1e3'\n").replace(
        "- name: main\n          image: reg", "- name: 'y'\n          image: reg"
    )
    assert "'y'" in plain
    assert "'1e3'" in plain
    file = tmp_path / "armed.yaml"
    file.write_text(sameshot("-f", "-", given=plain.encode())[1])
    command = ["kubectl", "label", "--local", "-f", str(file), "-o", "json", "seen=yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(done.stdout.rstrip()):
        thing, at = decoder.raw_decode(done.stdout, at)
        found.append(thing)
        at += len(done.stdout[at:]) - len(done.stdout[at:].lstrip())
    wanted = list(yaml.safe_load_all(file.read_text()))
    assert len(found) == len(wanted)
    env = wanted[-1]["spec"]["template"]["spec"]["containers"][0]["env"]
    for theirs, ours in zip(found, wanted, strict=True):
        assert theirs["metadata"]["labels"].pop("seen") == "yes"
        assert {key: theirs.get(key) for key in ("kind", "data")} == {key: ours.get(key) for key in ("kind", "data")}
        if ours["kind"] == "Deployment":
            assert theirs["spec"]["template"]["spec"]["containers"][0]["env"] == env
            assert {"name": "SAMESHOT_JOB_NAME", "value": "1e3"} in env
            assert {"name": "SAMESHOT_CONTAINER", "value": "y"} in env
        if ours["kind"] == "Pod":
            assert theirs["spec"]["containers"][1] == ours["spec"]["containers"][1]
            assert theirs["spec"]["volumes"] == ours["spec"]["volumes"]


def test_json_needs_no_yaml_library(sameshot: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    job = json.dumps(yaml.safe_load(Path(JOB).read_text())).encode()
    wanted = sameshot("-f", "-", given=job)
    monkeypatch.setitem(sys.modules, "yaml", None)
    for module in ("yamlstream", "yamlparts", "yamltext"):
        monkeypatch.delitem(sys.modules, f"sameshot.arm.{module}", raising=False)
    assert sameshot("-f", "-", given=job) == wanted
    assert wanted[0] == 0


def test_only_the_named_ones(sameshot: Run) -> None:
    both = Path(JOB).read_text() + "---\n" + (FIXTURES / "cronjob.yaml").read_text()
    code, out, _ = sameshot("-f", "-", "--only", "CronJob/nightly", given=both.encode())
    assert code == 0
    assert is_armed(one(out, "CronJob")["spec"]["jobTemplate"]["spec"]["template"])
    assert not is_armed(one(out, "Job")["spec"]["template"])
