from __future__ import annotations

import pytest
from arm_lab import WRAPPED, container, container_of, env_of, template

from sameshot.arm import ArmOptions, NotArmable, arm_template, disarm_template

LITERAL = {"name": "PYTHONPATH", "value": "/app/lib:/app/more"}
ELSEWHERE = {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "paths", "key": "python"}}}
FROM_ENV = [{"configMapRef": {"name": "settings"}}]


@pytest.mark.parametrize(
    "fields",
    [{}, {"env": [LITERAL]}, {"env": [ELSEWHERE]}, {"envFrom": FROM_ENV}],
    ids=["of the image", "literal", "valueFrom", "envFrom"],
)
def test_a_command_is_wrapped_and_pythonpath_left_to_the_shell(fields: dict[str, list[dict[str, object]]]) -> None:
    plain = template(container(**fields))
    done = arm_template(plain)
    assert container_of(done.template)["command"] == [*WRAPPED, "torchrun", "--nproc-per-node=2", "train.py"]
    assert [each for each in container_of(done.template)["env"] if each["name"] == "PYTHONPATH"] == [
        each for each in fields.get("env", []) if each["name"] == "PYTHONPATH"
    ]
    assert disarm_template(done.template).template == plain
    assert [("envFrom" in each) for each in done.warnings] == [True] * ("envFrom" in fields)


ODD = ["a.b", "c-d", "1st", "a b", "é", "", "x\n"]


@pytest.mark.parametrize("name", ODD)
def test_a_variable_that_a_shell_would_lose_is_refused_with_the_way_out(name: str) -> None:
    """Kubernetes takes such names; see test_wrapped_commands_run.py for what dash does with them."""
    plain = template(container(env=[{"name": "FINE_2", "value": "1"}, {"name": name, "value": "1"}]))
    with pytest.raises(NotArmable, match=r"names a shell can't hold.*--pythonpath") as refused:
        arm_template(plain)
    assert "FINE_2" not in str(refused.value)
    done = arm_template(plain, ArmOptions(pythonpath=""))
    assert container_of(done.template)["command"] == container_of(plain)["command"]
    assert disarm_template(done.template).template == plain


def test_the_variables_of_another_container_are_not_looked_at() -> None:
    assert arm_template(template(container(), container("sidecar", env=[{"name": "a.b", "value": "1"}]))).changed


@pytest.mark.parametrize(("prefix", "refused"), [("a.b_", True), ("1", True), ("", False), ("TRAIN_", False)])
def test_a_prefix_of_envfrom_that_a_shell_would_lose_is_refused(prefix: str, refused: bool) -> None:
    plain = template(container(envFrom=[{"prefix": prefix, "configMapRef": {"name": "settings"}}]))
    if refused:
        with pytest.raises(NotArmable, match=r"prefix of envFrom.*--pythonpath"):
            arm_template(plain)
    else:
        assert "dash or BusyBox" in arm_template(plain).warnings[0]


def test_without_a_command_it_is_refused_with_both_ways_out() -> None:
    with pytest.raises(NotArmable, match=r"no `command`.*Write the entrypoint as `command`, or say with --pythonpath"):
        arm_template(template(container(command=[], args=["train.py"])))


@pytest.mark.parametrize(
    ("told", "value"), [("", "/sameshot-hook"), ("/opt/lib", "/sameshot-hook:/opt/lib"), ("/a:", "/sameshot-hook:/a:")]
)
def test_a_person_may_say_what_the_images_path_is(told: str, value: str) -> None:
    plain = template(container(command=[]))
    done = arm_template(plain, ArmOptions(pythonpath=told))
    assert env_of(done.template)["PYTHONPATH"] == value
    assert "command" not in container_of(done.template)
    assert not arm_template(done.template).changed
    assert disarm_template(done.template).template == plain


def test_said_for_a_command_too_it_is_not_wrapped() -> None:
    """For images without a shell."""
    done = arm_template(template(), ArmOptions(pythonpath=""))
    assert container_of(done.template)["command"] == ["torchrun", "--nproc-per-node=2", "train.py"]
    assert env_of(done.template)["PYTHONPATH"] == "/sameshot-hook"


