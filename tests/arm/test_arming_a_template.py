from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from arm_lab import SCRIPT, WRAPPED, annotation_of, container, container_of, env_of, gpus, is_armed, template

from sameshot.arm import ArmOptions, NotArmable, arm_template, disarm_template, options_in, record_of


def test_an_armed_template_has_exactly_these_additions() -> None:
    plain = template(container(args=["--epochs", "3"]))
    armed = arm_template(plain).template
    field = {"apiVersion": "v1"}
    assert armed == {
        "metadata": {
            "labels": {"sameshot.dev/arm": "enabled"},
            "annotations": {"sameshot.dev/armed": armed["metadata"]["annotations"]["sameshot.dev/armed"]},
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "command": ["/bin/sh", "-c", SCRIPT, "--", "torchrun", "--nproc-per-node=2", "train.py"],
                    "args": ["--epochs", "3"],
                    "env": [
                        {"name": "SAMESHOT_ARMED", "value": "1"},
                        {"name": "SAMESHOT_DIR", "value": "/sameshot"},
                        {
                            "name": "SAMESHOT_NODE",
                            "valueFrom": {"fieldRef": {**field, "fieldPath": "spec.nodeName"}},
                        },
                        {"name": "SAMESHOT_POD", "valueFrom": {"fieldRef": {**field, "fieldPath": "metadata.name"}}},
                        {
                            "name": "SAMESHOT_POD_UID",
                            "valueFrom": {"fieldRef": {**field, "fieldPath": "metadata.uid"}},
                        },
                        {
                            "name": "SAMESHOT_JOB_NAMESPACE",
                            "valueFrom": {"fieldRef": {**field, "fieldPath": "metadata.namespace"}},
                        },
                        {"name": "SAMESHOT_CONTAINER", "value": "main"},
                        {"name": "SAMESHOT_LOCAL_WORLD_SIZE", "value": "2"},
                    ],
                    "volumeMounts": [
                        {"name": "sameshot", "mountPath": "/sameshot"},
                        {"name": "sameshot-hook", "mountPath": "/sameshot-hook", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "sameshot", "emptyDir": {}},
                {
                    "name": "sameshot-hook",
                    "configMap": {"name": "sameshot-hook", "defaultMode": 0o444, "optional": True},
                },
            ],
        },
    }


def test_the_template_that_was_given_is_left_alone() -> None:
    plain = template(container(env=[]), volumes=[])
    before = copy.deepcopy(plain)
    armed = arm_template(plain).template
    assert plain == before
    disarm_template(armed)
    assert is_armed(armed)


def test_arming_twice_changes_nothing_and_says_so() -> None:
    once = arm_template(template())
    twice = arm_template(once.template)
    assert once.changed
    assert not twice.changed
    assert twice.template == once.template
    assert twice.record == once.record


def test_arming_again_keeps_what_was_decided_the_first_time() -> None:
    plain = template(container(command=["python", "train.py"]), container("other"))
    once = arm_template(plain, ArmOptions(container="main", single=True))
    assert env_of(once.template)["SAMESHOT_SINGLE"] == "1"
    assert not arm_template(once.template).changed


def test_arming_again_with_another_decision_takes_the_new_one() -> None:
    once = arm_template(template(), ArmOptions(local_world_size=4)).template
    again = arm_template(once, ArmOptions(local_world_size=8)).template
    assert env_of(again)["SAMESHOT_LOCAL_WORLD_SIZE"] == "8"
    assert container_of(again)["command"][:4] == WRAPPED
    assert container_of(again)["command"][4] == "torchrun"
    assert disarm_template(again).template == template()


def test_what_a_controller_adds_later_is_no_reason_to_arm_anew() -> None:
    armed = arm_template(template()).template
    container_of(armed)["env"].append({"name": "RANK", "value": "0"})  # as PyTorchJob's operator does
    armed["spec"]["volumes"].append({"name": "kube-api-access-x", "projected": {}})  # as the API server does
    armed["metadata"]["labels"]["controller"] = "x"
    again = arm_template(armed)
    assert not again.changed
    assert again.template == armed


def test_the_record_tells_others_container_and_expected_workers() -> None:
    armed = arm_template(template(container("a"), container("b", resources=gpus(2)))).template
    record = record_of(armed)
    assert record is not None
    assert (record.v, record.container, record.local_world_size) == (1, "b", 2)
    assert annotation_of(armed)["container"] == "b"
    assert record_of(template()) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "yes", '{"v":1}', '{"v":1,"container":"main","options":{"no":1}}'])
def test_an_annotation_that_arming_did_not_write_is_refused_with_a_way_out(text: str) -> None:
    strange = template() | {"metadata": {"annotations": {"sameshot.dev/armed": text}}}
    for act in (arm_template, disarm_template):
        with pytest.raises(NotArmable, match="not what arming writes"):
            act(strange)


def test_a_record_of_another_version_is_left_to_that_version() -> None:
    armed = arm_template(template()).template
    record = json.loads(armed["metadata"]["annotations"]["sameshot.dev/armed"])
    armed["metadata"]["annotations"]["sameshot.dev/armed"] = json.dumps(record | {"v": 2, "new": True})
    with pytest.raises(NotArmable, match="record version 2, this one knows 1"):
        disarm_template(armed)


