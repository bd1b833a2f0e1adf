from __future__ import annotations

import pytest
from arm_lab import annotation_of, container, container_of, gpus, template

from sameshot.arm import ArmOptions, JobPlace, NotArmable, arm_template


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "amd.com/gpu",
        "amd.com/cpx_nps4",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "google.com/tpu",
        "cloud-tpus.google.com/v3",
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
        "huawei.com/Ascend910",
        "volcano.sh/vgpu-number",
    ],
)
def test_the_container_that_asks_for_an_accelerator_trains(resource: str) -> None:
    pod = template(container("sidecar"), container("worker", resources=gpus(1, resource)))
    done = arm_template(pod)
    assert annotation_of(done.template)["container"] == "worker"
    assert "env" not in container_of(done.template, "sidecar")
    assert not done.warnings


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"cpu": 8, "memory": "1Gi", "rdma/hca": 1, "vpc.example.com/input": 1}},
        {"limits": {"nvidia.com/gpu": 0}},
        {"limits": {"nvidia.com/gpu": "0"}},
        {"limits": {"smarter-devices/fuse": 1, "openshift.io/mlx5_0": 1}},
    ],
)
def test_other_resources_are_no_accelerators(resources: dict[str, dict[str, object]]) -> None:
    done = arm_template(template(container("first"), container("second", resources=resources)))
    assert annotation_of(done.template)["container"] == "first"
    assert "no container asks for an accelerator" in done.warnings[0]


def test_a_claim_of_a_device_counts() -> None:
    """Dynamic resource allocation: the device is claimed, not counted."""
    worker = container("worker", resources={"claims": [{"name": "gpu"}]})
    done = arm_template(template(container("first"), worker, resourceClaims=[{"name": "gpu"}]))
    assert annotation_of(done.template)["container"] == "worker"


def test_without_any_accelerator_it_is_the_first() -> None:
    assert annotation_of(arm_template(template(container("only"))).template)["container"] == "only"


def test_of_several_the_first_that_asks_is_taken_and_the_others_are_named() -> None:
    done = arm_template(template(container("a", resources=gpus()), container("b", resources=gpus())))
    assert annotation_of(done.template)["container"] == "a"
    assert "a and b all ask for an accelerator; a is taken" in done.warnings[0]


def test_a_person_may_say_another_one() -> None:
    pod = template(container("a", resources=gpus()), container("b"))
    done = arm_template(pod, ArmOptions(container="b"))
    assert annotation_of(done.template)["container"] == "b"
    assert not done.warnings


def test_a_container_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(NotArmable, match="no container c; this pod has a and b"):
        arm_template(template(container("a"), container("b")), ArmOptions(container="c"))


def test_a_sidecar_never_trains_not_even_with_a_gpu() -> None:
    sidecar = {"name": "logs", "image": "x", "restartPolicy": "Always", "resources": gpus()}
    pod = template(container("main"), initContainers=[sidecar])
    armed = arm_template(pod).template
    assert annotation_of(armed)["container"] == "main"
    assert armed["spec"]["initContainers"] == [sidecar]
    with pytest.raises(NotArmable, match="init container or a sidecar"):
        arm_template(pod, ArmOptions(container="logs"))


def test_the_kinds_convention_counts_where_nothing_asks_or_several_do() -> None:
    place = JobPlace(container="pytorch")
    without = template(container("istio"), container("pytorch"))
    assert annotation_of(arm_template(without, None, place).template)["container"] == "pytorch"
    several = template(container("extra", resources=gpus()), container("pytorch", resources=gpus()))
    assert annotation_of(arm_template(several, None, place).template)["container"] == "pytorch"
    elsewhere = template(container("pytorch"), container("worker", resources=gpus()))
    assert annotation_of(arm_template(elsewhere, None, place).template)["container"] == "worker"