def test_without_a_command_a_literal_in_the_spec_is_known_and_goes_behind_ours() -> None:
    plain = template(container(command=[], env=[{"name": "A", "value": "1"}, LITERAL, {"name": "B", "value": "2"}]))
    done = arm_template(plain)
    entries = container_of(done.template)["env"]
    assert entries[1] == {"name": "PYTHONPATH", "value": "/sameshot-hook:/app/lib:/app/more"}
    assert [each["name"] for each in entries[:3]] == ["A", "PYTHONPATH", "B"]
    assert disarm_template(done.template).template == plain


@pytest.mark.parametrize("empty", [{"name": "PYTHONPATH", "value": ""}, {"name": "PYTHONPATH"}])
def test_an_empty_literal_gets_no_colon_which_would_mean_the_current_directory(empty: dict[str, str]) -> None:
    done = arm_template(template(container(command=[], env=[empty])))
    assert env_of(done.template)["PYTHONPATH"] == "/sameshot-hook"
    assert disarm_template(done.template).template == template(container(command=[], env=[empty]))


def test_without_a_command_one_from_elsewhere_is_refused() -> None:
    for options in (None, ArmOptions(pythonpath="/x")):
        with pytest.raises(NotArmable, match="from elsewhere"):
            arm_template(template(container(command=[], env=[ELSEWHERE])), options)


def test_a_word_against_the_spec_is_refused() -> None:
    with pytest.raises(NotArmable, match=r"'/app/lib:/app/more' itself.*'/other' out"):
        arm_template(template(container(command=[], env=[LITERAL])), ArmOptions(pythonpath="/other"))
    assert arm_template(template(container(command=[], env=[LITERAL])), ArmOptions(pythonpath=LITERAL["value"])).changed


def test_twice_in_the_spec_is_refused() -> None:
    with pytest.raises(NotArmable, match="2 times"):
        arm_template(template(container(command=[], env=[LITERAL, LITERAL])))


def test_one_that_might_come_through_envfrom_is_told() -> None:
    done = arm_template(template(container(command=[], envFrom=FROM_ENV)), ArmOptions(pythonpath=""))
    assert any("envFrom no longer counts" in warning for warning in done.warnings)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-S", "train.py"],
        ["/usr/bin/python3.12", "-uI", "-m", "train"],
        ["python3", "-W", "ignore", "-E", "train.py"],
        ["python3", "-X", "dev", "-Xfrozen_modules=off", "-I", "t.py"],
        ["bash", "-c", "cd /app && exec python -I train.py"],
        ["sh", "-ec", "nvidia-smi; python3 -uS train.py --steps 3"],
        ["env", "A=b", "python", "-E", "train.py"],
    ],
)
def test_python_told_to_ignore_us_is_warned_about(command: list[str]) -> None:
    done = arm_template(template(container(command=command)))
    assert any("-S, -I or -E" in warning for warning in done.warnings)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-u", "train.py", "-S", "-E"],
        ["python", "-m", "train", "-I"],
        ["python", "-c", "print('-I')", "-I"],
        ["python", "-WIgnore", "train.py"],
        ["torchrun", "train.py", "-S"],
        ["bash", "-c", "python train.py -I"],
    ],
)
def test_the_same_letters_for_the_program_are_no_reason(command: list[str]) -> None:
    done = arm_template(template(container(command=command)))
    assert not any("-S, -I or -E" in warning for warning in done.warnings)


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "export PYTHONPATH=/app && torchrun train.py"],
        ["sh", "-c", 'PYTHONPATH="/app:/lib" torchrun train.py'],
        ["env", "PYTHONPATH=/app", "torchrun", "train.py"],
        ["env", "-i", "torchrun", "train.py"],
        ["bash", "-c", "unset PYTHONPATH; torchrun train.py"],
    ],
)
def test_a_command_that_drops_the_path_is_warned_about(command: list[str]) -> None:
    done = arm_template(template(container(command=command)))
    assert any("sets or clears PYTHONPATH" in warning for warning in done.warnings)


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "export PYTHONPATH=/app:$PYTHONPATH && torchrun train.py"],
        ["bash", "-c", 'PYTHONPATH="${PYTHONPATH}:/app" torchrun train.py'],
        ["bash", "-c", "export MYPYTHONPATH=/app; torchrun train.py"],
        ["env", "A=b", "torchrun", "train.py"],
    ],
)
def test_a_command_that_keeps_what_it_was_is_not(command: list[str]) -> None:
    assert not arm_template(template(container(command=command))).warnings