def test_a_label_that_forbids_it_is_obeyed() -> None:
    with pytest.raises(NotArmable, match="disabled"):
        arm_template(template() | {"metadata": {"labels": {"sameshot.dev/arm": "disabled"}}})


def test_a_label_with_a_word_of_its_own_is_not_overwritten() -> None:
    with pytest.raises(NotArmable, match=r"'true'.*enabled or disabled"):
        arm_template(template() | {"metadata": {"labels": {"sameshot.dev/arm": "true"}}})


@pytest.mark.parametrize(
    "spec",
    [
        {"os": {"name": "windows"}},
        {"nodeSelector": {"kubernetes.io/os": "windows"}},
        {"nodeSelector": {"beta.kubernetes.io/os": "windows", "pool": "a"}},
    ],
)
def test_windows_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(NotArmable, match="Windows"):
        arm_template(template(**spec))


def test_a_pod_that_asks_for_linux_is_armed() -> None:
    assert is_armed(arm_template(template(os={"name": "linux"}, nodeSelector={"kubernetes.io/os": "linux"})).template)


def test_the_mirror_of_a_static_pod_is_refused() -> None:
    with pytest.raises(NotArmable, match="static pod"):
        arm_template(template() | {"metadata": {"annotations": {"kubernetes.io/config.mirror": "0f"}}})


def test_a_wrapped_command_without_a_record_is_not_wrapped_again() -> None:
    armed = arm_template(template()).template
    del armed["metadata"]["annotations"]["sameshot.dev/armed"]
    armed["spec"]["volumes"], container_of(armed)["volumeMounts"], container_of(armed)["env"] = [], [], []
    with pytest.raises(NotArmable, match="wrapped by arming already"):
        arm_template(armed)


@pytest.mark.parametrize(
    "changes",
    [
        {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
        {"shareProcessNamespace": True},
        {"securityContext": {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 20002}},
        {"securityContext": {"fsGroup": 1, "fsGroupChangePolicy": "OnRootMismatch"}},
        {"initContainers": [{"name": "logs", "image": "x", "restartPolicy": "Always"}]},
        {"hostUsers": False},
    ],
)
def test_these_need_nothing_else_and_are_left_as_they_are(changes: dict[str, Any]) -> None:
    """An emptyDir is 0777 (with fsGroup also setgid) and the hook's files are 0444: any user writes and reads there."""
    plain = template(**changes)
    armed = arm_template(plain).template
    assert {key: armed["spec"][key] for key in changes} == changes
    assert [each["name"] for each in armed["spec"]["volumes"]] == ["sameshot", "sameshot-hook"]
    assert armed["spec"]["volumes"][1]["configMap"]["defaultMode"] & 0o444 == 0o444
    assert disarm_template(armed).template == plain


def test_a_read_only_root_is_left_read_only() -> None:
    locked = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    armed = arm_template(template(container(securityContext=locked))).template
    assert container_of(armed)["securityContext"] == locked
    assert {"name": "sameshot", "mountPath": "/sameshot"} in container_of(armed)["volumeMounts"]  # writable


def test_an_own_variable_that_arming_sets_is_refused_by_name() -> None:
    own = template(container(env=[{"name": "SAMESHOT_DIR", "value": "/x"}]))
    with pytest.raises(NotArmable, match="SAMESHOT_DIR of its own"):
        arm_template(own)


def test_variables_that_people_may_set_by_hand_are_theirs() -> None:
    entries = [
        {"name": "SAMESHOT_LOCAL_WORLD_SIZE", "value": "3"},
        {"name": "SAMESHOT_ARM_SPAWNED", "value": "1"},
        {"name": "SAMESHOT_EXIT_WAIT_S", "value": "5"},
    ]
    plain = template(container(command=["python", "train.py"], env=entries))
    done = arm_template(plain, ArmOptions(arm_spawned=True))
    assert container_of(done.template)["env"][:3] == entries
    assert done.record is not None
    assert done.record.local_world_size == 3
    assert disarm_template(done.template).template == plain


def test_annotations_say_what_options_say() -> None:
    pod = {
        "metadata": {
            "annotations": {
                "sameshot.dev/container": "b",
                "sameshot.dev/local-world-size": "gpu",
                "sameshot.dev/single": "false",
                "sameshot.dev/arm-spawned": "true",
                "sameshot.dev/pythonpath": "/a",
            }
        }
    }
    assert options_in(pod) == ArmOptions(
        container="b", local_world_size="auto", single=False, arm_spawned=True, pythonpath="/a"
    )
    assert options_in({}) == ArmOptions()


@pytest.mark.parametrize(
    ("name", "value"), [("single", "yes"), ("single", True), ("local-world-size", "0"), ("container", 5)]
)
def test_an_annotation_that_means_nothing_is_refused(name: str, value: object) -> None:
    with pytest.raises(NotArmable, match=f"sameshot.dev/{name} is {value!r}"):
        options_in({"metadata": {"annotations": {f"sameshot.dev/{name}": value}}})


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"spec": None},
        {"spec": {"containers": []}},
        {"spec": {"containers": [{"image": "x"}]}},
        template(container(env={"A": "b"})),
        template(container(command=["python", 3])),
        template(container() | {"command": "python train.py"}),
        template(container(volumeMounts="x")),
        template(volumes=["x"]),
        template() | {"metadata": {"labels": ["x"]}},
    ],
)
def test_what_is_no_pod_template_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(NotArmable):
        arm_template(broken)
