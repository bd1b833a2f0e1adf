"""What is registered of a capture task, and what a workflow's author is told at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyte_connector import spec_of
from flyteidl.core.types_pb2 import SimpleType
from flytekit import Cache, TaskMetadata, map_task, workflow
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.core.context_manager import FlyteContextManager, FlyteEntities
from flytekit.tools.translator import get_serializable

import sameshot_flyte
from sameshot.errors import Unreachable, UsageError
from sameshot.steps.request import Action
from sameshot_flyte import Capture, SameshotCapture, capture
from sameshot_flyte.asked import INPUTS, Place, request_of
from sameshot_flyte.flyte1.connector import CaptureMeta
from support.coordination import in_loop

PLACE = Place("ml", "production", "f3a9c1", "n0")


def registered(flow: Any) -> Any:
    """What is registered of a workflow: a flyteidl `WorkflowSpec`."""
    settings = SerializationSettings(ImageConfig(), project="ml", domain="production", version="v1")
    return get_serializable(OrderedDict(), settings, flow).to_flyte_idl()


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


def test_retries_timeout_and_where_links_lead_are_frozen_at_registration() -> None:
    ours = SameshotCapture(
        "ours",
        archive_base_url="https://traces.example.org/",
        metadata=TaskMetadata(retries=5, timeout=timedelta(minutes=20)),
    )
    template = spec_of(ours).template
    assert (template.metadata.retries.retries, template.metadata.timeout.seconds) == (5, 1200)
    assert dict(template.custom) == {"archive_base_url": "https://traces.example.org/"}


def test_a_cache_is_refused() -> None:
    with pytest.raises(UsageError, match="The capture task 'ours' is told to cache"):
        SameshotCapture("ours", metadata=TaskMetadata(cache=True, cache_version="1"))


@pytest.mark.parametrize(
    "how", [{"cache": True, "cache_version": "1"}, {"cache": Cache(version="1", serialize=True)}], ids=["flag", "Cache"]
)
def test_a_cache_of_a_node_is_refused_when_its_workflow_is_registered(how: dict[str, Any]) -> None:
    @workflow
    def profile(address: str) -> Capture:
        found: Capture = capture(address=address).with_overrides(**how)
        return found

    with pytest.raises(
        UsageError, match=r"A node of the capture task 'sameshot\.capture' is told to cache, and a cach"
    ):
        registered(profile)


def test_what_else_a_node_may_override_is_as_it_was_said() -> None:
    @workflow
    def profile(address: str) -> Capture:
        found: Capture = capture(address=address).with_overrides(
            node_name="look", retries=7, timeout=timedelta(minutes=5), interruptible=True, cache=False
        )
        return found

    @workflow
    def plain(address: str) -> Capture:
        found: Capture = capture(address=address)
        return found

    (node,) = registered(profile).template.nodes
    assert (node.id, node.metadata.name) == ("look", "capture")
    assert (node.metadata.retries.retries, node.metadata.timeout.seconds) == (7, 300)
    assert (node.metadata.interruptible, node.metadata.cacheable) == (True, False)
    (node,) = registered(plain).template.nodes
    assert (node.metadata.retries.retries, node.metadata.HasField("timeout")) == (2, False)
    assert [node.metadata.HasField(each) for each in ("cacheable", "interruptible")] == [False, False]


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


# ---- Ctrl-C


class Told:
    """A connector that is asked to cancel, and what comes of it."""

    def __init__(self, *errors: BaseException) -> None:
        self.asked: list[bytes] = []
        self._errors = list(errors)

    async def delete(self, meta: CaptureMeta) -> None:
        self.asked.append(meta.data)
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture
def handlers() -> Iterator[list[Any]]:
    """What flytekit calls on Ctrl-C, before it exits; at first none."""
    before = list(FlyteContextManager.signal_handlers)
    FlyteContextManager.signal_handlers.clear()
    yield FlyteContextManager.signal_handlers
    FlyteContextManager.signal_handlers[:] = before


def waiting(connector: Told, *metas: CaptureMeta) -> SameshotCapture:
    """A task with these captures, as flytekit's local execution leaves it."""
    task = SameshotCapture("waits")
    task._connector = connector
    for meta in metas:
        FlyteContextManager.add_signal_handler(partial(task.connector_signal_handler, meta))
    return task


def test_ctrl_c_asks_no_capture_again_whose_end_was_told(handlers: list[Any]) -> None:
    connector = Told()
    waiting(connector, CaptureMeta(b"first", over=True), CaptureMeta(b"second", over=True), CaptureMeta(b"now"))
    for handler in handlers:
        handler(2, None)
    assert connector.asked == [b"now"]


@pytest.mark.parametrize("error", [Unreachable("silence"), OSError("too many open files"), TimeoutError()])
def test_no_error_of_one_cancel_keeps_ctrl_c_from_the_others_and_from_the_exit(
    error: Exception, handlers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    connector = Told(error)
    task = waiting(connector, CaptureMeta(b"one"), CaptureMeta(b"other"))
    for handler in handlers:
        handler(2, None)
    assert connector.asked == [b"one", b"other"]
    assert task._clean_up_task  # flytekit's loop ends the process
    assert f"The capture may go on: {str(error) or 'TimeoutError'}" in capsys.readouterr().out


@in_loop
async def test_another_ctrl_c_does_not_disturb_the_first(handlers: list[Any]) -> None:
    """It would wait for ever where the first one holds a lock."""

    class Impatient(Told):
        async def delete(self, meta: CaptureMeta) -> None:
            await super().delete(meta)
            if len(self.asked) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.2)

    def ctrl_c(number: int, frame: Any) -> None:
        for handler in handlers:
            handler(number, frame)

    connector, before = Impatient(), signal.signal(signal.SIGINT, ctrl_c)
    try:
        waiting(connector, CaptureMeta(b"one"), CaptureMeta(b"other"))
        ctrl_c(2, None)
        assert connector.asked == [b"one", b"other"]
        assert signal.getsignal(signal.SIGINT) is ctrl_c
    finally:
        signal.signal(signal.SIGINT, before)


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


def test_without_an_sdk_it_is_said_which_ones_there_are(tmp_path: Path) -> None:
    (tmp_path / "flyte").mkdir()  # somebody's files about Flyte are no SDK
    program = """
import importlib.util
from importlib.machinery import PathFinder
importlib.util.find_spec = lambda name: PathFinder.find_spec(name, ["."])
assert importlib.util.find_spec("flyte") is not None
import sameshot_flyte
try:
    sameshot_flyte.capture
except ImportError as error:
    print(error)
"""
    argv = [sys.executable, "-c", program]
    out = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert out == (
        "No SDK of Flyte is installed. Install sameshot[flyte] for flytekit 1.16, or sameshot[flyte2] for flyte 2.\n"
    )
