from __future__ import annotations

from typing import Any

import pytest
from arm_lab import annotation_of, container, container_of, template

from sameshot.arm import NotArmable, arm_template, disarm_template

OURS = {"name": "sameshot", "mountPath": "/sameshot"}


@pytest.mark.parametrize("directory", [{}, {"sizeLimit": "20Gi"}, {"medium": ""}, None])
def test_a_directory_that_the_user_brings_is_used_and_stays_the_users(directory: dict[str, str] | None) -> None:
    plain = template(volumes=[{"name": "sameshot", "emptyDir": directory}])
    armed = arm_template(plain).template
    assert armed["spec"]["volumes"][0] == {"name": "sameshot", "emptyDir": directory}
    assert [each["name"] for each in annotation_of(armed)["volumes"]] == ["sameshot-hook"]
    assert disarm_template(armed).template == plain


@pytest.mark.parametrize("medium", ["Memory", "HugePages", "HugePages-2Mi"])
def test_one_in_memory_is_refused(medium: str) -> None:
    with pytest.raises(NotArmable, match=f"medium {medium}.*memory"):
        arm_template(template(volumes=[{"name": "sameshot", "emptyDir": {"medium": medium}}]))


@pytest.mark.parametrize(
    "volume",
    [
        {"persistentVolumeClaim": {"claimName": "x"}},
        {"hostPath": {"path": "/x"}},
        {"configMap": {"name": "x"}},
        {"ephemeral": {}},
    ],
)
def test_another_kind_of_volume_of_that_name_is_refused(volume: dict[str, Any]) -> None:
    with pytest.raises(NotArmable, match=f"of its own \\({next(iter(volume))}\\)"):
        arm_template(template(volumes=[{"name": "sameshot", **volume}]))


def test_a_foreign_volume_with_the_hooks_name_is_refused() -> None:
    with pytest.raises(NotArmable, match="sameshot-hook of its own"):
        arm_template(template(volumes=[{"name": "sameshot-hook", "emptyDir": {}}]))


@pytest.mark.parametrize(
    "mount",
    [
        OURS | {"subPath": "a"},
        OURS | {"subPathExpr": "$(POD)"},
        OURS | {"readOnly": True},
        OURS | {"mountPropagation": "Bidirectional"},
        {"name": "sameshot", "mountPath": "/elsewhere"},
        {"name": "sameshot", "mountPath": "/sameshot/"},
        {"name": "data", "mountPath": "/sameshot"},
        {"name": "data", "mountPath": "/sameshot/captures"},
        {"name": "data", "mountPath": "//sameshot"},
        {"name": "data", "mountPath": "/./sameshot"},
        {"name": "data", "mountPath": "/data/../sameshot/x"},
        {"name": "data", "mountPath": "sameshot"},
        {"name": "data", "mountPath": "/sameshot-hook"},
        {"name": "data", "mountPath": "/sameshot-hook/x"},
    ],
)
def test_a_mount_in_the_way_is_refused(mount: dict[str, Any]) -> None:
    with pytest.raises(NotArmable, match="in the way of"):
        arm_template(template(container(volumeMounts=[mount])))


@pytest.mark.parametrize("path", ["/sameshot", "/sameshot/x", "//sameshot-hook"])
def test_a_device_in_the_way_is_refused(path: str) -> None:
    """A server takes no pod with a device and a mount at one path."""
    with pytest.raises(NotArmable, match=r"volumeDevices.*in the way of"):
        arm_template(template(container(volumeDevices=[{"name": "data", "devicePath": path}])))
    assert arm_template(template(container(volumeDevices=[{"name": "data", "devicePath": "/dev/data"}]))).changed


@pytest.mark.parametrize("mount", [OURS, OURS | {"readOnly": False, "recursiveReadOnly": "Disabled"}])
def test_a_mount_that_the_user_brings_is_used(mount: dict[str, Any]) -> None:
    plain = template(container(volumeMounts=[mount]), volumes=[{"name": "sameshot", "emptyDir": {}}])
    armed = arm_template(plain).template
    assert [each["mountPath"] for each in container_of(armed)["volumeMounts"]] == ["/sameshot", "/sameshot-hook"]
    assert disarm_template(armed).template == plain


@pytest.mark.parametrize("path", ["/sameshots", "/data/sameshot", "/sameshot-hooks", "/", "/sameshot/../data"])
def test_paths_that_only_look_alike_are_none_of_ours(path: str) -> None:
    plain = template(container(volumeMounts=[{"name": "data", "mountPath": path}]), volumes=[{"name": "data"}])
    armed = arm_template(plain).template
    assert len(container_of(armed)["volumeMounts"]) == 3
    assert disarm_template(armed).template == plain


def test_another_containers_mount_is_its_own_matter() -> None:
    """Such as a sidecar that looks at the traces."""
    sidecar = container("sidecar", volumeMounts=[{"name": "sameshot", "mountPath": "/traces", "readOnly": True}])
    plain = template(container(), sidecar, volumes=[{"name": "sameshot", "emptyDir": {}}])
    armed = arm_template(plain).template
    assert container_of(armed, "sidecar") == sidecar
