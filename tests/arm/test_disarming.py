from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from arm_lab import WRAPPED, container, container_of, env_of, is_armed, template

from sameshot.arm import ArmOptions, arm_template, disarm_template

Json = dict[str, Any]


def entry(armed: Json, name: str) -> Json:
    (found,) = [each for each in container_of(armed)["env"] if each["name"] == name]
    return found


@pytest.mark.parametrize(
    "plain",
    [
        template(),
        template(container(env=[], volumeMounts=[]), volumes=[]),
        template() | {"metadata": {}},
        template() | {"metadata": {"labels": {}, "annotations": {}, "creationTimestamp": None}},
        template() | {"metadata": {"labels": {"sameshot.dev/arm": "enabled"}}},
        template() | {"metadata": {"annotations": {"sameshot.dev/series": "x"}}},
    ],
)
def test_disarming_gives_back_what_was_armed(plain: Json) -> None:
    assert disarm_template(arm_template(plain).template).template == plain


def test_what_is_not_armed_comes_back_as_it_is() -> None:
    done = disarm_template(template())
    assert (done.template, done.changed, done.warnings) == (template(), False, ())


def test_edits_of_other_fields_stay() -> None:
    plain = template(container(env=[{"name": "A", "value": "1"}]), volumes=[{"name": "data", "emptyDir": {}}])
    armed = arm_template(plain).template
    wanted = copy.deepcopy(plain)
    for each in (armed, wanted):
        main = container_of(each)
        main["image"] = "registry.example/train:2"
        main["command"].append("--more")
        main["env"].append({"name": "B", "value": "2"})
        main["env"][0]["value"] = "changed"
        main.setdefault("volumeMounts", []).insert(0, {"name": "data", "mountPath": "/data"})
        each["spec"]["volumes"].append({"name": "late", "emptyDir": {}})
        each["spec"]["nodeSelector"] = {"gpu": "h200"}
        each.setdefault("metadata", {}).setdefault("labels", {})["mine"] = "yes"
    done = disarm_template(armed)
    assert done.template == wanted
    assert not done.warnings


def _set(name: str, value: str) -> Callable[[Json], None]:
    return lambda armed: entry(armed, name).update(value=value)


def _drop_env(armed: Json) -> None:
    container_of(armed)["env"] = [
        each for each in container_of(armed)["env"] if each["name"] != "SAMESHOT_LOCAL_WORLD_SIZE"
    ]


CHANGES: list[tuple[str, Callable[[Json], Any], str]] = [
    ("a variable", _set("SAMESHOT_LOCAL_WORLD_SIZE", "9"), "SAMESHOT_LOCAL_WORLD_SIZE was changed (now"),
    ("a variable gone", _drop_env, "SAMESHOT_LOCAL_WORLD_SIZE is gone"),
    (
        "a volume",
        lambda armed: armed["spec"]["volumes"][0].update(emptyDir={"sizeLimit": "5Gi"}),
        "volume sameshot was changed",
    ),
    ("a volume gone", lambda armed: armed["spec"]["volumes"].pop(1), "volume sameshot-hook is gone"),
    (
        "a mount",
        lambda armed: container_of(armed)["volumeMounts"][1].update(readOnly=False),
        "mount of container main at /sameshot-hook was changed",
    ),
    (
        "the label",
        lambda armed: armed["metadata"]["labels"].pop("sameshot.dev/arm"),
        "label sameshot.dev/arm is gone",
    ),
]


@pytest.mark.parametrize(("what", "change", "told"), CHANGES, ids=[each[0] for each in CHANGES])
def test_a_change_inside_what_was_added_is_told_and_does_not_stay(
    what: str, change: Callable[[Json], Any], told: str
) -> None:
    armed = arm_template(template()).template
    change(armed)
    done = disarm_template(armed)
    assert done.template == template()
    assert [told in warning and warning.startswith("since it was armed, ") for warning in done.warnings] == [True]


@pytest.mark.parametrize(("what", "change", "told"), CHANGES, ids=[each[0] for each in CHANGES])
def test_arming_again_puts_it_right_and_tells(what: str, change: Callable[[Json], Any], told: str) -> None:
    once = arm_template(template()).template
    armed = copy.deepcopy(once)
    change(armed)
    again = arm_template(armed)
    assert again.changed
    assert again.template == once
    assert told in again.warnings[0]
    assert "armed anew" in again.warnings[0]


def test_a_new_command_is_left_as_it_is_and_told() -> None:
    armed = arm_template(template()).template
    container_of(armed)["command"] = ["torchrun", "other.py"]
    done = disarm_template(armed)
    assert container_of(done.template)["command"] == ["torchrun", "other.py"]
    assert done.warnings == ("since it was armed, the command of container main was changed, and is left as it is now",)
    assert container_of(arm_template(armed).template)["command"] == [*WRAPPED, "torchrun", "other.py"]


