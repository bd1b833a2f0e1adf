"""What is registered of a capture task, and what a workflow's author is told at once."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyte_connector import spec_of
from flyteidl.core.types_pb2 import SimpleType
from flytekit import Secret, TaskMetadata, map_task, workflow
from flytekit.core.context_manager import FlyteEntities

import sameshot_flyte
from sameshot.errors import UsageError
from sameshot.steps.request import Action
from sameshot_flyte import Capture, SameshotCapture, capture
from sameshot_flyte.asked import INPUTS, Place, request_of

PLACE = Place("ml", "production", "f3a9c1", "n0")


@pytest.fixture(autouse=True)
def _nothing_is_left_to_register() -> Any:
    """flytekit remembers all that was ever made, and registers it."""
    before = list(FlyteEntities.entities)
    yield
    FlyteEntities.entities[:] = before


def test_the_ready_task_is_typed_is_never_cached_and_has_no_container() -> None:
    template = spec_of(capture).template
    assert (template.id.name, template.type, template.task_type_version) == ("sameshot.capture", "sameshot_capture", 0)
    kinds = {str: SimpleType.STRING, int: SimpleType.INTEGER, bool: SimpleType.BOOLEAN}
    told = {name: variable.type.simple for name, variable in template.interface.inputs.variables.items()}
    assert told == {name: kinds[kind] for name, (kind, _) in INPUTS.items()}
    (output,) = template.interface.outputs.variables.items()
    assert (output[0], output[1].type.simple) == ("capture", SimpleType.STRUCT)
    assert (template.metadata.discoverable, template.metadata.retries.retries) == (False, 2)
    assert not template.metadata.HasField("timeout")
    assert template.WhichOneof("target") is None
    assert not template.custom.fields


def test_retries_timeout_secrets_and_where_links_lead_are_frozen_at_registration() -> None:
    ours = SameshotCapture(
        "ours",
        archive_base_url="https://traces.example.org/",
        metadata=TaskMetadata(retries=5, timeout=timedelta(minutes=20)),
        secret_requests=[Secret(group="sameshot", key="token")],
    )
    template = spec_of(ours).template
    assert (template.metadata.retries.retries, template.metadata.timeout.seconds) == (5, 1200)
    (secret,) = template.security_context.secrets
    assert (secret.group, secret.key) == ("sameshot", "token")
    assert dict(template.custom) == {"archive_base_url": "https://traces.example.org/"}


def test_a_cache_is_refused() -> None:
    with pytest.raises(UsageError, match="The capture task 'ours' is told to cache"):
        SameshotCapture("ours", metadata=TaskMetadata(cache=True, cache_version="1"))


@pytest.mark.parametrize("url", ["s3://bucket/archive", "https://me:secret@traces.example.org", "https://x.org/?sig=1"])
def test_links_that_browsers_can_t_follow_or_that_hold_secrets_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="The archive_base_url of the capture task 'ours' is "):
        SameshotCapture("ours", archive_base_url=url)


def test_in_a_workflow_only_the_address_must_be_given() -> None:
    @workflow
    def profile(address: str) -> Capture:
        found: Capture = capture(address=address, duration="5s")
        return found

    (node,) = profile.nodes
    bound = {each.var: each.binding for each in node.bindings}
    assert set(bound) == set(INPUTS)
    assert bound["address"].promise.var == "address"
    given = {name: each.scalar.primitive.value for name, each in bound.items() if name != "address"}
    defaults = {name: default for name, (_, default) in INPUTS.items() if name != "address"}
    assert given == defaults | {"duration": "5s"}


def test_a_workflow_without_the_address_or_with_an_unknown_input_is_no_workflow() -> None:
    def nowhere() -> None:
        capture(duration="5s")

    def coloured(address: str) -> None:
        capture(address=address, colour="red")

    with pytest.raises(Exception, match="address"):
        workflow(nowhere).compile()
    with pytest.raises(Exception, match="colour"):
        workflow(coloured).compile()


def test_what_a_workflow_fills_in_means_the_same_as_leaving_it_out() -> None:
    filled = {name: default for name, (_, default) in INPUTS.items()} | {"address": "job:7171"}
    request = request_of(filled, PLACE, "root")
    assert request == request_of({"address": "job:7171"}, PLACE, "root")
    assert (request.min_ranks, request.attempt, request.job, request.caller) == (None, None, None, "root")
    assert (request.if_unavailable, request.if_busy, request.timeout_s) == (Action.FAIL, Action.WAIT, 900)


def test_flytekit_maps_functions_and_no_connector_tasks() -> None:
    with pytest.raises(ValueError, match="Only PythonFunctionTask"):
        map_task(capture)


# ---- the names


def test_every_public_name_is_there() -> None:
    for name in sameshot_flyte.__all__:
        assert getattr(sameshot_flyte, name) is not None
    assert set(sameshot_flyte.__all__) <= set(dir(sameshot_flyte))
    with pytest.raises(AttributeError, match="no attribute 'Agent'"):
        _ = sameshot_flyte.Agent


def test_the_package_loads_no_sdk_before_a_name_of_it_is_used() -> None:
    program = (
        "import sys, sameshot_flyte; print([each for each in ('flytekit', 'flyte', 'grpc') if each in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


def test_without_an_sdk_it_is_said_which_ones_there_are() -> None:
    program = """
import importlib.util
importlib.util.find_spec = lambda name: None
import sameshot_flyte
try:
    sameshot_flyte.capture
except ImportError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == (
        "No SDK of Flyte is installed. Install sameshot[flyte] for flytekit 1.16, or sameshot[flyte2] for flyte 2.\n"
    )