def test_words_that_another_put_in_front_stay_in_front() -> None:
    """As webhooks do that start the program with something of theirs."""
    armed = arm_template(template()).template
    container_of(armed)["command"].insert(0, "/vault/env")
    done = disarm_template(armed)
    assert container_of(done.template)["command"] == ["/vault/env", "torchrun", "--nproc-per-node=2", "train.py"]
    assert "'/vault/env'" in done.warnings[0]
    again = arm_template(armed)
    assert container_of(again.template)["command"][:5] == [*WRAPPED, "/vault/env"]
    assert not arm_template(again.template).changed


def test_a_container_that_went_is_told() -> None:
    armed = arm_template(template(container("a"), container("b")), ArmOptions(container="a")).template
    armed["spec"]["containers"].pop(0)
    done = disarm_template(armed)
    assert done.template == template(container("b"))
    assert "container a is gone" in done.warnings[0]


def mounted_but_missing(armed: Json) -> set[str]:
    """Volumes for which an API server would refuse the object."""
    holders = [*armed["spec"]["containers"], *armed["spec"].get("initContainers", [])]
    mounted = {mount["name"] for holder in holders for mount in holder.get("volumeMounts", [])}
    return mounted - {volume["name"] for volume in armed["spec"].get("volumes", [])}


def test_a_renamed_container_is_found_by_what_arming_added() -> None:
    armed = arm_template(template(container("main"), container("b"))).template
    container_of(armed)["name"] = "trainer"
    done = disarm_template(armed)
    assert done.template == template(container("trainer"), container("b"))
    assert done.warnings == ("since it was armed, container main was renamed trainer",)
    again = arm_template(armed)
    assert env_of(again.template, "trainer")["SAMESHOT_CONTAINER"] == "trainer"
    assert "renamed trainer" in again.warnings[0]
    assert not arm_template(again.template).changed


def test_renamed_and_not_to_be_told_it_keeps_its_mounts_and_their_volumes() -> None:
    armed = arm_template(template()).template
    container_of(armed)["name"] = "trainer"
    container_of(armed, "trainer")["env"] = []
    done = disarm_template(armed)
    assert mounted_but_missing(done.template) == set()
    assert not is_armed(done.template)
    assert "container main is gone" in done.warnings[0]
    assert [("container trainer came to mount" in each) for each in done.warnings[1:]] == [True, True]


@pytest.mark.parametrize("key", ["containers", "initContainers"])
def test_a_volume_that_another_container_came_to_mount_stays_and_is_told(key: str) -> None:
    armed = arm_template(template()).template
    viewer = container("viewer", volumeMounts=[{"name": "sameshot", "mountPath": "/traces", "readOnly": True}])
    armed["spec"].setdefault(key, []).append(viewer)
    done = disarm_template(armed)
    assert mounted_but_missing(done.template) == set()
    assert [each["name"] for each in done.template["spec"]["volumes"]] == ["sameshot"]
    assert "volumeMounts" not in container_of(done.template)
    assert done.warnings == ("since it was armed, container viewer came to mount volume sameshot, which is left",)
    assert not arm_template(armed).changed  # arming again is no reason to give it up


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ("/sameshot-hook:/a:/b", "/a:/b"),
        ("/sameshot-hook", None),
        ("/x", "/x"),
    ],
)
def test_a_changed_python_path_keeps_what_is_the_users(now: str, left: str | None) -> None:
    plain = template(container(command=[], env=[{"name": "PYTHONPATH", "value": "/a"}]))
    armed = arm_template(plain).template
    entry(armed, "PYTHONPATH")["value"] = now
    done = disarm_template(armed)
    assert env_of(done.template).get("PYTHONPATH") == left
    assert "PYTHONPATH of container main was changed" in done.warnings[0]
    assert not is_armed(done.template)


def test_a_label_with_another_word_is_left() -> None:
    armed = arm_template(template()).template
    armed["metadata"]["labels"]["sameshot.dev/arm"] = "disabled"
    done = disarm_template(armed)
    assert done.template["metadata"] == {"labels": {"sameshot.dev/arm": "disabled"}}
    assert "was set to 'disabled', which is left" in done.warnings[0]


def test_what_an_api_server_writes_into_the_rest_does_not_disturb() -> None:
    """Read back from a cluster, the object has defaults: those of our own parts were written out."""
    plain = template()
    armed = arm_template(plain).template
    main = container_of(armed)
    server = {"terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent", "resources": {}}
    main |= server
    armed["spec"] |= {"dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler"}
    for each in main["env"]:
        if "valueFrom" in each:
            each["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    armed["spec"]["volumes"][1]["configMap"].setdefault("defaultMode", 420)
    done = disarm_template(armed)
    assert not done.warnings
    assert done.template["spec"]["containers"] == [plain["spec"]["containers"][0] | server]
    assert "volumes" not in done.template["spec"]
